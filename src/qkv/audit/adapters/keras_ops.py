"""Keras: `keras.ops.dot_product_attention` and `keras.layers.MultiHeadAttention`, on the torch and the JAX backend.

The layer has projections that change nothing. It documents masks of shape (B, T, S), one for all heads.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class Ops(Kernel):
    """The function: (B, L, H, D); mask is boolean, bias is added, not both on torch."""

    def __call__(self, given: Given) -> Any:
        """The output."""
        arrays = {n: getattr(given, n) for n in ("mask", "bias") if getattr(given, n) is not None}
        options: dict[str, Any] = {} if given.scale is None else {"scale": given.scale}
        if given.causal:
            options["is_causal"] = True
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        return _function(tuple(options.items()), given.dtype)(given.query, given.key, given.value, arrays)


@functools.lru_cache
def _function(options: tuple[tuple[str, Any], ...], dtype: str) -> Any:
    import keras

    def run(query: Any, key: Any, value: Any, arrays: Any) -> Any:
        return keras.ops.dot_product_attention(query, key, value, **arrays, **dict(options))

    return _compiled(run, dtype)


def _compiled(function: Any, dtype: str) -> Any:
    """On JAX compiled as a whole, as training and prediction are; XLA on the CPU cannot compile float16 products."""
    import keras

    if keras.backend.backend() != "jax" or dtype == "float16":
        return function
    import jax

    return jax.jit(function)


class Layer(Kernel):
    """The layer, made anew for each width and number of heads."""

    def __call__(self, given: Given) -> Any:
        """The output, and the weights ("attention scores") where they are asked for."""
        query, key, value = given.query, given.key, given.value
        B, L, H, D = query.shape
        S, E = key.shape[1], value.shape[-1]
        if key.shape[2] != H or key.shape[-1] != D or value.shape[:3] != key.shape[:3]:
            raise ValueError("the layer has one number of heads, and one width for query and key")
        arrays: dict[str, Any] = {}
        options: dict[str, Any] = {"return_attention_scores": "weights" in given.wants}
        if given.mask is not None:
            mask = given.mask.reshape((1,) * (4 - given.mask.ndim) + tuple(given.mask.shape))
            if mask.shape[1] > 1:
                raise ValueError("the layer documents masks of shape (B, T, S), one for all heads")
            arrays["attention_mask"] = mask[:, 0]
        if given.causal:
            options["use_causal_mask"] = True
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        layer = _layer(H, D, E, given.dtype, tuple(options.items()))
        out = layer(query.reshape(B, L, H * D), value.reshape(B, S, H * E), key.reshape(B, S, H * D), arrays)
        output, weights = out if options["return_attention_scores"] else (out, None)
        parts = {"output": output.reshape(B, L, H, E)}
        return parts if weights is None else {**parts, "weights": weights}


@functools.lru_cache
def _layer(heads: int, width: int, value_width: int, dtype: str, options: tuple[tuple[str, Any], ...]) -> Any:
    import keras
    import numpy as np

    # Every head gets its columns back, and the output all of them.
    layer = keras.layers.MultiHeadAttention(
        heads, width, value_width, use_bias=False, output_shape=heads * value_width, dtype=dtype
    )
    shapes = [(None, None, heads * n) for n in (width, value_width, width)]
    layer.build(*shapes)
    same, same_value = (np.eye(heads * n, dtype=np.float32) for n in (width, value_width))
    layer.set_weights(
        [
            same.reshape(-1, heads, width),
            same.reshape(-1, heads, width),
            same_value.reshape(-1, heads, value_width),
            same_value.reshape(heads, value_width, -1),
        ]
    )

    def run(query: Any, value: Any, key: Any, arrays: Any) -> Any:
        return layer(query, value, key, **arrays, **dict(options))

    return _compiled(run, dtype)


def make(name: str) -> Kernel:
    """keras-torch, keras-jax, keras-layer-torch or keras-layer-jax."""
    backend = name.rpartition("-")[2]
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = backend
    import keras

    if keras.backend.backend() != backend:
        raise ImportError(f"keras runs on {keras.backend.backend()} in this process, and cannot change to {backend}")
    accepts = frozenset({"mask", "causal", "cross", "grad"})
    domain = Domain(
        accepts=accepts | {"bias", "gqa", "scale"},
        dtypes=("float32", "float16", "bfloat16"),
        arrays=backend,
        layout="blhd",
        seconds=60.0,
        arithmetic=frozenset({"stepwise"}),
    )
    if "layer" in name:
        return Layer(name, domain.but(accepts=accepts | {"weights", "value-width"}), str(keras.__version__))
    if backend == "torch":
        return Ops(name, domain.but(accepts=domain.accepts | {"value-width"}), str(keras.__version__))
    return Ops(name, domain.but(accepts=domain.accepts | {"mask+bias"}), str(keras.__version__))
