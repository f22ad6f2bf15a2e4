"""Arrays of every kind go in without a copy and come out as they went in; what cannot be taken faithfully is refused.

A4, F1, G1. Tests of torch and JAX are skipped where those are not installed, except where CI has to have them.
"""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import (
    DTypeError,
    UnsupportedError,
    alibi,
    allow,
    attend,
    attention,
    causal,
    first,
    keys,
    partial,
    segments,
    where,
    window,
)
from qkv.interop import take
from support.arrays import DTYPES, numpy_dtype, same_bits
from support.libraries import library
from support.tiny import counting, rows, zeros

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def torch() -> Any:
    return library("torch")


@pytest.fixture
def jax() -> Any:
    return library("jax")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


Q, K, V = random(2, 4, 5, 8), random(2, 2, 5, 8, seed=1), random(2, 2, 5, 3, seed=2)


def test_g1_importing_imports_no_other_library():
    code = "import sys, qkv; print(*sorted({'torch', 'jax', 'ml_dtypes', 'rich', 'safetensors'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


# NumPy.


def test_numpy_arrays_are_read_where_they_are():
    for x in (Q, Q[::-1], Q.transpose(1, 0, 2, 3), np.broadcast_to(Q[:1], Q.shape), Q[..., ::2]):
        array, dtype, _ = take(x, "query")
        assert array.ctypes.data == x.ctypes.data
        assert array.strides == x.strides
        assert dtype == "float32"


def test_numpy_mapped_files_are_arrays(tmp_path):
    path = tmp_path / "q.bin"
    mapped = np.memmap(path, np.float32, "w+", shape=Q.shape)
    mapped[...] = Q
    read_only = np.memmap(path, np.float32, "r", shape=Q.shape)
    out = attend(read_only, K, V)
    assert type(out) is np.ndarray
    assert same_bits(out, attend(Q, K, V))
    assert np.shares_memory(take(read_only, "query")[0], read_only)


@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias", "sink"])
def test_numpy_subclasses_with_a_meaning_of_their_own_are_refused(name):
    arrays = {"query": zeros(2, 2), "key": zeros(2, 2), "value": zeros(2, 2)}
    arrays |= {"mask": np.ones((2, 2), bool), "bias": zeros(2, 2), "sink": zeros(1)}
    plain = arrays[name]
    with pytest.raises(UnsupportedError, match=f"{name} is a masked array, and its mask would be lost"):
        attend(**{**arrays, name: np.ma.masked_array(plain, mask=True)})

    class Tagged(np.ndarray):
        pass

    for strange in (np.atleast_2d(plain).view(np.matrix), plain.view(Tagged), plain.view(np.recarray)):
        with pytest.raises((UnsupportedError, DTypeError), match=name):
            attend(**{**arrays, name: strange})


