"""What well-known libraries do with a kind of input: looked up by clause, from verdicts that the audit wrote.

`content/verdicts.json` is made by a command, not by hand:

    qkv audit --all --verdicts src/qkv/learn/content/verdicts.json
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from qkv.errors import ArgumentError

__all__ = ["Elsewhere", "elsewhere", "verdicts"]


class Elsewhere(NamedTuple):
    """What libraries do with one kind of input.

    Attributes:
        case: id of the audit's case. title: the input in words. does: what is done -> the libraries that do it, the
            contract's way first, then the most common.
    """

    case: str
    title: str
    does: dict[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def verdicts() -> dict[str, Any]:
    """The whole file: `made` (when, with what), `versions` of the libraries, `cases`."""
    text = resources.files("qkv.learn").joinpath("content/verdicts.json").read_text(encoding="utf-8")
    whole: dict[str, Any] = json.loads(text)
    return whole


def elsewhere(clause: str) -> list[Elsewhere]:
    """What libraries do with the inputs of one clause of the contract, such as "C2"; qkv itself is left out.

    Raises:
        ArgumentError: there is no such clause.

    >>> [kind.title for kind in elsewhere("C2") if kind.case == "C2-mask"]
    ['a row that may read nothing']
    """
    cases = verdicts()["cases"]
    clauses = sorted({name for told in cases.values() for name in told["clauses"]})
    if clause not in clauses:
        raise ArgumentError(f"clause must be among {', '.join(clauses)}, but {clause!r} came")
    out = []
    for case, told in cases.items():
        if clause not in told["clauses"]:
            continue
        others = {does: tuple(n for n in names if not n.startswith("qkv")) for does, names in told["does"].items()}
        ways = sorted(others.items(), key=lambda item: (item[0] != "as the contract says", -len(item[1]), item[0]))
        if any(others.values()):
            out.append(Elsewhere(case, told["title"], {does: names for does, names in ways if names}))
    return out
