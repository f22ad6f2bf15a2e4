"""Inputs of a learner's own: read as they are meant or refused, and judged so that whoever is right passes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qkv import plain
from qkv.learn import grader
from qkv.learn.grader import CLAUSES, Local, grade, read_input, try_input

HERE = Path(__file__).parent
PACKAGED = (Path(grader.__file__).parent / "content" / "attention.solution.py").read_text(encoding="utf-8")
NAN, INF = math.nan, math.inf


def solution(folder: str, name: str) -> str:
    return (HERE / folder / f"{name}.py").read_text(encoding="utf-8")


def function(source: str) -> Callable[..., Any]:
    """The `attend` of a solution, loaded once for many inputs."""
    local = Local(source)
    assert local.load() == {"kind": "loaded"}
    attend: Callable[..., Any] = local._attend
    return attend


SOLUTION = function(PACKAGED)


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("attend([1, -2.5], [[1, 0]], [[2]], [True])", ([1, -2.5], [[1, 0]], [[2]], [True])),
        ("attend([1], [[1], [2]], [[2], [3]])", ([1], [[1], [2]], [[2], [3]], [True, True])),
        ('{"query": [1], "keys": [[1]], "values": [[2]], "allowed": [false]}', ([1], [[1]], [[2]], [False])),
        ("[1], [[1]], [[inf]], (True,)", ([1], [[1]], [[INF]], (True,))),
        ("[[1], [[1]], [[2]], [true]]", ([1], [[1]], [[2]], [True])),
        ("attend(query=[1], keys=[], values=[], allowed=[])", ([1], [], [], [])),
        ("attend([1], [[1]], allowed=[True], values=[[2]],)", ([1], [[1]], [[2]], [True])),
        ("attend('ab', None, [[float('-inf')]], 5)", ("ab", None, [[-INF]], 5)),
        ("attend([1],  # the query\n [[1]],\n [[2]])", ([1], [[1]], [[2]], [True])),
        # What people write for numbers.
        (
            "attend([math.inf, -np.inf], [[1]*2]*2, 2*[[1e400]])",
            ([INF, -INF], [[1, 1], [1, 1]], [[INF], [INF]], [True] * 2),
        ),
        (
            "attend([1/4, 2**0.5, -2**2], [[1_000, .5, 5.]], [[0x1F]])",
            ([0.25, 2**0.5, -4], [[1000, 0.5, 5.0]], [[31]], [True]),
        ),
        ("attend([math.sqrt(4)], [[10**400]], [[2 - 1j]])", ([2.0], [[10**400]], [[2 - 1j]], [True])),
        ("attend([()], [{}], [{0: [1.5]}], [(1,)])", ([()], [{}], [{0: [1.5]}], [(1,)])),
        # The small form.
        ("query: 1 0\nkeys: 1 0; 0 -1\nvalues: 10; .5", ([1, 0], [[1, 0], [0, -1]], [[10], [0.5]], [True, True])),
        ("query: nan, -inf\nkeys: 1, 1\nvalues: 1\nallowed: No", ([NAN, -INF], [[1, 1]], [[1]], [False])),
        ("query:\nkeys: ;\nvalues:\nallowed: yes 1", ([], [[], []], [], [True, 1])),
    ],
)
def test_an_input_is_read_as_people_write_it(text: str, problem: Any) -> None:
    assert grader._same(read_input(text), problem), read_input(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 is neither Python nor JSON: there is nothing"),
        ("attend([1], [[1]]", "line 1 .* ends where '\\)' should stand"),
        ("[1, 2", "line 1 .* ends where '\\]' should stand"),
        ("attend([1], [[1]", "ends where"),
        ("attend([1, ], [[, 1]])", "has ',' where a value should stand"),
        # Not another call than the one meant.
        ("foo([1], [[1]], [[2]])", "begins with 'foo'; the input is a call of attend"),
        ("attend([1], [[1]], [[2]], [True], 5)", "four parts, .* but has 5"),
        ("[1], [[1]], [[2]], [True], 5", "four parts, .* but has 5"),
        ("attend([1], [[1]], [[2]], query=[3])", "has query twice"),
        ("attend([1], [[1]], values=[[2]], values=[[3]])", "has values twice"),
        ('{"query": [1], "keys": [[1]], "values": [[2]], "query": [3]}', "key 'query' twice"),
        ("attend(query=[1], [[1]], [[2]])", "without a name after one with a name"),
        ("attend(*parts)", "unpacks with \\*"),
        ("attend([1], [[1]], [[2]]) + 1", "goes on with '\\+' after the input"),
        ("attend([1], [[1]], [[2]], mask=[True])", "has a field 'mask'"),
        ('{"query": [1], "keys": [[1]], "values": [[2]], "mask": [true]}', "has a field 'mask'"),
        ("attend([1])", "has no keys"),
        ("5", "must hold query, keys, values and allowed"),
        ("query = [1]", "begins with 'query'"),
        # Not other numbers than those meant.
        ("attend([0,5 1,5], [[1]], [[1]])", "holds 5 1 with nothing between; .* decimals with a point"),
        ("attend([1; 2], [[1]], [[1]])", "line 1 holds ';'"),
        ("attend([1.2.3], [[1]], [[1]])", "'1.2.3', which is no number"),
        ("attend([numpy.ones(3)], [[1]], [[1]])", "'ones', which is not known here; write numbers"),
        ("attend(__import__('os').system('true'), [[1]], [[1]])", "holds '__import__', which is not known"),
        ("[x for x in range(9)], [[1]], [[1]]", "holds 'x', which is not known"),
        ("attend([1/0], [[1]], [[1]])", "has a / whose result is no number"),
        ("attend([10**10**10], [[1]], [[1]])", "has a \\*\\* whose result is no number"),
        ("attend([2**4000 * 2**4000 * 2**4000], [[1]], [[1]])", "an int of more than 10,000 bits"),
        ("attend([1] * 10**9, [[1]], [[1]])", "lists of more than 10,000 things"),
        ("attend([[1] * 9999] * 9999, [[1]], [[1]])", "lists of more than 10,000 things"),
        ("attend([True + 1], [[1]], [[1]])", "between things that are not numbers"),
        ("attend(['a\\n'], [[1]], [[1]])", "a text that does not end, or holds a backslash"),
        ("attend([{[1]: 2}], [[1]], [[1]])", "a key that is no text"),
        ("attend([" + "1" * 5000 + "], [[1]], [[1]])", "no number that fits"),
        ("query: 1,5\nkeys: 1\nvalues: 1", "query holds '1,5'; write 1.5 for one number, or a blank between two"),
        ("query: 1; 2\nkeys: 1\nvalues: 1", "query must be one row, but has 2"),
        ("query: 1\nkeys: 1\nkeys: 2\nvalues: 1", "line 3 gives keys a second time"),
        ("query: 1\nkeys: 1\nmask: no", "line 3 must begin with query:"),
        ("query: 1\nkeys: one\nvalues: 1", "keys holds 'one', which is not a number"),
        ("query: 1\nkeys: 1\nvalues: 1\nallowed: maybe", "allowed holds 'maybe', which is not yes, no or a number"),
        ("1" * 200_000, "at most 100,000 characters"),
    ],
)
def test_an_input_that_is_none_says_what_is_wrong_and_what_to_write(text: str, message: str) -> None:
    """G1, G2: nothing is guessed; one sentence with a way out."""
    with pytest.raises(ValueError, match=message) as refused:
        read_input(text)
    assert "\n" not in str(refused.value)
    assert "; " in str(refused.value)


@pytest.mark.parametrize("depth", [21, 300, 20_000])
@pytest.mark.parametrize("nest", ["[{}]", "({})", "{{1: {}}}", "-{}", "float({})", "2**{}"])
def test_what_is_nested_deeply_is_refused_in_one_sentence(nest: str, depth: int) -> None:
    """Where the interpreter's own stack is a small one, too: what reads it counts."""
    before, after = (nest.replace("{{", "{").replace("}}", "}")).split("{}")
    with pytest.raises(ValueError, match=r"^line 1 is nested more than 20 deep; .*flatten it$"):
        read_input(f"attend([1], {before * min(depth, 90_000 // len(nest))}1{after})")


