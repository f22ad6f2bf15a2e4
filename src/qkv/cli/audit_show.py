"""Reports of an audit in the terminal: the table, conventions, refusals, and what is wrong with its counterexamples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import draw

if TYPE_CHECKING:
    from qkv.audit.report import Report
    from qkv.audit.verdict import Row

__all__ = ["show"]

#: Columns of a terminal that are left for the marks of one table, each under the short name of a kernel.
_ROOM = 66


def show(reports: list[Report], interrupted: bool, one_case: bool) -> None:
    """Print all that people want to know first; `one_case`: no table, and the case whatever became of it."""
    from qkv.audit.report import cells, legend, tell
    from qkv.audit.verdict import CRASHES, WRONG

    # Of a kernel alone this is an error, and told as one.
    for report in reports if len(reports) > 1 else []:
        if report.absent:
            draw.text(f"{report.name} is left out: {report.absent}")
    present = [r for r in reports if r.rows]
    if not present:
        if interrupted:
            draw.text("interrupted before anything was known")
        return
    if not one_case:
        for some in _tables(present):
            draw.text()
            body = [(clause, *marks) for clause, marks in cells(some)]
            body.append(("reached", *(f"{r.reached:.0%}" for r in some)))
            draw.table(("clause", *(r.short or r.name[:7] for r in some)), body, left=(0,))
        draw.text()
        draw.text(legend(), indent=2)
        _conventions(present)
    for report in present:
        draw.heading(f"{report.name} {report.version}".rstrip() + ("" if report.finished else " (not finished)"))
        for note in report.notes:
            draw.text(note, indent=2)
        counted = "" if report.ok else f"{len(report.failures)} count as failed"
        draw.text(", ".join(filter(None, [_counts(report), counted])), indent=2)
        if not one_case:
            _refusals(report)
        bad = _alike(r for r in report.rows if one_case or r.verdict in (CRASHES, WRONG))
        for row, others in bad[:_MOST]:
            draw.text()
            draw.lines("\n".join(f"  {line}" for line in tell(row)))
            if others:
                draw.text(f"the same in {', '.join(others)}", indent=4)
        if len(bad) > _MOST:
            draw.text()
            rest = ", ".join(row.case for row, _ in bad[_MOST:])
            draw.text(f"and {len(bad) - _MOST} more, which --case, --json and --html show: {rest}", indent=2)
    if interrupted:
        draw.text()
        draw.text("interrupted: this is what was known so far")


def _alike(rows: Iterable[Row]) -> list[tuple[Row, list[str]]]:
    """One row for each fault that has a name, the one with the smallest input, and the other cases that show it."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.told if row.name else f"{row.told} {row.case}", []).append(row)
    out = []
    for some in groups.values():
        # Where nothing was asked there is no input.
        shown = min(some, key=lambda row: (not row.example, row.numbers))
        out.append((shown, [row.case for row in some if row is not shown]))
    return out


#: So many counterexamples are shown of one kernel: the first ones tell the most.
_MOST = 12

#: So many reasons of refusals are told of one kernel.
_REASONS = 6


def _refusals(report: Report) -> None:
    """Why calls were refused: each reason once, however its numbers differ."""
    from qkv.audit.profiles import PLAIN
    from qkv.audit.verdict import REFUSES

    reasons: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.verdict == REFUSES:
            reasons.setdefault(re.sub(r"-?\d+(\.\d+)?", "0", row.says), []).append(row)
    for number, some in enumerate(reasons.values()):
        cases = ", ".join(row.case for row in some[:4]) + (", …" if len(some) > 4 else "")
        if number < _REASONS:
            draw.text(f"refused ({cases}): {some[0].says}", indent=2)
    if len(reasons) > _REASONS:
        draw.text(f"and {len(reasons) - _REASONS} other reasons, which --json tells", indent=2)
    if any(row.case == PLAIN and row.verdict == REFUSES for row in report.rows):
        draw.text(
            "Plain attention was refused, so little is known. What the kernel is made for is said by --arrays, --layout, "
            "--dtype, --head-dims, --lengths and --contiguous.",
            indent=2,
        )


def _tables(reports: list[Report]) -> list[list[Report]]:
    """As many reports a table as fit."""
    out: list[list[Report]] = [[]]
    used = 0
    for report in reports:
        width = max(len(report.short or report.name[:7]), 4) + 2
        if out[-1] and used + width > _ROOM:
            out.append([])
            used = 0
        out[-1].append(report)
        used += width
    return out


def _counts(report: Report) -> str:
    from qkv.audit.verdict import VERDICTS

    counts = {v: sum(row.verdict == v for row in report.rows) for v in reversed(VERDICTS)}
    return ", ".join(f"{n} {v}" for v, n in counts.items() if n)


def _conventions(reports: list[Report]) -> None:
    """Which convention is whose, below the table."""
    whose: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        for name, cases in report.conventions().items():
            whose.setdefault(name, {})[report.short or report.name] = cases
    if not whose:
        return
    draw.heading("Conventions that differ")
    for name, libraries in sorted(whose.items(), key=lambda item: min(min(c) for c in item[1].values())):
        cases = sorted({c for found in libraries.values() for c in found})
        said = f"{name} ({', '.join(libraries)}): {', '.join(cases[:4])}{', …' if len(cases) > 4 else ''}"
        draw.text(said, indent=2)
