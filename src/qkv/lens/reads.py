"""Which keys each captured query may read, as intervals: what a model's mask says, in memory linear in its tokens.

Models hand their attention a causal flag, a padding row, or a dense array of booleans or of numbers to add. At 8,192
tokens the array alone is 64 MB a layer, and it nearly always says something simple. Here it becomes intervals of keys a
row; numbers that are more than "0 or forbidden" stay a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkv.algebra import Bools, Mask
from qkv.errors import ShapeError
from qkv.floats import Array
from qkv.frame import Frame
from qkv.ranges import END, Ints, Ranges

__all__ = ["Reads", "interval_reads", "reads_of_blocks"]

#: Gives the rows start…stop of a mask as booleans (B or 1, rows, S).
Rows = Callable[[int, int], Bools]


@dataclass(frozen=True, eq=False, repr=False)
class Reads(Mask):
    """A mask given by the intervals of keys that each row may read; rows are those of the captured queries."""

    ranges: Ranges
    queries: int

    def __repr__(self) -> str:
        return f"<captured mask of {self.queries} rows, at most {self.ranges.count} runs of keys each>"

    def check(self, frame: Frame) -> None:
        if frame.queries != self.queries:
            raise ShapeError(
                f"mask was captured for {self.queries} queries, but {frame.queries} came; take the rows with .rows(…)"
            )

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        return self.ranges, self.ranges

    def sequence(self, n: int) -> Reads:
        """The mask of sequence n alone, as a batch of one."""
        at = slice(None) if self.ranges.lo.shape[0] == 1 else slice(n, n + 1)
        return Reads(Ranges(self.ranges.lo[at], self.ranges.hi[at]), self.queries)

    def rows(self, picked: Ints) -> Reads:
        """The mask of some rows, in that order."""
        if self.ranges.lo.shape[1] == 1:
            return Reads(self.ranges, len(picked))
        return Reads(Ranges(self.ranges.lo[:, picked], self.ranges.hi[:, picked]), len(picked))

    def without(self, key: int) -> Reads:
        """The same with one key forbidden to every row."""
        one = np.full((1, 1, 1), key, np.int64)
        return Reads(self.ranges & ~Ranges(one, one + 1), self.queries)

    @property
    def nbytes(self) -> int:
        """Bytes the intervals take."""
        return int(self.ranges.lo.nbytes + self.ranges.hi.nbytes)


def interval_reads(positions: Ints, *, causal: bool, left: int | None, exists: Ranges | None, keys: int) -> Reads:
    """Reads of rows at `positions` (N or 1, L): causal or not, at most `left` keys before, among the keys that exist."""
    ahead = positions + 1 if causal else np.full_like(positions, END)
    behind = np.zeros_like(positions) if left is None else np.maximum(positions - left, 0)
    ranges = Ranges(behind[..., None], np.maximum(ahead, behind)[..., None]).clip(keys)
    return Reads(ranges & exists if exists is not None else ranges, positions.shape[-1])


def reads_of_blocks(rows: Rows, queries: int, *, at_once: int = 256) -> Reads:
    """Intervals of a dense mask that is looked at a few rows at a time.

    >>> import numpy as np
    >>> mask = np.tril(np.ones((3, 3), bool))[None]
    >>> reads_of_blocks(lambda a, b: mask[:, a:b], 3).ranges.hi[0, :, 0].tolist()
    [1, 2, 3]
    """
    parts = [_runs(block) for block in _blocks(rows, queries, at_once)]
    if not parts:
        none = np.full((1, 1, 1), END, np.int64)
        return Reads(Ranges(none, none), queries)
    most = max(lo.shape[-1] for lo, _ in parts)
    lo, hi = (np.concatenate([_wide(part[side], most) for part in parts], axis=1) for side in (0, 1))
    return Reads(Ranges(lo, hi), queries)


def _blocks(rows: Rows, queries: int, at_once: int) -> Iterator[Bools]:
    for start in range(0, queries, at_once):
        yield rows(start, min(start + at_once, queries))


def _wide(ends: Ints, most: int) -> Ints:
    return np.pad(ends, ((0, 0), (0, 0), (0, most - ends.shape[-1])), constant_values=END)


def _runs(block: Bools) -> tuple[Ints, Ints]:
    """The runs of True in every row of (N, R, S): starts and stops, (N, R, K), END where a row has fewer."""
    many, rows, _ = block.shape
    padded = np.pad(block, ((0, 0), (0, 0), (1, 1))).view(np.int8)
    edges: npt.NDArray[np.int8] = padded[..., 1:] - padded[..., :-1]
    counts = (edges == 1).sum(axis=-1)
    most = max(int(counts.max(initial=0)), 1)
    out = []
    for sign in (1, -1):
        n, r, at = np.nonzero(edges == sign)
        # Which run of its row an edge belongs to: its number less the number of edges in earlier rows.
        before = np.cumsum(counts.reshape(-1)) - counts.reshape(-1)
        ends = np.full((many, rows, most), END, np.int64)
        ends[n, r, np.arange(len(at)) - before[n * rows + r]] = at
        out.append(ends)
    return out[0], out[1]


def additive_parts(block: Array, lowest: float) -> tuple[Bools, bool]:
    """(allowed pairs, whether anything is left to add) of numbers that are added to the scores.

    Frameworks write "forbidden" as -inf or as the lowest number of the dtype; anything within a factor of two of that
    lowest number is the same thing after two masks were added up.
    """
    allowed = np.asarray(block > lowest / 2)
    return allowed, bool(np.any(block[allowed] != 0))
