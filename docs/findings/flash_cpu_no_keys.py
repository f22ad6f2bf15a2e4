"""torch's CPU flash attention operator with no keys (S = 0) ends the process: division by zero, SIGFPE."""

import torch

q, k, v = (torch.zeros(1, 1, n, 8) for n in (3, 0, 0))
print("scaled_dot_product_attention:", torch.nn.functional.scaled_dot_product_attention(q, k, v).tolist()[0][0][0][:2])
print("the operator:", flush=True)
print(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0].shape)
