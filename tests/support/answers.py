"""What an `Attention` answers, against the definition's weights: each check takes the answers, or one that is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

import qkv
from qkv import bounds
from qkv.floats import FLOATS, widen

from .arrays import stored, wide
from .checks import within
from .problems import Problem


class Right:
    """The definition's weights and outputs with their bounds, in the type weights are computed in.

    A row of weights is the output for values that are unit vectors, so the bounds of an output are theirs.
    """

    def __init__(self, problem: Problem, *, with_sink: bool = True, forbidden: int | None = None) -> None:
        kind = FLOATS[problem.dtype]
        self.unit = float(np.finfo(kind.compute).eps) / 2
        q, k, self.value = (widen(stored(x), problem.dtype) for x in problem.operands())
        keys = k.shape[-2]
        allowed = problem.dense.copy()
        if forbidden is not None:
            allowed[..., forbidden] = False
        a = problem.arguments
        self.options: dict[str, Any] = {
            "allowed": allowed,
            "bias": problem.bias,
            "bias_roundings": problem.bias_roundings,
            "scale": a.get("scale"),
            "softcap": a.get("softcap"),
            "sink": a.get("sink") if with_sink else None,
        }
        self.operands, self.dtype = (q, k), kind.compute.name
        if keys:
            unit_vectors = np.broadcast_to(np.eye(keys, dtype=k.dtype), (*k.shape[:-1], keys))
            limits = bounds.bound(q, k, unit_vectors, self.dtype, **self.options)
            self.weight, self.weight_bound, self.reach = limits.answer.output, limits.output, limits.answer.reach
        else:
            self.weight = self.weight_bound = np.zeros(problem.dense.shape)
            self.reach = problem.dense

    def mixture(self) -> bounds.Bounds:
        return bounds.bound(*self.operands, self.value, self.dtype, **self.options)

    def rounded(self, count: Any) -> Any:
        return count * self.unit / (1 - count * self.unit)


def held(x: Any, dtype: Any) -> Any:
    """Numbers beyond the type's largest as infinities: a length may be one where no component is."""
    return np.where(abs(x) > np.finfo(dtype).max, np.copysign(np.inf, x), x)


def weights(problem: Problem, found: qkv.Attention, right: Right) -> None:
    rows = problem.dense.shape[-2]
    given = problem.rows(np.asarray(found.weights(range(rows))))
    within(wide(given), right.weight, right.weight_bound, "C1: weight")
    assert (given[~right.reach] == 0).all(), "C1: a forbidden pair has a weight"
    assert (given >= 0).all()


def top(problem: Problem, found: qkv.Attention, right: Right, count: int) -> None:
    keys, weights = (problem.rows(np.asarray(x)) for x in found.top(count))
    allowed = right.reach.sum(-1)
    there = np.arange(count) < allowed[..., None]
    assert (np.where(there, keys >= 0, keys == -1)).all(), "C2: padded with -1 where a row has fewer keys"
    assert (weights[~there] == 0).all()
    largest = np.sort(np.where(right.reach, right.weight, -1), axis=-1)[..., ::-1][..., :count]
    largest = np.pad(np.maximum(largest, 0), [(0, 0)] * (largest.ndim - 1) + [(0, count - largest.shape[-1])])
    slack = right.weight_bound.max(-1, initial=0)[..., None]
    # The k-th largest of numbers moves by no more than the numbers do.
    within(wide(weights), largest, slack, "C6: k-th largest weight")
    if right.weight.shape[-1]:
        chosen = np.take_along_axis(right.weight, np.maximum(keys, 0), axis=-1)
        within(wide(weights), np.where(there, chosen, 0), slack, "C6: weight of the key named")
    falling = weights[..., :-1] > weights[..., 1:]
    tied = (weights[..., :-1] == weights[..., 1:]) & (keys[..., :-1] < keys[..., 1:])
    assert (falling | tied | ~there[..., 1:]).all(), "C6: order of weight, ties by the lower index"


def received(problem: Problem, found: qkv.Attention, right: Right) -> None:
    mass = problem.rows(np.asarray(found.received()))
    total = right.weight.sum(-2)
    bound = right.weight_bound.sum(-2) + right.rounded(right.weight.shape[-2] + 2) * total
    within(wide(mass), total, bound, "received")