def test_what_is_computed_in_an_input_shares_no_list() -> None:
    query, keys, values, _ = read_input("attend([1] * 2, [[1, 2]] * 2, [[3]] * 2)")
    keys[0].append(5)
    assert (query, keys, values) == ([1, 1], [[1, 2, 5], [1, 2]], [[3], [3]])


@pytest.mark.parametrize("value", [[1.5, INF, -INF], (1, [2, True]), None, "ab", {0: [1.0]}, 2 + 1j, 10**400, -0.0])
def test_inputs_survive_json(value: Any) -> None:
    there = json.loads(json.dumps(grader.encode(value), allow_nan=False))
    assert grader._same(grader.decode(there), value)


# Judging --------------------------------------------------------------------------------------------------------------

_NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.floats(-4, 4, width=16),
    st.sampled_from([0.0, -0.0, 1e-308, 5e-324, 1e154, -1e200, 1.7e308, -1.7e308, 10**400, -(10**30), NAN, INF, -INF]),
    st.sampled_from([True, False, None, "1", 2j, [], [1.0], ()]),
)
_TAME = st.floats(-4, 4, width=16)


@st.composite
def problems(draw: st.DrawFn) -> Any:
    """Mostly inputs that have an answer, with a few things in them that are not as they should be."""
    keys, width, value_width = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))

    def vector(size: int) -> Any:
        return draw(st.lists(_TAME, min_size=size, max_size=size))

    parts = [vector(width), [vector(width) for _ in range(keys)], [vector(value_width) for _ in range(keys)]]
    parts.append(draw(st.lists(st.booleans(), min_size=keys, max_size=keys)))
    for _ in range(draw(st.integers(0, 3))):
        part = draw(st.integers(0, 3))
        whole = parts[part]
        if draw(st.integers(0, 7)) == 0 or not isinstance(whole, list) or not whole:
            parts[part] = draw(
                st.sampled_from([None, 1.0, "ab", {}, [], tuple(whole) if isinstance(whole, list) else ()])
            )
            continue
        at = draw(st.integers(0, len(whole) - 1))
        row = whole[at]
        if part in (1, 2) and isinstance(row, list) and row and draw(st.integers(0, 7)):
            row[draw(st.integers(0, len(row) - 1))] = draw(_NUMBERS)
        else:
            whole[at] = draw(_NUMBERS)
    return tuple(parts)


