"""A kernel as the audit sees it: a name, a domain, and a function from one call to its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from .domain import Domain

__all__ = ["FunctionKernel", "Given", "Kernel", "parse_accepts"]

#: What a kernel is handed: the fields of `Call`, arrays in its own kind and layout.
Given = SimpleNamespace


@dataclass
class Kernel:
    """Base of all kernels and adapters.

    Attributes:
        name, version: for reports. domain: what it can take.
        differentiable: arrays are set up so that gradients flow through the call ("torch", "jax"), or "".
    """

    name: str
    domain: Domain
    version: str = ""
    notes: tuple[str, ...] = ()

    def __call__(self, given: Given) -> Any:
        """The output, or a mapping of parts: output, lse, weights, dq, dk, dv, top_keys, top_weights."""
        raise NotImplementedError


#: Keywords by which a function is told a feature, unless `accepts` names another one (`mask=attn_mask`).
_KEYWORDS = {
    "mask": "mask",
    "bias": "bias",
    "causal": "causal",
    "window": "window",
    "lengths": "lengths",
    "segments": "segments",
    "prefix": "prefix",
    "where": "where",
    "offsets": "cu_seqlens_q+cu_seqlens_k",
    "align": "align",
    "alibi": "slopes",
    "scale": "scale",
    "softcap": "softcap",
    "sink": "sink",
    "lse": "return_lse",
    "weights": "return_weights",
    "top": "top",
}


def parse_accepts(words: Any) -> dict[str, str]:
    """`"mask=attn_mask,causal,gqa"`, a list of such words, or a mapping -> feature: keyword ("" where none is passed).

    >>> parse_accepts("mask=attn_mask,gqa")
    {'mask': 'attn_mask', 'gqa': ''}
    """
    if isinstance(words, Mapping):
        return {str(k): str(v) for k, v in words.items()}
    parts = words.split(",") if isinstance(words, str) else list(words)
    out = {}
    for part in (p.strip() for p in parts):
        if part:
            feature, _, keyword = part.partition("=")
            out[feature] = keyword or _KEYWORDS.get(feature, "")
    return out


@dataclass
class FunctionKernel(Kernel):
    """Somebody's function `f(query, key, value, **keywords)`.

    With `lse` accepted it gets `return_lse=True` where that is asked and returns (output, lse); `weights` likewise; or
    it returns a mapping with the parts named. `causal` is passed as True, and left out otherwise, as is every keyword
    that a call does not need.
    """

    function: Callable[..., Any] = field(default=lambda *a: None)
    keywords: dict[str, str] = field(default_factory=dict)

    def __call__(self, given: Given) -> Any:
        passed: dict[str, Any] = {}
        values = {
            "mask": given.mask,
            "bias": given.bias,
            "causal": True if given.causal else None,
            "window": given.window,
            "lengths": given.lengths,
            "segments": given.segments,
            "prefix": given.prefix,
            "where": given.where,
            "offsets": given.offsets,
            "align": given.align,
            "alibi": given.slopes,
            "scale": given.scale,
            "softcap": given.softcap,
            "sink": given.sink,
            "lse": True if "lse" in given.wants else None,
            "weights": True if "weights" in given.wants else None,
            "top": given.top,
            "gqa": True if given.grouped else None,
            "grad": given.cotangent if self.domain.arrays == "numpy" else None,
        }
        for feature, value in values.items():
            keyword = self.keywords.get(feature, _KEYWORDS.get(feature, ""))
            if value is None or not keyword:
                continue
            # Two keywords take the two halves of a pair: cu_seqlens_q+cu_seqlens_k.
            words = keyword.split("+")
            passed.update(zip(words, value, strict=True) if len(words) > 1 else {keyword: value})
        if "unknown" in given.odd:
            passed["qkv_audit_unknown"] = 1
        out = self.function(given.query, given.key, given.value, **passed)
        if isinstance(out, Mapping):
            return out
        asked = [n for n in ("lse", "weights") if n in given.wants]
        if isinstance(out, tuple) and asked and len(out) == len(asked) + 1:
            return dict(zip(("output", *asked), out, strict=True))
        return out


def function_name(function: Callable[..., Any]) -> str:
    """module:qualname, the way a kernel is named on the command line."""
    target = inspect.unwrap(function)
    return f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', type(target).__name__)}"
