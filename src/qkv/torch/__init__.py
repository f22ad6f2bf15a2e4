"""Attention in torch: `attend` with a gradient, for training, `torch.compile` and `torch.export`.

>>> import torch, qkv.torch
>>> q, k, v = torch.randn(3, 1, 2, 4, 8, requires_grad=True).unbind()
>>> qkv.torch.attend(q, k, v, mask=qkv.causal()).sum().backward()
"""

from .functional import attend
from .multihead import MultiHeadAttention

__all__ = ["MultiHeadAttention", "attend"]