@given(problems())
@example(([1.0], [[True]], [[2.0]], [True]))
@example(([True], [[1.0], [NAN]], [[2.0], [3.0]], [True, False]))
@example(([True], [[1.0]], [[2.0]], [False]))
@example(([1.0], [[1.0]], [[False]], None))
@example(([1.0], [[1.0]], [[2.0]], None))
@example(([], [[True]], [[2.0]], [True]))
@example(([1.0], [[10**400], [1]], [[2.0], [3.0]], [False, True]))
@example(([1.7e308, 1.7e308], [[1.7e308, -1.7e308]], [[1.7e308]], [True]))
def test_whoever_is_right_passes_on_any_input(problem: Any) -> None:
    """The definition and the packaged solution, on whatever `try_input` takes; and each verdict is one with a clause."""
    for attend in (plain.attend, SOLUTION):
        record = try_input(attend, problem)
        assert record["status"] == "passed", (attend, record["failure"], record["right"])
        assert record["clause"]["number"] in CLAUSES
    # Who refuses nothing and who refuses all are judged as well, whatever it is.
    for other in (lambda *_: ([0.5], [0.5]), lambda *_: 1 / 0):
        assert try_input(other, problem)["sentence"]


def test_a_bool_among_the_numbers_is_a_matter_of_types_not_of_masks() -> None:
    """G1: refused with TypeError or ValueError, or taken for the int that it is; D1 has nothing to say of it."""
    problem = ([True], [[1.0], [0.0]], [[1.0], [2.0]], [True, True])
    for source in (PACKAGED, solution("right", "loops"), PACKAGED.replace(" and not isinstance(x, bool)", "")):
        record = try_input(source, problem)
        assert (record["status"], record["clause"]["number"]) == ("passed", "G1"), record
    assert record["yours"]["kind"] == "returned"
    assert record["right"]["text"].endswith("or TypeError")
    crashes = try_input("def attend(*_): raise KeyError('no')", problem)
    assert crashes["clause"]["number"] == "G1"
    assert "take True for 1 and False for 0, or refuse it with TypeError or ValueError" in crashes["failure"]["says"]
    wrong = try_input("def attend(*_): return [0.5, 0.5], [1.5]", problem)
    assert wrong["clause"]["number"] == "C1"
    assert wrong["failure"]["cause"] is None


def test_a_bool_behind_the_mask_beside_nan_may_be_left_unread() -> None:
    problem = ([True], [[1.0], [NAN]], [[1.0], [2.0]], [True, False])
    record = try_input(lambda *_: ([1.0, 0.0], [1.0]), problem)
    assert record["status"] == "passed"
    record = try_input(lambda *_: 1 / 0, problem)
    assert "take True for 1 and False for 0 and leave the forbidden key out" in record["failure"]["says"]


def test_where_a_type_is_wrong_too_type_error_refuses_whatever_is_looked_at_first() -> None:
    """B4 and A3 at once: the order of checks is the learner's own."""
    problem = ([1.0], [], [], "TF")
    for error in (TypeError, ValueError):

        def attend(*_: Any, error: type[Exception] = error) -> Any:
            raise error

        assert try_input(attend, problem)["status"] == "passed"
        assert try_input(attend, ([1.0], [], [], []))["status"] == ("passed" if error is ValueError else "failed")


