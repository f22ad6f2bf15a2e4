"""The four float types: their names, what they are computed in, and bfloat16 as its 16-bit pattern.

NumPy has no bfloat16 of its own. Inside the package such an array is a `uint16` array of bit patterns that travels
with the name "bfloat16"; `ml_dtypes` is needed by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Float:
    """One float type.

    Attributes:
        name: "float16", "bfloat16", "float32" or "float64".
        storage: the NumPy dtype its arrays have here.
        compute: the dtype scores and sums are held in (D3: never less than float32).
        unit: unit roundoff, half the distance from 1 to the next number.
        largest: largest finite number.
        smallest: smallest positive subnormal number.
    """

    name: str
    storage: np.dtype[Any]
    compute: np.dtype[Any]
    unit: float
    largest: float
    smallest: float


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)

FLOATS: dict[str, Float] = {
    "float16": Float("float16", np.dtype(np.float16), _F32, 2.0**-11, 65504.0, 2.0**-24),
    "bfloat16": Float("bfloat16", np.dtype(np.uint16), _F32, 2.0**-8, (2 - 2.0**-7) * 2.0**127, 2.0**-133),
    "float32": Float("float32", _F32, _F32, 2.0**-24, (2 - 2.0**-23) * 2.0**127, 2.0**-149),
    "float64": Float("float64", _F64, _F64, 2.0**-53, float(np.finfo(np.float64).max), 2.0**-1074),
}


def widen(array: Array, name: str) -> Array:
    """The same numbers in the type they are computed in (bfloat16 and float16 become float32), exactly.

    >>> widen(np.array([0x3F80], np.uint16), "bfloat16")
    array([1.], dtype=float32)
    """
    if name == "bfloat16":
        out: Array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return out
    return array.astype(FLOATS[name].compute, copy=False)


def narrow(array: Array, name: str) -> Array:
    """Round to the type `name`, to nearest with ties to even; a finite number never becomes infinite (D3).

    >>> hex(int(narrow(np.array([1.0], np.float32), "bfloat16")[0]))
    '0x3f80'
    """
    kind = FLOATS[name]
    if name in ("float32", "float64"):
        return np.ascontiguousarray(array, dtype=kind.storage)
    finite = np.isfinite(array)
    clamped = np.where(finite, np.clip(array, -kind.largest, kind.largest), array).astype(np.float32)
    if name == "float16":
        with np.errstate(under="ignore"):
            return clamped.astype(np.float16)
    bits = clamped.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    # Adding the rounding bias to a NaN's payload could carry into the sign or make it an infinity.
    out: Array = np.where(np.isnan(clamped), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return out
