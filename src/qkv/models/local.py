"""Models that other programs have downloaded: the cache of Hugging Face's library, read as folders and never filled."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["cache_folder", "cached"]

_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def cache_folder() -> Path:
    """Where that library keeps models: `HF_HUB_CACHE`, else `HF_HOME`/hub, else ~/.cache/huggingface/hub."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(home).expanduser() / "hub"


def cached(name: str) -> Path | None:
    """The folder of the model with an ID such as "owner/model", as its branch `main` was last downloaded; None if it is
    not there.

    >>> cached("nobody/has-this-model") is None
    True
    """
    if not _ID.fullmatch(name) or ".." in name:
        return None
    folder = cache_folder() / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if re.fullmatch(r"[0-9a-fA-F]+", commit) and snapshot.is_dir() else None
