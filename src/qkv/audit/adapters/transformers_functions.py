"""The attention functions of transformers: a model's `eager_attention_forward`, `sdpa` and `flex_attention`.

They are handed what `masking_utils` makes of a mask: booleans for sdpa, 0 and the most negative number for eager, a
BlockMask for flex, which is compiled. Without a mask, sdpa asks the module whether it is causal.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]

_DOCUMENTED = {
    "sdpa": (
        (
            "B5-causal-mask",
            "causal is ignored",
            "sdpa_attention.py: is_causal counts where no attention_mask is given; the mask has to be causal itself",
        ),
    )
}


class Function(Kernel):
    """One of the three."""

    way: str = "sdpa"

    def __call__(self, given: Given) -> Any:
        """The output, and the weights where the function has them."""
        query, key = given.query, given.key
        if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
            raise ValueError("a module has a whole number of query heads for each key head")
        module = SimpleNamespace(
            num_key_value_groups=query.shape[1] // key.shape[1], is_causal=given.causal, training=False
        )
        options: dict[str, Any] = {"scaling": query.shape[-1] ** -0.5 if given.scale is None else given.scale}
        if self.way == "flex" and given.bias is not None:
            # What it calls a mask is read of head 0 alone; position_bias is of every head.
            shape = (*query.shape[:3], key.shape[2])
            options["position_bias"] = given.bias.expand(shape).contiguous()
        if given.softcap is not None:
            options["softcap"] = given.softcap
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        with warnings.catch_warnings():
            # Flex says that it runs without being compiled.
            warnings.simplefilter("ignore")
            output, weights = self._function()(module, query, key, given.value, self._mask(given), **options)
        parts = {"output": output.transpose(1, 2)}
        return {**parts, "weights": weights} if "weights" in given.wants and weights is not None else parts

    def _function(self) -> Any:
        if self.way == "eager":
            from transformers.models.llama.modeling_llama import eager_attention_forward

            return eager_attention_forward
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS["sdpa" if self.way == "sdpa" else "flex_attention"]

    def _mask(self, given: Given) -> Any:
        import torch

        mask = given.mask
        if mask is None or mask.dtype != torch.bool:
            added = None if self.way == "flex" else given.bias
            return added if mask is None else mask
        mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
        if self.way == "sdpa":
            return mask
        if self.way == "eager":
            zero = torch.zeros((), dtype=given.query.dtype)
            return torch.where(mask, zero, torch.finfo(given.query.dtype).min)
        from torch.nn.attention.flex_attention import create_block_mask

        B, H, L, S = given.query.shape[0], given.query.shape[1], given.query.shape[2], given.key.shape[2]
        wide = mask.expand(B, H, L, S).contiguous()
        return create_block_mask(lambda b, h, i, j: wide[b, h, i, j], B, H, L, S, device="cpu")


def make(name: str) -> Kernel:
    """transformers-eager, transformers-sdpa or transformers-flex."""
    import transformers

    shared = frozenset({"mask", "bias", "gqa", "scale", "cross", "value-width"})
    accepts = {"eager": {"weights", "grad"}, "sdpa": {"causal", "grad"}, "flex": {"softcap", "mask+bias"}}
    way = name.rpartition("-")[2]
    domain = Domain(
        accepts=shared | accepts[way],
        dtypes=("float32", "bfloat16") if way == "flex" else ("float32", "float16", "bfloat16"),
        arrays="torch",
        arithmetic=frozenset({"stepwise"}),
        longest=2048 if way == "flex" else 8192,
        documented=_DOCUMENTED.get(way, ()),
    )
    kernel = Function(name, domain, str(transformers.__version__))
    kernel.way = way
    return kernel
