"""What is wrong with a file, in one sentence that names it."""

from __future__ import annotations

from pathlib import Path

from qkv.errors import FileError

__all__ = ["DAMAGED", "fault"]

DAMAGED = "it may be cut off or damaged, fetch it again"


def fault(path: Path, what: str) -> FileError:
    """The error to raise."""
    return FileError(f"{path.name} {what}")
