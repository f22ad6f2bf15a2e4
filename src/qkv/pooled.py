"""Answers of a picture's size: weights pooled by maximum, and the sums of a summary, in memory linear in L + S."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .engines import native_answers
from .floats import Array
from .plan import Plan
from .problem import Problem
from .questions import survey_states
from .ranges import Ints
from .weights import Weights, weight_rows

__all__ = ["Sums", "edges", "pooled", "survey"]


class Sums(NamedTuple):
    """What one pass over all pairs adds up, and the map of the largest weights if it was asked for.

    Attributes:
        entropy: (N, H, L) nats of the weights renormalised over the keys. distance: (N, H, L), their mean of position - j; NaN
            for a row that reads no key. received: (N, H, S) sum over the rows of each key's weight.
        pooled: (N, H, rows, cols) or None.
    """

    entropy: Array
    distance: Array
    received: Array
    pooled: Array | None


def edges(size: int, cells: int) -> npt.NDArray[np.int64]:
    """First index of each of `cells` runs that cut range(size) as evenly as whole numbers allow, and `size` itself.

    >>> edges(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    out: npt.NDArray[np.int64] = np.arange(cells + 1, dtype=np.int64) * size // max(cells, 1)
    return out


def pooled(problem: Problem, plan: Plan, rows: int, cols: int) -> Array:
    """(N, H, rows, cols): the largest weight in each rectangle of queries and keys; NaN where a row has no answer."""
    grid = edges(problem.queries, rows), edges(problem.keys, cols)
    if native_answers.ready(problem, plan):
        states = survey_states(problem)
        out = native_answers.survey(problem, plan, states, problem.positions, grid, sums=False)[3]
        assert out is not None
        return out
    out = _blank(problem, grid)
    for seen in weight_rows(problem, plan):
        _pool(out, seen, grid)
    return out


def survey(problem: Problem, plan: Plan, position: Ints, cells: tuple[int, int] | None) -> Sums:
    """Sums over all pairs in one pass; rows stand at `position`, (N or 1, L), and the map has `cells` rows and columns."""
    grid = None if cells is None else (edges(problem.queries, cells[0]), edges(problem.keys, cells[1]))
    if native_answers.ready(problem, plan):
        entropy, distance, received, map_ = native_answers.survey(problem, plan, survey_states(problem), position, grid)
        assert problem.sums is not None
        distance[np.isneginf(problem.sums[0])] = np.nan
        return Sums(entropy, distance, received, map_)
    shape, dtype = (problem.batches, problem.heads, problem.queries), problem.dtype.compute
    entropy, distance = np.zeros(shape, dtype), np.full(shape, np.nan, dtype)
    received = np.zeros((*shape[:2], problem.keys), np.float64)
    map_ = None if grid is None else _blank(problem, grid)
    for seen in weight_rows(problem, plan):
        n, rows = seen.tile.batch, slice(seen.tile.start, seen.tile.stop)
        share = seen.share
        with np.errstate(all="ignore"):
            terms = np.where(
                share > 0, share * np.log(np.where(share > 0, share, 1)), np.where(np.isnan(share), share, 0)
            )
            far = position[n if position.shape[0] > 1 else 0, rows][:, None] - seen.keys
            entropy[n, :, rows] = np.maximum(-terms.sum(axis=-1), 0)
            mean = np.where(seen.reach, share * far, 0).sum(axis=-1)
            distance[n, :, rows] = np.where(seen.reach.any(axis=-1), mean, np.nan)
        # A row without an answer spoils the keys it may read and no others (D1).
        received[n][:, seen.keys] += seen.weight.sum(axis=1, dtype=np.float64)
        if map_ is not None and grid is not None:
            _pool(map_, seen, grid)
    return Sums(entropy, distance, received.astype(dtype), map_)


def _blank(problem: Problem, grid: tuple[Ints, Ints]) -> Array:
    return np.zeros((problem.batches, problem.heads, grid[0].size - 1, grid[1].size - 1), problem.dtype.compute)


def _pool(out: Array, seen: Weights, grid: tuple[Ints, Ints]) -> None:
    if not seen.keys.size:
        return
    # The keys of a tile ascend, so the keys of one cell stand together.
    cell = np.searchsorted(grid[1], seen.keys, side="right") - 1
    starts = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
    best = np.maximum.reduceat(seen.weight, starts, axis=-1)
    at = np.arange(seen.tile.start, seen.tile.stop)
    band = np.searchsorted(grid[0], at, side="right") - 1
    first = np.flatnonzero(np.concatenate([[True], band[1:] != band[:-1]]))
    best = np.maximum.reduceat(best, first, axis=1)
    into = out[seen.tile.batch]
    where = np.ix_(np.arange(best.shape[0]), band[first], cell[starts])
    into[where] = np.maximum(into[where], best)
