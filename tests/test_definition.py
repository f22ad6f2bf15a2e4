"""Both engines are the definition, within a bound that follows from it (F2); and every fault is told as the contract says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support import checks
from support.problems import Problem, problems
from support.runs import front_door


@given(problem=problems())
def test_f2_every_row_is_within_its_bound(engine: str, problem: Problem) -> None:
    checks.definition(front_door, problem)


@given(problem=problems())
def test_c2_d2_d3_the_first_fault_is_raised(engine: str, problem: Problem) -> None:
    checks.errors(front_door, problem)


@given(problem=problems(edges=False), seed=st.integers(0, 2**32 - 1))
def test_d1_what_no_pair_may_read_has_no_influence(engine: str, problem: Problem, seed: int) -> None:
    checks.isolation(front_door, problem, np.random.default_rng(seed))


@given(problem=problems(edges=False), seed=st.integers(0, 2**32 - 1))
def test_d1_d2_a_key_changes_only_the_rows_that_may_read_it(engine: str, problem: Problem, seed: int) -> None:
    checks.row_isolation(front_door, problem, np.random.default_rng(seed))


@given(problem=problems(edges=False))
def test_f4_the_same_call_gives_the_same_bits(engine: str, problem: Problem) -> None:
    checks.repeatable(front_door, problem)


@given(problem=problems(edges=False))
def test_a4_inputs_are_read_only_and_the_output_is_its_own(engine: str, problem: Problem) -> None:
    checks.memory(front_door, problem)
