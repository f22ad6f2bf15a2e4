"""`qkv info`: which engine runs here, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import draw

if TYPE_CHECKING:
    from qkv.info import Info

__all__ = ["add_command", "engine", "header"]


def add_command(commands: Any) -> None:
    """Add `info` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="show which engine runs here and why",
        description="Show the version, the engine and why it was chosen, threads, NumPy and optional packages.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show what `qkv.info()` knows."""
    from qkv.info import info

    known = info()
    if arguments.json:
        draw.write_json(known.to_dict())
        return 0
    draw.text(f"{known.version}, Python {known.python}, NumPy {known.numpy}, {known.system}", indent=10, label="qkv")
    draw.text(engine(known), indent=10, label="engine")
    if known.why:
        draw.text(known.why, indent=10, label="why")
    if known.levels:
        draw.text(", ".join(known.levels), indent=10, label="levels")
    rows = (
        "a row's bits depend on that row alone (contract F3)"
        if known.row_invariant
        else "bits depend on shapes, since BLAS does; the same call gives the same bits (contract F4)"
    )
    draw.text(rows, indent=10, label="bits")
    for there, label in ((True, "found"), (False, "missing")):
        names = [name for name, found in known.optional.items() if found == there]
        if names:
            draw.text(", ".join(names), indent=10, label=label)
    return 0


def header(known: Info) -> str:
    """One line: version, engine, threads, NumPy."""
    return f"qkv {known.version} · {engine(known)} · NumPy {known.numpy}"


def engine(known: Info) -> str:
    """The engine in a few words."""
    threads = "1 thread" if known.threads == 1 else f"{known.threads} threads"
    name = "NumPy" if known.engine == "numpy" else known.engine
    return f"{name} engine ({', '.join(part for part in (known.level, threads) if part)})"