def spread(problem: Problem, found: qkv.Attention, right: Right, whole: Right | None = None) -> None:
    """Entropy, effective keys and the sink's share; `right` is without the sink, `whole` with it where there is one."""
    p, off, keys = right.weight, right.weight_bound, right.reach.sum(-1)

    def term(x: Any) -> Any:
        x = np.clip(x, 0, None)
        return -x * np.log(np.where(x > 0, x, 1))

    # -x ln x is concave with its top at 1/e, so over an interval it is furthest from its middle at an end or there.
    low, high, top = np.maximum(p - off, 0), p + off, np.exp(type(p.flat[0])(-1)) if p.size else np.exp(-1)
    ends = np.maximum(abs(term(low) - term(p)), abs(term(high) - term(p)))
    moved = np.where((low < top) & (top < high), np.maximum(ends, term(top) - term(p)), ends)
    entropy = term(p).sum(-1)
    bound = moved.sum(-1) + right.rounded(keys + 2 * bounds.ULPS + 3) * (term(p) + moved).sum(-1)
    within(wide(problem.rows(np.asarray(found.entropy()))), entropy, bound, "C4: entropy")
    effective = np.where(keys > 0, np.exp(entropy), 0)
    bound = effective * (np.expm1(bound) + right.rounded(2 * bounds.ULPS + 1) * np.exp(bound))
    within(wide(problem.rows(np.asarray(found.effective_keys()))), effective, bound, "C4: effective keys")

    share = problem.rows(np.asarray(found.sink_share()))
    if whole is None:
        assert (share == 0).all()
        return
    bound = whole.weight_bound.sum(-1) + whole.rounded(keys + 4)
    within(wide(share), 1 - whole.weight.sum(-1), bound, "C4: sink share")


def contributions(problem: Problem, found: qkv.Attention, right: Right, i: int) -> None:
    """Of row i, of a problem with keys."""
    heads, keys = problem.dense.shape[-3], problem.dense.shape[-1]
    weight, norm, share = (problem.rows(np.asarray(x)) for x in vars(found.contributions(i)).values())
    within(wide(weight), right.weight[..., i, :], right.weight_bound[..., i, :], "weight")
    # The rest follows from the weights given, whose own rounding is what a product may be off by.
    value = np.repeat(right.value.astype(np.longdouble), heads // right.value.shape[-3], axis=-3)
    w, width = weight.astype(np.longdouble), value.shape[-1]
    size = np.sqrt((value**2).sum(-1))
    tiny = np.finfo(weight.dtype).smallest_subnormal * (1 + size)
    within(norm.astype(np.longdouble), held(w * size, norm.dtype), right.rounded(width + 6) * w * size + tiny, "norm")
    output = (w[..., None] * value).sum(-2)
    length = (output**2).sum(-1)[..., None]
    along = (value * output[..., None, :]).sum(-1)
    # Rounding of the weights turns the output by at most u Σ w|v|; a share feels that twice, once squared in ‖o‖².
    turn = right.rounded(2 * keys + width + 8) * (w * size).sum(-1)[..., None] + tiny.sum(-1)[..., None]
    radius = np.sqrt(length)
    clear = radius > 4 * turn
    with np.errstate(all="ignore"):
        exact = np.where(clear, w * along / length, share)
        slack = (
            np.where(clear, w * size * turn * 4 / length + (right.rounded(width + 8) * w * size + tiny) / radius, 0)
            + tiny
        )
    within(share.astype(np.longdouble), exact, slack, "share")
    total = np.where(clear[..., 0], share.astype(np.longdouble).sum(-1), 1)
    within(total, np.ones_like(total), slack.sum(-1) + 4 * right.unit, "shares add up to 1")


def influence(problem: Problem, found: qkv.Attention, right: Right, i: int, forbidden: list[int]) -> None:
    """Of row i, of a problem with keys, each of which is forbidden in turn."""
    told = found.influence(i, vectors=True)
    relative, sole, vectors = (problem.rows(np.asarray(x)) for x in (told.relative, told.sole, told.vectors))
    with_all = right.mixture()
    output, off = with_all.answer.output[..., i, :], with_all.output[..., i, :]
    only = right.reach[..., i, :] & (right.reach[..., i, :].sum(-1, keepdims=True) == 1)
    assert (sole == only).all(), "an only key is sole, and no other is"
    for j in forbidden:
        without = Right(problem, forbidden=j).mixture()
        change = without.answer.output[..., i, :] - output
        bound = off + without.output[..., i, :]
        bound = bound * (1 + right.unit) + right.rounded(2) * abs(change)
        within(wide(vectors[..., j, :]), held(change, vectors.dtype), bound, f"influence of key {j}")
        size, reach = np.sqrt((output**2).sum(-1)), np.sqrt((off**2).sum(-1))
        moved, slack = np.sqrt((change**2).sum(-1)), np.sqrt((bound**2).sum(-1))
        clear = (size > 2 * reach) & (size > 0)
        safe = np.where(clear, size - reach, 1)
        exact = np.where(clear, moved / np.where(clear, size, 1), relative[..., j])
        limit = np.where(clear, (slack + exact * reach) / safe + right.rounded(output.shape[-1] + 4) * exact, 0)
        within(wide(relative[..., j]), held(exact, relative.dtype), limit, f"relative influence of key {j}")
