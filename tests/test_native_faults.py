"""What may not leak, and what has to be said: NaN, infinities, overflow (B3, C2, C3, D1 to D3)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()
DTYPES = tuple(calls.COMPUTE)
ALLOWED, NONFINITE, OVERFLOW, LOW = 1, 2, 4, 8
LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": 3.4028234e38,
    "float64": 1.7976931348623157e308,
}


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def small(dtype="float32", L=1, S=2, D=2, E=2, H=1, **options):
    """Zeros everywhere: equal weights."""
    shape = (1, H, 1)
    q, k, v = (calls.store(np.zeros((1, h, n, w)), dtype) for h, n, w in ((H, L, D), (H, S, D), (H, S, E)))
    assert q.shape[:1] == shape[:1]
    return q, k, v, options


# What a number means when it is stored where no allowed pair reads it.
JUNK = (np.nan, np.inf, -np.inf, 3e38, -3e38)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_only_the_rows_that_reach_a_bad_number_know_of_it(level, dtype, seed):
    """A NaN or infinity in any operand makes NaN of exactly the rows that may read it; the others keep their bits (D1, D2)."""
    rng = np.random.default_rng(seed)
    H, G, L, S = 4, 2, 30, 80
    q, k, v = calls.operands(rng, (2,), H, G, L, S, 9, 11, dtype)
    bias = calls.store(rng.standard_normal((2, H, L, S)), dtype)
    allow = rng.random((2, H, L, S)) < 0.5
    ranged = {"causal": True, "offset": S - L, "window": 25}
    for options in (ranged, {"allow": allow}, {**ranged, "allow": allow, "bias": bias, "bias_dtype": dtype}):
        call = calls.build(q, k, v, dtype, block=16, split=32, tile_rows=int(rng.integers(1, 40)), threads=2, **options)
        clean = native.run(call, level)
        reach = calls.allowed(call)
        poison = calls.store(np.array([np.nan, np.inf, -np.inf]), dtype)
        hurt = {name: getattr(call, name) for name in ("query", "key", "value", "bias")}
        bad = np.zeros((2, H, L), bool)
        for name in ("query", "key", "value", "bias"):
            if hurt[name] is None:
                continue
            hurt[name] = hurt[name].copy()
            for _ in range(2):
                n, h, i, c = (int(rng.integers(0, m)) for m in hurt[name].shape)
                kind = int(rng.integers(0, 2 if name == "bias" else 3))  # a bias of -inf only forbids
                hurt[name][n, h, i, c] = poison[kind]
                if name == "query":
                    bad[n, h, i] |= reach[n, h, i].any()
                elif name == "bias":
                    bad[n, h, i] |= reach[n, h, i, c]
                else:
                    bad[n, 2 * h : 2 * h + 2] |= reach[n, 2 * h : 2 * h + 2, :, i]
        result = native.run(dataclasses.replace(call, **hurt), level)
        output = calls.widen(result.output, dtype)
        assert ((result.status & NONFINITE != 0) == bad).all()
        assert np.isnan(output[bad]).all()
        assert np.isnan(result.lse[bad]).all()
        assert calls.same_bits(result.output[~bad], clean.output[~bad])
        assert calls.same_bits(result.lse[~bad], clean.lse[~bad])
        assert (result.status[~bad] == clean.status[~bad]).all()
        state = native.run(dataclasses.replace(call, want="state", **hurt), level)
        for x in (state.max, state.sum, state.mix):
            assert (np.isnan(x).reshape(2, H, L, -1).all(-1) == bad).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_forbidden_pairs_may_hold_anything(level, dtype):
    """The same rows, whatever stands at pairs that range, mask or bias forbid; in the bias array itself, too."""
    rng = np.random.default_rng(10)
    L, S = 12, 50
    q, k, v = calls.operands(rng, (1,), 2, 1, L, S, 8, 8, dtype)
    allow = rng.random((1, 2, L, S)) < 0.6
    dead = rng.random(S) < 0.3
    allow[..., dead] = False
    bias = calls.store(rng.standard_normal((1, 2, L, S)), dtype)
    for split in (32, 64):
        call = calls.build(q, k, v, dtype, block=16, split=split, bias=bias, bias_dtype=dtype, allow=allow)
        clean = native.run(call, level)
        for junk in JUNK:
            with np.errstate(all="ignore"):
                bad = calls.store(np.array(junk), dtype)
            kk, vv = k.copy(), v.copy()
            kk[..., dead, :], vv[..., dead, :] = bad, bad
            b = np.where(allow, bias, bad)
            if b.dtype != bias.dtype:
                b = b.astype(bias.dtype)
            dirty = native.run(dataclasses.replace(call, key=kk, value=vv, bias=b), level)
            assert calls.same_bits(clean.output, dirty.output)
            assert calls.same_bits(clean.lse, dirty.lse)
            assert (clean.status == dirty.status).all()


def test_a_pair_that_the_bias_forbids_sets_no_flag(level):
    q, k, v, _ = small()
    k[..., 1, :], v[..., 1, :] = np.nan, np.inf
    bias = np.array([0, -np.inf], np.float32).reshape(1, 1, 1, 2)
    r = native.run(calls.build(q, k, v, bias=bias), level)
    assert r.status.item() == ALLOWED
    assert (r.output == 0).all()
    both = native.run(calls.build(q, k, v, bias=np.full((1, 1, 1, 2), -np.inf, np.float32)), level)
    assert both.status.item() == 0
    assert both.lse.item() == -np.inf


def test_the_most_negative_number_is_a_number(level):
    """B3, C3: it beats every forbidden key, and beside a larger score its weight is an ordinary 0."""
    for dtype in ("float32", "float64"):
        q, k, v, _ = small(dtype)
        v[..., 0, :], v[..., 1, :] = 5, 7
        low = -LARGEST[dtype]
        bias = np.array([low, -np.inf]).astype(dtype).reshape(1, 1, 1, 2)
        r = native.run(calls.build(q, k, v, dtype, bias=bias, bias_dtype=dtype), level)
        assert (r.output == 5).all()
        assert r.lse.item() == np.asarray(low, dtype)
        assert r.status.item() == ALLOWED
        bias = np.array([low, 0]).astype(dtype).reshape(1, 1, 1, 2)
        r = native.run(calls.build(q, k, v, dtype, bias=bias, bias_dtype=dtype), level)
        assert (r.output == 7).all()


def test_a_query_without_keys_may_hold_anything(level):
    q, k, v, _ = small(L=2)
    q[..., 1, :] = np.nan
    r = native.run(calls.build(q, k, v, ranges=(np.array([[[0], [1]]]), np.array([[[2], [1]]]))), level)
    assert r.status.ravel().tolist() == [ALLOWED, 0]
    assert r.lse.ravel()[1] == -np.inf
    huge = native.run(calls.build(np.where(np.isnan(q), 3e38, q).astype(np.float32), k, v, scale=10.0), level)
    assert huge.status.ravel().tolist() == [ALLOWED, ALLOWED | OVERFLOW]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixture_of_the_largest_numbers_is_finite(level, dtype):
    """D3: four equal keys with v = 2e38 give 2e38; exact means stay exact."""
    for S in (4, 100, 1000):
        q, k, v, _ = small(dtype, S=S, E=3, L=3)
        v = calls.store(np.stack([np.full(S, LARGEST[dtype]), np.full(S, -LARGEST[dtype]), np.ones(S)], -1), dtype)
        for plan in (
            {"block": 16, "split": 64},
            {"block": 1024, "split": 1024},
            {"block": 16, "split": 64, "spread": True},
        ):
            r = native.run(calls.build(q, k, v[None, None], dtype, **plan), level)
            out = calls.widen(r.output, dtype)
            assert np.isfinite(out).all()
            # What is added up on the way: S addends, then one merge a split.
            unit = 2.0 ** -(53 if dtype == "float64" else 24)
            assert (np.abs(out[..., 0] / LARGEST[dtype] - 1) <= 2 * S * unit).all()
            assert (out[..., 1] == -out[..., 0]).all()
            assert (r.status == ALLOWED).all()
    q, k, v, _ = small("float32", S=4, E=1)
    v[...] = 2e38
    assert native.run(calls.build(q, k, v), level).output.item() == np.float32(2e38)


def test_a_mixture_that_only_passes_through_infinity(level):
    """Sums that overflow and come back: the exact mean is small, its error is one of the large addends' roundings."""
    q, k, v, _ = small("float32", S=6, E=1)
    v[0, 0, :, 0] = [3e38, 3e38, 3e38, -3e38, -3e38, -3e38]
    r = native.run(calls.build(q, k, v), level)
    assert abs(r.output.item()) <= 6 * 2.0**-24 * 3e38
    q, k, v, _ = small("float32", S=40, E=2)
    v[0, 0, :, 0], v[0, 0, :, 1] = 3.4e38, 1.5
    r = native.run(calls.build(q, k, v, block=8, split=16, slopes=np.array([0.1]), softcap=3.0), level)
    assert np.isfinite(r.output).all()
    assert abs(r.output[..., 1].item() - 1.5) <= 100 * 2.0**-24


