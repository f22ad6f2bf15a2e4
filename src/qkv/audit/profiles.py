"""What counts: which cases a profile runs, and which verdicts make the exit code 1.

core       finite inputs, masks, tails, strides, groups, log-sum-exp, leaks of finite values, gradients
edges      core, and empty rows, alignment, windows, non-finite input: mostly other conventions, told by name
strict     edges, and NaN isolation and bit invariance: not promised where the library does not promise them
generated  for kernels written by programs: core and edges, and what only a program would do; refusing an input of the
           declared domain counts as well, since a kernel that refuses everything breaks no clause

In each of them refusing plain attention counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from .verdict import CRASHES, REFUSES, WRONG, Row

__all__ = ["PLAIN", "PROFILES", "Profile"]

#: Plain attention. A kernel that refuses it was not asked rightly, and nothing else is worth much then.
PLAIN = "A1-values"


@dataclass(frozen=True)
class Profile:
    """What one profile runs and what fails.

    Attributes:
        runs: profiles whose cases are run. fails: verdicts that fail. refusals: whether refusing a core case fails.
    """

    name: str
    runs: tuple[str, ...]
    fails: tuple[str, ...] = (CRASHES, WRONG)
    refusals: bool = False

    def failed(self, row: Row) -> bool:
        """Whether a row makes the audit fail."""
        refused = row.verdict == REFUSES and row.profile == "core" and (self.refusals or row.case == PLAIN)
        return row.verdict in self.fails or refused


PROFILES = {
    "core": Profile("core", ("core",)),
    "edges": Profile("edges", ("core", "edges")),
    "strict": Profile("strict", ("core", "edges", "strict")),
    "generated": Profile("generated", ("core", "edges", "generated"), refusals=True),
}
