"""How many threads a call may use: what this process may have, `QKV_NUM_THREADS`, and `qkv.threads` for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

from ..errors import ArgumentError, DTypeError, EngineError, shown
from ..interop import whole_number

__all__ = ["asked", "default_threads", "threads", "threads_in_use"]

#: The largest number of threads that can be asked for.
_MOST = 2_147_483_647

#: What `qkv.threads` asked for; None outside of it.
asked: ContextVar[int | None] = ContextVar("qkv.threads", default=None)


def threads(n: int) -> AbstractContextManager[None]:
    """Calls inside the `with` block use at most n threads of the native engine; the bits stay the same (F3).

    Holds for the thread of Python, or the task of asyncio, that entered the block; a thread started inside it begins
    with the default. The default is the number of processors this process may use (affinity and the quota of its control
    group), or what the environment's `QKV_NUM_THREADS` said when the first call was made. The NumPy engine leans on
    BLAS, whose threads are its own (`OPENBLAS_NUM_THREADS`, threadpoolctl).

    Args:
        n: at least 1; more than there are processors is honoured, and seldom helps.

    Raises:
        DTypeError, ArgumentError: n is no whole number, or below 1.

    >>> import numpy as np, qkv
    >>> x = np.ones((1, 3, 4))
    >>> with qkv.threads(1):
    ...     one = qkv.attend(x, x, x)
    >>> bool((one == qkv.attend(x, x, x)).all())
    True
    """
    count = whole_number(n)
    if count is None:
        raise DTypeError(f"n must be a whole number of threads, but {shown(n)} came; write qkv.threads(2)")
    if not 1 <= count <= _MOST:
        raise ArgumentError(
            f"n must be at least 1 and below 2**31, but {count} came; leave the block out for the default"
        )
    return _limited(count)


@contextmanager
def _limited(count: int) -> Iterator[None]:
    before = asked.set(count)
    try:
        yield
    finally:
        asked.reset(before)


def threads_in_use() -> int:
    """Threads a call made now would use."""
    return asked.get() or default_threads()


@lru_cache(maxsize=1)
def default_threads() -> int:
    """Threads a call uses when nobody says otherwise: the processors this process may use, or `QKV_NUM_THREADS`."""
    text = os.environ.get("QKV_NUM_THREADS", "")
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise EngineError(
                f"QKV_NUM_THREADS must be a positive whole number, not {text!r}; unset it to use every processor"
            )
        return int(text)
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        processors = os.cpu_count() or 1
    quota = _processor_quota()
    return max(1, processors if quota is None else min(processors, round(quota)))


def _processor_quota() -> float | None:
    """Processors the control group grants, None if it sets no limit."""
    root = Path("/sys/fs/cgroup")
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        granted = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return granted if granted > 0 else None
