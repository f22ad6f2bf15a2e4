"""The audit as tests, and its ledger of accepted differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.audit import Row, conformance
from qkv.audit.conformance import judge, read_ledger
from qkv.errors import FileError

pytest_plugins = ["pytester"]


def row(verdict: str, name: str = "", case: str = "B6-long", profile: str = "edges") -> Row:
    return Row(case, ("B6",), "title", profile, verdict, name, reproduce="qkv audit x --case B6-long")


def test_a_difference_fails_unless_the_ledger_accepts_it() -> None:
    """The name counts: another difference than the accepted one fails."""
    start = "the queries stand at the start of the keys"
    accepted = {"B6-long": f"differs: {start}"}
    assert "B6-long" in judge(row("differs", start), {}, "edges")
    assert judge(row("differs", start), accepted, "edges") == ""
    assert "the ledger accepts" in judge(row("differs", "something else"), accepted, "edges")
    assert judge(row("differs", "something else"), {"B6-long": "differs"}, "edges") == ""
    assert judge(row("keeps"), {}, "edges") == ""


def test_an_unexpected_pass_fails() -> None:
    """A line that is no longer true has to go."""
    assert "take its line out" in judge(row("keeps"), {"B6-long": "differs"}, "edges")


def test_a_ledger_is_read_with_its_reasons(tmp_path: Path) -> None:
    """Each line has a case, a verdict, and a reason."""
    file = tmp_path / "accepted.txt"
    file.write_text("# all of it\n\nB6-long differs: at the start  # documented\nC2-mask wrong # issue 7\n")
    assert read_ledger(file) == {"B6-long": "differs: at the start", "C2-mask": "wrong"}
    file.write_text("B6-long differs\n")
    with pytest.raises(FileError, match="needs a reason"):
        read_ledger(file)
    file.write_text("B6-long perhaps # so\n")
    with pytest.raises(FileError, match="line 1"):
        read_ledger(file)
    file.write_text("B6-lnog differs # it would accept nothing, and nobody would know\n")
    with pytest.raises(FileError, match="line 1: there is no case 'B6-lnog'"):
        read_ledger(file)
    file.write_bytes(b"\xff")
    with pytest.raises(FileError, match="UTF-8"):
        read_ledger(file)


def test_a_ledger_that_is_not_there_is_told_in_one_sentence(pytester: pytest.Pytester) -> None:
    """G2: who has none yet learns how to begin one, without a traceback."""
    pytester.makepyfile(
        test_none="""
        from qkv.audit import conformance

        test_attention = conformance(lambda q, k, v: q, profile="core", ledger="none.txt", isolate=False)
        """
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-k", "A1-values")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["the ledger none.txt cannot be read (No such file or directory); begin with an empty *"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*FileNotFoundError*")


def test_a_kernel_in_a_test_file(pytester: pytest.Pytester) -> None:
    """One test a case with its id; cases that cannot be asked are skipped; the counterexample is the message."""
    pytester.makepyfile(
        mine="""
        import numpy as np

        def attention(query, key, value):
            score = np.einsum("bhld,bhsd->bhls", query, key)          # no scale
            mass = np.exp(score - score.max(-1, keepdims=True))
            return np.einsum("bhls,bhse->bhle", mass / mass.sum(-1, keepdims=True), value)
        """,
        test_mine="""
        from qkv.audit import conformance

        test_attention = conformance("mine:attention", profile="core", isolate=False)
        """,
    )
    result = pytester.runpytest_inprocess(
        "-q", "-p", "no:cacheprovider", "-k", "A1-values or B1-default or B4-full or A3"
    )
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*differs: no scale is applied*", "*test_attention?B1-default?*"])


def test_ids_are_those_of_the_cases() -> None:
    """Readable ids."""
    test = conformance("nowhere:nothing", profile="core")
    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    assert "B5-causal" in mark.args[1]
