"""Kernels of libraries, each where its library is installed: some cases whose answer the library documents."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.audit import Choice
from qkv.audit.adapters import ADAPTERS
from qkv.audit.isolate import StartError
from qkv.audit.run import run
from qkv.audit.targets import audit, target_of
from support.libraries import library

START = "differs: the queries stand at the start of the keys"
END = "differs: the queries stand at the end of the keys"
ZERO, CANNOT = "keeps", "cannot express"
NAN = "differs: a row without keys is NaN"
MEAN = "differs: a row without keys is the mean of every V, forbidden ones included"

#: Adapter -> what it says of causal with L != S (B6) and of a row that may read nothing (C2).
SAID = {
    "torch-sdpa": (START, ZERO),
    "torch-sdpa-math": (START, ZERO),
    "torch-sdpa-flash": (START, ZERO),
    "torch-mha": (CANNOT, ZERO),
    "torch-mha-weights": (CANNOT, NAN),
    "torch-flex": (CANNOT, ZERO),
    "jax": (START, MEAN),
    "keras-torch": (START, MEAN),
    "keras-jax": (START, MEAN),
    "keras-layer-torch": (START, MEAN),
    "keras-layer-jax": (START, MEAN),
    "transformers-eager": (CANNOT, MEAN),
    "transformers-sdpa": (START, ZERO),
    "onnx": (START, ZERO),
    "onnxruntime": (START, ZERO),
    "mlx": (END, MEAN),
    "openvino": (START, NAN),
    "qkv-native": ("keeps", ZERO),
    "qkv-numpy": ("keeps", ZERO),
}


def test_every_adapter_is_tested() -> None:
    """Those that compile for minutes are tried by hand."""
    assert set(SAID) == {name for name, adapter in ADAPTERS.items() if not adapter.slow}
    assert len({adapter.short for adapter in ADAPTERS.values()}) == len(ADAPTERS)
    assert max(len(adapter.short) for adapter in ADAPTERS.values()) <= 7


@pytest.mark.parametrize("name", SAID)
def test_an_adapter_asks_its_library_rightly(name: str) -> None:
    """A1, B4: plain and masked attention is right; B6, C2: what the library means by an edge is called by its name."""
    for package in ADAPTERS[name].needs:
        if importlib.util.find_spec(package) is None:
            library(package)
    try:
        bench, version, _ = target_of(name).start(isolate=True)
    except StartError as problem:
        if "native" in name:
            pytest.skip(str(problem))
        raise
    try:
        told: dict[str, Any] = {}
        for case in ("A1-values", "B4-keys", "B6-long", "C2-mask"):
            choice = Choice(case=case, seed=0, dtypes=("float32",), shrinking=False)
            told[case] = next(run(bench, choice, "")).told
    finally:
        bench.close()
    assert version
    assert told == {"A1-values": "keeps", "B4-keys": "keeps", "B6-long": SAID[name][0], "C2-mask": SAID[name][1]}


def test_an_absent_library_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """G2: its name and what is missing, in a child and here."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ModuleNotFoundError('No module named mlx', name='mlx')")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        assert audit(target_of("mlx"), Choice(case="A1-values")).absent == "mlx is not installed"
    from qkv.audit import adapters

    absent = adapters.Adapter("mlx_fast", ("mlx",), "absent")
    monkeypatch.setitem(adapters.ADAPTERS, "absent", absent)
    monkeypatch.setitem(sys.modules, "mlx", None)
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    report = audit(target_of("absent"), Choice(case="A1-values"), isolate=False)
    assert "mlx" in report.absent
    assert report.rows == []
    assert "\n" not in report.absent
