"""Questions about the weights in the native engine: one more pass over queries and keys, from the states of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..floats import Array
from ..plan import RECEIVED_KEYS, Plan
from ..problem import Problem
from . import native
from .native_call import parts

Ints = npt.NDArray[np.int64]


def ready(problem: Problem, plan: Plan) -> bool:
    """Whether the native engine carried out the problem and kept the rows' states."""
    return plan.engine == "native" and problem.sums is not None


def entropy(problem: Problem, plan: Plan) -> Array:
    """(N, H, L) in nats, of the weights renormalised over the keys."""
    base, whole = _shares(problem, with_sink=False)
    out = np.zeros(base.shape, base.dtype)
    for batch, rows, call, _ in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        part = np.empty(base[at].shape, base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, entropy=part)
        out[at] = part
    return out


def received(problem: Problem, plan: Plan) -> Array:
    """(N, H, S): what each key receives from all rows."""
    base, whole = _shares(problem, with_sink=True)
    out = np.zeros((*base.shape[:-1], problem.keys), base.dtype)
    for batch, rows, call, keys in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        part = np.zeros((*base[at].shape[:-1], keys.stop - keys.start), base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, received=part)
        out[batch, :, keys] += part
    return out


def top(problem: Problem, plan: Plan, count: int) -> tuple[Ints, Array]:
    """Keys and weights of the `count` largest weights a row, (N, H, L, count); padded with -1 and 0."""
    base, whole = _shares(problem, with_sink=True)
    index = np.full((*base.shape, count), -1, np.int64)
    weight = np.zeros(index.shape, base.dtype)
    for batch, rows, call, keys in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        found = np.empty(index[at].shape, np.int64), np.empty(index[at].shape, base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, first_key=keys.start, top=found)
        index[at], weight[at] = found
    if problem.lost is not None:
        weight[problem.lost] = np.nan
    return index, weight


def sink_share(problem: Problem) -> Array:
    """The sink's part of the whole, (N, H, L)."""
    base, whole = _shares(problem, with_sink=True)
    with np.errstate(all="ignore"):
        out: Array = np.exp(_sink(problem) - base) / whole
    return out


def _sink(problem: Problem) -> Array:
    """(H, 1) in the compute type, a sink beyond it as its largest number."""
    assert problem.sink is not None
    limit = float(np.finfo(problem.dtype.compute).max)
    out: Array = np.clip(problem.sink, -limit, limit).astype(problem.dtype.compute)[:, None]
    return out


def _shares(problem: Problem, *, with_sink: bool) -> tuple[Array, Array]:
    """(base, whole), (N, H, L) each: a weight is exp(score - base) / whole. Whole is NaN where a row has no answer."""
    assert problem.sums is not None
    highest, total = problem.sums
    with np.errstate(all="ignore"):
        base = highest
        if with_sink and problem.sink is not None:
            base = np.maximum(highest, _sink(problem))
        base = np.where(np.isfinite(base), base, 0).astype(highest.dtype)
        whole = total
        if with_sink and problem.sink is not None:
            whole = total * np.exp(highest - base) + np.exp(_sink(problem) - base)
        whole = np.where(whole == 0, 1, whole).astype(highest.dtype)
    if problem.lost is not None:
        whole[problem.lost] = np.nan
    return base, whole


def _flat(array: Array) -> Any:
    return np.ascontiguousarray(array)
