"""Row invariance (F3), strides (A4) and repeatability (F4): the bits of a row, whatever stands around it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()
DTYPES = tuple(calls.COMPUTE)


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def assert_same(a: native.Result, b: native.Result) -> None:
    for name in ("output", "lse", "max", "sum", "mix", "status"):
        assert calls.same_bits(getattr(a, name), getattr(b, name)), name


def rich_call(dtype="float32", seed=0, H=6, G=2, L=45, S=230, batch=(2,), **options):
    """A call that uses every clause: window, mask, bias, ALiBi, sink, softcap, large and small scores."""
    rng = np.random.default_rng(seed)
    q, k, v = calls.operands(rng, batch, H, G, L, S, 20, 37, dtype, scale=2.0)
    bias = rng.standard_normal((*batch, H, L, S))
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    allow = rng.random((*batch, H, L, S)) < 0.8
    allow[..., L // 2, :] = False
    given = {
        "causal": True,
        "window": 150,
        "offset": np.arange(int(np.prod(batch))) * 3 + S - L,
        "softcap": 9.0,
        "slopes": 2.0 ** -np.arange(1.0, H + 1),
        "sink": np.linspace(-1, 1, H),
        "bias": calls.store(bias, dtype),
        "bias_dtype": dtype,
        "allow": allow,
        "block": 16,
        "split": 64,
    }
    return calls.build(q, k, v, dtype, **{**given, **options})


@pytest.mark.parametrize("want", ["output", "state"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_threads_and_spread_change_nothing(level, dtype, want):
    call = rich_call(dtype, want=want)
    first = native.run(call, level)
    for tile_rows, spread, threads in itertools.product((1, 2, 3, 5, 8, 16, 45, 1000), (False, True), (1, 2, 3, 4)):
        other = dataclasses.replace(call, tile_rows=tile_rows, spread=spread, threads=threads)
        assert_same(first, native.run(other, level))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_is_the_row_in_the_crowd(level, dtype, plain):
    """One batch, one head, one row at a time: also decoding against a cache and a full pass."""
    call = rich_call(dtype)
    if plain:
        call = dataclasses.replace(call, bias=None, allow=None, slopes=None, softcap=None, sink=None)
    whole = native.run(call, level)
    H, L = call.query.shape[-3], call.query.shape[-2]
    for n, h, i in itertools.product((0, 1), range(H), (0, 1, 7, L // 2, L - 1)):
        row = (slice(n, n + 1), slice(h, h + 1), slice(i, i + 1))
        group = (slice(n, n + 1), slice(h // 3, h // 3 + 1))
        alone = dataclasses.replace(
            call,
            query=call.query[row],
            key=call.key[group],
            value=call.value[group],
            offset=call.offset[n : n + 1] + i,
            lo=call.lo[n : n + 1, i : i + 1],
            hi=call.hi[n : n + 1, i : i + 1],
            slopes=None if plain else call.slopes[h : h + 1],
            sink=None if plain else call.sink[h : h + 1],
            bias=None if plain else call.bias[row],
            allow=None if plain else call.allow[row],
            spread=bool(i % 2),
            threads=2,
        )
        one = native.run(alone, level)
        assert calls.same_bits(one.output[0, 0, 0], whole.output[n, h, i])
        assert calls.same_bits(one.lse[0, 0], whole.lse[n, h, i : i + 1])
        assert one.status[0, 0, 0] == whole.status[n, h, i]


def test_heads_of_a_group_are_heads_with_their_own_keys(level):
    call = rich_call()
    apart = dataclasses.replace(call, key=np.repeat(call.key, 3, axis=1), value=np.repeat(call.value, 3, axis=1))
    assert_same(native.run(call, level), native.run(apart, level))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_change_nothing(level, dtype):
    call = rich_call(dtype)
    first = native.run(call, level)

    def padded(x):
        """Every axis reversed in memory and with gaps between elements."""
        big = np.zeros(tuple(2 * n + 3 for n in x.shape), x.dtype)
        view = big[tuple(slice(2 * n, 0, -2) for n in x.shape)]
        view[...] = x
        return view

    def fortran(x):
        return np.asfortranarray(x)

    def length_first(x):
        return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)

    def frozen(x):
        y = x.copy()
        y.setflags(write=False)
        return y

    def unaligned(x):
        raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        raw[...] = x
        return raw

    for change in (padded, fortran, length_first, frozen, unaligned):
        other = dataclasses.replace(
            call, **{name: change(getattr(call, name)) for name in ("query", "key", "value", "bias", "allow")}
        )
        before = [getattr(other, name).copy() for name in ("query", "key", "value", "bias", "allow")]
        assert_same(first, native.run(other, level))
        for name, x in zip(("query", "key", "value", "bias", "allow"), before, strict=True):
            assert np.array_equal(getattr(other, name), x, equal_nan=x.dtype.kind == "f"), "inputs are never written to"


def test_broadcast_operands_are_their_copies(level):
    rng = np.random.default_rng(3)
    q, k, v = calls.operands(rng, (1, 1), 1, 1, 4, 30, 8, 8)
    wide = [np.broadcast_to(x, (2, 3, 2, *x.shape[-2:])) for x in (q, k, v)]
    a = native.run(calls.build(*wide, offset=26, causal=True), level)
    b = native.run(calls.build(*(x.copy() for x in wide), offset=26, causal=True), level)
    assert_same(a, b)
    one = native.run(calls.build(q, k, v, offset=26, causal=True), level)
    assert calls.same_bits(a.output, np.broadcast_to(one.output, a.output.shape))


def test_batch_axes_in_any_order_of_memory(level):
    rng = np.random.default_rng(4)
    q, k, v = calls.operands(rng, (2, 3, 2), 2, 1, 4, 30, 8, 8)
    moved = [
        np.ascontiguousarray(x.transpose(2, 0, 1, 3, 4, 5)).transpose(1, 2, 0, 3, 4, 5)[:, ::-1] for x in (q, k, v)
    ]
    a = native.run(calls.build(*(x[:, ::-1] for x in (q, k, v))), level)
    assert_same(a, native.run(calls.build(*moved), level))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_document_packed_padded_or_alone(level, dtype):
    """Documents side by side with their origins, with padding before them, and each by itself (F3)."""
    rng = np.random.default_rng(5)
    lengths = (1, 50, 17, 200, 3)
    total = sum(lengths)
    q, k, v = calls.operands(rng, (1,), 4, 2, total, total, 16, 24, dtype, scale=2.0)
    start = np.repeat(np.cumsum((0, *lengths[:-1])), lengths)
    stop = np.arange(total) + 1
    plan = {"block": 16, "split": 48, "sink": np.linspace(0, 1, 4)}
    options = {**plan, "tile_rows": 20, "threads": 3}
    packed = native.run(
        calls.build(
            q,
            k,
            v,
            dtype,
            ranges=(start[None, :, None], stop[None, :, None]),
            origin=start[None].astype(np.int32),
            **options,
        ),
        level,
    )
    for length, first in zip(lengths, np.cumsum((0, *lengths[:-1])), strict=True):
        cut = slice(first, first + length)
        alone = native.run(
            calls.build(q[..., cut, :], k[..., cut, :], v[..., cut, :], dtype, causal=True, **plan), level
        )
        assert calls.same_bits(alone.output, packed.output[..., cut, :])
        assert calls.same_bits(alone.lse, packed.lse[..., cut])
        for pad in (1, 13, 16, 100):
            junk = [np.full((1, x.shape[1], pad, x.shape[-1]), 77, x.dtype) for x in (q, k, v)]
            left = [np.concatenate([j, x[..., cut, :]], axis=-2) for j, x in zip(junk, (q, k, v), strict=True)]
            lo = np.full((1, length + pad, 1), pad)
            hi = np.arange(length + pad)[None, :, None] + 1
            for spread in (False, True):
                padded = native.run(
                    calls.build(
                        *left,
                        dtype,
                        ranges=(lo, hi),
                        origin=np.full((1, length + pad), pad, np.int32),
                        spread=spread,
                        **plan,
                    ),
                    level,
                )
                assert calls.same_bits(alone.output, padded.output[..., pad:, :])
                assert calls.same_bits(alone.lse, padded.lse[..., pad:])


def test_a_negative_origin_counts_from_keys_that_are_elsewhere(level):
    """Keys 40… of a longer sequence, counted from its first key: the blocks they share with the whole are its blocks."""
    rng = np.random.default_rng(6)
    q, k, v = calls.operands(rng, (1,), 1, 1, 3, 100, 8, 8)
    lo, hi = np.full((1, 3, 1), 40), np.full((1, 3, 1), 97)
    whole = native.run(calls.build(q, k, v, ranges=(lo, hi), block=16, split=32), level)
    part = native.run(
        calls.build(
            q,
            k[..., 40:, :],
            v[..., 40:, :],
            ranges=(lo - 40, hi - 40),
            origin=np.full((1, 3), -40, np.int32),
            block=16,
            split=32,
        ),
        level,
    )
    assert_same(whole, part)


def test_what_lies_past_a_length_changes_nothing(level):
    """A cache with slack, and the same keys without it."""
    rng = np.random.default_rng(7)
    q, k, v = calls.operands(rng, (2,), 4, 2, 5, 64, 8, 8)
    used = 37
    hi = np.full((1, 5, 1), used)
    for junk in (np.nan, np.inf, 3e38):
        k[..., used:, :], v[..., used:, :] = junk, -junk
        slack = native.run(calls.build(q, k, v, ranges=(0 * hi, hi), threads=2), level)
        tight = native.run(calls.build(q, k[..., :used, :].copy(), v[..., :used, :].copy(), ranges=(0 * hi, hi)), level)
        assert_same(slack, tight)


def test_forbidding_by_range_mask_or_bias_is_the_same(level):
    rng = np.random.default_rng(8)
    L, S = 23, 90
    q, k, v = calls.operands(rng, (2,), 2, 2, L, S, 8, 8)
    ranged = calls.build(q, k, v, causal=True, offset=60, window=30, block=16, split=32)
    pairs = calls.allowed(ranged)
    free = calls.build(q, k, v, block=16, split=32)
    bias = np.where(pairs, 0.0, -np.inf).astype(np.float32)
    first = native.run(ranged, level)
    assert_same(first, native.run(dataclasses.replace(free, allow=pairs), level))
    assert_same(first, native.run(dataclasses.replace(free, allow=pairs.view(np.uint8) * np.uint8(200)), level))
    assert_same(first, native.run(dataclasses.replace(free, bias=bias), level))
    assert_same(first, native.run(dataclasses.replace(ranged, bias=bias, allow=pairs), level))


def test_skipped_work_is_really_skipped(level):
    rng = np.random.default_rng(9)
    q, k, v = calls.operands(rng, (1,), 1, 1, 64, 64, 8, 8)
    plan = {"tile_rows": 16, "block": 16, "split": 64}
    assert native.run(calls.build(q, k, v, **plan), level).blocks_touched == 16
    assert native.run(calls.build(q, k, v, causal=True, **plan), level).blocks_touched == 10
    lo, hi = np.zeros((1, 64, 2), int), np.zeros((1, 64, 2), int)
    hi[..., 0], lo[..., 1], hi[..., 1] = 1, 60, 64
    assert native.run(calls.build(q, k, v, ranges=(lo, hi), **plan), level).blocks_touched == 8


def test_the_same_call_twice(level):
    call = rich_call(threads=4, spread=True)
    assert_same(native.run(call, level), native.run(call, level))


def test_a_result_can_go_where_the_caller_wants_it(level):
    call = rich_call()
    here = np.full((*call.query.shape[:-1], call.value.shape[-1]), 7, np.float32)
    result = native.run(call, level, here)
    assert result.output is here
    assert calls.same_bits(here, native.run(call, level).output)
    length_first = np.full((*here.shape[:-3], *(here.shape[i] for i in (-2, -3, -1))), 7, np.float32)
    native.run(call, level, length_first.swapaxes(-2, -3))
    assert calls.same_bits(length_first.swapaxes(-2, -3), here)
    with pytest.raises(ValueError, match=r"output must be contiguous, with heads or length first\."):
        native.run(call, level, np.zeros((*here.shape[:-1], 74), np.float32)[..., ::2])
