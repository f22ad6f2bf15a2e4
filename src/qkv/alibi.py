"""A linear bias that is never materialised: `-slope_h * |position(i) - j|` (contract B3)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .align import Align, align_token, numbers_token, read_align
from .errors import ArgumentError, DTypeError, ShapeError
from .interop import to_numpy

__all__ = ["Alibi", "alibi"]


@dataclass(frozen=True, eq=False)
class Alibi:
    """Slopes (H,) and the alignment the rule was given."""

    slopes: npt.NDArray[np.float64]
    align: Align

    def token(self) -> Hashable | None:
        """Slopes and alignment by value, to remember calls by; None if they are many."""
        slopes, said = numbers_token(self.slopes), align_token(self.align)
        return None if slopes is None or said is None else (slopes, said)

    def __repr__(self) -> str:
        return (
            f"alibi(<{self.slopes.size} slopes>)"
            if self.align is None
            else f"alibi(<{self.slopes.size} slopes>, align={self.align!r})"
        )


def alibi(slopes: Any, *, align: Align = None) -> Alibi:
    """A bias `-slope_h * |position(i) - j|` for `bias=`, evaluated where it is needed.

    Args:
        slopes: one finite number per query head, shape (H,). Usual: `2 ** (-8 * (h + 1) / H)` for h = 0 … H-1.
        align: where the queries stand when L != S, as in `causal`.

    Formula: Press, Smith, Lewis 2022, "Train Short, Test Long", section 3 (there with keys before the query only).

    >>> import numpy as np, qkv
    >>> qkv.alibi(2.0 ** -np.arange(1, 9))
    alibi(<8 slopes>)
    """
    array = to_numpy(slopes, "slopes", scalars=True)
    if array.dtype.kind not in "fiu":
        raise DTypeError(f"alibi: slopes must be real numbers, but has dtype {array.dtype}; write .astype(float)")
    if array.ndim != 1:
        raise ShapeError(
            f"alibi: slopes must have shape (H,), one per query head, but has shape {array.shape}; flatten it"
        )
    out = array.astype(np.float64)
    if not np.isfinite(out).all():
        at = int((~np.isfinite(out)).argmax())
        raise ArgumentError(
            f"alibi: slopes must be finite, but slopes[{at}] is {out[at]}; a head without the bias has slope 0"
        )
    return Alibi(out, read_align("alibi", align))
