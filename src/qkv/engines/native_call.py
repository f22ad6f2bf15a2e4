"""From Problem and Plan to calls of the native engine: the same numbers as plain arrays and integers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algebra import Allow
from ..floats import Array
from ..plan import PAIRS_AT_ONCE, Plan
from ..problem import Kept, Problem
from ..ranges import Ints
from ..rules import KeySet
from ..state import Rows
from . import native

Want = Literal["output", "state", "both"]
#: Maximum and sum of the rows' states, (N, H, L) each.
Sums = tuple[Array, Array]


class Part(NamedTuple):
    """A native call, the batch and rows of the problem it answers, and the keys it was given."""

    batch: Any
    rows: slice
    call: native.Call
    keys: slice


def run_output(
    problem: Problem, plan: Plan, output: Array, sums: Sums | None = None, kept: Kept | None = None
) -> tuple[Array, npt.NDArray[np.uint8], bool, bool, int]:
    """Attention into `output`, (N, H, L, E), the states' maxima and sums into `sums`, and answers into `kept` (zeros before).

    Returns (lse, status, whether all rows are allowed, whether any met a fault, blocks).
    """
    shape = (problem.batches, problem.heads, problem.queries)
    lse: Array = np.empty(shape, problem.dtype.compute)
    status: npt.NDArray[np.uint8] = np.zeros(shape, np.uint8)
    any_bits, all_bits, touched = 0, 0xFF, 0
    for batch, rows, call, keys in parts(problem, plan, "output" if sums is None else "both"):
        everything = call.query.shape[:-3] == problem.batch and call.query.shape[-2] == problem.queries
        keep = None if kept is None else _places(call, kept, keys.start)
        result = native.run(
            call, output=output.reshape(*problem.batch, *output.shape[1:]) if everything else None, keep=keep
        )
        if kept is not None and keep is not None:
            _put(keep, kept, batch, rows, keys)
        assert result.output is not None
        assert result.lse is not None
        at = (batch, slice(None), rows)
        if everything:
            lse, status = result.lse.reshape(shape), result.status.reshape(shape)
        else:
            for part, into in ((result.lse, lse), (result.status, status), (result.output, output)):
                into[at] = part.reshape(into[at].shape)
        if sums is not None:
            assert result.max is not None
            assert result.sum is not None
            sums[0][at], sums[1][at] = result.max.reshape(sums[0][at].shape), result.sum.reshape(sums[1][at].shape)
        any_bits, all_bits, touched = (
            any_bits | result.status_any,
            all_bits & result.status_all,
            touched + result.blocks_touched,
        )
    return lse, status, bool(all_bits & 1), bool(any_bits & ~1), touched


def _places(call: native.Call, kept: Kept, first_key: int) -> native.Keep:
    """Room for the answers of one call."""
    heads, rows, keys = call.query.shape[-3], call.query.shape[-2], call.key.shape[-2]
    shape, compute = (call.offset.size, heads, rows), np.float64 if call.dtype == "float64" else np.float32
    count = 0 if kept.top is None else kept.top[0].shape[-1]
    return native.Keep(
        first_key,
        None if kept.entropy is None else np.empty(shape, compute),
        None if kept.received is None else np.empty((*shape[:-1], keys), compute),
        np.empty((*shape, count), np.int64) if count else None,
        np.empty((*shape, count), compute) if count else None,
    )


def _put(keep: native.Keep, kept: Kept, batch: Any, rows: slice, keys: slice) -> None:
    """The answers of one call to where they belong."""
    at = (batch, slice(None), rows)
    if kept.entropy is not None:
        kept.entropy[at] = keep.entropy
    if kept.received is not None and keep.received is not None:
        kept.received[batch, :, keys] += keep.received
    if kept.top is not None and keep.keys is not None:
        kept.top[0][at], kept.top[1][at] = keep.keys, keep.weights


def run_state(problem: Problem, plan: Plan) -> Rows:
    """The states of all rows, (N, H, L)."""
    shape, dtype = (problem.batches, problem.heads, problem.queries), problem.dtype.compute
    out = Rows(
        np.empty(shape, dtype),
        np.empty(shape, dtype),
        np.empty((*shape, problem.value_width), dtype),
        np.zeros(shape, np.uint8),
    )
    for batch, rows, call, _ in parts(problem, plan, "state"):
        result = native.run(call)
        at = (batch, slice(None), rows)
        for mine, found in (
            (out.max, result.max),
            (out.sum, result.sum),
            (out.mix, result.mix),
            (out.status, result.status),
        ):
            assert found is not None
            mine[at] = found.reshape(mine[at].shape)
    return out


def parts(problem: Problem, plan: Plan, want: Want, *, by_batch: bool = False) -> Iterator[Part]:
    """One call for everything, or one for each block of rows where the mask's rule has to be evaluated in Python.

    Args:
        by_batch: one batch at a time in any case.
    """
    everything, all_keys = slice(None), slice(0, problem.keys)
    pairs = array_rule(problem)
    if problem.frame.position is not None and problem.slopes is not None:
        for rows in _steps(problem.frame.position[0]):
            yield Part(everything, rows, _call(problem, plan, want, None, rows, None, all_keys), all_keys)
        return
    if problem.rule is None or pairs is not None:
        every_row = slice(0, problem.queries)
        if not by_batch:
            yield Part(everything, everything, whole(problem, plan, want, pairs), all_keys)
            return
        for n in range(problem.batches):
            mine = None if pairs is None else pairs[problem.at(n)]
            yield Part(slice(n, n + 1), everything, _call(problem, plan, want, n, every_row, mine, all_keys), all_keys)
        return
    for n in range(problem.batches):
        for rows, reach in _chunks(problem, plan, n):
            at = np.arange(rows.start, rows.stop, dtype=np.int64)
            cols = np.arange(reach.start, reach.stop, dtype=np.int64) + problem.first_key
            seen = problem.rule.tile(problem.frame, n, slice(0, problem.heads), at, cols)
            full = np.broadcast_to(seen, (problem.heads, at.size, cols.size))
            yield Part(slice(n, n + 1), rows, _call(problem, plan, want, n, rows, full, reach), reach)


def of_rows(problem: Problem, plan: Plan, n: int, rows: slice, keys: slice) -> Iterator[tuple[slice, native.Call]]:
    """(rows, call): those rows of batch n and those keys alone, few enough to hold a rule's answers for all of their pairs."""
    steps = [rows]
    if problem.frame.position is not None and problem.slopes is not None:
        place = problem.frame.position[0, rows]
        steps = [slice(rows.start + step.start, rows.start + step.stop) for step in _steps(place)]
    pairs = array_rule(problem)
    for step in steps:
        allow = None if pairs is None else pairs[problem.at(n)][..., step, keys]
        if problem.rule is not None and pairs is None:
            at = np.arange(step.start, step.stop, dtype=np.int64)
            cols = np.arange(keys.start, keys.stop, dtype=np.int64) + problem.first_key
            seen = problem.rule.tile(problem.frame, n, slice(0, problem.heads), at, cols)
            allow = np.broadcast_to(seen, (problem.heads, at.size, cols.size))
        yield step, _call(problem, plan, "output", n, step, allow, keys)


