"""Contributions and influence of chosen rows: each row as if it were asked alone, whatever mask, rule or engine.

How far they may be off is asked in test_answers.py and test_native_shares.py; here it is what must be equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import questions
from support.arrays import cast, same_bits
from support.problems import Problem, problems

NAMES = ("weight", "norm", "share", "relative", "sole", "vectors")


def numbers(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def answers(a: qkv.Attention, rows: Any, head: int | None = None) -> dict[str, np.ndarray]:
    found = vars(a.contributions(rows, head=head)) | vars(a.influence(rows, head=head, vectors=True))
    return {name: np.asarray(found[name]) for name in NAMES}


def alone(a: qkv.Attention, rows: list[int], before: int) -> dict[str, np.ndarray]:
    """The same, asked row by row; `before`: axes before that of the rows."""
    single = [answers(a, row) for row in rows]
    return {name: np.stack([x[name] for x in single], axis=before) for name in NAMES}


def loosened(problem: Problem) -> qkv.Attention:
    options = {**problem.arguments, "empty": "zero", "nonfinite": "propagate"}
    return qkv.attention(problem.query, problem.key, problem.value, **options)


@given(problem=problems(lengths=(1, 2, 3, 5, 17, 33)), data=st.data())
@pytest.mark.usefixtures("native_engine")
def test_f4_rows_asked_together_are_those_rows(problem: Problem, data: Any) -> None:
    """Repeated rows, in any order, with NaN, empty rows and numbers at the edge among them."""
    a, count = loosened(problem), problem.dense.shape[-2]
    rows = data.draw(st.lists(st.integers(-count, count - 1), max_size=6))
    together = answers(a, rows)
    before = np.ndim(a.lse) - 1
    for name, x in together.items():
        assert x.shape[before] == len(rows), name
    for name, x in alone(a, rows, before).items() if rows else ():
        assert same_bits(together[name], x), name


@given(problem=problems(lengths=(1, 2, 3, 5, 17, 33), magnitudes=("tame", "peaked", "values at the edge")))
@pytest.mark.usefixtures("native_engine")
def test_d1_d2_nan_stands_where_it_belongs(problem: Problem) -> None:
    """Pairs that are forbidden are 0 whatever else; those of a row that reads a NaN are NaN, as is what divides by its output."""
    a, rows = loosened(problem), range(problem.dense.shape[-2])
    found = {name: problem.rows(x) for name, x in answers(a, rows).items()}
    reach = problem.dense if problem.bias is None else problem.dense & ~np.isneginf(problem.bias)
    lost = np.isnan(problem.rows(np.asarray(a.lse)))[..., None]
    unread = ~np.broadcast_to(reach, found["weight"].shape)
    for name in ("weight", "norm", "vectors"):
        x = found[name]
        assert (x[unread] == 0).all(), name
        assert np.isnan(x[lost & ~unread]).all(), name
    assert not np.isnan(found["weight"][~lost & ~unread]).any()
    for name in ("share", "relative"):
        assert np.isnan(found[name][np.broadcast_to(lost, unread.shape)]).all(), name
        blank = np.isnan(found[name]).all(-1, keepdims=True)
        assert (found[name][unread & ~blank] == 0).all(), name
    only = (~unread).sum(-1, keepdims=True) == 1
    assert (found["sole"] == (~unread & only)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_engines_say_the_same(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qkv._native")
    monkeypatch.setenv("QKV_ENGINE", "native")
    q, k, v = numbers(0, 2, 4, 30, 8), numbers(1, 2, 2, 50, 8), numbers(2, 2, 2, 50, 5)
    q[:, 1] *= 8  # some keys have more than half of their row
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    a = qkv.attention(q, k, v, mask=qkv.causal(align="end"), sink=[0.0, 1.0, -3.0, 50.0])
    mine = answers(a, range(30))
    with monkeypatch.context() as patch:
        patch.setattr(questions.native_answers, "ready", lambda problem, plan: False)
        other = answers(a, range(30))
    assert (mine["weight"] > 0.5).any()
    unit = float(np.finfo(dtype).eps)
    for name in NAMES:
        # Both are right within bounds that count a rounding for every key and column; scores are up to 32.
        size = abs(np.where(np.isfinite(other[name]), other[name], 0)).max()
        np.testing.assert_allclose(
            mine[name].astype(float), other[name].astype(float), rtol=0, atol=64 * 50 * unit * size
        )


def test_rows_are_named_as_anywhere_else(engine: str) -> None:
    a = qkv.attention(*(numbers(n, 3, 5, 4) for n in range(3)))
    one = a.contributions(1)
    assert one.share.shape == (3, 5)
    for rows in ([1, 4], (1, 4), range(1, 5, 3), np.array([1, -1]), iter([1, -1])):
        found = a.contributions(rows)
        assert found.share.shape == (3, 2, 5)
        assert same_bits(found.share[:, 0], one.share)
    for number in (np.int64(1), np.array(1), -4):
        assert same_bits(a.contributions(number).share, one.share)
    assert a.contributions([2], head=1).share.shape == (1, 5)
    assert a.influence([], vectors=True).vectors.shape == (3, 0, 5, 4)
    flat = qkv.attention(*(numbers(n, 5, 4) for n in range(3)))
    assert flat.influence([0, 1], vectors=True).vectors.shape == (2, 5, 4)
    blhd = qkv.attention(*(numbers(n, 2, 5, 3, 4) for n in range(3)), layout="blhd")
    assert blhd.contributions([0, 1]).norm.shape == (2, 3, 2, 5)


def cases() -> dict[str, Any]:
    """Masks that go to the engine in every way there is, two sequences of 40 queries and keys, two heads on one."""
    rng = np.random.default_rng(0)
    odd = qkv.where(lambda batch, head, row, key: (row + key + head + batch) % 3 != 0)
    pairs = rng.random((2, 2, 40, 40)) < 0.6
    pairs[..., 0] = True
    bias = rng.standard_normal((40, 40)).astype(np.float32)
    return {
        "causal": {"mask": qkv.causal()},
        "rule": {"mask": odd | qkv.first(1)},
        "pairs": {"mask": qkv.allow(pairs)},
        "pairs of one head": {"mask": pairs[:, :1]},
        "lengths": {"mask": qkv.keys([7, 40])},
        "documents": {"mask": qkv.segments(np.arange(40) // 9, np.arange(40) // 9) & qkv.causal()},
        "alibi": {"bias": qkv.alibi([0.5, 0.25]), "mask": qkv.causal()},
        "alibi and rule": {"bias": qkv.alibi([0.5, 0.25]), "mask": odd | qkv.first(1)},
        "bias": {"bias": bias, "softcap": 5.0, "sink": [0.0, 3.0]},
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_f4_scattered_rows_under_every_kind_of_mask(name: str, threads: int, native_engine: str) -> None:
    q, k, v = numbers(0, 2, 2, 40, 16), numbers(1, 2, 1, 40, 16), numbers(2, 2, 1, 40, 16)
    rows = [39, 0, 17, 18, 19, 3, 3]
    with qkv.threads(threads):
        a = qkv.attention(q, k, v, **cases()[name])
        together = answers(a, rows)
        for row, x in alone(a, rows, 2).items():
            assert same_bits(together[row], x), row
        allowed = np.asarray(a.weights(rows)) > 0
        assert ((together["weight"] > 0) == allowed).all()


def test_f3_rows_against_a_cache_are_those_of_the_whole(native_engine: str) -> None:
    q, k, v = numbers(0, 4, 40, 16), numbers(1, 2, 40, 16), numbers(2, 2, 40, 16)
    whole = answers(qkv.attention(q, k, v, mask=qkv.causal()), [38, 39])
    cache = qkv.Cache().append(k[None], v[None])
    found = answers(qkv.attention(q[None, :, 38:], cache, mask=qkv.causal()), [0, 1])
    for name, x in found.items():
        assert same_bits(x[0], whole[name]), name
