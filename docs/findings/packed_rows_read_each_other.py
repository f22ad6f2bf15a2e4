"""Packed documents read each other in gpt-oss and OPT, whose position_ids never reach the mask; in Llama they do not."""

import torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

words = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]), "use_cache": False}
first, other = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.tensor([[7, 8, 1, 4, 5, 6]])  # the second document is 4, 5, 6
size = {"vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 64}
size |= {"intermediate_size": 64, "word_embed_proj_dim": 64, "num_local_experts": 2, "num_experts_per_tok": 2}
for config, maker in ((LlamaConfig, LlamaForCausalLM), (GptOssConfig, GptOssForCausalLM), (OPTConfig, OPTForCausalLM)):
    model = maker(config(**size, attn_implementation="eager")).eval().requires_grad_(False)
    second, again = (model(input_ids=ids, **words).logits[0, 3:] for ids in (first, other))
    print(maker.__name__, "keeps them apart" if torch.allclose(second, again) else "reads the first in the second")
