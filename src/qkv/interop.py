"""Arrays in and out: NumPy, torch on the CPU, JAX on the CPU, anything that speaks DLPack on the CPU.

The only file that knows frameworks, and it imports none: whoever hands over a tensor has already imported its library.
What cannot be taken faithfully is refused, never converted in silence.
"""

from __future__ import annotations

import importlib
import operator
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DTypeError, UnsupportedError
from .floats import FLOATS, Array, widen

_CPU = 1  # kDLCPU of the DLPack protocol

#: The three types NumPy has, by dtype object: `dtype.name` is built anew at every access.
_NATIVE = {FLOATS[name].storage: name for name in ("float16", "float32", "float64")}


@dataclass(frozen=True)
class Kind:
    """Which library an array came from, so that results go back to it.

    Attributes:
        name: "numpy", "torch", "jax", or the module of another array library.
        bfloat16: the NumPy dtype object the caller's bfloat16 arrays have (NumPy with ml_dtypes), else None.
    """

    name: str
    bfloat16: Any = None

    def empty(self, shape: tuple[int, ...], dtype: str) -> tuple[Array, Array]:
        """A fresh result as (array in the caller's NumPy dtype, the same memory in storage form)."""
        storage = FLOATS[dtype].storage
        if dtype == "bfloat16" and self.bfloat16 is not None:
            out = np.empty(shape, self.bfloat16)
            return out, out.view(storage)
        out = np.empty(shape, storage)
        return out, out

    def wrap(self, array: Array, dtype: str | None = None, *, strided: bool = False) -> Any:
        """The array as the caller's kind; `dtype` names the float type where the array holds bfloat16 bits.

        `strided`: a view of memory that is kept elsewhere, which stays one where the kind knows strides; they are not negative.
        """
        if self.name == "numpy":
            if dtype == "bfloat16" and array.dtype == np.uint16 and self.bfloat16 is not None:
                return array.view(self.bfloat16)
            return array
        if self.name == "torch":
            torch = sys.modules["torch"]
            if dtype == "bfloat16" and array.dtype.itemsize == 2:
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(array if strided or array.flags.c_contiguous else np.ascontiguousarray(array))
        if self.name == "jax":
            jax = sys.modules["jax"]
            if dtype == "bfloat16" and array.dtype.itemsize == 2:
                array = array.view(jax.numpy.bfloat16)
            elif array.dtype == np.int64 and not jax.config.jax_enable_x64:
                array = array.astype(np.int32)
            cpu = jax.local_devices(backend="cpu")[0]
            if array.dtype == np.float64 and not jax.config.jax_enable_x64:
                # JAX's mode would make a float32 array of it, but the caller's are float64 (F1).
                home = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
                with home.enable_x64(True):
                    return jax.device_put(array, cpu)
            return jax.device_put(array, cpu)
        return sys.modules[self.name].from_dlpack(array)


NUMPY = Kind("numpy")


def take(x: Any, name: str) -> tuple[Array, str, Kind]:
    """A query, key or value as (NumPy view in storage form, float type, kind), without a copy where that is possible.

    Raises:
        DTypeError: not an array, or not one of the four float types.
        UnsupportedError: an array whose meaning would be lost: it requires grad, is traced, masked, or on a device.
    """
    array, kind = _view(x, name)
    dtype = array.dtype
    known = _NATIVE.get(dtype)
    if known is not None and dtype.isnative:
        return array, known, kind
    if dtype.name == "bfloat16":
        return array.view(np.uint16), "bfloat16", Kind(kind.name, dtype if kind.name == "numpy" else None)
    if kind.name == "torch" and x.dtype is sys.modules["torch"].bfloat16:
        return array, "bfloat16", kind
    if not dtype.isnative:
        raise DTypeError(
            f'{name} has foreign byte order ({dtype.str}); write {name}.astype({name}.dtype.newbyteorder("="))'
        )
    way = f"{name}.astype(np.float32)" if kind.name != "torch" else f"{name}.float()"
    raise DTypeError(f"{name} must be float16, bfloat16, float32 or float64, but has dtype {dtype.name}; write {way}")


