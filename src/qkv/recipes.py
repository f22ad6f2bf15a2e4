"""Calls remembered: what sizes, types and options decide is worked out once, and the same call with other numbers goes
straight to the engine.

A recipe is a shortcut, never another way: it is found by everything that the long way looks at besides the numbers
(by value, so that no array a caller may change is part of it), and where a row met anything that the contract has a word
for (an empty row, a NaN, an overflow) it steps back and lets the long way say it. What can be remembered so are plain
arrays of NumPy and torch, masks whose rules are few numbers, `scale`, `softcap`, `empty`, `nonfinite`, `layout` and alibi;
everything else takes the long way every time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .algebra import Mask
from .alibi import Alibi
from .engines import native, native_call
from .engines.threads import asked
from .interop import Kind, torch_exchange
from .plan import Plan
from .problem import Problem

__all__ = ["Recipe", "forget", "known", "remember"]

#: How many calls are remembered, and the longest table of ranges among them, in intervals: 32 MB in all at the most.
_MOST, _LONGEST = 256, 8192

_recipes: dict[Hashable, Recipe] = {}


@dataclass(frozen=True)
class Recipe:
    """One remembered call.

    Attributes:
        prepared: the engine's half, which owns ranges and plan.
        shape: of the result, in the caller's axes. storage: its NumPy dtype.
        length_first: whether the caller's axes have length before heads.
        fine: bits of what rows may have met without more to say than their output: 1 where an empty row is an answer,
            2, 4 and 8 where NaN rows are.
        kind, dtype: whose arrays, and of which float type.
    """

    prepared: Any
    shape: tuple[int, ...]
    storage: Any
    length_first: bool
    fine: int
    kind: Kind
    dtype: str

    def run(self, query: Any, key: Any, value: Any, exchange: Any) -> Any:
        """The output as the caller's kind, or None where the long way has to have its say.

        Args:
            exchange: None for NumPy arrays, else what `torch_exchange` gave.
        """
        given = out = np.empty(self.shape, self.storage)
        if self.length_first:
            query, key, value, out = (x.swapaxes(-2, -3) for x in (query, key, value, out))
        prepared = self.prepared
        met = (
            prepared.run(query, key, value, out, None)
            if exchange is None
            else prepared.run_tensors(query, key, value, out, exchange)
        )
        if met & ~self.fine:  # -1, nothing done, included
            return None
        return given if exchange is None else self.kind.wrap(given, self.dtype)


def known(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    empty: Any,
    nonfinite: Any,
    layout: Any,
) -> tuple[Any, Hashable]:
    """(the output, or None if the long way has to be taken; what `remember` files the call under, or None)."""
    if type(query) is np.ndarray:
        dtype = query.dtype
        if type(key) is not np.ndarray or type(value) is not np.ndarray:
            return None, None
        if key.dtype is not dtype or value.dtype is not dtype:
            return None, None
        exchange = None
    else:
        exchange = torch_exchange(query, key, value)
        if exchange is None:
            return None, None
        dtype = query.dtype
    rule = None
    if mask is not None:
        rule = mask.token() if isinstance(mask, Mask) else None
        if rule is None:
            return None, None
    if bias is not None:
        bias = bias.token() if type(bias) is Alibi else None
        if bias is None:
            return None, None
    # 1, True and 1.0 are equal keys and not equal arguments, and so are 0.0 and -0.0: one type each, and no zero.
    if (scale is not None and (type(scale) is not float or not scale)) or (
        softcap is not None and type(softcap) is not float
    ):
        return None, None
    if type(empty) is not str or type(nonfinite) is not str or type(layout) is not str:
        return None, None
    at = (
        dtype,
        query.shape,
        key.shape,
        value.shape,
        rule,
        bias,
        scale,
        softcap,
        empty,
        nonfinite,
        layout,
        asked.get(),
    )
    recipe = _recipes.get(at)
    return (None if recipe is None else recipe.run(query, key, value, exchange)), at


def remember(at: Hashable, problem: Problem, plan: Plan) -> None:
    """File a problem that came the long way under what `known` said."""
    if plan.engine != "native" or problem.rule is not None or problem.bias is not None or problem.sink is not None:
        return
    if problem.layout.kind.bfloat16 is not None:  # NumPy's buffers cannot carry that type
        return
    ranges = max(problem.ranges.lo.shape[0], 1) * problem.queries * problem.ranges.count
    if ranges + problem.batches > _LONGEST or 0 in problem.query.shape or not problem.keys:
        return
    call = native_call.whole(problem, plan)
    shape = (*problem.batch, problem.heads, problem.queries, problem.value_width)
    made = Recipe(
        prepared=native.recipe(call, 2 if problem.layout.axes == 2 else problem.query.ndim),
        shape=problem.layout.spelled(shape),
        storage=problem.dtype.storage,
        length_first=problem.layout.axes > 2 and problem.layout.length_first,
        fine=(problem.empty == "zero") | (14 if problem.nonfinite == "propagate" else 0),
        kind=problem.layout.kind,
        dtype=problem.dtype.name,
    )
    while len(_recipes) >= _MOST:
        try:
            del _recipes[next(iter(_recipes))]
        except (KeyError, StopIteration, RuntimeError):  # another thread was faster
            break
    _recipes[at] = made


def forget() -> None:
    """Forget every call."""
    _recipes.clear()
