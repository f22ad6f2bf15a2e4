"""Questions about the weights, answered tile by tile in memory linear in L + S (never an L×S matrix).

Everything here comes from one generator of weight rows; formulas stand in the docstrings of `Attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .algebra import Mask
from .engines import native_answers
from .floats import Array, widen
from .frame import Frame
from .plan import LISTED_KEYS, Plan
from .problem import Problem
from .state import beside
from .weights import weight_rows

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def chosen_weights(
    problem: Problem, plan: Plan, rows: Ints, heads: Ints, keys: Ints | None, *, scores: bool = False
) -> Array:
    """(N, heads, rows, keys) for the rows asked; `scores`: scores instead, -inf where a pair is not allowed."""
    if 0 < heads.size < problem.heads and native_answers.ready(problem, plan):  # whose bits no other head changes
        one = np.zeros(1, np.int64)
        parts = [chosen_weights(of_head(problem, h), plan, rows, one, keys, scores=scores) for h in heads.tolist()]
        return np.concatenate(parts, axis=1)
    cols = problem.keys if keys is None else keys.size
    nothing = -np.inf if scores else 0
    out = np.full((problem.batches, heads.size, rows.size, cols), nothing, problem.dtype.compute)
    for seen in weight_rows(problem, plan, rows.tolist()):
        full = np.full((heads.size, seen.tile.stop - seen.tile.start, problem.keys), nothing, out.dtype)
        full[..., seen.keys] = (seen.score if scores else seen.weight)[heads]
        picked = full if keys is None else full[..., keys]
        for slot in np.flatnonzero((rows >= seen.tile.start) & (rows < seen.tile.stop)):
            out[seen.tile.batch, :, slot] = picked[:, rows[slot] - seen.tile.start]
    return out


def top(problem: Problem, plan: Plan, count: int) -> tuple[Ints, Array]:
    """Keys and weights of the `count` largest weights a row, (N, H, L, count); padded with -1 and 0 (C2, C6)."""
    if problem.kept is not None and problem.kept.top is not None and count <= problem.kept.top[0].shape[-1]:
        return np.array(problem.kept.top[0][..., :count]), np.array(problem.kept.top[1][..., :count])
    if native_answers.ready(problem, plan) and count <= LISTED_KEYS:
        return native_answers.top(problem, plan, *_shares(problem, problem.sink), count)
    shape = (problem.batches, problem.heads, problem.queries, count)
    index, weight = np.full(shape, -1, np.int64), np.zeros(shape, problem.dtype.compute)
    for seen in weight_rows(problem, plan):
        many = min(count, seen.keys.size)
        if not many:
            continue
        # Forbidden keys rank below every allowed one, also below those whose weight underflowed to 0.
        ranked = np.where(seen.reach & ~seen.wrong[..., None], seen.weight, -1)
        threshold = np.partition(ranked, -many, axis=-1)[..., -many, None]
        above, equal = ranked > threshold, ranked == threshold
        room = many - above.sum(axis=-1, keepdims=True)
        picked = above | (equal & (np.cumsum(equal, axis=-1) <= room))
        keys = np.nonzero(picked)[2].reshape(*ranked.shape[:2], many)
        values = np.take_along_axis(ranked, keys, axis=-1)
        order = np.argsort(-values, axis=-1, kind="stable")
        keys, values = seen.keys[np.take_along_axis(keys, order, axis=-1)], np.take_along_axis(values, order, axis=-1)
        at = (seen.tile.batch, slice(None), slice(seen.tile.start, seen.tile.stop), slice(0, many))
        index[at], weight[at] = np.where(values < 0, -1, keys), np.where(values < 0, 0, values)
        lost = (seen.tile.batch, slice(None), slice(seen.tile.start, seen.tile.stop))
        index[lost][seen.wrong], weight[lost][seen.wrong] = -1, np.nan
    return index, weight


def received(problem: Problem, plan: Plan) -> Array:
    """Sum of each key's weight over all rows, (N, H, S); added in row order, so the same bits twice (F4)."""
    if problem.kept is not None and problem.kept.received is not None:
        return np.array(problem.kept.received)
    if native_answers.ready(problem, plan):
        return native_answers.received(problem, plan, *_shares(problem, problem.sink))
    out = np.zeros((problem.batches, problem.heads, problem.keys), np.float64)
    for seen in weight_rows(problem, plan):
        # A row without an answer spoils the keys it may read and no others (D1).
        out[seen.tile.batch][:, seen.keys] += seen.weight.sum(axis=1, dtype=np.float64)
    return out.astype(problem.dtype.compute)