def torch_exchange(query: Any, key: Any, value: Any) -> Any:
    """torch's table of C functions (DLPack 1.3), if these are three plain tensors of one type that may be read by it.

    None where `take` has to look closer: other types, old versions of torch, gradients of both modes, negated views.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (type(query) is type(key) is type(value) is torch.Tensor):
        return None
    dtype = query.dtype
    if key.dtype is not dtype or value.dtype is not dtype or query.is_neg() or key.is_neg() or value.is_neg():
        return None
    if (query.requires_grad or key.requires_grad or value.requires_grad) and torch.is_grad_enabled():
        return None
    if getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0 or torch.compiler.is_compiling():
        return None
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def exchangeable(x: Any) -> bool:
    """Whether it is a tensor of torch beside those that `torch_exchange` said yes to, which its table can read as well."""
    torch = sys.modules["torch"]
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and not x.is_neg()
        and not (x.requires_grad and torch.is_grad_enabled())
    )


def plain_view(x: Any) -> Array:
    """What `torch_exchange` and `exchangeable` said yes to, or a NumPy array, as NumPy has it; bfloat16 as its bits."""
    if isinstance(x, np.ndarray):
        return x.view(np.uint16) if x.dtype.name == "bfloat16" else x
    torch, plain = sys.modules["torch"], x.detach()
    if plain.dtype is torch.bfloat16:
        bits: Array = plain.view(torch.int16).numpy().view(np.uint16)
        return bits
    out: Array = plain.numpy()
    return out


def to_numpy(x: Any, name: str, *, scalars: bool = False) -> Array:
    """Any other argument (mask, bias, sink, lengths, ids) as a NumPy array; lists and numbers only with `scalars`.

    bfloat16 bits of torch arrive as ml_dtypes-free float32, exactly.
    """
    if scalars and isinstance(x, (bool, int, float, list, tuple, np.generic)):
        try:
            return np.asarray(x)
        except Exception:  # of unequal lengths, or of tensors that will not be read: each library has its own error
            raise DTypeError(f"{name}: a list came that makes no array; pass one array of numbers") from None
    array, kind = _view(x, name)
    if kind.name == "torch" and x.dtype is sys.modules["torch"].bfloat16:
        return widen(array, "bfloat16")
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if not array.dtype.isnative:
        raise DTypeError(
            f'{name} has foreign byte order ({array.dtype.str}); write {name}.astype({name}.dtype.newbyteorder("="))'
        )
    return array


def whole_number(x: Any) -> int | None:
    """A whole number of any kind as an int; None for everything else, `True` and arrays of several included.

    >>> whole_number(np.uint8(3)), whole_number(True), whole_number(np.ones(2, int))
    (3, None, None)
    """
    if isinstance(x, (bool, np.bool_)):
        return None
    try:
        return operator.index(x)
    except TypeError:
        return None


def _view(x: Any, name: str) -> tuple[Array, Kind]:
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedError(
            f"{name} is a masked array, and its mask would be lost; pass {name}.filled(0) and say what may be read with mask= (there True = may read)"
        )
    if isinstance(x, np.ndarray):
        if isinstance(x, np.matrix) or not (type(x) is np.ndarray or isinstance(x, np.memmap)):
            raise UnsupportedError(
                f"{name} is a {type(x).__name__}, whose meaning would be lost; pass np.asarray({name})"
            )
        return np.asarray(x), NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch_view(x, name, torch), Kind("torch")
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, (jax.Array, jax.core.Tracer)):
        return _jax_view(x, name, jax), Kind("jax")
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _dlpack_view(x, name)
    if isinstance(x, (list, tuple)):
        raise DTypeError(
            f"{name} must be an array, but a {type(x).__name__} came; write np.asarray({name}, dtype=np.float32)"
            if name in ("query", "key", "value")
            else f"{name} must be an array, but a {type(x).__name__} came; write np.asarray(…)"
        )
    raise DTypeError(
        f"{name} must be a NumPy array, a torch or JAX array on the CPU, or speak DLPack, but {_a(type(x).__name__)} came; write np.asarray({name})"
    )


def _torch_view(x: Any, name: str, torch: Any) -> Array:
    if torch.compiler.is_compiling():
        raise UnsupportedError(
            f"{name} is being traced by torch's compiler, which has no numbers yet; call qkv.torch.attend, and build masks that "
            "hold arrays outside and pass them in"
        )
    if x.requires_grad and torch.is_grad_enabled():
        way = "call qkv.torch.attend, which has one, or " if name in ("query", "key", "value", "bias", "sink") else ""
        raise UnsupportedError(
            f"{name} requires grad, and its gradient would be dropped here; {way}pass {name}.detach(), "
            "or call inside torch.no_grad(), if you need none"
        )
    if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        raise UnsupportedError(
            f"{name} carries a tangent of forward-mode differentiation, which this engine would drop; pass its primal if you need none"
        )
    if x.device.type != "cpu":
        way = "a tensor that has numbers" if x.device.type == "meta" else f"{name}.cpu()"
        raise UnsupportedError(f"{name} is on {x.device}, and this engine runs on the CPU; pass {way}")
    if x.layout is not torch.strided or x.is_quantized:
        raise UnsupportedError(
            f"{name} is {x.layout}{', quantized' if x.is_quantized else ''}, not a plain strided tensor; pass {name}.to_dense() or .dequantize()"
        )
    try:
        plain = x.detach().resolve_conj().resolve_neg()
        if plain.dtype is torch.bfloat16:
            bits: Array = plain.view(torch.int16).numpy().view(np.uint16)
            return bits
        out: Array = plain.numpy()
        return out
    except (RuntimeError, TypeError, NotImplementedError) as problem:
        raise UnsupportedError(
            f"{name} is a {type(x).__name__} of {x.dtype} that has no memory NumPy can read ({str(problem).splitlines()[0]}); pass a plain CPU tensor"
        ) from None


def _jax_view(x: Any, name: str, jax: Any) -> Array:
    if isinstance(x, jax.core.Tracer):
        raise UnsupportedError(
            f"{name} is a JAX tracer, which has no numbers yet; call outside jit, grad and vmap, or through jax.pure_callback"
        )
    platforms = {device.platform for device in x.devices()} if not x.is_deleted() else {"cpu"}
    if platforms != {"cpu"}:
        raise UnsupportedError(
            f"{name} is on {', '.join(sorted(platforms))}, and this engine runs on the CPU; pass jax.device_put({name}, jax.devices('cpu')[0])"
        )
    try:
        out: Array = np.asarray(x)
    except (RuntimeError, TypeError) as problem:
        raise UnsupportedError(
            f"{name} is a JAX array that cannot be read ({str(problem).splitlines()[0]}); pass one that is still alive"
        ) from None
    return out


def _dlpack_view(x: Any, name: str) -> tuple[Array, Kind]:
    module = type(x).__module__.split(".")[0]
    try:
        on_cpu = int(x.__dlpack_device__()[0]) == _CPU
        array: Array = np.from_dlpack(x) if on_cpu else np.zeros(0)
    except Exception as problem:  # the protocol is the object's own code, which may raise anything
        why = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UnsupportedError(f"{name} cannot be read through DLPack ({why}); pass np.asarray({name})") from None
    if not on_cpu:
        raise UnsupportedError(f"{name} is on a device, and this engine runs on the CPU; pass a copy on the CPU")
    if not hasattr(sys.modules.get(module), "from_dlpack"):
        raise UnsupportedError(
            f"{name} is a {module} array, and {module}.from_dlpack to give a result back is missing; pass np.asarray({name})"
        )
    return array, Kind(module)


def _a(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"
