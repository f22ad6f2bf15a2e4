"""Parts of the keys as states: streams, pages, layouts, kinds, faults (E1, E2, D2, D3). The laws: test_contract_e_state.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import (
    AlignmentError,
    EmptyRowError,
    NonFiniteError,
    ScoreOverflowError,
    ShapeError,
    attend,
    attention,
    bounds,
    causal,
    keys,
    partial,
    window,
)
from support.arrays import same_bits
from support.tiny import FORBIDDEN, counting, zeros

pytestmark = pytest.mark.usefixtures("engine")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@given(data=st.data())
def test_any_cuts_in_any_order_give_the_whole(data):
    S = data.draw(st.integers(1, 40), "S")
    cuts = sorted(data.draw(st.lists(st.integers(0, S), max_size=5), "cuts"))
    edges = list(itertools.pairwise([0, *cuts, S]))
    order = data.draw(st.permutations(edges), "order")
    q, k, v = random(2, 3, 4), random(1, S, 4, seed=S), random(1, S, 2, seed=S + 1)
    states = [
        partial(q, k[:, a:b], v[:, a:b], first_key=a, total_keys=S, mask=causal(align="end") | keys(min(1, S)))
        for a, b in order
    ]
    done = states[0].empty().merge(*states).finish()
    allowed = (np.arange(3)[:, None] + S - 3 >= np.arange(S)) | (np.arange(S) < 1)
    limit = bounds.bound(q, k, v, "float32", allowed=allowed, merges=len(states))
    assert (abs(done.output - limit.answer.output) <= limit.output).all()
    assert (abs(done.lse - limit.answer.lse) <= limit.lse).all()


def test_one_part_is_the_whole():
    q, k, v = random(2, 4, 5, 8), random(2, 2, 9, 8), random(2, 2, 9, 3)
    whole, done = attention(q, k, v, mask=causal(align="end")), partial(q, k, v, mask=causal(align="end")).finish()
    limit = bounds.bound(q, k, v, "float32", allowed=np.arange(5)[:, None] + 4 >= np.arange(9))
    assert (abs(done.output - whole.output) <= 2 * limit.output).all()
    assert (abs(done.lse - whole.lse) <= 2 * limit.lse).all()


def test_a_stream_of_keys_one_at_a_time():
    """A running mean, in memory for one key."""
    state = None
    for j in range(64):
        part = partial(zeros(1, 2), zeros(1, 2), counting(64)[j : j + 1], first_key=j, total_keys=64)
        state = part if state is None else state.merge(part)
        if j + 1 in (1, 2, 4, 8, 16, 32, 64):  # a mean of powers of two many whole numbers
            limit = bounds.bound(zeros(1, 1, 2), zeros(1, j + 1, 2), counting(j + 1)[None], "float32", merges=j)
            assert abs(state.finish().output.item() - (j + 2) / 2) <= limit.output.item()
    assert state.max.item() == 0
    assert state.sum.item() == 64


@pytest.mark.parametrize(
    ("query", "key", "rows"),
    [((3, 4), (5, 4), (3,)), ((2, 3, 4), (1, 5, 4), (2, 3)), ((2, 2, 6, 3, 4), (2, 2, 3, 5, 4), (2, 2, 6, 3))],
    ids=["two axes", "three axes", "five axes"],
)
def test_shapes(query, key, rows):
    state = partial(random(*query), random(*key), random(*key[:-1], 7))
    assert state.max.shape == state.sum.shape == rows
    assert state.mix.shape == (*rows, 7)
    done = state.finish()
    assert done.output.shape == (*rows, 7)
    assert done.lse.shape == rows
    output, lse = done
    assert output is done.output
    assert lse is done.lse


def test_length_before_heads():
    q, k, v = random(2, 4, 3, 8), random(2, 2, 5, 8), random(2, 2, 5, 7)
    expected = partial(q, k, v).finish()
    state = partial(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="blhd")
    assert same_bits(state.finish().output, expected.output.swapaxes(1, 2))
    assert same_bits(state.finish().lse, expected.lse)  # (B…, H, L) in every layout (A1)
    assert state.max.shape == (2, 4, 3)


def test_a_state_is_in_the_compute_type():
    """F1, C5: halves are merged in float32 and rounded once, at the end."""
    q, k, v = (x.astype(np.float16) for x in (random(3, 4), random(5, 4), random(5, 2)))
    state = partial(q, k, v)
    assert state.max.dtype == state.sum.dtype == state.mix.dtype == np.float32
    assert state.finish().output.dtype == np.float16
    assert state.finish().lse.dtype == np.float32
    assert repr(state) == "<State of float16: () × 1 heads × 3 queries>"


def test_positions_are_those_of_the_whole():
    q, v = zeros(2, 2), counting(6)

    def read(a: int, b: int, mask, **arguments):
        part = partial(q, zeros(b - a, 2), v[a:b], first_key=a, total_keys=6, mask=mask, **arguments)
        return part.finish(empty="zero").output.ravel().tolist()

    assert read(0, 3, causal(align="end")) == [2, 2]
    assert read(3, 6, causal(align="end")) == [4.5, 5]  # keys 3, 4 and 3, 4, 5
    assert read(3, 6, causal(align="start")) == [0, 0]
    assert read(3, 6, window(1, 0, align="end")) == [4.5, 5.5]
    assert read(2, 4, keys(3)) == [3, 3]
    assert read(2, 4, keys(0)) == [0, 0]
    assert read(2, 4, np.array([[True] * 6, [False, False, True, False, True, True]])) == [3.5, 3]
    assert read(2, 4, None, bias=np.where(np.arange(6) == 3, 0, -np.inf).astype(np.float32)) == [4, 4]
    with pytest.raises(AlignmentError):  # two queries among six keys
        read(0, 2, causal())
    with pytest.raises(ShapeError):  # two keys are not the whole
        read(2, 4, np.ones((2, 2), bool))


def test_a_part_without_keys_for_a_row_is_no_error_until_the_end():
    state = partial(zeros(2, 2), zeros(2, 2), counting(2), first_key=2, total_keys=4, mask=causal(align=1))
    assert np.isneginf(state.max).tolist() == [True, False]
    with pytest.raises(EmptyRowError) as caught:
        state.finish()
    assert (caught.value.index, caught.value.count) == ((0, 0), 1)
    assert state.finish(empty="zero").output.tolist() == [[0], [1]]
    assert state.finish(sink=[0.0]).lse.tolist()[0] == 0


@pytest.mark.parametrize("bad", FORBIDDEN[:3])
def test_d2_a_nan_in_a_part(bad):
    q, k, v = random(1, 3, 4), random(1, 6, 4), random(1, 6, 2)
    v[0, 4, 1] = bad

    def part(a: int, b: int, **arguments):
        return partial(q, k[:, a:b], v[:, a:b], first_key=a, total_keys=6, mask=causal(align="end"), **arguments)

    with pytest.raises(NonFiniteError) as caught:
        part(3, 6)
    assert (caught.value.argument, caught.value.index) == (
        "value",
        (0, 1, 1),
    )  # as it was passed: key 4 is key 1 of the part
    whole = part(0, 3).merge(part(3, 6, nonfinite="propagate"))
    with pytest.raises(NonFiniteError, match="a part had a NaN or infinity") as caught:
        whole.finish()
    assert caught.value.index == (0, 1)  # the first row that reads key 4
    done = whole.finish(nonfinite="propagate")
    assert np.isnan(done.output).all(-1).tolist() == [[False, True, True]]
    assert np.isnan(done.lse).tolist() == [[False, True, True]]
    v[0, 4, 1] = 0
    clean = part(0, 3).merge(part(3, 6)).finish()
    assert same_bits(done.output[:, 0], clean.output[:, 0])  # every other row is untouched, bit for bit


def test_d3_overflow_in_a_part():
    q = np.full((1, 1), 1e30, np.float32)
    high = partial(q, q, counting(1), total_keys=2)
    low = partial(q, -q, counting(2)[1:], first_key=1, total_keys=2)
    some = partial(q, zeros(1, 1), counting(2)[1:], first_key=1, total_keys=2)
    with pytest.raises(ScoreOverflowError):
        high.merge(some).finish()
    assert np.isnan(high.merge(some).finish(nonfinite="propagate").output).all()
    assert low.merge(some).finish().output.item() == 2  # −inf beside a finite score is weight 0
    for alone in (low, low.merge(low.empty()), low.merge(low)):
        with pytest.raises(ScoreOverflowError):
            alone.finish()
        assert np.isnan(alone.finish(nonfinite="propagate").lse).all()


def test_d1_what_a_part_may_not_read_does_not_matter():
    q, k, v = random(1, 3, 4), random(1, 6, 4), random(1, 6, 2)
    expected = partial(q, k, v, first_key=2, total_keys=9, mask=keys(6))
    k[:, 4:] = v[:, 4:] = np.nan
    state = partial(q, k, v, first_key=2, total_keys=9, mask=keys(6))
    for name in ("max", "sum", "mix"):
        assert same_bits(getattr(state, name), getattr(expected, name))


def test_pages_of_a_cache_are_parts():
    q, k, v = zeros(2, 1, 2), zeros(1, 8, 2), counting(8)[None]
    pages = [partial(q, k[:, a : a + 2], v[:, a : a + 2], first_key=a, total_keys=8) for a in (4, 0, 6, 2)]
    assert pages[0].merge(*pages[1:]).finish().output.ravel().tolist() == [4.5, 4.5]
    assert attend(q, k, v).ravel().tolist() == [4.5, 4.5]
