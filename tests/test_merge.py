"""Attention over a union of disjoint key sets is the merge of the parts' states (E1), wherever the keys are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from support import checks
from support.arrays import same_bits
from support.parts import finished, state
from support.problems import Problem, problems

SIZES = (0, 1, 2, 3, 7, 17, 33, 65)


@st.composite
def cut(draw: Any) -> tuple[Problem, list[tuple[int, int]]]:
    """A problem and its keys cut into parts, in any order; some parts hold no key."""
    problem = draw(problems(lengths=SIZES, edges=False))
    keys = problem.dense.shape[-1]
    edges = sorted(draw(st.lists(st.integers(0, keys), max_size=4)))
    parts = list(zip([0, *edges], [*edges, keys], strict=True))
    return problem, draw(st.permutations(parts))


@given(case=cut(), data=st.data())
def test_e1_merged_parts_are_the_whole(engine: str, case: tuple[Problem, list[tuple[int, int]]], data: Any) -> None:
    problem, parts = case
    states = [state(problem, *part) for part in parts]
    while len(states) > 1:  # in any grouping
        i = data.draw(st.integers(0, len(states) - 2))
        states[i : i + 2] = [states[i].merge(states[i + 1])]
    checks.holds(*finished(problem, states[0]), problem.bounds(merges=len(parts)))


@given(case=cut())
def test_e1_empty_is_the_identity_exactly(engine: str, case: tuple[Problem, list[tuple[int, int]]]) -> None:
    problem, parts = case
    one = state(problem, *parts[0])
    for merged in (one.merge(one.empty()), one.empty().merge(one)):
        for name in ("max", "sum", "mix"):
            assert same_bits(getattr(merged, name), getattr(one, name)), f"merging an empty state changed the {name}"


@given(problem=problems(lengths=SIZES, edges=False))
def test_d2_d3_a_lost_row_has_no_state_either(engine: str, problem: Problem) -> None:
    answer = problem.bounds().answer
    found = state(problem, 0, problem.dense.shape[-1])
    lost = np.isnan(answer.lse)
    for name in ("max", "sum"):
        assert np.isnan(getattr(found, name).reshape(lost.shape)[lost]).all(), f"the {name} of a lost row is a number"
    assert np.isnan(found.mix.reshape(answer.output.shape)[lost]).all(), "the mixture of a lost row is a number"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_e1_two_empties_are_an_empty(engine: str, dtype: str) -> None:
    x = np.ones((2, 3, 4), dtype)
    empty = qkv.partial(x, x, x).empty()
    both = empty.merge(empty).finish(empty="zero")
    assert (both.output == 0).all()
    assert np.isneginf(both.lse).all()
    assert (empty.merge(empty).sum == 0).all()


@given(problem=problems(lengths=SIZES, edges=False, planted=False, magnitudes=("tame", "peaked")), data=st.data())
def test_e1_the_merge_is_commutative(engine: str, problem: Problem, data: Any) -> None:
    keys = problem.dense.shape[-1]
    at = data.draw(st.integers(0, keys))
    left, right = state(problem, 0, at), state(problem, at, keys)
    limits = problem.bounds(merges=2)
    for merged in (left.merge(right), right.merge(left)):
        checks.holds(*finished(problem, merged), limits)
