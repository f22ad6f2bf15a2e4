"""A kernel that crashes, hangs or floods is one row, and everything else is found out all the same."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.audit import Call, Choice, audit, check
from qkv.audit.isolate import Child, StartError
from qkv.audit.targets import Target, target_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="child processes with two pipes are POSIX")

FILE = Path(__file__).with_name("misbehaving.py")

ENDS = [
    (2, "killed by SIGSEGV"),
    (3, "killed by SIGABRT"),
    (4, "killed by SIGFPE"),
    (5, "the process ended with exit code 7"),
    (7, "took more than 0.0625 GiB of memory"),
    (8, "SystemExit: enough"),
]


def target(**fields: Any) -> Target:
    return target_of(f"{FILE}:kernel", "gqa=", **fields)


def grouped(L: int) -> Call:
    """Two query heads on one key head, equal scores, values 1 and 3: each row is 2."""
    return Call(np.zeros((1, 2, L, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]]))


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    # Long enough for a machine on which others compute; who has to hang has another child.
    made = Child(target(seconds=600.0, memory=1 << 26).spec or {}, start_seconds=600.0)
    yield made
    made.close()


@pytest.mark.parametrize(("L", "told"), ENDS, ids=[told.split()[-1] for _, told in ENDS])
def test_the_end_of_a_process_is_one_answer(child: Child, L: int, told: str) -> None:
    """What ended the call is named, and the next call is answered, by a new child where it takes one."""
    result = child.ask(grouped(L))
    assert result.status == "crash"
    assert told in result.message
    after = child.ask(grouped(1))
    assert after.status == "answer"
    assert after.parts["output"].tolist() == [[[[2.0]], [[2.0]]]]


def test_a_crash_is_one_row_and_nothing_else_is_lost() -> None:
    """One row says so, with the input that does it; the other cases have their rows."""
    found = {
        row.case: row for row in audit(target(), Choice(clauses=("C1", "A2"), profile="core", shrinking=False)).rows
    }
    crashed = [row for row in found.values() if row.verdict == "crashes"]
    # With 5 queries the kernel leaves; cases without grouped heads never get there.
    assert {row.case for row in crashed} == {"A2-grouped", "A2-one"}
    assert all("exit code 7" in row.name and row.example for row in crashed)
    assert found["P-heads"].verdict == found["C1-large-scores"].verdict == "keeps"


def test_a_flood_of_prints_is_swallowed(child: Child, capfd: pytest.CaptureFixture[str]) -> None:
    """What a kernel prints disturbs neither the answer nor the terminal, and is counted."""
    result = child.ask(grouped(9))
    assert result.parts["output"].ravel().tolist() == [2.0] * 18
    assert result.facts["printed"] > 10_000_000
    said = capfd.readouterr()
    assert said.out == said.err == ""


def test_hangs_are_waited_for_three_times_only() -> None:
    """A hang is named; after three of them the rest of the rows says so at once."""
    child = Child(target(seconds=0.05).spec or {}, start_seconds=600.0)
    try:
        said = [child.ask(grouped(6)).message for _ in range(5)]
    finally:
        child.close()
    assert all("no answer" in s for s in said[:3])
    assert said[3] == said[4] == "not asked any more after 3 hangs"


def test_a_kernel_that_cannot_be_loaded_is_said_in_one_line(tmp_path: Path) -> None:
    """A broken import is a reason, and not a traceback."""
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(StartError, match="nothing_of_this_name"):
        Child({"target": f"{tmp_path / 'broken.py'}:f", "domain": {}})
    assert "nothing_of_this_name" in check(f"{tmp_path / 'broken.py'}:f").absent


def test_answers_are_the_same_in_a_child_and_here() -> None:
    """The wire changes no bit: qkv's own engine gives the same rows both ways."""
    choice = Choice(clauses=("B5", "C5", "F1"), profile="edges")
    both = [[row.told for row in audit(target_of("qkv-numpy"), choice, isolate=way).rows] for way in (True, False)]
    assert both[0] == both[1]
    assert set(both[0]) <= {"keeps", "cannot express"}


def test_no_child_is_left_behind() -> None:
    """Closing ends the child."""
    child = Child(target().spec or {})
    process = child._process
    assert process is not None
    child.close()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("array", [np.array([None]), np.array(["one"]), np.array(["2020-01-01"], "datetime64[D]")])
def test_an_array_without_numbers_is_no_refusal(array: Any) -> None:
    """G1: what fails here while such an answer is read is not said to be the kernel's own words."""
    report = check(lambda query, key, value: array, case="A1-values", isolate=False)
    (row,) = report.rows
    assert row.verdict == "crashes"
    assert "which are no numbers" in row.name
