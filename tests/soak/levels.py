"""Which engine and instruction set a case runs on: part of what its seed says, on a machine that has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from qkv import recipes
from qkv.engines import native

from .facts import Facts

#: Threads of a call. Waking some costs more than most cases do, so most have one.
THREADS = (1,) * 14 + tuple(range(2, 9))

#: Cases in turn on one instruction set, so that what remembered calls know is of use.
IN_TURN = 1000


def use(seed: int) -> str:
    """Sets the instruction set that a seed runs on; "" where the native engine is missing."""
    if not native.available():
        return ""
    here = native.levels()
    name = here[(seed // IN_TURN) % len(here)]
    if os.environ.get("QKV_ISA") != name:
        _set(name)
        recipes.forget()
    return name


def _set(name: str) -> None:
    os.environ["QKV_ISA"] = name
    native.level.cache_clear()


@contextmanager
def another(name: str) -> Iterator[None]:
    """Another instruction set for calls that are not remembered."""
    before = os.environ["QKV_ISA"]
    _set(name)
    try:
        yield
    finally:
        _set(before)


def engine_of(facts: Facts) -> str:
    """The engine of the front door for this case, set: mostly the native one."""
    name = facts.pick("engine", ("native",) * 8 + ("numpy",)) if native.available() else "numpy"
    os.environ["QKV_ENGINE"] = name
    return name
