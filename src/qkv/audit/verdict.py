"""What is found out about one case: the seven verdicts, and the row a report shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "CANNOT",
    "CRASHES",
    "DIFFERS",
    "KEEPS",
    "MARKS",
    "NOT_PROMISED",
    "REFUSES",
    "VERDICTS",
    "WRONG",
    "Mismatch",
    "Row",
]

KEEPS, DIFFERS, WRONG, REFUSES = "keeps", "differs", "wrong", "refuses"
CANNOT, CRASHES, NOT_PROMISED = "cannot express", "crashes", "not promised"

#: From the worst to the least telling: the first one that occurs is the verdict of a clause.
VERDICTS = (CRASHES, WRONG, DIFFERS, REFUSES, NOT_PROMISED, KEEPS, CANNOT)

#: One mark a verdict, for a table.
MARKS = {KEEPS: "✓", DIFFERS: "≠", WRONG: "✗", REFUSES: "R", CANNOT: "·", CRASHES: "!", NOT_PROMISED: "~"}


class Mismatch(NamedTuple):
    """The first number that is not what it should be.

    Attributes:
        part: "output", "lse", "weights", "dq", … at: (batch, head, row, …) in canonical axes.
        want, got, tolerance: numbers. note: what else is to be said. fault: its name, where it has one.
    """

    part: str
    at: tuple[int, ...]
    want: float
    got: float
    tolerance: float
    note: str = ""
    fault: str = ""

    def __str__(self) -> str:
        where = f"{self.part}[{', '.join(map(str, self.at))}]" if self.at else self.part
        said = f"{where} is {self.got:.6g}, should be {self.want:.6g} ± {self.tolerance:.2g}" if self.at else where
        return f"{said}; {self.note}" if self.note and self.at else self.note or said


@dataclass
class Row:
    """One case of one kernel.

    Attributes:
        case: id. clauses, title, profile: the case's. verdict: one of `VERDICTS`.
        name: of the convention or the fault, "" where it has none. says: one sentence on what was seen.
        example: the smallest input found, both answers, in words and ≤ 64 numbers. numbers: how many.
        dtype, seed, reproduce: what it takes to see it again. calls: how often the kernel was asked. seconds: for how long.
    """

    case: str
    clauses: tuple[str, ...]
    title: str
    profile: str
    verdict: str
    name: str = ""
    says: str = ""
    example: list[str] = field(default_factory=list)
    numbers: int = 0
    dtype: str = ""
    seed: int = 0
    reproduce: str = ""
    calls: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def told(self) -> str:
        """The verdict with its name: `differs: log-sum-exp in base 2`."""
        return f"{self.verdict}: {self.name}" if self.name else self.verdict
