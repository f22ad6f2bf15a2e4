"""The real thing as a plain function, so that a check can be aimed at it and at something faulty alike."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv import engines
from qkv.contract import canonical

#: The module; `qkv.attention` itself is the function of that name.
front: Any = importlib.import_module("qkv.attention")

#: Takes the arguments of `qkv.attend`, gives (output, log-sum-exp).
Attend = Callable[..., tuple[Any, Any]]


def front_door(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
    """What a caller gets, by whichever engine is set."""
    found = front.attention(query, key, value, **arguments)
    return found.output, found.lse


def planned(**changes: Any) -> Attend:
    """The native engine with a plan that differs in what may not change any bit (F3): threads, tile, spread."""

    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        problem = canonical(query, key, value, **arguments)
        plan = engines.choose(problem, "native", 1)
        return front._carry_out(problem, replace(plan, **changes))[:2]

    return attend


def loose(attend: Attend, query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """A call that answers every row instead of raising."""
    output, lse = attend(query, key, value, **{"empty": "zero", "nonfinite": "propagate", **arguments})
    return np.asarray(output), np.asarray(lse)
