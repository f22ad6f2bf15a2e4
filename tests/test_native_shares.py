"""What single keys gave to a row, and what the row would be without them, by the native engine at every level."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native
from qkv.state import beside

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]

LEVELS = native.levels() if native.available() else ()
DTYPES = tuple(calls.COMPUTE)
Answers = dict[str, np.ndarray]


def call_of(
    dtype: str, *, sink: bool = False, seed: int = 0, depth: int = 20, width: int = 37, **options: Any
) -> native.Call:
    """Every kind of score and mask at once, rows of one key and of none among them."""
    rng = np.random.default_rng(seed)
    N, H, G, L, S = 2, 6, 2, 45, 230
    q, k, v = calls.operands(rng, (N,), H, G, L, S, depth, width, dtype, scale=2.0)
    bias = rng.standard_normal((N, H, L, S)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    allow = rng.random((N, H, L, S)) < 0.8
    allow[1, 3, 5:8] = False
    allow[1, 3, 6, 8] = True
    bias[1, 3, 6, 8] = 0
    plan = {"block": 16, "split": 64, **options}
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
        sink=np.linspace(-3.0, 40.0, H) if sink else None,
        bias=bias,
        allow=allow,
        origin=np.array([[0] * L, [7] * 20 + [0] * (L - 20)], np.int32),
        **plan,
    )


def states(call: native.Call, level: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(base, whole, output) as the engine asks for them."""
    found = native.run(dataclasses.replace(call, want="state"), level)
    assert found.max is not None
    assert found.sum is not None
    assert found.mix is not None
    logit = None if call.sink is None else call.sink.astype(found.max.dtype)[:, None]
    base, whole, kept = beside(found.max, found.sum, logit)
    return base, whole, found.mix if kept is None else found.mix * kept[..., None]


def asked(call: native.Call, level: str, run: int = 1024, tell: Callable[..., None] = native.shares) -> Answers:
    """All answers, by `tell`."""
    base, whole, output = states(call, level)
    wide = (*base.shape, call.key.shape[-2])
    out = {name: np.zeros(wide, base.dtype) for name in ("weight", "norm", "share", "relative")}
    out["vectors"] = np.zeros((*wide, call.value.shape[-1]), base.dtype)
    counted = np.zeros(base.shape, np.int64), np.zeros(base.shape, np.int64)
    tell(call, base, whole, output, run, **out, counted=counted, level_name=level)
    return {**out, "count": counted[0], "place": np.where(counted[0] == 1, counted[1], -1), "output": output}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_f4_threads_tiles_and_runs_change_no_answer(level: str, dtype: str) -> None:
    call = call_of(dtype, sink=True)
    first = asked(call, level)
    for rows, threads, run in ((64, 3, 1024), (64, 2, 100), (7, 1, 33), (1, 2, 230), (45, 3, 1)):
        other = asked(dataclasses.replace(call, tile_rows=rows, threads=threads), level, run)
        for name, found in other.items():
            assert calls.same_bits(found, first[name]), (name, rows, threads, run)


def without(call: native.Call, j: int) -> native.Call:
    allow = call.allow.copy()
    allow[..., j] = False
    return dataclasses.replace(call, allow=allow)


def check(call: native.Call, found: Answers) -> None:
    """The answers are those of the definition, as far as rounding allows."""
    answer = calls.definition(call)
    unit = float(np.finfo(calls.COMPUTE[call.dtype]).eps) / 2
    tiny = float(np.finfo(calls.COMPUTE[call.dtype]).smallest_subnormal)
    reach, S, E = answer.reach, call.key.shape[-2], call.value.shape[-1]
    value = np.repeat(calls.widen(call.value, call.dtype), call.query.shape[-3] // call.value.shape[-3], axis=-3)
    size = np.sqrt((value**2).sum(-1))[..., None, :]
    for name in ("weight", "norm", "share", "relative", "vectors"):
        assert (found[name][~reach] == 0).all(), f"a forbidden pair has a {name}"
    assert (found["count"] == reach.sum(-1)).all()
    alone = found["count"] == 1
    assert (found["place"][alone] == reach[alone].argmax(-1)).all()
    # Sums of values that are unit vectors are weights, so the bounds of an output are theirs.
    basis = np.broadcast_to(calls.store(np.eye(S), call.dtype), (*call.value.shape[:-1], S))
    off, _ = calls.bounds(dataclasses.replace(call, value=basis))
    assert (abs(found["weight"] - answer.weights) <= off).all()
    # The rest follows from the weights and outputs given: E products a sum, a root, and a few more roundings.
    weight, output = found["weight"].astype(np.float64), found["output"].astype(np.float64)
    slack = (E + 8) * unit * weight * size + tiny * (1 + size)
    assert (abs(found["norm"] - weight * size) <= slack).all()
    length = np.sqrt((output**2).sum(-1))[..., None]
    along = np.einsum("nhse,nhle->nhls", value, output)
    with np.errstate(all="ignore"):
        share = np.where(reach, weight * along / length**2, 0)
        assert (abs(found["share"] - share) <= slack / length)[length[..., 0] > 0].all()
    exact, (bound, _) = answer.output, calls.bounds(call)
    length, doubt = (np.sqrt((x.astype(np.float64) ** 2).sum(-1)) for x in (exact, bound))
    clear = length > 2 * doubt
    for j in {0, 8, 9, S // 2, S - 1, *reach.sum((0, 1, 2)).argsort()[-3:].tolist()}:
        other = without(call, j)
        change = calls.definition(other).output - exact
        moved = np.where(reach[..., j, None], bound + calls.bounds(other)[0], 0)
        vectors = found["vectors"][..., j, :]
        assert (abs(vectors - change) <= moved).all(), f"without key {j}"
        gap, slack = (np.sqrt((x.astype(np.float64) ** 2).sum(-1)) for x in (change, moved))
        safe = np.where(clear, length, 1)
        limit = (slack + gap / safe * doubt) / np.where(clear, length - doubt, 1) + (E + 8) * unit * gap / safe
        assert (abs(found["relative"][..., j] - gap / safe) <= limit)[clear].all(), f"relative influence of key {j}"


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_c1_c4_c6_answers_are_those_of_the_definition(level: str, dtype: str, sink: bool) -> None:
    call = call_of(dtype, sink=sink)
    found = asked(call, level)
    assert (found["weight"] > 0.5).any(), "a key with more than half of its row is one of the cases"
    check(call, found)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 16, 17, 31, 64])
