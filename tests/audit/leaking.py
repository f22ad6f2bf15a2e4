"""A small decoder in torch, and what can be wrong with it. Needs torch to be imported."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

HEADS, WIDTH, WORDS = 4, 8, 50


class Attention(nn.Module):
    """Causal attention; `fault` names what is wrong with this layer."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.out = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.fault = ""

    def forward(self, x: Any, kept: Any) -> Any:
        B, L, _ = x.shape
        query, key, value = self.into(x).view(B, L, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(L, L, dtype=torch.bool).tril()
        if self.fault == "mask dropped":
            allowed = torch.ones_like(allowed)
        if self.fault == "one key too far at 9":
            allowed[9, 10] = True
        if self.fault != "padding read":
            # A query of the padding reads itself.
            allowed = (allowed & kept[:, None, None, :].bool()) | torch.eye(L, dtype=torch.bool)
        score = (query @ key.transpose(-1, -2)) * WIDTH**-0.5
        mixed = score.masked_fill(~allowed, float("-inf")).softmax(-1) @ value
        if self.fault == "one part in a million":
            # Position 5 of head 2 sees the value two places on.
            seen = torch.zeros_like(mixed)
            seen[:, 2, 5] = value[:, 2, 7] * 1e-6
            mixed = mixed + seen
        if self.fault == "batch mixed":
            mixed = mixed + 1e-6 * mixed.roll(1, 0)
        return self.out(mixed.transpose(1, 2).reshape(B, L, -1))


class Layer(nn.Module):
    """Attention and a feed-forward part, both added."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(HEADS * WIDTH)
        self.forward_part = nn.Sequential(nn.Linear(HEADS * WIDTH, 64), nn.GELU(), nn.Linear(64, HEADS * WIDTH))

    def forward(self, x: Any, kept: Any) -> Any:
        x = x + self.attention(self.norm(x), kept)
        return x + self.forward_part(x)


class Decoder(nn.Module):
    """Ids and what is no padding in, logits out."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, HEADS * WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.head = nn.Linear(HEADS * WIDTH, WORDS)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = self.embed(input_ids)
        kept = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        for layer in self.layers:
            x = layer(x, kept)
        return {"logits": self.head(x)}
