"""What the tests of the page need: node, the page's packages, a Chromium, and the page, built once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"


def absent(what: str) -> NoReturn:
    """One line that says what is missing; where CI=true, a failure, since a skip would hide that nothing was tested."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"the browser tests need {what}")
    pytest.skip(f"the browser tests need {what}")


@pytest.fixture(scope="session")
def node() -> str:
    """Node, and the packages of the page in web/node_modules."""
    found = shutil.which("node")
    if found is None:
        absent("node")
    if not (WEB / "node_modules" / "esbuild").is_dir():
        absent("the packages of the page: npm ci --prefix web")
    return found


@pytest.fixture(scope="session")
def chromium() -> str:
    """A Chromium that playwright-core can drive: QKV_CHROMIUM, or the one on the path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("QKV_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        absent("a Chromium: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def serving() -> None:
    """What `qkv learn` needs to serve."""
    for name in ("starlette", "uvicorn", "markdown_it", "pygments"):
        if importlib.util.find_spec(name) is None:
            absent(f"{name}: pip install 'qkv[learn]'")


@pytest.fixture(scope="session")
def page(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, built from the sources of this checkout."""
    folder = tmp_path_factory.mktemp("page") / "page"
    environment = {**os.environ, "QKV_PAGE_OUT": str(folder)}
    built = subprocess.run([node, "build.mjs"], cwd=WEB, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder
