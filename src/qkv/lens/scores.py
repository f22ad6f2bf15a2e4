"""Named scores of heads over a text: the mean weight that rows put on a set of keys that the text defines.

What a row puts on a set is exp(lse of the set − lse of the row): one call of the engine over the set's pairs alone. Places of
one token are brought side by side first, so that every set is an interval of keys, and a score costs as many pairs as it
counts and not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qkv.errors import ArgumentError
from qkv.floats import Array
from qkv.ranges import Ints, Ranges, interval

from .baseline import nearness, nearness_within
from .layer import Layer
from .reads import Reads

__all__ = ["SCORES", "Score", "numbered", "scores"]

#: What each named score is, in words; each is a mean over the rows that have such a key.
SCORES = {
    "first": "weight on key 0, where many heads leave what they do not need",
    "current": "weight on the query's own position",
    "previous": "weight on the position just before the query",
    "same": "weight on earlier places of the same token",
    "induction": "weight on the places that followed an earlier, or this, place of the same token",
}

_NEEDS_TOKENS = ("same", "induction")

#: Pairs of the same token held at once for a baseline.
_PAIRS = 1 << 22


@dataclass(frozen=True, eq=False)
class Score:
    """A named score of every head, (B, H) each, NaN where no row has such a key.

    Attributes:
        value: mean over those rows of the weight in the set. uniform: the same for even weights over the allowed keys.
        recency: the same for weights in proportion to 1 / (1 + distance), see `qkv.lens.baseline`.
        rows: how many rows count, (B,).
    """

    value: Array
    uniform: Array
    recency: Array
    rows: Ints


@dataclass(frozen=True, eq=False)
class _Set:
    """Keys that each row counts, as intervals (N or 1, L, K) of the keys taken in the order `keys`; rows in the order `rows`.

    None: in their own order.
    """

    ranges: Ranges
    keys: Ints | None = None
    rows: Ints | None = None


def numbered(layer: Layer, tokens: Sequence[str] | Sequence[int] | None) -> Ints | None:
    """Tokens as numbers, equal ones equal, (S,)."""
    if tokens is None:
        return None
    if len(tokens) != layer.keys:
        raise ArgumentError(
            f"tokens must be one for each of the {layer.keys} keys of {layer.name}, but {len(tokens)} came; pass those of the model's input"
        )
    return np.unique(np.asarray(tokens, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)


def scores(layer: Layer, allowed: Ranges, lse: Array, ids: Ints | None) -> tuple[dict[str, Score], Array]:
    """Every named score, and the weight that each row puts on key 0, (B, H, L).

    Args:
        allowed: the keys each row may read, (N or 1, L, K). lse: (B, H, L). ids: tokens as numbers, (S,), or None.
    """
    at = layer.positions
    whole = np.maximum(allowed.sizes(), 1), np.maximum(nearness_within(allowed, at), np.finfo(np.float64).tiny)
    out: dict[str, Score] = {}
    first = np.zeros(0)
    for name in SCORES:
        if name in _NEEDS_TOKENS and (
            ids is None or not layer.positions.size or at.min() < 0 or at.max() >= layer.keys
        ):
            continue
        one = _set_of(name, allowed, at, ids)
        mass = _mass(layer, one, lse)
        first = mass if name == "first" else first
        count = one.ranges.sizes()
        near = nearness_within(one.ranges, at) if one.keys is None else _nearness_of(one, at)
        out[name] = _score(mass, *(np.broadcast_to(x, mass.shape[::2]) for x in (count, near, *whole)))
    return out, first


def _score(mass: Array, count: Array, near: Array, size: Array, nearest: Array) -> Score:
    """Means over the rows that have a key in the set; all but `mass` are (B, L)."""
    there = count > 0
    rows = there.sum(axis=-1)
    with np.errstate(all="ignore"):
        many = np.where(rows > 0, rows, np.nan)[:, None]
        value = np.where(there[:, None], mass, 0).sum(axis=-1) / many
        even, by_distance = (
            (np.where(there, part / of, 0).sum(axis=-1)[:, None] / many)
            for part, of in ((count, size), (near, nearest))
        )
    return Score(
        value, np.broadcast_to(even, value.shape).copy(), np.broadcast_to(by_distance, value.shape).copy(), rows
    )


def _set_of(name: str, allowed: Ranges, at: Ints, ids: Ints | None) -> _Set:
    if name == "first":
        return _Set(allowed & interval(0, 1))
    if name == "current":
        return _Set(allowed & interval(at[None], at[None] + 1))
    if name == "previous":
        return _Set(allowed & interval(at[None] - 1, at[None]))
    assert ids is not None
    # Places by token and then by position: those of one token before position p are the run from (token, 0) to (token, p).
    size = len(ids)
    order = np.argsort(ids, kind="stable")
    code = ids[order] * (size + 1) + order
    mine = ids[at][:, None] * (size + 1)
    ahead = at[:, None] if name == "same" else at[:, None] + 1  # keys before this one count
    back = 0 if name == "same" else 1  # a key's place is that of the token before it
    lo, hi = np.maximum(allowed.lo, back) - back, np.minimum(allowed.hi, ahead) - back
    runs = (np.searchsorted(code, mine + np.clip(end, 0, size)) for end in (lo, hi))
    low, high = np.broadcast_arrays(*runs)
    keys = order if name == "same" else (order + 1) % size
    return _Set(Ranges(low, np.maximum(high, low)), keys, np.argsort(ids[at], kind="stable"))


def _mass(layer: Layer, one: _Set, lse: Array) -> Array:
    """(B, H, L): the weight that each row puts on its set."""
    rows = np.arange(len(layer.rows)) if one.rows is None else one.rows
    keys = slice(None) if one.keys is None else one.keys
    lo, hi = (x[:, rows] if x.shape[1] > 1 else x for x in (one.ranges.lo, one.ranges.hi))
    bias = layer.bias
    if bias is not None:
        bias = bias[..., keys]
        bias = bias[:, :, rows] if bias.shape[2] > 1 else bias
    part = replace(
        layer,
        query=layer.query if one.rows is None else layer.query[:, :, rows],
        key=layer.key[:, :, keys],
        rows=layer.rows[rows],
        positions=layer.positions[rows],
        reads=Reads(Ranges(lo, hi), len(rows)),
        bias=bias,
        sink=None,
    )
    found = np.empty(lse.shape)
    nothing = np.zeros((*layer.key.shape[:3], 1))
    found[:, :, rows] = np.asarray(part.valued(nothing).attention().lse)
    with np.errstate(all="ignore"):
        mass: Array = np.exp(found - lse)
    mass[np.isneginf(found)] = 0
    return mass


def _nearness_of(one: _Set, at: Ints) -> Array:
    """(N or 1, L): the nearness of the keys in each row's set, summed over the pairs."""
    assert one.keys is not None
    assert one.rows is not None
    lo, hi = one.ranges.lo, one.ranges.hi
    out = np.zeros(lo.shape[:2])
    for n in range(lo.shape[0]):
        start = 0
        while start < len(one.rows):
            # Rows of one token stand together and so do their keys; as many rows at once as their pairs allow.
            rows = one.rows[start : start + 256]
            some = lo[n, rows] < hi[n, rows]
            if not some.any():
                start += len(rows)
                continue
            first = int(lo[n, rows][some].min())
            last = int(hi[n, rows][some].max())
            many = max(min(len(rows), _PAIRS // max(last - first, 1)), 1)
            rows = rows[:many]
            keys = one.keys[first:last]
            cols = np.arange(first, last)
            inside = ((lo[n, rows][:, :, None] <= cols) & (cols < hi[n, rows][:, :, None])).any(axis=1)
            out[n, rows] = np.where(inside, nearness(at[rows][:, None] - keys), 0).sum(axis=-1)
            start += many
    return out
