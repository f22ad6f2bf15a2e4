"""Tiny problems with known right answers.

All-zero queries and keys give every allowed key the same score, so a row of the output is the mean of the values it
may read: sums of small integers and one division, exact in every float type and in every order of additions. A row
with one allowed key has its score as log-sum-exp (log 1 = 0), which shows any score exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv import attend, attention

FORBIDDEN = (np.nan, np.inf, -np.inf, 3e38, -3e38)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def counting(S: int, dtype: Any = np.float32) -> np.ndarray:
    """Values 1 … S, one a key: (S, 1)."""
    return np.arange(1, S + 1).astype(dtype)[:, None]


def rows(L: int, S: int, mask: Any = None, **options: Any) -> list[float]:
    """One head, equal scores, values 1 … S: each output row is the mean over the keys it may read."""
    return attend(zeros(L, 2), zeros(S, 2), counting(S), mask=mask, **options).ravel().tolist()


def batch_rows(B: int, L: int, S: int, mask: Any = None, **options: Any) -> list[list[float]]:
    """The same for B sequences of one head."""
    value = np.broadcast_to(counting(S), (B, 1, S, 1))
    return attend(zeros(B, 1, L, 2), zeros(B, 1, S, 2), value, mask=mask, **options)[:, 0, :, 0].tolist()


def mean(*values: float) -> float:
    """The mean as float32 arithmetic gives it, 0 for a row that reads nothing."""
    return float(np.float32(sum(values)) / np.float32(len(values))) if values else 0.0


def score(query: Any, key: Any, **options: Any) -> Any:
    """The score of one query and one key, exactly: the log-sum-exp of a row with one key."""
    q, k = (np.atleast_2d(np.asarray(x, np.float32)) for x in (query, key))
    return float(attention(q, k, np.ones((1, 1), np.float32), **options).lse.item())


def pairs(L: int, S: int, mask: Any, *, batch: tuple[int, ...] = (), H: int = 1, **options: Any) -> np.ndarray:
    """Which pairs a mask allows, read off the weights: booleans (*batch, H, L, S)."""
    a = attention(
        zeros(*batch, H, L, 1), zeros(*batch, H, S, 1), zeros(*batch, H, S, 1), mask=mask, empty="zero", **options
    )
    return np.asarray(a.weights(range(L))) > 0
