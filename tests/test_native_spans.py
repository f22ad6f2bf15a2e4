"""What a tile leaves out: keys that no row of a vector may read, and the look at keys and values before they are used.

Neither may show: rows have the bits they have alone, and what is not finite reaches those rows that may read it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()
DTYPES = tuple(calls.COMPUTE)


def ranges(rng: np.random.Generator, how: str, rows: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """(lo, hi), (1, rows, 1): one range a row."""
    place = np.arange(rows) * keys // rows
    if how == "anywhere":  # vectors of a panel that share no key, rows without any
        lo, hi = rng.integers(0, keys, rows), rng.integers(0, keys + 1, rows)
    elif how == "ahead":  # each row begins before the last
        lo, hi = keys - 1 - place, np.full(rows, keys)
    elif how == "steps":  # a vector that ends before the next one begins
        lo = place // 40 * 40
        hi = lo + 17
    else:
        lo, hi = place - 37, place + 9
    if how == "gaps":
        hi = np.where(rng.random(rows) < 0.4, 0, hi)
    return np.clip(lo, 0, keys)[None, :, None], np.clip(hi, 0, keys)[None, :, None]


@pytest.mark.parametrize("how", ["anywhere", "ahead", "steps", "window", "gaps"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_f2_f3_any_range_a_row_gives_the_bits_of_the_row_alone(level: str, dtype: str, how: str) -> None:
    rng = np.random.default_rng(len(how))
    heads, groups, rows, keys = (4, 2, 75, 290) if how == "anywhere" else (1, 1, 150, 290)
    q, k, v = calls.operands(rng, (1,), heads, groups, rows, keys, 20, 35, dtype, scale=2.0)
    call = calls.build(q, k, v, dtype, ranges=ranges(rng, how, rows, keys), tile_rows=128, block=128, split=256)
    whole = native.run(call, level)
    calls.assert_defined(call, whole)
    plain = whole.status & 1
    assert (plain == calls.allowed(call).any(-1).reshape(plain.shape)).all()
    for other in (
        {"tile_rows": 1},
        {"tile_rows": 37, "threads": 3},
        {"slopes": np.zeros(heads)},
        {"bias": np.zeros((1, heads, rows, keys), np.float32)},
    ):
        again = native.run(dataclasses.replace(call, **other), level)
        for name in ("output", "lse", "status"):
            assert calls.same_bits(getattr(again, name), getattr(whole, name)), (other.keys(), name)


def spoiled(x: np.ndarray, dtype: str, row: int, number: float) -> np.ndarray:
    x = x.copy()
    x[0, 0, row, 3:5] = calls.store(np.array([number, 1.0]), dtype)
    return x


def apart_from(x: np.ndarray) -> np.ndarray:
    """The same numbers with others between them."""
    wide = np.repeat(x, 2, axis=-1)
    wide[..., 1::2] = 0
    return wide[..., ::2]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_d1_d2_what_is_not_finite_reaches_just_its_readers(level: str, dtype: str, which: str, number: float) -> None:
    rng = np.random.default_rng(3)
    q, k, v = calls.operands(rng, (1,), 2, 1, 100, 300, 16, 20, dtype, scale=2.0)
    call = calls.build(q, k, v, dtype, causal=True, window=60, offset=200, split=64, tile_rows=64)
    plain, capped = (native.run(dataclasses.replace(call, softcap=cap), level) for cap in (None, 1e4))
    # The first that anybody reads and the one before it, the middle of a split, both sides of an edge, the last.
    for row in (139, 140, 171, 191, 192, 230, 299):
        x: dict[str, Any] = {which: spoiled(getattr(call, which), dtype, row, number)}
        # One operand that is read where it lies, one that is packed; scores that are looked at before they are changed.
        apart = {name: apart_from(x.get(name, getattr(call, name))) for name in ("key", "value")}
        for others in (
            {},
            {"slopes": np.zeros(2)},
            {"softcap": 1e4, "key": apart["key"]},
            {"slopes": np.zeros(2), "value": apart["value"]},
        ):
            found = native.run(dataclasses.replace(call, **{**x, **others}), level)
            clean = capped if "softcap" in others else plain
            reads = calls.allowed(call)[..., row].reshape(found.status.shape)
            assert ((found.status & 2 != 0) == reads).all()
            assert np.isnan(found.lse[reads]).all()
            assert np.isnan(calls.widen(found.output, dtype)[reads]).all()
            assert calls.same_bits(found.output[~reads], clean.output[~reads])
            assert calls.same_bits(found.lse[~reads], clean.lse[~reads])


@pytest.mark.parametrize("level", LEVELS)
def test_d3_a_sum_of_large_values_that_leaves_the_range_on_the_way_stays_finite(level: str) -> None:
    rng = np.random.default_rng(4)
    q, k, v = calls.operands(rng, (1,), 1, 1, 60, 200, 8, 20)
    v[:, :, :120] = 2e38
    call = calls.build(q, k, v, causal=True, offset=140, split=64)
    found = native.run(call, level)
    calls.assert_defined(call, found)
    assert (found.status == 1).all()
    # And beside a row that is lost.
    v[0, 0, 199] = np.nan
    lost = native.run(call, level)
    assert (lost.status[0, 0] == np.where(np.arange(60) == 59, 3, 1)).all()
    assert calls.same_bits(lost.output[0, 0, :59], found.output[0, 0, :59])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_d1_a_bad_value_hides_no_bad_key(level: str, number: float) -> None:
    """Keys that are read where they lie were not looked at; values that are packed were, and a bad one sends the panel another
    way. Rows that read the key and not the value are spoiled all the same."""
    q, k, v = calls.operands(np.random.default_rng(0), (1,), 2, 1, 40, 40, 16, 16)
    call = calls.build(q, spoiled(k, "float32", 12, number), apart_from(spoiled(v, "float32", 30, np.nan)), causal=True)
    found = native.run(call, level)
    assert ((found.status & 2) != 0).all(axis=(0, 1)).tolist() == [row >= 12 for row in range(40)]
