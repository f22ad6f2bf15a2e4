"""What only a kernel under audit would do: lean on old memory, or have somebody else do the work (profile `generated`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np

__all__ = ["poison", "secret"]

#: Attention functions of the frameworks, by the names of their compiled parts.
_COMPILED = {
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
}

#: The same written in Python: module, dotted name.
_PYTHON = (
    ("qkv.reference", "attend"),
    ("qkv.attention", "attend"),
    ("qkv.attention", "attention"),
    ("qkv.partial", "partial"),
    ("qkv.plain", "attend"),
    ("torch.nn.functional", "multi_head_attention_forward"),
    ("torch.nn.attention.flex_attention", "flex_attention"),
    ("jax._src.nn.functions", "dot_product_attention"),
    ("jax.nn", "dot_product_attention"),
)

#: Functions a check may lean on, here or in a test that uses this one: nobody may put another in their place.
_LEANED_ON = (
    ("numpy", "allclose"),
    ("numpy", "array_equal"),
    ("numpy", "isclose"),
    ("numpy.testing", "assert_allclose"),
    ("torch", "allclose"),
    ("torch", "equal"),
    ("torch.testing", "assert_close"),
    ("torch.nn.functional", "scaled_dot_product_attention"),
    ("time", "perf_counter"),
)


def poison(kind: str, sizes: Sequence[int]) -> None:
    """Fill memory with NaN and free it, so that what a kernel takes without writing it shows."""
    for size in {*sizes, *(s * 2 for s in sizes), *(s // 2 for s in sizes)}:
        count = max(size // 8, 1)
        if kind == "torch":
            import torch

            held: list[Any] = [torch.full((count,), float("nan"), dtype=torch.float64) for _ in range(6)]
        else:
            held = [np.full(count, np.nan) for _ in range(6)]
        del held


@contextmanager
def secret(on: bool, facts: dict[str, Any]) -> Iterator[None]:
    """Note in `facts` which attention functions are called within, and which functions were replaced."""
    if not on:
        yield
        return
    codes = _codes()
    before = {at: _lookup(*at) for at in _LEANED_ON}
    called: set[str] = set()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes:
            called.add(codes[frame.f_code])
        elif event == "c_call" and getattr(argument, "__name__", "") in _COMPILED:
            called.add(str(argument.__name__))

    earlier = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        if sys.getprofile() is not look:
            facts["looked away"] = True
        sys.setprofile(earlier)
        threading.setprofile(None)
        if called:
            facts["called"] = sorted({*facts.get("called", []), *called})
        replaced = [".".join(at) for at, function in before.items() if _lookup(*at) is not function]
        if replaced:
            facts["replaced"] = replaced


def _lookup(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _codes() -> dict[CodeType, str]:
    out = {}
    for module, name in _PYTHON:
        function = _lookup(module, name)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        code = getattr(function, "__code__", None)
        if code is not None:
            out[code] = f"{module}.{name}"
    return out
