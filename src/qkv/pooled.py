"""Weights pooled to a picture's size by maximum, tile by tile, in memory linear in L + S."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .floats import Array
from .plan import Plan
from .problem import Problem
from .questions import weight_rows

__all__ = ["edges", "pooled"]


def edges(size: int, cells: int) -> npt.NDArray[np.int64]:
    """First index of each of `cells` runs that cut range(size) as evenly as whole numbers allow, and `size` itself.

    >>> edges(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    out: npt.NDArray[np.int64] = np.arange(cells + 1, dtype=np.int64) * size // max(cells, 1)
    return out


def pooled(problem: Problem, plan: Plan, rows: int, cols: int) -> Array:
    """(N, H, rows, cols): the largest weight in each rectangle of queries and keys; NaN where a row has no answer."""
    out = np.zeros((problem.batches, problem.heads, rows, cols), problem.dtype.compute)
    row_edge, col_edge = edges(problem.queries, rows), edges(problem.keys, cols)
    for seen in weight_rows(problem, plan):
        if not seen.keys.size:
            continue
        # The keys of a tile ascend, so the keys of one cell stand together.
        cell = np.searchsorted(col_edge, seen.keys, side="right") - 1
        starts = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
        best = np.maximum.reduceat(seen.weight, starts, axis=-1)
        at = np.arange(seen.tile.start, seen.tile.stop)
        band = np.searchsorted(row_edge, at, side="right") - 1
        first = np.flatnonzero(np.concatenate([[True], band[1:] != band[:-1]]))
        best = np.maximum.reduceat(best, first, axis=1)
        into = out[seen.tile.batch]
        where = np.ix_(np.arange(problem.heads), band[first], cell[starts])
        into[where] = np.maximum(into[where], best)
    return out
