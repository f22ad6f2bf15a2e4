"""Questions about the weights in the native engine: one more pass over queries and keys.

A weight is exp(score - base) / whole, with base and whole (N, H, L) from the states of the rows; base is finite, and whole
NaN where a row has no right answer.
"""

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


def entropy(problem: Problem, plan: Plan, base: Array, whole: Array) -> Array:
    """(N, H, L) in nats, of the weights renormalised over the keys."""
    out = np.zeros(base.shape, base.dtype)
    for batch, rows, call, _ in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        part = np.empty(base[at].shape, base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, entropy=part)
        out[at] = part
    return out


def received(problem: Problem, plan: Plan, base: Array, whole: Array) -> Array:
    """(N, H, S): what each key receives from all rows."""
    out = np.zeros((*base.shape[:-1], problem.keys), base.dtype)
    for batch, rows, call, keys in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        part = np.zeros((*base[at].shape[:-1], keys.stop - keys.start), base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, received=part)
        out[batch, :, keys] += part
    return out


def top(problem: Problem, plan: Plan, base: Array, whole: Array, count: int) -> tuple[Ints, Array]:
    """Keys and weights of the `count` largest weights a row, (N, H, L, count); padded with -1 and 0."""
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


def _flat(array: Array) -> Any:
    return np.ascontiguousarray(array)
