"""`torch.nn.MultiheadAttention`, with projections that change nothing, asked for its weights or not.

In evaluation mode without gradients it takes torch's fast path where it is not asked for weights. It documents that
True in a mask means: this pair is dropped.
"""

from __future__ import annotations

from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class Layer(Kernel):
    """The layer, made anew for each width and number of heads."""

    with_weights: bool = False

    def __call__(self, given: Given) -> Any:
        """Output (B, H, L, D), and the weights where they are asked for."""
        import torch

        query, key, value = given.query, given.key, given.value
        B, H, L, D = query.shape
        if key.shape[1] != H or value.shape != key.shape or key.shape[-1] != D:
            raise ValueError("the layer has one number of heads and one width for query, key and value")
        layer = self._layer(H, D, query.dtype)
        flat = [x.transpose(1, 2).reshape(x.shape[0], x.shape[2], H * D) for x in (query, key, value)]
        options: dict[str, Any] = {"need_weights": self.with_weights or "weights" in given.wants}
        mask = given.mask if given.mask is not None else given.bias
        if mask is not None:
            wide = mask.expand(B, H, L, key.shape[2])
            options["attn_mask"] = wide.reshape(B * H, L, key.shape[2])
        if given.lengths is not None:
            options["key_padding_mask"] = torch.arange(key.shape[2]) >= given.lengths[:, None]
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        with torch.set_grad_enabled("grad" in given.wants):
            output, weights = layer(*flat, average_attn_weights=False, **options)
        parts = {"output": output.reshape(B, L, H, D).transpose(1, 2)}
        if weights is not None:
            parts["weights"] = weights
        return parts

    @staticmethod
    def _layer(heads: int, width: int, dtype: Any) -> Any:
        import torch

        layer = torch.nn.MultiheadAttention(heads * width, heads, bias=False, batch_first=True, dtype=dtype).eval()
        same = torch.eye(heads * width, dtype=dtype)
        with torch.no_grad():
            layer.in_proj_weight.copy_(torch.cat([same, same, same]))
            layer.out_proj.weight.copy_(same)
        return layer


def make(name: str) -> Kernel:
    """torch-mha or torch-mha-weights."""
    import torch

    accepts = frozenset({"mask", "bias", "lengths", "cross", "grad"})
    domain = Domain(
        accepts=accepts,
        dtypes=("float32", "float16", "bfloat16", "float64"),
        arrays="torch",
        polarity="drop",
        arithmetic=frozenset({"stepwise"}),
    )
    kernel = Layer(name, domain, str(torch.__version__))
    if name.endswith("weights"):
        kernel.with_weights = True
        kernel.domain = domain.but(accepts=accepts | {"weights"})
    return kernel
