"""The lens' HTML page in a real browser; its steps are in lens.mjs."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.lens.test_rows import layer

from qkv import lens
from qkv.lens import views

HERE = Path(__file__).parent
NAMES = re.findall(r'^  "([^"]+)": async', (HERE / "lens.mjs").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def told(node: str, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Test -> what went wrong, all in one browser."""
    one = layer(size=23)
    tokens = [f" word{j}" if j % 5 else "\n" for j in range(23)]
    seen = lens.Capture((one, replace(one, index=1, name="next")), None, tuple(tokens), {"model": "made"})
    picture = views.picture(seen, rows=[(1, 2, 20), (1, 3, 22)], command="qkv lens --model made")
    folder = tmp_path_factory.mktemp("lens")
    (folder / "lens.html").write_text(views.to_html(picture), encoding="utf-8")
    row = picture.start.row.to_dict()
    found = next(m for m in picture.maps if (m.layer, m.head) == (1, 2))
    right = {"layer": 1, "tokens": 23, "map": found.cells.astype(float).tolist(), **row, "layer_name": row["layer"]}
    right["layer"] = 1
    (folder / "right.json").write_text(json.dumps(right), encoding="utf-8")
    command = [node, str(HERE / "lens.mjs"), str(folder / "lens.html"), chromium, str(folder / "right.json")]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {one["name"]: one["error"] for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_the_lens(name: str, told: dict[str, str | None]) -> None:
    """cells-unreachable, long-view, offline-view: every number by the keyboard, few nodes, no request, nothing axe knows."""
    assert told[name] is None
