"""A `Cache` in the place of key and value: how it is passed, and that no mask reaches what its window forgot (B7)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cache import Cache, CachePart
from .errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from .floats import Array
from .ranges import Ranges, interval

__all__ = ["cache_of", "keys_and_values", "within"]


def cache_of(key: Any) -> Cache | None:
    """The cache that `key` is, or is a part of."""
    if isinstance(key, CachePart):
        return key.cache
    return key if isinstance(key, Cache) else None


def keys_and_values(cache: Cache, key: Any, value: Any, length_first: bool, dtype: str) -> tuple[Array, Array]:
    """Keys and values of a cache in storage form, from its first key on.

    Raises:
        ShapeError, UnsupportedError, DTypeError: key and value are not passed together, or do not fit the query.
    """
    if isinstance(key, CachePart) and not (isinstance(value, CachePart) and value.cache is cache):
        raise ShapeError(
            "key comes from a cache, but value is not that cache's; pass cache.key and cache.value, or the cache alone"
        )
    if isinstance(key, CachePart) and (key.name, value.name) != ("key", "value"):
        raise ShapeError(
            f"key and value must be cache.key and cache.value, but cache.{key.name} and cache.{value.name} came; pass the cache alone, without value"
        )
    if isinstance(key, Cache) and value is not None:
        raise ShapeError(
            "value must be left out when key is a Cache, which holds both, but one came; write attend(query, cache)"
        )
    if length_first:
        raise UnsupportedError(
            "layout='blhd' is refused with a cache, which holds (B, G, S, D); move the query's heads before its length"
        )
    k, v, held = cache.storage()
    if held != dtype:
        raise DTypeError(f"query must have the cache's dtype {held}, but is {dtype}; convert it first")
    return k, v


def within(cache: Cache, may: Ranges) -> Ranges:
    """The keys that each row may read, cut to the lengths of the cache.

    Raises:
        ArgumentError: a row may read a key that the cache has forgotten.
    """
    may = may & interval(0, cache.flat_lengths()[:, None])
    if not cache.first and not cache.flat_firsts().any():
        return may
    firsts = cache.flat_firsts()[:, None, None]
    lost = (may.lo < may.hi) & (may.lo < firsts)
    if lost.any():
        n, i, k = (int(x) for x in np.argwhere(np.broadcast_to(lost, (firsts.shape[0], *lost.shape[1:])))[0])
        row = may.lo[n if may.lo.shape[0] > 1 else 0, i, k]
        raise ArgumentError(
            f"mask lets a query of sequence {n} read key {int(row)}, but the cache has forgotten all before {int(firsts[n, 0, 0])}; "
            "add & window(left, 0) with the left of Cache(window=left)"
        )
    return may
