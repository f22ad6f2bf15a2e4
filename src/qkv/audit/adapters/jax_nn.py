"""`jax.nn.dot_product_attention`, its XLA implementation: (B, L, H, D), `local_window_size`, `key_value_seq_lengths`."""

from __future__ import annotations

from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class DotProduct(Kernel):
    """The function."""

    def __call__(self, given: Given) -> Any:
        """The output, and the log-sum-exp (its "residual") where it is asked for."""
        import jax

        options: dict[str, Any] = {"implementation": "xla"}
        for name, argument in (
            ("mask", "mask"),
            ("bias", "bias"),
            ("scale", "scale"),
            ("lengths", "key_value_seq_lengths"),
        ):
            if getattr(given, name) is not None:
                options[argument] = getattr(given, name)
        if given.causal:
            options["is_causal"] = True
        if given.window is not None:
            options["local_window_size"] = tuple(given.window)
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        if "lse" in given.wants:
            options["return_residual"] = True
        out = jax.nn.dot_product_attention(given.query, given.key, given.value, **options)
        if "lse" in given.wants:
            # (B, L, H)
            return {"output": out[0], "lse": out[1].swapaxes(1, 2)}
        return out


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
        arithmetic=frozenset({"stepwise"}),
    )
    return DotProduct(name, domain, str(jax.__version__))
