"""A small kernel in Triton, one program a row, for Triton's interpreter on the CPU. Needs triton and torch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _row(
    query,
    key,
    value,
    output,
    mass,
    scale,
    L,
    S,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    CAUSAL: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One query against all keys, block by block, with a running maximum."""
    i, head = tl.program_id(0), tl.program_id(1)
    group = head // H * G + head % H // (H // G)
    columns, wide = tl.arange(0, D), tl.arange(0, E)
    q = tl.load(query + (head * L + i) * D + columns).to(tl.float32)
    peak, total, mix = -float("inf"), 0.0, tl.zeros((E,), tl.float32)
    for start in range(0, S, BLOCK):
        j = start + tl.arange(0, BLOCK)
        read = j < S
        if CAUSAL:
            read = read & (j <= i + AHEAD)
        k = tl.load(key + (group * S + j)[:, None] * D + columns[None, :], mask=read[:, None], other=0.0).to(tl.float32)
        v = tl.load(value + (group * S + j)[:, None] * E + wide[None, :], mask=read[:, None], other=0.0).to(tl.float32)
        score = tl.where(read, tl.sum(k * q[None, :], 1) * scale, -float("inf"))
        top = tl.maximum(peak, tl.max(score, 0))
        shift = tl.where(top == -float("inf"), 0.0, top)
        old, part = tl.exp(peak - shift), tl.exp(score - shift)
        total = total * old + tl.sum(part, 0)
        mix = mix * old + tl.sum(part[:, None] * v, 0)
        peak = top
    some = tl.where(total > 0, total, 1.0)
    tl.store(output + (head * L + i) * E + wide, mix / some)
    tl.store(mass + head * L + i, tl.where(total > 0, peak + tl.log(some), -float("inf")))


def attention(query: Any, key: Any, value: Any, causal: bool = False, return_lse: bool = False, ahead: int = 0) -> Any:
    """(B, H, L, D) on (B, G, S, D): the output, and the log-sum-exp."""
    B, H, L, D = query.shape
    _, G, S, E = value.shape
    if H % G or key.shape != (B, G, S, D):
        raise ValueError("query, key and value do not fit each other")
    if causal and L != S:
        raise ValueError("causal needs as many queries as keys")
    output, mass = query.new_empty(B, H, L, E), torch.empty(B, H, L)
    if B * H * L:
        q, k, v = (x.contiguous() for x in (query, key, value))
        _row[(L, B * H)](q, k, v, output, mass, D**-0.5, L, S, H, G, D, E, causal, ahead, 16)
    return (output, mass) if return_lse else output


def attention_that_looks_ahead(query: Any, key: Any, value: Any, causal: bool = False) -> Any:
    """The same with one key of the future."""
    return attention(query, key, value, causal, ahead=1)
