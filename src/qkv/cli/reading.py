"""What commands that run a model share: the text it reads, and its errors as sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import ArgumentError, FileError, QkvError

__all__ = ["faults_of_the_model", "read_text"]


def read_text(name: str | None, longest: int) -> str:
    """The text of `--text`: a file, - for stdin, or one that comes along; at most `longest` characters of it."""
    if name is None:
        from qkv.real import load_head

        return "".join(load_head().tokens)
    try:
        if name == "-":
            text = sys.stdin.read(longest)
        else:
            with Path(name).open(encoding="utf-8") as stream:
                text = stream.read(longest)
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8"
        raise FileError(f"{name} cannot be read ({reason}); give --text a file of plain text, or - for stdin") from None
    if not text.strip():
        raise ArgumentError("--text must hold some words, but it is empty; leave it out for a text that comes along")
    return text


@contextmanager
def faults_of_the_model(way_out: str) -> Iterator[None]:
    """An error of the model is not one of this program: one sentence that ends in the way out."""
    try:
        yield
    except (QkvError, MemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise ArgumentError(
            f"the model cannot be run on this text ({type(error).__name__}: {said}); {way_out}"
        ) from None
