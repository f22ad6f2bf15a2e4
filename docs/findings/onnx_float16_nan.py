"""onnx's reference evaluator: Attention in float16 answers NaN where the answer is 2, since it forms the scores in float16."""

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

q, k = np.full((1, 1, 1, 64), 300, np.float16), np.full((1, 1, 2, 64), 300, np.float16)
v = np.array([1, 3], np.float16).reshape(1, 1, 2, 1)
names = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, None) for n in "QKVY"]
graph = helper.make_graph([helper.make_node("Attention", list("QKV"), ["Y"])], "g", names[:3], names[3:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
print(ReferenceEvaluator(model).run(None, {"Q": q, "K": k, "V": v})[0].item(), "(right: 2.0)")
