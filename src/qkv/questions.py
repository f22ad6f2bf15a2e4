"""Questions about the weights, answered tile by tile in memory linear in L + S (never an L×S matrix).

Everything here comes from one generator of weight rows; formulas stand in the docstrings of `Attention`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .algebra import Mask
from .engines import native_answers
from .engines.numpy_tiles import finite_block, score_block, tensor_block, tile_queries
from .floats import Array
from .frame import Frame
from .plan import LISTED_KEYS, PAIRS_AT_ONCE, Block, Plan, Tile
from .problem import Problem
from .state import NONFINITE, OVERFLOW

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of one tile's rows over the keys that its blocks hold; all other keys have weight 0.

    Attributes:
        keys: the C keys, ascending.
        score: -inf where a pair is not allowed; mass: exp(score - max); reach: allowed pairs; (H, R, C) each.
        total: sum of mass over keys, (H, R). sink: the sink's mass, (H, R), 0 without a sink.
        wrong: rows that have no right finite answer, (H, R); their mass is NaN where a pair is allowed.
    """

    tile: Tile
    keys: Ints
    score: Array
    mass: Array
    reach: Bools
    total: Array
    sink: Array
    wrong: Bools

    @property
    def weight(self) -> Array:
        """(H, R, C): mass over the whole, the sink included; rows add up to 1 minus the sink's share."""
        whole = self.total + self.sink
        out: Array = np.where(self.reach, self.mass / np.where(whole == 0, 1, whole)[..., None], 0)
        return out

    @property
    def share(self) -> Array:
        """(H, R, C): weights renormalised over the keys, however small beside the sink (C4)."""
        top = self.score.max(axis=-1, initial=-np.inf, keepdims=True)
        mass = np.where(np.isnan(self.mass), self.mass, np.exp(self.score - np.where(np.isfinite(top), top, 0)))
        whole = mass.sum(axis=-1, keepdims=True)
        out: Array = np.where(self.reach, mass / np.where(whole == 0, 1, whole), 0)
        return out


