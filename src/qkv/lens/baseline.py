"""The two baselines beside every claim: a head that reads evenly, and one that knows only how far back a key lies.

Both are weights over the keys that the row may read, and neither has a number that was fitted:

- *uniform*: 1 / n over the n allowed keys.
- *recency*: in proportion to 1 / (1 + |i − j|), i the query's position and j the key's: the token itself counts 1, its
  neighbours 1/2, the tenth back 1/11; made to add up to 1.

A number near its baselines says nothing about the text.
"""

from __future__ import annotations

import numpy as np

from qkv.algebra import Bools
from qkv.floats import Array
from qkv.ranges import Ints, Ranges

from .layer import Layer
from .reads import reads_of_blocks

__all__ = ["allowed_of", "nearness", "nearness_within", "recency", "uniform"]


def nearness(distance: Ints) -> Array:
    """1 / (1 + |i − j|)."""
    out: Array = 1 / (1 + np.abs(distance).astype(np.float64))
    return out


def uniform(allowed: Bools) -> Array:
    """(…, S) even weights over the allowed keys; zeros for a row without any.

    >>> import numpy as np
    >>> uniform(np.array([True, False, True])).tolist()
    [0.5, 0.0, 0.5]
    """
    return _shares(np.asarray(allowed, np.float64))


def recency(allowed: Bools, positions: Ints) -> Array:
    """(…, S) weights in proportion to nearness over the allowed keys, for rows at `positions`, (…).

    >>> import numpy as np
    >>> recency(np.array([True, True, False]), np.array(1)).round(3).tolist()
    [0.333, 0.667, 0.0]
    """
    keys = np.arange(allowed.shape[-1])
    return _shares(np.where(allowed, nearness(np.asarray(positions)[..., None] - keys), 0))


def _shares(mass: Array) -> Array:
    whole = mass.sum(axis=-1, keepdims=True)
    out: Array = mass / np.where(whole > 0, whole, 1)
    return out


def nearness_within(ranges: Ranges, positions: Ints) -> Array:
    """(N or 1, L): sum of the nearness of all keys in a row's intervals, for rows at `positions`, (L,)."""
    at = positions[None, :, None]
    lo, hi = np.broadcast_arrays(ranges.lo, ranges.hi)
    some = lo < hi
    lo, hi = np.where(some, lo, at), np.where(some, hi, at)
    farthest = int(max(np.abs(at - lo).max(initial=0), np.abs(hi - at).max(initial=0))) + 1
    sums = np.concatenate([[0.0], np.cumsum(1 / np.arange(1.0, farthest + 1))])  # over distances 0 … n − 1
    # Keys up to the row's own position, then those after it, whose distances begin with 1.
    back = np.where(lo <= at, sums[np.maximum(at - lo + 1, 0)] - sums[np.maximum(at - np.minimum(hi - 1, at), 0)], 0)
    ahead = np.where(hi - 1 > at, sums[np.maximum(hi - at, 0)] - sums[np.maximum(lo - at, 1)], 0)
    out: Array = np.where(some, back + ahead, 0).sum(axis=-1)
    return out


def allowed_of(layer: Layer) -> Ranges:
    """The keys that each row may read, (N or 1, L, K); where the mask differs between heads, in any of those kept."""
    ranges = layer.reads.ranges.clip(layer.keys)
    shape = (ranges.lo.shape[0], len(layer.rows), ranges.count)
    ranges = Ranges(np.broadcast_to(ranges.lo, shape), np.broadcast_to(ranges.hi, shape))
    bias = layer.bias
    if bias is None or not np.isneginf(bias).any():
        return ranges
    size = len(layer.rows)

    def rows(start: int, stop: int) -> Bools:
        part = bias[:, :, start:stop] if bias.shape[2] > 1 else bias
        seen = ~np.isneginf(part).all(axis=1)
        return np.broadcast_to(seen, (seen.shape[0], stop - start, layer.keys))

    return ranges & reads_of_blocks(rows, size).ranges
