"""Arrays of the four float types with any strides, and equality of bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from qkv.floats import FLOATS, narrow, widen

DTYPES = ("float16", "bfloat16", "float32", "float64")

#: How an array may lie in memory (A4).
STRIDES = ("plain", "transposed", "sliced", "negative", "readonly", "fortran")


def numpy_dtype(dtype: str) -> Any:
    """What a caller's array of that type has: bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def cast(numbers: Any, dtype: str) -> np.ndarray:
    """Numbers (float64) as a caller's array of a float type; finite ones stay finite."""
    kind = FLOATS[dtype]
    clipped = np.where(np.isfinite(numbers), np.clip(numbers, -kind.largest, kind.largest), numbers)
    with np.errstate(all="ignore"):
        stored = narrow(clipped.astype(kind.compute), dtype)
    return stored.view(numpy_dtype(dtype))


def stored(array: np.ndarray) -> np.ndarray:
    """A caller's array in storage form: bfloat16 as its bit pattern."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def wide(array: np.ndarray) -> np.ndarray:
    """The same numbers exactly, float64 (longdouble for float64, which a bound may be finer than)."""
    exact = widen(stored(array), array.dtype.name)
    return exact.astype(np.longdouble if array.dtype == np.float64 else np.float64)


def bits(array: Any) -> np.ndarray:
    """Bit patterns in which -0.0 is +0.0 and one NaN is like another, as F3 compares them."""
    plain = np.ascontiguousarray(array)
    pattern = (
        plain.view(f"u{plain.dtype.itemsize}") if plain.ndim else plain.reshape(1).view(f"u{plain.dtype.itemsize}")
    )
    if plain.dtype.kind in "fV":
        floating = plain.astype(np.float64).reshape(pattern.shape)
        pattern = np.where(floating == 0, 0, pattern)
        pattern = np.where(np.isnan(floating), np.iinfo(pattern.dtype).max, pattern)
    return pattern


def same_bits(a: Any, b: Any) -> bool:
    return bool(np.array_equal(bits(a), bits(b)))


def restride(array: np.ndarray, how: str) -> np.ndarray:
    """The same numbers lying differently in memory."""
    if how == "plain" or array.ndim == 0:
        return array
    if how == "readonly":
        out = array.copy()
        out.flags.writeable = False
        return out
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "negative":
        axes = tuple(range(array.ndim))
        return np.flip(np.ascontiguousarray(np.flip(array, axes)), axes)
    if how == "sliced":
        # Between the numbers lies what nobody may read.
        room = np.full(tuple(2 * n + 1 for n in array.shape), np.nan, array.dtype)
        view = room[tuple(slice(1, None, 2) for _ in array.shape)]
        view[...] = array
        return view
    raise ValueError(how)
