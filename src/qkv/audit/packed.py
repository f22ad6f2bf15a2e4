"""Arrays without a batch axis: sequences one behind the other, (T, H, D), told apart by cumulative offsets.

So every call can be said to a kernel that takes nothing else: a batch becomes a pack, and what stands behind a length
is left out of it.
"""

from __future__ import annotations

import numpy as np

from .call import Array, Call

__all__ = ["offsets_of", "pack", "unpack"]


def _counts(call: Call) -> tuple[list[int], list[int]]:
    """How many queries and keys of each batch are packed."""
    B, _, _, L, S, _, _ = call.sizes
    return [L] * B, [S] * B if call.lengths is None else [int(n) for n in call.lengths]


def offsets_of(call: Call) -> tuple[Array, Array]:
    """The offsets a kernel is handed: those of the call, or where its batches begin and end."""
    if call.offsets is not None:
        return call.offsets
    of_query, of_key = (np.concatenate([[0], np.cumsum(n)]) for n in _counts(call))
    return of_query, of_key


def pack(call: Call, name: str) -> Array:
    """(B, H, n, D) as (T, H, D). Name: query, key, value or cotangent."""
    of_query, of_key = _counts(call)
    counts = of_key if name in ("key", "value") else of_query
    array = np.asarray(getattr(call, name))
    return np.concatenate([array[b, :, :n].swapaxes(0, 1) for b, n in enumerate(counts)])


def unpack(call: Call, name: str, array: Array) -> Array:
    """What came back in canonical axes: (T, H, D) as (B, H, n, D), a log-sum-exp (H, T) as (B, H, n).

    Rows that were not packed are 0, as are their gradients.
    """
    of_query, of_key = _counts(call)
    of_keys = name in ("dk", "dv")
    counts, longest = (of_key, call.sizes[4]) if of_keys else (of_query, call.sizes[3])
    rows = array.swapaxes(0, 1) if name == "lse" else array
    if rows.ndim < 2 or rows.shape[0] != sum(counts):
        return array
    out = np.zeros((len(counts), longest, *rows.shape[1:]), rows.dtype)
    for b, (start, n) in enumerate(zip(np.cumsum([0, *counts]), counts, strict=False)):
        out[b, :n] = rows[start : start + n]
    return np.asarray(out.swapaxes(1, 2))
