"""OpenVINO's ScaledDotProductAttention on the CPU, with no keys (S = 0), leaves its output as it was: unwritten memory."""

import numpy as np
import openvino as ov
from openvino import opset13 as op

given = [op.parameter(ov.PartialShape([1, 1, -1, 64]), np.float32) for _ in range(3)]
model = ov.Model([op.scaled_dot_product_attention(*given, causal=False)], given)
request = ov.Core().compile_model(model, "CPU").create_infer_request()
for keys, right in ((2, 7), (0, 0)):
    answer = request.infer([np.full((1, 1, n, 64), 7, np.float32) for n in (1, keys, keys)])
    print(f"{keys} keys: {answer[0][0, 0, 0, 0]} (right: {right})")
