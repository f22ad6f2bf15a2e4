"""The benchmark runs, judges everybody, and its page says what was measured. No time is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "bench.json"
    options = ["--dtype", "float32", "--peer", "numpy", "--seconds", "0.01", "--out", str(out)]
    return run("bench.py", "--shape", "small", *options), out


def test_a_race_is_printed_and_written(measured):
    done, out = measured
    assert done.returncode == 0, done.stderr
    assert "NumPy formula" in done.stdout
    assert "ceiling: a plain read" in done.stdout
    record = json.loads(out.read_text())
    assert {race["peer"] for race in record["races"]} == {"NumPy formula", "qkv, NumPy engine"}
    for race in record["races"]:
        assert race["low"] <= race["ratio"] <= race["high"]
        assert 0 < race["own_error"]["share"] <= 1
        assert race["useful"] == 4 * 64 * 8 * 32 * 32


def test_the_page_and_its_chart_say_the_same(measured, tmp_path):
    _, out = measured
    record = json.loads(out.read_text())
    record["races"].append({**record["races"][0], "peer": "vLLM", "ratio": 0.5, "low": 0.4, "high": 0.6})
    record["races"][-1]["error"] = {**record["races"][0]["error"], "share": 3.0}
    out = tmp_path / "bench.json"
    out.write_text(json.dumps(record))
    (tmp_path / "images").mkdir()
    done = run("page.py", str(out), "--docs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "performance.md").read_text()
    assert "| small 8 × 32², d64, float32 | vLLM † | **0.50** (0.40…0.60) |" in page
    (drawn,) = (tmp_path / "images").iterdir()
    texts = ["".join(text.itertext()) for text in ET.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"vLLM", "0.50", "small 8 × 32², d64, float32"} <= set(texts)
    assert f"images/{drawn.name}" in page


def test_a_wrong_name_is_one_sentence(tmp_path):
    done = run("bench.py", "--shape", "nothing like it")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no shape is called like that; there are: full 16 × 1024², d64, float32;")
    (tmp_path / "a.json").write_text("{")
    done = run("page.py", str(tmp_path / "a.json"), "--docs", str(tmp_path))
    assert done.returncode == 2
    assert "is not what bench.py writes" in done.stderr
    assert "Traceback" not in done.stderr


def test_masks_of_shapes_are_those_that_qkv_is_given():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import numpy as np

        import qkv
        from shapes import Shape

        shapes = [
            Shape("causal", 1, 1, 1, 9, 9, 4, causal=True),
            Shape("window", 1, 1, 1, 9, 9, 4, causal=True, window=3),
            Shape("ragged", 3, 1, 1, 9, 9, 4, lengths=(1, 5, 9)),
        ]
        for shape in shapes:
            dense = np.stack([shape.allowed(b, np.arange(9)) for b in range(shape.batch)])
            if shape.lengths:  # a padded row reads nothing in qkv, and is not looked at elsewhere
                dense &= (np.arange(9) < np.array(shape.lengths)[:, None])[:, :, None]
            zero = np.zeros((shape.batch, 1, 9, 4), np.float32)
            answer = qkv.attention(zero, zero, zero, mask=shape.mask(), empty="zero")
            assert ((answer.weights(queries=np.arange(9))[:, 0] > 0) == dense).all()
            rows = sum(int(dense[b, : shape.rows(b)].sum()) for b in range(shape.batch))
            assert shape.pairs == rows
        packed = Shape("packed", 1, 1, 1, 6, 6, 4, documents=(2, 4))
        assert packed.offsets == (0, 2, 6)
        assert packed.pairs == 3 + 10
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("only", [[], ["--maps"]])
def test_the_cost_of_a_layer_is_told(only):
    done = run("lens.py", "--tokens", "70", "--heads", "4", "--groups", "2", "--width", "8", *only)
    assert done.returncode == 0, done.stderr
    assert ("maps: " if only else "MiB are kept") in done.stdout
