"""Few rows, as in decoding, go a way of their own through the kernel: the same bits, faults included (F3, D1, D2, D3)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()
WHERE = ("", "key", "value", "query", "both sides of the mask", "overflow", "low", "large values")


def spaced(x: np.ndarray) -> np.ndarray:
    """The same numbers in rows that lie apart, columns side by side."""
    wide = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def odd_call(seed: int, dtype: str, where: str) -> native.Call:
    """A random call of awkward sizes with a fault planted."""
    rng = np.random.default_rng(seed)
    D, E = rng.choice([1, 3, 7, 8, 9, 16, 24, 33, 64, 70], 2)
    S, L = int(rng.choice([1, 2, 15, 31, 32, 33, 63, 65, 129, 300])), 7
    H, G = [(1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (6, 1)][rng.integers(6)]
    q, k, v = calls.operands(rng, (2,), H, G, L, S, int(D), int(E), dtype)
    j = int(rng.integers(S))
    largest = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}[dtype]
    if where in ("key", "value", "query"):
        x = {"key": k, "value": v, "query": q}[where]
        x[0, 0, min(j, x.shape[-2] - 1), -1] = calls.store(rng.choice([np.nan, np.inf, -np.inf], 1), dtype)[0]
    elif where == "both sides of the mask":
        k[:, :, j], v[:, :, j] = calls.store(np.array([np.nan, np.inf]), dtype)
    elif where in ("overflow", "low"):
        q[0, 0, :, 0], k[0, 0, j, 0] = calls.store(np.array([largest, -largest if where == "low" else largest]), dtype)
    elif where == "large values":
        v[...] = calls.store(np.full(v.shape, largest), dtype)
    options = {}
    if rng.random() < 0.3:
        options["softcap"] = 5.0
    if rng.random() < 0.3:
        options["slopes"] = 2.0 ** -np.arange(1.0, H + 1)
    if rng.random() < 0.3:
        options["bias"] = rng.standard_normal((2, H, L, S)).astype(np.float32)
        options["bias"][rng.random(options["bias"].shape) < 0.2] = -np.inf
    if where == "both sides of the mask":
        options["allow"] = np.ones((2, H, L, S), bool)
        options["allow"][0, :, :, j] = False
        options["allow"][1, :, ::2, j] = False
    elif rng.random() < 0.3:
        options["allow"] = rng.random((2, H, L, S)) < 0.7
    if rng.random() < 0.5:
        options["causal"] = True
        options["offset"] = S - L
    if rng.random() < 0.3:
        options["window"] = int(rng.integers(S))
    if rng.random() < 0.5:
        q, k, v = spaced(q), spaced(k), spaced(v)
    return calls.build(q, k, v, dtype, block=32, split=64, tile_rows=L, **options)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", tuple(calls.COMPUTE))
@pytest.mark.parametrize("level", LEVELS)
def test_f3_one_row_at_a_time_has_the_bits_of_a_tile(level, dtype, where):
    for seed in range(12):
        call = odd_call(seed, dtype, where)
        apart = dataclasses.replace(  # columns apart are packed, whatever the number of rows
            call, key=np.repeat(call.key, 2, axis=-1)[..., ::2], value=np.repeat(call.value, 2, axis=-1)[..., ::2]
        )
        for want in ("output", "state"):
            whole = native.run(dataclasses.replace(call, tile_rows=16, want=want), level)
            for other in (call, apart):
                for rows, spread in ((1, False), (1, True), (2, False)):
                    few = native.run(
                        dataclasses.replace(other, tile_rows=rows, spread=spread, threads=2, want=want), level
                    )
                    for name in ("output", "lse", "max", "sum", "mix", "status"):
                        assert calls.same_bits(getattr(few, name), getattr(whole, name)), (seed, name, rows, spread)


@pytest.mark.parametrize("dtype", tuple(calls.COMPUTE))
@pytest.mark.parametrize("level", LEVELS)
def test_f2_few_rows_are_as_defined(level, dtype):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        D, E = (int(x) for x in rng.choice([1, 5, 8, 31, 64], 2))
        S = int(rng.choice([1, 31, 33, 200]))
        call = calls.build(*calls.operands(rng, (1,), 3, 1, 1, S, D, E, dtype), dtype, block=32, split=64)
        calls.assert_defined(call, native.run(call, level))
