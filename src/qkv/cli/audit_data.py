"""`qkv audit export DIR` and `qkv audit migrate A B`: what has words of its own in place of a kernel."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import ArgumentError, FileError

from . import draw

if TYPE_CHECKING:
    from qkv.audit.report import Report

__all__ = ["WORDS", "export", "migrate", "write_verdicts"]

#: First words that are no kernel's name.
WORDS = ("export", "migrate")


def export(arguments: argparse.Namespace, choice: Any) -> int:
    """Write the cases as files."""
    from qkv.audit.export import export as write

    if len(arguments.target) != 2:
        raise ArgumentError("qkv audit export takes one folder: qkv audit export DIR")
    folder = Path(arguments.target[1])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} is there already and not empty; name a new folder")
    arithmetic = frozenset(w.strip() for w in (arguments.arithmetic or "").split(",") if w.strip())
    try:
        index = write(folder, choice, dtypes=choice.dtypes or ("float32",), arithmetic=arithmetic)
    except OSError as problem:
        raise FileError(f"{folder} cannot be written: {problem.strerror}") from None
    if arguments.json:
        draw.write_json({"folder": str(folder), "calls": index})
    else:
        draw.text(
            f"{len(index)} calls of {len({c['case'] for c in index})} cases are in {folder}; index.json lists them"
        )
    return 0


def migrate(arguments: argparse.Namespace, reports: Callable[[list[str]], list[Report]]) -> int:
    """Say what changes meaning from one kernel to another.

    Args:
        reports: audits kernels by name, or finds their reports in a file.
    """
    from qkv.audit.migrate import changes, tell_changes

    names = arguments.target[1:]
    if len(names) != 2:
        raise ArgumentError("qkv audit migrate takes two kernels: qkv audit migrate torch-sdpa mlx")
    before, after = reports(names)
    for report in (before, after):
        if report.absent:
            raise ArgumentError(f"{report.name} cannot be audited: {report.absent}")
    if arguments.json:
        found = [c.to_dict() for c in changes(before, after)]
        draw.write_json({"from": before.name, "to": after.name, "changes": found})
    else:
        for line in tell_changes(before, after):
            said = line.lstrip()
            draw.text(said, indent=len(line) - len(said))
    return 0


def write_verdicts(name: str, reports: list[Report], made: Any) -> None:
    """The small table of what libraries do, as JSON."""
    import json

    from qkv.audit.migrate import verdicts

    record = {
        "made": str(made),
        "versions": {r.name: r.version for r in reports if r.rows},
        "cases": verdicts([r for r in reports if r.rows]),
    }
    try:
        text = json.dumps(record, ensure_ascii=False, indent=0, separators=(",", ":"))
        Path(name).write_text(text + "\n", encoding="utf-8", newline="\n")
    except OSError as problem:
        raise FileError(f"{name} cannot be written: {problem.strerror}") from None