class Frame:
    """Looks like a table of pandas: it can be made an array, and is not one."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return zeros(2, 2)


@pytest.mark.parametrize(
    "strange", [[[0.0, 0.0]] * 2, ((0.0, 0.0),) * 2, Frame(), 1.0, "query", None, {}, zeros], ids=repr
)
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_what_is_no_array_is_refused(name, strange):
    arrays = {"query": zeros(2, 2), "key": zeros(2, 2), "value": zeros(2, 2), name: strange}
    with pytest.raises((DTypeError, qkv.ShapeError), match=name):
        attend(**arrays)


def test_libraries_are_not_mixed(torch):
    with pytest.raises(DTypeError, match="query and value must be arrays of one library, but are numpy and torch"):
        attend(zeros(2, 2), zeros(2, 2), torch.zeros(2, 2))


# torch.


def torch_dtype(torch: Any, name: str) -> Any:
    return getattr(torch, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_in_and_out(torch, dtype):
    q, k, v = (torch.from_numpy(x).to(torch_dtype(torch, dtype)) for x in (Q, K, V))
    expected = attention(*(x.astype(numpy_dtype(dtype)) for x in (Q, K, V)), mask=causal())
    a = attention(q, k, v, mask=causal())
    assert isinstance(a.output, torch.Tensor)
    assert a.output.dtype == q.dtype
    assert a.lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    wide = a.output.double().numpy()
    assert same_bits(wide, expected.output.astype(np.float64))
    assert same_bits(a.lse.numpy(), expected.lse)
    assert not a.output.requires_grad
    assert a.output.is_contiguous()
    a.output[...] = 0  # it is the caller's own


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_are_read_where_they_are(torch, dtype):
    base = torch.zeros(3, 4, 6, dtype=torch_dtype(torch, dtype))
    for x in (base, base[1:], base.transpose(0, 2), base[:, ::2], base[:1].expand(3, 4, 6)):
        array, name, kind = take(x, "query")
        assert (name, kind.name) == (dtype, "torch")
        assert array.ctypes.data == x.data_ptr()
        assert array.strides == tuple(s * x.element_size() for s in x.stride())
        assert array.shape == tuple(x.shape)


def test_torch_answers_are_tensors(torch):
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    a, plain = attention(q, k, v, mask=causal()), attention(Q, K, V, mask=causal())
    for ask in (
        lambda a: a.weights([0, 3]),
        lambda a: a.top(2).keys,
        lambda a: a.top(2).weights,
        lambda a: a.received(),
        lambda a: a.entropy(),
        lambda a: a.effective_keys(),
        lambda a: a.sink_share(),
        lambda a: a.contributions(1).share,
        lambda a: a.influence(1, vectors=True).vectors,
        lambda a: a.influence(1).sole,
    ):
        assert isinstance(ask(a), torch.Tensor)
        assert same_bits(ask(a).numpy(), ask(plain))
    state = partial(q, k, v, mask=causal())
    assert isinstance(state.finish().output, torch.Tensor)
    cache = qkv.Cache().append(k, v)
    assert isinstance(cache.view()[0], torch.Tensor)
    assert isinstance(attend(q, cache, mask=causal()), torch.Tensor)


def test_torch_length_first(torch):
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in (Q, K, V))
    out = attend(q, k, v, layout="blhd")
    assert same_bits(out.numpy(), attend(Q, K, V).swapaxes(1, 2))


@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "sink", "scale", "softcap", "slopes"])
def test_torch_no_gradient_is_dropped_in_silence(torch, name):
    x = torch.zeros(1, 2, 2)
    arguments = {"query": x, "key": x, "value": x}
    learned = {"bias": torch.zeros(1, 2, 2), "sink": torch.zeros(1), "scale": torch.tensor(1.0)}
    learned |= {"softcap": torch.tensor(1.0), "slopes": torch.zeros(1)}
    tensor = learned.get(name, x).clone().requires_grad_()

    def run() -> Any:
        return attend(**arguments, bias=alibi(tensor)) if name == "slopes" else attend(**{**arguments, name: tensor})

    with pytest.raises(UnsupportedError, match=f"{name} requires grad.*detach.*no_grad"):
        run()
    with torch.no_grad():
        assert not run().requires_grad
    with torch.inference_mode():
        assert run().shape == (1, 2, 2)
    tensor = tensor.detach()
    assert run().shape == (1, 2, 2)


def test_torch_parameters(torch):
    p = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(UnsupportedError, match="requires grad"):
        attend(p, p, p)
    with torch.no_grad():
        assert type(attend(p, p, p)) is torch.Tensor


def test_torch_forward_mode_tangents_are_not_dropped_either(torch):
    import torch.autograd.forward_ad as forward

    x = torch.zeros(2, 2)
    with forward.dual_level():
        # What torch's own make_dual does, without the decompositions it loads for it.
        dual = torch._VF._make_dual(x, torch.ones(2, 2), level=0)
        with pytest.raises(UnsupportedError, match="query carries a tangent"):
            attend(dual, x, x)
        with pytest.raises(UnsupportedError, match="bias carries a tangent"):
            attend(x, x, x, bias=dual)
    assert attend(x, x, x).shape == (2, 2)


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_torch_transforms_have_no_numbers_to_give(torch, transform):
    x = torch.zeros(2, 2, 2)
    run = {"vmap": lambda y: attend(y, y, y), "grad": lambda y: attend(y, y, y).sum()}[transform]
    with pytest.raises(UnsupportedError, match="query"):
        getattr(torch.func, transform)(run)(x)


@pytest.mark.parametrize("kind", ["meta", "fake", "sparse", "complex", "int64", "bool"])
def test_torch_tensors_that_are_no_plain_numbers(torch, kind):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.zeros(2, 2)
    strange = {
        "meta": lambda: torch.zeros(2, 2, device="meta"),
        "fake": lambda: FakeTensorMode().from_tensor(x),
        "sparse": x.to_sparse,
        "complex": lambda: x.to(torch.complex64),
        "int64": x.long,
        "bool": x.bool,
    }[kind]()
    with pytest.raises((UnsupportedError, DTypeError), match=r"^key "):
        attend(x, strange, x)


def test_torch_views_that_are_computed_on_reading(torch):
    """A tensor whose numbers stand negated in memory is read as the numbers it has."""
    z = torch.tensor([[1 + 2j, 3 + 4j]])
    negative = z.conj().imag
    assert negative.is_neg()
    x = torch.zeros(1, 2)
    assert attend(x, x, negative).tolist() == [[-2, -4]]
    assert z.imag.tolist() == [[2, 4]]  # and memory stays as it was


def test_torch_tensors_as_every_other_argument(torch):
    x, v = torch.zeros(3, 2), torch.from_numpy(counting(3))
    lower = torch.ones(3, 3, dtype=torch.bool).tril()

    def got(**arguments: Any) -> list[float]:
        return attend(x, x, v, **arguments).ravel().tolist()

    assert got(mask=lower) == [1, 1.5, 2]
    for mask in (lower & causal(), causal() & lower, lower & window(None, 0), ~(~causal() | ~allow(lower))):
        assert got(mask=mask) == [1, 1.5, 2]
    assert got(mask=lower | first(3)) == got(mask=first(3) | lower) == [2, 2, 2]
    assert got(mask=keys(torch.tensor(2))) == [1.5] * 3
    assert got(mask=keys(torch.tensor([True, False, True]))) == [2] * 3
    assert got(mask=segments(torch.tensor([0, 1, 1]))) == [1, 2.5, 2.5]
    assert got(mask=causal(align=torch.tensor(1))) == [1.5, 2, 2]
    assert got(mask=where(lambda b, h, p, j: j == p)) == [1, 2, 3]
    assert got(bias=torch.where(lower, 0.0, -torch.inf)) == [1, 1.5, 2]
    assert got(bias=torch.zeros(3, 3, dtype=torch.float32), scale=torch.tensor(0.5)) == [2] * 3
    assert got(sink=torch.zeros(1)) == [1.5] * 3  # (1 + 2 + 3) / 4
    assert rows(3, 3, lower) == [1, 1.5, 2]  # a mask may come from another library than the query
    half = torch.zeros(3, 2, dtype=torch.bfloat16)
    assert attend(half, half, v.bfloat16(), bias=torch.zeros(3, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with pytest.raises(DTypeError, match="mask must be boolean"):
        got(mask=lower.float())


def test_torch_takes_a_mask_for_nothing_else(torch):
    for use in (
        lambda: torch.add(torch.zeros(2), causal()),
        lambda: torch.ones(2) * causal(),
        lambda: torch.where(causal(), 0, 1),
    ):
        with pytest.raises(TypeError):
            use()


# JAX.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_jax_arrays_in_and_out(jax, dtype):
    q, k, v = (jax.numpy.asarray(x, dtype) for x in (Q, K, V))
    expected = attention(*(x.astype(numpy_dtype(dtype)) for x in (Q, K, V)), mask=causal())
    a = attention(q, k, v, mask=causal())
    assert isinstance(a.output, jax.Array)
    assert a.output.dtype == q.dtype
    assert a.lse.dtype == np.float32
    assert a.output.devices() == q.devices()
    assert same_bits(np.asarray(a.output), expected.output)
    assert same_bits(np.asarray(a.lse), expected.lse)
    assert isinstance(a.weights([0]), jax.Array)
    assert a.top(2).keys.tolist() == expected.top(2).keys.tolist()
    assert isinstance(attend(q, qkv.Cache().append(k, v), mask=causal()), jax.Array)
    assert isinstance(partial(q, k, v, mask=causal()).finish().output, jax.Array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_jax_arrays_are_read_where_they_are(jax, dtype):
    x = jax.numpy.asarray(Q, dtype)
    array, name, kind = take(x, "query")
    assert (name, kind.name) == (dtype, "jax")
    assert array.ctypes.data == x.unsafe_buffer_pointer()


def test_jax_double_stays_double(jax):
    """F1: also where the mode of the process would make new arrays float32."""
    with jax.enable_x64(True):
        q, k, v = (jax.numpy.asarray(x, "float64") for x in (Q, K, V))
        inside = attention(q, k, v)
        assert inside.output.dtype == inside.lse.dtype == np.float64
        assert inside.top(1).keys.dtype == np.int64
    outside = attention(q, k, v)
    assert not jax.config.jax_enable_x64
    assert outside.output.dtype == outside.lse.dtype == np.float64
    assert same_bits(np.asarray(outside.output), attend(*(x.astype(np.float64) for x in (Q, K, V))))
    assert same_bits(np.asarray(outside.output), np.asarray(inside.output))


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "jvp"])
def test_jax_tracers_are_refused(jax, transform):
    x = jax.numpy.zeros((2, 2, 2))
    run = {
        "jit": lambda: jax.jit(lambda y: attend(y, y, y))(x),
        "grad": lambda: jax.grad(lambda y: attend(x, x, y).sum())(x),
        "vmap": lambda: jax.vmap(lambda y: attend(y, y, y))(x),
        "jvp": lambda: jax.jvp(lambda y: attend(x, y, x), (x,), (x,)),
    }[transform]
    with pytest.raises(UnsupportedError, match=r"is a JAX tracer.*jax\.pure_callback"):
        run()


@pytest.mark.parametrize("name", ["bias", "sink", "scale", "softcap", "mask"])
def test_jax_tracers_of_other_arguments_are_refused(jax, name):
    x = jax.numpy.zeros((1, 2, 2))
    value = {"bias": jax.numpy.zeros((2, 2)), "sink": jax.numpy.zeros(1), "mask": jax.numpy.ones((2, 2), bool)}
    with pytest.raises(UnsupportedError, match=f"{name} is a JAX tracer"):
        jax.jit(lambda y: attend(x, x, x, **{name: y}))(value.get(name, 1.0))


def test_jax_a_callback_is_the_way_into_a_trace(jax):
    x = jax.numpy.asarray(Q)
    call = jax.jit(lambda y: jax.pure_callback(lambda z: attend(z, z, z), jax.ShapeDtypeStruct(y.shape, y.dtype), y))
    assert same_bits(np.asarray(call(x)), attend(Q, Q, Q))


def test_jax_arrays_as_every_other_argument(jax):
    x, v = jax.numpy.zeros((3, 2)), jax.numpy.asarray(counting(3))
    lower = jax.numpy.tri(3, dtype=bool)

    def got(**arguments: Any) -> list[float]:
        return attend(x, x, v, **arguments).ravel().tolist()

    for mask in (lower, lower & causal(), causal() & lower):
        assert got(mask=mask) == [1, 1.5, 2]
    assert got(mask=lower | first(3)) == [2, 2, 2]
    assert got(mask=keys(jax.numpy.int32(2))) == [1.5] * 3
    assert got(bias=jax.numpy.zeros((3, 3)), scale=jax.numpy.float32(0.5)) == [2] * 3
    assert got(sink=jax.numpy.zeros(1)) == [1.5] * 3


def test_jax_inputs_stay_as_they_were(jax):
    q, k, v = (jax.numpy.asarray(x) for x in (Q, K, V))
    attention(q, k, v, mask=causal()).received()
    for x, before in ((q, Q), (k, K), (v, V)):
        assert same_bits(np.asarray(x), before)


# Anything that speaks DLPack.


class Box:
    """An array library in ten lines."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("boxes")
    module.from_dlpack = lambda x: Box(np.from_dlpack(x))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "boxes", module)
    monkeypatch.setattr(Box, "__module__", "boxes")
    return module


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dlpack_in_and_out(boxes, dtype):
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    a = attention(*(Box(x) for x in (q, k, v)), mask=causal())
    expected = attention(q, k, v, mask=causal())
    assert isinstance(a.output, Box)
    assert same_bits(a.output.array, expected.output)
    assert same_bits(a.lse.array, expected.lse)
    assert take(Box(q), "query")[0].ctypes.data == q.ctypes.data


