"""A pytest plugin: the whole run has tile instructions, carried out by tiles.c, and the engine offers their level.

`-p support.under_tiles`; QKV_TILES_ORDER says in which of the orders of `tiles` products add up.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from qkv import _native

from . import tiles

_run = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is collected: the levels are asked for once a process."""
    _native.assume_tiles()
    order = int(os.environ.get("QKV_TILES_ORDER", tiles.MANUAL))
    config.stash[_KEY] = _run.enter_context(tiles.emulated(order))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many products ran, for who started the run."""
    terminalreporter.write_line(f"tdpbf16ps {config.stash[_KEY].count('tdpbf16ps')}")


def pytest_unconfigure() -> None:
    """The handler of before comes back."""
    _run.close()


_KEY = pytest.StashKey[tiles.Tiles]()
