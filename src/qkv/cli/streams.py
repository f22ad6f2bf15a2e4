"""stdin, stdout and stderr as they come: closed, full, without a reader, or with few characters."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

__all__ = ["accept_any_character", "give_up_stdout", "open_closed"]


def open_closed() -> None:
    """Open the streams that were closed when the command started (`>&-`) on the null device, where nobody looks.

    In the order of their numbers, so that each gets its own: a file opened later would get that of stdout, and what
    is printed would end in it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (until the end)


def accept_any_character() -> None:
    """A console that cannot show √ shows ? in its place, and the command goes on."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def give_up_stdout() -> None:
    """Send what stdout still holds nowhere: Python flushes once more at exit, and would fail once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
