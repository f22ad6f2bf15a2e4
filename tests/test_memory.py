"""8,192 × 8,192 under a window takes a few megabytes and 3 % of the work (B5: nothing of size L × S is built)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qkv
from support import peak

ALLOWANCE = 64 * 10**6  # bytes, what was promised


def test_b5_a_long_window_takes_little_memory(engine: str) -> None:
    pytest.importorskip("resource")
    source = Path(qkv.__file__).parents[1]
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(tests)]), "QKV_NUM_THREADS": "4"}
    found = subprocess.run(
        [sys.executable, peak.__file__], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    extra, used = found.stdout.split()
    assert used == engine
    assert int(extra) < ALLOWANCE, f"{int(extra) / 1e6:.0f} MB beyond inputs and result"


def test_g1_explain_says_how_little_of_it_is_touched(engine: str) -> None:
    x = np.broadcast_to(np.float32(0), (peak.HEADS, peak.LENGTH, peak.WIDTH))
    found = qkv.explain(x, x, x, mask=qkv.causal() & qkv.window(255, 0))
    assert found.pairs is not None
    rows = np.arange(peak.LENGTH)
    assert found.pairs == np.minimum(rows + 1, 256).sum() / peak.LENGTH**2
    assert f"{found.pairs:.1%}" == "3.1%"
    assert "3.1 % of the pairs" in str(found)
    assert 1000 * found.tiles_touched <= 65 * found.tiles
    assert found.scratch < ALLOWANCE
