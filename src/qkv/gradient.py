"""The gradient of attention, for bridges to libraries that differentiate.

Memory is linear in L + S: the weights are computed again from the log-sum-exp, tile by tile, and dropped. Only the gradient
of a bias that is itself L×S is L×S.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import engines
from .contract import canonical
from .engines.backward import run_backward
from .engines.gradients import Seed, sink_gradient
from .errors import ShapeError
from .floats import Array
from .interop import take, to_numpy
from .problem import Problem

__all__ = ["AttentionGradient", "attention_gradient"]


class AttentionGradient(NamedTuple):
    """Gradients as arrays of the caller's kind in his layout, float32 (float64 for float64 input), so that one that is
    too large for a half-precision type shows as infinite when it is rounded.

    Attributes:
        query, key, value: shaped like the operands.
        bias: shaped like the bias; None without one, or if it was not wanted. sink: (H,); None without one.
    """

    query: Any
    key: Any
    value: Any
    bias: Any
    sink: Any


def attention_gradient(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
    doutput: Any,
    *,
    dlse: Any = None,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    layout: str = "bhld",
    want_bias: bool = True,
) -> AttentionGradient:
    """The gradient of Σ doutput·output + Σ dlse·lse with respect to query, key, value, bias and sink.

    Args:
        query, key, value, mask, bias, scale, softcap, sink, layout: as they went into `qkv.attention`.
        output, lse: what came out of it.
        doutput: shaped like the output and of its dtype. dlse: shaped like the log-sum-exp, or None for 0.
        want_bias: whether the bias needs its gradient.

    A row without keys gives zeros (C2). A row that is NaN, or whose `doutput` is, makes NaN of its query's gradient and of
    what belongs to the pairs it may read, and of nothing else (D1, D2).

    Formula: `qkv.reference_gradient`.

    >>> import numpy as np, qkv
    >>> from qkv.gradient import attention_gradient
    >>> x, v = np.zeros((2, 2)), np.array([[1.0], [3.0]])
    >>> a = qkv.attention(x, x, v, mask=qkv.causal())
    >>> attention_gradient(x, x, v, a.output, a.lse, np.ones((2, 1)), mask=qkv.causal()).value.tolist()
    [[1.5], [0.5]]
    """
    problem = canonical(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sink=sink,
        empty="zero",
        nonfinite="propagate",
        layout=layout,
    )
    rows = (problem.batches, problem.heads, problem.queries)
    seed = Seed(
        output=_rows_of(problem, "output", output),
        doutput=_rows_of(problem, "doutput", doutput),
        lse=_numbers(problem, "lse", lse).reshape(rows),
        dlse=None if dlse is None else _numbers(problem, "dlse", dlse).reshape(rows),
    )
    plan = engines.choose(problem)
    found = run_backward(problem, plan, seed, bias=want_bias and problem.bias is not None)
    dbias = None if found.bias is None else found.bias.reshape(problem.bias_shape)
    dsink = sink_gradient(problem, seed.lse, found.delta)
    wrap = problem.layout.kind.wrap

    def given(array: Array) -> Any:
        return wrap(problem.layout.restored(array.reshape(*problem.batch, *array.shape[1:]), trailing=1))

    return AttentionGradient(
        given(found.query),
        given(found.key),
        given(found.value),
        None if dbias is None else wrap(dbias),
        None if dsink is None else wrap(dsink),
    )


def _rows_of(problem: Problem, name: str, array: Any) -> Array:
    """An array shaped like the output, as a canonical view in storage form."""
    taken, dtype, _ = take(array, name)
    shape = (*problem.batch, problem.heads, problem.queries, problem.value_width)
    view = problem.layout.canonical(taken) if taken.ndim == problem.layout.axes else taken
    if view.shape != shape or dtype != problem.dtype.name:
        raise ShapeError(
            f"{name} must have the output's shape and dtype, {shape} and {problem.dtype.name} when heads stand before length, "
            f"but has {view.shape} and {dtype}; pass what belongs to the output"
        )
    return view


def _numbers(problem: Problem, name: str, array: Any) -> Array:
    """An array shaped like the log-sum-exp, in the compute type."""
    out = to_numpy(array, name)
    if out.size != problem.batches * problem.heads * problem.queries:
        raise ShapeError(
            f"{name} must have the log-sum-exp's shape, {(*problem.batch, problem.heads, problem.queries)}, but has {out.shape}; "
            "pass what belongs to the log-sum-exp"
        )
    return np.ascontiguousarray(out, dtype=problem.dtype.compute)
