"""What libraries do with a kind of input, for the lab: looked up by clause in verdicts that the audit wrote."""

from __future__ import annotations

import pytest

from qkv.errors import ArgumentError
from qkv.learn.verdicts import elsewhere, table, verdicts


def test_verdicts_are_found_by_clause() -> None:
    """C2, B6: the input in words, who does what, the contract's way first; this package does not speak of itself."""
    kinds = {kind.case: kind for kind in elsewhere("C2")}
    empty = kinds["C2-mask"].does
    assert next(iter(empty)) == "as the contract says"
    assert "jax" in empty["a row without keys is the mean of every V, forbidden ones included"]
    start = {kind.case: kind for kind in elsewhere("B6")}["B6-long"].does
    assert "torch-sdpa" in start["the queries stand at the start of the keys"]
    assert "mlx" in start["the queries stand at the end of the keys"]
    libraries = {name for kind in elsewhere("C2") for some in kind.does.values() for name in some}
    assert not any(name.startswith("qkv") for name in libraries)
    assert libraries <= set(verdicts()["versions"])


def test_every_clause_can_be_asked() -> None:
    """A1 to G2, and G2: what is no clause is refused with those there are."""
    clauses = {name for told in verdicts()["cases"].values() for name in told["clauses"]}
    counts = zip("ABCDEFG", (4, 7, 6, 3, 2, 4, 2), strict=True)
    assert clauses == {f"{letter}{n}" for letter, count in counts for n in range(1, count + 1)}
    for clause in clauses:
        elsewhere(clause)
    with pytest.raises(ArgumentError, match="clause must be among A1"):
        elsewhere("Z9")


def test_the_table_of_the_page_names_every_library_once() -> None:
    """C2, B4: each kernel that was asked is in one row, with its library's version; the contract's way comes first."""
    whole = verdicts()
    shown = table()
    assert shown["made"] == whole["made"]
    for case, told in shown["cases"].items():
        names = [name for some in whole["cases"][case]["does"].values() for name in some if not name.startswith("qkv")]
        functions = [
            (who["library"], function)
            for row in told["does"]
            for who in row["who"]
            for function in who["functions"] or [""]
        ]
        assert len(functions) == len(set(functions)) == len(names)
        assert sum(row["right"] for row in told["does"]) <= 1
        assert all(not row["right"] for row in told["does"][1:])
    zero, *_ = shown["cases"]["C2-mask"]["does"]
    assert (zero["what"], zero["right"]) == ("answers 0", True)
    refused = shown["cases"]["B4-numbers"]["does"][0]
    assert (refused["what"], refused["right"]) == ("refuses it", True)
    assert {"library": "JAX", "version": whole["versions"]["jax"], "functions": []} in refused["who"]
