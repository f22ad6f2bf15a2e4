"""THE definition of attention: dense, float64, one screen. Whoever needs a right answer imports this one.

Slow and O(L·S) in memory on purpose. Give `longdouble` arrays to check float64 engines (contract F2).
Formula: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1; the rest is docs/contract.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Answer(NamedTuple):
    """What the definition says.

    Attributes:
        output: (…, H, L, E); 0 for a row without keys, NaN for a row that reads a NaN or infinity.
        lse: log-sum-exp of the scores, sink included, (…, H, L); -inf for a row without keys and sink.
        weights: (…, H, L, S), exactly 0 where a pair is not allowed.
        reach: the pairs that are allowed by mask and bias together, (…, H, L, S).
    """

    output: Any
    lse: Any
    weights: Any
    reach: Any


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    allowed: Any = True,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
) -> Answer:
    """Attention of query (…, H, L, D) over key (…, G, S, D) and value (…, G, S, E), H a multiple of G.

    Args:
        allowed: booleans that broadcast to (…, H, L, S); True = this query may read this key.
        bias: numbers that broadcast to (…, H, L, S), added after the softcap; -inf forbids the pair.
        scale: 1/sqrt(D) if left out. softcap: c in c * tanh(score / c). sink: one logit per query head, (H,).

    >>> import numpy as np
    >>> q, k, v = np.array([[2**0.5, 0]]), np.array([[1.0, 0], [0, 1]]), np.array([[10.0, 0], [0, 20]])
    >>> attend(q[None], k[None], v[None]).output.round(3)[0, 0].tolist()
    [7.311, 5.379]
    """
    # Query head h reads key head h // (H // G).
    key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    pairs = (*query.shape[:-1], key.shape[-2])
    reach = np.broadcast_to(allowed, pairs)
    if bias is not None:
        bias = np.broadcast_to(bias, pairs)
        reach = reach & ~np.isneginf(bias)
    # What no allowed pair reads has no influence; a row that reads a NaN or infinity is NaN.
    whole = np.isfinite(key).all(-1) & np.isfinite(value).all(-1)
    bad = (reach & ~whole[..., None, :]).any(-1) | (reach.any(-1) & ~np.isfinite(query).all(-1))
    if bias is not None:
        bad = bad | (reach & ~np.isfinite(bias)).any(-1)
        bias = np.where(reach & np.isfinite(bias), bias, 0)
    query, key, value = (np.where(np.isfinite(x), x, 0) for x in (query, key, value))

    score = (query.shape[-1] ** -0.5 if scale is None else scale) * np.einsum("...ld,...sd->...ls", query, key)
    if softcap is not None:
        score = softcap * np.tanh(score / softcap)
    if bias is not None:
        score = score + bias
    score = np.where(reach, score, -np.inf)
    logit = np.asarray(-np.inf if sink is None else sink, score.dtype).reshape(-1, 1)
    top = np.maximum(score.max(-1, initial=-np.inf), logit)
    shift = np.where(np.isneginf(top), 0, top)
    mass = np.exp(score - shift[..., None])
    total = mass.sum(-1) + np.exp(logit - shift)
    weights = mass / np.where(total > 0, total, 1)[..., None]
    output = np.einsum("...ls,...se->...le", weights, value)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, shift + np.log(total), -np.inf)
    return Answer(
        np.where(bad[..., None], np.nan, output),
        np.where(bad, np.nan, lse),
        np.where(bad[..., None] & reach, np.nan, weights),
        reach,
    )
