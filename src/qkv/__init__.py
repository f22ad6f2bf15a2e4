"""qkv: exact attention in which every edge case has one documented behaviour.

>>> import numpy as np
>>> from qkv import attend, causal
>>> x = np.random.default_rng(0).normal(size=(2, 4, 8))
>>> attend(x, x, x, mask=causal()).shape
(2, 4, 8)

The contract is docs/contract.md; `attend` and `attention` are the front door.
"""

import importlib

from .alibi import Alibi, alibi
from .attention import Attention, Contributions, Influence, attend, attention
from .cache import Cache
from .defaults import strict
from .engines.threads import threads
from .errors import (
    AlignmentError,
    ArgumentError,
    DTypeError,
    EmptyRowError,
    EngineError,
    FileError,
    MaskError,
    NonFiniteError,
    QkvError,
    ScoreOverflowError,
    ShapeError,
    UnsupportedError,
)
from .explain import Explanation, explain
from .info import Info, info
from .masks import Mask, allow, causal, first, keys, prefix, segments, where, window
from .multihead import MultiHead
from .packed import attend_packed
from .partial import State, partial
from .trace import Trace, trace
from .version import __version__

__all__ = [
    "Alibi",
    "AlignmentError",
    "ArgumentError",
    "Attention",
    "Cache",
    "Contributions",
    "DTypeError",
    "EmptyRowError",
    "EngineError",
    "Explanation",
    "FileError",
    "Influence",
    "Info",
    "Mask",
    "MaskError",
    "MultiHead",
    "NonFiniteError",
    "QkvError",
    "ScoreOverflowError",
    "ShapeError",
    "State",
    "Trace",
    "UnsupportedError",
    "__version__",
    "alibi",
    "allow",
    "attend",
    "attend_packed",
    "attention",
    "causal",
    "explain",
    "first",
    "info",
    "keys",
    "partial",
    "prefix",
    "segments",
    "strict",
    "threads",
    "trace",
    "where",
    "window",
]


def __getattr__(name: str) -> object:
    """`qkv.torch` and `qkv.transformers`, the bridges that need optional packages, loaded when they are asked for."""
    if name == "torch":
        return importlib.import_module("qkv.torch")
    if name == "transformers":
        return importlib.import_module("qkv.transformers")
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")
