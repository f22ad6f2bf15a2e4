"""The page of the lesson as files: what `qkv learn` serves. Built from `web/` in the repository of qkv."""

from pathlib import Path

__all__ = ["folder"]


def folder() -> Path:
    """The folder with `index.html` and all that it loads, the browser's Python included."""
    return Path(__file__).parent / "page"
