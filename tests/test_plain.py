"""The plain-list definition: known right answers, laws that hold for all inputs, and every error message read."""

from __future__ import annotations

import copy
import doctest
import importlib
import inspect
import math
import re
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.plain import attend, attention_steps, checked, dot, mixture

plain = importlib.import_module("qkv.plain")
LARGEST = sys.float_info.max
EPS = sys.float_info.epsilon

EXAMPLE = ([math.sqrt(2), 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]])


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(plain).failed == 0


# Known right answers ------------------------------------------------------------------------------------------------


def test_the_worked_example_leans_to_the_first_value_and_equals_neither() -> None:
    """B1, C1: scores exactly [1, 0], weights e/(1+e) and 1/(1+e)."""
    weights, context = attend(*EXAMPLE)
    assert attention_steps(*checked(*EXAMPLE)).scaled_scores == [1.0, 0.0]
    assert [round(weight, 3) for weight in weights] == [0.731, 0.269]
    assert [round(number, 3) for number in context] == [7.311, 5.379]


def test_masked_to_the_first_key_the_context_is_its_value() -> None:
    """B4, C1: True = may be read; the other weight is exactly 0."""
    assert attend(*EXAMPLE, [True, False]) == ([1.0, 0.0], [10.0, 0.0])


def test_two_equal_scores_mix_half_and_half_whatever_is_added_to_both() -> None:
    """C1."""
    values = [[2, 6], [8, 0]]
    for score in (0, 1, 100, 101, -100):
        assert attend([score], [[1], [1]], values) == ([0.5, 0.5], [5.0, 3.0])


@pytest.mark.parametrize("constant", [0.0, 1000.0, -1000.0, 2.0**40])
def test_a_constant_added_to_all_scores_changes_nothing(constant: float) -> None:
    """C1: [1000, 999] is [0, -1], with no overflow on the way."""
    assert attend([1], [[constant + 1], [constant]], [[10], [20]]) == attend([1], [[0], [-1]], [[10], [20]])


def test_three_positions_under_a_causal_mask() -> None:
    """B5, C1: row one reads itself, row two mixes two, row three all three."""
    queries = keys = [[1, 0], [0, 1], [1, 1]]
    rows = [attend(query, keys, keys, [j <= i for j in range(3)])[0] for i, query in enumerate(queries)]
    assert rows[0] == [1.0, 0.0, 0.0]
    assert [sum(weight > 0 for weight in row) for row in rows] == [1, 2, 3]


def test_one_key_is_read_whole() -> None:
    assert attend([-3.5], [[2.0]], [[1e-310, -7]]) == ([1.0], [1e-310, -7.0])


def test_a_very_negative_allowed_score_beats_every_forbidden_key() -> None:
    """C3."""
    assert attend([1], [[-3.3e38], [5]], [[1], [2]], [True, False]) == ([1.0, 0.0], [1.0])
    assert attend([1], [[-LARGEST], [LARGEST]], [[1], [2]], [True, False]) == ([1.0, 0.0], [1.0])


def test_values_at_the_edge_of_the_type_mix_without_overflow() -> None:
    """D3: a finite mixture is never returned as inf."""
    for count in range(1, 8):
        assert attend([0], [[0]] * count, [[LARGEST, -1.7e308]] * count)[1] == [LARGEST, -1.7e308]
    assert attend([0], [[0]] * 4, [[LARGEST], [LARGEST], [-LARGEST], [-LARGEST]])[1] == [0.0]


def test_a_score_beyond_the_most_negative_float_weighs_nothing_beside_a_finite_one() -> None:
    """D3: by an overflowing product, and by a sum of products that each fit."""
    assert attend([1e200], [[-1e200], [0]], [[1], [2]]) == ([0.0, 1.0], [2.0])
    assert attend([1, 1], [[-LARGEST, -LARGEST], [0, 0]], [[1], [2]]) == ([0.0, 1.0], [2.0])


def test_dot_products_do_not_depend_on_the_order_of_their_terms() -> None:
    """B1."""
    assert dot([1e16, 1.0, -1e16], [1, 1, 1]) == dot([1e16, -1e16, 1.0], [1, 1, 1]) == 1.0
    assert dot([LARGEST, LARGEST, -LARGEST], [1, 1, 1]) == math.inf  # unknown in a float: refused, never guessed


def test_ints_tuples_and_floats_are_the_same_numbers() -> None:
    lists = attend([1.0, 2.0], [[3.0, 4.0], [0.0, 1.0]], [[5.0], [6.0]], [True, True])
    assert attend((1, 2), ((3, 4), (0, 1)), ([5], [6]), (True, True)) == lists
    assert all(type(number) is float for numbers in lists for number in numbers)


