"""Calls remembered: what sizes, types and options decide is worked out once, and the same call with other numbers goes
straight to the engine.

A recipe is a shortcut, never another way: it is found by everything that the long way looks at besides the numbers
(by value, so that no array a caller may change is part of it), and where a row met anything that the contract has a word
for (an empty row, a NaN, an overflow) it steps back and lets the long way say it. What can be remembered so are plain
arrays of NumPy and torch; masks whose rules are few numbers, and boolean arrays; biases, sinks, `scale`, `softcap`, `empty`,
`nonfinite`, `layout` and alibi; and, whatever their lengths, caches asked with rules that look so far ahead and so far back.
Everything else takes the long way every time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .algebra import Allow, Mask
from .alibi import Alibi
from .cache import Cache, CachePart
from .contract import canonical
from .engines import native, native_call
from .engines.threads import asked, threads_in_use
from .floats import Array
from .interop import Kind, exchangeable, plain_view, to_numpy, torch_exchange
from .plan import Plan, threads_by_length
from .problem import Layout, Problem
from .ranges import ALL, END
from .rules import Causal, Window

__all__ = ["Answer", "Recipe", "forget", "known", "remember"]

#: How many calls are remembered, and the longest table of ranges among them, in intervals: 32 MB in all at the most.
_MOST, _LONGEST = 256, 8192

_recipes: dict[Hashable, Recipe] = {}
_SINGLE, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)
_NOTHING: Array = np.zeros((1, 1, 1), np.float32)
#: Types of the logits of a sink that the engine reads where they lie; bfloat16 of tensors alone.
_LOGITS = ("float32", "float64", "bfloat16")


class Given(NamedTuple):
    """The arrays of one call, as they came; those that were left out are None."""

    query: Any
    key: Any
    value: Any
    mask: Any
    bias: Any
    sink: Any


class Answer(NamedTuple):
    """What `attention` gives: output and log-sum-exp as the caller's kind, and what states the problem when it is asked for."""

    output: Any
    lse: Any
    state: Callable[[], tuple[Problem, Plan]]


