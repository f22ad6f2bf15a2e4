"""Questions about the weights in the native engine: one more pass over queries and keys.

A weight is exp(score - base) / whole, with base and whole (N, H, L) from the states of the rows; base is finite, and whole
NaN where a row has no right answer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..floats import Array
from ..plan import RECEIVED_KEYS, SHARED_KEYS, Plan, Tile, rows_plan, survey_plan
from ..problem import Problem
from ..state import beside
from . import native
from .native_call import of_rows, parts, picked

Ints = npt.NDArray[np.int64]


def ready(problem: Problem, plan: Plan) -> bool:
    """Whether the native engine carried out the problem and kept the rows' states."""
    return plan.engine == "native" and problem.sums is not None


def entropy(problem: Problem, plan: Plan, base: Array, whole: Array) -> Array:
    """(N, H, L) in nats, of the weights renormalised over the keys."""
    out = np.zeros(base.shape, base.dtype)
    for batch, rows, call, _ in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        part = np.empty(base[at].shape, base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, entropy=part)
        out[at] = part
    return out


def received(problem: Problem, plan: Plan, base: Array, whole: Array) -> Array:
    """(N, H, S): what each key receives from all rows."""
    out = np.zeros((*base.shape[:-1], problem.keys), base.dtype)
    for batch, rows, call, keys in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        part = np.zeros((*base[at].shape[:-1], keys.stop - keys.start), base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, received=part)
        out[batch, :, keys] += part
    return out


def top(problem: Problem, plan: Plan, base: Array, whole: Array, count: int) -> tuple[Ints, Array]:
    """Keys and weights of the `count` largest weights a row, (N, H, L, count); padded with -1 and 0."""
    index = np.full((*base.shape, count), -1, np.int64)
    weight = np.zeros(index.shape, base.dtype)
    for batch, rows, call, keys in parts(problem, plan, "output"):
        at = (batch, slice(None), rows)
        found = np.empty(index[at].shape, np.int64), np.empty(index[at].shape, base.dtype)
        native.answers(call, _flat(base[at]), _flat(whole[at]), RECEIVED_KEYS, first_key=keys.start, top=found)
        index[at], weight[at] = found
    if problem.lost is not None:
        weight[problem.lost] = np.nan
    return index, weight


def scores(problem: Problem, plan: Plan, tile: Tile, keys: slice) -> tuple[Array, npt.NDArray[np.bool_]]:
    """(scores, allowed pairs), (H, R, C) each, of a tile's rows and those keys; -inf where a pair is not allowed."""
    shape = (problem.heads, tile.stop - tile.start, keys.stop - keys.start)
    score, reach = np.full(shape, -np.inf, problem.dtype.compute), np.zeros(shape, np.bool_)
    if not score.size:
        return score, reach
    for rows, call in of_rows(problem, plan, tile.batch, slice(tile.start, tile.stop), keys):
        part = (1, problem.heads, rows.stop - rows.start, shape[-1])
        found = np.full(part, -np.inf, score.dtype), np.zeros(part, np.bool_)
        native.answers(call, None, None, RECEIVED_KEYS, score=found)
        at = slice(rows.start - tile.start, rows.stop - tile.start)
        score[:, at], reach[:, at] = found[0][0], found[1][0]
    return score, reach


def survey(
    problem: Problem,
    plan: Plan,
    states: tuple[Array, Array, Array],
    position: Ints,
    edges: tuple[Ints, Ints] | None,
    *,
    sums: bool = True,
) -> tuple[Array, Array, Array, Array | None]:
    """(entropy, distance, received, pooled), see `questions.survey`; the first three only where `sums`."""
    base = states[0]
    entropy, distance = np.zeros_like(base), np.zeros_like(base)
    received = np.zeros((*base.shape[:-1], problem.keys), np.int64)
    spoiled = np.zeros(received.shape, np.uint8)
    # No sum of as many weights as there are rows leaves the whole numbers.
    unit = math.ldexp(1.0, 61 - max(problem.queries, 1).bit_length())
    pooled = None
    if edges is not None:
        pooled = np.zeros((*base.shape[:-1], edges[0].size - 1, edges[1].size - 1), base.dtype)
    for batch, rows, call, keys in parts(problem, survey_plan(problem, plan), "output"):
        at = (batch, slice(None), rows)
        mine = received[batch][..., keys]
        part = [np.empty(base[at].shape, base.dtype) for _ in range(2)]
        counted = np.zeros(mine.shape, np.int64), np.zeros(mine.shape, np.uint8)
        native.survey(
            call,
            _flat(states[0][at]),
            _flat(states[1][at]),
            _flat(states[2][at]),
            _flat(position[batch if position.shape[0] > 1 else slice(None), rows]),
            entropy=part[0] if sums else None,
            distance=part[1] if sums else None,
            received=(*counted, unit) if sums else None,
            pooled=None if pooled is None or edges is None else (pooled[batch], *edges),
            first=(rows.start or 0, keys.start),
        )
        if sums:
            entropy[at], distance[at] = part
            received[batch, :, keys] += counted[0]
            spoiled[batch, :, keys] |= counted[1]
    out = (received / unit).astype(base.dtype)
    out[spoiled != 0] = np.nan
    return entropy, distance, out, pooled