def picked(problem: Problem, plan: Plan, want: Want, rows: Ints) -> Iterator[Part]:
    """Calls for those rows of every batch, in that order; a part's rows are places in `rows`."""
    pairs, all_keys = array_rule(problem), slice(0, problem.keys)
    steps = [slice(0, rows.size)] if rows.size else []
    if problem.slopes is not None:
        steps = list(_steps(rows if problem.frame.position is None else problem.frame.position[0, rows]))
    for step in steps:
        if problem.rule is None or pairs is not None:
            mine = _together(rows[step])
            allow = None if pairs is None else pairs[..., mine, :]
            yield Part(slice(None), step, _call(problem, plan, want, None, mine, allow, all_keys), all_keys)
            continue
        span = max(PAIRS_AT_ONCE // max(problem.heads * problem.keys, 1), 1)
        cols = np.arange(problem.keys, dtype=np.int64) + problem.first_key
        for n in range(problem.batches):
            for start in range(step.start, step.stop, span):
                part = slice(start, min(start + span, step.stop))
                seen = problem.rule.tile(problem.frame, n, slice(0, problem.heads), rows[part], cols)
                full = np.broadcast_to(seen, (problem.heads, part.stop - part.start, problem.keys))
                call = _call(problem, plan, want, n, _together(rows[part]), full, all_keys)
                yield Part(slice(n, n + 1), part, call, all_keys)


def _together(rows: Ints) -> slice | Ints:
    """Rows one behind the other as a slice, which copies nothing."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if (np.diff(rows) == 1).all() else rows


def whole(problem: Problem, plan: Plan, want: Want = "output", pairs: Array | None = None) -> native.Call:
    """The one call that answers everything; `pairs` is the rule as an array, where there is one."""
    return _call(problem, plan, want, None, slice(0, problem.queries), pairs, slice(0, problem.keys))


def _steps(position: Ints) -> Iterator[slice]:
    """Runs of rows that stand one behind the other: a call knows one offset, and alibi asks where its rows stand."""
    cuts = np.flatnonzero(np.diff(position) != 1) + 1
    for start, stop in pairwise([0, *cuts.tolist(), position.size] if position.size else ()):
        yield slice(start, stop)


def _chunks(problem: Problem, plan: Plan, n: int) -> Iterator[tuple[slice, slice]]:
    """Rows of batch n with the keys that their ranges span, few enough to hold a rule's answers for all of those pairs."""
    ranges, at = problem.ranges, n if problem.ranges.lo.shape[0] > 1 else 0
    some = ranges.lo[at] < ranges.hi[at]
    shape = (problem.queries,)
    first = np.broadcast_to(ranges.lo[at].min(axis=-1, where=some, initial=problem.keys), shape)
    last = np.broadcast_to(ranges.hi[at].max(axis=-1, where=some, initial=0), shape)
    start = 0
    while start < problem.queries:
        stop, lo, hi = start, problem.keys, 0
        while stop < problem.queries:
            more = min(stop + plan.tile, problem.queries)
            low, high = min(lo, int(first[stop:more].min())), max(hi, int(last[stop:more].max()))
            if stop > start and problem.heads * (more - start) * (high - low) > PAIRS_AT_ONCE:
                break
            stop, lo, hi = more, low, high
        yield slice(start, stop), slice(min(lo, hi), hi)
        start = stop


def array_rule(problem: Problem) -> Array | None:
    """A rule that is one array already, as a view (B…, H, L, S); nothing is copied."""
    rule, shape = problem.rule, (*problem.batch, problem.heads, problem.queries, problem.keys)
    keys = slice(problem.first_key, problem.first_key + problem.keys)
    if isinstance(rule, Allow):
        return rule.full(problem.frame)[..., keys]
    if isinstance(rule, KeySet):
        return np.broadcast_to(rule.exists[..., None, None, keys], shape)
    return None


def _call(
    problem: Problem, plan: Plan, want: Want, n: int | None, rows: slice | Ints, allow: Array | None, reach: slice
) -> native.Call:
    """The call for batch n (None: all), those rows, and the keys `reach`, from whose first one keys are counted.

    Rows that do not stand one behind the other have no positions, so `alibi` asks for slices.
    """
    at: Any = (...,) if n is None else problem.at(n)
    batches = problem.batches if n is None else 1
    pick = slice(None) if n is None else slice(n, n + 1)
    ranges, origin = problem.ranges, problem.origin
    first, length = (rows.start, rows.stop - rows.start) if isinstance(rows, slice) else (0, rows.size)
    lo, hi = (_rows(array - reach.start, pick, rows, length) for array in (ranges.lo, ranges.hi))
    offset = problem.frame.offset[pick] + first
    if problem.frame.position is not None and length:
        offset = problem.frame.position[:, first : first + 1].reshape(-1)
    offset = offset - problem.first_key - reach.start
    origin = origin - reach.start
    return native.Call(
        query=problem.query[at][..., rows, :],
        key=problem.key[at][..., reach, :],
        value=problem.value[at][..., reach, :],
        dtype=problem.dtype.name,
        scale=problem.scale,
        softcap=problem.softcap,
        slopes=problem.slopes,
        sink=problem.sink,
        offset=np.ascontiguousarray(
            offset if offset.shape == (batches,) else np.broadcast_to(offset, (batches,)), np.int64
        ),
        bias=None if problem.bias is None else problem.bias[at][..., rows, :][..., reach],
        bias_dtype=problem.bias_dtype,
        allow=allow,
        lo=lo,
        hi=hi,
        origin=None if not origin.any() else _rows(origin[..., None], pick, rows, length)[..., 0],
        tile_rows=plan.tile,
        block=plan.block,
        split=plan.split,
        spread=plan.spread,
        threads=plan.threads,
        want=want,
    )


def _rows(array: Array, pick: slice, rows: slice | Ints, length: int) -> npt.NDArray[np.int32]:
    """(N or 1, L or 1, K) as int32 (N or 1, L of these rows, K)."""
    chosen = array[pick] if array.shape[0] > 1 else array
    chosen = chosen[:, rows] if chosen.shape[1] > 1 else chosen
    out = np.empty((chosen.shape[0], length, chosen.shape[2]), np.int32)
    out[...] = chosen
    return out
