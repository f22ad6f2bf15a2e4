"""A survey adds up in one pass what a summary of the weights needs: as the weights say, the same bits for any threads and tiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import native_calls as calls
import qkv
from qkv import questions
from qkv.bounds import bound
from qkv.engines import native
from qkv.pooled import edges
from support.checks import within
from support.surveys import surveyed
from test_native_answers import call_of

LEVELS = native.levels() if native.available() else ()

GRID = edges(45, 7), edges(230, 12)


def asked(call: native.Call, level: str, first: tuple[int, int] = (0, 0)) -> dict[str, np.ndarray]:
    state = native.run(dataclasses.replace(call, want="state"), level)
    base = np.where(np.isfinite(state.max), state.max, 0).astype(state.max.dtype)
    whole = np.where(state.sum == 0, 1, state.sum).astype(base.dtype)
    shape, keys = base.shape, call.key.shape[-2]
    out = {
        "entropy": np.empty(shape, base.dtype),
        "distance": np.empty(shape, base.dtype),
        "received": np.zeros((*shape[:-1], keys), np.int64),
        "spoiled": np.zeros((*shape[:-1], keys), np.uint8),
        "pooled": np.zeros((*shape[:-1], 7, 12), base.dtype),
    }
    position = np.arange(shape[-1]) + call.offset[:, None]
    native.survey(
        call,
        base,
        whole,
        1 / whole,
        position,
        entropy=out["entropy"],
        distance=out["distance"],
        received=(out["received"], out["spoiled"], 2.0**50),
        pooled=(out["pooled"], *GRID),
        level_name=level,
    )
    known = np.empty(shape, base.dtype)
    native.answers(call, base, whole, 100, entropy=known, level_name=level)
    assert calls.same_bits(known, out["entropy"])
    return out


@pytest.mark.native
@pytest.mark.parametrize("dtype", tuple(calls.COMPUTE))
@pytest.mark.parametrize("level", LEVELS)
def test_f4_threads_change_no_sum_and_tiles_no_row(level: str, dtype: str) -> None:
    call = call_of(dtype)
    first = asked(call, level)
    for rows, threads in ((64, 3), (64, 2), (7, 1), (1, 2), (45, 4)):
        other = asked(dataclasses.replace(call, tile_rows=rows, threads=threads), level)
        for name, found in other.items():
            if name != "received" or rows == call.tile_rows:
                assert calls.same_bits(found, first[name]), (name, rows, threads)


@pytest.mark.native
@pytest.mark.parametrize("dtype", tuple(calls.COMPUTE))
@pytest.mark.parametrize("level", LEVELS)
def test_c1_sums_follow_from_the_weights_as_defined(level: str, dtype: str) -> None:
    call = call_of(dtype)
    found, answer = asked(call, level), calls.definition(call)
    weight, S = answer.weights.astype(np.float64), answer.reach.shape[-1]
    unit = np.broadcast_to(calls.store(np.eye(S), dtype), (*call.value.shape[:-1], S))
    off, _ = calls.bounds(dataclasses.replace(call, value=unit))
    # Once for the weights and once for adding them up; and half a unit of the whole numbers for each row.
    received = found["received"] / 2.0**50
    assert (np.abs(received - weight.sum(-2)) <= 2 * off.sum(-2) + call.query.shape[-2] * 2.0**-51).all()
    assert not found["spoiled"].any()
    far = np.arange(call.query.shape[-2])[:, None] + call.offset[:, None, None] - np.arange(S)
    far = far[:, None]
    assert (np.abs(found["distance"] - (weight * far).sum(-1)) <= 2 * (off * np.abs(far)).sum(-1)).all()
    for b in range(7):
        for c in range(12):
            part = (..., slice(*GRID[0][b : b + 2]), slice(*GRID[1][c : c + 2]))
            right, limit = (x[part].max(axis=(-2, -1)) for x in (weight, off))
            assert (np.abs(found["pooled"][..., b, c] - right) <= limit).all(), (b, c)


MASKS = {
    "causal": qkv.causal(),
    "window": qkv.window(3, 0),
    "padding": qkv.keys([40, 11]),
    "array": qkv.allow(np.random.default_rng(5).random((2, 1, 40, 40)) < 0.5),
    "rule": qkv.where(lambda batch, head, position, key: (position + key + head) % 3 > 0),
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sink", [None, [0.0, 1.0, -3.0, 50.0]])
def test_the_front_door_gives_the_sums_of_its_weights(mask: str, sink: Any) -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 40, 8))
    k, v = rng.standard_normal((2, 2, 2, 40, 8))
    a = qkv.attention(q, k, v, mask=MASKS[mask], sink=sink, empty="zero")
    found = a.survey(9, 4, positions=np.arange(40)[::-1])
    weight = a.weights(range(40))
    unit = np.broadcast_to(np.eye(40), (2, 2, 40, 40))
    limits = bound(q, k, unit, "float64", allowed=weight > 0, sink=sink)
    right, off = (np.asarray(x, np.float64) for x in (limits.answer.weights, limits.output))
    within(weight, right, off, "weights")
    surveyed(vars(found).values(), right, off, np.arange(40)[::-1], (9, 4))
    assert a.survey().pooled is None


@pytest.mark.usefixtures("native_engine")
def test_d2_a_lost_row_spoils_its_sums_and_the_keys_it_may_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 4, 40, 8)).astype(np.float32)
    q[0, 1, 20] = np.nan
    v[0, 2, 30] = np.inf
    a = qkv.attention(q, k, v, mask=qkv.causal(), nonfinite="propagate", sink=[0.0, 1.0, -3.0, 50.0])
    mine = a.survey(40, 40)
    with monkeypatch.context() as patch:
        patch.setattr(questions.native_answers, "ready", lambda problem, plan: False)
        theirs = a.survey(40, 40)
    for name in ("entropy", "distance", "received", "pooled"):
        found, right = getattr(mine, name), getattr(theirs, name)
        assert (np.isnan(found) == np.isnan(right)).all(), name
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)  # NaN where NaN; the numbers are tested above
    assert (np.isnan(mine.received[0, 1]) == (np.arange(40) <= 20)).all()
    assert np.isnan(mine.pooled[0, 1, 20, :21]).all()
    assert np.isfinite(mine.pooled[0, 1, 20, 21:]).all()
