"""Two functions timed in pairs, and how much memory one takes.

Machines are shared and drift by tens of percent within minutes, so a time alone says little. Every peer is timed in
pairs with qkv, one right after the other in one process and in alternating order; what is reported is the median of
the pairs' ratios and the middle half of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Run = Callable[[], Any]

GAP = 0.1  # seconds after a library whose threads spin on for a while
FEWEST, MOST = 3, 200  # pairs
PATIENCE = 4  # times the seconds asked for, after which fewer pairs have to do
SHORT = 1e-3  # seconds; a call below is timed in bursts


@dataclass(frozen=True)
class Times:
    """Medians in seconds, and the ratio of the pairs: time of the peer over time of qkv.

    Attributes:
        low, high: the middle half of the ratios.
        interrupted: involuntary context switches meanwhile; many say that the machine was busy.
    """

    pairs: int
    own_time: float
    peer_time: float
    ratio: float
    low: float
    high: float
    interrupted: int


def race(own: Run, peer: Run, seconds: float) -> Times:
    """Time two functions in pairs for about that long."""
    own(), peer()
    bursts = [1 if (took := _timed(run, 1, 0.0)) > SHORT else min(50, 1 + int(SHORT / took)) for run in (own, peer)]
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while (
        not pairs
        or (spent := time.perf_counter() - start) < seconds
        or (len(pairs) < FEWEST and spent < PATIENCE * seconds)
    ):
        if len(pairs) == MOST:
            break
        # Whoever comes second finds warmer caches or a busier machine, so they take turns.
        if len(pairs) % 2 == 0:
            first = _timed(own, bursts[0])
            pairs.append((first, _timed(peer, bursts[1])))
        else:
            first = _timed(peer, bursts[1])
            pairs.append((_timed(own, bursts[0]), first))
    ratios = sorted(b / a for a, b in pairs)
    own_time, peer_time = (statistics.median(column) for column in zip(*pairs, strict=True))
    quarter = len(ratios) // 4
    return Times(
        len(pairs), own_time, peer_time, statistics.median(ratios), ratios[quarter], ratios[-1 - quarter],
        resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches,
    )  # fmt: skip


def _timed(run: Run, calls: int, gap: float = GAP) -> float:
    time.sleep(gap)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def extra_memory(run: Run) -> int | None:
    """Bytes that a call takes beyond what was there before and beyond its result; None where Linux cannot be asked.

    A first call also pays for what a library sets up once, and an allocator that kept memory hides what a later one takes;
    so ask before anything else, and know that the first makes it larger rather than smaller.
    """
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    with contextlib.suppress(OSError):
        gc.collect()
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        reset.write_text("5")  # the peak starts again from what is resident now
        before = _field(status, "VmRSS")
        result = run()
        peak = _field(status, "VmHWM")
        size = getattr(result, "nbytes", 0)
        return max(0, peak - before - int(size))
    return None


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
