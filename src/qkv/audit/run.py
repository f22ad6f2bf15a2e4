"""Audit one kernel: every case, lifted, asked, judged, and a counterexample made small."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import Call, Result
from .case import Case, Finding, Size
from .cases import EVERY_TYPE, all_cases, find
from .describe import describe
from .domain import CannotExpressError, lift
from .isolate import NOT_ASKED, Bench
from .profiles import PROFILES
from .shrink import shrink
from .tolerance import right
from .verdict import CANNOT, CRASHES, DIFFERS, KEEPS, VERDICTS, WRONG, Row

__all__ = ["Choice", "chosen", "run"]


@dataclass(frozen=True)
class Choice:
    """Which cases are run, and how.

    Attributes:
        profile: a name of `PROFILES`. clauses, case: only these. seed: only this one, instead of a few from 0.
        seeds: how many seeds at most; None: as many as a case asks for. dtypes: only these of the kernel's.
        deep: also every length 1…70 and around powers of two. shrinking: whether counterexamples are made small,
            effort: for so many seconds of a processor each.
    """

    profile: str = "strict"
    clauses: tuple[str, ...] = ()
    case: str = ""
    seed: int | None = None
    seeds: int | None = None
    dtypes: tuple[str, ...] = ()
    deep: bool = False
    shrinking: bool = True
    effort: float | None = None


def chosen(choice: Choice) -> list[Case]:
    """The cases of a choice."""
    if choice.case:
        return [find(choice.case)]
    runs = PROFILES[choice.profile].runs
    wanted = set(choice.clauses)
    return [c for c in all_cases() if c.profile in runs and (not wanted or wanted & set(c.clauses))]


#: (trials, seconds of a processor) that go into a counterexample; after a crash each trial may start a child anew.
_EFFORT = {WRONG: (150, 8.0), DIFFERS: (60, 2.0), CRASHES: (12, 20.0)}


def run(bench: Bench, choice: Choice, command: str, told: Callable[[Row], None] = lambda row: None) -> Iterator[Row]:
    """One row a case.

    Args:
        command: the words that call the audit again for this kernel, without case and seed.
    """
    for case in chosen(choice):
        row = _Run(bench, case, choice, command).row()
        told(row)
        yield row


def sizes_of(case: Case, deep: bool) -> list[Size]:
    """The sizes a case is run with."""
    if not (deep and case.deep):
        return list(case.sizes)
    lengths = [*range(1, 71), *(n for k in range(7, 12) for n in (2**k - 1, 2**k, 2**k + 1))]
    return [*case.sizes, *(Size(n, n) for n in lengths)]


class _Run:
    def __init__(self, bench: Bench, case: Case, choice: Choice, command: str) -> None:
        self.bench, self.case, self.choice, self.command = bench, case, choice, command
        self.domain = bench.domain
        self.documented = frozenset(name for at, name, _ in self.domain.documented if at == case.id)
        self.calls = 0
        self.seconds = self.busy = 0.0

    def row(self) -> Row:
        """The worst of all runs of the case."""
        case = self.case
        out = Row(case.id, case.clauses, case.title, case.profile, CANNOT)
        worst: tuple[Finding, Call, Size, str, int] | None = None
        reasons: list[str] = []
        for dtype in self._dtypes():
            for size in sizes_of(case, self.choice.deep):
                for seed in self._seeds():
                    try:
                        base = self._make(seed, size)
                        finding, _, _ = self._try(base, dtype)
                    except CannotExpressError as reason:
                        reasons.append(str(reason))
                        break
                    if worst is None or VERDICTS.index(finding.verdict) < VERDICTS.index(worst[0].verdict):
                        worst = finding, base, size, dtype, seed
                if worst is not None and worst[0].verdict in (CRASHES, WRONG):
                    break
        if worst is None:
            out.says = reasons[0] if reasons else "not for these types"
            return out
        finding, base, size, dtype, seed = worst
        out.verdict, out.name, out.dtype, out.seed = finding.verdict, finding.name, dtype, seed
        out.says = finding.says or (str(finding.mismatch) if finding.mismatch else "")
        out.reproduce = f"{self.command} --case {case.id} --dtype {dtype} --seed {seed}"
        if size not in case.sizes:
            out.says += f" (L = {size.L}, S = {size.S})"
            out.reproduce += " --deep"
        if finding.name.startswith(NOT_ASKED):
            return out
        if finding.verdict == CRASHES or (finding.mismatch is not None and finding.verdict != KEEPS):
            self._explain(out, finding, base, dtype)
        out.calls, out.seconds = self.calls, self.seconds
        return out

    def _work(self) -> float:
        """Seconds of a processor that went into the case, here and in the kernel."""
        return time.thread_time() + self.busy

    def _dtypes(self) -> list[str]:
        offered = [d for d in self.domain.dtypes if not self.choice.dtypes or d in self.choice.dtypes]
        if self.case.dtypes:
            return [d for d in offered if d in self.case.dtypes]
        every = self.case.id in EVERY_TYPE or self.choice.deep or self.choice.dtypes or self.choice.case
        return offered if every else offered[:1]

    def _seeds(self) -> range:
        if self.choice.seed is not None:
            return range(self.choice.seed, self.choice.seed + 1)
        return range(self.case.seeds if self.choice.seeds is None else self.choice.seeds)

    def _make(self, seed: int, size: Size) -> Call:
        return self.case.make(np.random.default_rng([seed, zlib.crc32(self.case.id.encode())]), size)

    def _try(self, base: Call, dtype: str) -> tuple[Finding, list[Call], list[Result]]:
        case, domain = self.case, self.domain
        if base.strides == "negative" and domain.arrays != "numpy":
            raise CannotExpressError(f"{domain.arrays} has no negative strides")
        if base.strides != "plain" and domain.arrays == "jax":
            raise CannotExpressError("jax arrays are contiguous")
        lifted = lift(base, domain, dtype, case.about)
        calls = [lift(c, domain, dtype) for c in case.calls(lifted)]
        results = []
        for call in calls:
            result = self.bench.ask(call)
            self.calls, self.seconds = self.calls + 1, self.seconds + result.seconds
            self.busy += result.busy
            results.append(result)
            if result.status != "answer":
                break
        return case.judge(calls, results, domain.arithmetic, domain.promises, self.documented), calls, results

    def _explain(self, row: Row, finding: Finding, base: Call, dtype: str) -> None:
        """The counterexample, made small."""
        at = finding.mismatch.at if finding.mismatch is not None else ()
        small = base
        if self.choice.shrinking and finding.verdict in (WRONG, DIFFERS, CRASHES):
            empty = _some_empty(base)

            def same(candidate: Call) -> bool:
                # A smaller input may not be about rows without keys where the larger one was not.
                if not empty and _some_empty(candidate):
                    return False
                try:
                    again, _, _ = self._try(candidate, dtype)
                except CannotExpressError:
                    return False
                return (again.verdict, again.name) == (finding.verdict, finding.name)

            trials, seconds = _EFFORT[finding.verdict]
            seconds = seconds if self.choice.effort is None else self.choice.effort
            trials = 0 if "no answer within" in finding.name else trials
            small = shrink(base, same, at, trials=trials, seconds=seconds, clock=self._work)
        again, calls, results = self._try(small, dtype)
        if (again.verdict, again.name) != (finding.verdict, finding.name):
            again, calls, results = self._try(base, dtype)
        call = calls[0]
        row.example, row.numbers = describe(call)
        found = again.mismatch or finding.mismatch
        row.says = str(found) if found is not None else finding.says
        if found is not None and found.at and results and results[0].status == "answer":
            both = _answers(call, results[0], found.part, found.at, self.domain.arithmetic)
            # Of two calls that should mean the same, the first may be right.
            if len({line.partition(" ")[2] for line in both}) > 1:
                row.example += both


def _some_empty(call: Call) -> bool:
    try:
        reach, bias = call.allowed(), call.added()
    except (ValueError, IndexError):
        return False
    return not (reach if bias is None else reach & ~np.isneginf(bias)).any(-1).all()


def _answers(call: Call, result: Result, part: str, index: tuple[int, ...], arithmetic: frozenset[str]) -> list[str]:
    """Both answers in the first row that differs, at most four numbers each, the first that differs among them."""
    if call.unsaid or part not in result.parts:
        return []
    want = _definition(call, part, arithmetic)
    if want is None:
        return []
    at = index[:3] if part in ("output", "weights", "dq", "dk", "dv") else index[:2]
    judged = list(at)
    if call.rows is not None and len(at) > 2 and part in ("output", "weights", "dq"):
        judged[2] = call.judged.index(at[2])
    row = ", ".join(map(str, at))
    return [
        f"right {part}[{row}] = {_few(want[tuple(judged)], index[-1])}",
        f"found {part}[{row}] = {_few(result.parts[part][at], index[-1])}",
    ]


def _definition(call: Call, part: str, arithmetic: frozenset[str]) -> Any:
    """What the definition says of one part, or None."""
    try:
        parts = right(call, arithmetic).parts
    except (ValueError, KeyError):
        return None
    return parts[part][0] if part in parts else None


def _few(numbers: Any, column: int) -> str:
    flat = np.asarray(numbers).reshape(-1)
    start = 0 if column < 4 or flat.size <= 4 else column
    said = " ".join(f"{x:.6g}" for x in flat[start : start + 4].tolist())
    return f"[{'… ' if start else ''}{said}{' …' if flat.size > start + 4 else ''}]"
