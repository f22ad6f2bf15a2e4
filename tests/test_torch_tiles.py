"""The plan in torch operations keeps the contract that NumPy's tiles keep; here on the CPU, where nothing else would choose it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import bounds
from qkv.contract import canonical
from qkv.floats import narrow
from qkv.plan import device_plan
from qkv.pooled import edges
from support import checks
from support.arrays import stored, wide
from support.checks import within
from support.problems import Problem, problems
from support.surveys import surveyed

torch = pytest.importorskip("torch")

from qkv.engines.torch_tiles import Tiles  # noqa: E402


def tensor(array: np.ndarray, dtype: str, batches: int) -> Any:
    """Storage form (B…, H, L, D) as a tensor (N, H, L, D)."""
    flat = np.array(array, order="C").reshape(batches, *array.shape[-3:])
    return torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(flat)


def tiles(query: Any, key: Any, value: Any, **arguments: Any) -> Tiles:
    p = canonical(query, key, value, **{"empty": "zero", "nonfinite": "propagate", **arguments})
    return Tiles(p, device_plan(p), *(tensor(x, p.dtype.name, p.batches) for x in (p.query, p.key, p.value)))


def by_torch(query: Any, key: Any, value: Any, **arguments: Any) -> tuple[Any, Any]:
    """The arguments of `qkv.attend`, and (output, log-sum-exp) in the caller's layout."""
    asked = tiles(query, key, value, **arguments)
    p = asked.problem
    output, lse = asked.answer()
    given, into = p.layout.kind.empty(p.layout.spelled((*p.batch, *output.shape[1:])), p.dtype.name)
    p.layout.canonical(into)[...] = narrow(output, p.dtype.name).reshape(*p.batch, *output.shape[1:])
    return p.layout.kind.wrap(given, p.dtype.name), p.layout.restored(lse.reshape(*p.batch, *lse.shape[1:]), trailing=0)


@pytest.mark.parametrize("pairs", [1, 1 << 26])
@given(problem=problems())
def test_f2_every_row_is_within_its_bound(pairs: int, problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["qkv.plan"], "DEVICE_PAIRS", pairs)
        patch.setattr(sys.modules["qkv.plan"], "DEVICE_KEYS", 7 if pairs == 1 else 2048)
        checks.definition(by_torch, problem)


@given(problem=problems(edges=False), seed=st.integers(0, 2**32 - 1))
def test_d1_what_no_pair_may_read_has_no_influence(problem: Problem, seed: int) -> None:
    checks.isolation(by_torch, problem, np.random.default_rng(seed))


@given(problem=problems(edges=False))
def test_f4_the_same_call_gives_the_same_bits(problem: Problem) -> None:
    checks.repeatable(by_torch, problem)


@given(problem=problems(edges=False, planted=False, magnitudes=("tame", "small"), strides=False))
def test_c1_questions_follow_from_the_weights_as_defined(problem: Problem) -> None:
    asked = tiles(problem.query, problem.key, problem.value, **problem.arguments)
    p = asked.problem
    if not (p.batches and p.queries and p.keys):
        return
    a, unit = problem.arguments, np.eye(p.keys)
    q, k, v = (stored(x) for x in problem.operands())
    limits = bounds.bound(
        q,
        k,
        narrow(np.broadcast_to(unit, (*v.shape[:-1], p.keys)).astype(p.dtype.compute), problem.dtype),
        problem.dtype,
        allowed=problem.dense,
        bias=problem.bias,
        bias_roundings=problem.bias_roundings,
        scale=a.get("scale"),
        softcap=a.get("softcap"),
        sink=a.get("sink"),
    )
    shape = (p.batches, p.heads, p.queries, p.keys)
    weight, off = (np.asarray(x, np.float64).reshape(shape) for x in (limits.answer.weights, limits.output))
    rows = np.arange(p.queries)
    found = asked.chosen(rows, np.arange(p.heads), None)
    within(found, weight, off, "weights")
    assert (found[weight == 0] == 0).all()
    cells = min(p.queries, 3), min(p.keys, 2)
    seen = asked.survey(np.arange(p.queries)[None], (edges(p.queries, cells[0]), edges(p.keys, cells[1])))
    surveyed(seen, weight, off, rows, cells)
    mass, eps = weight.sum(axis=-1, keepdims=True), np.finfo(p.dtype.compute).eps
    if p.sink is not None:
        reach = limits.answer.reach.reshape(shape).any(axis=-1)
        within(asked.sink_share(), 1 - mass[..., 0], np.where(reach, 2 * off.sum(axis=-1), 0) + 4 * eps, "sink")
    keys, listed = asked.top(3)
    there = np.arange(3) < limits.answer.reach.reshape(shape).sum(axis=-1)[..., None]
    assert ((keys >= 0) == there).all()
    largest = -np.sort(-weight, axis=-1)[..., :3]
    largest = np.pad(largest, [(0, 0)] * 3 + [(0, 3 - largest.shape[-1])])
    within(np.where(there, listed, 0), np.where(there, largest, 0), off.max(axis=-1, keepdims=True), "top")


def test_c6_ties_take_the_lower_key() -> None:
    x = np.zeros((1, 3, 4))
    keys, weights = tiles(x, x, x, mask=qkv.causal()).top(2)
    assert keys[0, 0].tolist() == [[0, -1], [0, 1], [0, 1]]
    assert weights[0, 0, 0].tolist() == [1, 0]


def test_d2_a_lost_row_spoils_its_answers_and_the_keys_it_may_read_alone() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 4, 40, 8)).astype(np.float32)
    q[0, 1, 20] = np.nan
    v[0, 2, 30] = np.inf
    asked = tiles(q, k, v, mask=qkv.causal(), sink=[0.0, 1.0, -3.0, 50.0])
    theirs = qkv.attention(q, k, v, mask=qkv.causal(), sink=[0.0, 1.0, -3.0, 50.0], nonfinite="propagate")
    seen = theirs.survey(40, 40)
    for mine, other in zip(asked.survey(np.arange(40)[None], (edges(40, 40),) * 2), vars(seen).values(), strict=True):
        assert (np.isnan(mine) == np.isnan(other)).all()
    assert (np.isnan(asked.sink_share()) == np.isnan(theirs.sink_share())).all()
    assert (np.isnan(asked.top(3)[1]) == np.isnan(theirs.top(3).weights)).all()
    assert wide(asked.answer()[1]).shape == theirs.lse.shape


def test_attend_itself_stays_on_the_cpu() -> None:
    x = torch.zeros(1, 2, 3, 4, device="meta")
    with pytest.raises(qkv.UnsupportedError, match="query"):
        qkv.attend(x, x, x)
