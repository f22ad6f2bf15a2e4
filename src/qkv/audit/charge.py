"""The time a process is charged: the wall clock less what it waited for a processor that others held.

A limit on the wall clock would call a right kernel endless on a busy machine. Linux tells how long each thread has waited
in the queue (field 2 of /proc/PID/task/TID/schedstat, in nanoseconds); where nothing tells, the wall clock counts.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

__all__ = ["Charge"]


class Charge:
    """What a process is charged from now on.

    Args:
        pid: of the process. limit: seconds after which `over` says so.
    """

    def __init__(self, pid: int, limit: float) -> None:
        self._pid, self._limit = pid, limit
        self._began, self._before = time.monotonic(), _waits(pid)

    @property
    def over(self) -> bool:
        """Whether the limit is reached, the longest wait of any one thread left out."""
        passed = time.monotonic() - self._began
        return passed > self._limit and passed - self._waited() > self._limit

    def _waited(self) -> float:
        return max((s - self._before.get(thread, 0.0) for thread, s in _waits(self._pid).items()), default=0.0)


def _waits(pid: int) -> dict[str, float]:
    """Thread -> seconds in the queue so far; nothing where the system does not tell."""
    out: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                out[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return out
