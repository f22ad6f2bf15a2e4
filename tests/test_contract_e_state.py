"""Contract E: attention over a union of key sets is the merge of the states of the parts. More cases: test_partial.py."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import (
    ArgumentError,
    UnsupportedError,
    alibi,
    attention,
    bounds,
    causal,
    keys,
    partial,
    segments,
    where,
    window,
)
from support.arrays import DTYPES, cast, same_bits, stored
from support.tiny import counting, zeros

pytestmark = pytest.mark.usefixtures("engine")


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def parts_of(q, k, v, cuts, **arguments):
    """States of the keys between the cuts."""
    S = k.shape[-2]
    return [
        partial(q, k[..., a:b, :], v[..., a:b, :], first_key=a, total_keys=S, **arguments)
        for a, b in itertools.pairwise([0, *cuts, S])
    ]


def merged(states):
    return states[0].merge(*states[1:])


def test_e1_the_example():
    """Keys with values 1, 2 and keys with values 3, 4, all of score 0."""
    q, k, v = zeros(1, 2), zeros(4, 2), counting(4)
    left, right = parts_of(q, k, v, [2])
    for state, mix in ((left, 1.5), (right, 3.5)):
        assert (state.max.item(), state.sum.item(), state.mix.item()) == (0, 2, mix)
    whole = left.merge(right)
    assert (whole.max.item(), whole.sum.item(), whole.mix.item()) == (0, 4, 2.5)
    assert whole.finish().output.item() == 2.5
    assert round(whole.finish().lse.item(), 3) == 1.386


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [[1], [5], [3, 4, 11], [2, 2, 2], [0], [12]], ids=str)
def test_e1_the_merge_of_the_parts_is_the_whole(cuts, dtype):
    q, k, v = (random(2, h, n, 8, dtype=dtype) for h, n in ((4, 5), (2, 12), (2, 12)))
    done = merged(parts_of(q, k, v, cuts, mask=causal(align="end"))).finish()
    allowed = np.arange(5)[:, None] + 7 >= np.arange(12)
    limit = bounds.bound(stored(q), stored(k), stored(v), dtype, allowed=allowed, merges=len(cuts))
    assert done.output.dtype == q.dtype
    assert (abs(done.output.astype(np.longdouble) - limit.answer.output) <= limit.output).all()
    assert (abs(done.lse - limit.answer.lse) <= limit.lse).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"mask": causal()},
        {"mask": causal(align=2)},
        {"mask": window(2, 1)},
        {"mask": ~causal(align=-1)},
        {"mask": keys(7)},
        {"mask": keys(2, 6)},
        {"mask": keys(np.arange(8) % 3 == 0)},
        {"mask": segments(np.array([0, 0, 1, 1, 0, 2, 2, 1]))},
        {"mask": where(lambda b, h, p, j: (p + j) % 3 != 0)},
        {"mask": np.random.default_rng(0).random((2, 8, 8)) < 0.6},
        {"bias": np.where(np.tri(8, k=2), np.float32(0), np.float32(-np.inf))},
        {"bias": alibi([2.0, 1.0]), "scale": 0.0},
    ],
    ids=str,
)
def test_e1_masks_biases_and_positions_speak_of_the_whole(arguments):
    """Equal scores and values 1 … 8, so that each row is exact; with alibi, within the bound of the whole."""
    q, k, v = zeros(2, 8, 2), zeros(2, 8, 2), np.stack([counting(8)] * 2)
    whole = attention(q, k, v, empty="zero", **arguments)
    for cuts in ([3], [1, 5], [4, 4]):
        done = merged(parts_of(q, k, v, cuts, **arguments)).finish(empty="zero")
        if isinstance(arguments.get("bias"), qkv.Alibi):
            i = np.arange(8)
            bias = -np.array([2.0, 1.0])[:, None, None] * abs(i[:, None] - i)
            limit = bounds.bound(q, k, v, "float32", bias=bias, bias_roundings=3, scale=0.0, merges=len(cuts))
            assert (abs(done.output - limit.answer.output) <= limit.output).all()
            continue
        # The mean of integers is exact in the parts when their counts are powers of two, else within the bound.
        allowed = np.asarray(whole.weights(range(8))) > 0
        limit = bounds.bound(q, k, v, "float32", allowed=allowed, merges=len(cuts))
        assert (abs(done.output - whole.output) <= 2 * limit.output).all()
        assert np.array_equal(np.isneginf(done.lse), np.isneginf(whole.lse))
        assert np.array_equal(done.output == 0, whole.output == 0)


def test_e1_empty_is_the_identity_exactly():
    q, k, v = random(2, 5, 4), random(2, 9, 4), random(2, 9, 3)
    state = partial(q, k, v, mask=causal(align="start"))
    empty = state.empty()
    for one in (state.merge(empty), empty.merge(state), state.merge(empty, empty), empty.merge(empty, state)):
        for name in ("max", "sum", "mix"):
            assert same_bits(getattr(one, name), getattr(state, name))
        assert same_bits(one.finish().output, state.finish().output)
        assert same_bits(one.finish().lse, state.finish().lse)


def test_e1_a_part_without_allowed_keys_is_the_identity_as_well():
    q, k, v = random(1, 4, 4), random(1, 8, 4), random(1, 8, 3)
    left, right = parts_of(q, k, v, [4], mask=causal(align="start"))  # nobody reads the right part
    assert (right.sum == 0).all()
    assert np.isneginf(right.max).all()
    assert same_bits(left.merge(right).finish().output, left.finish().output)


def test_e1_two_empties_merge_to_an_empty():
    state = partial(zeros(2, 3), zeros(4, 3), zeros(4, 1)).empty()
    both = state.merge(state)
    assert np.isneginf(both.max).all()
    assert (both.sum == 0).all()
    assert (both.mix == 0).all()
    done = both.finish(empty="zero")
    assert done.output.tolist() == [[0], [0]]
    assert done.lse.tolist() == [-np.inf, -np.inf]
    with pytest.raises(qkv.EmptyRowError):
        both.finish()


def test_e1_the_merge_is_associative_and_commutative():
    q, k, v = random(2, 3, 4), random(2, 30, 4), random(2, 30, 2)
    limit = bounds.bound(q, k, v, "float32", merges=4)
    states = parts_of(q, k, v, [7, 8, 20])
    a, b, c, d = states
    for one in (
        a.merge(b).merge(c).merge(d),
        a.merge(b.merge(c.merge(d))),
        d.merge(b).merge(a.merge(c)),
        c.merge(d, a, b),
    ):
        assert (abs(one.finish().output - limit.answer.output) <= limit.output).all()
        assert (abs(one.finish().lse - limit.answer.lse) <= limit.lse).all()
    assert same_bits(a.merge(b).mix, b.merge(a).mix)


def test_e1_a_merge_changes_neither_part():
    left, right = parts_of(zeros(1, 2), zeros(4, 2), counting(4), [2])
    before = left.mix.copy(), right.mix.copy()
    left.merge(right)
    assert same_bits(left.mix, before[0])
    assert same_bits(right.mix, before[1])


def test_e1_a_state_never_holds_the_sink():
    q, k, v = zeros(1, 2), zeros(1, 2), np.array([[8]], np.float32)
    with pytest.raises(UnsupportedError, match=r"sink belongs to the whole.*finish\(sink=…\)"):
        partial(q, k, v, sink=[0])
    state = partial(q, k, v)
    assert state.finish().output.item() == 8
    for _ in range(2):  # finishing leaves the state as it was, so the sink is added once each time
        done = state.finish(sink=[0])
        assert done.output.item() == 4
        assert done.lse.item() == attention(q, k, v, sink=[0]).lse.item()
    assert state.sum.item() == 1
    assert state.empty().finish(sink=[3.0]).lse.item() == 3


def test_e1_the_sink_is_added_once_whatever_the_number_of_parts():
    q, k, v = zeros(2, 1, 2), zeros(2, 8, 2), np.stack([counting(8)] * 2)
    whole = attention(q, k, v, sink=[0.0, 1.0])
    limit = bounds.bound(q, k, v, "float32", sink=[0.0, 1.0], merges=3)
    done = merged(parts_of(q, k, v, [2, 3, 6])).finish(sink=[0.0, 1.0])
    assert (abs(done.output - whole.output) <= 2 * limit.output).all()
    assert (abs(done.lse - whole.lse) <= 2 * limit.lse).all()


def test_e1_a_part_lies_within_the_whole():
    q, k, v = zeros(1, 2), zeros(3, 2), counting(3)
    assert partial(q, k, v, first_key=2, mask=causal(align=3)).finish().output.item() == 1.5  # total: 2 + 3
    with pytest.raises(ArgumentError, match="total_keys must be at least first_key"):
        partial(q, k, v, first_key=2, total_keys=4)
    with pytest.raises(ArgumentError, match="first_key must not be negative"):
        partial(q, k, v, first_key=-1)


def test_e2_long_rows_are_states_that_are_merged():
    """E2: past the plan's split a row is several states; the answer is that of parts merged by hand."""
    S = 5000
    q, k, v = random(1, 2, 2), random(1, S, 2), random(1, S, 1)
    limit = bounds.bound(q, k, v, "float32", merges=3)
    whole, done = attention(q, k, v), merged(parts_of(q, k, v, [2048, 4096])).finish()
    for output, lse in ((whole.output, whole.lse), (done.output, done.lse)):
        assert (abs(output - limit.answer.output) <= limit.output).all()
        assert (abs(lse - limit.answer.lse) <= limit.lse).all()


def test_e2_there_is_one_merge():
    """Whoever combines states imports the one function; nobody else rescales by exp(max - max)."""
    root = Path(qkv.__file__).parent
    defined, used = [], set()
    for file in (*root.glob("*.py"), *(root / "engines").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "merge" in node.name:
                defined.append((file.name, node.name))
            if isinstance(node, ast.ImportFrom) and any(alias.name == "merge_rows" for alias in node.names):
                used.add(file.name)
    assert sorted(defined) == [("partial.py", "merge"), ("state.py", "merge_rows")]
    assert used == {"partial.py", "numpy_tiles.py"}
