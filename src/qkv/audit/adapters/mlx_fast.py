"""`mlx.core.fast.scaled_dot_product_attention` on the CPU.

It documents that "causal" aligns the last query with the last key, and that `scale` has to be said. Arrays travel as
NumPy's; its gradients come from `mx.vjp`.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class Fast(Kernel):
    """The function."""

    def __call__(self, given: Given) -> Any:
        """The output, and gradients where they are asked for."""
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        scale = given.query.shape[-1] ** -0.5 if given.scale is None else given.scale
        options: dict[str, Any] = {"scale": scale}
        chosen = given.mask if given.mask is not None else given.bias
        if chosen is not None and given.causal:
            raise ValueError("mask is an array or the word causal, not both")
        if chosen is not None:
            options["mask"] = _into(chosen)
        if given.causal:
            options["mask"] = "causal"
        if given.sink is not None:
            # Sinks of another type than the query are refused.
            options["sinks"] = _into(given.sink).astype(_into(given.query).dtype)
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1

        def run(query: Any, key: Any, value: Any) -> Any:
            return mx.fast.scaled_dot_product_attention(query, key, value, **options)

        operands = [_into(x) for x in (given.query, given.key, given.value)]
        if "grad" not in given.wants:
            return _back(run(*operands))
        outputs, slopes = mx.vjp(run, operands, [_into(given.cotangent)])
        return {"output": _back(outputs[0]), **{n: _back(x) for n, x in zip(("dq", "dk", "dv"), slopes, strict=True)}}


def _into(array: Any) -> Any:
    import mlx.core as mx

    plain = np.ascontiguousarray(array)
    if plain.dtype.name == "bfloat16":
        return mx.array(plain.view(np.uint16)).view(mx.bfloat16)
    return mx.array(plain)


def _back(array: Any) -> Any:
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        import ml_dtypes

        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def make(name: str) -> Kernel:
    """mlx."""
    import mlx.core  # noqa: F401

    domain = Domain(
        accepts=frozenset({"mask", "bias", "causal", "gqa", "scale", "sink", "grad", "cross", "value-width"}),
        dtypes=("float32", "float16", "bfloat16"),
        strides=False,
        arithmetic=frozenset({"stepwise"}),
    )
    return Fast(name, domain, importlib.metadata.version("mlx"))