def test_mixing_again_uses_the_row_s_own_keys_only(level):
    """The rescued row has ranges, mask, bias, softcap and ALiBi like any other, and its neighbours keep their bits."""
    rng = np.random.default_rng(12)
    L, S = 20, 70
    q, k, v = calls.operands(rng, (1,), 2, 1, L, S, 8, 5)
    bias = rng.standard_normal((1, 2, L, S)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.2] = -np.inf
    options = {
        "causal": True,
        "offset": 50,
        "window": 40,
        "bias": bias,
        "allow": rng.random((1, 2, L, S)) < 0.7,
        "softcap": 4.0,
        "slopes": np.array([0.1, 0.02]),
        "sink": np.array([0.0, 2.0]),
        "block": 8,
        "split": 24,
    }
    clean = native.run(calls.build(q, k, v, **options), level)
    v[..., 30:50, 2] = np.where(rng.random(20) < 0.7, 3.3e38, -3.3e38)
    call = calls.build(q, k, v, **options)
    r = native.run(call, level)
    assert np.isfinite(r.output).all()
    assert (r.status <= ALLOWED).all()
    calls.assert_defined(call, r)
    assert calls.same_bits(np.delete(r.output, 2, -1), np.delete(clean.output, 2, -1))
    for i in (0, 3, 19):
        one = native.run(
            dataclasses.replace(
                call,
                query=q[..., i : i + 1, :],
                offset=call.offset + i,
                lo=call.lo[:, i : i + 1],
                hi=call.hi[:, i : i + 1],
                bias=bias[..., i : i + 1, :],
                allow=call.allow[..., i : i + 1, :],
            ),
            level,
        )
        assert calls.same_bits(one.output[..., 0, :], r.output[..., i, :])


