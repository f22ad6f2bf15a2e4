"""This package, each engine by itself: it promises the whole contract, so whatever it does not keep is wrong.

Rows without keys are asked for as zeros and non-finite input as NaN rows, since an error says less about the others.
"""

from __future__ import annotations

import os
from typing import Any

import qkv

from ..domain import FEATURES, Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class Engine(Kernel):
    """`qkv.attention` by one engine."""

    engine: str = "numpy"

    def __call__(self, given: Given) -> Any:
        """All parts that are asked for."""
        before = os.environ.get("QKV_ENGINE")
        os.environ["QKV_ENGINE"] = self.engine
        try:
            return self._parts(given)
        finally:
            if before is None:
                del os.environ["QKV_ENGINE"]
            else:
                os.environ["QKV_ENGINE"] = before

    def _parts(self, given: Given) -> dict[str, Any]:
        options: dict[str, Any] = {
            n: getattr(given, n) for n in ("scale", "softcap", "sink") if getattr(given, n) is not None
        }
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        bias: Any = given.bias
        if given.slopes is not None:
            bias = qkv.alibi(given.slopes, align=given.align)
        answer = qkv.attention(
            given.query,
            given.key,
            given.value,
            mask=_mask(given),
            bias=bias,
            empty="zero",
            nonfinite="propagate",
            **options,
        )
        parts = {"output": answer.output, "lse": answer.lse}
        if "weights" in given.wants:
            parts["weights"] = answer.weights(range(given.query.shape[2]))
        if given.top is not None:
            parts["top_keys"], parts["top_weights"] = answer.top(given.top)
        return parts


def _mask(given: Given) -> Any:
    terms: list[Any] = []
    if given.mask is not None:
        terms.append(given.mask if "float mask" in given.odd else qkv.allow(given.mask))
    if given.causal:
        terms.append(qkv.causal(align=given.align))
    if given.window is not None:
        terms.append(qkv.window(*given.window, align=given.align))
    if given.lengths is not None:
        terms.append(qkv.keys(given.lengths))
    if given.segments is not None:
        terms.append(qkv.segments(*given.segments))
    if given.prefix is not None:
        terms.append(qkv.prefix(given.prefix, align=given.align))
    if given.where is not None:
        terms.append(qkv.where(given.where, align=given.align))
    if not terms:
        return None
    whole = terms[0]
    for term in terms[1:]:
        whole = whole & term
    return whole


def make(name: str) -> Kernel:
    """qkv-native or qkv-numpy.

    Raises:
        EngineError: the native engine is not there.
    """
    from qkv.engines import native
    from qkv.errors import EngineError

    engine = name.removeprefix("qkv-")
    if engine == "native" and not native.available():
        raise EngineError(f"the native engine is not there: {native.why_not()}; audit qkv-numpy")
    promises = {"contract", "nan isolation", "repeatability"} | ({"bit invariance"} if engine == "native" else set())
    domain = Domain(
        accepts=frozenset(FEATURES) - {"grad", "offsets"},
        dtypes=("float32", "float16", "bfloat16", "float64"),
        promises=frozenset(promises),
    )
    kernel = Engine(name, domain, qkv.__version__)
    kernel.engine = engine
    return kernel
