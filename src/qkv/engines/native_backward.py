"""The gradient by the native engine: from Problem, Plan and Seed to its calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..floats import Array
from ..plan import Plan
from ..problem import Problem
from . import native
from .gradients import Gradients, Seed, zero_gradients
from .native_call import parts


def run(problem: Problem, plan: Plan, seed: Seed, *, bias: bool) -> Gradients:
    """The gradients of a problem; `bias`: whether that of the bias array is wanted."""
    out = zero_gradients(problem, bias=bias)
    # Batches and heads that share one bias take turns: each has a place of its own to add to, and is added up afterwards.
    shared = out.bias is not None and out.bias.shape[:-2] != (*problem.batch, problem.heads)
    if out.bias is not None and out.bias.shape[-2] < problem.queries:
        plan = replace(plan, spread=False)
    for batch, rows, call, keys in parts(problem, plan, "output", by_batch=shared):
        one = batch != slice(None)
        at: Any = problem.at(batch.start) if one else (...,)
        lead = () if one else problem.batch

        def mine(array: Array, span: slice, batch: slice = batch, lead: tuple[int, ...] = lead) -> Array:
            """The part of (N, heads, length, width) that this call works on, with the axes of its query."""
            part: Array = array[batch].reshape(*lead, *array.shape[1:])[..., span, :]
            return part

        place = None if out.bias is None else _place(problem, out.bias, shared, at)
        delta = np.empty(out.delta[batch, :, rows].shape, problem.dtype.compute)
        native.backward(
            call,
            seed.output[at][..., rows, :],
            seed.doutput[at][..., rows, :],
            np.ascontiguousarray(seed.lse[batch, :, rows]),
            None if seed.dlse is None else np.ascontiguousarray(seed.dlse[batch, :, rows]),
            mine(out.query, rows),
            mine(out.key, keys),
            mine(out.value, keys),
            None if place is None else _pairs(problem, place, lead)[..., rows, keys],
            delta,
        )
        out.delta[batch, :, rows] = delta
        if shared and place is not None and out.bias is not None:
            into = out.bias[tuple(i if size > 1 else 0 for i, size in zip(at, out.bias.shape[:-3], strict=True))]
            into += place.sum(axis=0, keepdims=True) if into.shape[0] < problem.heads else place
    return out


def _place(problem: Problem, total: Array, shared: bool, at: Any) -> Array:
    """Where a call adds the bias's gradient: the result itself, or zeros of (H, L or 1, S or 1)."""
    return np.zeros((problem.heads, *total.shape[-2:]), total.dtype) if shared else total[at]


def _pairs(problem: Problem, place: Array, lead: tuple[int, ...]) -> Array:
    """The same memory as (B…, H, L, S), with stride 0 along what the bias was broadcast over."""
    shape = (*lead, problem.heads, problem.queries, problem.keys)
    strides = tuple(
        step if size == full else 0 for step, size, full in zip(place.strides, place.shape, shape, strict=True)
    )
    out: Array = np.lib.stride_tricks.as_strided(place, shape, strides, writeable=True)
    return out
