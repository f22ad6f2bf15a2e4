"""Several kernels at a time: their order, an interrupt, a fault of the audit itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qkv.audit import Choice, Report, Row
from qkv.audit import together as module
from qkv.audit.isolate import Child, StartError
from qkv.audit.targets import target_of
from qkv.audit.together import audit_together

CHOICE = Choice(profile="core", clauses=("A1", "A2"))


def test_reports_stand_in_the_order_of_their_kernels() -> None:
    """Whoever is done first, each with all of its rows."""
    reports: list[Report] = []
    told: list[Row] = []
    audit_together([target_of("qkv-numpy")] * 3, CHOICE, told=told.append, into=reports, workers=2)
    assert [(r.name, r.finished, len(r.rows)) for r in reports] == [("qkv-numpy", True, len(reports[0].rows))] * 3
    assert len(told) == 3 * len(reports[0].rows) > 0
    assert all(r.ok for r in reports)


def test_an_interrupt_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while children work: rows that are done stay, no row tells of the child that was killed."""

    class Interrupted(module.threading.Thread):  # type: ignore[name-defined,misc]
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            if known and not pressed:
                pressed.append(1)
                raise KeyboardInterrupt

    known: list[Row] = []
    pressed: list[int] = []
    started: list[str] = []
    ended = module.end_all

    def end_all() -> None:
        """As it is; then no worker may start another child, which would outlive the audit."""
        ended()
        try:
            started.append(str(Child({"adapter": "qkv-numpy"})))
        except StartError as problem:
            started.append(str(problem))

    monkeypatch.setattr(module, "end_all", end_all)
    monkeypatch.setattr(module.threading, "Thread", Interrupted)
    reports: list[Report] = []
    with pytest.raises(KeyboardInterrupt):
        audit_together(
            [target_of("qkv-numpy")] * 2, Choice(profile="strict"), told=known.append, into=reports, workers=2
        )
    assert known
    assert started == ["the audit is being ended"]
    Child({"adapter": "qkv-numpy"}).close()
    assert not all(r.finished for r in reports)
    assert not any(r.absent for r in reports)
    assert {row.verdict for r in reports for row in r.rows} <= {"keeps", "not promised", "cannot express"}


def test_a_kernel_that_was_starting_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C kills its child while it loads; that says nothing about its library."""

    def killed(target: Any, *arguments: Any, into: Report, **options: Any) -> Report:
        pressed.set()
        stopped.wait(600)
        into.absent = "killed by SIGKILL"
        return into

    class Interrupted(module.threading.Thread):  # type: ignore[name-defined,misc]
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            if pressed.is_set() and not stopped.is_set():
                raise KeyboardInterrupt

    pressed, stopped = threading.Event(), threading.Event()
    monkeypatch.setattr(module.threading, "Thread", Interrupted)
    monkeypatch.setattr(module, "audit", killed)
    monkeypatch.setattr(module, "end_all", stopped.set)
    reports: list[Report] = []
    with pytest.raises(KeyboardInterrupt):
        audit_together([target_of("qkv-numpy")] * 2, CHOICE, into=reports, workers=2)
    assert [r.absent for r in reports] == ["", ""]


def test_a_fault_of_the_audit_loses_one_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """G1: it is said, and counts as failed; the others are told."""
    real = module.audit

    def broken(target: Any, *arguments: Any, into: Report, **options: Any) -> Report:
        if into is reports[0]:
            raise ArithmeticError("planted")
        return real(target, *arguments, into=into, **options)

    reports: list[Report] = []
    monkeypatch.setattr(module, "audit", broken)
    audit_together([target_of("qkv-numpy")] * 2, CHOICE, into=reports, workers=2)
    assert "planted" in reports[0].notes[0]
    assert [r.ok for r in reports] == [False, True]
