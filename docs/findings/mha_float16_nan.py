"""nn.MultiheadAttention in float16 on the CPU: asked for weights it answers NaN where, not asked, it is right."""

import torch

E = 64
mha = torch.nn.MultiheadAttention(E, 1, bias=False, batch_first=True, dtype=torch.float16).eval()
with torch.no_grad():
    mha.in_proj_weight.copy_(torch.eye(E).repeat(3, 1))  # projections that change nothing
    mha.out_proj.weight.copy_(torch.eye(E))
    q, k = torch.full((1, 1, E), 300.0).half(), torch.full((1, 2, E), 300.0).half()
    v = torch.tensor([1.0, 3.0]).half().view(1, 2, 1).expand(1, 2, E)
    for need_weights in (False, True):
        print(f"{need_weights=}: {mha(q, k, v, need_weights=need_weights)[0][0, 0, 0].item()} (right: 2.0)")
