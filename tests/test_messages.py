"""Contract G2: every error message is read here, as its caller would read it.

A case is a wrong call and the first line of its message. Each message names the argument first, says what was expected
and what came, and ends with the way out after a semicolon; a picture may follow on further lines. A message that is
raised somewhere in the core and read by no case fails `test_g2_every_message_is_read`. The messages of mask
expressions in text, of the plain definition, pictures, files and the command line are read by the tests of those rooms.
"""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import qkv
from qkv import (
    Cache,
    MultiHead,
    QkvError,
    alibi,
    attend,
    attention,
    causal,
    first,
    keys,
    partial,
    prefix,
    recipes,
    segments,
    where,
    window,
)
from qkv.engines import native
from qkv.gradient import attention_gradient
from support.libraries import library
from support.tiny import zeros

CORE = Path(qkv.__file__).parent

#: Messages of these are read elsewhere (see above).
ROOMS = {"maskparse.py", "plain.py", "trace.py", "headview.py", "real.py"}


def call(q: Any = None, k: Any = None, v: Any = None, **arguments: Any) -> Callable[[], Any]:
    """A call of `attend` with 2 queries and 3 keys of one head, but for what is given."""
    return lambda: attend(
        zeros(2, 4) if q is None else q,
        zeros(3, 4) if k is None else k,
        zeros(3, 4) if v is None else v,
        **{"mask": None, **arguments},
    )


def batched(B: int = 2, H: int = 2, G: int = 1, L: int = 2, S: int = 3, **arguments: Any) -> Callable[[], Any]:
    return lambda: attend(zeros(B, H, L, 4), zeros(B, G, S, 4), zeros(B, G, S, 4), **arguments)


def a_cache(B: int = 2, T: int = 3) -> Cache:
    return Cache().append(zeros(B, 1, T, 4), zeros(B, 1, T, 4))


def state(**arguments: Any) -> Any:
    return partial(zeros(2, 4), zeros(3, 4), zeros(3, 4), **arguments)


def layer(**changes: Any) -> Callable[[], Any]:
    square = zeros(8, 8)
    return lambda: MultiHead(**{"w_q": square, "w_k": square, "w_v": square, "w_o": square, "heads": 2, **changes})


def with_numbers(name: str, index: tuple[int, ...], number: float) -> Callable[[], Any]:
    arrays = {"query": zeros(2, 4), "key": zeros(3, 4), "value": zeros(3, 4), "bias": zeros(2, 3)}
    arrays[name][index] = number
    return lambda: attend(**arrays)


def torch_call(make: Callable[[Any], Any], name: str = "query") -> Callable[[], Any]:
    def run() -> Any:
        import torch

        arrays = {n: torch.zeros(2, 4) for n in ("query", "key", "value")}
        arrays[name] = make(torch)
        return attend(**arrays)

    return run


