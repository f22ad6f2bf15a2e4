"""Builds calls of the native engine from plain arrays, and says in float64 what they should give."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.engines import native

COMPUTE = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Nearest-even bit patterns of finite or infinite numbers; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def store(x: np.ndarray, dtype: str) -> np.ndarray:
    return to_bfloat16(x) if dtype == "bfloat16" else x.astype(dtype)


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


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


def definition(call: native.Call) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64 (longdouble for float64 input), of calls whose operands are finite."""
    wide = np.longdouble if call.dtype == "float64" else np.float64
    batch, (H, L, D) = call.query.shape[:-3], call.query.shape[-3:]
    G, S, E = *call.key.shape[-3:-1], call.value.shape[-1]
    N = int(np.prod(batch))
    q = widen(call.query, call.dtype).astype(wide).reshape(N, H, L, D)
    k = np.repeat(widen(call.key, call.dtype).astype(wide).reshape(N, G, S, D), H // G, axis=1)
    v = np.repeat(widen(call.value, call.dtype).astype(wide).reshape(N, G, S, E), H // G, axis=1)
    scores = np.einsum("nhld,nhsd->nhls", q, k) * wide(call.scale)
    if call.softcap:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if call.slopes is not None:
        distance = np.abs(np.arange(L)[:, None] + call.offset[:, None, None] - np.arange(S))
        scores = scores - call.slopes[:, None, None] * distance[:, None]
    pairs = allowed(call)
    if call.bias is not None:
        scores = scores + np.where(pairs, widen(call.bias, call.bias_dtype).reshape(N, H, L, S), 0)
    scores = np.where(pairs, scores, -np.inf)
    top = scores.max(axis=-1, initial=-np.inf)
    if call.sink is not None:
        top = np.maximum(top, call.sink[:, None])
    base = np.where(top == -np.inf, 0, top)
    weights = np.exp(scores - base[..., None])
    total = weights.sum(axis=-1)
    if call.sink is not None:
        total = total + np.exp(call.sink[:, None] - base)
    with np.errstate(divide="ignore"):
        lse = base + np.log(total)
    output = np.einsum("nhls,nhse->nhle", weights, v) / np.where(total == 0, 1, total)[..., None]
    return output.reshape(*batch, H, L, E), lse.reshape(*batch, H, L)


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Equal bit for bit, with -0 = +0 and NaN = NaN; bfloat16 patterns compare as they are."""
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