def test_inputs_are_not_modified_and_results_are_new() -> None:
    """A4."""
    query, keys, values, allowed = [1, 2], [[3, 4], [5, 6]], [[7, 8], [9, 10]], [True, False]
    before = copy.deepcopy((query, keys, values, allowed))
    weights, context = attend(query, keys, values, allowed)
    weights[0] = context[0] = math.nan
    assert (query, keys, values, allowed) == before
    assert attend(query, keys, values, allowed) == ([1.0, 0.0], [7.0, 8.0])
    own = checked([1.0], [[1.0]], [[1.0]], mask := [True])
    own[3][0] = False
    assert mask == [True]


def test_both_files_load_where_no_package_is() -> None:
    """The browser's Python: a package of these two files alone, and nothing but the standard library to import."""
    folder = Path(inspect.getfile(plain)).parent
    code = f"""
import importlib, sys, types
package = types.ModuleType("alone"); package.__path__ = [{str(folder)!r}]; sys.modules["alone"] = package
plain, trace = importlib.import_module("alone.plain"), importlib.import_module("alone.trace")
trace.trace([1], [[1]], [[2]]).to_svg()
known = set(sys.stdlib_module_names) | {{"alone"}}
print(sorted(name for name in sys.modules if name.partition(".")[0] not in known and not name.startswith("_")))
"""
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# Laws ---------------------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.floats(-10, 10),
    st.integers(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
)


@st.composite
def problems(draw: st.DrawFn, coordinates: st.SearchStrategy[float] = numbers) -> tuple[Any, Any, Any, list[bool]]:
    width, value_width, count = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    # The largest float only in the values: scores that overflow are for the tests that say so.
    small = st.floats(-100, 100)
    vector = st.lists(small, min_size=width, max_size=width)
    value = st.lists(coordinates, min_size=value_width, max_size=value_width)
    allowed = draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    return (
        draw(vector),
        draw(st.lists(vector, min_size=count, max_size=count)),
        draw(st.lists(value, min_size=count, max_size=count)),
        allowed,
    )


@given(problems())
def test_weights_are_a_distribution_over_the_allowed_keys(problem: Any) -> None:
    """C1: each weight is an exponential over the sum, rounded, so that S weights add up to 1 within S roundings."""
    weights, _ = attend(*problem)
    assert all(weight >= 0 for weight in weights)
    assert all(weight == 0 for weight, may in zip(weights, problem[3], strict=True) if not may)
    assert abs(math.fsum(weights) - 1) <= len(weights) * EPS


@given(problems(st.floats(-100, 100)))
def test_the_answer_is_that_of_sixty_digits_within_the_roundings_made(problem: Any) -> None:
    """B1, F2: the bound counts them, M being the largest sum of |q k| over √d.

    A score is off by ≤ 2 M EPS (product, sum, root, quotient), a shifted one by ≤ 5 M EPS, an exponential in relation
    by 5 M EPS + EPS, the sum by half an EPS more, and a weight, the quotient of two, by (10 M + 3) EPS; a weighted
    value has one more rounding of half an EPS, and so has their sum. Values reach up to 100, so that a weight that
    underflows costs up to 100 of the smallest numbers.
    """
    query, keys, values, allowed = problem
    weights, context = attend(*problem)
    with localcontext() as digits:
        digits.prec = 60
        root = Decimal(len(query)).sqrt()
        scores = [sum(Decimal(q) * Decimal(k) for q, k in zip(query, key, strict=True)) / root for key in keys]
        exponentials = [score.exp() if may else Decimal(0) for score, may in zip(scores, allowed, strict=True)]
        exact = [exponential / sum(exponentials) for exponential in exponentials]
        mixed = [
            sum(w * Decimal(v) for w, v in zip(exact, column, strict=True)) for column in zip(*values, strict=True)
        ]
        spread = [
            sum(w * abs(Decimal(v)) for w, v in zip(exact, column, strict=True)) for column in zip(*values, strict=True)
        ]
        largest = max(math.fsum(abs(q * k) for q, k in zip(query, key, strict=True)) for key in keys)
        bound = Decimal(math.expm1((10 * largest / math.sqrt(len(query)) + 4) * EPS))
        tiny = Decimal(sys.float_info.min)  # a product, weight or weighted value that underflows
        assert all(abs(Decimal(w) - x) <= bound * x + tiny for w, x in zip(weights, exact, strict=True))
        assert all(
            abs(Decimal(c) - x) <= bound * size + len(keys) * 100 * tiny
            for c, x, size in zip(context, mixed, spread, strict=True)
        )


@given(problems())
def test_the_context_lies_within_the_range_of_the_allowed_values(problem: Any) -> None:
    """D3."""
    _, context = attend(*problem)
    for i, number in enumerate(context):
        reached = [value[i] for value, may in zip(problem[2], problem[3], strict=True) if may]
        assert float(min(reached)) <= number <= float(max(reached))


