"""Hand one call to a kernel in its own arrays and layout, and bring the answer back. Runs where the kernel runs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from . import watch
from .call import Array, Call, Result, stored
from .kernel import Given, Kernel
from .packed import offsets_of, pack, unpack
from .where import WHERE

__all__ = ["deliver"]

_PARTS = ("output", "lse", "weights", "dq", "dk", "dv", "top_keys", "top_weights")

#: Exceptions that say that something broke, not that something is refused.
_BROKEN = (
    IndexError,
    KeyError,
    AttributeError,
    NameError,
    ZeroDivisionError,
    RecursionError,
    SystemError,
    MemoryError,
    BufferError,
    EOFError,
    StopIteration,
)


class _NotAnAnswerError(Exception):
    """What a kernel returned is no array."""


def deliver(kernel: Kernel, call: Call) -> Result:
    """One call, as often as it asks; the last answer counts."""
    start, used = time.perf_counter(), time.process_time()
    result = _answered(kernel, call)
    result.seconds, result.busy = time.perf_counter() - start, time.process_time() - used
    return result


def _answered(kernel: Kernel, call: Call) -> Result:
    facts: dict[str, Any] = {}
    try:
        parts, dtypes = _ask(kernel, call, facts)
    except _NotAnAnswerError as problem:
        return Result("crash", str(problem), facts=facts)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        words = " ".join(str(problem).split())
        said = f"{type(problem).__name__}: {words[:300]}" if words else type(problem).__name__
        clear = isinstance(problem, Exception) and not isinstance(problem, _BROKEN) and len(words) > 3
        # A device that failed once may fail for ever: the child is replaced.
        facts["device error"] = "CUDA error" in words or "device-side assert" in words
        broken = "error" if isinstance(problem, Exception) else "crash"
        return Result("refusal" if clear else broken, said, facts=facts)
    return Result("answer", "", parts, dtypes, facts)


def _ask(kernel: Kernel, call: Call, facts: dict[str, Any]) -> tuple[dict[str, Array], dict[str, str]]:
    kind = _Kind(kernel.domain.arrays, kernel.domain.device)
    returned: Any = None
    kept: list[tuple[Any, Array]] = []
    for _ in range(max(call.repeat, 1)):
        given = _given(kernel, call, kind)
        arrays = {
            n: getattr(given, n) for n in ("query", "key", "value", "mask", "bias") if getattr(given, n) is not None
        }
        before = {n: kind.image(x) for n, x in arrays.items()}
        if call.watch:
            watch.poison(kind.name, [x.nbytes for x in before.values()])
        with watch.secret(call.watch, facts):
            returned = _graded(kernel, call, given, kind) if "grad" in call.wants else _parts(kernel(given))
        changed = [n for n, x in arrays.items() if not np.array_equal(before[n], kind.image(x))]
        if changed:
            facts["changed"] = sorted({*facts.get("changed", []), *changed})
        _check_numbers(returned)
        _look(returned.get("output"), arrays, kind, kept, facts)
    parts, dtypes = {}, {}
    for name in _PARTS:
        if returned.get(name) is None:
            continue
        array, dtype = kind.back(returned[name], name)
        if kernel.domain.layout == "blhd" and name in ("output", "dq", "dk", "dv") and array.ndim == 4:
            array = array.swapaxes(1, 2)
        if kernel.domain.layout == "packed":
            array = unpack(call, name, array)
        parts[name], dtypes[name] = array, dtype
    if "output" not in parts:
        raise _NotAnAnswerError("no output came back")
    return parts, dtypes


def _check_numbers(returned: dict[str, Any]) -> None:
    """Arrays of objects or words are no answer, and what fails when they are read is not the kernel's refusal."""
    for name in _PARTS:
        dtype = getattr(returned.get(name), "dtype", None)
        if isinstance(dtype, np.dtype) and dtype.kind in "OSUmM":
            raise _NotAnAnswerError(f"{name} came back as an array of {dtype}, which are no numbers")


