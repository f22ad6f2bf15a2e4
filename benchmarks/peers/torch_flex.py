"""torch's FlexAttention, compiled for the shape with its block mask, made once."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from shapes import Inputs, Shape

Run = Callable[[], Any]


def compiled(shape: Shape, x: Inputs) -> Run | None:
    """None where torch is not there, or its compiler has nothing for the shape (it says so itself)."""
    if importlib.util.find_spec("torch") is None or shape.queries < 64 or shape.dtype == "float16":
        return None
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = x.torch()
    ids = torch.from_numpy(np.searchsorted(shape.offsets, np.arange(shape.keys), side="right"))
    lengths = torch.tensor(shape.lengths or (shape.keys,) * shape.batch)

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = j >= 0
        if shape.causal or shape.documents:
            seen = seen & (j <= i + (shape.keys - shape.queries))
        if shape.window is not None:
            seen = seen & (j > i + (shape.keys - shape.queries) - shape.window)
        if shape.lengths:
            seen = seen & (j < lengths[b])
        if shape.documents:
            seen = seen & (ids[i] == ids[j])
        return seen

    options: dict[str, Any] = {"enable_gqa": shape.heads != shape.key_heads}
    if shape.masked:
        batch = shape.batch if shape.lengths else None
        options["block_mask"] = create_block_mask(rule, batch, None, shape.queries, shape.keys, device="cpu")
    torch.compiler.reset()
    run = torch.compile(flex_attention, dynamic=False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            run(q, k, v, **options)
        except Exception as error:  # whatever its compiler raises; the row is then left out, with the reason
            print(f"note: compiled Flex is left out on {shape.label}: {type(error).__name__}")
            return None
    return lambda: run(q, k, v, **options)
