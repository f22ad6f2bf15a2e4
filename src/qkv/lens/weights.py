"""The learned numbers behind a head: its part of the output projection, and the bias that every value shares.

Modules name them differently; the names are looked for, and what is not found is None, which the quantities say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.floats import Array
from qkv.ranges import Ints

from .layer import Projection

__all__ = ["neighbours", "projection"]

_OUT = ("o_proj", "out_proj", "c_proj", "dense", "wo", "proj", "out_lin", "to_out", "linear_out")
_VALUE = ("v_proj", "value", "v_lin", "to_v")


def projection(module: Any, beside: Any, heads: int, groups: int, width: int, picked: Ints, used: Ints) -> Projection:
    """The output projection of an attention module, cut into heads; (H, E, M) of the heads picked.

    `beside` is a layer that a neighbour of the module holds, see `neighbours`.
    """
    layer = _output_layer(module, beside, heads * width)
    weight = bias = None
    if layer is not None:
        matrix = _numbers(layer.weight)
        # torch.nn.Linear keeps (out, in); the Conv1D of GPT-2 keeps (in, out).
        matrix = matrix if type(layer).__name__ == "Conv1D" else matrix.T
        weight = np.ascontiguousarray(matrix.reshape(heads, width, -1)[picked])
        bias = None if getattr(layer, "bias", None) is None else _numbers(layer.bias)
    shared = _value_bias(module, groups, width)
    return Projection(weight, bias, None if shared is None else shared[used])


def _output_layer(module: Any, beside: Any, inputs: int) -> Any:
    for layer in [*(getattr(module, name, None) for name in _OUT), beside]:
        weight = getattr(layer, "weight", None)
        if weight is None or getattr(weight, "ndim", 0) != 2:
            continue
        if inputs == weight.shape[0 if type(layer).__name__ == "Conv1D" else 1]:
            return layer
    return None


def neighbours(model: Any) -> dict[int, Any]:
    """id(module) -> the output projection that a sibling holds (`attention.output.dense` beside `attention.self`)."""
    found = {}
    for parent in model.modules():
        dense = getattr(getattr(parent, "output", None), "dense", None)
        if dense is None:
            continue
        for name in ("self", "attention"):
            child = getattr(parent, name, None)
            if child is not None and not hasattr(child, "output"):
                found[id(child)] = dense
    return found


def _value_bias(module: Any, groups: int, width: int) -> Array | None:
    for name in _VALUE:
        bias = getattr(getattr(module, name, None), "bias", None)
        if bias is not None and bias.numel() == groups * width:
            return _numbers(bias).reshape(groups, width)
    # One layer for all three: queries, keys and values after one another, or so for each head.
    for name, shape, axis in (
        ("c_attn", (3, groups, width), 0),
        ("qkv", (3, groups, width), 0),
        ("query_key_value", (groups, 3, width), 1),
    ):
        bias = getattr(getattr(module, name, None), "bias", None)
        if bias is not None and bias.numel() == 3 * groups * width:
            parts: Array = np.take(_numbers(bias).reshape(shape), 2, axis=axis)
            return parts
    stacked = getattr(module, "in_proj_bias", None)  # torch.nn.MultiheadAttention; a key it appends has no such bias
    appends = getattr(module, "bias_v", None) is not None or getattr(module, "add_zero_attn", False)
    if stacked is not None and stacked.numel() == 3 * groups * width and not appends:
        return _numbers(stacked)[-groups * width :].reshape(groups, width)
    return None


def _numbers(tensor: Any) -> Array:
    import torch

    array: Array = tensor.detach().to("cpu", torch.float32).numpy()
    return array