def _look(
    output: Any, arrays: dict[str, Any], kind: _Kind, kept: list[tuple[Any, Array]], facts: dict[str, Any]
) -> None:
    """Whose memory the output is, and whether it stays what it was."""
    if output is None:
        return
    if not kind.plain(output):
        facts["odd output"] = f"{type(output).__module__}.{type(output).__qualname__}"
        return
    shared = [n for n, x in arrays.items() if kind.overlap(output, x)]
    if shared:
        facts["shares"] = shared
    if any(kind.overlap(output, earlier) for earlier, _ in kept):
        facts["same memory again"] = True
    for earlier, image in kept:
        if not np.array_equal(kind.image(earlier), image):
            facts["earlier output changed"] = True
    kept.append((output, kind.image(output)))


def _parts(returned: Any) -> dict[str, Any]:
    return dict(returned) if isinstance(returned, dict) else {"output": returned}


def _given(kernel: Kernel, call: Call, kind: _Kind) -> Given:
    domain = kernel.domain
    _, H, G, *_ = call.sizes

    def operand(name: str, dtype: str, shared: bool = True) -> Any:
        if domain.layout == "packed":
            return kind.give(pack(call, name), dtype, call.strides)
        x: Array = getattr(call, name)
        strides = "plain" if call.strides == "expanded" and not shared else call.strides
        if domain.layout == "blhd":
            x = x.swapaxes(1, 2)
        return kind.give(x, dtype, strides, heads_axis=2 if domain.layout == "blhd" else 1)

    mask: Any = None
    if call.mask is not None:
        said = call.mask if domain.polarity == "keep" or "raw mask" in call.odd else ~call.mask
        mask = kind.give(said.astype(np.float64), call.dtype) if "float mask" in call.odd else kind.plainly(said)
    key_dtype = call.key_dtype or call.dtype
    return Given(
        query=operand("query", call.dtype, shared=False),
        key=operand("key", key_dtype),
        value=operand("value", key_dtype),
        mask=mask,
        bias=None if call.bias is None else kind.give(call.bias, call.dtype),
        causal=call.causal,
        window=call.window,
        lengths=None
        if call.lengths is None or domain.layout == "packed"
        else kind.plainly(call.lengths.astype(np.int64)),
        segments=None if call.segments is None else tuple(kind.plainly(x.astype(np.int64)) for x in call.segments),
        prefix=call.prefix,
        where=None if call.where is None else WHERE[call.where],
        offsets=tuple(kind.plainly(x.astype(np.int32)) for x in offsets_of(call))
        if call.offsets is not None or domain.layout == "packed"
        else None,
        align=call.align,
        slopes=None if call.slopes is None else kind.give(call.slopes, "float32"),
        scale=call.scale,
        softcap=call.softcap,
        sink=None if call.sink is None else kind.give(call.sink, "float32"),
        wants=call.wants,
        cotangent=None if call.cotangent is None else operand("cotangent", call.dtype, shared=False),
        grouped=G < H,
        top=3 if "top" in call.wants else None,
        odd=call.odd,
        dtype=call.dtype,
    )


def _graded(kernel: Kernel, call: Call, given: Given, kind: _Kind) -> dict[str, Any]:
    if kind.name == "torch":
        leaves = [getattr(given, n).detach().requires_grad_() for n in ("query", "key", "value")]
        given.query, given.key, given.value = leaves
        parts = _parts(kernel(given))
        parts["output"].backward(given.cotangent)
        parts.update({n: x.grad for n, x in zip(("dq", "dk", "dv"), leaves, strict=True)})
        return parts
    if kind.name == "jax":
        import jax

        def run(query: Any, key: Any, value: Any) -> Any:
            given.query, given.key, given.value = query, key, value
            return _parts(kernel(given))["output"]

        output, back = jax.vjp(run, given.query, given.key, given.value)
        return {"output": output, **dict(zip(("dq", "dk", "dv"), back(given.cotangent), strict=True))}
    return _parts(kernel(given))