def entropy(problem: Problem, plan: Plan) -> Array:
    """Entropy in nats of the weights renormalised over the allowed keys, (N, H, L); 0 for a row without keys."""
    if problem.kept is not None and problem.kept.entropy is not None:
        return np.array(problem.kept.entropy)
    if native_answers.ready(problem, plan):
        return native_answers.entropy(problem, plan, *_shares(problem, None))
    out = np.zeros((problem.batches, problem.heads, problem.queries), problem.dtype.compute)
    for seen in weight_rows(problem, plan):
        with np.errstate(all="ignore"):
            share = seen.share
            terms = np.where(
                share > 0, share * np.log(np.where(share > 0, share, 1)), np.where(np.isnan(share), share, 0)
            )
        out[seen.tile.batch, :, seen.tile.start : seen.tile.stop] = np.maximum(-terms.sum(axis=-1), 0)
    return out


def effective_keys(problem: Problem, plan: Plan, nats: Array) -> Array:
    """exp(entropy), and 0 for a row that reads no key."""
    with np.errstate(under="ignore", invalid="ignore"):
        out = np.exp(nats)
    if problem.sums is not None:
        lost = np.zeros(out.shape, np.bool_) if problem.lost is None else problem.lost
        out[np.isneginf(problem.sums[0]) & ~lost] = 0
        return out
    for seen in weight_rows(problem, plan):
        none = ~seen.reach.any(axis=-1)
        out[seen.tile.batch, :, seen.tile.start : seen.tile.stop][none] = 0
    return out


def sink_share(problem: Problem, plan: Plan) -> Array:
    """The sink's part of the whole, (N, H, L); 0 without a sink."""
    if problem.sink is not None and problem.sums is not None:
        base, whole = _shares(problem, problem.sink)
        with np.errstate(all="ignore"):
            part: Array = np.exp(_logit(problem, problem.sink) - base) / whole
        return part
    out = np.zeros((problem.batches, problem.heads, problem.queries), problem.dtype.compute)
    if problem.sink is not None:
        for seen in weight_rows(problem, plan):
            whole = seen.total + seen.sink
            share = seen.sink / np.where(whole == 0, 1, whole)
            out[seen.tile.batch, :, seen.tile.start : seen.tile.stop] = np.where(seen.wrong, np.nan, share)
    return out


def _logit(problem: Problem, sink: Array) -> Array:
    """(H, 1) in the compute type, a sink beyond it as its largest number."""
    limit = float(np.finfo(problem.dtype.compute).max)
    out: Array = np.clip(sink, -limit, limit).astype(problem.dtype.compute)[:, None]
    return out


def _shares(problem: Problem, sink: Array | None) -> tuple[Array, Array]:
    """(base, whole), (N, H, L) each, from the rows' states: a weight is exp(score - base) / whole, NaN for a lost row."""
    assert problem.sums is not None
    return beside(*problem.sums, None if sink is None else _logit(problem, sink), problem.lost)[:2]


def survey_states(problem: Problem) -> tuple[Array, Array, Array]:
    """(base, whole, part), (N, H, L) each: exp(score - base) is, over whole, a weight among the keys, times part one beside the sink."""
    base, whole = _shares(problem, None)
    if problem.sink is None:
        return base, whole, 1 / whole
    beside, total = _shares(problem, problem.sink)
    with np.errstate(all="ignore"):
        return base, whole, np.exp(base - beside) / total


@dataclass(frozen=True, eq=False)
class OneQuery:
    """One query row over all keys in float64: (N, H, S) scores, masses exp(score - max), weights and allowed pairs.

    Attributes:
        logit: the sink's score, (H,), -inf without one. sink: its mass, (N, H). output: (N, H, E).
    """

    score: Array
    mass: Array
    weight: Array
    reach: Bools
    logit: Array
    sink: Array
    output: Array


