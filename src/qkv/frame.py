"""The place a mask expression is asked about: sizes, and where each query row stands among its keys (contract B6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .ranges import Ints


@dataclass(frozen=True, eq=False)
class Frame:
    """The place an expression is asked about: sizes, and where each query row stands among its keys.

    Attributes:
        batch: the batch axes B….
        heads, queries, keys: H, L, S.
        offset: int64 (N,), N = product of `batch`; row i of batch n stands at position i + offset[n] (B6).
        position: int64 (1, L) where rows stand anywhere, as packed documents do; None: as `offset` says.
    """

    batch: tuple[int, ...]
    heads: int
    queries: int
    keys: int
    offset: Ints
    position: Ints | None = None

    @property
    def batches(self) -> int:
        """N, all batch axes flattened."""
        return math.prod(self.batch)

    def positions(self) -> Ints:
        """Position of each row: (N or 1, L)."""
        if self.position is not None:
            return self.position
        offset = self.offset[:1] if self.offset.size and (self.offset == self.offset[0]).all() else self.offset
        return offset[:, None] + np.arange(self.queries, dtype=np.int64)[None, :]
