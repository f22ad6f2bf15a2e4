"""scaled_dot_product_attention on the CPU takes fewer values than keys: no error, the keys beyond are left out."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

q = torch.ones(1, 1, 1, 8)
k = torch.tensor([0.0, 0.0, 9.0, 9.0]).view(1, 1, 4, 1).repeat(1, 1, 1, 8)  # four keys, the last two weigh most,
v = torch.tensor([1.0, 3.0]).view(1, 1, 2, 1).repeat(1, 1, 1, 8)  # but two values: should be refused
print("default", attention(q, k, v)[0, 0, 0, 0].item())
for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
    with sdpa_kernel(backend):
        print(backend.name, attention(q, k, v)[0, 0, 0, 0].item())
