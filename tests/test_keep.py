"""Answers worked out in one pass with the output: the same output, the same rows and keys, and answers as defined (F3, F4).

How far the answers may be off is asked in test_answers.py, of both ways; here it is what must be equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import qkv
from qkv import attention, causal, engines, keys, recipes, where, window
from qkv.engines import native, native_call
from support.arrays import DTYPES, bits, cast, same_bits
from support.libraries import library
from support.problems import Problem, problems

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_engine")]

ALL = ("entropy", "received", "top")


@pytest.fixture(autouse=True, scope="module")
def _afresh():
    yield
    recipes.forget()


def numbers(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def compared(call: Any) -> tuple[qkv.Attention, qkv.Attention] | None:
    """(asked afterwards, in one pass), None where both gave the same error."""
    found = []
    for keep in ((), ALL):
        try:
            found.append(call(keep=keep))
        except qkv.QkvError as error:
            found.append((type(error), str(error)))
    if isinstance(found[0], tuple):
        assert found[0] == found[1]
        return None
    return found[0], found[1]


@given(problem=problems())
def test_f3_the_output_does_not_know_what_was_asked(problem: Problem) -> None:
    for words in ({}, {"empty": "zero", "nonfinite": "propagate"}):
        both = compared(
            lambda keep, w=words: attention(
                problem.query, problem.key, problem.value, **{**problem.arguments, **w}, keep=keep
            )
        )
        if both is None:
            continue
        after, kept = both
        assert (kept._problem.kept is not None) == (kept._problem.queries > 0 < kept._problem.keys)
        assert same_bits(after.output, kept.output)
        assert same_bits(after.lse, kept.lse)
        for name in ("entropy", "received", "effective_keys"):
            a, b = (np.asarray(getattr(x, name)()) for x in both)
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            assert (np.isnan(a) == np.isnan(b)).all(), f"D1, D2: {name}"
        for count in (1, 3, 8, 9):
            a, b = after.top(count), kept.top(count)
            assert (np.isnan(a.weights) == np.isnan(b.weights)).all()
            # A sink is part of the whole, which the two ways add up by different functions.
            if "sink" not in problem.arguments:
                assert same_bits(a.weights, b.weights)
                assert (a.keys == b.keys).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharing", [1, 3])
def test_f4_threads_change_no_answer(dtype, sharing):
    q, k, v = (
        numbers(0, 2, 3, 333, 16, dtype=dtype),
        *(numbers(s, 2, 3 // sharing, 401, 16, dtype=dtype) for s in (1, 2)),
    )
    first = None
    for threads in (1, 2, 3, 8, 1):
        with qkv.threads(threads):
            a = attention(q, k, v, mask=causal(align="end") & keys(np.array([390, 401])), empty="zero", keep=ALL)
        found = [a.output, a.entropy(), a.received(), a.top(8).keys, a.top(8).weights]
        first = first or found
        for mine, right in zip(found, first, strict=True):
            assert same_bits(mine, right)


@pytest.mark.parametrize("level", native.levels() if native.available() else ())
def test_c6_ties_at_the_end_of_a_list_take_the_lower_keys(level, monkeypatch):
    """Scores that differ where weights do not: a list by score would name other keys."""
    monkeypatch.setattr(native, "level", lambda: level)
    recipes.forget()  # they hold the level that they were made for
    rng = np.random.default_rng(3)
    q = np.ones((1, 200, 1), np.float32)
    for scores in (
        np.full(300, 2.0),
        np.where(np.arange(300) == 7, 200.0, -rng.permutation(300)),  # all but one weigh nothing
        np.repeat(rng.permutation(100), 3),
        1e-9 * rng.permutation(300) + np.where(np.arange(300) == 5, 8.0, 0),
    ):
        k = scores.reshape(1, 300, 1).astype(np.float32)
        after, kept = (attention(q, k, k, scale=1.0, mask=causal(align="end"), keep=keep) for keep in ((), "top"))
        assert (after.top(8).keys == kept.top(8).keys).all()
        assert same_bits(after.top(8).weights, kept.top(8).weights)


def test_d1_a_row_that_is_lost_leaves_other_keys_their_bits():
    q, k, v = (numbers(s, 1, 2, 150, 8) for s in range(3))
    bias = numbers(5, 150, 150)
    bias[np.random.default_rng(6).random(bias.shape) < 0.2] = -np.inf
    np.fill_diagonal(bias, 0)
    clean = attention(q, k, v, mask=causal(), bias=bias, nonfinite="propagate", keep=ALL)
    q[0, 1, 70] = np.nan
    found = attention(q, k, v, mask=causal(), bias=bias, nonfinite="propagate", keep=ALL)
    read = (np.arange(150) <= 70) & (bias[70] > -np.inf)
    assert (np.isnan(found.received()[0, 1]) == read).all()
    assert same_bits(found.received()[0, 0], clean.received()[0, 0])
    rest = np.arange(150) != 70
    assert same_bits(found.entropy()[0, 1, rest], clean.entropy()[0, 1, rest])
    assert same_bits(found.top(8).weights[0, 1, rest], clean.top(8).weights[0, 1, rest])
    assert (found.top(8).keys[0, 1, 70] == -1).all()
    # What its neighbours give to the keys that it may not read has the bits that it has beside any other row.
    q[0, 1, 70] = 0
    other = attention(q, k, v, mask=causal(), bias=bias, nonfinite="propagate", keep=ALL)
    assert same_bits(other.received()[0, 1, ~read], found.received()[0, 1, ~read])


def test_rules_of_the_caller_and_layouts_and_long_rows():
    q, k, v = numbers(0, 2, 70, 3, 8), *(numbers(s, 2, 5000, 3, 8) for s in (1, 2))
    rule = where(lambda n, h, p, j: (p + j + h) % 3 > 0)
    after, kept = (
        attention(q, k, v, mask=rule & window(3000, None, align="end"), layout="blhd", keep=keep) for keep in ((), ALL)
    )
    assert same_bits(after.output, kept.output)
    assert same_bits(after.top(5).weights, kept.top(5).weights)
    assert (after.top(5).keys == kept.top(5).keys).all()
    for name in ("entropy", "received"):
        # Two sums of one set of numbers: each within its bound (test_answers.py), so together within twice that.
        a, b = (np.asarray(getattr(x, name)(), np.float64) for x in (after, kept))
        assert np.abs(a - b).max() <= 2 * 5000 * np.finfo(np.float32).eps * np.abs(a).max()


def test_what_is_too_long_to_be_held_is_asked_afterwards(monkeypatch):
    x = numbers(0, 2, 40, 8)
    right = attention(x, x, x)
    monkeypatch.setattr(engines, "KEPT_KEYS", 39)
    found = attention(x, x, x, keep=ALL)
    assert found._problem.kept.received is None
    assert same_bits(found.received(), right.received())


def test_f3_a_row_alone_keeps_the_answers_that_it_has_among_others():
    q, k, v = numbers(0, 2, 40, 16), numbers(1, 2, 300, 16), numbers(2, 2, 300, 16)
    whole = attention(q, k, v, keep=("entropy", "top"))
    for row in (0, 7, 39):
        alone = attention(q[:, row : row + 1], k, v, keep=("entropy", "top"))
        assert same_bits(alone.entropy()[:, 0], whole.entropy()[:, row])
        assert same_bits(alone.top(8).weights[:, 0], whole.top(8).weights[:, row])


def test_a_cache_and_tensors_are_asked_in_one_pass_too():
    torch = library("torch")
    q, k, v = (numbers(s, 1, 2, 20, 8) for s in range(3))
    cache = qkv.Cache().append(k, v)
    right = attention(q, k, v, mask=causal(), keep=ALL)
    tensors = attention(*(torch.from_numpy(x) for x in (q, k, v)), mask=causal(), keep=list(ALL))
    for found in (attention(q, cache, mask=causal(), keep=ALL), tensors):
        for name in ("entropy", "received", "effective_keys"):
            assert same_bits(np.asarray(getattr(found, name)()), getattr(right, name)())
    assert type(tensors.entropy()) is torch.Tensor


def test_answers_are_the_callers_own():
    x = numbers(0, 1, 30, 4)
    a = attention(x, x, x, keep=ALL)
    for answer in (a.entropy, a.received, lambda: a.top(8).weights):
        right = bits(answer()).copy()
        answer()[...] = 7
        assert (bits(answer()) == right).all()


@pytest.mark.parametrize("keep", ["lse", ("entropy", "weights"), 8, ("top", 8), None], ids=str)
def test_g2_an_unknown_question_is_refused(keep):
    x = numbers(0, 1, 3, 4)
    with pytest.raises(qkv.ArgumentError, match=r"^keep must name questions out of"):
        attention(x, x, x, keep=keep)
    with pytest.raises(qkv.UnsupportedError, match="keep"):
        qkv.attend(x, x, x, keep="top")


#: What the way from the kernel to the answers could lose, and the check that sees it.
FAULTS = {
    "nothing put": ("_put", lambda right: lambda *_: None),
    "keys counted anew": ("_places", lambda right: lambda call, kept, first: right(call, kept, 0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_answer_is_caught(fault, monkeypatch):
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(native_call, name, wrong(getattr(native_call, name)))
    with pytest.raises(AssertionError):
        test_rules_of_the_caller_and_layouts_and_long_rows()
