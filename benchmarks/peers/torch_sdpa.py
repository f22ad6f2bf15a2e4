"""torch's scaled_dot_product_attention: the call its users make, and what they write by hand when it is slow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from shapes import Inputs, Shape

Run = Callable[[], Any]


def _there() -> bool:
    return importlib.util.find_spec("torch") is not None


def _sdpa() -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention


def plain(shape: Shape, x: Inputs) -> Run | None:
    """is_causal where that says it, else a boolean mask; none for packed documents, whose mask would be gigabytes."""
    if not _there() or shape.documents:
        return None
    import torch

    (q, k, v), sdpa = x.torch(), _sdpa()
    options: dict[str, Any] = {"enable_gqa": shape.heads != shape.key_heads}
    if shape.window is not None:
        options["attn_mask"] = torch.from_numpy(shape.allowed(0, np.arange(shape.queries)))
    elif shape.lengths:
        keys = np.arange(shape.keys) < np.array(shape.lengths)[:, None]
        options["attn_mask"] = torch.from_numpy(keys)[:, None, None, :]
    else:
        options["is_causal"] = shape.causal
    return lambda: sdpa(q, k, v, **options)


def sliced(shape: Shape, x: Inputs) -> Run | None:
    """A window by hand: slices of as many rows as the window, each with the keys that it can reach."""
    if not _there() or shape.window is None:
        return None
    import torch

    (q, k, v), sdpa = x.torch(), _sdpa()
    cuts = []
    for start in range(0, shape.queries, shape.window):
        stop, first = min(start + shape.window, shape.queries), max(start - shape.window + 1, 0)
        seen = torch.from_numpy(shape.allowed(0, np.arange(start, stop))[:, first:stop].copy())
        cuts.append((slice(start, stop), slice(first, stop), seen))

    def run() -> Any:
        parts = [sdpa(q[:, :, rows], k[:, :, cols], v[:, :, cols], attn_mask=seen) for rows, cols, seen in cuts]
        return torch.cat(parts, dim=2)

    return run


def loop(shape: Shape, x: Inputs) -> Run | None:
    """Sequence by sequence, document by document, each with its own tokens alone."""
    if not _there() or not (shape.lengths or shape.documents):
        return None
    import torch

    (q, k, v), sdpa = x.torch(), _sdpa()
    if shape.lengths:
        result = torch.zeros_like(q)

        def run() -> Any:
            for b, n in enumerate(shape.lengths):
                one = slice(b, b + 1)
                result[one, :, :n] = sdpa(q[one, :, :n], k[one, :, :n], v[one, :, :n])
            return result

        return run
    spans = [slice(a, b) for a, b in zip(shape.offsets, shape.offsets[1:], strict=False)]

    def run_documents() -> Any:
        return torch.cat([sdpa(q[:, :, s], k[:, :, s], v[:, :, s], is_causal=True) for s in spans], dim=2)

    return run_documents


def folded(shape: Shape, x: Inputs) -> Run | None:
    """Decoding with grouped heads by hand: the heads of a group as rows of one query, so that keys are read once."""
    if not _there() or shape.queries != 1 or shape.heads == shape.key_heads:
        return None
    (q, k, v), sdpa = x.torch(), _sdpa()
    rows = q.reshape(shape.batch, shape.key_heads, shape.heads // shape.key_heads, shape.width)
    return lambda: sdpa(rows, k, v).reshape(q.shape)
