"""Does an expression let a query read a key that stands after it? Exact, and with the first such pair (B5, G1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .align import known_lengths, resolve_offset
from .errors import ArgumentError, ShapeError, shown
from .frame import Frame
from .ranges import END, Ranges

if TYPE_CHECKING:
    from .algebra import Mask

#: Rows looked at together where an expression is not a set of intervals.
_ROWS = 64


@dataclass(frozen=True)
class Extent:
    """Sizes that the arrays of a rule have: batch axes, heads, queries, keys; None where it has no such axis."""

    batch: tuple[int, ...] = ()
    heads: int = 1
    queries: int | None = None
    keys: int | None = None


@dataclass(frozen=True)
class Ends:
    """What the ends of a rule's intervals are made of: constants, and position + slope; for so many sequences."""

    constants: tuple[int, ...]
    slopes: tuple[int, ...]
    sequences: int = 1


class Pair(NamedTuple):
    """A query row and a key: batch (flattened), head, row, and the key's index."""

    batch: int
    head: int
    row: int
    key: int


def first_future(mask: Mask, frame: Frame, may: Ranges, exact: bool) -> Pair | None:
    """The first pair (batch, head, row order) that is allowed although the key stands after the query."""
    if 0 in (frame.batches, frame.heads, frame.queries, frame.keys):
        return None
    position = np.broadcast_to(frame.positions(), (frame.batches, frame.queries))
    if exact:
        lo, hi = (np.broadcast_to(a, (*position.shape, may.count)) for a in (may.lo, may.hi))
        ahead = np.maximum(lo, position[..., None] + 1)  # first key of each interval that stands after the query
        hits = (ahead < hi) & (ahead >= 0)
        rows = hits.any(axis=-1)
        if not rows.any():
            return None
        n, i = (int(a) for a in np.unravel_index(int(rows.argmax()), rows.shape))
        return Pair(n, 0, i, int(ahead[n, i][hits[n, i]].min()))
    columns = np.arange(frame.keys)
    for n in range(frame.batches):
        for h in range(frame.heads if mask.differs_by_head else 1):
            for start in range(0, frame.queries, _ROWS):
                rows_at = np.arange(start, min(start + _ROWS, frame.queries))
                seen = mask.tile(frame, n, slice(h, h + 1), rows_at, columns)
                late = np.broadcast_to(seen[0], (rows_at.size, columns.size)) & (
                    columns[None] > position[n, rows_at][:, None]
                )
                if late.any():
                    i, j = (int(a) for a in np.unravel_index(int(late.argmax()), late.shape))
                    return Pair(n, h, start + i, j)
    return None


def reads_future(mask: Mask, queries: int | None, keys: int | None) -> bool:
    """See `Mask.reads_future`."""
    for name, given in (("queries", queries), ("keys", keys)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 0):
            raise ArgumentError(
                f"reads_future: {name} must be a whole number of at least 0, but {shown(given)} came; pass a size"
            )
    leaves = list(mask.leaves())
    closed = [leaf.ends() for leaf in leaves]
    if queries is None and keys is None and all(ends is not None for ends in closed):
        return _for_every_size(mask, [ends for ends in closed if ends is not None])
    extents = [leaf.extent() for leaf in leaves]
    try:
        batch = np.broadcast_shapes(*(e.batch for e in extents))
    except ValueError:
        found = ", ".join(str(e.batch) for e in extents)
        raise ShapeError(
            f"reads_future: rules must have one batch shape (B…), but have {found}; give each its own call"
        ) from None
    heads = max(e.heads for e in extents)
    length, size = queries, keys
    for extent in extents:
        length = extent.queries if length is None else length
        size = extent.keys if size is None else size
    length, size = (size if length is None else length), (length if size is None else size)
    if length is None or size is None:
        raise ArgumentError(
            f"reads_future: the sizes are needed for {mask!r}, since its rule is a function; pass queries=L, keys=S"
        )
    rules = [(repr(leaf), leaf.align) for leaf in leaves if leaf.positional]
    frame = Frame(
        batch, heads, length, size, resolve_offset(batch, length, size, rules, known_lengths(mask, math.prod(batch)))
    )
    mask.check(frame)
    may, must = mask.bounds(frame)
    return first_future(mask, frame, may.clip(size), may is must) is not None


def _first_position(mask: Mask) -> int | None:
    """The least position a query can have under the expression's alignment; None: there is none ("end", L > S)."""
    least: int | None = 0
    for leaf in mask.leaves():
        align = leaf.align
        if align is None or (isinstance(align, str) and align == "start"):
            continue
        if isinstance(align, str):
            return None
        least = min(0, int(np.min(align, initial=0)))
    return least


def _for_every_size(mask: Mask, closed: list[Ends]) -> bool:
    """Interval ends are constants n or p + c; their order, and so the answer, changes only near p = n - c."""
    constants = {0, *(n for ends in closed for n in ends.constants)}
    slopes = {0, 1, *(c for ends in closed for c in ends.slopes)}
    near = {p for n in constants for c in slopes for p in (n - c - 1, n - c, n - c + 1)}
    first = _first_position(mask)
    position = np.array(sorted(p for p in {*near, first or 0} if first is None or p >= first), dtype=np.int64)
    # Each critical position is asked as a sequence of its own with one query.
    frame = Frame((position.size,), 1, 1, END, position)
    for n in range(max(ends.sequences for ends in closed)):
        may, _ = mask.sequence(n).bounds(frame)
        if bool((may.hi.max(axis=-1, where=may.lo < may.hi, initial=0) > position[:, None] + 1).any()):
            return True
    return False
