"""The formula in arrays: NumPy as one writes it down, and JAX's own function, compiled."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from shapes import Inputs, Shape

Run = Callable[[], Any]
LARGEST = 2**29  # bytes of a dense score matrix; above, the plain formula goes head by head
DENSE = 2**33  # bytes of all scores together, above which a library that makes them all is not asked


def numpy(shape: Shape, x: Inputs) -> Run | None:
    """softmax(q·kᵀ/√D)·v, head by head where the matrix would be huge."""
    if shape.dtype != "float32" or (shape.batch > 1 and shape.queries != 1) or shape.documents:
        return None
    share = shape.heads // shape.key_heads
    query = x.query.reshape(shape.batch * shape.key_heads, share, shape.queries, shape.width)
    key, value = (a.reshape(-1, 1, shape.keys, shape.width) for a in (x.key, x.value))
    key = key.swapaxes(-1, -2)
    seen = shape.allowed(0, np.arange(shape.queries)) if shape.masked else None
    scale = np.float32(shape.width**-0.5)
    size = shape.heads * shape.queries * shape.keys * 4
    steps = [slice(g, g + 1) for g in range(len(query))] if size > LARGEST else [slice(None)]

    def run() -> Any:
        parts = []
        for at in steps:
            score = (query[at] * scale) @ key[at]
            if seen is not None:
                score = np.where(seen, score, -np.inf)
            score -= score.max(-1, keepdims=True)
            weight = np.exp(score, out=score)
            weight /= weight.sum(-1, keepdims=True)
            parts.append(weight @ value[at])
        return np.concatenate(parts).reshape(x.query.shape)

    return run


def jax(shape: Shape, x: Inputs) -> Run | None:
    """`jax.nn.dot_product_attention` in its own layout, jitted; causal and windows by its own arguments."""
    size = shape.batch * shape.heads * shape.queries * shape.keys * 4
    # It has no float16 product on CPUs.
    if importlib.util.find_spec("jax") is None or shape.documents or shape.dtype == "float16" or size > DENSE:
        return None
    import jax as library

    q, k, v = (library.numpy.asarray(np.ascontiguousarray(a.swapaxes(1, 2))) for a in (x.query, x.key, x.value))
    options: dict[str, Any] = {"is_causal": shape.causal and shape.queries == shape.keys}
    if shape.window is not None:
        options["local_window_size"] = (shape.window - 1, 0)
    if shape.lengths:
        options["key_value_seq_lengths"] = library.numpy.asarray(shape.lengths)
    call = library.jit(lambda q, k, v: library.nn.dot_product_attention(q, k, v, **options))
    return lambda: _HeadsFirst(call(q, k, v).block_until_ready())


class _HeadsFirst:
    """A result (batch, length, heads, width) seen as (batch, heads, length, width), one sequence at a time."""

    def __init__(self, output: Any) -> None:
        self.output, self.nbytes = output, output.nbytes

    def __getitem__(self, b: int) -> Any:
        return np.asarray(self.output[b]).swapaxes(0, 1)
