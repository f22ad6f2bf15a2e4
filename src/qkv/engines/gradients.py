"""What goes into a backward pass and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..floats import Array
from ..problem import Problem


@dataclass(frozen=True, eq=False)
class Seed:
    """What the forward pass gave, and the gradients that arrive.

    Attributes:
        output, doutput: (B…, H, L, E) in storage form, any strides.
        lse, dlse: (N, H, L) in the compute type; dlse None: the log-sum-exp has no gradient.
    """

    output: Array
    doutput: Array
    lse: Array
    dlse: Array | None = None


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients in the compute type.

    Attributes:
        query: (N, H, L, D). key: (N, G, S, D). value: (N, G, S, E).
        bias: in the caller's shape with 1s for the axes it lacks, so that it has B… and three more; None: not wanted.
        delta: (N, H, L), rowsum(doutput ∘ output) − dlse, from which the sink's gradient follows.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    delta: Array


def zero_gradients(problem: Problem, *, bias: bool) -> Gradients:
    """Gradients to add to."""
    n, dtype = problem.batches, problem.dtype.compute
    shape = (1,) * (len(problem.batch) + 3 - len(problem.bias_shape)) + problem.bias_shape
    return Gradients(
        np.zeros((n, problem.heads, problem.queries, problem.width), dtype),
        np.zeros((n, problem.groups, problem.keys, problem.width), dtype),
        np.zeros((n, problem.groups, problem.keys, problem.value_width), dtype),
        np.zeros(shape, dtype) if bias else None,
        np.zeros((n, problem.heads, problem.queries), dtype),
    )


def sink_gradient(problem: Problem, lse: Array, delta: Array) -> Array | None:
    """(H,) float64: a sink is a key with value 0, so its score's gradient is its weight times −delta; None without one."""
    if problem.sink is None:
        return None
    with np.errstate(all="ignore"):
        share = np.exp(problem.sink[:, None] - lse.astype(np.float64))
        # NaN delta: a lost row. A NaN log-sum-exp belongs to one as well.
        out: Array = -(share * delta).sum(axis=(0, 2))
    return out
