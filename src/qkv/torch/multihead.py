"""The layer: projections, heads side by side, one attention, one projection back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..cache import Cache
from ..contract import refuse_foreign
from ..errors import ShapeError, UnsupportedError
from .functional import attend

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Multi-head attention over hidden states (B…, L, M), with the parameters and state dict of `nn.MultiheadAttention`.

    Length stands before width, and before it any batch axes. True in a mask means that the query may read the key; the
    other layer means the opposite by it.

    Args:
        embed_dim: M, the width of queries and of the result. num_heads: H, which divides M.
        key_heads: G, heads of keys and values, H if left out; then the names are q_proj_weight, k_proj_weight, v_proj_weight.
        bias: whether the projections have one. kdim, vdim: widths of keys and values, M if left out.
        dropout: kept so that a model can be loaded; above 0 it is refused in training and does nothing in evaluation.
        sink: whether each head learns a logit that takes a share of its weights (parameter `sink`, (H,), from 0).
        scale, softcap: as in `attend`.

    Formula: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.

    >>> import torch, qkv.torch
    >>> layer = qkv.torch.MultiHeadAttention(16, 4, key_heads=2)
    >>> layer(torch.randn(3, 5, 16), mask=qkv.causal()).shape
    torch.Size([3, 5, 16])
    """

    in_proj_weight: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    sink: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        key_heads: int | None = None,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        sink: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ShapeError(
                f"embed_dim must be a multiple of num_heads, but {embed_dim} and {num_heads} came; change one of them"
            )
        self.key_heads = num_heads if key_heads is None else key_heads
        if num_heads % self.key_heads:
            raise ShapeError(
                f"num_heads must be a multiple of key_heads, but {num_heads} and {key_heads} came; leave key_heads out for one each"
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.scale, self.softcap = dropout, scale, softcap
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        narrow = self.key_heads * self.head_dim
        self.sizes = [embed_dim, narrow, narrow]
        joined = self.key_heads == num_heads and self.kdim == self.vdim == embed_dim
        shapes: dict[str, tuple[int, ...] | None] = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if joined else None,
            "q_proj_weight": None if joined else (embed_dim, embed_dim),
            "k_proj_weight": None if joined else (narrow, self.kdim),
            "v_proj_weight": None if joined else (narrow, self.vdim),
            "in_proj_bias": (sum(self.sizes),) if bias else None,
            "sink": (num_heads,) if sink else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape, **made)))
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        self.reset_parameters()

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same layer with the same numbers; `batch_first` is not looked at, since length stands before width here.

        Raises:
            UnsupportedError: the layer adds keys of its own (`add_bias_kv`, `add_zero_attn`).
        """
        if layer.bias_k is not None or layer.add_zero_attn:
            raise UnsupportedError(
                "layer must not add keys of its own, but has add_bias_kv or add_zero_attn; build it without, or append them to key and value"
            )
        made = cls(
            layer.embed_dim,
            layer.num_heads,
            bias=layer.in_proj_bias is not None,
            kdim=layer.kdim,
            vdim=layer.vdim,
            dropout=layer.dropout,
            device=layer.out_proj.weight.device,
            dtype=layer.out_proj.weight.dtype,
        )
        made.load_state_dict(layer.state_dict())
        return made.train(layer.training)

    def reset_parameters(self) -> None:
        """Numbers as `nn.MultiheadAttention` begins with: Glorot's for the projections in, zeros for biases and sinks."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def extra_repr(self) -> str:
        grouped = "" if self.key_heads == self.num_heads else f", key_heads={self.key_heads}"
        return f"{self.embed_dim}, {self.num_heads}{grouped}"

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Any = None,
        bias: Any = None,
        cache: Cache | None = None,
        **others: Any,
    ) -> Tensor:
        """Attention of query (B…, L, M) over key (B…, S, kdim) and value (B…, S, vdim): (B…, L, M).

        Args:
            key: the query's states if left out. value: the key's if left out.
            mask, bias: as in `attend`, over (B…, H, L, S).
            cache: keys and values are appended to it and all of it is read, so that `causal()` needs no `align`; it keeps no
                gradient.

        Raises:
            UnsupportedError: dropout in training, a keyword that is not honoured, a cache where gradients are wanted.
        """
        refuse_foreign(others, type(self).forward)
        if self.dropout > 0 and self.training:
            raise UnsupportedError(
                f"dropout must be 0 in training, but is {self.dropout}, and attention here is exact; set layer.dropout = 0.0 and drop "
                "the layer's output instead, or call layer.eval()"
            )
        key = query if key is None else key
        value = key if value is None else value
        heads = (self.num_heads, self.key_heads, self.key_heads)
        q, k, v = (
            _split(functional.linear(x, w, b), count)
            for x, w, b, count in zip((query, key, value), self._weights(), self._biases(), heads, strict=True)
        )
        if cache is None:
            joined = attend(
                q, k, v, mask=mask, bias=bias, scale=self.scale, softcap=self.softcap, sink=self.sink, layout="blhd"
            )
        else:
            joined = self._cached(q, k, v, mask, bias, cache)
        out: Tensor = self.out_proj(joined.flatten(-2))
        return out

    def _cached(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, cache: Cache) -> Tensor:
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            raise UnsupportedError(
                "cache keeps no gradient, but the layer's parameters or inputs require grad; call inside torch.no_grad()"
            )
        cache.append(k.transpose(-2, -3), v.transpose(-2, -3))
        options: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap, "sink": self.sink}
        return attend(q.transpose(-2, -3), cache, mask=mask, bias=bias, **options).transpose(-2, -3)

    def _weights(self) -> tuple[Tensor, ...]:
        if self.in_proj_weight is not None:
            return torch.split(self.in_proj_weight, self.sizes)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _biases(self) -> tuple[Tensor | None, ...]:
        return (None, None, None) if self.in_proj_bias is None else torch.split(self.in_proj_bias, self.sizes)


def _split(x: Tensor, heads: int) -> Tensor:
    """(B…, L, heads · D) as (B…, L, heads, D)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
