"""Kernels that end, hang, or flood their process when they see grouped heads, and are right otherwise."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def _right(query: Any, key: Any, value: Any) -> Any:
    share = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, share, 1), np.repeat(value, share, 1)
    score = np.einsum("bhld,bhsd->bhls", query, key) * query.shape[-1] ** -0.5
    mass = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("bhls,bhse->bhle", mass / mass.sum(-1, keepdims=True), value)


def _loop() -> None:
    while True:
        time.sleep(0.01)


def _print() -> None:
    for _ in range(200):
        print("x" * 100_000)


def _take_memory() -> None:
    # Far beyond the limit, and not without end: on a busy machine it is some time until anybody looks.
    held = [np.ones(4 << 20) for _ in range(16)]
    while held:
        time.sleep(0.01)


#: What the kernel does for grouped heads and so many queries.
ACTS: dict[int, Callable[[], Any]] = {
    2: lambda: ctypes.string_at(0),
    3: os.abort,
    4: lambda: os.kill(os.getpid(), signal.SIGFPE),
    5: lambda: os._exit(7),
    6: _loop,
    7: _take_memory,
    8: lambda: sys.exit("enough"),
    9: _print,
}


def kernel(query: Any, key: Any, value: Any) -> Any:
    """Attention, with an accident for grouped heads."""
    if key.shape[1] < query.shape[1]:
        ACTS.get(query.shape[2], lambda: None)()
    return _right(query, key, value)
