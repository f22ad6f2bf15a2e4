"""The level with matrix tiles on processors without them: its tests in a process that carries the instructions out itself.

What is run is the code that is shipped; only the tile instructions, at which this processor stops, are done in software
(support/tiles.c). In which order a tile adds up is the processor's, so the laws are asked for more orders than one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.engines import native
from support import tiles

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

HERE = Path(__file__).parent
FILES = ("rows", "few", "faults", "definition", "answers", "pairs", "shares", "spans", "tiles")


def on_tiles(files: list[str], order: int, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest with test files at the level."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "support.under_tiles", "-p", "no:faulthandler"),
            *("-p", "no:cacheprovider", "--no-header", "-k", "v4-amx", *options, *(str(HERE / f) for f in files)),
        ],
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "QKV_TILES_ORDER": str(order)},
        capture_output=True,
        text=True,
        check=False,
    )


def run(files: list[str], order: int) -> tuple[int, int]:
    """(tests that passed, products of tiles) of a run that has to pass."""
    done = on_tiles(files, order)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed, products = re.search(r"(\d+) passed", done.stdout), re.search(r"tdpbf16ps (\d+)", done.stdout)
    assert passed, done.stdout
    assert products, done.stdout
    return int(passed[1]), int(products[1])


@pytest.fixture(scope="module", autouse=True)
def lacking():
    """Skips where there is nothing to stand in for, or no means to."""
    if "v4-amx" not in native._loaded().known_levels:
        pytest.skip("the compiler of this build knows no tile instructions")
    if "v4-amx" in native.levels():
        pytest.skip("the processor has tiles: every test of a level ran on them")
    if "v4-bf16" not in native.levels():
        pytest.skip("the level takes AVX-512 with bfloat16 besides")
    with tiles.emulated():
        pass


def test_every_test_of_a_level_passes_on_tiles():
    passed, products = run(
        [*(f"test_native_{name}.py" for name in FILES), "test_survey.py", "test_keep.py"], tiles.MANUAL
    )
    assert passed > 100
    assert products > 10_000


@pytest.mark.parametrize("order", [tiles.BACKWARDS, tiles.ONE_CHAIN])
def test_whatever_order_a_tile_adds_in(order):
    """Bounds (F2) and bits of a row (F3) rest on no order that a processor chose."""
    passed, products = run(["test_native_tiles.py"], order)
    assert passed > 10
    assert products > 10_000


def test_tiles_that_depend_on_their_sides_are_not_used():
    """Prefill and decoding have a product's sides the other way round: with such tiles they would differ (F3)."""
    done = on_tiles(["test_native_tiles.py"], tiles.LOPSIDED, "--collect-only")
    assert "no tests collected" in done.stdout, done.stdout[-2000:]