@dataclass(frozen=True, eq=False)
class Recipe:
    """One remembered call.

    Attributes:
        prepared: the engine's half, which owns ranges and plan.
        shape: of the result, in the caller's axes; lse_shape: of the log-sum-exp; rows: (N, H, L).
        storage: NumPy dtype of the result; compute: of the log-sum-exp.
        half: whether NumPy's arrays have to be read as 16-bit patterns.
        length_first: whether the caller's axes have length before heads.
        plain: whether arrays go in and out as they are.
        not_fine: bits of what rows may have met that are more than an output can say: 1 but where an empty row is an answer,
            2, 4 and 8 but where NaN rows are.
        layout, kind: the caller's. dtype: the float type. problem: the problem it was made from, without its arrays. plan: its plan.
        arguments: of `canonical`, for a cache: what the problem is stated from once its length is known.
        by_length: for a cache, the threads that so many keys are worth, see `threads_by_length`.
    """

    prepared: Any
    shape: tuple[int, ...]
    lse_shape: tuple[int, ...]
    rows: tuple[int, int, int]
    storage: Any
    compute: Any
    half: bool
    length_first: bool
    plain: bool
    not_fine: int
    layout: Layout
    kind: Kind
    dtype: str
    problem: Problem
    plan: Plan
    arguments: dict[str, Any]
    by_length: tuple[tuple[int, int, bool], ...]

    def run(self, given: Given, exchange: Any, questions: bool) -> Any:
        """The output as the caller's kind, or an `Answer`; None where the long way has to have its say.

        Args:
            exchange: None for NumPy arrays, else what `torch_exchange` gave.
        """
        query, key, value, mask, bias, sink = given
        held = None
        if value is None:
            numbers, standing = key.numbers(), key.standing(self.rows[2])
            if numbers is None or standing[4] < 1:
                return None
            for least, threads, spread in self.by_length:
                if standing[4] >= least:
                    held = (*standing, threads, spread)
                    break
            key, value = numbers
        result = out = np.empty(self.shape, self.storage)
        if self.half:
            query, out = query.view(np.uint16), out.view(np.uint16)
            if held is None:
                key, value = key.view(np.uint16), value.view(np.uint16)
            if bias is not None and bias.dtype is not _SINGLE:
                bias = bias.view(np.uint16)
        if self.length_first:
            query, key, value, out = (x.swapaxes(-2, -3) for x in (query, key, value, out))
        if not questions:
            met = self.prepared.run(query, key, value, out, None, None, bias, mask, sink, exchange, held)
            if met & self.not_fine:
                return None
            return result if exchange is None else self.kind.wrap(result, self.dtype)
        cache = given.key.frozen() if held is not None else None
        if held is not None and cache is None:
            return None
        lse, states = np.empty(self.lse_shape, self.compute), np.empty((2, *self.rows), self.compute)
        met = self.prepared.run(query, key, value, out, lse, states, bias, mask, sink, exchange, held)
        if met & self.not_fine:
            return None
        lost = np.isnan(lse).reshape(self.rows) if met & ~1 else None
        found: dict[str, Any] = {
            "lost": lost if lost is not None and lost.any() else None,
            "sums": (states[0], states[1]),
        }
        if sink is not None:
            sink = np.array(to_numpy(sink if type(sink) is np.ndarray else sink.detach(), "sink"), np.float64)

        def state() -> tuple[Problem, Plan]:
            if cache is None:
                return self._problem(given, sink, found), self.plan
            plain = given.query if exchange is None else given.query.detach()
            problem = canonical(plain, cache, None, sink=sink, **self.arguments)
            assert held is not None
            return replace(problem, **found), replace(self.plan, threads=held[-2], spread=held[-1])

        if exchange is None:
            return Answer(result, lse, state)
        return Answer(self.kind.wrap(result, self.dtype), self.kind.wrap(lse), state)

    def _problem(self, given: Given, sink: Array | None, found: dict[str, Any]) -> Problem:
        """The problem that the long way would have stated."""
        query, key, value = (self.layout.canonical(plain_view(x)) for x in given[:3])
        mask = self.problem.mask if given.mask is None else Allow(plain_view(given.mask), explicit=False)
        pairs = (*query.shape[:-1], key.shape[-2])
        return replace(
            self.problem,
            query=query,
            key=key,
            value=value,
            mask=mask,
            rule=None if given.mask is None else mask,
            bias=None if given.bias is None else np.broadcast_to(plain_view(given.bias), pairs),
            sink=sink,
            **found,
        )


def known(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    sink: Any,
    empty: Any,
    nonfinite: Any,
    layout: Any,
    questions: bool = False,
) -> tuple[Any, Hashable]:
    """(the output, or None if the long way has to be taken; what `remember` files the call under, or None).

    Args:
        questions: whether an `Answer` is wanted instead of the output.
    """
    cache = exchange = None
    if type(query) is type(key) is type(value) is np.ndarray:
        dtype = query.dtype
        if key.dtype is not dtype or value.dtype is not dtype:
            return None, None
        sizes: Hashable = (key.shape, value.shape)
    elif (cache := _cache_in(key, value)) is not None:
        if type(query) is not np.ndarray:
            exchange = torch_exchange(query, query, query)
            if exchange is None:
                return None, None
        dtype, key, value = query.dtype, cache, None
        sizes = cache.sizes()
    else:
        exchange = torch_exchange(query, key, value)
        if exchange is None:
            return None, None
        dtype = query.dtype
        sizes = (key.shape, value.shape)
    rule: Hashable = None
    added: Hashable = None
    logits: Hashable = None
    pairs = None
    if mask is not None:
        if isinstance(mask, Mask):
            rule = mask.token()
        elif cache is None and _plain(mask, exchange) and (mask.dtype is _BOOL or str(mask.dtype) == "torch.bool"):
            pairs, rule = mask, (bool, mask.shape)
        if rule is None:
            return None, None
    if bias is not None:
        if type(bias) is Alibi:
            added, bias = bias.token(), None
        elif cache is None and _plain(bias, exchange):
            kind = bias.dtype
            if kind is dtype or kind is _SINGLE or str(kind) == "torch.float32":
                added = (kind, bias.shape)
        if added is None:
            return None, None
    if sink is not None:
        if not _plain(sink, exchange):
            return None, None
        logits = (sink.dtype, sink.shape)
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
        sizes,
        rule,
        added,
        scale,
        softcap,
        logits,
        empty,
        nonfinite,
        layout,
        asked.get(),
    )
    recipe = _recipes.get(at)
    if recipe is None:
        return None, at
    if questions or not recipe.plain:
        return recipe.run(Given(query, key, value, pairs, bias, sink), exchange, questions), at
    # What `run` does where arrays go in and out as they are: a call less of Python.
    out = np.empty(recipe.shape, recipe.storage)
    if recipe.prepared.run(query, key, value, out, None, None, bias, pairs, sink, exchange, None) & recipe.not_fine:
        return None, at  # -1, nothing done, included
    return (out if exchange is None else recipe.kind.wrap(out, recipe.dtype)), at


