"""What a process is charged: no wait for a processor, and everything else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.audit import Choice, audit, charge
from qkv.audit.charge import Charge
from qkv.audit.targets import target_of


def test_a_wait_for_a_processor_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds on the clock: of the thread that waited longest, what is left counts, and earlier waits do not."""
    now, waits = [100.0], {"1": 50.0, "2": 0.0}
    monkeypatch.setattr(charge.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(charge, "_waits", lambda pid: dict(waits))
    made = Charge(1, 3.0)
    assert not made.over
    now[0] = 110.0
    assert made.over
    waits.update({"1": 52.0, "2": 7.5, "3": 1.0})
    assert not made.over
    now[0] = 111.0
    assert made.over


def test_where_nothing_tells_the_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such process, or a system without /proc."""
    now = [0.0]
    monkeypatch.setattr(charge.time, "monotonic", lambda: now[0])
    made = Charge(2**30, 3.0)
    assert charge._waits(2**30) == {}
    now[0] = 3.5
    assert made.over


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell who waited")
def test_the_system_tells_of_each_thread() -> None:
    """This one is among them."""
    waits = charge._waits(os.getpid())
    assert all(seconds >= 0 for seconds in waits.values())
    assert str(os.getpid()) in waits


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True: time.sleep(0.01)", "no answer within"),
        ("subprocess.Popen(['sleep', '600'])", "left neither answer.safetensors nor refusal.txt"),
        ("sys.stderr.write('x' * 30_000_000 + '\\nthe end\\n'); sys.exit(3)", "exit code 3: the end"),
    ],
    ids=["hangs", "leaves another process behind", "floods its error stream"],
)
def test_a_command_that_misbehaves_is_one_row(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the audit goes on: what the command started does not hold it up."""
    (tmp_path / "kernel.py").write_text(f"import subprocess, sys, time\n{body}\n")
    if "while" in body:
        monkeypatch.setattr("qkv.audit.command._START_SECONDS", 0.0)
    target = target_of(f"run:{sys.executable} {tmp_path / 'kernel.py'}", seconds=0.5 if "while" in body else 600.0)
    (row,) = audit(target, Choice(case="A1-values", seed=0, shrinking=False, dtypes=("float32",))).rows
    assert row.verdict == "crashes"
    assert said in row.name


def test_a_counterexample_does_not_depend_on_how_busy_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work ends the search for a smaller one, and waiting does not: with a clock that races ahead it is as small."""

    def twice(query: Any, key: Any, value: Any) -> Any:
        return 2 * np.broadcast_to(value.mean(2, keepdims=True), (*query.shape[:3], value.shape[3]))

    choice = Choice(case="A1-values", seed=0, dtypes=("float32",))
    quiet = audit(target_of(twice), choice, isolate=False).rows[0]
    racing = iter(range(0, 10**9, 100))
    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, name, lambda: float(next(racing)))
    busy = audit(target_of(twice), choice, isolate=False).rows[0]
    assert busy.example == quiet.example
    assert busy.calls == quiet.calls > 5
