"""The plan carried out in NumPy: the readable twin of the native engine, and what runs where no extension was built.

It keeps every clause but row invariance: matrix products are BLAS's, whose bits depend on shapes (F3); the same call
gives the same bits twice (F4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..floats import Array, widen
from ..plan import Block, Plan, Tile
from ..problem import Problem
from ..state import ALLOWED, LOW, NONFINITE, OVERFLOW, Rows, empty_rows, merge_rows

Bools = npt.NDArray[np.bool_]

#: Power of two that keeps a sum of the largest numbers finite.
_DOWN, _UP = 2.0**-64, 2.0**64


@dataclass(frozen=True, eq=False)
class Queries:
    """Query rows of one tile, scaled: (G, H/G, R, D) in the compute type, with the rows that hold a non-finite number."""

    tile: Tile
    scaled: Array
    bad: Bools  # (H, R)
    overflow: Bools  # (H, R): finite, but not after scaling


@dataclass(frozen=True, eq=False)
class Scores:
    """One tile × block: scores (H, R, C), -inf where a pair is not allowed, and what the rows met."""

    score: Array
    reach: Bools  # (H, R, C)
    status: npt.NDArray[np.uint8]  # (H, R)
    slope: Array | None = None  # (H, R, C): derivative of the softcap, where there is one


def run(problem: Problem, plan: Plan) -> tuple[Rows, int]:
    """The states of all rows, (N, H, L), and how many blocks were touched per head."""
    shape = (problem.batches, problem.heads, problem.queries)
    dtype = problem.dtype.compute
    out = empty_rows(shape, problem.value_width, dtype)
    touched = 0
    with np.errstate(all="ignore"):
        for tile in plan.tiles(problem):
            blocks = plan.blocks(problem, tile)
            touched += len(blocks)
            total = _tile(problem, plan, tile, blocks)
            at = (tile.batch, slice(None), slice(tile.start, tile.stop))
            out.max[at], out.sum[at], out.mix[at], out.status[at] = total.max, total.sum, total.mix, total.status
    return out, touched


def _tile(problem: Problem, plan: Plan, tile: Tile, blocks: list[Block]) -> Rows:
    queries = tile_queries(problem, tile)
    total = empty_rows((problem.heads, tile.stop - tile.start), problem.value_width, problem.dtype.compute)
    parts: dict[int, list[Block]] = {}
    for block in blocks:
        parts.setdefault((block.lo - tile.origin) // plan.split, []).append(block)
    for part in parts.values():
        total = merge_rows(total, _part(problem, queries, part))
    return total


def _part(problem: Problem, queries: Queries, blocks: list[Block]) -> Rows:
    """The state of a tile's rows over some key blocks: an online softmax, then the division."""
    heads, rows = queries.bad.shape
    dtype = problem.dtype.compute
    top = np.full((heads, rows), -np.inf, dtype)
    total = np.zeros((heads, rows), dtype)
    mix = np.zeros((heads, rows, problem.value_width), dtype)
    status = np.zeros((heads, rows), np.uint8)
    for block in blocks:
        value, value_bad = finite_block(problem, problem.value, queries.tile.batch, block)
        seen = score_block(problem, queries, block, value_bad)
        status |= seen.status
        higher = np.maximum(top, np.where(np.isnan(seen.score), -np.inf, seen.score).max(axis=-1, initial=-np.inf))
        shift = np.where(np.isneginf(higher), 0, higher)
        weight = np.exp(seen.score - shift[..., None])
        carried = np.exp(top - shift)
        total = total * carried + weight.sum(axis=-1, dtype=dtype)
        mix = mix * carried[..., None] + _grouped(problem, weight, value)
        top = higher
    wrong = (status & (NONFINITE | OVERFLOW)) != 0
    mix = mix / np.where(total > 0, total, 1)[..., None]
    if not np.isfinite(mix[~wrong]).all():
        mix = np.where(np.isfinite(mix), mix, _scaled_mix(problem, queries, blocks, top, total))
    return Rows(top, total, mix, status)


def _scaled_mix(problem: Problem, queries: Queries, blocks: list[Block], top: Array, total: Array) -> Array:
    """The mixture again from values scaled down, for sums of finite values that overflowed (D3)."""
    shift = np.where(np.isneginf(top), 0, top)
    mix: Array = np.zeros((*top.shape, problem.value_width), top.dtype)
    for block in blocks:
        value, value_bad = finite_block(problem, problem.value, queries.tile.batch, block)
        seen = score_block(problem, queries, block, value_bad)
        mix = mix + _grouped(problem, np.exp(seen.score - shift[..., None]), value * value.dtype.type(_DOWN))
    mix = mix / np.where(total > 0, total, 1)[..., None]
    limit = np.finfo(mix.dtype).max
    out: Array = np.clip(mix * mix.dtype.type(_UP), -limit, limit)
    return out


def tile_queries(problem: Problem, tile: Tile) -> Queries:
    """The tile's query rows, scaled once (the first rounding of the fixed order)."""
    rows = problem.query[problem.at(tile.batch)][:, tile.start : tile.stop]
    query, bad = _finite(np.ascontiguousarray(widen(rows, problem.dtype.name)))
    with np.errstate(all="ignore"):
        scaled = query * query.dtype.type(problem.scale)
    overflow = ~np.isfinite(scaled).all(axis=-1)
    if overflow.any():
        scaled = np.where(np.isfinite(scaled), scaled, 0)
    _, count, width = scaled.shape
    return Queries(tile, scaled.reshape(problem.groups, problem.sharing, count, width), bad, overflow)


