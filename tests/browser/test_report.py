"""The audit's HTML page in a real browser; its steps are in report.mjs."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from qkv.audit import Report, Row
from qkv.audit.pages import Made, to_html

HERE = Path(__file__).parent
NAMES = re.findall(r'^  "([^"]+)": async', (HERE / "report.mjs").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def told(node: str, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Test -> what went wrong, all in one browser."""
    wrong = Row(
        "C2-mask", ("C2",), "</script> & <b>", "edges", "wrong", "the name | of it", "output[0, 0, 0, 0] is 1",
        ["B=1 H=1", "right output[0, 0, 0] = [0]", "found output[0, 0, 0] = [1]"], 2, "float32", 3,
        "qkv audit one --case C2-mask --seed 3",
    )  # fmt: skip
    differs = Row("C2-mask", ("C2",), "</script> & <b>", "edges", "differs", "a row | is NaN")
    keeps = Row("A1-values", ("A1", "B1"), "values", "core", "keeps")
    cannot = Row("D1-leak", ("D1",), "a leak", "strict", "cannot express", says="no masks")
    reports = [
        Report("one", "strict", "1.0", rows=[keeps, wrong, cannot], finished=True),
        Report("two", "strict", "2.0", rows=[keeps, differs, cannot], finished=True),
    ]
    file = tmp_path_factory.mktemp("report") / "audit.html"
    made = Made("qkv audit --all", "2026-01-02", "0.1", "3.12", "2.0", "Linux x86_64")
    file.write_text(to_html(reports, made), encoding="utf-8")
    command = [node, str(HERE / "report.mjs"), str(file), chromium]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {one["name"]: one["error"] for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_an_audit(name: str, told: dict[str, str | None]) -> None:
    """Sorted, filtered, opened, by the keyboard, light and dark, and nothing asked of anybody."""
    assert told[name] is None
