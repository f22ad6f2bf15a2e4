"""bfloat16 scores by products of pairs, where the processor has them: what the instruction cannot do is done otherwise.

The instruction takes subnormal numbers for zeros and adds up without the scale. The laws hold at every level, so every
level is asked; at those without the instruction they hold trivially.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]
LEVELS = native.levels() if native.available() else ()
LEAST = 2.0**-133  # the smallest bfloat16; up to 127 of it are subnormal


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [2, 30, 64, 128, 130])
@pytest.mark.parametrize("which", ["query", "key", "both"])
def test_subnormal_numbers_count(level, width, which):
    """A subnormal times a huge number is an ordinary score: in prefill, in decoding, and among ordinary keys (F2, F3)."""
    rng = np.random.default_rng(width)
    query, key, value = calls.operands(rng, (1,), 2, 1, 9, 70, width, 6, "bfloat16")
    wide_q, wide_k = calls.widen(query, "bfloat16"), calls.widen(key, "bfloat16")
    if which != "key":
        wide_q[..., 0], wide_k[..., 0] = 0, 2.0**126
        wide_q[:, :, ::3, 0] = LEAST * rng.integers(1, 60, wide_q[:, :, ::3, 0].shape)
    if which != "query":
        wide_k[..., 1], wide_q[..., 1] = 0, 2.0**126
        wide_k[:, :, ::4, 1] = -LEAST * rng.integers(1, 60, wide_k[:, :, ::4, 1].shape)
    call = calls.build(
        calls.store(wide_q, "bfloat16"),
        calls.store(wide_k, "bfloat16"),
        value,
        "bfloat16",
        causal=True,
        offset=61,
        scale=1.0,
    )
    whole = native.run(call, level)
    calls.assert_defined(call, whole)
    for row in range(9):
        part = calls.build(
            call.query[:, :, row : row + 1], call.key, value, "bfloat16", causal=True, offset=61 + row, scale=1.0
        )
        alone = native.run(part, level)
        assert calls.same_bits(alone.output[:, :, 0], whole.output[:, :, row])
        assert calls.same_bits(alone.lse[:, :, 0], whole.lse[:, :, row])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_a_sum_that_overflows_without_its_scale_is_no_overflow(level, rows, softcap):
    """3e19 · 3e19 is beyond float32, and 18 once it is scaled (D3)."""
    rng = np.random.default_rng(rows)
    query, key, value = calls.operands(rng, (1,), 2, 2, rows, 50, 16, 4, "bfloat16")
    wide_q, wide_k = calls.widen(query, "bfloat16"), calls.widen(key, "bfloat16")
    wide_q[..., 3], wide_k[:, :, ::2, 3] = 3e19, 3e19
    wide_q[..., 8], wide_k[:, :, 1::4, 8] = 3e19, -3e19
    options = {"softcap": softcap} if softcap else {}
    call = calls.build(
        calls.store(wide_q, "bfloat16"), calls.store(wide_k, "bfloat16"), value, "bfloat16", scale=2e-38, **options
    )
    result = native.run(call, level)
    assert not (result.status & ~np.uint8(1)).any()
    calls.assert_defined(call, result)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_where_the_numbers_lie_changes_no_bit(level, rows):
    """Steps between neighbouring numbers, heads last, rows far apart, forbidden rows of NaN between them (D1, F3)."""
    rng = np.random.default_rng(rows)
    query, key, value = calls.operands(rng, (2,), 4, 2, rows, 90, 36, 8, "bfloat16")
    key[:, :, 7, 2] = 3  # subnormal
    right = native.run(calls.build(query, key, value, "bfloat16", window=50, causal=True, offset=90 - rows), level)

    def spread(x: np.ndarray) -> np.ndarray:
        out = np.full((*x.shape[:-1], 3 * x.shape[-1]), 0x7FC0, np.uint16)[..., ::3]
        out[:] = x
        return out

    def heads_last(x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)

    for move in (spread, heads_last):
        call = calls.build(move(query), move(key), move(value), "bfloat16", window=50, causal=True, offset=90 - rows)
        assert calls.same_bits(native.run(call, level).output, right.output)
    spoiled = key.copy()
    spoiled[:, :, : 90 - rows - 50] = 0x7FC0
    call = calls.build(query, spoiled, value, "bfloat16", window=50, causal=True, offset=90 - rows)
    assert calls.same_bits(native.run(call, level).output, right.output)


@pytest.mark.parametrize("level", LEVELS)
def test_an_odd_width_goes_the_other_way(level):
    query, key, value = calls.operands(np.random.default_rng(3), (1,), 2, 1, 20, 60, 33, 5, "bfloat16")
    call = calls.build(query, key, value, "bfloat16")
    result = native.run(call, level)
    calls.assert_defined(call, result)
    last = calls.build(query[:, :, -1:], key, value, "bfloat16")
    assert calls.same_bits(
        native.run(dataclasses.replace(last, threads=3), level).output[:, :, 0], result.output[:, :, -1]
    )