def tensor_block(problem: Problem, tensor: Array, batch: int, block: Block) -> Array:
    """Keys or values of a block, (G, C, width), in the compute type; contiguous, or BLAS would let strides choose bits (A4)."""
    return np.ascontiguousarray(widen(tensor[problem.at(batch)][:, block.lo : block.hi], problem.dtype.name))


def finite_block(problem: Problem, tensor: Array, batch: int, block: Block) -> tuple[Array, Bools]:
    """The block with non-finite numbers as 0, and which of its vectors held one, (G, C)."""
    return _finite(tensor_block(problem, tensor, batch, block))


def score_block(problem: Problem, queries: Queries, block: Block, value_bad: Bools | None = None) -> Scores:
    """Scores of a tile's rows against a block's keys, with the mask applied and every fault noted (B, C1, D).

    Args:
        value_bad: (G, C) values that are not finite; rows that reach them are marked.
    """
    tile, dtype = queries.tile, problem.dtype.compute
    heads, rows, cols = problem.heads, tile.stop - tile.start, block.hi - block.lo
    key, key_bad = finite_block(problem, problem.key, tile.batch, block)
    at_rows = np.arange(tile.start, tile.stop, dtype=np.int64)
    everyone = slice(0, heads)
    reach: Bools = (
        np.ones((1, 1, 1), np.bool_)
        if block.full
        else problem.allowed(tile.batch, everyone, at_rows, block.lo, block.hi)
    )
    reach = np.broadcast_to(reach, (heads, rows, cols))
    bias = _bias_block(problem, tile, block)
    if bias is not None:
        reach = reach & ~np.isneginf(bias)
    status = np.where(reach.any(axis=-1), ALLOWED, 0).astype(np.uint8)

    def mark(bit: int, pairs: Bools) -> None:
        np.bitwise_or(status, np.where((pairs & reach).any(axis=-1), bit, 0).astype(np.uint8), out=status)

    shared = queries.scaled.reshape(problem.groups, problem.sharing * rows, -1)
    score = np.matmul(shared, key.swapaxes(-1, -2)).reshape(heads, rows, cols)
    odd = ~np.isfinite(score) & reach
    if odd.any():
        score[odd] = _exact(problem, queries, key, odd)
    bad = key_bad if value_bad is None else key_bad | value_bad
    if bad.any():
        mark(NONFINITE, np.repeat(bad, problem.sharing, axis=0)[:, None, :])
    if queries.bad.any():
        mark(NONFINITE, queries.bad[..., None])
    if queries.overflow.any():
        mark(OVERFLOW, queries.overflow[..., None])
    _mark_overflow(mark, score)
    slope = None
    if problem.softcap is not None:
        cap = dtype.type(problem.softcap)
        bent = np.tanh(score / cap)
        score, slope = cap * bent, 1 - bent * bent
    if problem.slopes is not None:
        score = score - problem.slopes.astype(dtype)[:, None, None] * _distance(problem, tile, block).astype(dtype)
    if bias is not None:
        mark(NONFINITE, ~np.isfinite(bias))
        score = score + np.where(np.isfinite(bias), bias, 0)
    if problem.slopes is not None or bias is not None:
        _mark_overflow(mark, score)
    mark(LOW, np.isneginf(score))
    return Scores(np.where(reach, score, dtype.type(-np.inf)), reach, status, slope)


def _mark_overflow(mark: Any, score: Array) -> None:
    # True for +inf and for NaN; what a forbidden pair computes is not looked at.
    over = ~(score < np.inf)
    if over.any():
        mark(OVERFLOW, over)


def _exact(problem: Problem, queries: Queries, key: Array, odd: Bools) -> Array:
    """The scores that overflowed, summed in a wider type: only a partial sum may have done so, in BLAS' order (D3)."""
    h, i, j = np.nonzero(odd)
    q = queries.scaled.reshape(problem.heads, *queries.scaled.shape[2:])[h, i].astype(np.longdouble)
    out: Array = (q * key[h // problem.sharing, j].astype(np.longdouble)).sum(axis=-1).astype(problem.dtype.compute)
    return out


def _bias_block(problem: Problem, tile: Tile, block: Block) -> Array | None:
    if problem.bias is None:
        return None
    part = problem.bias[problem.at(tile.batch)][:, tile.start : tile.stop, block.lo : block.hi]
    return widen(part, problem.bias_dtype).astype(problem.dtype.compute, copy=False)


def _distance(problem: Problem, tile: Tile, block: Block) -> Array:
    position = problem.positions[tile.batch if problem.positions.shape[0] > 1 else 0, tile.start : tile.stop]
    out: Array = np.abs(position[:, None] - np.arange(block.lo, block.hi)[None, :])
    return out


def _grouped(problem: Problem, weight: Array, value: Array) -> Array:
    """weights (H, R, C) times values (G, C, E), each query head with its own key head's values."""
    heads, rows, cols = weight.shape
    product = np.matmul(weight.reshape(problem.groups, problem.sharing * rows, cols), value)
    out: Array = product.reshape(heads, rows, -1)
    return out


def _finite(array: Array) -> tuple[Array, Bools]:
    """The array with non-finite numbers as 0, and which vectors held one. 0 · NaN is NaN, so zero weights are not enough."""
    finite = np.isfinite(array)
    bad: Bools = ~np.asarray(finite.all(axis=-1))
    return (np.where(finite, array, 0) if bad.any() else array), bad
