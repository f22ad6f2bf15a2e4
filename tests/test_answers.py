"""Answers about the weights are what the definition gives by brute force: nothing closed, streamed or skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import qkv
from qkv import reference
from support import answers as support
from support.answers import Right
from support.arrays import wide
from support.checks import within
from support.problems import Problem, problems

LENGTHS = (0, 1, 2, 3, 5, 7, 16, 17, 33)


def asked(**changes: Any) -> st.SearchStrategy[Problem]:
    magnitudes = ("tame", "small", "peaked", "values at the edge")
    return problems(lengths=LENGTHS, edges=False, planted=False, magnitudes=magnitudes, **changes)


#: Answers worked out when they are asked for, and in one pass with the output.
both_ways = pytest.mark.parametrize("keep", [(), ("entropy", "received", "top")], ids=["afterwards", "in one pass"])


def answers(problem: Problem, keep: tuple[str, ...] = ()) -> qkv.Attention:
    arguments = {"empty": "zero", **problem.arguments, "keep": keep}
    found = qkv.attention(problem.query, problem.key, problem.value, **arguments)
    assume(not np.isnan(np.asarray(found.lse)).any())
    return found


@given(problem=asked())
def test_c1_weights_are_those_of_the_definition(problem: Problem) -> None:
    support.weights(problem, answers(problem), Right(problem))


@given(problem=asked(), data=st.data())
def test_c1_weights_of_the_rows_heads_and_keys_asked(problem: Problem, data: Any) -> None:
    found = answers(problem)
    heads, rows, keys = problem.dense.shape[-3:]
    if not rows or not keys:
        return
    picked = [data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=4)) for n in (rows, heads, keys)]
    if problem.query.ndim == 2:
        picked[1] = [0]  # no head axis, so no heads to pick
    part = np.asarray(found.weights(picked[0], heads=picked[1], keys=picked[2]))
    right = Right(problem)
    for name in ("weight", "weight_bound"):
        setattr(right, name, getattr(right, name)[..., picked[1], :, :][..., picked[0], :][..., picked[2]])
    within(wide(problem.rows(part)), right.weight, right.weight_bound, "C1: weight")


@both_ways
@given(problem=asked(), count=st.integers(1, 20))
def test_c6_top_is_the_largest_weights_in_order(problem: Problem, count: int, keep: tuple[str, ...]) -> None:
    support.top(problem, answers(problem, keep), Right(problem), count)


@given(problem=asked(dtypes=("float32", "float16")))
def test_c6_equal_weights_come_in_order_of_index(problem: Problem) -> None:
    problem.arguments.pop("bias", None)
    flat = np.zeros_like(problem.query)
    found = qkv.attention(flat, problem.key, problem.value, **{"empty": "zero", **problem.arguments})
    keys = problem.rows(np.asarray(found.top(6).keys))
    for index in np.ndindex(keys.shape[:-1]):
        allowed = np.flatnonzero(problem.dense[index])[:6].tolist()
        assert keys[index].tolist() == allowed + [-1] * (6 - len(allowed))


@both_ways
@given(problem=asked())
def test_c1_received_is_the_sum_over_the_rows(problem: Problem, keep: tuple[str, ...]) -> None:
    support.received(problem, answers(problem, keep), Right(problem))


@both_ways
@given(problem=asked())
def test_c2_c4_entropy_effective_keys_and_the_sinks_share(problem: Problem, keep: tuple[str, ...]) -> None:
    whole = Right(problem) if "sink" in problem.arguments else None
    support.spread(problem, answers(problem, keep), Right(problem, with_sink=False), whole)


@given(problem=asked(dtypes=("float32", "float64", "bfloat16")), seed=st.integers(0, 2**32 - 1))
def test_c6_contributions_are_weight_times_value(problem: Problem, seed: int) -> None:
    _, rows, keys = problem.dense.shape[-3:]
    if rows and keys and problem.dense.size:
        i = int(np.random.default_rng(seed).integers(rows))
        support.contributions(problem, answers(problem), Right(problem), i)


@given(problem=asked(dtypes=("float32", "float64", "float16")), seed=st.integers(0, 2**32 - 1))
def test_influence_is_what_forbidding_a_key_does(problem: Problem, seed: int) -> None:
    _, rows, keys = problem.dense.shape[-3:]
    if rows and keys and problem.dense.size:
        rng = np.random.default_rng(seed)
        i = int(rng.integers(rows))
        support.influence(problem, answers(problem), Right(problem), i, rng.permutation(keys)[:4].tolist())


def test_c6_influence_where_the_output_is_zero_is_nan() -> None:
    q, k = np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)
    found = qkv.attention(q, k, np.array([[1.0], [-1.0]], np.float32)).influence(0)
    assert np.isnan(found.relative).all()


def test_the_definition_itself_reads_reach() -> None:
    answer = reference.attend(np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), np.ones((1, 2, 1)), allowed=[[True, False]])
    assert answer.weights.tolist() == [[[1, 0]]]


def test_d3_a_callers_floating_point_traps_do_not_spring():
    """Underflow in a weight is no error, whatever `np.errstate` says around the call."""
    x = np.random.default_rng(0).standard_normal((1, 2, 40, 16)).astype(np.float32)
    half = x.astype(np.float16)
    found = qkv.attention(30 * x, x, x, mask=qkv.causal())
    sunk = qkv.attention(x, x, x * np.float32(1e-36), sink=np.array([80.0, -80.0], np.float32))
    with np.errstate(all="raise"):
        qkv.attend(30 * x, x, x)
        qkv.partial(half, half, np.full_like(half, 1e-7)).finish()
        for answer in (found, sunk):
            answer.entropy(), answer.effective_keys(), answer.received(), answer.top(3), answer.top(70)
            answer.weights(range(40)), answer.contributions(3), answer.influence(3)
