"""Modules of the page by themselves, in Node and without a browser; the steps are in the `*.unit.mjs` files."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def collected() -> list[Any]:
    """Every test of every file, read from its text."""
    found = []
    for file in sorted(HERE.glob("*.unit.mjs")):
        for name in re.findall(r'^test\("([^"]+)"', file.read_text(encoding="utf-8"), re.M):
            found.append(pytest.param(file.name, name, id=f"{file.name.removesuffix('.unit.mjs')}: {name}"))
    return found


@functools.cache
def results(file: str, node: str) -> dict[str, str | None]:
    """Test -> what went wrong."""
    command = [
        node,
        "--input-type=module",
        "-e",
        f"await import('./{file}'); await (await import('./unit.mjs')).main();",
    ]
    run = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return {one["name"]: one["error"] for one in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize(("file", "name"), collected())
def test_unit(file: str, name: str, node: str) -> None:
    """One test of a file; all of the file run once."""
    assert results(file, node)[name] is None
