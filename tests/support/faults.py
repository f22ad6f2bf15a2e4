"""Faults that others had, planted here, to see the checks fail (habit 9 of the house).

An attend-like function with a fault stands in for the real one; where a fault belongs inside, it is planted into the
module that would have it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qkv import engines, reference
from qkv.contract import canonical
from qkv.floats import narrow, widen
from qkv.plan import Block, Plan
from qkv.problem import Problem as Record
from qkv.ranges import Ranges, interval
from qkv.state import Rows

from .runs import Attend, front, front_door

#: The module; `qkv.partial` itself is the function of that name.
PARTIAL: Any = importlib.import_module("qkv.partial")

Plant = Callable[[pytest.MonkeyPatch], Attend]


def dense(p: Record) -> np.ndarray:
    """Allowed pairs of a record, (B…, H, L, S)."""
    shape = (p.batches, p.heads, p.queries, p.keys)
    rows, heads = np.arange(p.queries), slice(0, p.heads)
    found = [np.broadcast_to(p.allowed(n, heads, rows, 0, p.keys), shape[1:]) for n in range(p.batches)]
    return np.array(found, bool).reshape(*p.batch, *shape[1:])


def by_definition(change: Callable[[Record, dict[str, Any]], reference.Answer]) -> Plant:
    """An attend that hands its record's dense problem to `change`, which answers with a fault in it."""

    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        p = canonical(query, key, value, **arguments)
        wide: Any = np.longdouble if p.dtype.name == "float64" else np.float64
        bias = None if p.bias is None else widen(p.bias, p.bias_dtype).astype(wide)
        if p.slopes is not None:
            position = np.broadcast_to(p.positions, (p.batches, p.queries))
            distance = abs(position[:, None, :, None] - np.arange(p.keys))
            bias = (-p.slopes[None, :, None, None] * distance).reshape(*p.batch, p.heads, p.queries, p.keys)
        call = {
            "query": widen(p.query, p.dtype.name).astype(wide),
            "key": widen(p.key, p.dtype.name).astype(wide),
            "value": widen(p.value, p.dtype.name).astype(wide),
            "allowed": dense(p),
            "bias": bias,
            "scale": p.scale,
            "softcap": p.softcap,
            "sink": p.sink,
        }
        with np.errstate(all="ignore"):
            answer = change(p, call)
            output = narrow(answer.output.astype(p.dtype.compute), p.dtype.name)
            lse = answer.lse.astype(p.dtype.compute)
        layout = p.layout
        return (
            layout.kind.wrap(layout.restored(output, trailing=1), p.dtype.name),
            layout.kind.wrap(layout.restored(lse, trailing=0)),
        )

    return lambda monkeypatch: attend


def _definition(call: dict[str, Any]) -> reference.Answer:
    return reference.attend(**call)


def _sentinels(p: Record, call: dict[str, Any]) -> reference.Answer:
    bias = 0 if call["bias"] is None else np.maximum(call["bias"], -1e4)
    return _definition(call | {"bias": bias + np.where(call["allowed"], 0, -1e4), "allowed": True})


def _uniform(p: Record, call: dict[str, Any]) -> reference.Answer:
    right = _definition(call)
    value = np.repeat(call["value"], p.sharing, axis=-3)
    mean = np.broadcast_to(value.mean(-2, keepdims=True), right.output.shape)
    return right._replace(output=np.where(right.reach.any(-1)[..., None], right.output, mean))


def _interleaved(p: Record, call: dict[str, Any]) -> reference.Answer:
    other = np.arange(p.heads) % p.groups
    return _definition(call | {name: call[name][..., other, :, :] for name in ("key", "value")})


def _base_two(p: Record, call: dict[str, Any]) -> reference.Answer:
    right = _definition(call)
    return right._replace(lse=right.lse / np.log(2))


def _unscaled(p: Record, call: dict[str, Any]) -> reference.Answer:
    return _definition(call | {"scale": 1.0})


def _uncapped(p: Record, call: dict[str, Any]) -> reference.Answer:
    return _definition(call | {"softcap": None})


def _sink_in_output(p: Record, call: dict[str, Any]) -> reference.Answer:
    right = _definition(call)
    return right._replace(output=_definition(call | {"sink": None}).output)


def _top_left(monkeypatch: pytest.MonkeyPatch) -> Attend:
    def start(batch: Any, *_: Any) -> Any:
        return np.zeros(int(np.prod(batch, dtype=np.int64)), np.int64)

    monkeypatch.setattr("qkv.contract.resolve_offset", start)
    return front_door


def _wide_window(monkeypatch: pytest.MonkeyPatch) -> Attend:
    def bounds(self: Any, frame: Any) -> tuple[Ranges, Ranges]:
        p, huge = frame.positions(), 1 << 39
        left, right = (huge if side is None else side for side in (self.left, self.right))
        out = interval(p - left - 1, p + right + 1)
        return out, out

    monkeypatch.setattr("qkv.rules.Window.bounds", bounds)
    return front_door


def _dropped_block(monkeypatch: pytest.MonkeyPatch) -> Attend:
    blocks = Plan.blocks

    def all_but_last(self: Plan, p: Record, tile: Any) -> list[Block]:
        found = blocks(self, p, tile)
        return found[:-1] if len(found) > 1 else found

    monkeypatch.setattr(Plan, "blocks", all_but_last)
    return front_door


