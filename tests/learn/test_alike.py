"""Which of the audit's cases an input of the lab is like."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import plain
from qkv.learn import alike as module
from qkv.learn.alike import MOST, alike
from qkv.learn.verdicts import table

nan, inf = math.nan, math.inf
KEYS, VALUES, BOTH = [[1.0], [2.0]], [[3.0], [4.0]], [True, True]

LIKE: list[tuple[Any, Any, Any, Any, list[str]]] = [
    ([1.0], KEYS, VALUES, BOTH, ["B1-default"]),
    ([1.0], KEYS, VALUES, [True, False], ["C1-forbidden-maximum", "B4-polarity"]),
    ([1.0], KEYS, VALUES, [False, True], ["B4-polarity"]),
    ([1.0], KEYS, VALUES, [False, False], ["C2-mask"]),
    ([nan], KEYS, VALUES, [False, False], ["D2-empty-query"]),
    ([1.0], KEYS, VALUES, [1, 0], ["B4-numbers"]),
    ([1.0], [], [], [], ["A3-no-keys"]),
    ([], [[]], [[1.0]], [True], ["A3-no-width"]),
    ([1.0, 2.0], KEYS, VALUES, BOTH, ["G2-width"]),
    ([1.0], KEYS, [[3.0]], BOTH, ["G2-values"]),
    ([nan], KEYS, VALUES, BOTH, ["D2-query-nan"]),
    ([-inf], KEYS, VALUES, BOTH, ["D2-query-inf"]),
    ([1.0], [[nan], [1.0]], VALUES, BOTH, ["D2-key-nan"]),
    ([1.0], [[inf], [1.0]], VALUES, BOTH, ["D2-key-inf"]),
    ([1.0], KEYS, [[inf], [1.0]], BOTH, ["D2-value-inf"]),
    ([1.0], KEYS, [[inf], [nan]], BOTH, ["D2-value-nan"]),
    ([1], KEYS, [[10**400], [1]], BOTH, ["D2-value-inf"]),
    ([1.0], KEYS, [[1.0], [nan]], [True, False], ["D1-value-nan-mask"]),
    ([1.0], [[1.0], [nan]], [[1.0], [inf]], [True, False], ["D1-key-nan-mask", "D1-value-inf-mask"]),
    ([1e200], [[1e200]], [[1.0]], [True], ["D3-score", "D3-half"]),
    ([1e200], [[-1e200], [1e-200]], VALUES, BOTH, ["D3-minus", "C1-large-scores", "B1-default"]),
    ([0.0], KEYS, [[1.2e308], [1.2e308]], BOTH, ["D3-mixture", "B1-default"]),
    ([1.0], [[-2e4], [1.0]], VALUES, [True, False], ["C3-low-score", "C1-forbidden-maximum", "C1-large-scores"]),
    ([1.0], [[-1e32], [1.0]], VALUES, [True, False], ["C3-lowest-score", "C1-forbidden-maximum", "C1-large-scores"]),
    ([1.0], [[1.0], [2.0, 3.0]], VALUES, BOTH, []),
    ([1.0], KEYS, [[3.0], [4.0], [5.0]], BOTH, []),
    ([1.0], KEYS, VALUES, [True], []),
    ([1.0], KEYS, VALUES, ["yes", "no"], []),
    ([True], KEYS, VALUES, BOTH, []),
    ("text", None, 3, {}, []),
]  # fmt: skip


@pytest.mark.parametrize(("query", "keys", "values", "allowed", "ids"), LIKE)
def test_an_input_is_like_what_a_library_was_asked(
    query: Any, keys: Any, values: Any, allowed: Any, ids: list[str]
) -> None:
    """A1, A3, B4, C1, C2, C3, D1, D2, D3, G2: known inputs, the likest case first."""
    assert alike((query, keys, values, allowed)) == ids


def test_every_case_that_is_named_can_be_shown() -> None:
    """What has no verdict would be shown as nothing; and nothing is kept for an input that does not occur."""
    named = {case for *_, ids in LIKE for case in ids}
    assert named == set(table()["cases"])


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3), lambda x: st.lists(x, max_size=3)
)


@given(st.tuples(anything, anything, anything, anything))
def test_no_input_is_too_odd(problem: Any) -> None:
    """G1: whatever is written down, a few known ids come back."""
    found = alike(problem)
    assert len(found) <= MOST
    assert set(found) <= set(table()["cases"])


@given(
    st.lists(st.floats(), min_size=1, max_size=2), st.lists(st.lists(st.floats(), min_size=1, max_size=2), max_size=3)
)
def test_what_the_definition_answers_is_no_refusal_elsewhere(query: list[float], keys: list[list[float]]) -> None:
    """D2, G2: an input that the definition answers is like one that libraries are to answer, too."""
    values = [[1.0]] * len(keys)
    try:
        plain.attend(query, keys, values)
    except ValueError:
        return
    assert not [case for case in alike((query, keys, values, [True] * len(keys))) if case[:2] in ("D2", "G2", "A3")]


def test_it_runs_as_a_loose_file(tmp_path: Path) -> None:
    """As in the browser: beside plain.py, without the package."""
    for file in (Path(module.__file__), Path(plain.__file__)):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    code = "import sys; sys.path.insert(0, sys.argv[1]); import alike; print(alike.alike(([1.0], [[1.0]], [[2.0]], [True])))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "['B1-default']\n"
