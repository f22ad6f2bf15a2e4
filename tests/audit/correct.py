"""Three correct kernels and a flash-style one, each written by itself, by which false alarms would show."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from qkv.audit import Domain, FunctionKernel

ALL = ("float32", "float16", "bfloat16", "float64")


def loops(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    causal: bool = False,
    scale: Any = None,
    return_lse: bool = False,
) -> Any:
    """One number after the other, in Python's doubles."""
    B, H, L, D = query.shape
    share, S = H // key.shape[1], key.shape[2]
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    out, lse = np.zeros((B, H, L, value.shape[3])), np.full((B, H, L), -np.inf)
    seen = np.ones((B, H, L, S), bool) if mask is None else np.broadcast_to(mask, (B, H, L, S))
    factor = 1 / math.sqrt(D) if scale is None else scale
    for b, h, i in np.ndindex(B, H, L):
        scores = {}
        for j in range(S):
            if seen[b, h, i, j] and not (causal and j > i):
                scores[j] = factor * math.fsum(
                    x * y for x, y in zip(q[b, h, i].tolist(), k[b, h // share, j].tolist(), strict=True)
                )
        if not scores:
            continue
        peak = max(scores.values())
        mass = {j: math.exp(s - peak) for j, s in scores.items()}
        total = math.fsum(mass.values())
        lse[b, h, i] = peak + math.log(total)
        for j, m in mass.items():
            out[b, h, i] += m / total * v[b, h // share, j]
    given = out.astype(query.dtype)
    return (given, lse) if return_lse else given


def einsum(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    scale: Any = None,
    softcap: Any = None,
    return_lse: bool = False,
) -> Any:
    """Two torch.einsum around a softmax, in float32 (float64 for float64)."""
    import torch

    # Threads that wait for each other cost more than small matrices do.
    torch.set_num_threads(1)
    work = torch.float64 if query.dtype == torch.float64 else torch.float32
    share = query.shape[1] // key.shape[1]
    q, k, v = query.to(work), key.to(work).repeat_interleave(share, 1), value.to(work).repeat_interleave(share, 1)
    score = torch.einsum("bhld,bhsd->bhls", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        score = score + bias.to(work)
    if causal:
        keep = torch.ones(score.shape[-2:], dtype=torch.bool).tril()
        score = score.masked_fill(~keep, -torch.inf)
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf)
    none = torch.isneginf(score).all(-1, keepdim=True)
    weights = torch.softmax(score.masked_fill(none, 0), -1).masked_fill(none, 0)
    out = torch.einsum("bhls,bhse->bhle", weights, v).to(query.dtype)
    return (out, torch.logsumexp(score, -1)) if return_lse else out


def online(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    lengths: Any = None,
    sink: Any = None,
    return_lse: bool = False,
) -> Any:
    """One key after the other, a running maximum, in float32."""
    return _blocks(query, key, value, mask, lengths, sink, return_lse, block=1, stale=0.0, cast=lambda x: x)


def flash(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    lengths: Any = None,
    sink: Any = None,
    return_lse: bool = False,
) -> Any:
    """Blocks of three keys, weights rounded to bfloat16, a maximum that is renewed only when it lags by 2 or more."""
    return _blocks(
        query,
        key,
        value,
        mask,
        lengths,
        sink,
        return_lse,
        block=3,
        stale=2.0,
        cast=lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32),
    )


def _blocks(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    lengths: Any,
    sink: Any,
    return_lse: bool,
    *,
    block: int,
    stale: float,
    cast: Any,
) -> Any:
    work = np.float64 if query.dtype == np.float64 else np.float32
    q, k, v = (np.asarray(x, work) for x in (query, key, value))
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
    B, H, L, D = q.shape
    S = k.shape[2]
    seen = np.ones((B, H, L, S), bool) if mask is None else np.broadcast_to(mask, (B, H, L, S))
    if lengths is not None:
        seen = seen & (np.arange(S) < lengths[:, None, None, None])
    peak = np.full((B, H, L), -np.inf, work)
    total, out = np.zeros((B, H, L), work), np.zeros((B, H, L, v.shape[3]), work)
    if sink is not None:
        peak[...] = sink[:, None]
        total[...] = 1
    with np.errstate(invalid="ignore"):
        for lo in range(0, S, block):
            part = slice(lo, lo + block)
            score = np.einsum("bhld,bhsd->bhls", q, k[:, :, part]) * work(D**-0.5)
            score = np.where(seen[..., part], score, -np.inf)
            top = np.maximum(peak, score.max(-1))
            top = np.where(np.isfinite(peak) & (top - peak < stale), peak, top)
            shift = np.where(np.isfinite(top), top, 0)
            old = np.where(np.isfinite(peak), np.exp(peak - shift), 0).astype(work)
            mass = np.exp(score - shift[..., None])
            total = total * old + mass.sum(-1)
            out = out * old[..., None] + np.einsum("bhls,bhse->bhle", cast(mass), v[:, :, part])
            peak = top
        lse = np.where(total > 0, np.where(np.isfinite(peak), peak, 0) + np.log(np.where(total > 0, total, 1)), -np.inf)
    given = (out / np.where(total > 0, total, 1)[..., None]).astype(query.dtype)
    return (given, lse) if return_lse else given


def _kernel(function: Any, features: str, **fields: Any) -> FunctionKernel:
    words = features.split()
    keywords = {w: {"lse": "return_lse", "gqa": ""}.get(w, w) for w in words}
    domain = Domain(accepts=frozenset([*words, "cross", "value-width"]), **{"dtypes": ALL, "longest": 300, **fields})
    return FunctionKernel(function.__name__, domain, function=function, keywords=keywords)


KERNELS = {
    "loops": lambda: _kernel(loops, "mask causal scale gqa lse", longest=40),
    "einsum": lambda: _kernel(einsum, "mask bias causal scale softcap gqa lse grad", arrays="torch"),
    "online": lambda: _kernel(online, "mask lengths sink gqa lse"),
    "flash": lambda: _kernel(
        flash, "mask lengths sink gqa lse", dtypes=("bfloat16",), arithmetic=frozenset({"p-rounded", "stale-max"})
    ),
}
