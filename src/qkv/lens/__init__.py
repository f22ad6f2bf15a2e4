"""The lens: what the heads of a real model read, on the model's own kernels and device, at thousands of tokens.

>>> import torch, qkv.lens
>>> class Tiny(torch.nn.Module):
...     def forward(self, x):
...         return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
>>> seen = qkv.lens.capture(Tiny(), torch.eye(4)[None, None])
>>> qkv.lens.row(seen.layer(0), head=0, query=1).weight.round(2).tolist()
[0.38, 0.62, 0.0, 0.0]
"""

from .capture import Capture, capture, open_capture
from .compare import Difference, compare
from .forbid import Effect, forbid
from .hooks import Hooks
from .layer import Layer, Projection
from .reads import Reads
from .reduced import Reduced
from .row import Row, row
from .scores import SCORES, Score
from .spans import Found, Span, between, cut, find
from .summary import Summary, summary

open = open_capture

__all__ = [
    "SCORES",
    "Capture",
    "Difference",
    "Effect",
    "Found",
    "Hooks",
    "Layer",
    "Projection",
    "Reads",
    "Reduced",
    "Row",
    "Score",
    "Span",
    "Summary",
    "between",
    "capture",
    "compare",
    "cut",
    "find",
    "forbid",
    "open",
    "row",
    "summary",
]
