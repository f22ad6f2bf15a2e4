"""The bounds themselves (F2): they hold for any order of additions in the type, and say nothing beyond the hull."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import bounds
from qkv.floats import FLOATS
from support.arrays import cast, stored
from support.checks import within
from support.problems import Problem, problems


def twin(problem: Problem, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The definition for one head in float32 throughout, every sum from left to right over keys in the order given."""
    q, k, v = (np.asarray(x, np.float32) for x in (problem.query[0], problem.key[0], problem.value[0]))
    one = np.float32
    q, k, v = q * one(q.shape[-1] ** -0.5), k[order], v[order]
    output, lse = np.zeros((len(q), v.shape[-1]), np.float32), np.zeros(len(q), np.float32)
    for i, row in enumerate(q):
        score = np.zeros(len(k), np.float32)
        for d in range(len(row)):
            score = score + row[d] * k[:, d]
        top, total, mix = -one(np.inf), one(0), np.zeros(v.shape[-1], np.float32)
        for s, value in zip(score, v, strict=True):  # one key a step: as many rescales as there can be
            higher = max(top, s)
            carried, weight = np.exp(top - higher), np.exp(s - higher)
            total, mix, top = total * carried + weight, mix * carried + weight * value, higher
        output[i], lse[i] = mix / total, top + np.log(total)
    return output, lse


@given(
    seed=st.integers(0, 2**32 - 1),
    keys=st.sampled_from([1, 2, 16, 33]),
    width=st.sampled_from([1, 8, 65]),
    sort=st.sampled_from([1, -1, 0]),
)
def test_f2_any_order_of_additions_is_within_the_bound(seed: int, keys: int, width: int, sort: int) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((1, n, w)).astype(np.float32) for n, w in ((3, width), (keys, width), (keys, 4)))
    score = (q[0, 0] * k[0]).sum(-1)
    order = np.argsort(score)[::sort] if sort else rng.permutation(keys)
    case = Problem(q, k, v, "float32", {}, np.ones((1, 3, keys), bool), None, 0, None, None)  # type: ignore[arg-type]
    limits = bounds.bound(q, k, v, "float32", merges=keys)
    output, lse = twin(case, order)
    within(output[None].astype(np.float64), limits.answer.output, limits.output, "output")
    within(lse[None].astype(np.float64), limits.answer.lse, limits.lse, "lse")


@given(problem=problems(edges=False))
def test_f2_no_bound_reaches_beyond_the_hull_of_the_values(problem: Problem) -> None:
    limits = problem.bounds()
    if not problem.dense.size:
        return
    kind = FLOATS[problem.dtype]
    _, _, v = problem.operands()
    v = np.repeat(np.asarray(v, np.longdouble), problem.dense.shape[-3] // v.shape[-3], axis=-3)
    size = np.where(np.isfinite(v), abs(v), 0)
    reach = limits.answer.reach[..., None]
    largest = np.where(reach, size[..., None, :, :], 0).max(-2)
    count = reach.sum(-2)
    # The hull's width, and rounding on top: of numerator and denominator at each key, and into the type.
    rounding = 2 * (6 * count + 24) * np.finfo(kind.compute).eps
    tiny = np.longdouble(kind.smallest) * (count + 4) * (size.sum(-2)[..., None, :] + count + 4)
    assert (limits.output <= 2 * largest * (1 + rounding) * (1 + kind.unit) + tiny).all()


@given(problem=problems(edges=False))
def test_d3_rows_that_must_overflow_may(problem: Problem) -> None:
    limits = problem.bounds()
    assert not (limits.must_overflow & ~limits.may_overflow).any()
    assert not (limits.may_overflow & ~limits.answer.reach.any(-1)).any(), "a row without keys has no score"


@pytest.mark.parametrize(
    ("dtype", "coarser"),
    [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float16"), ("float64", "float32")],
)
def test_f2_a_coarser_type_would_be_noticed(dtype: str, coarser: str) -> None:
    q, k, v = (cast(np.full((1, n, 1), x), dtype) for n, x in ((1, 0.0), (64, 1.0), (64, 3.0)))
    limits = bounds.bound(*(stored(x) for x in (q, k, v)), dtype)
    assert limits.answer.output.item() == 3
    # The neighbours of 3 are 4u away: even one unit in the last place of the coarser type lies outside.
    assert limits.output.item() < 4 * FLOATS[coarser].unit


def test_c2_an_empty_row_has_to_be_zero_exactly() -> None:
    x = np.ones((1, 2, 4), np.float32)
    limits = bounds.bound(x, x, x, "float32", allowed=[[True, False], [False, False]])
    assert (limits.output[0, 1] == 0).all()
    assert limits.lse[0, 1] == 0
    assert np.isneginf(limits.answer.lse[0, 1])