def test_dlpack_of_views_and_read_only_memory(boxes):
    q = Q[:, ::-1, ::2]
    q.flags.writeable = False
    out = attend(Box(q), Box(K), Box(V), mask=Box(np.ones((3, 5), bool)), bias=Box(zeros(3, 5)))
    assert same_bits(out.array, attend(q, K, V, bias=zeros(3, 5)))


@pytest.mark.parametrize("device", [2, 3, 7, 10, 13])
def test_dlpack_of_another_device_is_refused(boxes, device):
    for arrays in (
        (Box(Q, device), Box(K), Box(V)),
        (Box(Q), Box(K, device), Box(V)),
        (Box(Q), Box(K), Box(V, device)),
    ):
        with pytest.raises(UnsupportedError, match="is on a device, and this engine runs on the CPU"):
            attend(*arrays)


def test_dlpack_that_gives_nothing_back_is_refused(boxes):
    del boxes.from_dlpack
    with pytest.raises(UnsupportedError, match=r"query is a boxes array, and boxes\.from_dlpack .* missing"):
        attend(Box(Q), Box(K), Box(V))


def test_dlpack_that_cannot_be_exported_is_refused(boxes):
    foreign = Q.astype(Q.dtype.newbyteorder())
    with pytest.raises((UnsupportedError, DTypeError), match="query"):
        attend(Box(foreign), Box(K), Box(V))
    with pytest.raises(DTypeError, match="query must be float16"):
        attend(Box(Q.astype(int)), Box(K), Box(V))
