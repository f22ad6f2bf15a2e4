"""A kernel in Triton is audited like any other, under Triton's interpreter, where triton installs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from qkv.audit import Choice
from qkv.audit.run import run
from qkv.audit.targets import target_of
from support.libraries import library

KERNEL = Path(__file__).with_name("triton_kernel.py")


def told(function: str, accepts: str, cases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Case -> verdict, in one child."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    library("torch")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    target = target_of(f"{KERNEL}:{function}", accepts, arrays="torch", widths=(8, 16, 32), longest=64)
    bench, _, _ = target.start(isolate=True)
    try:
        rows = [next(run(bench, Choice(case=case, seed=0, effort=2.0), target.command)) for case in cases]
    finally:
        bench.close()
    return {row.case: row for row in rows}


def test_a_triton_kernel_keeps_what_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2, B5, C1, C2, C5: widths that are powers of two are reached by lifting."""
    cases = ("A1-values", "A1-value-width", "A2-grouped", "B5-causal", "C1-large-scores", "C5-lse", "A3-no-keys-lse")
    found = told("attention", "causal,gqa,lse", cases, monkeypatch)
    assert {case: row.told for case, row in found.items()} == dict.fromkeys(cases, "keeps")


def test_a_fault_in_a_triton_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: one key of the future, in few numbers."""
    found = told("attention_that_looks_ahead", "causal", ("B5-causal",), monkeypatch)
    assert found["B5-causal"].told == "wrong: causal reads one key of the future"
    assert found["B5-causal"].numbers <= 64
