"""`qkv learn`: the lesson, its lab and the notebook; by itself it opens them in a browser."""

from __future__ import annotations

import argparse
from typing import Any

from . import learn_lab, learn_site

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add `learn` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "learn",
        help="open the lesson, its lab and your notebook",
        description="Open the lesson, its lab and your notebook in the browser. They are on this machine alone.",
        allow_abbrev=False,
    )
    learn_site.add_serve(parser)
    actions = parser.add_subparsers(dest="action", metavar="action", parser_class=type(parser))
    learn_lab.add_check(actions)
    learn_lab.add_grade(actions)
    learn_site.add_export(actions)