def test_a_score_that_overflows_upwards(level):
    for dtype in ("float32", "float64"):
        big = LARGEST[dtype] ** 0.5 * 2
        q, k, v, _ = small(dtype, S=3)
        q[...], k[..., 1, :] = big, big
        for options in ({}, {"softcap": 5.0}, {"slopes": np.array([1.0])}, {"sink": np.array([1.0])}):
            r = native.run(calls.build(q, k, v, dtype, scale=1.0, **options), level)
            assert r.status.item() == ALLOWED | OVERFLOW
            assert np.isnan(r.output).all()
            assert np.isnan(r.lse).all()
        # … and not for a row that may not read it.
        lo = np.array([[[2]]])
        r = native.run(calls.build(q, k, v, dtype, scale=1.0, ranges=(lo, lo + 1)), level)
        assert r.status.item() == ALLOWED


def test_a_score_that_overflows_downwards(level):
    for dtype in ("float32", "float64"):
        big = LARGEST[dtype] ** 0.5 * 2
        q, k, v, _ = small(dtype, S=3)
        v[..., 0, :] = 4
        q[...], k[..., 1:, :] = big, -big
        r = native.run(calls.build(q, k, v, dtype, scale=1.0), level)
        assert r.status.item() == ALLOWED | LOW
        assert (r.output == 4).all()
        # All of a row's scores fell: there is no right answer, but as a part of a larger whole it is empty.
        lost = calls.build(q, k[..., 1:, :], v[..., 1:, :], dtype, scale=1.0)
        r = native.run(lost, level)
        assert r.status.item() == ALLOWED | LOW
        assert np.isnan(r.output).all()
        assert np.isnan(r.lse).all()
        assert np.isnan(native.run(dataclasses.replace(lost, sink=np.array([1.0])), level).output).all()
        part = native.run(dataclasses.replace(lost, want="state"), level)
        assert (part.max == -np.inf).all()
        assert (part.sum == 0).all()
        assert (part.mix == 0).all()
        # With a softcap the score is -c, an ordinary number.
        r = native.run(calls.build(q, k, v, dtype, scale=1.0, softcap=2.0), level)
        assert r.status.item() == ALLOWED
        weight = np.exp(-2.0) * np.array([np.exp(2.0), 1, 1]) / (1 + 2 * np.exp(-2.0))
        assert np.allclose(r.output, 4 * weight[0], rtol=8 * 2.0**-24, atol=0)


