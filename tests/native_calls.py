"""Builds calls of the native engine from plain arrays, and says in float64 what they should give."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv import reference
from qkv.engines import native
from qkv.floats import FLOATS, narrow
from qkv.floats import widen as widen_to_compute

COMPUTE = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}


def store(x: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in storage form; bfloat16 as bit patterns."""
    return narrow(np.asarray(x, COMPUTE[dtype]), dtype)


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """The same numbers in float64."""
    return widen_to_compute(x, dtype).astype(np.float64)


def operands(rng: np.random.Generator, batch=(2,), H=2, G=1, L=5, S=7, D=4, E=3, dtype="float32", scale=1.0):
    """Random query, key, value in storage form."""
    query = store(rng.standard_normal((*batch, H, L, D)) * scale, dtype)
    key = store(rng.standard_normal((*batch, G, S, D)) * scale, dtype)
    value = store(rng.standard_normal((*batch, G, S, E)), dtype)
    return query, key, value


def build(query, key, value, dtype="float32", *, ranges=None, causal=False, window=None, offset=None, **options: Any):
    """A Call. `ranges`: (lo, hi) as in Call; causal and window make them from positions; offset an int or (N,)."""
    L, S = query.shape[-2], key.shape[-2]
    N = int(np.prod(query.shape[:-3]))
    offset = np.broadcast_to(np.asarray(0 if offset is None else offset, np.int64), (N,)).copy()
    if ranges is None:
        position = np.arange(L) + offset[:, None]
        lo = np.zeros((N, L), np.int64)
        hi = np.full((N, L), S)
        if causal:
            hi = np.minimum(hi, position + 1)
        if window is not None:
            lo = np.maximum(lo, position - window)
        lo, hi = np.clip(lo, 0, S)[..., None], np.clip(hi, 0, S)[..., None]
    else:
        lo, hi = ranges
    plan = {"tile_rows": 64, "block": 32, "split": 256, "spread": False, "threads": 1}
    options.setdefault("scale", query.shape[-1] ** -0.5)
    return native.Call(
        query=query,
        key=key,
        value=value,
        dtype=dtype,
        offset=offset,
        lo=np.ascontiguousarray(lo, np.int32),
        hi=np.ascontiguousarray(hi, np.int32),
        **{**plan, **options},
    )


def allowed(call: native.Call) -> np.ndarray:
    """Boolean (N, H, L, S)."""
    H, L, S = call.query.shape[-3], call.query.shape[-2], call.key.shape[-2]
    N = int(np.prod(call.query.shape[:-3]))
    j = np.arange(S)
    pairs = ((call.lo[..., None] <= j) & (j < call.hi[..., None])).any(axis=-2)
    pairs = np.broadcast_to(pairs[:, None], (N, H, L, S)).copy()
    if call.allow is not None:
        pairs &= call.allow.reshape(N, H, L, S) != 0
    if call.bias is not None:
        pairs &= widen(call.bias, call.bias_dtype).reshape(N, H, L, S) != -np.inf
    return pairs


def positional_bias(call: native.Call) -> np.ndarray | None:
    """ALiBi and bias together, float64 (N, H, L, S); what stands at forbidden pairs has no meaning."""
    H, L, S = call.query.shape[-3], call.query.shape[-2], call.key.shape[-2]
    N, wide = int(np.prod(call.query.shape[:-3])), np.longdouble if call.dtype == "float64" else np.float64
    if call.slopes is None and call.bias is None:
        return None
    total = np.zeros((N, H, L, S), wide)
    if call.slopes is not None:
        distance = np.abs(np.arange(L)[:, None] + call.offset[:, None, None] - np.arange(S))
        total = total - call.slopes[:, None, None] * distance[:, None].astype(wide)
    if call.bias is not None:
        total = total + widen(call.bias, call.bias_dtype).reshape(N, H, L, S)
    return total


def definition(call: native.Call) -> reference.Answer:
    """What the definition says, in float64 (longdouble for float64 input); axes (N, H, L, …)."""
    wide = np.longdouble if call.dtype == "float64" else np.float64
    flat = [widen(x, call.dtype).astype(wide).reshape(-1, *x.shape[-3:]) for x in (call.query, call.key, call.value)]
    return reference.attend(
        *flat,
        allowed=allowed(call),
        bias=positional_bias(call),
        scale=call.scale,
        softcap=call.softcap,
        sink=call.sink,
    )


def bounds(call: native.Call) -> tuple[np.ndarray, np.ndarray]:
    """How far output and log-sum-exp may be from the definition: first-order rounding analysis of the fixed order (F2)."""
    answer = definition(call)
    unit = FLOATS["float64" if call.dtype == "float64" else "float32"].unit
    q, k, v = (np.abs(widen(x, call.dtype)).reshape(-1, *x.shape[-3:]) for x in (call.query, call.key, call.value))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    D, S = q.shape[-1], k.shape[-2]
    # A score: one rounding of q, one or two an addend, then tanh and bias, each a few units of what they meet.
    size = abs(call.scale) * np.einsum("nhld,nhsd->nhls", q, k)
    extra = positional_bias(call)
    if extra is not None:
        size = size + np.where(answer.reach, np.abs(np.where(answer.reach, extra, 0)), 0)
    error = (2 * D + 8) * unit * size + 4 * unit
    worst = np.where(answer.reach, error, 0).max(axis=-1, initial=0.0)
    # A weight: the score's error twice (its own and the maximum's share of the sum), exp, sums and mixtures of S addends.
    weight = 2 * worst + (2 * S + 16 + 4 * -(-S // call.block)) * unit
    lse = weight + 4 * unit * (np.abs(np.where(np.isfinite(answer.lse), answer.lse, 0)) + 1)
    mix = np.einsum("nhls,nhse->nhle", answer.weights.astype(np.float64), v)
    stored = FLOATS[call.dtype]
    output = (weight[..., None] + stored.unit * (1 + weight[..., None])) * mix + stored.smallest
    # Weights below the compute type's normal numbers are rounded absolutely.
    output += np.finfo(COMPUTE[call.dtype]).smallest_subnormal * v.sum(axis=-2)[:, :, None]
    return output, lse


def assert_defined(call: native.Call, result: native.Result) -> None:
    """Output and log-sum-exp of finite operands are within their bounds, row by row."""
    answer, (output_bound, lse_bound) = definition(call), bounds(call)
    output = widen(result.output, call.dtype).reshape(answer.output.shape)
    lse = result.lse.reshape(answer.lse.shape)
    assert np.isfinite(output).all()
    worst = np.abs(output - answer.output) - output_bound
    assert (worst <= 0).all(), f"output is {worst.max():.3g} beyond its bound"
    some = np.isfinite(answer.lse)
    assert (lse[~some] == answer.lse[~some]).all()
    assert (np.abs(lse[some] - answer.lse[some]) <= lse_bound[some]).all()


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Equal bit for bit, with -0 = +0 and NaN = NaN; bfloat16 patterns compare as they are."""
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
