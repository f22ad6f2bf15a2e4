"""How many threads: asked for a while, by thread of Python and by task; the bits are the same for all of them (F3)."""

from __future__ import annotations

import asyncio
import os
import threading

import numpy as np
import pytest

import qkv
from support.arrays import same_bits

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_engine")]

X = np.random.default_rng(0).standard_normal((1, 3, 300, 8)).astype(np.float32)


def now() -> int:
    assert qkv.info().threads == qkv.explain(X, X, X).threads
    return qkv.info().threads


def test_a_block_says_how_many_and_the_end_takes_it_back():
    default = now()
    with qkv.threads(3):
        assert now() == 3
        with qkv.threads(1):
            assert now() == 1
        assert now() == 3
    assert now() == default
    with pytest.raises(KeyError), qkv.threads(7):
        raise KeyError
    assert now() == default


def test_the_default_is_what_the_process_may_use():
    if "QKV_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity"):
        assert 1 <= now() <= len(os.sched_getaffinity(0))


def test_other_threads_of_python_begin_with_the_default():
    default, seen = now(), []
    with qkv.threads(5):
        thread = threading.Thread(target=lambda: seen.append(now()))
        thread.start()
        thread.join()
    assert seen == [default]


def test_tasks_do_not_see_each_others_blocks():
    seen: dict[int, list[int]] = {}

    async def task(n: int) -> None:
        with qkv.threads(n):
            for _ in range(3):
                seen.setdefault(n, []).append(now())
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task(2), task(3))

    asyncio.run(both())
    assert seen == {2: [2] * 3, 3: [3] * 3}


def test_f3_the_number_of_threads_changes_no_bit_at_the_front_door():
    with qkv.threads(1):
        right = qkv.attend(X, X, X, mask=qkv.causal())
    for n in (2, 3, 8):
        with qkv.threads(n):
            for _ in range(2):  # as it is filed, and as it is found
                assert same_bits(qkv.attend(X, X, X, mask=qkv.causal()), right)


def test_whole_numbers_of_numpy_are_whole_numbers():
    with qkv.threads(np.int64(2)):
        assert now() == 2