def jax_call(run: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    def start() -> Any:
        import jax

        return run(jax, jax.numpy.zeros((2, 4)))

    return start


def _deleted(jax: Any, x: Any) -> Any:
    x.delete()
    return attend(x, x, x)


class OnDevice:
    """A stand-in for a JAX array elsewhere: what it says is all that is looked at."""

    platform = "gpu"


class Exchange:
    """The least an array has to have: DLPack."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **kwargs: Any) -> Any:
        if self.array is None:
            raise BufferError("it cannot be exported")
        return self.array.__dlpack__(**kwargs)


def a_window() -> Cache:
    """A cache of 4 keys that has forgotten the first."""
    return Cache(window=2).append(zeros(2, 1, 3, 4), zeros(2, 1, 3, 4)).append(zeros(2, 1, 1, 4), zeros(2, 1, 1, 4))


def bfloat16_cache() -> Any:
    """A torch bfloat16 cache asked for as a NumPy array."""
    import torch

    x = torch.zeros(1, 2, 4, dtype=torch.bfloat16)
    return np.asarray(qkv.Cache().append(x, x).key)


def fake_tensor(torch: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(2, 4)


def while_compiling() -> Any:
    import torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        return attend(*[torch.zeros(2, 4)] * 3)


def a_dual_tensor() -> Any:
    import torch
    from torch.autograd import forward_ad

    x = torch.zeros(2, 4)
    with forward_ad.dual_level():
        # What make_dual does, without the decompositions that it loads.
        return attend(torch._VF._make_dual(x, x, level=0), x, x)


def jax_on_a_device() -> Any:
    """No other device is here, so the array only says that it is on one."""
    import jax

    from qkv import interop

    class Elsewhere:
        Array = type("Array", (), {"devices": lambda self: {OnDevice()}, "is_deleted": lambda self: False})
        core = jax.core

    return interop._jax_view(Elsewhere.Array(), "query", Elsewhere)


def half_with_double_bias() -> Any:
    x = np.zeros((2, 4), np.float16)
    return attend(x, x, x, bias=np.zeros((2, 2)))


def torch_stack_of_masks() -> Any:
    import torch

    return torch.add(torch.zeros(2), causal())


def swapped_parts() -> Any:
    cache = a_cache()
    return attend(zeros(2, 2, 1, 4), cache.value, cache.key)


def finish_of_a_nan() -> Any:
    value = zeros(3, 4)
    value[1] = np.nan
    return partial(zeros(2, 4), zeros(3, 4), value, nonfinite="propagate").finish()


def environment(name: str, value: str, run: Callable[[], Any]) -> Callable[[], Any]:
    def start() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            return run()

    return start


def engine_named(name: str) -> Callable[[], Any]:
    return environment("QKV_ENGINE", name, call())


def isa_named(name: str) -> Callable[[], Any]:
    return environment("QKV_ISA", name, native.level.__wrapped__)


def threads_named(text: str) -> Callable[[], Any]:
    return environment("QKV_NUM_THREADS", text, native.default_threads.__wrapped__)


def without_the_native_engine() -> Any:
    recipes.forget()  # what was remembered was remembered with it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_extension", None)
        patch.setattr(native, "_reason", "it was not built")
        return environment("QKV_ENGINE", "native", call())()


def native_call_without_it() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_extension", None)
        patch.setattr(native, "_reason", "it was not built")
        return native.levels()


def a_pack(offsets: Any = (0, 2, 5), key_offsets: Any = None, **arguments: Any) -> Callable[[], Any]:
    arrays = dict.fromkeys(("query", "key", "value"), zeros(5, 2, 4))
    return lambda: qkv.attend_packed(query_offsets=offsets, key_offsets=key_offsets, **{**arrays, **arguments})


class Case(NamedTuple):
    id: str
    error: type[QkvError]
    message: str
    call: Callable[[], Any]
    needs: str = ""


#: `<any>` stands for what another library or this machine says.
CASES = [
    *(
        Case(f"packed-{name}", error, message, call)
        for name, error, message, call in (
            (
                "layout",
                qkv.UnsupportedError,
                "layout is not an argument here, since packed arrays are (total, H, D); transpose yours if heads come first",
                a_pack(layout="blhd"),
            ),
            (
                "cache",
                qkv.UnsupportedError,
                "key must be an array (total, G, D) here, but a Cache came; write attend(query, cache)",
                a_pack(key=a_cache()),
            ),
            (
                "array",
                qkv.UnsupportedError,
                "mask must be made of causal, window, prefix and first here, since documents differ in size, but holds "
                "allow(…); the offsets say which keys exist, and what else there is goes through attend, document by document",
                a_pack(mask=causal() & np.ones((5, 5), bool)),
            ),
            (
                "bias",
                qkv.UnsupportedError,
                "bias must be None or alibi(…) here, since documents differ in size, but a ndarray came; call attend for each document",
                a_pack(bias=zeros(5, 5)),
            ),
            (
                "axes",
                qkv.ShapeError,
                "query must have three axes, (total queries, H, D), but has 4; merge batch and length, reshape(-1, H, D), and say by "
                "query_offsets where documents begin",
                a_pack(**dict.fromkeys(("query", "key", "value"), zeros(1, 5, 2, 4))),
            ),
            (
                "floats",
                qkv.DTypeError,
                "query_offsets must be whole numbers, but has dtype float64; write .astype(np.int64)",
                a_pack([0.0, 2.0, 5.0]),
            ),
            (
                "one-number",
                qkv.ShapeError,
                "query_offsets must have shape (documents + 1,), but has shape (); write np.concatenate([[0], np.cumsum(lengths)])",
                a_pack(5),
            ),
            (
                "begin",
                qkv.ArgumentError,
                "query_offsets must begin with 0, where the first document does, but begins with 2; put a 0 in front of the ends",
                a_pack([2, 5]),
            ),
            (
                "descend",
                qkv.ArgumentError,
                "key_offsets must not descend, but key_offsets[2] = 1 comes after 3; they are sums of lengths, np.cumsum(lengths)",
                a_pack([0, 2, 5, 5], [0, 3, 1, 5]),
            ),
            (
                "end",
                qkv.ArgumentError,
                "query_offsets must end with the length of query, 5, but ends with 4; every row belongs to a document",
                a_pack([0, 4]),
            ),
            (
                "documents",
                qkv.ShapeError,
                "key_offsets must cut as many documents as query_offsets, 2, but cut 1; a document without keys has two equal offsets",
                a_pack([0, 2, 5], [0, 5]),
            ),
        )
    ),
    Case(
        "threads",
        qkv.DTypeError,
        "n must be a whole number of threads, but 1.5 came; write qkv.threads(2)",
        lambda: qkv.threads(1.5),  # type: ignore[arg-type]
    ),
    Case(
        "no-threads",
        qkv.ArgumentError,
        "n must be at least 1 and below 2**31, but 0 came; leave the block out for the default",
        lambda: qkv.threads(0),
    ),
    Case(
        "list",
        qkv.DTypeError,
        "query must be an array, but a list came; write np.asarray(query, dtype=np.float32)",
        call([[0.0] * 4] * 2),
    ),
    Case(
        "list-mask",
        qkv.DTypeError,
        "mask must be an array, but a list came; write np.asarray(…)",
        call(mask=[[True, True, True], [True, False, False]]),
    ),
    Case(
        "nested-list",
        qkv.DTypeError,
        "sink: a list came that makes no array; pass one array of numbers",
        call(sink=[[1.0], [1.0, 2.0]]),
    ),
    Case(
        "object",
        qkv.DTypeError,
        (
            "query must be a NumPy array, a torch or JAX array on the CPU, or speak DLPack, but an object "
            "came; write np.asarray(query)"
        ),
        call(object()),
    ),
    Case(
        "integers",
        qkv.DTypeError,
        ("query must be float16, bfloat16, float32 or float64, but has dtype int64; write query.astype(np.float32)"),
        call(np.zeros((2, 4), np.int64)),
    ),
    Case(
        "integer-tensor",
        qkv.DTypeError,
        "query must be float16, bfloat16, float32 or float64, but has dtype int64; write query.float()",
        torch_call(lambda torch: torch.zeros(2, 4, dtype=torch.int64)),
        needs="torch",
    ),
    Case(
        "byte-order",
        qkv.DTypeError,
        'query has foreign byte order (>f4); write query.astype(query.dtype.newbyteorder("="))',
        call(zeros(2, 4).astype(">f4")),
    ),
    Case(
        "byte-order-bias",
        qkv.DTypeError,
        'bias has foreign byte order (>f4); write bias.astype(bias.dtype.newbyteorder("="))',
        call(bias=zeros(2, 3).astype(">f4")),
    ),
    Case(
        "masked-array",
        qkv.UnsupportedError,
        (
            "query is a masked array, and its mask would be lost; pass query.filled(0) and say what may be "
            "read with mask= (there True = may read)"
        ),
        call(np.ma.masked_array(zeros(2, 4))),
    ),
    Case(
        "matrix",
        qkv.UnsupportedError,
        "query is a matrix, whose meaning would be lost; pass np.asarray(query)",
        call(zeros(2, 4).view(np.matrix)),
    ),
    Case(
        "requires-grad",
        qkv.UnsupportedError,
        (
            "query requires grad, and its gradient would be dropped here; call qkv.torch.attend, which has one, or "
            "pass query.detach(), or call inside torch.no_grad(), if you need none"
        ),
        torch_call(lambda torch: torch.zeros(2, 4, requires_grad=True)),
        needs="torch",
    ),
    Case(
        "traced",
        qkv.UnsupportedError,
        "query is being traced by torch's compiler, which has no numbers yet; call qkv.torch.attend, and build masks that hold "
        "arrays outside and pass them in",
        while_compiling,
        needs="torch",
    ),
    Case(
        "gradient-of-another-output",
        qkv.ShapeError,
        "doutput must have the output's shape and dtype, (1, 2, 4) and float32 when heads stand before length, but has (1, 3, 4) "
        "and float32; pass what belongs to the output",
        lambda: attention_gradient(*[zeros(2, 4)] * 4, zeros(2), zeros(3, 4)),
    ),
    Case(
        "gradient-of-another-lse",
        qkv.ShapeError,
        "lse must have the log-sum-exp's shape, (1, 2), but has (3,); pass what belongs to the log-sum-exp",
        lambda: attention_gradient(*[zeros(2, 4)] * 4, zeros(3), zeros(2, 4)),
    ),
    Case(
        "tangent",
        qkv.UnsupportedError,
        "query carries a tangent of forward-mode differentiation, which this engine would drop; pass its primal "
        "if you need none",
        a_dual_tensor,
        needs="torch",
    ),
    Case(
        "torch-device",
        qkv.UnsupportedError,
        "query is on meta, and this engine runs on the CPU; pass a tensor that has numbers",
        torch_call(lambda torch: torch.zeros(2, 4, device="meta")),
        needs="torch",
    ),
    Case(
        "sparse",
        qkv.UnsupportedError,
        "query is torch.sparse_coo, not a plain strided tensor; pass query.to_dense() or .dequantize()",
        torch_call(lambda torch: torch.zeros(2, 4).to_sparse()),
        needs="torch",
    ),
    Case(
        "fake",
        qkv.UnsupportedError,
        ("query is a FakeTensor of torch.float32 that has no memory NumPy can read (<any>); pass a plain CPU tensor"),
        torch_call(fake_tensor),
        needs="torch",
    ),
    Case(
        "tracer",
        qkv.UnsupportedError,
        (
            "query is a JAX tracer, which has no numbers yet; call outside jit, grad and vmap, or through "
            "jax.pure_callback"
        ),
        jax_call(lambda jax, x: jax.jit(lambda y: attend(y, y, y))(x)),
        needs="jax",
    ),
    Case(
        "deleted",
        qkv.UnsupportedError,
        "query is a JAX array that cannot be read (<any>); pass one that is still alive",
        jax_call(_deleted),
        needs="jax",
    ),
    Case(
        "jax-device",
        qkv.UnsupportedError,
        ("query is on gpu, and this engine runs on the CPU; pass jax.device_put(query, jax.devices('cpu')[0])"),
        jax_on_a_device,
        needs="jax",
    ),
    Case(
        "dlpack-device",
        qkv.UnsupportedError,
        "query is on a device, and this engine runs on the CPU; pass a copy on the CPU",
        call(Exchange(zeros(2, 4), device=2)),
    ),
    Case(
        "dlpack-broken",
        qkv.UnsupportedError,
        "query cannot be read through DLPack (it cannot be exported); pass np.asarray(query)",
        call(Exchange(None)),
    ),
    Case(
        "dlpack-one-way",
        qkv.UnsupportedError,
        (
            "query is a test_messages array, and test_messages.from_dlpack to give a result back is missing; "
            "pass np.asarray(query)"
        ),
        call(Exchange(zeros(2, 4))),
    ),
    Case(
        "two-libraries",
        qkv.DTypeError,
        "query and key must be arrays of one library, but are torch and numpy; convert one of them",
        torch_call(lambda torch: zeros(2, 4), "key"),
        needs="torch",
    ),
    Case(
        "foreign",
        qkv.UnsupportedError,
        (
            "is_causal is not an argument here; write mask=causal() (when L != S: causal(align='start') is "
            "what torch means)"
        ),
        call(is_causal=True),
    ),
    Case(
        "unknown",
        qkv.UnsupportedError,
        (
            "maks is not an argument here, but mask is; write one of mask, bias, scale, softcap, sink, empty,"
            " nonfinite, layout"
        ),
        call(maks=None),
    ),
    Case(
        "missing-value",
        qkv.ShapeError,
        "value is missing, and only a Cache may stand for key and value together; pass value=",
        lambda: attend(zeros(2, 4), zeros(3, 4)),
    ),
    Case(
        "mixed",
        qkv.DTypeError,
        (
            "query, key and value must have one dtype, but query is float32 and key is float64; write "
            "key.astype(query.dtype)"
        ),
        call(k=np.zeros((3, 4))),
    ),
    Case(
        "mixed-tensor",
        qkv.DTypeError,
        (
            "query, key and value must have one dtype, but query is float32 and key is float64; write "
            "key.to(query.dtype)"
        ),
        torch_call(lambda torch: torch.zeros(2, 4, dtype=torch.float64), "key"),
        needs="torch",
    ),
    Case(
        "vector",
        qkv.ShapeError,
        ("query must have at least two axes, (length, width), but has shape (4,); a single vector is query[None]"),
        call(zeros(4)),
    ),
    Case(
        "axes",
        qkv.ShapeError,
        (
            "query, key and value must have equally many axes, but query has shape (1, 2, 4) and key (3, 4); "
            "nothing is broadcast silently, so add the missing axes"
        ),
        call(zeros(1, 2, 4)),
    ),
    Case(
        "axis-too-long",
        qkv.ShapeError,
        (
            "key must have axes shorter than 2**31, batch axes together, but has shape (1, 2147483648, 1); "
            "take it in parts, keys by partial and merge"
        ),
        call(zeros(1, 2, 1), *[np.broadcast_to(zeros(1, 1, 1), (1, 1 << 31, 1))] * 2),
    ),
    Case(
        "batch-too-large",
        qkv.ShapeError,
        (
            "query must have axes shorter than 2**31, batch axes together, but has shape (65536, 65536, 1, 2, 1); "
            "take it in parts, keys by partial and merge"
        ),
        call(*[np.broadcast_to(zeros(1, 1, 1, 2, 1), (1 << 16, 1 << 16, 1, 2, 1))] * 3),
    ),
    Case(
        "batch",
        qkv.ShapeError,
        (
            "batch axes must be equal, but query has (8,) and key (1,); nothing is broadcast silently, so "
            "write np.broadcast_to(key, …)"
        ),
        lambda: attend(zeros(8, 1, 2, 4), zeros(1, 1, 3, 4), zeros(1, 1, 3, 4)),
    ),
    Case(
        "zero-width",
        qkv.ShapeError,
        "query must not have D = 0, but has shape (2, 0); drop the call",
        lambda: attend(zeros(2, 0), zeros(3, 0), zeros(3, 4)),
    ),
    Case(
        "value-length",
        qkv.ShapeError,
        (
            "key and value must agree in heads and length, but key has (G, S) = (1, 3) and value (1, 2); give"
            " each key one value"
        ),
        call(v=zeros(2, 4)),
    ),
    Case(
        "width",
        qkv.ShapeError,
        "query and key must have one width D, but query has 4 and key 5; is one of them transposed?",
        call(k=zeros(3, 5)),
    ),
    Case(
        "heads",
        qkv.ShapeError,
        (
            "query heads must be a multiple of key heads, but query has H = 3 and key G = 2; if your arrays "
            "are (B, L, H, D), pass layout='blhd', otherwise repeat or drop heads"
        ),
        batched(H=3, G=2),
    ),
    Case(
        "word",
        qkv.ArgumentError,
        "empty must be one of 'raise', 'zero', but 'nan' came; leave it out for 'raise'",
        call(empty="nan"),
    ),
    Case(
        "layout",
        qkv.ArgumentError,
        "layout must be one of 'bhld', 'bhsd', 'blhd', 'bshd', but 'lbhd' came; leave it out for 'bhld'",
        call(layout="lbhd"),
    ),
    Case(
        "scale-array",
        qkv.DTypeError,
        "scale must be one number, but an array of shape (2,) came; pass a float",
        call(scale=np.ones(2)),
    ),
    Case(
        "first-key-huge",
        qkv.ArgumentError,
        "first_key must be below 2**40, but 4611686018427387904 came; it counts keys",
        lambda: qkv.partial(*[np.zeros((2, 4), np.float32)] * 3, first_key=2**62),
    ),
    Case(
        "reads-future-size",
        qkv.ArgumentError,
        "reads_future: queries must be a whole number of at least 0, but -1 came; pass a size",
        lambda: qkv.causal().reads_future(-1, 5),
    ),
    Case(
        "reads-future-batch",
        qkv.ShapeError,
        "reads_future: rules must have one batch shape (B…), but have (2,), (3,); give each its own call",
        lambda: (qkv.keys([1, 2]) & qkv.keys([1, 2, 3])).reads_future(4, 4),
    ),
    Case(
        "mask-ufunc",
        qkv.MaskError,
        "masks combine as booleans, and np.add cannot take them; write & for 'both', | for 'either', ~ for 'not'",
        lambda: np.add(np.eye(2), qkv.causal()),
    ),
    Case(
        "one-index",
        qkv.DTypeError,
        "head must be one whole number, but [1, 2] came; ask one head at a time",
        lambda: qkv.attention(*[np.zeros((3, 2, 4), np.float32)] * 3).influence(0, head=[1, 2]),  # type: ignore[arg-type]
    ),
    Case(
        "layer-bias-dtype",
        qkv.DTypeError,
        "b_q must be float32 or float64, but has dtype int64; write b_q.astype(np.float32)",
        lambda: qkv.MultiHead(*[np.eye(2)] * 4, heads=1, b_q=np.zeros(2, int)),
    ),
    Case(
        "layer-dtypes",
        qkv.DTypeError,
        "w_q, w_k, w_v and w_o must have one dtype, but have float32, float64; convert some of them",
        lambda: qkv.MultiHead(np.eye(2, dtype=np.float32), *[np.eye(2)] * 3, heads=1),
    ),
    Case(
        "layer-argument",
        qkv.UnsupportedError,
        "layout is not for a whole layer, but came; the call takes mask and bias, softcap, sink, empty, nonfinite",
        lambda: qkv.MultiHead(*[np.eye(2)] * 4, heads=1)(np.zeros((3, 2)), layout="blhd"),
    ),
    Case(
        "cache-bfloat16",
        qkv.DTypeError,
        "cache.key is bfloat16, which NumPy has not; take cache.key.array",
        bfloat16_cache,
    ),
    Case("scale-true", qkv.DTypeError, "scale must be one number, but True came; pass a float", call(scale=True)),
    Case(
        "scale-object",
        qkv.DTypeError,
        "scale must be one number, but an object came; pass a float",
        call(scale=object()),
    ),
    Case(
        "scale-nan",
        qkv.ArgumentError,
        "scale must be finite in float32, but nan came; leave it out for 1/sqrt(D)",
        call(scale=np.nan),
    ),
    Case(
        "softcap",
        qkv.ArgumentError,
        "softcap must be finite and > 0 in float32, but 0.0 came; leave it out for no softcap",
        call(softcap=0),
    ),
    Case(
        "sink-type",
        qkv.DTypeError,
        "sink must be one real number per query head, but has dtype bool; write .astype(np.float32)",
        call(sink=[True]),
    ),
    Case(
        "sink-shape",
        qkv.ShapeError,
        ("sink must have shape (H,) = (1,), one logit per query head, but has shape (2,); write np.full(1, x)"),
        call(sink=[0.0, 0.0]),
    ),
    Case(
        "sink-nan",
        qkv.ArgumentError,
        "sink must be finite in float32, but sink[0] is nan; a head without a sink needs sink=None",
        call(sink=[np.nan]),
    ),
    Case(
        "mask-alibi",
        qkv.DTypeError,
        "mask must say which pairs are allowed, but alibi(…) is added to the scores; pass bias=alibi(…)",
        call(mask=alibi([1.0])),
    ),
    Case(
        "mask-function",
        qkv.DTypeError,
        ("mask must be a mask expression or a boolean array, but a function came; write mask=causal(), with brackets"),
        call(mask=causal),
    ),
    Case(
        "mask-lambda",
        qkv.DTypeError,
        ("mask must be a mask expression or a boolean array, but a function came; for a rule write mask=where(f)"),
        call(mask=lambda q, k: q >= k),
    ),
    Case(
        "mask-true",
        qkv.DTypeError,
        (
            "mask must be a mask expression or a boolean array, but True came; write mask=causal(), or leave "
            "it out to allow every pair"
        ),
        call(mask=True),
    ),
    Case(
        "mask-word",
        qkv.DTypeError,
        (
            "mask must be a mask expression or a boolean array, but 'causal' came; write mask=causal(), or "
            "leave it out to allow every pair"
        ),
        call(mask="causal"),
    ),
    Case(
        "mask-float",
        qkv.DTypeError,
        (
            "mask must be boolean, True = this query may read this key, but has dtype float32; if it is to be"
            " added to the scores pass it as bias=, if it holds 0 and 1 write .astype(bool) "
            "(torch.nn.MultiheadAttention and TransformerEngine mean the opposite by True: for their masks "
            "write ~a)"
        ),
        call(mask=zeros(2, 3)),
    ),
    Case(
        "mask-shape",
        qkv.ShapeError,
        (
            "mask has shape (3, 2), which is neither (L, S) = (2, 3) nor broadcastable to (B…, H, L, S) = (1,"
            " 2, 3); it is (S, L), so pass mask.swapaxes(-1, -2)"
        ),
        call(mask=np.ones((3, 2), bool)),
    ),
    Case(
        "mask-last-axes",
        qkv.ShapeError,
        (
            "mask has shape (2, 4), which is neither (L, S) = (2, 3) nor broadcastable to (B…, H, L, S) = (1,"
            " 2, 3); its last two axes are queries and keys"
        ),
        call(mask=np.ones((2, 4), bool)),
    ),
    Case(
        "mask-layout",
        qkv.ShapeError,
        (
            "mask has shape (30, 30), which is neither (L, S) = (2, 2) nor broadcastable to (B, H, L, S) = "
            "(2, 30, 2, 2); as many queries as your arrays have heads suggests (B, L, H, D), which needs "
            "layout='blhd'"
        ),
        lambda: attend(zeros(2, 30, 2, 4), zeros(2, 30, 2, 4), zeros(2, 30, 2, 4), mask=np.ones((30, 30), bool)),
    ),
    Case(
        "mask-padding",
        qkv.ShapeError,
        (
            "mask has shape (2, 3), which is neither (L, S) = (4, 3) nor broadcastable to (B, H, L, S) = (2, "
            "2, 4, 3); if it says which keys exist, pass mask=qkv.keys(mask)"
        ),
        batched(mask=np.ones((2, 3), bool), L=4),
    ),
    Case(
        "mask-either",
        qkv.ShapeError,
        (
            "mask has shape (2, 3), which is both (L, S) and (B, S) here, since L == B == 2; write "
            "qkv.allow(mask) for (L, S) or qkv.keys(mask) for (B, S)"
        ),
        batched(mask=np.ones((2, 3), bool)),
    ),
    Case(
        "mask-per-sequence",
        qkv.ShapeError,
        (
            "mask has shape (3, 2, 3), which is not broadcastable to (B, H, L, S) = (3, 2, 2, 3); if it is "
            "(B, L, S), one array a sequence, pass mask[:, None]"
        ),
        batched(B=3, mask=np.ones((3, 2, 3), bool)),
    ),
    Case(
        "mask-key-heads",
        qkv.ShapeError,
        (
            "mask has shape (2, 3, 2, 3), which is not broadcastable to (B, H, L, S) = (2, 6, 2, 3); its head"
            " axis must be the query's 6 heads or 1"
        ),
        batched(H=6, G=3, mask=np.ones((2, 3, 2, 3), bool)),
    ),
    Case(
        "bias-mask",
        qkv.DTypeError,
        "bias is added to the scores, but a mask says which pairs are allowed; pass mask=…",
        call(bias=causal()),
    ),
    Case(
        "bias-number",
        qkv.DTypeError,
        (
            "bias must be an array that broadcasts to (B…, H, L, S), but 1.0 came; a constant changes "
            "nothing, so drop it"
        ),
        call(bias=1.0),
    ),
    Case(
        "bias-boolean",
        qkv.DTypeError,
        ("bias must be floating, to be added to the scores, but is boolean; pass it as mask= (True = may read)"),
        call(bias=np.ones((2, 3), bool)),
    ),
    Case(
        "bias-type",
        qkv.DTypeError,
        "bias must have the query's dtype float32, but has float16; write bias.astype(np.float32)",
        call(bias=np.zeros((2, 3), np.float16)),
    ),
    Case(
        "bias-type-half",
        qkv.DTypeError,
        ("bias must have the query's dtype float16 or float32, but has float64; write bias.astype(np.float32)"),
        half_with_double_bias,
    ),
    Case(
        "bias-padding",
        qkv.ShapeError,
        (
            "bias has shape (2, 3), which is neither (L, S) = (4, 3) nor broadcastable to (B, H, L, S) = (2, "
            "2, 4, 3); if it is one row of keys a sequence, pass bias[:, None, None, :]"
        ),
        batched(bias=zeros(2, 3), L=4),
    ),
    Case(
        "bias-either",
        qkv.ShapeError,
        (
            "bias has shape (2, 3), which is both (L, S) and (B, S) here, since L == B == 2; write bias[None,"
            " None] for (L, S) or bias[:, None, None, :] for (B, S)"
        ),
        batched(bias=zeros(2, 3)),
    ),
    Case(
        "alibi-heads",
        qkv.ShapeError,
        ("alibi: slopes must have shape (H,) = (1,), one per query head, but has shape (2,); repeat or drop some"),
        call(bias=alibi([1.0, 2.0], align="start")),
    ),
    Case(
        "alibi-large",
        qkv.ArgumentError,
        "alibi: slopes must be finite in float32, but 1e+39 is not; use smaller slopes",
        call(bias=alibi([1e39], align="start")),
    ),
    Case(
        "alibi-type",
        qkv.DTypeError,
        "alibi: slopes must be real numbers, but has dtype bool; write .astype(float)",
        lambda: alibi([True]),
    ),
    Case(
        "alibi-shape",
        qkv.ShapeError,
        "alibi: slopes must have shape (H,), one per query head, but has shape (); flatten it",
        lambda: alibi(1.0),
    ),
    Case(
        "alibi-nan",
        qkv.ArgumentError,
        "alibi: slopes must be finite, but slopes[1] is nan; a head without the bias has slope 0",
        lambda: alibi([0.0, np.nan]),
    ),
    Case(
        "align-unsaid",
        qkv.AlignmentError,
        (
            'causal() with 3 queries and 9 keys can mean two things, so say which: align="end", '
            'align="start", or the position of the first query:'
        ),
        lambda: attend(zeros(3, 4), zeros(9, 4), zeros(9, 4), mask=causal()),
    ),
    Case(
        "align-unsaid-large",
        qkv.AlignmentError,
        (
            'window(3, 0) with 600 queries and 40 keys can mean two things, so say which: align="end", '
            'align="start", or the position of the first query (drawn small):'
        ),
        lambda: attend(zeros(600, 4), zeros(40, 4), zeros(40, 4), mask=~window(3, 0)),
    ),
    Case(
        "align-unsaid-layout",
        qkv.AlignmentError,
        (
            'causal() with 2 queries and 3 keys can mean two things, so say which: align="end", '
            'align="start", or the position of the first query:'
        ),
        lambda: attend(zeros(1, 30, 2, 4), zeros(1, 30, 3, 4), zeros(1, 30, 3, 4), mask=causal()),
    ),
    Case(
        "align-twice",
        qkv.AlignmentError,
        (
            "mask and bias must have one alignment, but causal(align='end') says align='end' and window(1, 0,"
            " align=2) says align=2; write it once"
        ),
        call(mask=causal(align="end") & window(1, 0, align=2)),
    ),
    Case(
        "align-word",
        qkv.AlignmentError,
        (
            "causal: align must be one of two words or a position, but 'right' came; pass \"end\" (the queries "
            'are the newest rows), "start", or the position of the first query, an int or one per sequence'
        ),
        lambda: causal(align="right"),
    ),
    Case(
        "align-float",
        qkv.AlignmentError,
        (
            'window: align must be a word or whole numbers, but dtype float64 came; pass "end" (the queries '
            'are the newest rows), "start", or the position of the first query, an int or one per sequence'
        ),
        lambda: window(1, 0, align=0.5),
    ),
    Case(
        "align-far",
        qkv.AlignmentError,
        (
            'prefix: align must be below 2**40 in size, but 1125899906842624 came; pass "end" (the queries '
            'are the newest rows), "start", or the position of the first query, an int or one per sequence'
        ),
        lambda: prefix(1, align=2**50),
    ),
    Case(
        "align-shape",
        qkv.AlignmentError,
        (
            "align must be one offset or one per sequence, shape (B…) = (2,), but has shape (3,); reshape it "
            "to the batch axes"
        ),
        batched(mask=causal(align=[0, 1, 2])),
    ),
    Case(
        "truth",
        qkv.MaskError,
        (
            "a mask has no truth value, so `and`, `or`, `not` and `if` cannot take causal(); combine masks "
            "with &, | and ~"
        ),
        lambda: causal() and first(2),
    ),
    Case(
        "sum",
        qkv.MaskError,
        ("masks combine as booleans, not by adding or multiplying; write & for 'both', | for 'either', ~ for 'not'"),
        lambda: causal() + first(2),
    ),
    Case(
        "torch-function",
        qkv.MaskError,
        "a mask expression is not a tensor and torch's add cannot take it; combine masks with &, | and ~",
        torch_stack_of_masks,
        needs="torch",
    ),
    Case(
        "window-negative",
        qkv.ArgumentError,
        ("window: left must not be negative (None = open), but -1 came; it counts keys besides the query's own"),
        lambda: window(-1, 0),
    ),
    Case(
        "window-float",
        qkv.DTypeError,
        "window: left must be a whole number (None = open), but 1.5 came; pass an int",
        lambda: window(1.5, 0),
    ),
    Case(
        "window-huge",
        qkv.ArgumentError,
        "window: left must be below 2**40, but 1125899906842624 came; None leaves the side open",
        lambda: window(2**50, 0),
    ),
    Case(
        "first-negative",
        qkv.ArgumentError,
        "first: n must not be negative, but -1 came; it counts keys from the first one",
        lambda: first(-1),
    ),
    Case(
        "first-float", qkv.DTypeError, "first: n must be a whole number, but 2.0 came; pass an int", lambda: first(2.0)
    ),
    Case(
        "first-huge",
        qkv.ArgumentError,
        "first: n must be below 2**40, but 1125899906842624 came; the number of keys is enough",
        lambda: first(2**50),
    ),
    Case(
        "keys-float",
        qkv.DTypeError,
        "keys: lengths must be whole numbers, but has dtype float64; write .astype(int)",
        lambda: keys([1.5]),
    ),
    Case(
        "keys-negative",
        qkv.ArgumentError,
        "keys: lengths must not be negative, but -1 came; keys are counted from the first one, at 0",
        lambda: keys([-1]),
    ),
    Case(
        "keys-huge",
        qkv.ArgumentError,
        "keys: lengths must be below 2**62, but 4611686018427387904 came; number what there is from 0 on",
        lambda: keys(2**62),
    ),
    Case(
        "keys-crossed",
        qkv.ArgumentError,
        "keys: start must not be after stop, but is for some sequence; keys(n, n) is the empty range",
        lambda: keys(3, 2),
    ),
    Case(
        "keys-two-shapes",
        qkv.ShapeError,
        (
            "keys: start and stop must have one shape, but have (2,) and (3,); pass for both one integer, or "
            "one per sequence"
        ),
        lambda: keys([1, 2], [3, 4, 5]),
    ),
    Case(
        "keys-bool",
        qkv.ShapeError,
        "keys: booleans must have shape (B…, S), but a single bool came; pass lengths or an array",
        lambda: keys(True),
    ),
    Case(
        "keys-beyond",
        qkv.ArgumentError,
        "keys: lengths must be within 0…S = 3, but 4 came; is S the padded length of `key`?",
        call(mask=keys(4)),
    ),
    Case(
        "keys-shape",
        qkv.ShapeError,
        (
            "keys: lengths must be one integer or one per sequence, shape (B…) = (2,), but has shape (3,); "
            "reshape it to the batch axes"
        ),
        batched(mask=keys([1, 2, 3])),
    ),
    Case(
        "keys-no-batch",
        qkv.ShapeError,
        (
            "keys: lengths must be one integer or one per sequence, shape (B…) = (), but has shape (1,); "
            "there is no batch axis, so pass an int"
        ),
        call(mask=keys([3])),
    ),
    Case(
        "keys-integers",
        qkv.ShapeError,
        (
            "keys: lengths must be one integer or one per sequence, shape (B…) = (2,), but has shape (2, 3); "
            "if it says with 0 and 1 which keys exist, pass keys(a.astype(bool))"
        ),
        batched(mask=keys(np.ones((2, 3), int))),
    ),
    Case(
        "keys-bool-shape",
        qkv.ShapeError,
        (
            "keys: booleans must have shape (B…, S) = (2, 3), but have shape (2, 4); for an array of pairs "
            "(…, L, S) use allow()"
        ),
        batched(mask=keys(np.ones((2, 4), bool))),
    ),
    Case(
        "segments-number",
        qkv.ShapeError,
        ("segments: query_ids must have one id a position, but is a single number; pass an array (B…, length)"),
        lambda: segments(np.int64(3)),
    ),
    Case(
        "segments-float",
        qkv.DTypeError,
        "segments: query_ids must be whole numbers, but has dtype float32; write .astype(int)",
        lambda: segments(zeros(3)),
    ),
    Case(
        "segments-shape",
        qkv.ShapeError,
        (
            "segments: key_ids must have shape (B…, S) = (3,) or (S,) = (3,), but has shape (2,); pass "
            "key_ids as well, since L != S"
        ),
        call(mask=segments(np.zeros(2, int))),
    ),
    Case(
        "where-array",
        qkv.DTypeError,
        ("where: rule must be a function of (batch, head, position, key), but ndarray came; for an array use allow()"),
        lambda: where(np.eye(2)),
    ),
    Case(
        "where-integers",
        qkv.DTypeError,
        (
            "where: the rule must return booleans (True = this query may read this key), but returned int64; "
            "compare inside the rule, or end it with .astype(bool)"
        ),
        call(mask=where(lambda b, h, p, j: p - j, align="end")),
    ),
    Case(
        "where-shape",
        qkv.ShapeError,
        (
            "where: the rule must return an array that broadcasts to (heads, queries, keys) = (1, 2, 3), but "
            "returned shape (7,); build it from its four index arguments by broadcasting"
        ),
        call(mask=where(lambda b, h, p, j: np.ones(7, bool), align="end")),
    ),
    Case(
        "future-sizes",
        qkv.ArgumentError,
        (
            "reads_future: the sizes are needed for causal() | where(<lambda>), since its rule is a function;"
            " pass queries=L, keys=S"
        ),
        lambda: (causal() | where(lambda b, h, p, j: j > p)).reads_future(),
    ),
    Case(
        "empty-row",
        qkv.EmptyRowError,
        (
            "mask must leave every query row a key, but (batch, head, row) = (-, 0, 0) has none (there are 2 "
            "such rows); allow it a key, or pass empty='zero' for a zero output"
        ),
        lambda: attend(zeros(4, 4), zeros(2, 4), zeros(2, 4), mask=causal(align="end")),
    ),
    Case(
        "empty-row-batch",
        qkv.EmptyRowError,
        (
            "mask must leave every query row a key, but (batch, head, row) = (0, 0, 0) has none (there are 4 "
            "such rows); allow it a key, or pass empty='zero' for a zero output"
        ),
        batched(mask=keys([0, 3])),
    ),
    Case(
        "nan-query",
        qkv.NonFiniteError,
        (
            "query[1, 2] must be finite where an allowed pair reads it, but is nan; clean it, forbid the pair"
            " with mask=, or pass nonfinite='propagate' for NaN rows"
        ),
        with_numbers("query", (1, 2), np.nan),
    ),
    Case(
        "nan-key",
        qkv.NonFiniteError,
        (
            "key[2, 0] must be finite where an allowed pair reads it, but is +inf; clean it, forbid the key "
            "with mask=, or pass nonfinite='propagate' for NaN rows"
        ),
        with_numbers("key", (2, 0), np.inf),
    ),
    Case(
        "nan-value",
        qkv.NonFiniteError,
        (
            "value[0, 3] must be finite where an allowed pair reads it, but is -inf; clean it, forbid the key"
            " with mask=, or pass nonfinite='propagate' for NaN rows"
        ),
        with_numbers("value", (0, 3), -np.inf),
    ),
    Case(
        "nan-bias",
        qkv.NonFiniteError,
        (
            "bias[1, 2] must be finite where an allowed pair reads it, but is nan; clean it, forbid the pair "
            "with mask= or with -inf"
        ),
        with_numbers("bias", (1, 2), np.nan),
    ),
    Case(
        "overflow",
        qkv.ScoreOverflowError,
        (
            "scores of query and key must be finite in float32, but overflow in (batch, head, row) = (-, 0, "
            "0) (2 rows in all); make query or key smaller, lower scale, or compute in float64"
        ),
        lambda: attend(zeros(2, 4) + np.float32(1e30), zeros(3, 4) + np.float32(1e30), zeros(3, 4)),
    ),
    Case(
        "cache-mixed",
        qkv.DTypeError,
        "key and value must have one dtype, but key is float32 and value is float64; convert one of them",
        lambda: Cache().append(zeros(1, 3, 4), np.zeros((1, 3, 4))),
    ),
    Case(
        "cache-shapes",
        qkv.ShapeError,
        (
            "key and value must have shapes (B…, G, T, D) and (B…, G, T, E), but have (1, 3, 4) and (1, 2, "
            "4); give each key one value"
        ),
        lambda: Cache().append(zeros(1, 3, 4), zeros(1, 2, 4)),
    ),
    Case(
        "cache-fit",
        qkv.ShapeError,
        (
            "key must fit the cache, (B…, G, T, width) = (2, 1, T, 4), but has shape (2, 2, 1, 4); start a "
            "new Cache for other sizes"
        ),
        lambda: a_cache().append(zeros(2, 2, 1, 4), zeros(2, 2, 1, 4)),
    ),
    Case(
        "cache-type",
        qkv.DTypeError,
        "key and value must have the cache's dtype float32, but have float64; convert them first",
        lambda: a_cache().append(np.zeros((2, 1, 1, 4)), np.zeros((2, 1, 1, 4))),
    ),
    Case(
        "cache-trim",
        qkv.ArgumentError,
        "lengths must not be longer than what is held, but 9 came for a sequence of 3 keys; append adds keys",
        lambda: a_cache().trim(9),
    ),
    *(
        Case(f"cache-{name}", error, message, call)
        for name, error, message, call in (
            (
                "page",
                qkv.ArgumentError,
                "page must be at least 1, but 0 came; it counts tokens",
                lambda: Cache(page=0),
            ),
            (
                "window",
                qkv.DTypeError,
                "window must be a whole number, but '3' came; it counts tokens",
                lambda: Cache(window="3"),  # type: ignore[arg-type]
            ),
            (
                "storage",
                qkv.ArgumentError,
                "storage must be 'float16' or 'bfloat16', but 'int8' came; leave it out to keep numbers as they are appended",
                lambda: Cache(storage="int8"),
            ),
            (
                "storage-range",
                qkv.ArgumentError,
                "key must fit the cache's storage float16, but holds 1e+05; use storage='bfloat16'",
                lambda: Cache(storage="float16").append(zeros(1, 1, 4) + 1e5, zeros(1, 1, 4)),
            ),
            (
                "forgotten",
                qkv.ArgumentError,
                "mask lets a query of sequence 0 read key 0, but the cache has forgotten all before 1; add & window(left, 0) "
                "with the left of Cache(window=left)",
                lambda: attend(zeros(2, 1, 1, 4), a_window(), mask=causal()),
            ),
            (
                "trim-window",
                qkv.ArgumentError,
                "lengths must leave a window whole, at least 3 keys, but 2 came; older keys are forgotten",
                lambda: a_window().trim(2),
            ),
            (
                "fork-batch",
                qkv.ShapeError,
                "fork takes sequences of a cache with one batch axis, but this one has batch axes (2, 2); leave them out",
                lambda: Cache().append(zeros(2, 2, 1, 3, 4), zeros(2, 2, 1, 3, 4)).fork([0]),
            ),
            (
                "fork-type",
                qkv.DTypeError,
                "sequences must be a list of indices, but float64 of shape () came; pass whole numbers, [0, 0, 1]",
                lambda: a_cache().fork(0.5),
            ),
            (
                "fork-range",
                qkv.ArgumentError,
                "sequences must be within 0…1, but [2] came; they count from the first sequence",
                lambda: a_cache().fork([2]),
            ),
        )
    ),
    Case(
        "cache-trim-nothing",
        qkv.DTypeError,
        (
            "lengths must be a NumPy array, a torch or JAX array on the CPU, or speak DLPack, but a NoneType "
            "came; write np.asarray(lengths)"
        ),
        lambda: a_cache().trim(None),
    ),
    Case(
        "cache-empty",
        qkv.ShapeError,
        "the cache is empty and has no shape yet; append keys and values first",
        lambda: attend(zeros(2, 4), Cache()),
    ),
    Case(
        "cache-lengths-float",
        qkv.DTypeError,
        "lengths must be whole numbers, but has dtype float64; write .astype(int)",
        lambda: a_cache().trim(1.0),
    ),
    Case(
        "cache-lengths-shape",
        qkv.ShapeError,
        (
            "lengths must be one number or one per sequence, shape (B…) = (2,), but has shape (3,); reshape "
            "it to the batch axes"
        ),
        lambda: a_cache().trim([1, 1, 1]),
    ),
    Case(
        "cache-lengths-range",
        qkv.ArgumentError,
        "lengths must be within 0…T = 3, but [4, 0] came; it counts the rows of this call that are real",
        lambda: Cache().append(zeros(2, 1, 3, 4), zeros(2, 1, 3, 4), lengths=[4, 0]),
    ),
    Case(
        "cache-lengths-negative",
        qkv.ArgumentError,
        "lengths must be within 0…the length held, but -1 came; it says how many keys stay",
        lambda: a_cache().trim(-1),
    ),
    Case(
        "cache-other",
        qkv.ShapeError,
        ("key comes from a cache, but value is not that cache's; pass cache.key and cache.value, or the cache alone"),
        lambda: attend(zeros(2, 2, 1, 4), a_cache().key, zeros(2, 1, 3, 4)),
    ),
    Case(
        "cache-other-value",
        qkv.ShapeError,
        "value comes from a cache, but key does not; pass cache.key and cache.value, or the cache alone",
        lambda: attend(zeros(2, 2, 1, 4), zeros(2, 1, 3, 4), a_cache().value),
    ),
    Case(
        "cache-swapped",
        qkv.ShapeError,
        (
            "key and value must be cache.key and cache.value, but cache.value and cache.key came; pass the "
            "cache alone, without value"
        ),
        swapped_parts,
    ),
    Case(
        "cache-and-value",
        qkv.ShapeError,
        ("value must be left out when key is a Cache, which holds both, but one came; write attend(query, cache)"),
        lambda: attend(zeros(2, 2, 1, 4), a_cache(), zeros(2, 1, 3, 4)),
    ),
    Case(
        "cache-layout",
        qkv.UnsupportedError,
        ("layout='blhd' is refused with a cache, which holds (B, G, S, D); move the query's heads before its length"),
        lambda: attend(zeros(2, 1, 2, 4), a_cache(), layout="blhd"),
    ),
    Case(
        "cache-query-type",
        qkv.DTypeError,
        "query must have the cache's dtype float32, but is float64; convert it first",
        lambda: attend(np.zeros((2, 2, 1, 4)), a_cache()),
    ),
    Case(
        "partial-sink",
        qkv.UnsupportedError,
        "sink belongs to the whole, not to a part; pass it to finish(sink=…)",
        lambda: state(sink=[0.0]),
    ),
    Case(
        "partial-empty",
        qkv.UnsupportedError,
        "empty belongs to the whole, not to a part; pass it to finish(empty=…)",
        lambda: state(empty="zero"),
    ),
    Case(
        "partial-total",
        qkv.ArgumentError,
        "total_keys must be at least first_key + S = 2 + 3, but 4 came; it is the length of the whole",
        lambda: state(first_key=2, total_keys=4),
    ),
    Case(
        "partial-first",
        qkv.ArgumentError,
        "first_key must not be negative, but -1 came; keys are counted from 0",
        lambda: state(first_key=-1),
    ),
    Case(
        "partial-first-type",
        qkv.DTypeError,
        "first_key must be a whole number, but 1.0 came; pass an int",
        lambda: state(first_key=1.0),
    ),
    Case(
        "merge-type",
        qkv.ArgumentError,
        "merge takes states from qkv.partial, but int came; pass the other State",
        lambda: state().merge(1),
    ),
    Case(
        "merge-shape",
        qkv.ShapeError,
        (
            "states must be of the same query rows, but their mixtures have shapes (2, 4) and (1, 4); call "
            "partial with the same query for every part"
        ),
        lambda: state().merge(partial(zeros(1, 4), zeros(3, 4), zeros(3, 4))),
    ),
    Case(
        "merge-dtype",
        qkv.ArgumentError,
        "states must have one dtype, but are float32 and float64; convert the parts first",
        lambda: state().merge(partial(np.zeros((2, 4)), np.zeros((3, 4)), np.zeros((3, 4)))),
    ),
    Case(
        "finish-nan",
        qkv.NonFiniteError,
        (
            "a part had a NaN or infinity that row (batch…, head, row) = (0, 0) reads; clean it or pass "
            "nonfinite='propagate'"
        ),
        finish_of_a_nan,
    ),
    Case(
        "rows-float",
        qkv.DTypeError,
        ("queries must be whole numbers, but has dtype float64; np.flatnonzero(a) turns booleans into indices"),
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).weights([0.5]),
    ),
    Case(
        "rows-range",
        qkv.ArgumentError,
        "queries must be within -2…1, but 2 came; indices count from 0, negative ones from the end",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).weights(2),
    ),
    Case(
        "top",
        qkv.ArgumentError,
        "k must be a whole number of at least 1, but 0 came; say how many keys to list for each row",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).top(0),
    ),
    Case(
        "keep",
        qkv.ArgumentError,
        "keep must name questions out of 'entropy', 'received' and 'top', but 'lse' came; every other question is asked afterwards",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4), keep=("top", "lse")),
    ),
    Case(
        "pooled",
        qkv.ArgumentError,
        "keys must be a number of cells within 1…S = 3, but 4 came; pass min(S, what fits the picture)",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).pooled(2, 4),
    ),
    Case(
        "survey-one-axis",
        qkv.ArgumentError,
        "queries and keys must be given both or neither, but one came; a map has rows and columns",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).survey(2),
    ),
    Case(
        "survey-positions",
        qkv.DTypeError,
        "positions must be whole numbers, but has dtype float64; count from the first key",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).survey(positions=np.zeros(2)),
    ),
    Case(
        "survey-positions-shape",
        qkv.ShapeError,
        "positions must be of shape (L,) or (B…, L) with L = 2, but (3,) came; one place a row",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).survey(positions=np.zeros(3, int)),
    ),
    Case(
        "survey-positions-far",
        qkv.ArgumentError,
        "positions must be below 2**40 in size, but 18446744073709551615 came; count from the first key",
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4)).survey(positions=np.full(2, 2**64 - 1, np.uint64)),
    ),
    Case(
        "layer-heads",
        qkv.ArgumentError,
        "heads must be a whole number of at least 1, but 0 came; it is in the model's configuration",
        layer(heads=0),
    ),
    Case(
        "layer-groups",
        qkv.ShapeError,
        "heads must be a multiple of key_heads, but 4 and 3 came; leave key_heads out for one each",
        layer(heads=4, key_heads=3),
    ),
    Case(
        "layer-type",
        qkv.DTypeError,
        "w_q must be float32 or float64, but has dtype int64; write w_q.astype(np.float32)",
        layer(w_q=np.zeros((8, 8), np.int64)),
    ),
    Case(
        "layer-matrix",
        qkv.ShapeError,
        "w_k must be a matrix (in, out), but has shape (8,); a layer of torch holds its transpose",
        layer(w_k=zeros(8)),
    ),
    Case(
        "layer-columns",
        qkv.ShapeError,
        ("w_q must have columns for 2 heads of one width, but has shape (8, 7); does it multiply from the right?"),
        layer(w_q=zeros(8, 7)),
    ),
    Case(
        "layer-widths",
        qkv.ShapeError,
        "w_q and w_k must give heads of one width, but give 4 and 2; are heads and key_heads right?",
        layer(w_k=zeros(8, 4)),
    ),
    Case(
        "layer-rows",
        qkv.ShapeError,
        "w_o must have H·E = 8 rows, but has shape (4, 8); does it multiply from the right?",
        layer(w_o=zeros(4, 8)),
    ),
    Case(
        "layer-sources",
        qkv.ShapeError,
        ("w_k and w_v must read one hidden width, but have shapes (6, 8) and (8, 8); do both multiply from the right?"),
        layer(w_k=zeros(6, 8)),
    ),
    Case(
        "layer-bias",
        qkv.ShapeError,
        "b_v must have shape (8,), one number a column, but has shape (4,); leave it out for no bias",
        layer(b_v=zeros(4)),
    ),
    Case(
        "layer-causal",
        qkv.DTypeError,
        "causal must be True or False, but 1 came; other masks go to the call, as mask=…",
        layer(causal=1),
    ),
    Case(
        "layer-hidden",
        qkv.ShapeError,
        "x must have shape (B…, length, 8), but has shape (3, 4); pass hidden states, heads not split yet",
        lambda: layer()()(zeros(3, 4)),
    ),
    Case(
        "layer-context",
        qkv.ShapeError,
        "context is missing: w_k reads a hidden width of 6, w_q one of 8; pass what is read as context=",
        lambda: layer(w_k=zeros(6, 8), w_v=zeros(6, 8))()(zeros(3, 8)),
    ),
    Case(
        "layer-batch",
        qkv.ShapeError,
        "x and context must have equal batch axes, but have (2,) and (1,); repeat the shorter one",
        lambda: layer()()(zeros(2, 3, 8), zeros(1, 3, 8)),
    ),
    Case(
        "layer-names",
        qkv.ArgumentError,
        (
            "prefix must be followed by one of the families q_proj/k_proj/v_proj/o_proj; "
            "q_proj/k_proj/v_proj/out_proj; query/key/value/dense; wq/wk/wv/wo; w_q/w_k/w_v/w_o, but 'q.' is "
            "followed by: q.weight"
        ),
        lambda: MultiHead.from_tensors({"q.weight": zeros(8, 8)}, heads=2, prefix="q."),
    ),
    Case(
        "engine",
        qkv.ArgumentError,
        "QKV_ENGINE must be 'native' or 'numpy', but is 'gpu'; unset it to let qkv choose",
        engine_named("gpu"),
    ),
    Case(
        "engine-missing",
        qkv.EngineError,
        ("the native engine was asked for, but is not there: it was not built; unset QKV_ENGINE to use NumPy"),
        without_the_native_engine,
    ),
    Case(
        "isa",
        qkv.EngineError,
        "QKV_ISA must be one of <any> on this machine, not 'mmx'; unset it to take the best",
        isa_named("mmx"),
        needs="native",
    ),
    Case(
        "threads",
        qkv.EngineError,
        "QKV_NUM_THREADS must be a positive whole number, not 'many'; unset it to use every processor",
        threads_named("many"),
    ),
    Case(
        "native-missing",
        qkv.EngineError,
        ("the native engine was asked for, but is not there: it was not built; build qkv with a C++ compiler"),
        native_call_without_it,
    ),
]


def need(case: Case) -> None:
    """Skip with one line where a library is missing, except where everything has to be there."""
    if case.needs == "native":
        if not native.available():
            pytest.skip(native.why_not())
    elif case.needs:
        library(case.needs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_g2_message(case):
    need(case)
    with pytest.raises(case.error) as caught:
        case.call()
    sentence, *picture = str(caught.value).splitlines()
    expected = re.escape(case.message).replace("<any>", ".+")
    assert re.fullmatch(expected, sentence), sentence
    assert type(caught.value) is case.error
    assert all(line.startswith("   ") for line in picture)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_g2_form_of_a_message(case):
    """One sentence: who, what was expected, what came; then the way out."""
    said, semicolon, way = case.message.partition("; ")
    assert semicolon or "so say which: " in said, "no way out"
    assert len(way.split()) > 1 or not semicolon
    assert not case.message.endswith(".")
    assert not re.search(r"[.!] [A-Z]", case.message), "more than one sentence"
    assert "  " not in case.message
    assert "<" not in case.message.replace("<any>", "").replace("<lambda>", ""), "an object, not a name"


def sites() -> dict[tuple[str, int, int], str]:
    """Where the core raises an error of the contract: (file, first line, last line), and the function it stands in."""
    names = set(qkv.errors.__all__)
    found = {}
    for file in (*CORE.glob("*.py"), *(CORE / "engines").glob("*.py")):
        if file.name in ROOMS:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            made = node.exc.func if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else None
            if isinstance(made, ast.Name) and made.id in names:
                found[str(file), node.lineno, node.end_lineno or node.lineno] = ast.unparse(node)
    return found


def test_g2_every_message_is_read():
    for case in CASES:
        need(case)
    met = set()
    for case in CASES:
        try:
            case.call()
        except QkvError as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            met.add((str(Path(frame.filename).resolve()), frame.lineno))
    unread = [
        f"{Path(file).name}:{start}: {text}"
        for (file, start, end), text in sites().items()
        if not any(str(Path(file).resolve()) == name and start <= line <= end for name, line in met)
    ]
    assert not unread, "no case reads:\n" + "\n".join(unread)


# Ten wrong calls that a newcomer makes: each is told the way out, and the way out works.

Q, K = zeros(2, 4, 3, 8), zeros(2, 2, 3, 8)  # (B, H, L, D) and (B, G, S, D)


def newcomer(**changes: Any) -> Any:
    return attend(**{"query": Q, "key": K, "value": K, **changes})


PADDING = np.array([[True, True, False], [True, True, True]])
LENGTH_FIRST = {"query": zeros(2, 1, 4, 8), "key": zeros(2, 3, 2, 8), "value": zeros(2, 3, 2, 8)}
HALF = zeros(2, 2, 3, 8).astype(np.float16)
SPOILED = np.where(np.arange(3)[:, None] == 1, np.nan, K).astype(np.float32)


@pytest.mark.parametrize(
    ("wrong", "way", "right"),
    [
        pytest.param(
            {"mask": np.triu(np.ones((3, 3)), 1)},
            ["True = this query may read this key", "mean the opposite by True: for their masks write ~a"],
            {"mask": ~np.triu(np.ones((3, 3), bool), 1)},
            id="polarity",
        ),
        pytest.param(
            {"mask": np.tri(3, dtype=np.float32)},
            ["pass it as bias=", "if it holds 0 and 1 write .astype(bool)"],
            {"mask": np.tri(3, dtype=np.float32).astype(bool)},
            id="0/1-floats",
        ),
        pytest.param(
            {"mask": PADDING},
            ["neither (L, S) = (3, 3) nor", "if it says which keys exist, pass mask=qkv.keys(mask)"],
            {"mask": keys(PADDING)},
            id="padding",
        ),
        pytest.param(
            LENGTH_FIRST,
            ["multiple of key heads, but query has H = 1 and key G = 3", "layout='blhd'"],
            {**LENGTH_FIRST, "layout": "blhd"},
            id="length-first",
        ),
        pytest.param(
            {"query": Q[:, :, :1], "mask": causal()},
            ["causal() with 1 query and 3 keys", 'align="end"', "the queries are the newest rows (a cache)"],
            {"query": Q[:, :, :1], "mask": causal(align="end")},
            id="causal-with-a-cache",
        ),
        pytest.param(
            {"key": HALF, "value": HALF},
            ["query is float32 and key is float16", "key.astype(query.dtype)"],
            {"key": HALF.astype(Q.dtype), "value": HALF.astype(Q.dtype)},
            id="mixed-dtypes",
        ),
        pytest.param(
            {"query": Q.tolist()},
            ["query must be an array, but a list came", "np.asarray(query, dtype=np.float32)"],
            {"query": np.asarray(Q.tolist(), dtype=np.float32)},
            id="list",
        ),
        pytest.param(
            {"query": Q.astype(int)},
            ["query must be float16, bfloat16, float32 or float64", "query.astype(np.float32)"],
            {"query": Q.astype(int).astype(np.float32)},
            id="integers",
        ),
        pytest.param(
            {"attn_mask": np.tri(3, dtype=bool), "dropout_p": 0.0},
            ["attn_mask is not an argument here", "mask= for booleans (True = may read), bias= for numbers"],
            {"mask": np.tri(3, dtype=bool)},
            id="sdpa-keywords",
        ),
        pytest.param(
            {"query": zeros(2, 3, 3, 8)},
            ["query heads must be a multiple of key heads, but query has H = 3 and key G = 2", "repeat or drop heads"],
            {"query": zeros(2, 4, 3, 8)},
            id="heads",
        ),
        pytest.param(
            {"value": SPOILED},
            ["value[0, 0, 1, 0] must be finite where an allowed pair reads it, but is nan", "nonfinite='propagate'"],
            {"value": SPOILED, "mask": keys(0, 1)},
            id="nan",
        ),
    ],
)
def test_a_newcomers_wrong_call_is_told_the_way_out(wrong, way, right):
    with pytest.raises(QkvError) as caught:
        newcomer(**wrong)
    for words in way:
        assert words in str(caught.value)
    assert np.isfinite(newcomer(**right)).all()
