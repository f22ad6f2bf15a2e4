"""Answers about the weights by the native engine: the same as by NumPy's walk, and the same bits for any threads and tiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import native_calls as calls
import qkv
from qkv import questions
from qkv.engines import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()


def call_of(dtype: str, seed: int = 0) -> native.Call:
    rng = np.random.default_rng(seed)
    N, H, G, L, S = 2, 6, 2, 45, 230
    q, k, v = calls.operands(rng, (N,), H, G, L, S, 20, 37, dtype, scale=2.0)
    bias = rng.standard_normal((N, H, L, S)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    return calls.build(
        q,
        k,
        v,
        dtype,
        causal=True,
        window=150,
        offset=np.array([S - L, 3]),
        softcap=9.0,
        slopes=2.0 ** -np.arange(1.0, H + 1),
        bias=bias,
        allow=rng.random((N, H, L, S)) < 0.8,
        origin=np.array([[0] * L, [7] * 20 + [0] * (L - 20)], np.int32),
        block=16,
        split=64,
    )


def asked(call: native.Call, level: str, run: int) -> dict[str, np.ndarray]:
    state = native.run(dataclasses.replace(call, want="state"), level)
    base = np.where(np.isfinite(state.max), state.max, 0).astype(state.max.dtype)
    whole = np.where(state.sum == 0, 1, state.sum).astype(base.dtype)
    out = {
        "entropy": np.empty(base.shape, base.dtype),
        "received": np.zeros((*base.shape[:-1], call.key.shape[-2]), base.dtype),
        "keys": np.empty((*base.shape, 5), np.int64),
        "weights": np.empty((*base.shape, 5), base.dtype),
    }
    native.answers(
        call,
        base,
        whole,
        run,
        entropy=out["entropy"],
        received=out["received"],
        top=(out["keys"], out["weights"]),
        level_name=level,
    )
    return out


@pytest.mark.parametrize("dtype", tuple(calls.COMPUTE))
@pytest.mark.parametrize("level", LEVELS)
def test_f4_threads_change_no_answer_and_tiles_no_row(level, dtype):
    call = call_of(dtype)
    first = asked(call, level, 100)
    for rows, threads in ((64, 3), (64, 2), (7, 1), (1, 2), (45, 4)):
        other = asked(dataclasses.replace(call, tile_rows=rows, threads=threads), level, 100)
        for name, found in other.items():
            if name != "received" or rows == call.tile_rows:
                assert calls.same_bits(found, first[name]), (name, rows, threads)
    # A key's mass is a sum over rows; how many keys share a pass is no part of it.
    assert calls.same_bits(asked(call, level, 7)["received"], first["received"])


@pytest.mark.parametrize("dtype", tuple(calls.COMPUTE))
@pytest.mark.parametrize("level", LEVELS)
def test_c1_c4_c6_answers_follow_from_the_weights_as_defined(level, dtype):
    call = call_of(dtype)
    found, answer = asked(call, level, 64), calls.definition(call)
    weight, reach = answer.weights.astype(np.float64), answer.reach
    # Sums of values that are unit vectors are weights, so the bounds of an output are theirs.
    S = reach.shape[-1]
    unit = np.broadcast_to(calls.store(np.eye(S), dtype), (*call.value.shape[:-1], S))
    off, _ = calls.bounds(dataclasses.replace(call, value=unit))
    # Once for the weights, and once for adding them up: their bounds count more roundings than there are rows.
    assert (np.abs(found["received"] - weight.sum(-2)) <= 2 * off.sum(-2)).all()
    count = reach.sum(-1)
    there = np.arange(5) < count[..., None]
    keys, weights = found["keys"], found["weights"]
    assert ((keys >= 0) == there).all()
    assert (weights[~there] == 0).all()
    assert (np.diff(weights, axis=-1) <= 0).all()
    named = np.take_along_axis(weight, np.maximum(keys, 0), axis=-1)
    slack = off.max(-1)[..., None]
    assert (np.abs(np.where(there, weights - named, 0)) <= slack).all()
    largest = np.sort(weight, axis=-1)[..., ::-1][..., :5]
    assert (np.abs(np.where(there, weights - largest, 0)) <= slack).all()
    assert np.take_along_axis(reach, np.maximum(keys, 0), axis=-1)[there].all()


def by_numpy(monkeypatch: pytest.MonkeyPatch, ask: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(questions.native_answers, "ready", lambda problem, plan: False)
        return ask()


@pytest.mark.usefixtures("native_engine")
def test_d2_a_lost_row_spoils_its_answers_and_the_keys_it_may_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 4, 40, 8)).astype(np.float32)
    q[0, 1, 20] = np.nan
    v[0, 2, 30] = np.inf
    a = qkv.attention(q, k, v, mask=qkv.causal(), nonfinite="propagate", sink=[0.0, 1.0, -3.0, 50.0])
    for ask in (a.entropy, a.received, a.sink_share, a.effective_keys, lambda: a.top(3).weights):
        assert (np.isnan(ask()) == np.isnan(by_numpy(monkeypatch, ask))).all()
    assert (np.isnan(a.entropy()[0, 1]) == (np.arange(40) == 20)).all()
    assert (np.isnan(a.received()[0, 1]) == (np.arange(40) <= 20)).all()
    assert (a.top(3).keys == by_numpy(monkeypatch, lambda: a.top(3).keys)).all()


@pytest.mark.usefixtures("native_engine")
def test_c6_many_keys_are_listed_in_order_of_weight_and_index() -> None:
    q = np.zeros((1, 3, 4), np.float32)
    k = v = np.ones((1, 200, 4), np.float32)
    for count in (1, 8, 64, 65, 250):
        found = qkv.attention(q, k, v).top(count)
        listed = min(count, 200)
        assert (found.keys[0, :, :listed] == np.arange(listed)).all()
        assert (found.keys[0, :, listed:] == -1).all()


@pytest.mark.usefixtures("native_engine")
def test_c6_one_head_asked_is_that_head_alone() -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((2, 4, 5, 8))
    k, v = rng.standard_normal((2, 2, 2, 9, 8))
    allow = rng.random((2, 4, 5, 9)) < 0.8
    allow[..., 0] = True
    whole = qkv.attention(q, k, v, mask=qkv.allow(allow), sink=np.arange(4.0))
    for h in range(4):
        one, group = slice(h, h + 1), slice(h // 2, h // 2 + 1)
        alone = qkv.attention(q[:, one], k[:, group], v[:, group], mask=qkv.allow(allow[:, one]), sink=[float(h)])
        for x, y in (
            (whole.contributions(3, head=h), alone.contributions(3, head=0)),
            (whole.influence(3, head=h, vectors=True), alone.influence(3, head=0, vectors=True)),
        ):
            for name, part in vars(x).items():
                assert np.array_equal(part, vars(y)[name]), (h, name)
        assert whole.contributions(3, head=h).weight.shape == (2, 9)
