"""AMX's tile instructions where the processor lacks them: tiles.c, compiled once and put in the way of SIGILL.

    with tiles.emulated() as t:
        ...                       # runs tile instructions, by the processor itself if it can
        assert t.ran("tdpbf16ps")

Skips the test where that cannot be: another system or processor, no compiler.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

#: Kinds of instructions, in the order of tiles.c.
KINDS = (
    "ldtilecfg",
    "sttilecfg",
    "tilerelease",
    "tilezero",
    "tileloadd",
    "tileloaddt1",
    "tilestored",
    "tdpbf16ps",
)

#: Orders in which a product adds up, for `Tiles.swap`: the manual's, two that a processor might have chosen
#: instead, and one that gives another sum when the sides of a product change places.
MANUAL, BACKWARDS, ONE_CHAIN, LOPSIDED = 0, 1, 2, 3

_HERE = Path(__file__).parent
_LACKS, _HAS, _REFUSES, _TOO_OLD = range(4)


def _compiler() -> list[str]:
    """The C compiler of the environment, as the words of a command."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    pytest.skip("no C compiler")


@cache
def _folder() -> Path:
    """Where compiled files lie until this process ends; a fork of it leaves them alone."""
    owner, path = os.getpid(), Path(tempfile.mkdtemp(prefix="qkv-tiles-"))
    atexit.register(lambda: shutil.rmtree(path, ignore_errors=True) if os.getpid() == owner else None)
    return path


@cache
def compiled(source: str) -> Path:
    """A C file of this folder as a shared library."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        pytest.skip("tile instructions are x86-64's, and emulated on Linux")
    out = _folder() / f"{Path(source).stem}.so"
    flags = ["-std=gnu11", "-O2", "-mavx2", "-mfma", "-Wall", "-Wextra", "-fPIC", "-shared"]
    done = subprocess.run(
        [*_compiler(), *flags, "-o", str(out), str(_HERE / source), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if "tdpbf16ps" in done.stderr:
        pytest.skip("the assembler knows no tile instructions")
    assert done.returncode == 0, done.stderr
    return out


@cache
def _library() -> tuple[ctypes.CDLL, int]:
    """tiles.c, and what it says of the processor."""
    library = ctypes.CDLL(str(compiled("tiles.c")))
    return library, int(library.qkv_tiles_processor())


def programs() -> ctypes.CDLL:
    """tiles_programs.c: small functions that run tile instructions."""
    return ctypes.CDLL(str(compiled("tiles_programs.c")))


def config(*, palette: int = 1, **shapes: tuple[int, int]) -> np.ndarray:
    """The 64 bytes of a configuration; t3=(rows, bytes of a row) for tile 3."""
    out = np.zeros(64, np.uint8)
    out[0] = palette
    for name, (rows, colsb) in shapes.items():
        n = int(name[1:])
        out[16 + 2 * n : 18 + 2 * n] = np.array([colsb], "<u2").view(np.uint8)
        out[48 + n] = rows
    return out


class Tiles:
    """What the block `with emulated()` may ask and change."""

    def __init__(self, library: ctypes.CDLL, hardware: bool) -> None:
        #: The processor has tiles: it runs the instructions itself, and nothing is counted or swapped.
        self.hardware = hardware
        self._library = library
        self._before: list[int] = [library.qkv_tiles_count(kind) for kind in range(len(KINDS))]

    def count(self, kind: str) -> int:
        """How many instructions of a kind were emulated since the block began, in all threads."""
        place = KINDS.index(kind)
        return int(self._library.qkv_tiles_count(place)) - self._before[place]

    def ran(self, kind: str) -> bool:
        """Whether one of a kind ran, as far as one can know: a processor that has tiles counts nothing."""
        return self.hardware or self.count(kind) > 0

    def swap(self, order: int) -> None:
        """Add in another order from now on: MANUAL, BACKWARDS, ONE_CHAIN or LOPSIDED."""
        self._library.qkv_tiles_swap(order)


@contextmanager
def emulated(order: int = MANUAL) -> Iterator[Tiles]:
    """Tile instructions run within this block, in every thread that does not block SIGILL."""
    library, processor = _library()
    if processor == _TOO_OLD:
        pytest.skip("the emulation of tiles takes AVX2 and FMA")
    if processor == _REFUSES:
        pytest.skip("the processor has tiles, and the system does not grant them")
    tiles = Tiles(library, hardware=processor == _HAS)
    if not tiles.hardware:
        assert library.qkv_tiles_install() == 0
    tiles.swap(order)
    try:
        yield tiles
    finally:
        tiles.swap(MANUAL)
        if not tiles.hardware:
            library.qkv_tiles_remove()
