"""The ONNX operator `Attention`: by onnx's own reference evaluator, and by onnxruntime on the CPU.

One input, `attn_mask`, is mask (boolean, True = may read) or bias. Newest version of the operator that the evaluator
knows: 25 has windows, 24 lengths (`nonpad_kv_seqlen`).
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]

_ACCEPTS = frozenset(
    {"mask", "bias", "causal", "gqa", "scale", "softcap", "weights", "cross", "value-width", "lengths", "window"}
)


_DOCUMENTED = (
    (
        "B1-negative",
        "a negative scale gives NaN, since its root is taken",
        "Attention-25: scale Q and K by sqrt(scale) before the product",
    ),
)


class Operator(Kernel):
    """A model of this one operator, made anew for each set of attributes."""

    runtime: bool = False
    version: str = ""
    opset: int = 25

    def __call__(self, given: Given) -> Any:
        """The output, and the weights where they are asked for."""
        if "unknown" in given.odd:
            raise ValueError("a model has no arguments but those of its operator")
        feeds = {"Q": given.query, "K": given.key, "V": given.value}
        chosen = given.mask if given.mask is not None else given.bias
        if chosen is not None:
            feeds["attn_mask"] = chosen
        if given.lengths is not None:
            feeds["nonpad_kv_seqlen"] = given.lengths
        attributes: dict[str, Any] = {}
        if given.causal:
            attributes["is_causal"] = 1
        for name in ("scale", "softcap"):
            if getattr(given, name) is not None:
                attributes[name] = float(getattr(given, name))
        if given.window is not None:
            left, right = (-1 if n is None else int(n) for n in given.window)
            attributes.update(left_window_size=left, right_window_size=right)
        weights = "weights" in given.wants
        kinds = tuple((name, str(x.dtype)) for name, x in feeds.items())
        run = _runner(self.runtime, self.opset, kinds, tuple(sorted(attributes.items())), weights)
        with warnings.catch_warnings():
            # NumPy's, about infinities that are meant.
            warnings.simplefilter("ignore")
            found = run(feeds)
        return {"output": found[0], "weights": found[1]} if weights else found[0]


@functools.lru_cache(maxsize=512)
def _runner(runtime: bool, opset: int, kinds: Any, attributes: Any, weights: bool) -> Any:
    from onnx import helper

    def typed(name: str, dtype: str) -> Any:
        known = np.dtype(dtype) if dtype != "bfloat16" else _bfloat16()
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(known), None)

    given = [name for name, _ in kinds]
    order = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    inputs = [name if name in given else "" for name in order]
    while not inputs[-1]:
        inputs.pop()
    options = dict(attributes) | ({"qk_matmul_output_mode": 3} if weights else {})
    names = ["Y", "", "", "P"] if weights else ["Y"]
    node = helper.make_node("Attention", inputs, names, **options)
    outputs = [typed(n, kinds[0][1]) for n in names if n]
    graph = helper.make_graph([node], "audit", [typed(*k) for k in kinds], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    if runtime:
        import onnxruntime

        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level, quiet.intra_op_num_threads = 4, 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), quiet, ["CPUExecutionProvider"])
        return lambda feeds: session.run(None, {n: np.ascontiguousarray(x) for n, x in feeds.items()})
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda feeds: evaluator.run(None, feeds)


def _bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def make(name: str) -> Kernel:
    """onnx or onnxruntime."""
    import onnx

    domain = Domain(
        accepts=_ACCEPTS,
        dtypes=("float32", "float16", "bfloat16", "float64"),
        strides=False,
        # Each operator of the function rounds to the type of the arrays.
        arithmetic=frozenset({"stepwise"}),
        documented=_DOCUMENTED,
        # The reference evaluator takes its time for 8,192 rows.
        seconds=60.0,
    )
    if name == "onnx":
        return Operator(name, domain, str(onnx.__version__))
    import onnxruntime

    kernel = Operator(name, domain, str(onnxruntime.__version__))
    kernel.runtime = True
    kernel.opset = _newest()
    # The operator of 24 has no windows; NumPy has no bfloat16 that onnxruntime would take.
    accepts = _ACCEPTS if kernel.opset >= 25 else _ACCEPTS - {"window"}
    kernel.domain = domain.but(accepts=accepts, dtypes=("float32", "float16"))
    kernel.notes = (f"the operator of opset {kernel.opset}, the newest one it runs",)
    return kernel


def _newest() -> int:
    """The newest version of the operator that onnxruntime runs."""
    kinds = tuple((n, "float32") for n in ("Q", "K", "V"))
    for opset in (25, 24):
        try:
            _runner(True, opset, kinds, (), False)
        except Exception:
            continue
        return opset
    return 23
