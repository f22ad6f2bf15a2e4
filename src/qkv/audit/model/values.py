"""Arrays of any library as NumPy, other contents for some positions, and what may not change."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError

__all__ = ["BETWEEN", "Array", "back", "differ", "is_array", "numpy_of", "other", "output_of"]

Array = npt.NDArray[Any]


def is_torch(x: Any) -> bool:
    """Whether x is a torch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_array(x: Any) -> bool:
    """Whether x has a shape and numbers."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def numpy_of(x: Any) -> Array:
    """Exactly the same numbers in NumPy."""
    if is_torch(x):
        x = x.detach().cpu()
        return np.asarray((x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy())
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def back(array: Array, like: Any) -> Any:
    """An array as the library, type and device of another."""
    if is_torch(like):
        made = sys.modules["torch"].from_numpy(np.ascontiguousarray(array))
        return made.to(dtype=like.dtype, device=like.device)
    if isinstance(like, np.ndarray):
        return array.astype(like.dtype)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(like, jax.Array):
        return jax.numpy.asarray(array, dtype=like.dtype)
    return sys.modules[type(like).__module__.partition(".")[0]].asarray(array)


def other(array: Array, rng: np.random.Generator) -> Array:
    """An array of other contents, everywhere: numbers of the same size, or ids that the example has.

    Ids are taken from the example, since what a model's table holds is not known here.
    """
    if array.dtype == np.bool_:
        return ~array
    if array.dtype.kind in "iu":
        ids = np.unique(array)
        if len(ids) == 1:
            # 0 is an id wherever another one is.
            if ids[0] == 0:
                raise ArgumentError("the example must have two different ids at least, but all are 0")
            return np.zeros_like(array)
        shift = rng.integers(1, len(ids), array.shape)
        return np.asarray(ids[(np.searchsorted(ids, array) + shift) % len(ids)], dtype=array.dtype)
    size = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) or 1.0
    return np.asarray(rng.standard_normal(array.shape) * size, dtype=array.dtype)


#: Halfway, in powers of two, between the rounding of float32 and of float64: a change of float64 numbers that is smaller
#: than this part of them is rounding, one that is larger is none.
BETWEEN = float(np.sqrt(np.finfo(np.float32).eps * np.finfo(np.float64).eps))


def differ(a: Array, b: Array, part: float = 0.0) -> npt.NDArray[np.bool_]:
    """Where two arrays hold other numbers, further apart than a part of the largest of them.

    Zeros of either sign are the same, and so is NaN and NaN.
    """
    if part:
        with np.errstate(invalid="ignore"):
            far = ~(np.abs(a - b) <= part * np.max(np.abs(a), initial=0, where=np.isfinite(a)))
    else:
        far = np.ones(np.broadcast(a, b).shape, np.bool_)
    return np.asarray((a != b) & ~((a != a) & (b != b)) & far, dtype=np.bool_)


def output_of(answer: Any) -> Any:
    """The array of a model's answer: itself, its logits or last hidden state, or the first array it holds."""
    if is_array(answer):
        return answer
    for name in ("logits", "last_hidden_state"):
        held = answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
        if is_array(held):
            return held
    items = answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, (tuple, list)) else ()
    for item in items:
        if is_array(item):
            return item
    raise ArgumentError(f"the model must answer with an array, but {type(answer).__name__} came; pass output=")
