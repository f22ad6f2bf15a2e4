"""A call made the long way, then so that it is remembered, then again: all must agree, in bits or in the error's words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import recipes

from .arrays import bits


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gave, comparable: the bits with their kind, type and shape, or the error's words."""
    try:
        return seen(call())
    except qkv.QkvError as error:
        return type(error), str(error)


def seen(out: Any) -> Any:
    """An array, or all that an `Attention` knows."""
    if isinstance(out, qkv.Attention):
        return {name: outcome(lambda name=name: QUESTIONS[name](out)) for name in QUESTIONS}
    kind = type(out)
    if kind.__module__ == "torch":
        torch = sys.modules["torch"]
        return kind, str(out.dtype), tuple(out.shape), bits(out.to(torch.float64).numpy()).tolist()
    return kind, out.dtype, out.shape, out.flags.c_contiguous, bits(out).tolist()


#: What is asked of an `Attention`.
QUESTIONS: dict[str, Callable[[qkv.Attention], Any]] = {
    "output": lambda a: a.output,
    "lse": lambda a: a.lse,
    "repr": lambda a: np.array([ord(letter) for letter in repr(a)]),
    "entropy": lambda a: a.entropy(),
    "effective keys": lambda a: a.effective_keys(),
    "received": lambda a: a.received(),
    "top keys": lambda a: a.top(2).keys,
    "top weights": lambda a: a.top(2).weights,
    "share of the sink": lambda a: a.sink_share(),
    "weights": lambda a: a.weights([0, -1]),
    "contribution": lambda a: a.contributions(0).norm,
}


def long_way(call: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "known", lambda *_: (None, None))
        return outcome(call)


def agree(call: Callable[[], Any]) -> Any:
    right = long_way(call)
    for time in ("when it is filed", "when it is found", "once more"):
        assert outcome(call) == right, time
    return right
