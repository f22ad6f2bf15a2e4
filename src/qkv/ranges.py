"""Sets of keys as intervals, one short list a query row: what decides which tiles are skipped.

A `Ranges` holds, for every row, K disjoint ascending half-open intervals [lo, hi). It is closed under intersection,
union and complement, so any expression of causal, window, prefix, first, keys and contiguous segments stays exact,
in memory O(B · L · K) whatever S is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: Stands for "no end": later than any key, and far from overflow when a position is added.
END = 1 << 40

#: No axis is as long: the engine counts in 32 bits.
MOST = 1 << 31


@dataclass(frozen=True, eq=False)
class Ranges:
    """Intervals of allowed keys.

    Attributes:
        lo, hi: int64, shape (N or 1, L or 1, K); row (n, i) allows key j iff lo[n, i, k] <= j < hi[n, i, k] for some
            k. Disjoint and ascending in k; an empty interval has lo == hi and stands last.
    """

    lo: Ints
    hi: Ints

    @property
    def count(self) -> int:
        """How many intervals a row has at most."""
        return int(self.lo.shape[-1])

    def __and__(self, other: Ranges) -> Ranges:
        lo = np.maximum(self.lo[..., :, None], other.lo[..., None, :])
        hi = np.minimum(self.hi[..., :, None], other.hi[..., None, :])
        shape = (*lo.shape[:-2], lo.shape[-2] * lo.shape[-1])
        return _tidy(lo.reshape(shape), hi.reshape(shape))

    def __invert__(self) -> Ranges:
        edge = (*self.lo.shape[:-1], 1)
        lo = np.concatenate([np.zeros(edge, np.int64), self.hi], axis=-1)
        hi = np.concatenate([self.lo, np.full(edge, END)], axis=-1)
        # An empty interval (lo == hi == END) contributes the gap [END, END), which tidying drops.
        return _tidy(lo, hi)

    def __or__(self, other: Ranges) -> Ranges:
        # By De Morgan, because gaps between touching intervals are empty and vanish: the result is coalesced.
        return ~(~self & ~other)

    def clip(self, keys: int) -> Ranges:
        """The same sets without the keys at or past `keys` (negative ones do not exist)."""
        return _tidy(np.clip(self.lo, 0, keys), np.clip(self.hi, 0, keys))

    def shift(self, by: int) -> Ranges:
        """The sets as seen by someone whose key 0 is key `by` of these."""
        return Ranges(self.lo - by, np.where(self.hi >= END, END, self.hi - by))

    def inside(self, n: int, rows: Ints, cols: Ints) -> npt.NDArray[np.bool_]:
        """Which of those keys batch n's rows may read, (1, rows, cols), or (1, 1, cols) where all rows are alike."""
        at = n if self.lo.shape[0] > 1 else 0
        lo, hi = self.lo[at], self.hi[at]
        if lo.shape[0] > 1:
            lo, hi = lo[rows], hi[rows]
        inside = (lo[:, None, :] <= cols[None, :, None]) & (cols[None, :, None] < hi[:, None, :])
        out: npt.NDArray[np.bool_] = np.any(inside, axis=-1)[None]
        return out

    def sizes(self) -> Ints:
        """Allowed keys a row: shape (N or 1, L or 1). Meaningful after `clip`."""
        total: Ints = (self.hi - self.lo).sum(axis=-1)
        return total

    def dense(self, keys: int) -> npt.NDArray[np.bool_]:
        """The sets as booleans, shape (N or 1, L or 1, keys). For tiles and tests: this is the L×S array."""
        j = np.arange(keys)
        inside = (self.lo[..., None] <= j) & (j < self.hi[..., None])
        out: npt.NDArray[np.bool_] = np.any(inside, axis=-2)
        return out


def interval(lo: Any, hi: Any) -> Ranges:
    """One interval a row; `lo` and `hi` broadcast to (N or 1, L or 1).

    >>> interval(0, [[1, 2, 3]]).dense(3).astype(int)[0].tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    low, high = np.broadcast_arrays(np.asarray(lo, np.int64), np.asarray(hi, np.int64))
    low = low.reshape((1,) * (2 - low.ndim) + low.shape)[..., None]
    high = high.reshape((1,) * (2 - high.ndim) + high.shape)[..., None]
    return _tidy(np.clip(low, 0, END), np.clip(high, 0, END))


#: Every key, and no key.
ALL = Ranges(np.zeros((1, 1, 1), np.int64), np.full((1, 1, 1), END))
NONE = Ranges(np.full((1, 1, 1), END), np.full((1, 1, 1), END))


def _tidy(lo: Ints, hi: Ints) -> Ranges:
    """Empty intervals last and in one spelling, intervals ascending, columns that are empty in all rows dropped."""
    empty = lo >= hi
    if empty.any():
        lo = np.where(empty, END, lo)
        hi = np.where(empty, END, hi)
    if lo.shape[-1] > 1:
        order = np.argsort(lo, axis=-1, kind="stable")
        lo = np.take_along_axis(lo, order, axis=-1)
        hi = np.take_along_axis(hi, order, axis=-1)
        used = max(int((lo < END).any(axis=tuple(range(lo.ndim - 1))).sum()), 1) if lo.size else 1
        lo, hi = lo[..., :used], hi[..., :used]
    return Ranges(lo, hi)