def _cache_in(key: Any, value: Any) -> Cache | None:
    """The cache that stands for key and value, plainly passed."""
    if type(key) is Cache:
        return key if value is None else None
    if type(key) is CachePart and type(value) is CachePart and (key.name, value.name) == ("key", "value"):
        return key.cache if key.cache is value.cache and type(key.cache) is Cache else None
    return None


def _plain(x: Any, exchange: Any) -> bool:
    """Whether it is an array that the engine can read where it lies: NumPy's, or a tensor beside tensors."""
    return type(x) is np.ndarray or (exchange is not None and exchangeable(x))


def remember(at: Hashable, problem: Problem, plan: Plan, given: Given, arguments: dict[str, Any]) -> None:
    """File a problem that came the long way under what `known` said.

    Args:
        given, arguments: what it was stated from.
    """
    if plan.engine != "native" or 0 in problem.query.shape or not problem.keys:
        return
    cache = _cache_in(given.key, given.value)
    reach = None
    if cache is not None:
        reach = _reach(problem.mask)
        if reach is None:
            return
    elif (problem.rule is not None and isinstance(given.mask, Mask)) or max(
        problem.ranges.lo.shape[0], 1
    ) * problem.queries * problem.ranges.count + problem.batches > _LONGEST:
        return
    if problem.sink is not None and str(given.sink.dtype).removeprefix("torch.") not in _LOGITS:
        return
    call = native_call.whole(problem, plan, pairs=native_call.array_rule(problem))
    kind, layout = problem.layout.kind, problem.layout
    shape = (*problem.batch, problem.heads, problem.queries, problem.value_width)
    made = Recipe(
        prepared=native.recipe(call, 2 if layout.axes == 2 else problem.query.ndim, reach),
        shape=layout.spelled(shape),
        lse_shape=shape[1:-1] if layout.axes == 2 else shape[:-1],
        rows=(problem.batches, problem.heads, problem.queries),
        storage=problem.dtype.storage if kind.bfloat16 is None else kind.bfloat16,
        compute=problem.dtype.compute,
        half=kind.bfloat16 is not None,
        length_first=layout.axes > 2 and layout.length_first,
        plain=cache is None and kind.bfloat16 is None and not (layout.axes > 2 and layout.length_first),
        not_fine=~((problem.empty == "zero") | (14 if problem.nonfinite == "propagate" else 0)),
        layout=layout,
        kind=kind,
        dtype=problem.dtype.name,
        problem=replace(
            problem,
            query=_NOTHING,
            key=_NOTHING,
            value=_NOTHING,
            mask=problem.mask if isinstance(given.mask, Mask) else None,
            rule=None,
            ranges=problem.ranges if cache is None else ALL,
            bias=None,
            sink=None,
        ),
        plan=plan,
        arguments={} if cache is None else arguments,
        by_length=() if cache is None else threads_by_length(problem, plan, threads_in_use()),
    )
    while len(_recipes) >= _MOST:
        try:
            del _recipes[next(iter(_recipes))]
        except (KeyError, StopIteration, RuntimeError):  # another thread was faster
            break
    _recipes[at] = made


def _reach(mask: Mask | None) -> tuple[int, int] | None:
    """(how many keys before, and after its own a row may read; -1: all), None where an expression says anything else."""
    left, right = -1, -1
    for term in () if mask is None else mask.conjuncts():
        if type(term) not in (Causal, Window) or term.align is not None:
            return None
        before, after = (term.left, term.right) if isinstance(term, Window) else (None, 0)
        if before is not None:
            left = before if left < 0 else min(left, before)
        if after is not None:
            right = after if right < 0 else min(right, after)
    return (left, right) if max(left, right) < END else None


def forget() -> None:
    """Forget every call."""
    _recipes.clear()
