"""Several kernels at a time: each has a child of its own, so as many run as there are processors."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence

from .adapters import ADAPTERS
from .isolate import begin, end_all
from .report import Report
from .run import Choice
from .targets import Target, audit
from .verdict import Row

__all__ = ["audit_together"]


#: Seconds that an interrupted worker has to end.
_LAST_WORDS = 30.0


class _StopError(Exception):
    """Ends a worker once the audit is interrupted."""


def audit_together(
    targets: Sequence[Target],
    choice: Choice,
    *,
    isolate: bool = True,
    told: Callable[[Row], None] = lambda row: None,
    into: list[Report],
    workers: int | None = None,
) -> None:
    """Audit all targets. What is known is in `into` all along, in their order, also after a KeyboardInterrupt.

    Args:
        isolate: without it all run in this process, one after the other. workers: how many at a time.
    """
    into += [Report(t.name, choice.profile, short=t.short) for t in targets]
    todo = sorted(zip(targets, into, strict=True), key=lambda pair: not _heavy(pair[0]))
    count = min(workers or os.cpu_count() or 1, len(todo))
    if count < 2 or not isolate:
        for target, report in zip(targets, into, strict=True):
            audit(target, choice, isolate=isolate, told=told, into=report)
        return
    waiting, lock, stop = iter(todo), threading.Lock(), threading.Event()

    def tell(row: Row) -> None:
        # Before the row is kept: what an interrupted call gave is nothing.
        if stop.is_set():
            raise _StopError
        told(row)

    def work() -> None:
        while not stop.is_set():
            with lock:
                pair = next(waiting, None)
            if pair is None:
                return
            target, report = pair
            try:
                audit(target, choice, told=tell, into=report)
                if stop.is_set() and not report.finished:
                    # Its child was killed while it started; nothing is known of it.
                    report.absent = ""
            except _StopError:
                return
            except Exception as problem:
                # What is known of the other kernels is worth more than a traceback.
                if os.environ.get("QKV_TRACEBACK"):
                    traceback.print_exc()
                words = " ".join(str(problem).split())
                report.fault = f"{type(problem).__name__} {words}".rstrip()
                report.notes.append(f"the audit itself broke after {len(report.rows)} cases: {report.fault}")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            # An endless join would not see Ctrl-C everywhere.
            while thread.is_alive():
                thread.join(0.2)
    except KeyboardInterrupt:
        stop.set()
        end_all()
        # Their children are dead, so they end at once, unless the machine is busy; nobody writes while others read.
        for thread in threads:
            thread.join(_LAST_WORDS)
        begin()
        raise


def _heavy(target: Target) -> bool:
    """Begun first, so that it does not run alone at the end."""
    return target.name in ADAPTERS and ADAPTERS[target.name].heavy