def weight_rows(problem: Problem, plan: Plan, rows: Iterable[int] | None = None) -> Iterator[Weights]:
    """Weights of all rows in order, or of the rows asked (in every batch), a tile at a time."""
    for tile in plan.tiles(problem):
        wanted = range(tile.start, tile.stop) if rows is None else [i for i in rows if tile.start <= i < tile.stop]
        for start, stop in _runs(wanted):
            held = sum(
                block.hi - block.lo for block in plan.blocks(problem, Tile(tile.batch, start, stop, tile.origin))
            )
            span = max(min(PAIRS_AT_ONCE // max(problem.heads * held, 1), stop - start), 1)
            for low in range(start, stop, span):
                yield _weights(problem, plan, Tile(tile.batch, low, min(low + span, stop), tile.origin))


def _runs(rows: Any) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as (start, stop)."""
    ordered = sorted(set(rows))
    start = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            yield ordered[start], ordered[at - 1] + 1
            start = at


def _weights(problem: Problem, plan: Plan, tile: Tile) -> Weights:
    blocks = plan.blocks(problem, tile)
    keys = np.concatenate([np.arange(block.lo, block.hi) for block in blocks] or [np.zeros(0, np.int64)])
    shape = (problem.heads, tile.stop - tile.start, keys.size)
    dtype = problem.dtype.compute
    score, reach, status = np.full(shape, -np.inf, dtype), np.zeros(shape, np.bool_), np.zeros(shape[:2], np.uint8)
    with np.errstate(all="ignore"):
        queries = tile_queries(problem, tile)
        at = 0
        for block in blocks:
            _, value_bad = finite_block(problem, problem.value, tile.batch, block)
            seen = score_block(problem, queries, block, value_bad)
            cols = slice(at, at + block.hi - block.lo)
            score[..., cols], reach[..., cols] = seen.score, seen.reach
            status |= seen.status
            at = cols.stop
        logit = (
            np.full((problem.heads, 1), -np.inf, dtype) if problem.sink is None else problem.sink.astype(dtype)[:, None]
        )
        top = np.maximum(score.max(axis=-1, initial=-np.inf), logit)
        shift = np.where(np.isfinite(top), top, 0)
        mass = np.exp(score - shift[..., None])
        wrong = ((status & (NONFINITE | OVERFLOW)) != 0) | (reach.any(axis=-1) & np.isneginf(score).all(axis=-1))
        if problem.lost is not None:
            wrong = wrong | problem.lost[tile.batch, :, tile.start : tile.stop]
        if wrong.any():
            mass = np.where(wrong[..., None] & reach, dtype.type(np.nan), mass)
        return Weights(tile, keys, score, mass, reach, mass.sum(axis=-1, dtype=dtype), np.exp(logit - shift), wrong)


def chosen_weights(
    problem: Problem, plan: Plan, rows: Ints, heads: Ints, keys: Ints | None, *, scores: bool = False
) -> Array:
    """(N, heads, rows, keys) for the rows asked; `scores`: scores instead, -inf where a pair is not allowed."""
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
        weight[at][seen.wrong] = np.nan
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
    highest, whole = problem.sums
    with np.errstate(all="ignore"):
        base = highest if sink is None else np.maximum(highest, _logit(problem, sink))
        base = np.where(np.isfinite(base), base, highest.dtype.type(0))
        if sink is not None:
            whole = whole * np.exp(highest - base) + np.exp(_logit(problem, sink) - base)
    whole = np.where(whole == 0, whole.dtype.type(1), whole)
    if problem.lost is not None:
        whole[problem.lost] = np.nan
    return base, whole


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
        sums=None,
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
        output[n] = mix(weight[n], values(problem, n))
    return OneQuery(score, mass, weight, reach, logit, sink, output)


def softmax_mass(score: Array, logit: Array) -> tuple[Array, Array]:
    """exp(score - max) and exp(logit - max), the maximum over keys and sink; all 0 where there is nothing."""
    top = np.maximum(score.max(axis=-1, initial=-np.inf), logit)
    shift = np.where(np.isfinite(top), top, 0)
    mass: Array = np.exp(score - shift[..., None])
    sink: Array = np.exp(logit - shift)
    return mass, sink


def values(problem: Problem, n: int) -> Array:
    """Values of batch n, (G, S, E) in float64, with non-finite numbers as 0 (rows that read them are NaN already)."""
    array = tensor_block(problem, problem.value, n, Block(0, problem.keys, False)).astype(np.float64)
    return np.where(np.isfinite(array), array, 0)


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


def contributions(problem: Problem, one: OneQuery) -> tuple[Array, Array]:
    """(norm ‖α_j v_j‖, share α_j v_j·o / ‖o‖²) of every key, (N, H, S) each."""
    norm, share = np.zeros_like(one.weight), np.zeros_like(one.weight)
    with np.errstate(all="ignore"):
        for n in range(problem.batches):
            value, v_exponent = scaled(np.repeat(values(problem, n), problem.sharing, axis=0))
            output, o_exponent = scaled(one.output[n])
            norm[n] = np.ldexp(one.weight[n] * np.linalg.norm(value, axis=-1), v_exponent)
            along = np.einsum("hse,he->hs", value, output)
            size = np.einsum("he,he->h", output, output)[:, None]
            part = np.ldexp(one.weight[n] * along / size, v_exponent - o_exponent[:, None])
            share[n] = np.where(size > 0, part, np.nan)
    return norm, share


def influence(problem: Problem, one: OneQuery) -> tuple[Array, Bools, Any]:
    """(‖o − o₋ⱼ‖ / ‖o‖, sole, a function giving the vectors o₋ⱼ − o of one batch), see `Attention.influence`."""
    relative = np.zeros_like(one.weight)
    sole = one.reach & (one.reach.sum(axis=-1, keepdims=True) == 1)
    with np.errstate(all="ignore"):
        for n in range(problem.batches):
            output, o_exponent = scaled(one.output[n] / 2)
            change, c_exponent = scaled(half_changes(problem, one, n))
            size = np.linalg.norm(output, axis=-1)[:, None]
            part = np.ldexp(np.linalg.norm(change, axis=-1) / size, c_exponent - o_exponent[:, None])
            relative[n] = np.where(size > 0, part, np.nan)

    def vectors(n: int) -> Array:
        with np.errstate(over="ignore"):
            return 2 * half_changes(problem, one, n)

    return relative, sole, vectors


def half_changes(problem: Problem, one: OneQuery, n: int) -> Array:
    """(o₋ⱼ − o) / 2 for every key of batch n, (H, S, E): −α/(1−α) · (v_j − o) / 2, zero for keys the row does not read.

    Halves, because the difference of two finite numbers may not be one.
    """
    value, output = np.repeat(values(problem, n), problem.sharing, axis=0) / 2, one.output[n] / 2
    mass = one.mass[n]
    # 1 − α from the other keys and the sink, by sums from both ends: nothing is subtracted.
    before = np.concatenate([np.zeros_like(mass[:, :1]), np.cumsum(mass, axis=-1)[:, :-1]], axis=-1)
    after = np.concatenate([np.cumsum(mass[:, ::-1], axis=-1)[:, -2::-1], np.zeros_like(mass[:, :1])], axis=-1)
    others = before + after + one.sink[n][:, None]
    with np.errstate(all="ignore"):
        ratio = np.where(others > 0, mass / np.where(others > 0, others, 1), 0)
        change: Array = -ratio[..., None] * (value - output[:, None, :])
    # The heaviest key leaves rows in which everything else may have underflowed: those are mixed anew.
    for h in range(problem.heads):
        j = int(mass[h].argmax()) if mass.shape[-1] else -1
        if j >= 0 and one.reach[n, h, j]:
            change[h, j] = _without(one, n, h, j, value[h]) - output[h]
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
