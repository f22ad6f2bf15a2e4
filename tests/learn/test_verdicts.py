"""What libraries do with a kind of input, for the lab: looked up by clause in verdicts that the audit wrote."""

from __future__ import annotations

import pytest

from qkv.errors import ArgumentError
from qkv.learn.verdicts import elsewhere, verdicts


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
