"""The gradient in NumPy, tile by tile: weights again from the log-sum-exp, so nothing of size L×S is kept.

The readable twin of the native engine's backward pass. Formula: `qkv.reference_gradient`, which cites its source.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..floats import Array, widen
from ..plan import Block, Plan, Tile
from ..problem import Problem
from .gradients import Gradients, Seed, zero_gradients
from .numpy_tiles import Bools, finite_block, score_block, tile_queries


def run(problem: Problem, plan: Plan, seed: Seed, *, bias: bool) -> Gradients:
    """The gradients of a problem; `bias`: whether that of the bias array is wanted."""
    out = zero_gradients(problem, bias=bias)
    with np.errstate(all="ignore"):
        for tile in plan.tiles(problem):
            _tile(problem, tile, plan.blocks(problem, tile), seed, out)
    return out


def _tile(problem: Problem, tile: Tile, blocks: list[Block], seed: Seed, out: Gradients) -> None:
    n, rows, dtype = tile.batch, slice(tile.start, tile.stop), problem.dtype.compute
    at = problem.at(n)
    queries = tile_queries(problem, tile)
    doutput = widen(seed.doutput[at][:, rows], problem.dtype.name)
    output = widen(seed.output[at][:, rows], problem.dtype.name)
    lse = seed.lse[n, :, rows]
    dlse = np.zeros_like(lse) if seed.dlse is None else seed.dlse[n, :, rows]
    # A row that is lost, or whose seed is not finite, takes part in no sum; whom it reaches is marked afterwards.
    bad = np.isnan(lse) | ~np.isfinite(doutput).all(axis=-1) | ~np.isfinite(dlse)
    doutput = np.where(bad[..., None], 0, doutput)
    delta = (doutput * np.where(bad[..., None], 0, output)).sum(axis=-1) - np.where(bad, 0, dlse)
    # exp(score - inf) = 0: neither a bad row nor one without keys has any weight here.
    base = np.where(bad | np.isneginf(lse), np.inf, lse)
    dquery = np.zeros(queries.scaled.shape, dtype)
    some = np.zeros(bad.shape, np.bool_)
    for block in blocks:
        key, _ = finite_block(problem, problem.key, n, block)
        value, _ = finite_block(problem, problem.value, n, block)
        seen = score_block(problem, queries, block)
        weight = np.where(bad[..., None], 0, np.exp(seen.score - base[..., None]))
        change = np.matmul(_grouped(problem, doutput), value.swapaxes(-1, -2)).reshape(weight.shape)
        # Not a product alone: where the weight is 0 the other factor may be infinite, and is of no account (D1).
        change = np.where(weight == 0, 0, weight * (change - delta[..., None]))
        cols = slice(block.lo, block.hi)
        if out.bias is not None:
            lost = bad[..., None] & seen.reach
            _add_bias(out.bias, at, rows, cols, np.where(lost, dtype.type(np.nan), change))
        if seen.slope is not None:
            change = np.where(change == 0, 0, change * seen.slope)
        shared, spread = _grouped(problem, change), _grouped(problem, weight)
        dquery += np.matmul(shared, key).reshape(dquery.shape)
        scaled = queries.scaled.reshape(problem.groups, -1, problem.width)
        out.key[n, :, cols] += np.matmul(shared.swapaxes(-1, -2), scaled)
        out.value[n, :, cols] += np.matmul(spread.swapaxes(-1, -2), _grouped(problem, doutput))
        some |= seen.reach.any(axis=-1)
        if bad.any():
            touched = _touched(problem, bad, seen.reach)
            out.key[n, :, cols][touched] = np.nan
            out.value[n, :, cols][touched] = np.nan
    dquery = dquery.reshape(problem.heads, -1, problem.width) * dtype.type(problem.scale)
    out.query[n, :, rows] = np.where((bad & some)[..., None], np.nan, dquery)
    out.delta[n, :, rows] = np.where(bad & some, np.nan, delta)


def _grouped(problem: Problem, array: Array) -> Array:
    """(H, R, …) as (G, H/G · R, …)."""
    out: Array = array.reshape(problem.groups, -1, array.shape[-1])
    return out


def _touched(problem: Problem, bad: Bools, reach: Bools) -> Bools:
    """Keys that a bad row may read, (G, C)."""
    pairs = (bad[..., None] & reach).reshape(problem.groups, -1, reach.shape[-1])
    out: Bools = np.any(pairs, axis=1)
    return out


def _add_bias(total: Array, at: Any, rows: slice, cols: slice, part: Array) -> None:
    """Add (H, R, C) to what an array (B… or 1s, H or 1, L or 1, S or 1) has there, summed over what it was broadcast along."""
    batch = tuple(i if size > 1 else 0 for i, size in zip(at, total.shape[:-3], strict=True))
    into = total[batch]
    for axis, size in enumerate(into.shape):
        if size == 1 and part.shape[axis] > 1:
            part = part.sum(axis=axis, keepdims=True)
    into[:, rows if into.shape[1] > 1 else slice(None), cols if into.shape[2] > 1 else slice(None)] += part
