"""bfloat16 by matrix tiles, where the processor has them: widths that fill tiles, and what tiles cannot do.

A tile takes subnormal numbers for zeros, wants its operands whole to the last row, and adds up in an order of its own. The
laws hold at every level, so every level is asked; tests/test_emulated_tiles.py runs this file where tiles are carried out
by the test itself.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import signal
import sys

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]
LEVELS = native.levels() if native.available() else ()
SHAPES = [(64, 64), (32, 96), (128, 32), (64, 20), (20, 64), (96, 128)]  # head width, value width
TINY, HUGE = 2.0**-133, 2.0**100  # subnormal; 2^46 of the other is beyond float32


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def random_call(seed: int, D: int, E: int, **options) -> native.Call:
    """Sizes around whole tiles and blocks, a mask of one kind or another."""
    rng = np.random.default_rng(seed)
    S = int(rng.choice([1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 97, 128, 131, 290]))
    L = int(rng.choice([1, 3, 12, 13, 16, 17, 31, 40, 70]))
    H, G = [(1, 1), (2, 1), (4, 2), (3, 1)][rng.integers(4)]
    q, k, v = calls.operands(rng, (2,), H, G, L, S, D, E, "bfloat16", scale=2.0)
    given = {"block": int(rng.choice([16, 32, 128])), "split": 256, "tile_rows": 40}
    if rng.random() < 0.5:
        given |= {"causal": True, "offset": S - L}
    if rng.random() < 0.4:
        given["window"] = int(rng.integers(S))
    if rng.random() < 0.3:
        given["allow"] = rng.random((2, H, L, S)) < 0.7
    if rng.random() < 0.3:
        given["bias"] = rng.standard_normal((2, H, L, S)).astype(np.float32)
    if rng.random() < 0.3:
        given["slopes"] = 2.0 ** -np.arange(1.0, H + 1)
    if rng.random() < 0.3:
        given["softcap"] = 5.0
    return calls.build(q, k, v, "bfloat16", **{**given, **options})


def with_value(call: native.Call, change) -> native.Call:
    """The same call with its values, as float64, changed in place."""
    wide = calls.widen(call.value, "bfloat16")
    change(wide)
    return dataclasses.replace(call, value=calls.store(wide, "bfloat16"))


def row_of(call: native.Call, row: int) -> native.Call:
    """One query row of all heads, as decoding has it."""
    one = slice(row, row + 1)

    def part(x):
        return None if x is None else x[:, :, one]

    return dataclasses.replace(
        call,
        query=call.query[:, :, one],
        offset=call.offset + row,
        lo=np.ascontiguousarray(call.lo[:, one]),
        hi=np.ascontiguousarray(call.hi[:, one]),
        bias=part(call.bias),
        allow=part(call.allow),
        tile_rows=1,
    )


def assert_rows(call: native.Call, level: str) -> native.Result:
    """The call's rows one by one have the bits that they have together, whatever threads, tiles and splits (F3)."""
    # The state is float32, which shows what rounding to bfloat16 hides.
    state, L = dataclasses.replace(call, want="state"), call.query.shape[-2]
    whole = native.run(state, level)
    for rows, spread, threads in ((1, True, 3), (7, False, 2), (64, True, 1)):
        other = native.run(dataclasses.replace(state, tile_rows=rows, spread=spread, threads=threads), level)
        for name in ("max", "sum", "mix"):
            assert calls.same_bits(getattr(other, name), getattr(whole, name)), name
    for row in {0, L // 2, L - 1}:
        alone = native.run(row_of(state, row), level)
        for name in ("max", "sum", "mix"):
            assert calls.same_bits(getattr(alone, name)[:, :, 0], getattr(whole, name)[:, :, row]), name
    return native.run(call, level)


@pytest.mark.parametrize(("D", "E"), SHAPES)
def test_the_definition_and_its_bits(level, D, E):
    for seed in range(8):
        call = random_call(seed, D, E)
        calls.assert_defined(call, assert_rows(call, level))


@pytest.mark.parametrize("number", [TINY * 5, HUGE, 3e38, "alternating"])
def test_values_that_a_tile_cannot_take(level, number):
    """A subnormal value, or a huge one, among ordinary ones: near in bits for every row, and rows without it keep theirs."""
    for seed in range(10):
        plain = random_call(seed, 64, 64)
        j = plain.key.shape[-2] // 2

        def change(v, j=j):
            v[..., j, 3] = (
                np.where(np.arange(v.shape[0])[:, None] % 2, -HUGE, TINY) if number == "alternating" else number
            )

        call = with_value(plain, change)
        found, without = assert_rows(call, level), native.run(plain, level)
        calls.assert_defined(call, found)
        reads = calls.allowed(call)[..., j]
        assert calls.same_bits(found.output[~reads], without.output[~reads])


def test_only_tiny_values(level):
    """The mixture of subnormal numbers is one, not zero (F2)."""
    call = with_value(random_call(3, 64, 64, block=128), lambda v: v.__imul__(2.0**-127))
    calls.assert_defined(call, assert_rows(call, level))


@pytest.mark.parametrize("gap", [20.0, 60.0, 95.0])
def test_small_weights_keep_all_their_bits(level, gap):
    """A key far behind the first has a weight that is small, and as exact as any: seen in columns of which it has the only
    number (F2)."""
    rng = np.random.default_rng(1)
    q, k, _ = calls.operands(rng, (1,), 1, 1, 20, 50, 64, 64, "bfloat16")
    bias = np.full((1, 1, 20, 50), -gap, np.float32)
    bias[..., 7] = 0
    wide = np.zeros((1, 1, 50, 64))
    for j in range(50):
        wide[..., j, j] = 0.0 if j == 7 else 1.7
    call = calls.build(q, k, calls.store(wide, "bfloat16"), "bfloat16", bias=bias, bias_dtype="float32")
    calls.assert_defined(call, assert_rows(call, level))


@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_no_number_is_seen_by_those_who_may_read_it(level, where, number):
    """D1, D2: rows that may read it are marked, the others keep their bits."""
    for seed in range(10):
        plain = random_call(seed, 64, 64, window=20, causal=True)
        j = plain.key.shape[-2] // 2
        spoiled = getattr(plain, where).copy()
        spoiled[..., j, -1] = calls.store(np.array(number), "bfloat16")
        call = dataclasses.replace(plain, **{where: spoiled})
        found, without = assert_rows(call, level), native.run(plain, level)
        reads = calls.allowed(call)[..., j]
        assert ((found.status & 2) != 0).tolist() == reads.tolist()
        assert calls.same_bits(found.output[~reads], without.output[~reads])


def test_a_huge_scale_shows_products_below_the_normal_numbers(level):
    """2^-68 times 2^-68 is below float32's normal numbers, and 2^-10 once a scale of 2^126 is in it (F2)."""
    rng = np.random.default_rng(2)
    q, k, v = calls.operands(rng, (1,), 2, 1, 20, 40, 64, 32, "bfloat16")
    q, k = (calls.store(calls.widen(x, "bfloat16") * 2.0**-68, "bfloat16") for x in (q, k))
    call = calls.build(q, k, v, "bfloat16", scale=2.0**126)
    calls.assert_defined(call, assert_rows(call, level))


@pytest.fixture
def last_page():
    """Puts numbers at the end of a page behind which nothing may be touched: reading on ends the process."""
    size, room = mmap.PAGESIZE, mmap.mmap(-1, 9 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(start + 8 * size, size, 0) == 0, os.strerror(ctypes.get_errno())

    def put(x: np.ndarray) -> np.ndarray:
        out = np.frombuffer(room, x.dtype, 8 * size // x.itemsize)[-x.size :].reshape(x.shape)
        out[...] = x
        return out

    yield put
    assert protect(start + 8 * size, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pages are guarded by mprotect")
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("S", [5, 16, 33])
def test_no_operand_is_read_past_its_end(level, last_page, name, S):
    rng = np.random.default_rng(S)
    call = calls.build(*calls.operands(rng, (1,), 1, 1, 40, S, 64, 64, "bfloat16"), "bfloat16", block=128)
    right = native.run(call, level)
    moved = dataclasses.replace(call, **{name: last_page(getattr(call, name))})
    for rows in (1, 40):
        assert calls.same_bits(native.run(dataclasses.replace(moved, tile_rows=rows), level).output, right.output)


def test_documents_packed_padded_or_alone(level):
    rng = np.random.default_rng(5)
    lengths = (1, 50, 17, 90, 3)
    total = sum(lengths)
    q, k, v = calls.operands(rng, (1,), 4, 2, total, total, 64, 64, "bfloat16", scale=2.0)
    start = np.repeat(np.cumsum((0, *lengths[:-1])), lengths)
    stop = np.arange(total) + 1
    plan = {"block": 128, "split": 256}
    packed = calls.build(
        *(q, k, v, "bfloat16"),
        ranges=(start[None, :, None], stop[None, :, None]),
        origin=start[None].astype(np.int32),
        **{**plan, "tile_rows": 20, "threads": 3},
    )
    whole = native.run(packed, level)
    for length, first in zip(lengths, np.cumsum((0, *lengths[:-1])), strict=True):
        cut = slice(first, first + length)
        parts = [x[..., cut, :] for x in (q, k, v)]
        alone = native.run(calls.build(*parts, "bfloat16", causal=True, **plan), level)
        assert calls.same_bits(alone.output, whole.output[..., cut, :])
        for pad in (1, 13, 32, 100):
            left = [np.concatenate([np.full((1, x.shape[1], pad, 64), 0x7FC0, np.uint16), x], -2) for x in parts]
            lo = np.full((1, length + pad, 1), pad)
            hi = np.arange(length + pad)[None, :, None] + 1
            call = calls.build(
                *(*left, "bfloat16"), ranges=(lo, hi), origin=np.full((1, length + pad), pad, np.int32), **plan
            )
            assert calls.same_bits(native.run(call, level).output[..., pad:, :], alone.output)


@pytest.mark.parametrize("S", [16, 33, 131])
def test_answers_kept_from_the_pass_survive_the_last_tile(level, S):
    """A tile of scores is whole, also where the block's keys end: what is kept behind them stays as it is (C4)."""
    call = calls.build(*calls.operands(np.random.default_rng(S), (1,), 2, 1, 70, S, 64, 64, "bfloat16"), "bfloat16")
    entropy, received = np.zeros((1, 2, 70), np.float32), np.zeros((1, 2, S), np.float32)
    found = native.run(call, level, keep=native.Keep(0, entropy, received, None, None))
    weights = calls.definition(call).weights.astype(np.float64)
    calls.assert_defined(call, found)
    assert np.abs(received - weights.sum(axis=-2)).max() < 1e-4
    assert np.abs(entropy + (weights * np.log(weights)).sum(axis=-1)).max() < 1e-4


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_call_in_a_signal_handler(level):
    """Whoever runs between two blocks may use tiles too; the call goes on with its own."""
    rng = np.random.default_rng(0)
    small = random_call(1, 64, 64)
    inside: list[np.ndarray] = []
    before = signal.signal(signal.SIGALRM, lambda *_: inside.append(native.run(small, level).output))
    try:
        # Signals are asked for after 50 ms, and how many keys that takes is the machine's affair.
        for keys in (500, 2000, 8000, 32_000, 128_000, 512_000):
            q, k, v = calls.operands(rng, (1,), 1, 1, 256, keys, 64, 64, "bfloat16")
            call = calls.build(q, k, v, "bfloat16", block=128, split=2048, tile_rows=256)
            right = native.run(call, level)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            found = native.run(call, level)
            met = bool(inside)
            signal.setitimer(signal.ITIMER_REAL, 0)
            inside.clear()
            assert calls.same_bits(found.output, right.output)
            if met:
                break
        else:
            pytest.fail("the signal met no call")
    finally:
        signal.signal(signal.SIGALRM, before)