class _OneHead:
    """A mask's rule asked for one query head, which is head 0 here."""

    def __init__(self, rule: Mask, head: int) -> None:
        self.rule, self.head = rule, head

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        """The pairs of that head, whichever one is asked for."""
        return self.rule.tile(frame, n, slice(self.head, self.head + 1), rows, cols)


def of_head(problem: Problem, head: int) -> Problem:
    """The problem of one query head alone, without copies."""
    one, group = slice(head, head + 1), head // problem.sharing
    rule: Any = None if problem.rule is None else _OneHead(problem.rule, head)
    return replace(
        problem,
        query=problem.query[..., one, :, :],
        key=problem.key[..., group : group + 1, :, :],
        value=problem.value[..., group : group + 1, :, :],
        sink=None if problem.sink is None else problem.sink[one],
        slopes=None if problem.slopes is None else problem.slopes[one],
        bias=None if problem.bias is None else problem.bias[..., one, :, :],
        rule=rule,
        lost=None if problem.lost is None else problem.lost[:, one],
        sums=None if problem.sums is None else (problem.sums[0][:, one], problem.sums[1][:, one]),
        kept=None,
    )


def one_query(problem: Problem, plan: Plan, row: int) -> OneQuery:
    """Weights of row `row` in every batch and head, and its output, in float64."""
    shape = (problem.batches, problem.heads, problem.keys)
    score, reach = np.full(shape, -np.inf), np.zeros(shape, np.bool_)
    wrong = np.zeros(shape[:2], np.bool_)
    for seen in weight_rows(problem, plan, [row]):
        n = seen.tile.batch
        score[n][:, seen.keys], reach[n][:, seen.keys] = seen.score[:, 0], seen.reach[:, 0]
        wrong[n] = seen.wrong[:, 0]
    return mixed_query(problem, score, reach, wrong)


def mixed_query(problem: Problem, score: Array, reach: Bools, wrong: Bools) -> OneQuery:
    """The same from (N, H, S) scores, -inf where a pair is not allowed, and the rows without a right answer, (N, H)."""
    shape = score.shape
    logit = np.full(problem.heads, -np.inf) if problem.sink is None else problem.sink
    with np.errstate(all="ignore"):
        mass, sink = softmax_mass(score, logit)
    mass[wrong[..., None] & reach] = np.nan
    whole = mass.sum(axis=-1) + sink
    weight = np.where(reach, mass / np.where(whole == 0, 1, whole)[..., None], 0)
    output = np.zeros((*shape[:2], problem.value_width))
    for n in range(shape[0]):
        for heads, value in _groups(problem, n):
            output[n, heads] = mix(weight[n, heads], value)
    return OneQuery(score, mass, weight, reach, logit, sink, output)


def softmax_mass(score: Array, logit: Array) -> tuple[Array, Array]:
    """exp(score - max) and exp(logit - max), the maximum over keys and sink; all 0 where there is nothing."""
    top = np.maximum(score.max(axis=-1, initial=-np.inf), logit)
    shift = np.where(np.isfinite(top), top, 0)
    mass: Array = np.exp(score - shift[..., None])
    sink: Array = np.exp(logit - shift)
    return mass, sink


def values(problem: Problem, n: int, groups: slice = slice(None)) -> Array:
    """Values of batch n, (G, S, E) in float64, with non-finite numbers as 0 (rows that read them are NaN already)."""
    array = np.ascontiguousarray(widen(problem.value[problem.at(n)][groups], problem.dtype.name))
    finite = np.isfinite(array)
    wide: Array = array.astype(np.float64)
    return wide if finite.all() else np.where(finite, wide, 0)


def _groups(problem: Problem, n: int) -> Iterator[tuple[slice, Array]]:
    """(heads, their values (1, S, E)) group by group: the float64 of all at once would not stay near the processor."""
    for g in range(problem.groups):
        yield slice(g * problem.sharing, (g + 1) * problem.sharing), values(problem, n, slice(g, g + 1))


