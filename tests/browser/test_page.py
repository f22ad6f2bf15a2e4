"""The page in a real browser: the whole walk, accessibility, the lab and its hostile programs, the notebook.

The steps are in the `*.page.mjs` files beside this one; each of their tests is one test here. The browser can reach
nothing but 127.0.0.1, and asking for anything else fails the test.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qkv

HERE = Path(__file__).parent
LEARN = HERE.parent / "learn"


def collected() -> list[Any]:
    """Every test of every file, read from its text."""
    found = []
    for file in sorted(HERE.glob("*.page.mjs")):
        for name in re.findall(r'^test\("([^"]+)"', file.read_text(encoding="utf-8"), re.M):
            found.append(pytest.param(file.name, name, id=f"{file.name.removesuffix('.page.mjs')}: {name}"))
    return found


@functools.cache
def results(file: str, only: tuple[str, ...], node: str, chromium: str, page: Path) -> dict[str, dict[str, Any]]:
    """All wanted tests of one file in one browser."""
    settings = {
        "python": sys.executable,
        "chromium": chromium,
        "page": str(page),
        "home": str(Path(qkv.__file__).resolve().parents[1]),
        "content": str(Path(qkv.__file__).parent / "learn" / "content"),
        "learn": str(LEARN),
        "only": list(only),
        "shots": os.environ.get("QKV_BROWSER_SHOTS"),
    }
    environment = {**os.environ, "QKV_BROWSER_TEST": json.dumps(settings)}
    command = [node, "--input-type=module", "-e", f"await import('./{file}'); (await import('./harness.mjs')).main();"]
    run = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=900, check=False)
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"name"')]
    assert run.returncode == 0, run.stdout + run.stderr
    return {result["name"]: result for result in told}


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), collected())
@pytest.mark.usefixtures("serving")
def test_page(file: str, name: str, node: str, chromium: str, page: Path, request: pytest.FixtureRequest) -> None:
    """One test of a file; the first that is asked for runs all of its file that were selected."""
    wanted = tuple(
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_page"
        and item.callspec.params["file"] == file
    )
    result = results(file, wanted, node, chromium, page)[name]
    assert result["error"] is None, result["error"]
