"""What an audit found: rows, clauses, conventions, and whether it counts as failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .cases import CLAUSES
from .profiles import PROFILES
from .verdict import CANNOT, CRASHES, DIFFERS, KEEPS, MARKS, NOT_PROMISED, REFUSES, VERDICTS, WRONG, Row

__all__ = ["Report", "cells", "legend", "reached"]


@dataclass
class Report:
    """The audit of one kernel.

    Attributes:
        name, version, short: of the kernel. profile: what was run. rows: one a case, so far.
        notes: what else is to be known, such as that it ran in this process. finished: whether all cases were run.
        absent: why nothing was run, "" otherwise. fault: where the audit itself broke, "" otherwise.
    """

    name: str
    profile: str
    version: str = ""
    short: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finished: bool = False
    absent: str = ""
    fault: str = ""

    def clause(self, clause: str) -> str:
        """The verdict of one clause: the most telling one of its cases; "" where none was run."""
        found = {row.verdict for row in self.rows if clause in row.clauses}
        # A clause that is kept wherever it can be said is kept, and refusing one spelling of it is not.
        return next((v for v in VERDICTS if v in found), "")

    @property
    def reached(self) -> float:
        """Share of the clauses that some case could be said about."""
        return reached(self.rows)

    @property
    def failures(self) -> list[Row]:
        """Rows that fail the profile."""
        profile = PROFILES[self.profile]
        return [row for row in self.rows if profile.failed(row)]

    @property
    def ok(self) -> bool:
        """Whether nothing that counts is broken."""
        return not self.failures and not self.absent and not self.fault

    def conventions(self) -> dict[str, list[str]]:
        """Name of a convention -> the cases that show it."""
        out: dict[str, list[str]] = {}
        for row in self.rows:
            if row.verdict == DIFFERS:
                out.setdefault(row.name, []).append(row.case)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "short": self.short,
            "version": self.version,
            "profile": self.profile,
            "finished": self.finished,
            "absent": self.absent,
            "notes": self.notes,
            "reached": round(self.reached, 4),
            "clauses": {c: self.clause(c) for c in CLAUSES if self.clause(c)},
            "failed": [row.case for row in self.failures],
            "rows": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.name} {self.version}".rstrip()
            + f": {len(self.rows)} cases, {self.reached:.0%} of the clauses reached"
        ]
        lines += [f"  {n}" for n in self.notes]
        counts = {v: sum(row.verdict == v for row in self.rows) for v in VERDICTS}
        lines.append("  " + ", ".join(f"{n} {v}" for v, n in counts.items() if n))
        for row in self.rows:
            if row.verdict in (CRASHES, WRONG):
                lines += ["", *tell(row)]
        return "\n".join(lines)


def tell(row: Row) -> list[str]:
    """A row with its counterexample, for people."""
    lines = [f"{row.case} ({', '.join(row.clauses)}) {row.title}", f"  {row.told}"]
    if row.says and row.says != row.name:
        lines.append(f"  {row.says}")
    lines += [f"    {line}" for line in row.example]
    if row.reproduce:
        lines.append(f"  {row.reproduce}")
    return lines


def reached(rows: list[Row]) -> float:
    """Share of the clauses with a case that could be said."""
    seen = {clause for row in rows if row.verdict != CANNOT for clause in row.clauses}
    return len(seen & set(CLAUSES)) / len(CLAUSES)


def cells(reports: list[Report]) -> list[tuple[str, list[str]]]:
    """(clause, one mark a report) for each clause that was asked about."""
    asked = [clause for clause in CLAUSES if any(report.clause(clause) for report in reports)]
    return [(clause, [MARKS.get(report.clause(clause), " ") for report in reports]) for clause in asked]


def legend() -> str:
    """What the marks mean."""
    words = (KEEPS, DIFFERS, WRONG, REFUSES, CRASHES, NOT_PROMISED, CANNOT)
    return "  ".join(f"{MARKS[v]} {v}" for v in words)
