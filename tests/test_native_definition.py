"""The native engine against the definition, within derived bounds (A2, A3, B1 to B3, C1 to C5, F1, F2)."""

from __future__ import annotations

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()
DTYPES = tuple(calls.COMPUTE)
SHAPES = [  # H, G, L, S, D, E
    (1, 1, 1, 1, 1, 1),
    (2, 1, 5, 7, 4, 3),
    (4, 2, 33, 130, 64, 64),
    (3, 3, 17, 513, 31, 65),
    (8, 1, 1, 300, 16, 24),
    (6, 2, 70, 40, 96, 13),
]
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 19},
    "softcap": {"softcap": 1.5},
    "negative scale": {"scale": -0.7},
    "scale 0": {"scale": 0.0},
}


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("option", OPTIONS)
def test_agrees_with_the_definition(level, dtype, shape, option):
    H, G, L, S, D, E = shape
    rng = np.random.default_rng(1)
    q, k, v = calls.operands(rng, (2,), H, G, L, S, D, E, dtype)
    call = calls.build(q, k, v, dtype, offset=max(S - L, 0), **OPTIONS[option])
    calls.assert_defined(call, native.run(call, level))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alibi_bias_mask_and_sink_together(level, dtype):
    rng = np.random.default_rng(2)
    H, L, S = 4, 19, 150
    q, k, v = calls.operands(rng, (2, 2), H, 2, L, S, 24, 40, dtype)
    for bias_dtype in {dtype, "float32"}:
        bias = rng.standard_normal((2, 1, H, L, S))
        bias[rng.random(bias.shape) < 0.2] = -np.inf
        bias = np.broadcast_to(calls.store(bias, bias_dtype), (2, 2, H, L, S))
        call = calls.build(
            q,
            k,
            v,
            dtype,
            offset=[100, 131, 7, 0],
            causal=True,
            softcap=5.0,
            slopes=2.0 ** -np.arange(1.0, H + 1),
            sink=np.array([0.5, -3.0, 20.0, -40.0]),
            bias=bias,
            bias_dtype=bias_dtype,
            allow=np.broadcast_to(rng.random((1, 1, 1, L, S)) < 0.7, (2, 2, H, L, S)),
            block=16,
            split=32,
        )
        calls.assert_defined(call, native.run(call, level))


def test_alibi_far_from_the_keys(level):
    """Distances beyond 2^24 are rounded once, whatever way they are computed."""
    rng = np.random.default_rng(3)
    q, k, v = calls.operands(rng, (1,), 2, 1, 9, 40, 8, 8)
    for offset in (2**22 - 20, 2**24 + 3, 2**33 + 1, -(2**26) - 1):
        call = calls.build(q, k, v, offset=offset, slopes=np.array([1e-9, 2e-8]))
        calls.assert_defined(call, native.run(call, level))


def test_alibi_is_the_same_near_and_far_of_the_exact_limit(level):
    """The two ways to compute distances agree bit for bit where both apply: rows of one tile on both sides."""
    rng = np.random.default_rng(4)
    q, k, v = calls.operands(rng, (1,), 1, 1, 64, 8, 8, 8)
    near = 2**22 - 32
    whole = native.run(calls.build(q, k, v, offset=near, slopes=np.array([1e-6])), level)
    for i in (0, 20, 31, 32, 40, 63):
        one = native.run(calls.build(q[:, :, i : i + 1], k, v, offset=near + i, slopes=np.array([1e-6])), level)
        assert calls.same_bits(one.output[:, :, 0], whole.output[:, :, i])