def test_a_partial_sum_that_overflows_downwards_is_no_weight_0(level):
    """-inf on the way to a finite score: a wrong finite answer would be silent, so it is the error (D3)."""
    for dtype in ("float32", "float64"):
        big = float(LARGEST[dtype]) ** 0.5
        q, k, v, _ = small(dtype, S=2, D=4)
        q[...] = big
        k[0, 0, 1] = [-big * 0.9, -big * 0.9, big * 0.9, big * 0.9]
        for options in ({}, {"softcap": 3.0}):
            r = native.run(calls.build(q, k, v, dtype, scale=1.0, **options), level)
            assert r.status.item() == ALLOWED | OVERFLOW
        # Exactly at the limit: the sum is a finite number below the largest, reached through -inf or not.
        k[0, 0, 1] = [-big * 0.9, -big * 0.9, -big * 0.9, 0]
        assert native.run(calls.build(q, k, v, dtype, scale=1.0), level).status.item() == ALLOWED | LOW


def test_a_bias_that_takes_a_score_over_the_edge(level):
    q, k, v, _ = small("float32", S=2, D=1)
    q[...], k[0, 0, :, 0] = 1, [3e38, 1]
    for bias, status in ((3e38, ALLOWED | OVERFLOW), (-3e38, ALLOWED)):
        b = np.array([bias, 0], np.float32).reshape(1, 1, 1, 2)
        assert native.run(calls.build(q, k, v, scale=1.0, bias=b), level).status.item() == status
        r = native.run(calls.build(q, k, v, scale=-1.0, bias=-b), level)
        assert r.status.item() == (ALLOWED | LOW if bias > 0 else ALLOWED)


def test_scaling_the_query_over_the_edge(level):
    q, k, v, _ = small("float32", L=2)
    q[..., 0, :], q[..., 1, :] = 1e38, 1
    r = native.run(calls.build(q, k, v, scale=1e3), level)
    assert r.status.ravel().tolist() == [ALLOWED | OVERFLOW, ALLOWED]
    assert np.isnan(r.output[..., 0, :]).all()
    assert not np.isnan(r.output[..., 1, :]).any()
    r = native.run(calls.build(q, k, v, scale=1e300), level)  # itself not a float32
    assert (r.status == ALLOWED | OVERFLOW).all()


def test_ordinary_float16_input_does_not_overflow(level):
    """q = k = 300 at D = 64: scores of 720,000 (D3)."""
    q, k, v, _ = small("float16", S=3, D=64)
    q[...], k[...], v[...] = 300, 300, 2
    r = native.run(calls.build(q, k, v, "float16"), level)
    assert r.status.item() == ALLOWED
    assert (r.output == 2).all()
    assert r.lse.item() == np.float32(720000 + np.log(3))


def test_softcaps_of_any_size(level):
    """Relative accuracy near 0, and caps beyond the compute type."""
    rng = np.random.default_rng(13)
    for dtype in ("float32", "float64"):
        for scale in (1e-20, 1e-3, 1.0, 30.0):
            q, k, v = calls.operands(rng, (1,), 1, 1, 7, 11, 5, 5, dtype)
            for cap in (1e-300, 1e-30, 1e-3, 1.0, 50.0, 1e30, 1e300):
                call = calls.build(q, k, v, dtype, scale=scale, softcap=cap)
                r = native.run(call, level)
                assert (r.status == ALLOWED).all()
                calls.assert_defined(call, r)
                one = calls.build(q[..., :1, :], k[..., :1, :], v[..., :1, :], dtype, scale=scale, softcap=cap)
                s = float(q[0, 0, 0].astype(float) @ k[0, 0, 0].astype(float)) * scale
                if float(np.finfo(dtype).tiny) * 2**30 < cap < float(np.finfo(dtype).max):
                    exact = cap * np.tanh(s / cap) if abs(s) > cap * 1e-9 else s  # s / cap may be subnormal
                    size = scale * float(np.abs(q[0, 0, 0].astype(float)) @ np.abs(k[0, 0, 0].astype(float)))
                    unit = np.finfo(dtype).eps / 2
                    assert abs(native.run(one, level).lse.item() - exact) <= (size * 12 + abs(exact) * 8) * unit


# --- against an oracle -------------------------------------------------------------------------------------------


