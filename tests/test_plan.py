"""The plan is data: its tiles cover what the mask allows, once, and nothing else (habit 4 of the house; F3, G1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import engines
from qkv.contract import canonical
from qkv.engines import native_call
from qkv.engines.native import run as run_native
from qkv.plan import Plan, make_plan, order
from qkv.problem import Problem as Record
from support.arrays import DTYPES
from support.problems import Problem, problems


def record(problem: Problem) -> Record:
    return canonical(problem.query, problem.key, problem.value, **problem.arguments)


def plans(p: Record) -> list[Plan]:
    return [make_plan(p, "numpy", "", 1)] + [make_plan(p, "native", "v3", threads) for threads in (1, 4)]


def permitted(p: Record) -> np.ndarray:
    """Pairs inside the ranges, (N, L, S)."""
    return np.broadcast_to(p.ranges.dense(p.keys), (p.batches, p.queries, p.keys))


@given(problem=problems(magnitudes=("tame",), planted=False, strides=False))
def test_every_row_is_in_exactly_one_tile(problem: Problem) -> None:
    p = record(problem)
    for plan in plans(p):
        seen = np.zeros((p.batches, p.queries), int)
        for tile in plan.tiles(p):
            seen[tile.batch, tile.start : tile.stop] += 1
            assert 0 < tile.stop - tile.start <= plan.tile
            origin = np.broadcast_to(p.origin, (p.batches, p.queries))[tile.batch, tile.start : tile.stop]
            assert (origin == tile.origin).all(), "F3: rows of one tile count their keys from one origin"
        assert (seen == 1).all()


@given(problem=problems(magnitudes=("tame",), planted=False, strides=False))
def test_blocks_cover_every_allowed_pair_once_and_full_ones_hold_no_other(problem: Problem) -> None:
    p = record(problem)
    allowed = permitted(p)
    exact = problem.dense.reshape(p.batches, p.heads, p.queries, p.keys)
    for plan in plans(p):
        seen = np.zeros(allowed.shape, int)
        for tile in plan.tiles(p):
            at = (tile.batch, slice(tile.start, tile.stop))
            for block in plan.blocks(p, tile):
                assert 0 <= block.lo < block.hi <= p.keys
                assert (block.lo - tile.origin) // plan.block == (block.hi - 1 - tile.origin) // plan.block, (
                    "F3: a block crosses the edge of a softmax step"
                )
                seen[(*at, slice(block.lo, block.hi))] += 1
                if block.full:
                    full = exact[tile.batch, :, tile.start : tile.stop, block.lo : block.hi]
                    assert full.all(), "a block that calls itself full holds a forbidden pair"
        assert (seen <= 1).all(), "a pair is visited twice"
        assert (seen[allowed] == 1).all(), "an allowed pair is never visited"


@given(problem=problems(magnitudes=("tame",), planted=False, strides=False))
def test_counts_are_those_of_the_blocks(problem: Problem) -> None:
    p = record(problem)
    for plan in plans(p):
        counts = plan.count(p)
        assert counts.touched == sum(len(plan.blocks(p, tile)) for tile in plan.tiles(p)) <= counts.blocks
        assert counts.pairs == int(permitted(p).sum())
        assert counts.all_pairs == p.batches * p.queries * p.keys


@given(
    dtype=st.sampled_from(DTYPES),
    width=st.integers(1, 4096),
    problem=problems(magnitudes=("tame",), planted=False, strides=False),
)
def test_f3_the_order_of_additions_is_chosen_from_type_and_width_alone(
    dtype: str, width: int, problem: Problem
) -> None:
    block, split = order(dtype, width)
    assert split % block == 0, "a split ends where a block ends"
    p = record(problem)
    for threads in (1, 2, 64):
        plan = make_plan(p, "native", "v3", threads)
        assert (plan.block, plan.split) == order(p.dtype.name, p.width)


@pytest.mark.native
@given(problem=problems(magnitudes=("tame",), planted=False, strides=False))
def test_the_kernel_touches_the_blocks_of_the_plan(native_engine: str, problem: Problem) -> None:
    p = record(problem)
    if p.rule is not None and native_call.array_rule(p) is None:
        return  # carried out in several calls, each with a plan of its own
    plan = engines.choose(p, "native", 1)
    (part,) = native_call.parts(p, plan, "output")
    assert run_native(part.call).blocks_touched == plan.count(p).touched * p.groups
