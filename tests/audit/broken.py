"""Attention functions of transformers with one mistake each. Needs torch and transformers to be imported."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


def mask_dropped(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **words: Any) -> Any:
    """Every query reads every key."""
    return sdpa_attention_forward(module, query, key, value, None, **{**words, "is_causal": False})


class Planted:
    """Right, but for a part of the value two places on, in one head of one layer at one position."""

    def __init__(self, layer: int, head: int, position: int, part: float) -> None:
        self.layer, self.head, self.position, self.part = layer, head, position, part

    def __call__(self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **words: Any) -> Any:
        out, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **words)
        if module.layer_idx == self.layer:
            seen = torch.zeros_like(out)
            group = self.head // module.num_key_value_groups
            seen[:, self.position, self.head] = self.part * value[:, group, self.position + 2]
            out = out + seen
        return out, weights


def one_key_short(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **words: Any) -> Any:
    """Decoding one token in layer 1 forgets the oldest key, once there are eleven."""
    if query.shape[2] == 1 and key.shape[2] > 10 and module.layer_idx == 1:
        key, value = key[:, :, 1:], value[:, :, 1:]
        attention_mask = None if attention_mask is None else attention_mask[..., 1:]
    return sdpa_attention_forward(module, query, key, value, attention_mask, **words)


def use(model: Any, function: Any, with_mask: bool = True) -> None:
    """Let a model call the function; without a mask function it is given no mask, and nothing says so."""
    name = f"house_{'masked' if with_mask else 'bare'}"
    AttentionInterface.register(name, function)
    if with_mask:
        AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)