@pytest.mark.parametrize("level", LEVELS)
def test_every_width_of_the_values(level: str, width: int) -> None:
    call = call_of("float32", width=width, seed=width)
    check(call, asked(call, level, 50))


@pytest.mark.parametrize("level", LEVELS)
def test_widths_that_go_by_matrix_tiles(level: str) -> None:
    call = call_of("bfloat16", depth=64, width=64, sink=True)
    found = asked(call, level)
    assert (found["weight"] > 0.5).any()
    check(call, found)
    for name, x in asked(dataclasses.replace(call, tile_rows=5, threads=2), level, 70).items():
        assert calls.same_bits(x, found[name]), name


def _open_form(call: native.Call, *a: Any, **named: Any) -> None:
    """The heavy keys answered by the weights as well, without 1 / (1 - w)."""
    native.shares(call, *a, **named)
    heavy = named["weight"] > 0.5
    output, value = a[2], np.repeat(calls.widen(call.value, call.dtype), 3, axis=-3)
    gap = named["weight"][..., None] * (output[..., None, :] - value[:, :, None])
    named["vectors"][heavy] = gap[heavy]


def _next_key(call: native.Call, *a: Any, **named: Any) -> None:
    native.shares(call, *a, **named)
    named["share"][...] = np.roll(named["share"], 1, axis=-1)


def _no_sink(call: native.Call, *a: Any, **named: Any) -> None:
    native.shares(dataclasses.replace(call, sink=None), *a, **named)


def _other_group(call: native.Call, *a: Any, **named: Any) -> None:
    native.shares(dataclasses.replace(call, value=call.value[:, ::-1]), *a, **named)


@pytest.mark.parametrize("fault", [_open_form, _next_key, _no_sink, _other_group])
def test_a_fault_is_seen(fault: Callable[..., None]) -> None:
    call = call_of("float32", sink=True)
    with pytest.raises(AssertionError):
        check(call, asked(call, LEVELS[-1], tell=fault))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("level", LEVELS)
def test_f2_vectors_of_any_size_are_measured(level: str, dtype: str) -> None:
    """Squares of these would overflow or vanish, and every answer is a number that the type has."""
    most = 1020 if dtype == "float64" else 124
    q, k = (calls.store(np.zeros((1, 1, n, 2)), dtype) for n in (1, 2))
    for unit in (2.0**most, 2.0**-most):
        v = calls.store(np.array([[[[6.0, 8.0], [0.0, 0.0]]]]) * unit, dtype)
        found = {name: x[0, 0, 0] for name, x in asked(calls.build(q, k, v, dtype), level).items()}
        assert (found["norm"] == [5 * unit, 0]).all()
        assert (found["share"] == [1, 0]).all()
        assert (found["vectors"] == [[-3 * unit, -4 * unit], [3 * unit, 4 * unit]]).all()
        assert (found["relative"] == [1, 1]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_f2_a_length_beyond_the_type_may_have_a_part_within(level: str) -> None:
    most = np.finfo(np.float32).max
    q, k = np.zeros((1, 1, 1, 2), np.float32), np.zeros((1, 1, 2, 2), np.float32)
    v = np.array([[[[most, most], [0, 0]]]], np.float32)
    found = asked(calls.build(q, k, v), level)
    right = np.sqrt(np.float64(2)) * most / 2
    # Three roundings: the root in double, the half, and the answer.
    assert abs(found["norm"][0, 0, 0, 0] - right) <= 3 * np.finfo(np.float32).eps * right
    assert found["share"][0, 0, 0].tolist() == [1, 0]


@pytest.mark.parametrize("level", LEVELS)
def test_d1_a_lost_row_spoils_what_it_may_read_and_nothing_else(level: str) -> None:
    call = call_of("float32")
    base, whole, output = states(call, level)
    right = asked(call, level)
    whole[0, 2, 11] = whole[1, 5, 40] = np.nan
    lost, reach = np.isnan(whole)[..., None], calls.allowed(call)
    found = {name: np.zeros_like(x) for name, x in right.items() if x.shape[:4] == reach.shape}
    native.shares(call, base, whole, output, 64, **found, level_name=level)
    for name, x in found.items():
        pairs = (lost & reach) if x.ndim == 4 else (lost & reach)[..., None]
        assert (np.isnan(x) == pairs).all(), name
        assert calls.same_bits(np.where(pairs, 0, x), np.where(pairs, 0, right[name])), name


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_a_long_question(threads: int) -> None:
    q, k, v = calls.operands(np.random.default_rng(0), (1,), 8, 1, 8000, 120_000, 64, 64)
    call = calls.build(q, k, v, tile_rows=64, threads=threads)
    base, output = np.zeros((1, 8, 8000), np.float32), np.ones((1, 8, 8000, 64), np.float32)
    counted = np.zeros(base.shape, np.int64), np.zeros(base.shape, np.int64)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        native.shares(call, base, base + 1, output, 1024, counted=counted)
    # The whole of it takes minutes; rows that nobody came to say that it ended before.
    assert (counted[0] < 120_000).any()