def test_many_ranges_a_row(level):
    rng = np.random.default_rng(5)
    L, S, K = 21, 300, 5
    q, k, v = calls.operands(rng, (3,), 2, 1, L, S, 16, 16)
    edges = np.sort(rng.integers(0, S + 1, (3, L, 2 * K)), axis=-1)
    lo, hi = edges[..., 0::2].copy(), edges[..., 1::2].copy()
    hi[:, ::4, 1] = lo[:, ::4, 1]  # an empty one in the middle
    lo[0, 3], hi[0, 3] = 0, 0  # a row without keys
    lo[1, 5], hi[1, 5] = [0, 10, 10, 20, 20], [10, 10, 20, 20, S]  # touching ones
    for block, split in ((16, 32), (32, 32), (64, 512), (7, 21), (1024, 1024)):
        call = calls.build(q, k, v, ranges=(lo, hi), block=block, split=split, sink=np.array([0.0, 1.0]))
        calls.assert_defined(call, native.run(call, level))
    call = calls.build(q, k, v, ranges=(lo, hi))
    result = native.run(call, level)
    calls.assert_defined(call, result)
    assert result.lse[0, 0, 3] == -np.inf
    assert result.status[0, 0, 3] == 0
    assert result.status_all == 0


def test_no_range_a_row_is_no_key(level):
    rng = np.random.default_rng(6)
    q, k, v = calls.operands(rng, (2,), 4, 2, 70, 300, 16, 16)
    nothing = np.zeros((2, 70, 0), np.int32)
    native.run(calls.build(q, k, v), level)  # leaves its ranges in the memory that the next call is given
    for spread in (False, True):
        call = calls.build(q, k, v, ranges=(nothing, nothing), tile_rows=8, spread=spread, threads=2)
        result = native.run(call, level)
        assert (result.output == 0).all()
        assert (result.lse == -np.inf).all()
        assert result.status_any == 0


def test_ranges_are_clamped_to_the_keys(level):
    rng = np.random.default_rng(6)
    q, k, v = calls.operands(rng, (1,), 1, 1, 3, 9, 4, 4)
    wild = np.array([[[-(2**31)], [-5], [4]]]), np.array([[[2**31 - 1], [6], [1000]]])
    tame = np.array([[[0], [0], [4]]]), np.array([[[9], [6], [9]]])
    a, b = (native.run(calls.build(q, k, v, ranges=r), level) for r in (wild, tame))
    assert calls.same_bits(a.output, b.output)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_keys_no_rows_no_batch(level, dtype):
    rng = np.random.default_rng(7)
    q, k, v = calls.operands(rng, (2,), 2, 1, 3, 0, 4, 5, dtype)
    for spread in (False, True):
        r = native.run(calls.build(q, k, v, dtype, spread=spread), level)
        assert (calls.widen(r.output, dtype) == 0).all()
        assert (r.lse == -np.inf).all()
        assert (r.status_any, r.status_all, r.blocks_touched) == (0, 0, 0)
        state = native.run(calls.build(q, k, v, dtype, spread=spread, want="state"), level)
        assert (state.max == -np.inf).all()
        assert (state.sum == 0).all()
        assert (state.mix == 0).all()
    sink = native.run(calls.build(q, k, v, dtype, sink=np.array([1.5, -2.0])), level)
    assert (sink.lse == np.array([1.5, -2.0])[:, None]).all()
    assert (calls.widen(sink.output, dtype) == 0).all()
    q, k, v = calls.operands(rng, (2,), 2, 1, 0, 3, 4, 5, dtype)
    assert native.run(calls.build(q, k, v, dtype), level).output.shape == (2, 2, 0, 5)
    q, k, v = calls.operands(rng, (0, 3), 2, 1, 2, 3, 4, 5, dtype)
    assert native.run(calls.build(q, k, v, dtype), level).output.shape == (0, 3, 2, 2, 5)


def test_the_state_is_that_of_the_keys_alone(level):
    """max, sum and mix are what output and lse follow from, and the sink is in none of them (E1)."""
    rng = np.random.default_rng(8)
    q, k, v = calls.operands(rng, (1,), 2, 1, 9, 70, 8, 8)
    sink = np.array([0.3, 4.0])
    call = calls.build(q, k, v, block=8, split=16)
    state = native.run(calls.build(q, k, v, block=8, split=16, want="state", sink=sink), level)
    plain = native.run(call, level)
    assert calls.same_bits(state.mix, plain.output)
    # Two logarithms, each within a unit in the last place, and the addition.
    lse = state.max.astype(float) + np.log(state.sum.astype(float))
    assert (np.abs(lse - plain.lse) <= 2.0**-24 * (2 * np.abs(np.log(state.sum)) + np.abs(lse))).all()
    scores = np.einsum("bhld,bhsd->bhls", q.astype(float), np.repeat(k, 2, 1).astype(float)) / np.sqrt(8)
    assert np.allclose(state.max, scores.max(-1), rtol=0, atol=100 * 2.0**-24 * np.abs(scores).max())
    assert state.output is None
    assert state.lse is None


