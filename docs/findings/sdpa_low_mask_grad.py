"""scaled_dot_product_attention on the CPU: where a mask adds one large negative number to a whole row, gradients are wrong."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
    q, k, v = (torch.zeros(1, 1, n, 8, requires_grad=True) for n in (1, 4, 4))
    with sdpa_kernel(backend):
        scaled_dot_product_attention(q, k, v, attn_mask=torch.full((1, 4), -1e38)).sum().backward()
    print(backend.name, "gradient of the values:", v.grad[0, 0, :, 0].tolist(), "(right: 0.25 each)")
