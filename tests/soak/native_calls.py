"""The engine itself, asked past the front door: any ranges, blocks, splits, tiles and threads, on every instruction set (F2, F3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import native_calls as calls
from qkv import bounds
from qkv.engines import native
from support.arrays import cast, stored
from support.checks import holds
from support.problems import numbers, plant
from support.runs import Attend, front_door

from . import levels
from .facts import Facts
from .problems import FAR, LIES, NUMBERS, SLOPES, dtype_of, lying, shape_of

Array = np.ndarray


def native_call(facts: Facts, attend: Attend = front_door) -> int:
    """The same call on each level within its bound, and with other tiles and threads, and a row alone, in the same bits."""
    if not native.available():
        return 0
    call = drawn(facts)
    limits, made = limits_of(call), 0
    for level in native.levels():
        result = native.run(call, level)
        _held(call, result, limits, level)
        made += 1 + _same_bits(facts, call, result, level)
    if facts.chance("state", 0.3):
        _state(replace(call, sink=None, want="state"), facts.pick("level", native.levels()))
        made += 1
    return made


def _state(call: native.Call, level: str) -> None:
    """Maximum, sum and mixture are what output and log-sum-exp follow from (E1)."""
    limits, found = limits_of(call, state=True), native.run(call, level)
    assert found.max is not None
    assert found.sum is not None
    top, total, mix = (_wide(x, call) for x in (found.max, found.sum, found.mix))
    lse = np.where(total == 0, -np.inf, top + np.log(total)).reshape(limits.lse.shape)
    # A state in which all scores fell to -inf has no number of its own (D3).
    lse = np.where(np.isneginf(lse) & (found.status & 8 != 0).reshape(lse.shape), np.nan, lse)
    holds(np.where(np.isnan(lse)[..., None], np.nan, mix.reshape(limits.output.shape)), lse, limits)


def drawn(facts: Facts) -> native.Call:
    dtype = dtype_of(facts)
    size, groups, width, value_width = shape_of(facts, dtype)
    batch, H, L, S, N = size.batch, size.heads, size.queries, size.keys, size.batches
    rng, magnitude = facts.rng("operands"), facts.pick("numbers", NUMBERS)
    q, k, v = (
        cast(numbers(rng, (*batch, *shape), dtype, magnitude, role), dtype)
        for shape, role in (
            ((H, L, width), "query"),
            ((groups, S, width), "key"),
            ((groups, S, value_width), "value"),
        )
    )
    if facts.chance("planted", 0.3):
        for array in (q, k, v):
            plant(rng, array, int(rng.choice([0, 1, 3])))
    q, k, v = (
        stored(lying(x, facts.pick(f"{name} lies", LIES))) for x, name in ((q, "query"), (k, "key"), (v, "value"))
    )
    options: dict[str, Any] = _features(facts, dtype, (batch, N, H, L, S))
    block = facts.pick("block", (128, 64, 32, 16, 7, 3, 1))
    return native.Call(
        query=q,
        key=k,
        value=v,
        dtype=dtype,
        tile_rows=facts.pick("tile", (64, 1, 2, 5, 16, 33, 200)),
        block=block,
        split=block * facts.pick("blocks a split", (1000, 16, 2, 1)),
        spread=facts.chance("spread", 0.5),
        threads=facts.pick("threads", levels.THREADS),
        **options,
    )


def _features(facts: Facts, dtype: str, sizes: tuple[tuple[int, ...], int, int, int, int]) -> dict[str, Any]:
    batch, N, H, L, S = sizes
    rng = facts.rng("ranges")
    many = N if facts.chance("ranges of each batch", 0.5) else 1
    kind = facts.pick("ranges", ("all", "one", "causal", "several"))
    count = facts.whole("intervals", 1, 5) if kind == "several" else 1
    offsets = facts.pick("offsets", ("end", "end", "end", "any", "any", "any", "far"))
    offset = {"end": np.full(N, S - L), "any": rng.integers(-L - 1, S + 2, N), "far": rng.choice(FAR, N)}[offsets]
    lo, hi = np.zeros((many, L, 1), np.int64), np.full((many, L, 1), S, np.int64)
    if kind in ("one", "several"):
        edges = np.sort(rng.integers(0, S + 1, (many, L, 2 * count)), axis=-1)
        lo, hi = edges[..., 0::2], edges[..., 1::2]
    elif kind == "causal":
        hi = np.clip(np.arange(L) + (offset[:many, None] if N else np.zeros((many, 1), np.int64)) + 1, 0, S)[..., None]
        lo = np.zeros_like(hi)
    scale = float(rng.choice([0.0, 1.0, -0.7, 3.0])) if facts.chance("scale", 0.5) else 0.35
    out: dict[str, Any] = {
        "scale": scale,
        "offset": np.asarray(offset, np.int64),
        "lo": np.ascontiguousarray(lo, np.int32),
        "hi": np.ascontiguousarray(hi, np.int32),
    }
    if facts.chance("softcap", 0.25):
        out["softcap"] = float(rng.choice([0.5, 5.0, 2.0**-100, 2.0**100]))
    if facts.chance("sink", 0.3):
        out["sink"] = rng.choice([-30.0, -1.0, 0.0, 2.5, 40.0], H)
    if facts.chance("origin", 0.3) and L:
        # Documents: keys are counted from a first key, at or before what a row may read.
        first = np.where(lo < hi, lo, S).min(axis=-1, initial=S)
        begin = np.minimum.accumulate(first[:, ::-1], axis=-1)[:, ::-1]
        out["origin"] = np.ascontiguousarray(np.maximum(begin - int(rng.integers(0, 3)), 0), np.int32)
    bias = facts.pick("bias", ("none", "none", "alibi", "array"))
    if bias == "alibi":
        out["slopes"] = rng.choice(SLOPES, H)
    full = (*batch, H, L, S)
    if bias == "array":
        shape = tuple(n if rng.random() < 0.6 else 1 for n in full)
        array = rng.standard_normal(shape) * rng.choice([1.0, 10.0])
        array[rng.random(shape) < rng.choice([0.0, 0.2])] = -np.inf
        if facts.chance("bias planted", 0.1):
            plant(rng, array, 2)
        out["bias_dtype"] = "float32" if facts.chance("wide bias", 0.5) else dtype
        out["bias"] = np.broadcast_to(stored(cast(array, out["bias_dtype"])), full)
    if facts.chance("dense mask", 0.3):
        shape = tuple(n if rng.random() < 0.6 else 1 for n in full)
        out["allow"] = np.broadcast_to(rng.random(shape) < rng.choice([0.1, 0.5, 0.9]), full)
    return out


def limits_of(call: native.Call, state: bool = False) -> bounds.Bounds:
    """What the call should give; `state`: in the type it is computed in."""
    flat = [x.reshape(call.offset.size, *x.shape[-3:]) for x in (call.query, call.key, call.value)]
    dtype = call.dtype
    if state and dtype in ("float16", "bfloat16"):
        flat, dtype = [calls.widen(x, dtype).astype(np.float32) for x in flat], "float32"
    S = call.key.shape[-2]
    return bounds.bound(
        *flat,
        dtype,
        allowed=calls.allowed(call),
        bias=calls.positional_bias(call),
        bias_roundings=3,
        scale=call.scale,
        softcap=call.softcap,
        sink=call.sink,
        # Steps and merges beyond those of the plan that `bounds` counts with.
        merges=S // call.block + S // call.split + 3,
    )


def _wide(array: Any, call: native.Call) -> Array:
    return np.asarray(array).astype(np.longdouble if call.dtype == "float64" else np.float64)


def _held(call: native.Call, result: native.Result, limits: bounds.Bounds, level: str) -> None:
    output = calls.widen(result.output, call.dtype).astype(limits.output.dtype).reshape(limits.output.shape)
    lse = _wide(result.lse, call).reshape(limits.lse.shape)
    try:
        holds(output, lse, limits)
        status = result.status.reshape(limits.lse.shape)
        assert (((status & 1) != 0) == limits.answer.reach.any(-1)).all(), (
            "C2: a row with keys is called empty, or one without full"
        )
    except AssertionError as error:
        raise AssertionError(f"on {level}: {error}") from None


def _same_bits(facts: Facts, call: native.Call, result: native.Result, level: str) -> int:
    """Other tiles and threads, and one row by itself: the same bits."""
    rng = facts.rng("other plan")
    plan = {
        "threads": int(rng.choice(levels.THREADS)),
        "tile_rows": int(rng.choice([1, 3, 16, 64, 200])),
        "spread": bool(rng.random() < 0.5),
    }
    other = native.run(replace(call, **plan), level)
    for name in ("output", "lse", "status"):
        assert calls.same_bits(getattr(result, name), getattr(other, name)), f"F3 on {level}: {plan} changed the {name}"
    L = call.query.shape[-2]
    if not L:
        return 1
    i = int(rng.integers(L))
    cut: dict[str, Any] = {
        "query": call.query[..., i : i + 1, :],
        "offset": call.offset + i,
        "lo": np.ascontiguousarray(call.lo[:, i : i + 1]),
        "hi": np.ascontiguousarray(call.hi[:, i : i + 1]),
        "origin": None if call.origin is None else np.ascontiguousarray(call.origin[:, i : i + 1]),
        "bias": None if call.bias is None else call.bias[..., i : i + 1, :],
        "allow": None if call.allow is None else call.allow[..., i : i + 1, :],
    }
    alone = native.run(replace(call, **cut), level)
    for name in ("output", "lse", "status"):
        whole = getattr(result, name)
        row = whole[..., i : i + 1, :] if name == "output" else whole[..., i : i + 1]
        assert calls.same_bits(getattr(alone, name), row), f"F3 on {level}: row {i} alone has another {name}"
    return 2
