"""The cache: grows, trims, knows its lengths and where its queries stand (B6, B7, D1, F3)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qkv import (
    AlignmentError,
    Cache,
    DTypeError,
    EmptyRowError,
    ShapeError,
    attend,
    attention,
    causal,
    first,
    keys,
    window,
)
from support.arrays import DTYPES, cast, same_bits
from support.tiny import counting, zeros

pytestmark = pytest.mark.usefixtures("engine")


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def counted(*lengths: int, T: int = 0) -> Cache:
    """A cache of sequences of those lengths, equal scores, values 1, 2, 3, …; the slack holds NaN."""
    T = T or max(lengths)
    key, value = (
        np.full((len(lengths), 1, T, 2), np.nan, np.float32),
        np.full((len(lengths), 1, T, 1), np.nan, np.float32),
    )
    for b, n in enumerate(lengths):
        key[b, 0, :n], value[b, 0, :n] = 0, counting(n)
    return Cache().append(key, value, lengths=list(lengths))


def read(cache: Cache, L: int = 1, **arguments) -> list:
    B = cache.lengths.size
    return attend(zeros(B, 1, L, 2), cache, **{"mask": causal(), **arguments})[:, 0, :, 0].tolist()


def test_a_new_cache_is_empty():
    cache = Cache()
    assert len(cache) == 0
    assert cache.nbytes == 0
    assert cache.lengths.tolist() == 0
    assert cache  # it is a thing, not a count
    assert repr(cache) == "Cache()"
    with pytest.raises(ShapeError, match="append keys and values first"):
        cache.view()


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_what_is_appended_is_held_in_order(batch):
    k, v = random(*batch, 2, 9, 4), random(*batch, 2, 9, 3)
    cache = Cache()
    for a, b in ((0, 4), (4, 5), (5, 5), (5, 9)):
        assert cache.append(k[..., a:b, :], v[..., a:b, :]) is cache
    key, value = cache.view()
    assert same_bits(key, k)
    assert same_bits(value, v)
    assert cache.lengths.shape == batch
    assert (cache.lengths == 9).all()
    assert len(cache) == 9


def test_two_axes_are_one_head():
    k, v = random(5, 4), random(5, 3)
    cache = Cache().append(k, v)
    q = random(2, 4)
    assert same_bits(attend(q, cache, mask=causal()), attend(q, k, v, mask=causal(align="end")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_equals_the_whole(dtype):
    """F3 for the native engine bit for bit; both are the same rows of the same keys (B6)."""
    k, v, q = (random(2, h, 20, 4, dtype=dtype, seed=s) for s, h in enumerate((2, 2, 4)))
    cache = Cache()
    for i in range(20):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        out = attend(q[:, :, i : i + 1], cache, mask=causal() & window(6, 0))
        seen = slice(0, i + 1)
        expected = attend(q[:, :, i : i + 1], k[:, :, seen], v[:, :, seen], mask=causal(align="end") & window(6, 0))
        assert out.dtype == q.dtype
        assert same_bits(out, expected)


def test_the_view_is_no_copy_and_the_input_is_copied():
    k, v = random(1, 2, 3, 4), random(1, 2, 3, 4)
    cache = Cache().append(k, v)
    assert np.shares_memory(cache.view()[0], cache.view()[0])
    before = cache.view()[0].copy()
    k[...] = 7
    assert same_bits(cache.view()[0], before)


def test_growing_copies_seldom():
    """A token is copied a constant number of times on average: memory moves as often as the length doubles."""
    cache, moves, at = Cache(), 0, None
    steps = 2000
    for _ in range(steps):
        cache.append(zeros(1, 1, 4), zeros(1, 1, 4))
        address = cache.view()[0].ctypes.data
        moves += address != at
        at = address
    assert moves <= 1 + math.ceil(math.log2(steps))
    assert cache.nbytes <= 2 * 2 * steps * 4 * 4  # at most twice what is needed, for keys and values


def test_growing_keeps_every_bit():
    k, v = random(2, 1, 300, 3), random(2, 1, 300, 2)
    cache = Cache()
    for i in range(0, 300, 7):
        n = min(7, 300 - i)
        cache.append(k[:, :, i : i + n], v[:, :, i : i + n])
    assert same_bits(cache.view()[0], k)
    assert same_bits(cache.view()[1], v)


def test_sequences_have_lengths_of_their_own():
    cache = counted(2, 5)
    assert cache.lengths.tolist() == [2, 5]
    assert len(cache) == 5
    assert read(cache) == [[1.5], [3]]
    cache.append(zeros(2, 1, 1, 2), np.full((2, 1, 1, 1), 9, np.float32))
    assert cache.lengths.tolist() == [3, 6]
    assert read(cache) == [[4], [4]]  # (1 + 2 + 9) / 3 and (1 + … + 5 + 9) / 6
    cache.append(zeros(2, 1, 2, 2), np.full((2, 1, 2, 1), 12, np.float32), lengths=[0, 2])
    assert cache.lengths.tolist() == [3, 8]
    assert read(cache) == [[4], [6]]


def test_lengths_are_a_copy():
    cache = counted(2, 5)
    cache.lengths[...] = 0
    assert cache.lengths.tolist() == [2, 5]


def test_b6_the_queries_of_a_ragged_prompt_stand_where_they_were_appended():
    """As many queries as tokens appended last are those tokens, each at its own place, whatever the lengths."""
    cache = counted(2, 4)
    rows = read(cache, L=4, empty="zero")
    assert rows[1] == [1, 1.5, 2, 2.5]
    assert rows[0] == [1, 1.5, 1.5, 1.5]  # two rows of padding: no keys past the length (B7)
    cache.append(zeros(2, 1, 2, 2), np.full((2, 1, 2, 1), 6, np.float32))
    assert read(cache, L=2) == [[3, 3.75], [3.2000000476837158, 3.6666667461395264]]


def test_b6_fewer_queries_are_the_newest_rows():
    cache = counted(3, 5)
    assert read(cache, L=2) == [[1.5, 2], [2.5, 3]]
    assert read(cache, L=1) == [[2], [3]]
    assert read(cache, L=1, mask=causal(align=0)) == [[1], [1]]  # told otherwise
    assert read(cache, L=1, mask=causal(align=[1, 2])) == [[1.5], [2]]


def test_b6_the_end_is_that_of_each_sequence():
    """n_b is the length in the cache, or the shorter one of a conjoined `keys`."""
    assert read(counted(3, 5), L=2, mask=causal(align="end")) == [[1.5, 2], [2.5, 3]]
    assert read(counted(3, 5), L=2, mask=causal(align="end") & keys([3, 4])) == [[1.5, 2], [2, 2.5]]


def test_b6_more_queries_than_keys_are_refused_as_empty():
    with pytest.raises(EmptyRowError):
        read(counted(3), L=5)
    assert read(counted(3), L=5, empty="zero") == [[0, 0, 1, 1.5, 2]]


def test_without_a_rule_every_key_of_the_sequence_is_read():
    assert read(counted(2, 5), mask=None) == [[1.5], [3]]
    assert read(counted(2, 5), mask=first(1)) == [[1], [1]]
    assert read(counted(2, 5), mask=keys([1, 5])) == [[1], [3]]


def test_keys_and_values_may_be_passed_apart():
    cache = counted(2, 5)
    q = zeros(2, 1, 1, 2)
    assert same_bits(attend(q, cache.key, cache.value, mask=causal()), attend(q, cache, mask=causal()))
    assert cache.key.shape == (2, 1, 5, 2)
    assert cache.value.shape == (2, 1, 5, 1)
    assert np.asarray(cache.key).shape == (2, 1, 5, 2)
    assert same_bits(np.asarray(cache.value), cache.view()[1])
    assert repr(cache.key) == "<cache.key (2, 1, 5, 2)>"
    k, v = cache.view()
    with pytest.raises(AlignmentError):  # plain arrays do not know where the queries stand
        attend(q, k, v, mask=causal())


def test_trim_forgets_the_newest():
    cache = counted(4, 6)
    assert cache.trim([3, 6]) is cache
    assert cache.lengths.tolist() == [3, 6]
    assert read(cache) == [[2], [3.5]]
    cache.trim(2)
    assert cache.lengths.tolist() == [2, 2]
    assert read(cache) == [[1.5], [1.5]]
    cache.append(zeros(2, 1, 1, 2), np.full((2, 1, 1, 1), 6, np.float32))
    assert read(cache) == [[3], [3]]  # what was trimmed is written over
    assert read(cache, L=2) == [[1.5, 3], [1.5, 3]]


def test_b6_after_a_trim_the_queries_are_the_newest_rows():
    """Also where there are as many as were appended last: some of those are gone."""
    cache = counted(3).append(zeros(1, 1, 2, 2), np.array([[[[4], [5]]]], np.float32))
    assert read(cache, L=2) == [[2.5, 3]]
    assert read(cache.trim(4), L=2) == [[2, 2.5]]


def test_trim_to_nothing():
    cache = counted(3).trim(0)
    assert len(cache) == 0
    with pytest.raises(EmptyRowError):
        read(cache)
    assert read(cache, empty="zero") == [[0]]
    cache.append(zeros(1, 1, 2, 2), np.array([[[[5], [7]]]], np.float32))
    assert read(cache) == [[6]]


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (zeros(2, 1, 1, 3), zeros(2, 1, 1, 1), ShapeError),
        (zeros(2, 1, 1, 2), zeros(2, 1, 1, 5), ShapeError),
        (zeros(2, 1, 1, 2), zeros(2, 1, 2, 1), ShapeError),
        (zeros(3, 1, 1, 2), zeros(3, 1, 1, 1), ShapeError),
        (zeros(2, 2, 1, 2), zeros(2, 2, 1, 1), ShapeError),
        (zeros(1, 1, 2), zeros(1, 1, 1), ShapeError),
        (np.zeros((2, 1, 1, 2)), np.zeros((2, 1, 1, 1)), DTypeError),
        (zeros(2, 1, 1, 2), np.zeros((2, 1, 1, 1)), DTypeError),
        ([[1.0]], [[1.0]], DTypeError),
    ],
)
def test_a_refused_append_changes_nothing(key, value, error):
    cache = counted(2, 5)
    with pytest.raises(error):
        cache.append(key, value)
    with pytest.raises(ValueError, match="lengths must be within 0…T = 1"):
        cache.append(zeros(2, 1, 1, 2), zeros(2, 1, 1, 1), lengths=[0, 2])
    assert cache.lengths.tolist() == [2, 5]
    assert read(cache) == [[1.5], [3]]
    assert read(cache, L=5, empty="zero")[1] == [1, 1.5, 2, 2.5, 3]


def test_a_refused_first_append_leaves_it_new():
    cache = Cache()
    with pytest.raises(ValueError, match="lengths"):
        cache.append(zeros(2, 1, 1, 2), zeros(2, 1, 1, 1), lengths=[0, 2])
    cache.append(random(1, 3, 4), random(1, 3, 4))  # of other sizes altogether
    assert len(cache) == 3


def test_it_says_what_it_holds():
    cache = Cache().append(random(2, 4, 100, 8), random(2, 4, 100, 8))
    assert repr(cache) == "<Cache float32 (2, 4) × 100 keys × 8, room for 100>"
    assert cache.nbytes == 2 * 2 * 4 * 100 * 8 * 4


def test_questions_take_a_cache():
    a = attention(zeros(2, 1, 1, 2), counted(2, 5), mask=causal())
    assert a.weights(0)[0, 0, 0].tolist() == [0.5, 0.5, 0, 0, 0]
    assert a.top(3).keys[0, 0].tolist() == [[0, 1, -1]]
    assert a.received().shape == (2, 1, 5)
