"""Every clause of docs/contract.md is cited by a test, so a new clause needs one (contract A1 to G2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONTRACT = (TESTS.parent / "docs" / "contract.md").read_text(encoding="utf-8")

CLAUSES = re.findall(r"^\*\*([A-Z]\d+)\. ", CONTRACT, flags=re.MULTILINE)


def test_the_contract_has_its_clauses():
    """The letters A to G, each counted from 1 without a gap, each with an anchor."""
    assert [*CLAUSES[: len(CLAUSES)]] == CLAUSES
    letters = "".join(dict.fromkeys(clause[0] for clause in CLAUSES))
    assert letters == "ABCDEFG"
    for letter in letters:
        numbers = [int(clause[1:]) for clause in CLAUSES if clause[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))
    assert re.findall(r'^<a id="([A-Z]\d+)"></a>$', CONTRACT, flags=re.MULTILINE) == CLAUSES


def test_links_in_the_contract_lead_to_clauses():
    assert set(re.findall(r"\]\(#([A-Z]\d+)\)", CONTRACT)) <= set(CLAUSES)


def cited(clause: str, text: str) -> bool:
    """In a comment, a docstring or an id as `B6`; in the name of a test as `test_b6_…`."""
    return bool(re.search(rf"\b{clause}\b|\btest_{clause.lower()}_", text))


#: This file names them all without testing them.
SOURCES = {file: file.read_text(encoding="utf-8") for file in TESTS.rglob("test_*.py") if file != Path(__file__)}


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_is_cited_by_a_test(clause):
    files = [file.name for file, text in SOURCES.items() if cited(clause, text)]
    assert files, f"no test cites {clause}: write one that fails when the clause is broken, and name the clause in it"


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_has_a_test_of_its_own_name(clause):
    """In the file of its letter, so that `pytest -k b6` runs what proves B6."""
    (file,) = TESTS.glob(f"test_contract_{clause[0].lower()}_*.py")
    assert f"def test_{clause.lower()}_" in SOURCES[file]


def test_a_clause_that_nobody_cites_is_found():
    assert not cited("H9", "".join(SOURCES.values()))
    assert not cited("A1", "A10 and A11, a test_a10_thing")
    assert cited("A1", "# A1: axes")
    assert cited("A1", "def test_a1_axes():")
