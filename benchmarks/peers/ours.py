"""qkv itself: the native engine, which everybody is held against, and its twin in NumPy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import qkv
from shapes import Inputs, Shape

Run = Callable[[], Any]


def native(shape: Shape, x: Inputs) -> Run | None:
    """Arrays as their users have them: torch tensors where the type is bfloat16, else NumPy."""
    q, k, v = x.torch() if shape.dtype == "bfloat16" else (x.query, x.key, x.value)
    if shape.documents:
        q, k, v = (a[0].swapaxes(0, 1) for a in (q, k, v))
        offsets, mask = np.array(shape.offsets), qkv.causal()
        return lambda: qkv.attend_packed(q, k, v, offsets, mask=mask).swapaxes(0, 1)[None]
    mask_of = shape.mask()
    empty = "zero" if shape.lengths else "raise"
    return lambda: qkv.attend(q, k, v, mask=mask_of, empty=empty)


def numpy(shape: Shape, x: Inputs) -> Run | None:
    run = native(shape, x)
    if run is None or shape.dtype != "float32":
        return None

    def held() -> Any:
        with _engine("numpy"):
            return run()

    return held


@contextlib.contextmanager
def _engine(name: str) -> Iterator[None]:
    before = os.environ.get("QKV_ENGINE")
    os.environ["QKV_ENGINE"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["QKV_ENGINE"]
        else:
            os.environ["QKV_ENGINE"] = before
