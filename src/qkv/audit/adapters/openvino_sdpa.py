"""OpenVINO's `ScaledDotProductAttention` (opset 13) on its CPU plugin, in the precision of the arrays.

It documents that with `causal` the mask is ignored, and that without a mask an input of 0 stands for it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]

_DOCUMENTED = (
    (
        "B5-causal-mask",
        "the mask is ignored",
        "ScaledDotProductAttention-13: with causal the attention_mask input is ignored",
    ),
)


class Operation(Kernel):
    """A model of this one operation, compiled once for each rank and option; shapes are dynamic."""

    def __call__(self, given: Given) -> Any:
        """The output."""
        if "unknown" in given.odd:
            raise ValueError("a model has no arguments but those of its operation")
        inputs = [np.ascontiguousarray(x) for x in (given.query, given.key, given.value)]
        chosen = given.mask if given.mask is not None else given.bias
        if chosen is not None:
            inputs.append(np.ascontiguousarray(chosen))
        if given.scale is not None:
            inputs.append(np.asarray(given.scale, inputs[0].dtype))
        kinds = tuple((str(x.dtype), x.ndim) for x in inputs)
        compiled = _compiled(kinds, given.causal, chosen is None and given.scale is not None)
        return np.array(compiled.create_infer_request().infer(inputs)[0])


@functools.lru_cache(maxsize=64)
def _compiled(kinds: tuple[tuple[str, int], ...], causal: bool, scale_alone: bool) -> Any:
    import openvino
    from openvino import opset13

    given = [opset13.parameter(openvino.PartialShape([-1] * rank), np.dtype(dtype)) for dtype, rank in kinds]
    operands = list(given)
    if scale_alone:
        operands.insert(3, opset13.constant(np.zeros((), kinds[0][0])))
    node = opset13.scaled_dot_product_attention(*operands, causal=causal)
    settings = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "float16": "f16"}[kinds[0][0]],
        "INFERENCE_NUM_THREADS": 1,
    }
    return openvino.Core().compile_model(openvino.Model([node], given), "CPU", settings)


def make(name: str) -> Kernel:
    """openvino."""
    import openvino

    domain = Domain(
        accepts=frozenset({"mask", "bias", "causal", "scale", "cross", "value-width"}),
        dtypes=("float32", "float16"),
        strides=False,
        arithmetic=frozenset({"stepwise"}),
        documented=_DOCUMENTED,
    )
    return Operation(name, domain, openvino.__version__.partition("-")[0])