@given(problems(), st.randoms())
def test_the_order_of_the_keys_does_not_matter_in_any_bit(problem: Any, random: Any) -> None:
    query, keys, values, allowed = problem
    order = random.sample(range(len(keys)), len(keys))
    shuffled = [[numbers[j] for j in order] for numbers in (keys, values, allowed)]
    weights, context = attend(query, keys, values, allowed)
    assert attend(query, *shuffled) == ([weights[j] for j in order], context)


@given(problems(), problems(), st.data())
def test_the_numbers_of_a_forbidden_key_do_not_matter_in_any_bit(problem: Any, other: Any, data: st.DataObject) -> None:
    """D1: also where they would make the largest score, or one that overflows."""
    query, keys, values, allowed = problem
    anything = st.floats(allow_nan=False, allow_infinity=False)

    def replaced(vectors: Any) -> Any:
        return [
            vector if may else data.draw(st.lists(anything, min_size=len(vector), max_size=len(vector)))
            for vector, may in zip(vectors, allowed, strict=True)
        ]

    assert attend(query, replaced(keys), replaced(values), allowed) == attend(*problem)


@given(problems())
def test_forbidding_a_key_is_leaving_it_out(problem: Any) -> None:
    """C1, D1."""
    query, keys, values, allowed = problem
    weights, context = attend(*problem)
    kept = [[x for x, may in zip(xs, allowed, strict=True) if may] for xs in (keys, values, weights)]
    assert attend(query, kept[0], kept[1]) == (kept[2], context)


@given(problems())
def test_the_same_call_gives_the_same_answer(problem: Any) -> None:
    """F4."""
    assert attend(*problem) == attend(*problem)


OVERFLOW = (
    r"the score of keys\[[01]\] overflows: its dot product with the query must stay within ±1\.8e308, "
    r"got a sum beyond; scale the query or the keys down"
)
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.integers(1, 4).flatmap(lambda n: st.tuples(*[st.lists(finite, min_size=n, max_size=n)] * 3)))
def test_an_answer_is_finite_or_refused(vectors: Any) -> None:
    """D3: any finite numbers give a finite answer or the error, and nothing else."""
    query, first, second = vectors
    try:
        weights, context = attend(query, [first, second], [first, second])
    except ValueError as error:
        if not re.fullmatch(OVERFLOW, str(error)):
            raise
    else:
        assert all(map(math.isfinite, [*weights, *context]))


@given(st.lists(finite, min_size=1, max_size=9))
def test_a_mixture_stays_within_what_it_mixes(values: list[float]) -> None:
    """D3."""
    mixed = mixture([1 / len(values)] * len(values), values)
    assert min(values) <= mixed <= max(values)


# Every message ------------------------------------------------------------------------------------------------------

K, V = [[1.0, 0.0], [0.0, 1.0]], [[10.0], [20.0]]


class Array:
    def tolist(self) -> list[float]:
        return [1.0, 0.0]


TYPE_ERRORS: list[tuple[tuple[Any, ...], str]] = [
    ((3.0, K, V), "query must be a list or tuple of numbers, got float; write it like [1.0, 0.0]"),
    (("ab", K, V), "query must be a list or tuple of numbers, got str; write it like [1.0, 0.0]"),
    ((None, K, V), "query must be a list or tuple of numbers, got NoneType; write it like [1.0, 0.0]"),
    ((Array(), K, V), "query must be a list or tuple of numbers, got Array; pass query.tolist()"),
    (([1, "2"], K, V), "query[1] must be an int or a float, got str; convert it with float()"),
    (([1, True], K, V), "query[1] must be an int or a float, got bool; write 1.0 for True and 0.0 for False"),
    (([1, 2j], K, V), "query[1] must be an int or a float, got complex; convert it with float()"),
    (([[1, 0]], K, V), "query[0] must be an int or a float, got list; convert it with float()"),
    (
        ([1, 0], 5, V),
        "keys must be a list or tuple of vectors, got int; write it like [[1.0, 0.0], [0.0, 1.0]]",
    ),
    (([1, 0], [1, 0], V), "keys[0] must be a list or tuple of numbers, got int; write it like [1.0, 0.0]"),
    (([1, 0], [[1, 0], [None, 1]], V), "keys[1][0] must be an int or a float, got NoneType; convert it with float()"),
    (
        ([1, 0], K, {0: 1}),
        "values must be a list or tuple of vectors, got dict; write it like [[1.0, 0.0], [0.0, 1.0]]",
    ),
    (([1, 0], K, [10.0, 20.0]), "values[0] must be a list or tuple of numbers, got float; write it like [1.0, 0.0]"),
    (
        ([1, 0], K, [[1], [False]]),
        "values[1][0] must be an int or a float, got bool; write 1.0 for True and 0.0 for False",
    ),
    (([1, 0], K, V, True), "allowed must be a list or tuple of booleans, got bool; write it like [True, False]"),
    (
        ([1, 0], K, V, [1, 0]),
        "allowed[0] must be True or False, got int; convert it with bool() if true means that the key may be read",
    ),
    (
        ([1, 0], K, V, [True, 0.0]),
        "allowed[1] must be True or False, got float; convert it with bool() if true means that the key may be read",
    ),
]

