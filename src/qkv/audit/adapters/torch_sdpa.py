"""`torch.nn.functional.scaled_dot_product_attention`, as torch chooses and forced to each CPU backend.

One argument, `attn_mask`, is mask (boolean, True = may read) or bias (float); `is_causal` excludes it. The
log-sum-exp of the flash backend is that of the operator torch's own backward pass uses.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]

_ACCEPTS = frozenset({"mask", "bias", "causal", "gqa", "scale", "grad", "cross", "value-width"})


class Sdpa(Kernel):
    """The function under one backend."""

    backend: Any = None

    def __call__(self, given: Given) -> Any:
        """The output, and the log-sum-exp where it is asked for."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        options: dict[str, Any] = {}
        chosen = given.mask if given.mask is not None else given.bias
        if chosen is not None:
            options["attn_mask"] = chosen
        if given.causal:
            options["is_causal"] = True
        if given.scale is not None:
            options["scale"] = given.scale
        if given.grouped:
            options["enable_gqa"] = True
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        if "lse" in given.wants:
            options.pop("enable_gqa", None)
            mask = options.pop("attn_mask", None)
            if mask is not None and mask.dtype == torch.bool:
                mask = torch.zeros(mask.shape, dtype=given.query.dtype).masked_fill_(~mask, float("-inf"))
            if mask is not None and mask.ndim == 4:
                mask = mask.expand(given.query.shape[0], given.query.shape[1], *mask.shape[2:])
            output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                given.query, given.key, given.value, 0.0, options.pop("is_causal", False), attn_mask=mask, **options
            )
            return {"output": output, "lse": lse}
        with self._forced():
            return scaled_dot_product_attention(given.query, given.key, given.value, **options)

    def _forced(self) -> AbstractContextManager[Any]:
        if self.backend is None:
            return nullcontext()
        from torch.nn.attention import sdpa_kernel

        forced: AbstractContextManager[Any] = sdpa_kernel(self.backend)
        return forced


def make(name: str) -> Kernel:
    """torch-sdpa, torch-sdpa-math or torch-sdpa-flash."""
    import torch
    from torch.nn.attention import SDPBackend

    domain = Domain(
        accepts=_ACCEPTS,
        dtypes=("float32", "float16", "bfloat16", "float64"),
        arrays="torch",
        # Scores of half precision are kept in it by the math backend, and P is rounded to it by the flash one.
        arithmetic=frozenset({"stepwise"}),
    )
    kernel = Sdpa(name, domain, str(torch.__version__))
    if name.endswith("math"):
        kernel.backend = SDPBackend.MATH
    if name.endswith("flash"):
        kernel.backend = SDPBackend.FLASH_ATTENTION
        kernel.domain = domain.but(accepts=_ACCEPTS - {"value-width"} | {"lse"}, arithmetic=frozenset({"p-rounded"}))
    return kernel
