"""Profile `generated`: what kernels written by programs do when only their output is looked at.

Not clauses of their own: freed memory is poisoned before each call (D1), inputs are fresh and compared (A4), the output
is a plain array with its own storage (A4), answers stay right (F4), and nobody else does the work (G1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..call import Call, Result
from ..case import Case, Size, differ
from ..tolerance import right
from ..verdict import Mismatch
from .draw import ordinary

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """The cases of this group."""

    def watched(rng: np.random.Generator, size: Size) -> Call:
        return ordinary(rng, size, watch=True)

    yield Case(
        "X-fresh",
        ("F4", "D1"),
        "other inputs of the same shape get another answer",
        "generated",
        watched,
        expand=_other,
        relation=_each_right,
    )
    yield Case(
        "X-memory",
        ("D1",),
        "memory that nothing wrote is not read",
        "generated",
        watched,
        relation=_no_poison,
        sizes=(Size(5, 5), Size(64, 64)),
    )
    yield Case("X-inputs", ("A4",), "inputs are left as they are", "generated", watched, relation=_inputs)
    yield Case(
        "X-output",
        ("A4",),
        "the output is a plain array with its own storage",
        "generated",
        lambda rng, s: watched(rng, s).but(repeat=3),
        relation=_plain_output,
    )
    yield Case(
        "X-number", ("D2",), "finite input gives numbers: NaN is no wildcard", "generated", watched, relation=_numbers
    )
    yield Case(
        "X-repeat",
        ("F4",),
        "right again after repeated calls",
        "generated",
        lambda rng, s: watched(rng, s).but(repeat=5),
        seeds=1,
    )
    yield Case(
        "X-own-work",
        ("G1",),
        "no other attention function is called or replaced in secret",
        "generated",
        watched,
        relation=_own_work,
        sizes=(Size(5, 5), Size(64, 64)),
        seeds=1,
    )


def _other(base: Call) -> list[Call]:
    return [base, base.but(query=-base.query, value=base.value[:, :, ::-1]), base]


def _each_right(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    for at, (call, result) in enumerate(zip(calls, results, strict=True)):
        found = differ(call, result, right(call, arithmetic))
        if found is None:
            continue
        if at and differ(call, result, right(calls[0], arithmetic)) is None:
            return found._replace(fault="answers with an earlier call's output")
        return found if at else found._replace(fault=_named(call, result, arithmetic))
    return None


def _named(call: Call, result: Result, arithmetic: frozenset[str]) -> str:
    output = result.parts["output"]
    return "the output is zeros" if not output.any() else "the output is NaN" if np.isnan(output).any() else ""


def _no_poison(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    found = differ(calls[0], results[0], right(calls[0], arithmetic))
    if found is not None and np.isnan(results[0].parts["output"]).any():
        return found._replace(fault="memory that nothing wrote comes out")
    return found if found is None else found._replace(fault=_named(calls[0], results[0], arithmetic))


def _numbers(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    found = differ(calls[0], results[0], right(calls[0], arithmetic))
    if found is not None and not np.isfinite(found.got):
        return found._replace(fault="NaN where the answer is a number")
    return found if found is None else found._replace(fault=_named(calls[0], results[0], arithmetic))


def _inputs(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    changed = results[0].facts.get("changed")
    if not changed:
        return None
    return Mismatch("output", (), 0, 0, 0, f"the kernel wrote to {', '.join(changed)}", f"writes to its {changed[0]}")


def _plain_output(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    facts = results[0].facts
    for fact, fault in (
        ("odd output", "the output is no plain array"),
        ("shares", "the output is a view of an input"),
        ("earlier output changed", "a later call overwrites an earlier output"),
        ("same memory again", "two outputs share their memory"),
    ):
        if facts.get(fact):
            return Mismatch(
                "output", (), 0, 0, 0, f"{fault} ({facts[fact]})" if facts[fact] is not True else fault, fault
            )
    return None


def _own_work(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    facts = results[0].facts
    for fact, fault in (
        ("called", "calls another attention function"),
        ("replaced", "replaces a function of a library"),
        ("looked away", "switches the watching off"),
    ):
        if facts.get(fact):
            said = "" if facts[fact] is True else f": {', '.join(facts[fact])}"
            return Mismatch("output", (), 0, 0, 0, fault + said, fault)
    return None
