"""Whether a result is right, and how far off: sampled rows against the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.bounds import bound
from shapes import Inputs, Shape, as_numpy

Array = Any
ROWS = 48  # of each sequence and head that is looked at


@dataclass(frozen=True)
class Error:
    """Distance from the definition on the sampled rows.

    Attributes:
        mean, largest: of |result − definition|.
        share: the largest as a part of its derived bound (F2); above 1, the result is wrong.
    """

    mean: float
    largest: float
    share: float


class Judge:
    """The right answer of some rows of the first and last head and sequence."""

    def __init__(self, shape: Shape, x: Inputs) -> None:
        rng = np.random.default_rng(1)
        share = shape.heads // shape.key_heads
        # The bound takes bfloat16 as bit patterns, which are the same on every platform.
        q, k, v = (a.view(np.uint16) if shape.dtype == "bfloat16" else a for a in (x.query, x.key, x.value))
        self.heads = np.unique([0, shape.heads - 1])
        self.parts = []
        for b in sorted({0, shape.batch - 1}):
            last = shape.rows(b) - 1
            rows = np.unique([0, last, *rng.integers(0, last + 1, ROWS if last else 0)])
            query = q[b][self.heads][:, rows]
            key, value = (a[b][self.heads // share] for a in (k, v))
            truth = bound(query, key, value, shape.dtype, allowed=shape.allowed(b, rows))
            self.parts.append((b, rows, truth))

    def __call__(self, result: Any) -> Error:
        """How far a result (batch, heads, queries, width) is off."""
        off, share = [], 0.0
        for b, rows, truth in self.parts:
            part = as_numpy(result[b])[self.heads][:, rows].astype(np.float64)
            far = abs(part - truth.answer.output)
            off.append(far.ravel())
            share = max(share, float(np.nan_to_num(far / truth.output, nan=np.inf).max()))
        together = np.concatenate(off)
        return Error(float(together.mean()), float(together.max()), share)
