"""Mamba forgets what it has read where a later part of a prompt has more than one token: no error, other logits."""

import torch
from transformers import DynamicCache, MambaConfig, MambaForCausalLM

config = MambaConfig(vocab_size=9, hidden_size=16, num_hidden_layers=1, initializer_range=1.0)
model, ids = MambaForCausalLM(config).eval().requires_grad_(False), torch.tensor([[1, 2, 3, 4, 5, 6]])
for parts in ((3, 4, 5, 6), (3, 6)):
    cache, begin = DynamicCache(config=config), 0
    for end in parts:
        begin, last = end, model(ids[:, begin:end], cache=cache, use_cache=True).logits[0, -1]
    same = torch.allclose(last, model(ids).logits[0, -1], atol=1e-4)
    print("parts that end at", *parts, "give", "the same logits" if same else "other logits")
