"""transformers' eager attention in float16 answers NaN where its sdpa attention answers 2: it forms the scores in float16."""

from types import SimpleNamespace

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import eager_attention_forward

module = SimpleNamespace(num_key_value_groups=1, training=False, is_causal=False)
q, k = torch.full((1, 1, 1, 64), 300.0).half(), torch.full((1, 1, 2, 64), 300.0).half()
v = torch.tensor([1.0, 3.0]).half().view(1, 1, 2, 1).expand(1, 1, 2, 64)
for function in (sdpa_attention_forward, eager_attention_forward):
    print(function.__name__, function(module, q, k, v, None, scaling=64**-0.5)[0][0, 0, 0, 0].item(), "(right: 2.0)")