def test_one_input_shows_both_answers_and_the_clause() -> None:
    record = try_input(solution("right", "loops"), ([1], [[1], [0]], [[1], [2]], [True, True]))
    assert record["status"] == "passed"
    assert record["yours"]["text"] == record["right"]["text"] == "([0.731059, 0.268941], [1.26894])"
    assert record["sentence"] == "Your function holds: it does what clause C1 asks for."
    record = try_input(solution("right", "loops"), ([1], [[1], [0]], [[1], [2]], [False, False]))
    assert (record["status"], record["clause"]["number"]) == ("passed", "C2")
    assert record["right"]["error"] == "ValueError"
    record = try_input(solution("wrong", "mask_of_ints"), ([1], [[1]], [[1]], [1]))
    assert (record["status"], record["clause"]["number"]) == ("failed", "B4")
    assert record["sentence"].startswith("Your function breaks clause B4. It must be refused with TypeError")
    with pytest.raises(ValueError, match="2 parts came"):
        try_input(plain.attend, ([1], [[1]]))


class Stopped:
    """A function that a host had to end."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        self.outcome = outcome

    def load(self) -> dict[str, Any]:
        return {"kind": "loaded"}

    def call(self, problem: Any) -> dict[str, Any]:
        return self.outcome

    def printed(self) -> tuple[str, bool]:
        return "", False


@pytest.mark.parametrize(
    ("problem", "clause"),
    [(([1], [[1]], [[1]], [True]), "C1"), (([1], [[1]], [[1]], [False]), "C2"), (([1], [[NAN]], [[1]], [True]), "D2")],
)
@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        ({"kind": "hang", "seconds": 4.2}, "It did not answer within 4.2 s."),
        ({"kind": "spent", "seconds": 4.2}, "It did not answer within 4.2 s."),
        ({"kind": "died", "message": "exit code 3"}, "The Python that ran it ended: exit code 3."),
    ],
)
def test_an_input_that_had_to_be_stopped_names_its_clause_too(
    problem: Any, clause: str, outcome: dict[str, Any], says: str
) -> None:
    record = try_input(Stopped(outcome), problem)
    assert (record["status"], record["clause"]["number"]) == ("failed", clause)
    assert record["sentence"] == f"Your function breaks clause {clause}. {says}"
    assert record["failure"]["smallest"] is False
    assert record["input"]["query"] == [1]
    assert record["right"]


def test_an_input_for_a_program_that_does_not_start_breaks_no_clause() -> None:
    record = try_input("import numpy_too\n", ([1], [[1]], [[1]], [True]))
    assert record["status"] == "failed"
    assert record["failure"]["clause"] is None
    assert record["sentence"].startswith("Your program does not start: line 1 imports numpy_too")
    assert record["right"]["text"] == "([1], [1])"
    assert record["input"]["keys"] == [[1]]


# Beside the lab's cases -----------------------------------------------------------------------------------------------


def test_extra_cases_are_judged_by_the_definition() -> None:
    source = solution("wrong", "minus_a_billion")
    extra = [
        ([1], [[-2e9], [0]], [[1], [2]], [True, False]),
        {"id": "mine", "query": [1], "keys": [[1]], "values": [[2]]},
    ]
    report = grade(source, extra_cases=extra)
    records = {case["id"]: case for case in report.cases if case["group"] == "extra"}
    assert list(records) == ["extra-1", "mine"]
    assert records["extra-1"]["failure"]["cause"]["id"] == "sentinel-mask"
    assert records["mine"]["status"] == "passed"


@pytest.mark.parametrize(
    "case",
    [
        {"id": "x", "query": [1]},
        {"id": "x", "query": {"a": 1, "b": 2}, "keys": [[1]], "values": [[1]]},
        {"id": "x", "query": {"set": [1]}, "keys": [[1]], "values": [[1]]},
        {"id": "x", "query": {"int": "one"}, "keys": [[1]], "values": [[1]]},
        {"id": "x", "query": {"tuple": 1}, "keys": [[1]], "values": [[1]]},
        7,
        ([1], [[1]]),
    ],
)
def test_a_kept_case_that_cannot_be_read_is_said_and_stops_nothing(case: Any) -> None:
    """It may have come with an imported notebook."""
    report = grade(SOLUTION, extra_cases=[case, ([1], [[1]], [[1]])])
    (bad, good) = (one for one in report.cases if one["group"] == "extra")
    assert good["status"] == "passed"
    assert (bad["status"], bad["failure"]["kind"]) == ("failed", "unreadable")
    assert bad["failure"]["says"].startswith("This kept case cannot be read (")
    assert not report.passed
    assert json.dumps(report.to_dict(), allow_nan=False)
