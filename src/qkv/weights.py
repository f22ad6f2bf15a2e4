"""Rows of weights, a tile at a time: what every question about the weights is answered from where the engine has no answer.

The scores are the native engine's where it carried out the problem, else the NumPy engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .engines import native_answers
from .engines.numpy_tiles import finite_block, score_block, tile_queries
from .floats import Array
from .plan import PAIRS_AT_ONCE, Block, Plan, Tile
from .problem import Problem
from .state import NONFINITE, OVERFLOW

__all__ = ["Weights", "weight_rows"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of one tile's rows over the keys that its blocks hold; all other keys have weight 0.

    Attributes:
        keys: the C keys, ascending.
        score: -inf where a pair is not allowed; mass: exp(score - max); reach: allowed pairs; (H, R, C) each.
        total: sum of mass over keys, (H, R). sink: the sink's mass, (H, R), 0 without a sink.
        wrong: rows that have no right finite answer, (H, R); their mass is NaN where a pair is allowed.
    """

    tile: Tile
    keys: Ints
    score: Array
    mass: Array
    reach: Bools
    total: Array
    sink: Array
    wrong: Bools

    @property
    def weight(self) -> Array:
        """(H, R, C): mass over the whole, the sink included; rows add up to 1 minus the sink's share."""
        whole = self.total + self.sink
        with np.errstate(under="ignore", invalid="ignore"):
            out: Array = np.where(self.reach, self.mass / np.where(whole == 0, 1, whole)[..., None], 0)
        return out

    @property
    def share(self) -> Array:
        """(H, R, C): weights renormalised over the keys, however small beside the sink (C4)."""
        top = self.score.max(axis=-1, initial=-np.inf, keepdims=True)
        mass = np.where(np.isnan(self.mass), self.mass, np.exp(self.score - np.where(np.isfinite(top), top, 0)))
        whole = mass.sum(axis=-1, keepdims=True)
        out: Array = np.where(self.reach, mass / np.where(whole == 0, 1, whole), 0)
        return out


def weight_rows(problem: Problem, plan: Plan, rows: Iterable[int] | None = None) -> Iterator[Weights]:
    """Weights of all rows in order, or of the rows asked (in every batch), a tile at a time."""
    for tile in plan.tiles(problem):
        wanted = range(tile.start, tile.stop) if rows is None else [i for i in rows if tile.start <= i < tile.stop]
        for start, stop in _runs(wanted):
            blocks = plan.blocks(problem, Tile(tile.batch, start, stop, tile.origin))
            held = sum(block.hi - block.lo for block in blocks)
            span = max(min(PAIRS_AT_ONCE // max(problem.heads * held, 1), stop - start), 1)
            for low in range(start, stop, span):
                yield _weights(problem, plan, Tile(tile.batch, low, min(low + span, stop), tile.origin), blocks)


def _runs(rows: Any) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as (start, stop)."""
    ordered = sorted(set(rows))
    start = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            yield ordered[start], ordered[at - 1] + 1
            start = at


def _weights(problem: Problem, plan: Plan, tile: Tile, blocks: list[Block]) -> Weights:
    """Weights of the tile's rows over the keys of `blocks`, which are all that they may read."""
    dtype = problem.dtype.compute
    with np.errstate(all="ignore"):
        if native_answers.ready(problem, plan):
            runs = _joined(blocks) or [slice(0, 0)]
            keys = np.concatenate([np.arange(run.start, run.stop) for run in runs])
            found = [native_answers.scores(problem, plan, tile, run) for run in runs]
            score, reach = (np.concatenate(part, axis=-1) for part in zip(*found, strict=True))
            wrong = np.zeros(score.shape[:2], np.bool_)
        else:
            keys, score, reach, wrong = _scores(problem, tile, blocks)
        if problem.lost is not None:
            wrong = wrong | problem.lost[tile.batch, :, tile.start : tile.stop]
        logit = (
            np.full((problem.heads, 1), -np.inf, dtype) if problem.sink is None else problem.sink.astype(dtype)[:, None]
        )
        top = np.maximum(score.max(axis=-1, initial=-np.inf), logit)
        shift = np.where(np.isfinite(top), top, 0)
        mass = np.exp(score - shift[..., None])
        if wrong.any():
            mass = np.where(wrong[..., None] & reach, dtype.type(np.nan), mass)
        return Weights(tile, keys, score, mass, reach, mass.sum(axis=-1, dtype=dtype), np.exp(logit - shift), wrong)


def _joined(blocks: list[Block]) -> list[slice]:
    """Blocks that touch as one run of keys."""
    out: list[slice] = []
    for block in blocks:
        if out and out[-1].stop == block.lo:
            out[-1] = slice(out[-1].start, block.hi)
        else:
            out.append(slice(block.lo, block.hi))
    return out


def _scores(problem: Problem, tile: Tile, blocks: list[Block]) -> tuple[Ints, Array, Bools, Bools]:
    """(keys, scores, allowed pairs, rows without a right answer) by the NumPy engine's arithmetic."""
    keys = np.concatenate([np.arange(block.lo, block.hi) for block in blocks] or [np.zeros(0, np.int64)])
    shape = (problem.heads, tile.stop - tile.start, keys.size)
    score, reach = np.full(shape, -np.inf, problem.dtype.compute), np.zeros(shape, np.bool_)
    status = np.zeros(shape[:2], np.uint8)
    queries = tile_queries(problem, tile)
    at = 0
    for block in blocks:
        _, value_bad = finite_block(problem, problem.value, tile.batch, block)
        seen = score_block(problem, queries, block, value_bad)
        cols = slice(at, at + block.hi - block.lo)
        score[..., cols], reach[..., cols] = seen.score, seen.reach
        status |= seen.status
        at = cols.stop
    wrong = ((status & (NONFINITE | OVERFLOW)) != 0) | (reach.any(axis=-1) & np.isneginf(score).all(axis=-1))
    return keys, score, reach, wrong
