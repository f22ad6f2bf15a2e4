"""Attention in torch: `attend` with a gradient, for training, `torch.compile` and `torch.export`; and the layer.

>>> import torch, qkv.torch
>>> q, k, v = torch.randn(3, 1, 2, 4, 8, requires_grad=True).unbind()
>>> qkv.torch.attend(q, k, v, mask=qkv.causal()).sum().backward()
"""

try:
    import torch as _library
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    from qkv.files.extras import how_to_install

    raise ModuleNotFoundError(
        f"qkv.torch needs torch, which is not installed; {how_to_install('torch')}", name="torch"
    ) from None

from .functional import attend
from .multihead import MultiHeadAttention

__all__ = ["MultiHeadAttention", "attend"]

del _library
