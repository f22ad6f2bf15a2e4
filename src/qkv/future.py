"""Does an expression let a query read a key that stands after it? Exact, and with the first such pair (B5, G1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .align import known_lengths, resolve_offset
from .errors import ArgumentError
from .masks import Allow, And, Causal, First, Frame, KeyMask, KeyRange, KeySet, Mask, Not, Or, Prefix, Segments, Window
from .ranges import END, Ints, Ranges

#: Rows looked at together where an expression is not a set of intervals.
_ROWS = 64


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
    lo, hi = (np.broadcast_to(a, (*position.shape, may.count)) for a in (may.lo, may.hi))
    ahead = np.maximum(lo, position[..., None] + 1)  # first key of each interval that stands after the query
    hits = (ahead < hi) & (ahead >= 0)
    if exact:
        rows = hits.any(axis=-1)
        if not rows.any():
            return None
        n, i = (int(a) for a in np.unravel_index(int(rows.argmax()), rows.shape))
        return Pair(n, 0, i, int(ahead[n, i][hits[n, i]].min()))
    columns = np.arange(frame.keys)
    for n in range(frame.batches):
        for h in range(frame.heads):
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
    leaves = list(mask.leaves())
    if (
        queries is None
        and keys is None
        and all(isinstance(a, (Causal, Window, Prefix, First, KeyRange)) for a in leaves)
    ):
        if not any(isinstance(a, KeyMask) for a in leaves):
            return _for_every_size(mask, leaves)
    batch: tuple[int, ...] = ()
    heads = 1
    length: int | None = queries
    size: int | None = keys
    for leaf in leaves:
        if isinstance(leaf, Allow):
            shape = (1,) * max(0, 3 - leaf.array.ndim) + leaf.array.shape
            batch, heads = np.broadcast_shapes(batch, shape[:-3]), max(heads, shape[-3])
            length, size = length or shape[-2], size or shape[-1]
        elif isinstance(leaf, Segments):
            batch = np.broadcast_shapes(batch, leaf.query_ids.shape[:-1], leaf.key_ids.shape[:-1])
            length, size = length or leaf.query_ids.shape[-1], size or leaf.key_ids.shape[-1]
        elif isinstance(leaf, KeySet):
            batch, size = np.broadcast_shapes(batch, leaf.exists.shape[:-1]), size or leaf.exists.shape[-1]
        elif isinstance(leaf, KeyMask):
            batch, size = np.broadcast_shapes(batch, leaf.start.shape), size or leaf.size
        elif isinstance(leaf, KeyRange):
            batch = np.broadcast_shapes(batch, leaf.start.shape, leaf.stop.shape)
    if size is None and length is None:
        raise ArgumentError(
            f"reads_future: the sizes are needed for {mask!r}, since its rule is a function; pass queries=L, keys=S"
        )
    length, size = (size if length is None else length), (length if size is None else size)
    assert length is not None
    assert size is not None
    count = int(np.prod(batch, dtype=np.int64))
    rules = [(repr(a), a.align) for a in leaves if a.positional]
    frame = Frame(batch, heads, length, size, resolve_offset(batch, length, size, rules, known_lengths(mask, count)))
    mask.check(frame)
    may, must = mask.bounds(frame)
    return first_future(mask, frame, may.clip(size), may is must) is not None


def _for_every_size(mask: Mask, leaves: list[Mask]) -> bool:
    """Interval ends are constants n or p + c; their order, and so the answer, changes only near p = n - c."""
    constants: set[int] = {0}
    slopes: set[int] = {0, 1}
    sequences = 1
    for leaf in leaves:
        if isinstance(leaf, (First, Prefix)):
            constants.add(leaf.n)
        elif isinstance(leaf, KeyRange):
            constants.update(int(x) for x in np.concatenate([leaf.start.reshape(-1), leaf.stop.reshape(-1)]))
            sequences = max(sequences, leaf.start.size, leaf.stop.size)
        elif isinstance(leaf, Window):
            slopes.update([-leaf.left] if leaf.left is not None else [])
            slopes.update([leaf.right + 1] if leaf.right is not None else [])
    near = sorted({p for n in constants for c in slopes for p in (n - c - 1, n - c, n - c + 1) if p >= 0})
    position = np.array(near, dtype=np.int64)
    # Each critical position is asked as a sequence of its own with one query.
    frame = Frame((position.size,), 1, 1, END, position)
    for n in range(sequences):
        may, _ = _one_sequence(mask, n).bounds(frame)
        if bool((may.hi.max(axis=-1, where=may.lo < may.hi, initial=0) > position[:, None] + 1).any()):
            return True
    return False


def _one_sequence(mask: Mask, n: int) -> Mask:
    """The expression as sequence n sees it."""
    if isinstance(mask, And):
        return And(_one_sequence(mask.a, n), _one_sequence(mask.b, n))
    if isinstance(mask, Or):
        return Or(_one_sequence(mask.a, n), _one_sequence(mask.b, n))
    if isinstance(mask, Not):
        return Not(_one_sequence(mask.a, n))
    if isinstance(mask, KeyRange):

        def pick(bound: Ints) -> Ints:
            flat = bound.reshape(-1)
            return np.asarray(flat[n if flat.size > 1 else 0])

        return KeyRange(pick(mask.start), pick(mask.stop), mask.spelling)
    return mask