FINITE = "; replace it or leave its vector out"
VALUE_ERRORS: list[tuple[tuple[Any, ...], str]] = [
    (([], K, V), "query must hold at least one number, got none; a vector of width 0 says nothing"),
    (([1, 0], [], []), "keys must hold at least one vector, got none; a query needs something to read"),
    (([1, 0], [[1, 0], []], V), "keys[1] must hold at least one number, got none; a vector of width 0 says nothing"),
    (
        ([1, 0], [[1, 0], [1, 0, 0]], V),
        "keys[1] must be as wide as the query, 2 numbers, got 3; give the query and every key the same width",
    ),
    (
        ([1], K, V),
        "keys[0] must be as wide as the query, 1 number, got 2; give the query and every key the same width",
    ),
    (
        ([1, 0], K, [[1], [2], [3]]),
        "values must hold one vector per key, 2, got 3; give every key exactly one value",
    ),
    (([1, 0], K, []), "values must hold one vector per key, 2, got 0; give every key exactly one value"),
    (([1, 0], K, [[], []]), "values[0] must hold at least one number, got none; a vector of width 0 says nothing"),
    (
        ([1, 0], K, [[1, 2], [3]]),
        "values[1] must be as wide as values[0], 2 numbers, got 1; give every value the same width",
    ),
    (
        ([1, 0], K, V, [True]),
        "allowed must hold one boolean per key, 2, got 1; write True for a key that may be read",
    ),
    # C2: there is no default that would stand for an answer
    (
        ([1, 0], K, V, [False, False]),
        "allowed must let at least one key be read, got False for all 2; there is no distribution over nothing, "
        "so leave this query out or allow it a key",
    ),
    # D2
    (([math.nan, 0], K, V), "query[0] must be a finite number within ±1.8e308, got nan" + FINITE),
    (([1, 0], [[1, math.inf], [0, 1]], V), "keys[0][1] must be a finite number within ±1.8e308, got inf" + FINITE),
    (([1, 0], K, [[1], [-math.inf]]), "values[1][0] must be a finite number within ±1.8e308, got -inf" + FINITE),
    (([10**400, 0], K, V), "query[0] must be a finite number within ±1.8e308, got an int of 1329 bits" + FINITE),
    # a forbidden key's numbers are looked at too
    (
        ([1, 0], [[1, 0], [0, math.nan]], V, [True, False]),
        "keys[1][1] must be a finite number within ±1.8e308, got nan" + FINITE,
    ),
    # D3
    *(
        (
            ([x], [[0], [y]], V),
            "the score of keys[1] overflows: its dot product with the query must stay within ±1.8e308, "
            "got a sum beyond; scale the query or the keys down",
        )
        for x, y in ((1e200, 1e200), (-1e200, -1e200))
    ),
    # D3: of one allowed key that overflows downwards nothing is known but that
    (
        ([1e200], [[-1e200], [0]], V, [True, False]),
        "the score of keys[0] overflows: its dot product with the query must stay within ±1.8e308, got a sum beyond; "
        "scale the query or the keys down",
    ),
    # D3: the sum is -inf or finite, depending on the order; a weight of 0 would be a guess
    (
        ([1, 1, 1], [[-LARGEST, -LARGEST, LARGEST], [0, 0, 0]], V),
        "the score of keys[0] overflows: its dot product with the query must stay within ±1.8e308, got a sum beyond; "
        "scale the query or the keys down",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), TYPE_ERRORS)
def test_a_wrong_type_is_named(arguments: tuple[Any, ...], message: str) -> None:
    """G2."""
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        attend(*arguments)


@pytest.mark.parametrize(("arguments", "message"), VALUE_ERRORS)
def test_a_wrong_value_is_named(arguments: tuple[Any, ...], message: str) -> None:
    """C2, D2, D3, G2."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attend(*arguments)


def test_shapes_are_judged_before_the_mask_and_the_mask_before_the_numbers() -> None:
    """D2: the order of errors."""
    with pytest.raises(ValueError, match="as wide as the query"):
        attend([math.nan, 0], [[1]], [[1]], [False])
    with pytest.raises(ValueError, match="no distribution over nothing"):
        attend([math.nan, 0], [[1, 0]], [[1]], [False])
    with pytest.raises(ValueError, match=r"^query\[0\]"):
        attend([math.nan, 0], [[math.nan, 0]], [[math.nan]], [True])
