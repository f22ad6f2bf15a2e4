"""All cases, in the order of the clauses. A case is found by its id."""

from __future__ import annotations

from functools import lru_cache

from qkv.errors import ArgumentError

from ..case import Case
from . import generated, honesty, leaks, masks, numbers, scores, shapes, states, weights

__all__ = ["CLAUSES", "EVERY_TYPE", "all_cases", "find"]

#: Every clause of the contract.
CLAUSES = tuple(
    f"{letter}{n}" for letter, count in zip("ABCDEFG", (4, 7, 6, 3, 2, 4, 2), strict=True) for n in range(1, count + 1)
)


#: Cases run in every float type of a kernel, unless `deep`: what is computed may change with it, what is meant does not.
EVERY_TYPE = frozenset(
    {
        "A1-values",
        "A2-grouped",
        "B3-bias",
        "B4-full",
        "B5-causal",
        "B5-lengths",
        "C1-large-scores",
        "C1-forbidden-maximum",
        "C3-low-score",
        "C4-sink",
        "C5-lse",
        "D1-value-large-mask",
        "E1-halves",
        "F1-output-type",
        "F2-spread",
        "P-gradients",
        "P-permuted",
    }
)


@lru_cache
def all_cases() -> tuple[Case, ...]:
    """The cases of every profile."""
    from .. import probes

    # Wrong calls come last: a library that answers them may have spoiled its memory.
    groups = (shapes, scores, masks, weights, leaks, states, numbers, probes, generated, honesty)
    return tuple(case for group in groups for case in group.cases())


def find(name: str) -> Case:
    """The case with this id.

    Raises:
        ArgumentError: there is none.
    """
    for case in all_cases():
        if case.id == name:
            return case
    near = [c.id for c in all_cases() if c.id.startswith(name[:2])]
    raise ArgumentError(
        f"there is no case {name!r}; near it are {', '.join(near[:8]) or ', '.join(c.id for c in all_cases()[:8])}"
    )
