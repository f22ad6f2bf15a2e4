"""From one library to another: what changes meaning, case by case, from their audits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .report import Report
from .verdict import CANNOT, CRASHES, DIFFERS, KEEPS, NOT_PROMISED, REFUSES, WRONG, Row

__all__ = ["Change", "changes", "counts", "tell_changes", "verdicts"]

#: Kinds of a change, the most dangerous first, and what they are called.
KINDS = {
    "meaning": "Another answer to the same call",
    "lost": "Can no longer be said",
    "refused": "Now refused",
    "answered": "Was refused, is answered now",
    "gained": "Can be said now",
}


@dataclass(frozen=True)
class Change:
    """One case that two libraries treat differently.

    Attributes:
        kind: a name of `KINDS`. case, clauses, title: the case's. before, after: what each library does, in words.
    """

    kind: str
    case: str
    clauses: tuple[str, ...]
    title: str
    before: str
    after: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def changes(before: Report, after: Report) -> list[Change]:
    """What changes meaning on the way from one library to the other, the most dangerous first."""
    old, new = ({row.case: row for row in report.rows} for report in (before, after))
    found = []
    for case, row in old.items():
        if case not in new or _said(row) == _said(new[case]):
            continue
        kind = _kind(row, new[case])
        found.append(Change(kind, case, row.clauses, row.title, _said(row), _said(new[case])))
    return sorted(found, key=lambda c: list(KINDS).index(c.kind))


def _said(row: Row) -> str:
    """What a library does, in words that need no table of marks."""
    if row.verdict == KEEPS:
        return "refused, with an error" if row.says.startswith("refused: ") else "as the contract says"
    if row.verdict in (DIFFERS, WRONG, NOT_PROMISED):
        plain = "as the contract does not say" if row.verdict == DIFFERS else row.verdict
        return row.name or plain
    if row.verdict == REFUSES:
        return "refused, with an error"
    return "cannot be said" if row.verdict == CANNOT else f"crashes: {row.name}"


def _kind(before: Row, after: Row) -> str:
    old, new = (
        "none"
        if row.verdict == CANNOT
        else "refused"
        if "refused" in _said(row) or row.verdict == CRASHES
        else "answer"
        for row in (before, after)
    )
    if new == "none":
        return "lost"
    if old == "none":
        return "gained"
    if new == "refused":
        return "refused"
    return "answered" if old == "refused" else "meaning"


def tell_changes(before: Report, after: Report) -> list[str]:
    """Lines for people: one paragraph a kind, one line a case."""
    found = changes(before, after)
    lines = [f"From {before.name} {before.version} to {after.name} {after.version}".rstrip()]
    for kind, title in KINDS.items():
        some = [c for c in found if c.kind == kind]
        if not some:
            continue
        lines += ["", f"{title} ({len(some)})"]
        for said, group in _grouped(some):
            cases = ", ".join(c.case for c in group)
            lines.append(f"  {said[0]} → {said[1]}: {cases}")
    if not found:
        lines += ["", "Nothing changes meaning in the cases that both were asked."]
    return lines


def _grouped(found: Sequence[Change]) -> list[tuple[tuple[str, str], list[Change]]]:
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in found:
        groups.setdefault((change.before, change.after), []).append(change)
    return list(groups.items())


def counts(reports: Sequence[Report]) -> list[list[int]]:
    """How many cases get another answer on the way from each report (row) to each other one (column)."""
    return [[sum(c.kind == "meaning" for c in changes(a, b)) for b in reports] for a in reports]


def verdicts(reports: Iterable[Report]) -> dict[str, Any]:
    """A small table for others to show: case -> its title and clauses, and what is done -> the libraries that do it."""
    out: dict[str, Any] = {}
    for report in reports:
        for row in report.rows:
            if row.verdict == CANNOT or row.profile == "generated":
                continue
            case = out.setdefault(row.case, {"title": row.title, "clauses": list(row.clauses), "does": {}})
            case["does"].setdefault(_said(row), []).append(report.name)
    return out
