"""`jax.nn.dot_product_attention`, its XLA implementation: (B, L, H, D), `local_window_size`, `key_value_seq_lengths`."""

from __future__ import annotations

import functools
from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class DotProduct(Kernel):
    """The function."""

    def __call__(self, given: Given) -> Any:
        """The output, and the log-sum-exp (its "residual") where it is asked for."""
        arrays = {"mask": given.mask, "bias": given.bias, "key_value_seq_lengths": given.lengths}
        arrays = {name: x for name, x in arrays.items() if x is not None}
        options: dict[str, Any] = {"implementation": "xla"}
        if given.scale is not None:
            options["scale"] = given.scale
        if given.causal:
            options["is_causal"] = True
        if given.window is not None:
            options["local_window_size"] = tuple(given.window)
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        if "lse" in given.wants:
            options["return_residual"] = True
        out = _jitted(tuple(options.items()), given.dtype)(given.query, given.key, given.value, arrays)
        if "lse" in given.wants:
            # (B, L, H)
            return {"output": out[0], "lse": out[1].swapaxes(1, 2)}
        return out


@functools.lru_cache
def _jitted(options: tuple[tuple[str, Any], ...], dtype: str) -> Any:
    """Compiled as a whole: the way it is used, and one compilation for each shape instead of one for each step.

    XLA on the CPU cannot compile its float16 products, only run them one by one.
    """
    import jax

    def run(query: Any, key: Any, value: Any, arrays: Any) -> Any:
        return jax.nn.dot_product_attention(query, key, value, **arrays, **dict(options))

    return run if dtype == "float16" else jax.jit(run)


def make(name: str) -> Kernel:
    """jax."""
    import jax

    domain = Domain(
        accepts=frozenset(
            {"mask", "bias", "mask+bias", "causal", "window", "lengths", "gqa", "scale", "lse", "grad", "cross"}
        ),
        dtypes=("float32", "float16", "bfloat16"),
        arrays="jax",
        layout="blhd",
        seconds=60.0,
        arithmetic=frozenset({"stepwise"}),
    )
    return DotProduct(name, domain, str(jax.__version__))
