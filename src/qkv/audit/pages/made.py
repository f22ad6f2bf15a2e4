"""When and with what reports were made, and reports as one JSON document, there and back."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qkv.errors import FileError
from qkv.version import __version__

from ..cases import CLAUSES
from ..report import Report
from ..verdict import VERDICTS, Row

__all__ = ["Made", "made_now", "read_reports", "record"]


@dataclass(frozen=True)
class Made:
    """The circumstances of an audit; `command` is what was called, without where the reports go."""

    command: str
    date: str
    qkv: str
    python: str
    numpy: str
    system: str

    def __str__(self) -> str:
        return f"{self.date}, qkv {self.qkv}, Python {self.python}, NumPy {self.numpy}, {self.system}"


def made_now(command: str) -> Made:
    """Those of this process."""
    return Made(
        command,
        datetime.date.today().isoformat(),
        __version__,
        platform.python_version(),
        np.__version__,
        f"{platform.system()} {platform.machine()}",
    )


def record(reports: Iterable[Report], made: Made, interrupted: bool = False) -> dict[str, Any]:
    """Plain data of reports."""
    return {"made": asdict(made), "interrupted": interrupted, "reports": [r.to_dict() for r in reports]}


def read_reports(data: Any) -> tuple[list[Report], Made]:
    """Reports from what `record` gave.

    Raises:
        FileError: it is something else.
    """
    try:
        made = Made(**data["made"])
        reports = []
        for one in data["reports"]:
            rows = [Row(**{**row, "clauses": tuple(row["clauses"])}) for row in one["rows"]]
            if any(row.verdict not in VERDICTS for row in rows):
                raise ValueError("unknown verdict")
            if any(clause not in CLAUSES for row in rows for clause in row.clauses):
                raise ValueError("unknown clause")
            fields = {n: one[n] for n in ("name", "profile", "version", "notes", "finished", "absent")}
            reports.append(Report(**fields, short=one.get("short", ""), rows=rows))
    except (KeyError, TypeError, ValueError) as problem:
        raise FileError(f"this is not what qkv audit --json writes: {type(problem).__name__} {problem}") from None
    return reports, made
