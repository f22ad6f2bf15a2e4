"""onnxruntime's Attention operator, in a model of one node."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import qkv
from shapes import Inputs, Shape

Run = Callable[[], Any]
DENSE = 2**33  # bytes of all scores together; it makes them all


def attention(shape: Shape, x: Inputs) -> Run | None:
    size = shape.batch * shape.heads * shape.queries * shape.keys * 4
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
        return None
    if shape.dtype != "float32" or shape.window is not None or shape.lengths or shape.documents or size > DENSE:
        return None
    import onnx
    import onnxruntime as ort

    kind, given = onnx.TensorProto.FLOAT, {"q": x.query, "k": x.key, "v": x.value}
    node = onnx.helper.make_node("Attention", list(given), ["out"], is_causal=int(shape.causal))
    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [onnx.helper.make_tensor_value_info(name, kind, a.shape) for name, a in given.items()],
        [onnx.helper.make_tensor_value_info("out", kind, x.query.shape)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = qkv.info().threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, given)[0]