def oracle(call: native.Call, fused: bool):
    """The arithmetic of the engine for float32, pair by pair, in plain Python: status, and scores that decide it.

    fused: whether products and sums are rounded once. The float64 sum of an exact product and a float32 is rounded
    twice, which may differ from one rounding in the last place, but not in whether it overflows for these operands.
    """
    f = np.float32
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (call.query, call.key, call.value))
    reach = calls.allowed(call)
    N, H, L, S = reach.shape
    share = H // k.shape[1]
    status = np.zeros((N, H, L), np.uint8)
    scores = np.full((N, H, L, S), -np.inf, f)
    bias = None if call.bias is None else call.bias.reshape(N, H, L, S)
    for n, h, i, j in np.argwhere(reach):
        g = h // share
        bits = ALLOWED
        if not (np.isfinite(q[n, h, i]).all() and np.isfinite(k[n, g, j]).all() and np.isfinite(v[n, g, j]).all()):
            bits |= NONFINITE
        if bias is not None and not np.isfinite(bias[n, h, i, j]):
            bits |= NONFINITE
        if not bits & NONFINITE:
            scaled = q[n, h, i] * f(call.scale)
            if not np.isfinite(scaled).all():
                bits |= OVERFLOW
            else:
                s = f(0)
                for a, b in zip(scaled, k[n, g, j], strict=True):
                    s = f(np.float64(a) * np.float64(b) + np.float64(s)) if fused else f(f(a * b) + s)
                exact = sum(int_times(a, b) for a, b in zip(scaled, k[n, g, j], strict=True))
                if not s < np.inf or (s == -np.inf and exact > -int(LARGEST["float32"])):
                    bits |= OVERFLOW
                else:
                    if call.softcap:
                        s = f(call.softcap) * f(np.tanh(np.float64(s) / call.softcap))
                    if bias is not None:
                        s = s + bias[n, h, i, j]
                        if not s < np.inf:
                            bits |= OVERFLOW
                    if s == -np.inf:
                        bits |= LOW
                    scores[n, h, i, j] = s
        status[n, h, i] |= bits
    return status, scores


def int_times(a, b):
    """a · b as an exact number (a fraction of integers)."""
    from fractions import Fraction

    return Fraction(float(a)) * Fraction(float(b))


PALETTE = np.array([0, 1, -1, 0.5, 1e19, -1e19, 1.8e19, -1.8e19, 3e38, -3e38, 1e-38, 1e30, -1e30], np.float32)


@pytest.mark.parametrize("seed", range(12))
def test_every_flag_of_wild_operands(level, seed):
    rng = np.random.default_rng(100 + seed)
    shapes = {"query": (2, 4, 6, 3), "key": (2, 2, 9, 3), "value": (2, 2, 9, 2)}
    wild = rng.random() * 0.6
    operand = {}
    for name, shape in shapes.items():
        x = np.where(rng.random(shape) < wild, rng.choice(PALETTE, shape), rng.standard_normal(shape)).astype(
            np.float32
        )
        if seed % 3 == 0:
            x[rng.random(shape) < 0.03] = rng.choice([np.nan, np.inf, -np.inf])
        operand[name] = x
    options = {}
    if seed % 2:
        bias = rng.choice(np.array([0, 1, -np.inf, 3e38, -3e38, -3.4028235e38], np.float32), (2, 4, 6, 9))
        if seed % 4 == 1:
            bias[rng.random(bias.shape) < 0.03] = rng.choice([np.nan, np.inf])
        options["bias"] = bias
    if seed % 5 == 2:
        options["softcap"] = 4.0
    if seed % 4 > 1:
        options["allow"] = rng.random((2, 4, 6, 9)) < 0.6
    call = calls.build(*operand.values(), scale=1.0, causal=bool(seed % 3), offset=2, block=4, split=8, **options)
    with np.errstate(all="ignore"):
        status, scores = oracle(call, fused=level != "portable")
    r = native.run(call, level)
    # A row that read a NaN is lost already; whether a score overflowed as well says nothing more.
    read = status & NONFINITE != 0
    assert (r.status[~read] == status[~read]).all()
    assert (r.status[read] & (ALLOWED | NONFINITE) == status[read] & (ALLOWED | NONFINITE)).all()
    lost = (status & (NONFINITE | OVERFLOW) != 0) | ((status & ALLOWED != 0) & (scores == -np.inf).all(-1))
    assert (np.isnan(r.output).all(-1) == lost).all()
    assert (np.isnan(r.lse) == lost).all()
    assert np.isfinite(r.output[~lost]).all()
    # The finite rows are right: float64 from the same scores.
    scores = np.where(lost[..., None], 0, scores).astype(float)
    top = scores.max(-1, keepdims=True)
    weight = np.exp(scores - np.where(np.isneginf(top), 0, top))
    weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-300)
    value = np.repeat(np.where(np.isfinite(operand["value"]), operand["value"], 0).astype(float), 2, axis=1)
    mean, size = (np.einsum("nhls,nhse->nhle", weight, x) for x in (value, np.abs(value)))
    unit = 2.0**-24
    # A score near a large one is itself known to a unit of it only; a few units on top.
    slack = 1e-3 if seed % 5 == 2 else 0
    close = np.abs(r.output - mean) <= (200 * unit + slack) * size + 9 * 2.0**-149 * np.abs(value).sum(-2)[:, :, None]
    assert close[~lost].all()
