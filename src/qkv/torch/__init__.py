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
    raise ModuleNotFoundError(
        "qkv.torch needs torch, which is not installed; write pip install 'qkv[torch]'", name="torch"
    ) from None

from .functional import attend
from .multihead import MultiHeadAttention

__all__ = ["MultiHeadAttention", "attend"]

del _library