def mix(weight: Array, value: Array) -> Array:
    """Σ_j weight_j v_j for weights (H, S) and values (G, S, E): (H, E)."""
    groups = value.shape[0]
    shared = weight.reshape(groups, weight.shape[0] // groups, -1)
    with np.errstate(all="ignore"):
        out: Array = np.matmul(shared, value).reshape(weight.shape[0], -1)
        if not np.isfinite(out).all():
            # Scaled down and up again, so that a mixture of the largest numbers stays finite (D3).
            small = np.matmul(shared, value * 2.0**-64).reshape(out.shape)
            limit = np.finfo(out.dtype).max
            out = np.where(np.isfinite(out), out, np.clip(small * 2.0**64, -limit, limit))
    return out


def scaled(x: Array) -> tuple[Array, Ints]:
    """(y, e) with x = y · 2^e and the largest |y| of each vector in [1/2, 1), so that squares neither overflow nor vanish."""
    exponent: Ints = np.frexp(np.abs(x).max(axis=-1, keepdims=True))[1].astype(np.int64)
    return np.ldexp(x, -exponent), exponent[..., 0]


def _even(problem: Problem, x: Array) -> tuple[Array, Ints]:
    """`scaled`, where the type has numbers whose squares leave float64."""
    if problem.dtype.name == "float64":
        return scaled(x)
    return x, np.zeros(x.shape[:-1], np.int64)


def contributions(problem: Problem, one: OneQuery) -> tuple[Array, Array]:
    """(norm ‖α_j v_j‖, share α_j v_j·o / ‖o‖²) of every key, (N, H, S) each."""
    norm, share = np.zeros_like(one.weight), np.zeros_like(one.weight)
    with np.errstate(all="ignore"):
        for n in range(problem.batches):
            for heads, plain in _groups(problem, n):
                value, v_exponent = _even(problem, plain[0])
                output, o_exponent = _even(problem, one.output[n, heads])
                weight, size = one.weight[n, heads], _squares(output)[:, None]
                norm[n, heads] = np.ldexp(weight * np.sqrt(_squares(value)), v_exponent)
                # The heads of a group read the same values.
                along = np.matmul(value, output.T).T
                part = np.ldexp(weight * along / size, v_exponent - o_exponent[:, None])
                share[n, heads] = np.where(size > 0, part, np.nan)
    return norm, share


def _squares(x: Array) -> Array:
    out: Array = np.einsum("...e,...e->...", x, x)
    return out


def influence(problem: Problem, one: OneQuery) -> tuple[Array, Bools, Any]:
    """(‖o − o₋ⱼ‖ / ‖o‖, sole, a function giving the vectors o₋ⱼ − o of one batch), see `Attention.influence`."""
    relative = np.zeros_like(one.weight)
    sole = one.reach & (one.reach.sum(axis=-1, keepdims=True) == 1)
    with np.errstate(all="ignore"):
        for n in range(problem.batches):
            if problem.dtype.name == "float64":
                output, o_exponent = scaled(one.output[n] / 2)
                change, c_exponent = scaled(half_changes(problem, one, n))
                size = np.sqrt(_squares(output))[:, None]
                part = np.ldexp(np.sqrt(_squares(change)) / size, c_exponent - o_exponent[:, None])
            else:
                size = np.sqrt(_squares(one.output[n]))[:, None]
                part = _lengths(problem, one, n) / size
            relative[n] = np.where(size > 0, part, np.nan)

    def vectors(n: int) -> Array:
        with np.errstate(over="ignore"):
            return 2 * half_changes(problem, one, n)

    return relative, sole, vectors


def _odds(one: OneQuery, n: int) -> Array:
    """α/(1−α) of every key, (H, S), with 1 − α from the other keys and the sink, by sums from both ends: nothing is subtracted."""
    mass = one.mass[n]
    before = np.concatenate([np.zeros_like(mass[:, :1]), np.cumsum(mass, axis=-1)[:, :-1]], axis=-1)
    after = np.concatenate([np.cumsum(mass[:, ::-1], axis=-1)[:, -2::-1], np.zeros_like(mass[:, :1])], axis=-1)
    others = before + after + one.sink[n][:, None]
    out: Array = np.where(others > 0, mass / np.where(others > 0, others, 1), 0)
    return out


def _heaviest(one: OneQuery, n: int, heads: int) -> Iterator[tuple[int, int]]:
    """(head, its heaviest key). It leaves rows in which everything else may have underflowed: those are mixed anew."""
    for h in range(heads):
        j = int(one.mass[n, h].argmax()) if one.mass.shape[-1] else -1
        if j >= 0 and one.reach[n, h, j]:
            yield h, j


def _lengths(problem: Problem, one: OneQuery, n: int) -> Array:
    """‖o₋ⱼ − o‖ for every key of batch n, (H, S), without the vectors: of narrow types, whose squares float64 holds."""
    output, out = one.output[n], _odds(one, n)
    heaviest = dict(_heaviest(one, n, problem.heads))
    for heads, value in _groups(problem, n):
        for h in range(heads.start, heads.stop):
            out[h] *= np.sqrt(_squares(value[0] - output[h]))
            if h in heaviest:
                j = heaviest[h]
                out[h, j] = np.sqrt(_squares(_without(one, n, h, j, value[0]) - output[h]))
    return out


def contributed(problem: Problem, plan: Plan, rows: Ints) -> tuple[Array, Array, Array]:
    """(weight, norm, share) of every key in the rows asked, (N, H, rows, S) each, see `Attention.contributions`."""
    if native_answers.ready(problem, plan):
        found = native_answers.shares(problem, plan, rows, _sink_logit(problem), given=True)
        assert found.weight is not None
        assert found.norm is not None
        assert found.share is not None
        found.share[found.nothing] = np.nan
        return found.weight, found.norm, found.share
    out = tuple(np.zeros((problem.batches, problem.heads, rows.size, problem.keys)) for _ in range(3))
    for slot, row in enumerate(rows.tolist()):
        one = one_query(problem, plan, row)
        for into, part in zip(out, (one.weight, *contributions(problem, one)), strict=True):
            into[:, :, slot] = part
    return out[0], out[1], out[2]


def influenced(problem: Problem, plan: Plan, rows: Ints, *, vectors: bool) -> tuple[Array, Bools, Array | None]:
    """(relative, sole, vectors or None) of every key in the rows asked, (N, H, rows, S[, E]), see `Attention.influence`."""
    shape = (problem.batches, problem.heads, rows.size, problem.keys)
    sole = np.zeros(shape, np.bool_)
    if native_answers.ready(problem, plan):
        found = native_answers.shares(problem, plan, rows, _sink_logit(problem), without=True, vectors=vectors)
        assert found.relative is not None
        found.relative[found.nothing] = np.nan
        alone = found.reads == 1
        only: tuple[Any, ...] = (*np.nonzero(alone), found.place[alone])
        sole[only] = True
        return found.relative, sole, found.vectors
    relative, moved = np.zeros(shape), np.zeros((*shape, problem.value_width)) if vectors else None
    for slot, row in enumerate(rows.tolist()):
        relative[:, :, slot], sole[:, :, slot], change = influence(problem, one_query(problem, plan, row))
        for n in range(problem.batches if moved is not None else 0):
            assert moved is not None
            moved[n, :, slot] = change(n)
    return relative, sole, moved


def _sink_logit(problem: Problem) -> Array | None:
    return None if problem.sink is None else _logit(problem, problem.sink)


def half_changes(problem: Problem, one: OneQuery, n: int) -> Array:
    """(o₋ⱼ − o) / 2 for every key of batch n, (H, S, E): −α/(1−α) · (v_j − o) / 2, zero for keys the row does not read.

    Halves, because the difference of two finite numbers may not be one.
    """
    value, output = np.repeat(values(problem, n), problem.sharing, axis=0) / 2, one.output[n] / 2
    with np.errstate(all="ignore"):
        change: Array = -_odds(one, n)[..., None] * (value - output[:, None, :])
    for h, j in _heaviest(one, n, problem.heads):
        change[h, j] = _without(one, n, h, j, value[h]) - output[h]
    change[~one.reach[n]] = 0
    return change


def _without(one: OneQuery, n: int, h: int, j: int, value: Array) -> Array:
    """The output without key j, mixed anew from the others with their own maximum; the zero row if there is no other."""
    score = one.score[n, h].copy()
    score[j] = -np.inf
    mass, sink = softmax_mass(score, one.logit[h])
    whole = mass.sum() + sink
    if not whole > 0:
        return np.zeros(value.shape[-1])
    out: Array = (mass / whole) @ value
    return out