def _zero_times_nan(monkeypatch: pytest.MonkeyPatch) -> Attend:
    monkeypatch.setattr("qkv.engines.numpy_tiles._finite", lambda a: (a, np.zeros(a.shape[:-1], bool)))
    return front_door


def _naive(a: Rows, b: Rows) -> Rows:
    """The merge as it is often written: two empties give exp(-inf + inf) = NaN."""
    with np.errstate(all="ignore"):
        top = np.maximum(a.max, b.max)
        left, right = a.sum * np.exp(a.max - top), b.sum * np.exp(b.max - top)
        total = left + right
        mix = a.mix * (left / total)[..., None] + b.mix * (right / total)[..., None]
    return Rows(top, total, mix, a.status | b.status)


def _naive_merge(monkeypatch: pytest.MonkeyPatch) -> Attend:
    monkeypatch.setattr(PARTIAL, "merge_rows", _naive)
    return front_door


def _order_by_batch(monkeypatch: pytest.MonkeyPatch) -> Attend:
    """Softmax steps half as long where there is more than one sequence."""

    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        p = canonical(query, key, value, **arguments)
        plan = engines.choose(p, "native", 1)
        return front._carry_out(p, replace(plan, block=plan.block // 2) if p.batches > 1 else plan)[:2]

    return attend


def _order_by_length(monkeypatch: pytest.MonkeyPatch) -> Attend:
    """Key blocks counted from key 0 instead of from the first key of the row's own sequence."""
    monkeypatch.setattr("qkv.algebra.And.origin", lambda self, frame: np.zeros((1, 1), np.int64))
    return front_door


def _order_by_rows(monkeypatch: pytest.MonkeyPatch) -> Attend:
    """Another step where few rows are asked, as kernels with a decode path of their own have it."""

    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        p = canonical(query, key, value, **arguments)
        plan = engines.choose(p, "native", 1)
        return front._carry_out(p, replace(plan, block=16, split=64) if p.queries == 1 else plan)[:2]

    return attend


def _forgotten_batch_mask(monkeypatch: pytest.MonkeyPatch) -> Attend:
    tile = Record.allowed
    monkeypatch.setattr(Record, "allowed", lambda self, n, *rest: tile(self, 0, *rest))
    return front_door


def _contiguous_only(monkeypatch: pytest.MonkeyPatch) -> Attend:
    """Reads the memory under a view as if it were contiguous."""

    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        def flat(x: Any) -> Any:
            held = x.base if isinstance(x.base, np.ndarray) and x.base.size >= x.size else x
            return np.ascontiguousarray(held.reshape(-1)[: x.size]).reshape(x.shape)

        return front_door(flat(query), flat(key), flat(value), **arguments)

    return attend


def _writes_inputs(monkeypatch: pytest.MonkeyPatch) -> Attend:
    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        if query.flags.writeable:
            query[...] = query * query.dtype.type(0.5)
        return front_door(query, key, value, **arguments)

    return attend


def _gives_a_view(monkeypatch: pytest.MonkeyPatch) -> Attend:
    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        output, lse = front_door(query, key, value, **arguments)
        return (query if output.shape == query.shape else output), lse

    return attend


def _never_twice(monkeypatch: pytest.MonkeyPatch) -> Attend:
    calls = iter(range(1 << 30))

    def attend(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        output, lse = front_door(query, key, value, **arguments)
        return output, np.nextafter(lse, lse.dtype.type(next(calls) % 2))

    return attend


def _no_overflow_check(monkeypatch: pytest.MonkeyPatch) -> Attend:
    monkeypatch.setattr("qkv.engines.numpy_tiles.OVERFLOW", 0)
    return front_door


def _silent_empty(monkeypatch: pytest.MonkeyPatch) -> Attend:
    def attend_loosely(query: Any, key: Any, value: Any = None, **arguments: Any) -> tuple[Any, Any]:
        return front_door(query, key, value, **{"empty": "zero", "nonfinite": "propagate"} | arguments)

    return attend_loosely


#: id -> how the fault is planted. The first eleven are the ones every attention library has had.
FAULTS: dict[str, Plant] = {
    "top-left causal": _top_left,
    "off-by-one window": _wide_window,
    "dropped last tile": _dropped_block,
    "additive sentinels": by_definition(_sentinels),
    "uniform empty row": by_definition(_uniform),
    "interleaved head order": by_definition(_interleaved),
    "base-2 log-sum-exp": by_definition(_base_two),
    "forgotten scale": by_definition(_unscaled),
    "NaN through a zero weight": _zero_times_nan,
    "merge of empties": _naive_merge,
    "batch-dependent order of additions": _order_by_batch,
    "order counted from key 0": _order_by_length,
    "order by the number of rows": _order_by_rows,
    "forgotten softcap": by_definition(_uncapped),
    "sink left out of the output": by_definition(_sink_in_output),
    "one batch's mask for all": _forgotten_batch_mask,
    "strides ignored": _contiguous_only,
    "input written to": _writes_inputs,
    "output is a view": _gives_a_view,
    "other bits the second time": _never_twice,
    "overflow unnoticed": _no_overflow_check,
    "faults never raised": _silent_empty,
}

#: The definition itself, passed through the same machinery without a fault, so that a catch means something.
HONEST = by_definition(lambda p, call: _definition(call))

__all__ = ["FAULTS", "HONEST", "PARTIAL"]