def test_half_precision_leaves_rounded_to_nearest_even(level):
    """One key: the output is the value itself, bit for bit, for every finite bit pattern."""
    patterns = np.arange(2**16, dtype=np.uint16)
    for dtype, exponent in (("float16", 0x7C00), ("bfloat16", 0x7F80)):
        finite = patterns[(patterns & exponent) != exponent]
        value = finite.reshape(1, 1, 1, -1)
        value = value.view(np.float16) if dtype == "float16" else value
        one = calls.store(np.ones((1, 1, 1, 1)), dtype)
        out = native.run(calls.build(one, one, value, dtype), level).output.view(np.uint16).ravel()
        zero = finite & 0x7FFF == 0
        assert (out[~zero] == finite[~zero]).all()
        assert (out[zero] & 0x7FFF == 0).all()


def test_half_precision_means_round_to_nearest_even(level):
    """Two keys of equal weight: the output is the exact mean, rounded once."""
    rng = np.random.default_rng(9)
    for dtype, exponent in (("float16", 0x7C00), ("bfloat16", 0x7F80)):
        patterns = rng.integers(0, 2**16, (2, 4096)).astype(np.uint16)
        patterns = np.where((patterns & exponent) == exponent, patterns & 0x83FF, patterns)
        # Neighbouring numbers: their means are ties.
        patterns[1, ::2] = np.where(
            (patterns[0, ::2] & exponent) < exponent - 0x80, patterns[0, ::2] + 1, patterns[0, ::2]
        )
        value = patterns.view(np.float16) if dtype == "float16" else patterns
        one = calls.store(np.zeros((1, 1, 1, 1)), dtype)
        keys = calls.store(np.zeros((1, 1, 2, 1)), dtype)
        got = native.run(calls.build(one, keys, value[None, None], dtype), level).output.ravel()
        exact = calls.widen(value, dtype).mean(axis=0).astype(np.float32)
        assert (calls.widen(got, dtype) == calls.widen(calls.store(exact, dtype), dtype)).all()


def test_the_exponential_keeps_small_weights(level):
    """Weights down to the smallest subnormal number, against exact powers: exp(-x) of one key beside exp(0) of another."""
    gaps = np.concatenate([np.linspace(0, 20, 401), np.linspace(80, 104, 97)]).astype(np.float32)
    q = -gaps.reshape(1, 1, -1, 1)
    k = np.array([0.0, 1.0], np.float32).reshape(1, 1, 2, 1)
    v = np.array([0.0, 1.0], np.float32).reshape(1, 1, 2, 1)
    r = native.run(calls.build(q, k, v, scale=1.0), level).output.ravel().astype(float)
    weight = np.exp(-gaps.astype(float)) / (1 + np.exp(-gaps.astype(float)))
    # exp, the sum and the division: a unit in the last place each; half a smallest number where weights are subnormal.
    assert (np.abs(r - weight) <= 4 * 2.0**-24 * weight + 2.0**-149).all()
    q = -np.concatenate([np.linspace(0, 40, 401), np.linspace(700, 746, 93)]).reshape(1, 1, -1, 1)
    r = native.run(calls.build(q, k.astype(float), v.astype(float), "float64", scale=1.0), level).output.ravel()
    weight = np.exp(q.ravel().astype(np.longdouble))
    weight = weight / (1 + weight)
    assert (np.abs(r - weight) <= 4 * 2.0**-53 * weight + np.longdouble(2.0**-1074)).all()