class Shares(NamedTuple):
    """What keys put into rows' outputs, or what rows would be without them, (N, H, R, S); None where it was not asked.

    Attributes:
        weight, norm, share, relative: of every key; vectors: (N, H, R, S, E). reads, place: how many keys each row may read,
            and the sum of their numbers, (N, H, R). nothing: rows whose output is 0 or no right one, and so can be no measure.
    """

    weight: Array | None
    norm: Array | None
    share: Array | None
    relative: Array | None
    vectors: Array | None
    reads: Ints
    place: Ints
    nothing: npt.NDArray[np.bool_]


def shares(
    problem: Problem,
    plan: Plan,
    rows: Ints,
    logit: Array | None,
    *,
    given: bool = False,
    without: bool = False,
    vectors: bool = False,
) -> Shares:
    """Weight, norm and share of every key in those rows where `given`, and what changes without it where `without`."""
    shape, dtype = (problem.batches, problem.heads, rows.size), problem.dtype.compute
    keys = (*shape, problem.keys)

    def room(asked: bool, size: tuple[int, ...] = keys) -> Array | None:
        return np.zeros(size, dtype) if asked else None

    out = Shares(
        weight=room(given),
        norm=room(given),
        share=room(given),
        relative=room(without),
        vectors=room(vectors, (*keys, problem.value_width)),
        reads=np.zeros(shape, np.int64),
        place=np.zeros(shape, np.int64),
        nothing=np.zeros(shape, np.bool_),
    )
    for batch, at, call, _ in picked(problem, rows_plan(problem, plan, rows.size), "state", rows):
        place = (batch, slice(None), at)
        base, whole, output = _finished(problem, native.run(call), out.nothing[place].shape, logit, (batch, rows[at]))
        with np.errstate(invalid="ignore"):
            out.nothing[place] = ~(output != 0).any(axis=-1) | np.isnan(whole)
        part = out
        if base.shape != shape:
            part = Shares._make(None if x is None else np.zeros(x[place].shape, x.dtype) for x in out)
        native.shares(
            call,
            base,
            whole,
            output,
            SHARED_KEYS,
            weight=part.weight,
            norm=part.norm,
            share=part.share,
            relative=part.relative,
            vectors=part.vectors,
            counted=(part.reads, part.place),
        )
        if part is not out:
            for mine, found in zip(out[:-1], part[:-1], strict=True):
                if mine is not None and found is not None:
                    np.copyto(mine[place], found)
    return out


def _finished(
    problem: Problem, state: native.Result, shape: tuple[int, ...], logit: Array | None, at: tuple[Any, Ints]
) -> tuple[Array, Array, Array]:
    """(base, whole, output) of rows `at` (batches, rows) from their states."""
    assert state.max is not None
    assert state.sum is not None
    assert state.mix is not None
    lost = None if problem.lost is None else problem.lost[at[0]][..., at[1]]
    base, whole, kept = beside(state.max.reshape(shape), state.sum.reshape(shape), logit, lost)
    output = state.mix.reshape(*shape, problem.value_width)
    if kept is not None:
        with np.errstate(under="ignore", invalid="ignore"):
            output = output * kept[..., None]
    return _flat(base), _flat(whole), _flat(output)


def _flat(array: Array) -> Any:
    return np.ascontiguousarray(array)
