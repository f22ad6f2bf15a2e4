"""Where the page's files are: those that Node built, in a package of their own, and the Python that the lab loads."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from qkv.errors import UnsupportedError
from qkv.files.extras import how_to_install

__all__ = ["assets_folder", "page", "worker_files"]

#: What the lab's worker loads, by the name of the file, from the package's folder. Loose files beside each other there.
_WORKER_FILES = ("plain.py", "learn/grader.py", "learn/alike.py")


def assets_folder() -> Path:
    """The folder with `index.html` and all that it loads, Pyodide included.

    It is that of the package `qkv_learn_assets`, unless QKV_LEARN_ASSETS names another, as while the page is made.

    Raises:
        UnsupportedError: there is none.
    """
    named = os.environ.get("QKV_LEARN_ASSETS")
    if named:
        folder = Path(named)
    else:
        try:
            folder = Path(importlib.import_module("qkv_learn_assets").folder())
        except ModuleNotFoundError:
            raise UnsupportedError(
                f"the lesson's page is in the package qkv-learn, which is not installed; {how_to_install('learn')}"
            ) from None
    if not (folder / "index.html").is_file():
        raise UnsupportedError(f"the lesson's page is not in {folder}, there is no index.html; write make learn")
    return folder


def page(folder: Path, nonce: str) -> str:
    """The page itself; the one thing that changes in it is the nonce of its Content-Security-Policy."""
    return (folder / "index.html").read_text(encoding="utf-8").replace('content="NONCE"', f'content="{nonce}"')


def worker_files() -> dict[str, Path]:
    """The Python files that the lab loads, by name."""
    root = Path(__file__).parents[1]
    return {Path(name).name: root / name for name in _WORKER_FILES if (root / name).is_file()}
