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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import qkv

HERE = Path(__file__).parent
LEARN = HERE.parent / "learn"
Ran = Future[dict[str, dict[str, Any]]]


def collected() -> list[Any]:
    """Every test of every file, read from its text."""
    found = []
    for file in sorted(HERE.glob("*.page.mjs")):
        for name in re.findall(r'^test\("([^"]+)"', file.read_text(encoding="utf-8"), re.M):
            found.append(pytest.param(file.name, name, id=f"{file.name.removesuffix('.page.mjs')}: {name}"))
    return found


@functools.cache
def running(files: tuple[tuple[str, tuple[str, ...]], ...], node: str, chromium: str, page: Path) -> dict[str, Ran]:
    """All wanted tests of all files: two browsers at a time, since each of them mostly waits."""
    pool = ThreadPoolExecutor(2)
    started = {file: pool.submit(run, file, only, node, chromium, page) for file, only in files}
    pool.shutdown(wait=False)
    return started


def run(file: str, only: tuple[str, ...], node: str, chromium: str, page: Path) -> dict[str, dict[str, Any]]:
    """The wanted tests of one file in one browser."""
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
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert done.returncode == 0, done.stdout + done.stderr
    return {result["name"]: result for result in told}


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), collected())
@pytest.mark.usefixtures("serving")
def test_page(file: str, name: str, node: str, chromium: str, page: Path, request: pytest.FixtureRequest) -> None:
    """One test of a file; the first that is asked for starts all that were selected."""
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_page":
            wanted.setdefault(item.callspec.params["file"], []).append(item.callspec.params["name"])
    files = tuple((one, tuple(names)) for one, names in wanted.items())
    result = running(files, node, chromium, page)[file].result()[name]
    assert result["error"] is None, result["error"]