class _Kind:
    """Arrays of one library: made from numbers, and numbers of them again."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device

    def give(self, numbers: Array, dtype: str, strides: str = "plain", heads_axis: int = 1) -> Any:
        """Exact numbers of a float type as an array of the kernel's library that nobody else holds."""
        array = stored(numbers, dtype)
        if self.name == "torch":
            import torch

            whole = array[:, :1] if strides == "expanded" and heads_axis == 1 else array
            whole = array[:, :, :1] if strides == "expanded" and heads_axis == 2 else whole
            bits = np.ascontiguousarray(whole).view(np.int16) if dtype == "bfloat16" else whole
            made = torch.from_numpy(_restride(bits, strides) if bits.ndim > 1 else bits.copy())
            made = made.view(torch.bfloat16) if dtype == "bfloat16" else made
            made = made.to(self.device)
            return made.expand(array.shape) if strides == "expanded" else made
        if self.name == "jax":
            import jax

            plain = array.view(jax.numpy.bfloat16) if dtype == "bfloat16" else array
            return jax.numpy.array(plain)
        if dtype == "bfloat16":
            import ml_dtypes

            array = array.view(ml_dtypes.bfloat16)
        if strides == "expanded":
            return np.broadcast_to(array.take([0], heads_axis), array.shape)
        return _restride(array, strides)

    def plainly(self, array: Array) -> Any:
        """Booleans and integers."""
        if self.name == "torch":
            import torch

            return torch.from_numpy(np.array(array)).to(self.device)
        if self.name == "jax":
            import jax

            return jax.numpy.array(array.astype(np.int32) if array.dtype == np.int64 else array)
        return np.array(array)

    def back(self, given: Any, name: str) -> tuple[Array, str]:
        """(float64 numbers, name of the float type) of what came back."""
        if self.name == "torch" and type(given).__module__.split(".")[0] == "torch":
            given = given.detach().cpu()
            dtype = str(given.dtype).removeprefix("torch.")
            return np.asarray(given.double().numpy()), dtype
        if isinstance(given, (list, tuple, str, bytes)) or not hasattr(given, "dtype"):
            raise _NotAnAnswerError(f"{name} came back as {type(given).__name__}, which is no array")
        array = np.asarray(given)
        return array.astype(np.float64), array.dtype.name

    def image(self, given: Any) -> Array:
        """The bits an array holds now, copied."""
        if self.name == "torch" and hasattr(given, "detach"):
            plain = given.detach().cpu()
            if plain.dtype.is_floating_point and plain.element_size() == 2:
                plain = plain.view(plain.new_empty(0).short().dtype)
            given = plain.numpy()
        array: Array = np.ascontiguousarray(np.asarray(given))
        out: Array = np.zeros(0, np.uint8)
        if array.ndim and array.size:
            out = array.view(np.uint8).copy()
        return out

    def plain(self, given: Any) -> bool:
        """Whether it is an array of the library itself, and not something that behaves like one."""
        if self.name == "torch":
            import torch

            return type(given) in (torch.Tensor, torch.nn.Parameter)
        if self.name == "jax":
            import jax

            return isinstance(given, jax.Array)
        return type(given) is np.ndarray

    def overlap(self, a: Any, b: Any) -> bool:
        """Whether two arrays share memory; JAX arrays cannot be written, so for them it does not matter."""
        if self.name == "numpy":
            return bool(np.may_share_memory(a, b))
        if self.name == "torch" and a.numel() and b.numel():
            return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
        return False


def _restride(array: Array, how: str) -> Array:
    """The same numbers lying differently in memory, copied."""
    if how == "readonly":
        out: Array = array.copy()
        out.flags.writeable = False
        return out
    if how == "transposed":
        return np.asarray(array.swapaxes(1, 2).copy().swapaxes(1, 2))
    if how == "negative":
        return np.asarray(array[:, :, ::-1].copy()[:, :, ::-1])
    if how == "sliced":
        # What lies between the numbers may be read by nobody.
        fill: Any = np.nan if array.dtype.kind in "fV" else 0x7FC0
        room = np.full((*array.shape[:2], 2 * array.shape[2] + 1, array.shape[3] + 3), fill, array.dtype)
        view = room[:, :, 1 : 2 * array.shape[2] + 1 : 2, 2:-1]
        view[...] = array
        lying: Array = view
        return lying
    plain: Array = array.copy()
    return plain
