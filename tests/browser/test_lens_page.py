"""The lens' HTML page in a real browser; its steps are in lens.mjs."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.lens.test_rows import layer

from qkv import lens
from qkv.lens import views

HERE = Path(__file__).parent


def names(file: str) -> list[str]:
    """The tests of a file of steps."""
    return re.findall(r'^  "([^"]+)": async', (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)


def drive(node: str, file: str, *words: str) -> dict[str, str | None]:
    """Test -> what went wrong, all in one browser."""
    command = [node, str(HERE / file), *words]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {one["name"]: one["error"] for one in map(json.loads, done.stdout.splitlines())}


def seen() -> lens.Capture:
    """Two layers of four heads over 23 tokens."""
    one = layer(size=23)
    tokens = [f" word{j}" if j % 5 else "\n" for j in range(23)]
    return lens.Capture((one, replace(one, index=1, name="next")), None, tuple(tokens), {"model": "made"})


def pictured(capture: lens.Capture) -> views.Picture:
    """With two exact rows."""
    return views.picture(capture, rows=[(1, 2, 20), (1, 3, 22)], command="qkv lens --model made")


@pytest.fixture(scope="module")
def told(node: str, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    picture = pictured(seen())
    folder = tmp_path_factory.mktemp("lens")
    (folder / "lens.html").write_text(views.to_html(picture), encoding="utf-8")
    row = picture.start.row.to_dict()
    found = next(m for m in picture.maps if (m.layer, m.head) == (1, 2))
    right = {"layer": 1, "tokens": 23, "map": found.cells.astype(float).tolist(), **row, "layer_name": row["layer"]}
    right["layer"] = 1
    (folder / "right.json").write_text(json.dumps(right), encoding="utf-8")
    return drive(node, "lens.mjs", str(folder / "lens.html"), chromium, str(folder / "right.json"))


@pytest.fixture(scope="module")
def told_served(node: str, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    capture = seen()
    rows = {
        f"{n}.{h}.{q}": lens.row(capture.layer(n), h, q).to_dict() for n in (0, 1) for h in range(4) for q in range(23)
    }
    right = tmp_path_factory.mktemp("served") / "right.json"
    right.write_text(json.dumps(rows), encoding="utf-8")
    server = views.Server(capture, pictured(capture))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        return drive(node, "lens_served.mjs", server.link, chromium, str(right))
    finally:
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", names("lens.mjs"))
def test_the_page_of_the_lens(name: str, told: dict[str, str | None]) -> None:
    """cells-unreachable, long-view, offline-view: every number by the keyboard, few nodes, no request, nothing axe knows."""
    assert told[name] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", names("lens_served.mjs"))
def test_the_page_that_is_served(name: str, told_served: dict[str, str | None]) -> None:
    """Any exact row of a capture, by the keyboard, from this server alone."""
    assert told_served[name] is None
