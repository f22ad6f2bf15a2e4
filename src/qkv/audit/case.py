"""One case: which clauses it asks about, how its inputs are made, what else an answer could mean, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import readings
from .call import Array, Call, Result
from .faults import faults
from .readings import Reading
from .tolerance import Right, right
from .verdict import CRASHES, DIFFERS, KEEPS, NOT_PROMISED, REFUSES, WRONG, Mismatch

__all__ = ["Case", "Finding", "Make", "Size", "agree", "differ"]


class Size(NamedTuple):
    """Queries and keys a case is made with; few of them, since every shape may be compiled anew."""

    L: int
    S: int


class Finding(NamedTuple):
    """What one run of a case says."""

    verdict: str
    name: str = ""
    mismatch: Mismatch | None = None
    says: str = ""


Make = Callable[[np.random.Generator, Size], Call]
#: The calls of a probe, and what has to hold between their results.
Expand = Callable[[Call], "list[Call]"]
Relation = Callable[["list[Call]", "list[Result]", frozenset[str]], "Mismatch | None"]


@dataclass(frozen=True)
class Case:
    """A question about some clauses.

    Attributes:
        id, clauses, title, profile: what a report shows; the profile is core, edges, strict or generated.
        make: inputs from a seeded generator and a size.
        about: features that must be said by the kernel's own argument.
        alternatives: other conventions, in the order in which they are tried.
        refusal: whether the clause is kept by a clear refusal; only_refusal: by nothing else.
        promise: what a library must have promised for a failure to be wrong; "" = the contract's core.
        sizes, deep_sizes: (L, S) tried. seeds: how many seeds. dtypes: the float types it is about; empty: any.
        expand, relation: for probes, which compare answers with each other.
    """

    id: str
    clauses: tuple[str, ...]
    title: str
    profile: str
    make: Make
    about: frozenset[str] = frozenset()
    alternatives: tuple[Reading, ...] = ()
    refusal: bool = False
    only_refusal: bool = False
    promise: str = ""
    sizes: tuple[Size, ...] = (Size(5, 5),)
    deep: bool = False
    seeds: int = 2
    dtypes: tuple[str, ...] = ()
    expand: Expand | None = None
    relation: Relation | None = None

    def calls(self, base: Call) -> list[Call]:
        """What the kernel is asked."""
        return [base] if self.expand is None else self.expand(base)

    def judge(
        self,
        calls: Sequence[Call],
        results: Sequence[Result],
        arithmetic: frozenset[str],
        promises: frozenset[str],
        documented: frozenset[str] = frozenset(),
    ) -> Finding:
        """The verdict on one run; what a library documents under a name of `documented` is no fault."""
        found = self._judge(list(calls), list(results), arithmetic)
        if found.verdict == WRONG and found.name and found.name in documented:
            return found._replace(verdict=DIFFERS)
        if found.verdict == WRONG and self.promise and self.promise not in promises:
            return found._replace(verdict=NOT_PROMISED)
        if found.verdict == WRONG and self.profile == "edges" and not found.name and "contract" not in promises:
            return found._replace(verdict=DIFFERS, name="in a way that has no name here")
        if found.verdict == WRONG and self.profile == "edges" and "contract" not in promises:
            return found._replace(verdict=DIFFERS)
        return found

    def _judge(self, calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Finding:
        for result in results:
            if result.status == "crash" or (result.status == "error" and self.profile == "core"):
                return Finding(CRASHES, result.message)
            if result.status == "error":
                return Finding(DIFFERS, "ends in an error from within", None, result.message)
            if result.status == "refusal":
                if self.refusal or self.only_refusal:
                    return Finding(KEEPS, "", None, f"refused: {result.message}")
                return Finding(REFUSES, "", None, result.message)
        if self.relation is not None:
            shapes = (_misshapen(call, result) for call, result in zip(calls, results, strict=True))
            wrong = next(filter(None, shapes), None) or self.relation(calls, results, arithmetic)
            return Finding(KEEPS) if wrong is None else Finding(WRONG, wrong.fault, wrong)
        return self._answer(calls[0], results[0], arithmetic)

    def _answer(self, call: Call, result: Result, arithmetic: frozenset[str]) -> Finding:
        first: Mismatch | None = None
        truth: Right | None = None
        if not (self.only_refusal or call.unsaid):
            truth = right(call, arithmetic)
            first = differ(call, result, truth)
            if first is None:
                return Finding(KEEPS)
        else:
            first = Mismatch("output", (), 0.0, 0.0, 0.0, "an answer came where the call has to be refused")
        for reading in self.alternatives:
            answer = readings.answer(call, reading, arithmetic)
            # A reading under which the answer should be the right one explains no other, however wide its bound.
            if answer is None or (truth is not None and _equal(answer, truth)):
                continue
            if differ(call, result, answer) is None:
                return Finding(WRONG if reading.fault else DIFFERS, reading.name, first)
        if self.only_refusal or call.unsaid:
            return Finding(DIFFERS, "answered instead of refused", first)
        if first.part == "shape":
            return Finding(WRONG, first.note, first)
        for reading in faults():
            answer = readings.answer(call, reading, arithmetic)
            if answer is not None and differ(call, result, answer) is None:
                return Finding(WRONG, reading.name, first)
        return Finding(WRONG, "", first)


def _equal(answer: Right, truth: Right) -> bool:
    """Whether all numbers of an answer are within the bounds of the right one."""
    for name, (want, tolerance) in truth.parts.items():
        other = np.asarray(answer.parts[name][0]) if name in answer.parts else None
        if other is None or other.shape != np.shape(want) or agree(name, want, tolerance, other) is not None:
            return False
    return True


def _misshapen(call: Call, result: Result) -> Mismatch | None:
    """What a probe could not compare."""
    got, full = result.parts["output"].shape, _full_shape(call, "output")
    words = f"output has shape {got}, not {full}"
    return None if got == full else Mismatch("shape", (), 0.0, 0.0, 0.0, words, words)


def differ(call: Call, result: Result, answer: Right) -> Mismatch | None:
    """The first number of a result that is not what an answer says, or None."""
    for name, (want, tolerance) in answer.parts.items():
        asked = name == "output" or name in call.wants or (name in ("dq", "dk", "dv") and "grad" in call.wants)
        if not asked:
            continue
        if name not in result.parts:
            return Mismatch("shape", (), 0.0, 0.0, 0.0, f"{name} is missing")
        got = result.parts[name]
        full = _full_shape(call, name)
        if got.shape != full:
            return Mismatch("shape", (), 0.0, 0.0, 0.0, f"{name} has shape {got.shape}, not {full}")
        if call.rows is not None and name not in ("dk", "dv"):
            got = got[:, :, call.judged]
        found = agree(name, want, tolerance, got)
        if found is not None:
            at = found.at
            if call.rows is not None and len(at) > 2 and name not in ("dk", "dv"):
                at = (*at[:2], call.judged[at[2]], *at[3:])
            return found._replace(at=at)
    return None


def agree(part: str, want: Any, tolerance: Any, got: Array) -> Mismatch | None:
    """The first number further from the wanted one than allowed; NaN is like NaN and like nothing else."""
    want, tolerance = np.broadcast_to(want, got.shape), np.broadcast_to(tolerance, got.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.isfinite(got) & (np.abs(got - want) <= tolerance)
        fine = np.where(np.isfinite(want), close, (got == want) | (np.isnan(got) & np.isnan(want)))
    if fine.all():
        return None
    at = tuple(int(i) for i in np.unravel_index(int((~fine).argmax()), fine.shape))
    return Mismatch(part, at, float(want[at]), float(got[at]), float(tolerance[at]))


def _full_shape(call: Call, name: str) -> tuple[int, ...]:
    B, H, G, L, S, D, E = call.sizes
    shapes: dict[str, tuple[int, ...]] = {
        "output": (B, H, L, E),
        "lse": (B, H, L),
        "weights": (B, H, L, S),
        "dq": (B, H, L, D),
        "dk": (B, G, S, D),
        "dv": (B, G, S, E),
    }
    return shapes[name]
