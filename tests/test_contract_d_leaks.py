"""Contract D: what is forbidden has no influence, what is allowed and not finite is said, overflow is never a number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qkv import (
    AlignmentError,
    Cache,
    EmptyRowError,
    NonFiniteError,
    ScoreOverflowError,
    ShapeError,
    attend,
    attention,
    causal,
    engines,
    first,
    keys,
    partial,
    segments,
    where,
    window,
)
from qkv.contract import canonical
from qkv.diagnose import raise_faults
from support.arrays import numpy_dtype, same_bits
from support.tiny import FORBIDDEN, counting, zeros

pytestmark = pytest.mark.usefixtures("engine")


def random(*shape: int, seed: int = 0, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def both(a, b) -> bool:
    return same_bits(a.output, b.output) and same_bits(a.lse, b.lse)


# D1: forbidden pairs do not exist.

L, S = 6, 70
SPOILED = 66  # a key that no row reads; a multiple of 3, so that "keys with holes" hides it


def array_mask() -> np.ndarray:
    allowed = np.random.default_rng(0).random((L, S)) < 0.5
    allowed[:, 0], allowed[:, SPOILED] = True, False
    return allowed


HIDING = {
    "array": {"mask": array_mask()},
    "allow in an expression": {"mask": array_mask() & first(S)},
    "bias": {"bias": np.where(array_mask(), np.float32(0.5), np.float32(-np.inf))},
    "keys": {"mask": keys(SPOILED)},
    "keys with holes": {"mask": keys(np.arange(S) % 3 != 0)},
    "start": {"mask": keys(SPOILED + 1, S)},
    "future": {"mask": causal(align="start")},
    "past": {"mask": window(0, None, align=SPOILED + 1) & window(None, None) | first(1)},
    "segments": {"mask": segments(np.zeros(L, int), (np.arange(S) == SPOILED).astype(int))},
    "where": {"mask": where(lambda b, h, p, j: j != SPOILED, align="start")},
    "not": {"mask": ~keys(SPOILED, SPOILED + 1)},
    "or": {"mask": first(3) | keys(SPOILED + 1, S)},
    "with a sink": {"mask": keys(SPOILED), "sink": [0.5, 0.5]},
    "with softcap": {"mask": keys(SPOILED), "softcap": 2.0},
}


@pytest.mark.parametrize("bad", FORBIDDEN, ids=str)
@pytest.mark.parametrize("how", HIDING)
def test_d1_a_forbidden_key_has_no_influence_on_any_bit(how, bad):
    q, k, v = random(2, L, 8), random(2, S, 8, seed=1), random(2, S, 3, seed=2)
    expected = attention(q, k, v, **HIDING[how])
    k, v = k.copy(), v.copy()
    for spoil in ((k,), (v,), (k, v)):
        for array in spoil:
            array[:, SPOILED] = bad
        assert both(attention(q, k, v, **HIDING[how]), expected)
        assert both(attention(q, k, v, **HIDING[how], nonfinite="propagate"), expected)


@pytest.mark.parametrize("bad", FORBIDDEN, ids=str)
@pytest.mark.parametrize("part", ["key", "value"])
def test_d1_the_row_beside_it_may_read_it(bad, part):
    """Rows of one tile: rows from 3 on read key 3, the rows before do not."""
    x = {"query": random(2, 6, 4), "key": random(2, 6, 4, seed=1), "value": random(2, 6, 3, seed=2)}
    expected = attention(**x, mask=causal())
    spoiled = {**x, part: x[part].copy()}
    spoiled[part][:, 3] = bad
    a = attention(**spoiled, mask=causal(), nonfinite="propagate")
    assert same_bits(a.output[:, :3], expected.output[:, :3])
    assert same_bits(a.lse[:, :3], expected.lse[:, :3])
    assert not same_bits(a.output[:, 3:], expected.output[:, 3:])


@pytest.mark.parametrize("part", ["key", "value"])
def test_d1_another_head_may_read_it(part):
    """Query heads of one group, in one tile: head 0 may read key 2, head 1 may not."""
    x = {"query": random(2, 5, 4), "key": random(1, 5, 4, seed=1), "value": random(1, 5, 3, seed=2)}
    mask = np.ones((2, 5, 5), bool)
    mask[1, :, 2] = False
    expected = attention(**x, mask=mask)
    spoiled = {**x, part: x[part].copy()}
    spoiled[part][:, 2] = np.nan
    a = attention(**spoiled, mask=mask, nonfinite="propagate")
    assert same_bits(a.output[1], expected.output[1])
    assert np.isnan(a.output[0]).all()


@pytest.mark.parametrize("bad", FORBIDDEN, ids=str)
def test_d1_future_rows_of_the_query_have_no_influence(bad):
    q, k, v = random(1, 6, 4), random(1, 6, 4, seed=1), random(1, 6, 3, seed=2)
    expected = attention(q, k, v, mask=causal())
    q[:, 4:] = bad
    a = attention(q, k, v, mask=causal(), nonfinite="propagate")
    assert same_bits(a.output[:, :4], expected.output[:, :4])


@pytest.mark.parametrize("bad", FORBIDDEN, ids=str)
def test_d1_slack_of_a_cache_has_no_influence(bad):
    k, v = random(2, 1, 9, 4), random(2, 1, 9, 3)
    q = random(2, 2, 1, 4)
    expected = attention(q[:1], k[:1, :, :5], v[:1, :, :5])
    k[0, :, 5:] = v[0, :, 5:] = bad
    cache = Cache().append(k, v, lengths=[5, 9])
    a = attention(q, cache, mask=causal())
    assert same_bits(a.output[0], expected.output[0])
    cache.trim([3, 9])
    held, _ = cache.view()
    assert held.shape[-2] == 9
    held[0, :, 3:] = bad  # what is trimmed is slack again
    b = attention(q, cache, mask=~first(0))
    assert same_bits(b.output[0], attention(q[:1], k[:1, :, :3], v[:1, :, :3]).output[0])


def test_d1_memory_that_nothing_ever_wrote():
    k, v = np.empty((1, 64, 4), np.float32), np.empty((1, 64, 3), np.float32)
    k[:, :2], v[:, :2] = 0, [[1, 2, 3], [3, 4, 5]]
    k.view(np.uint32)[:, 2:], v.view(np.uint32)[:, 2:] = 0xFFFFFFFF, 0x7F800001  # a quiet and a signalling NaN
    assert attend(zeros(1, 1, 4), k, v, mask=keys(2)).tolist() == [[[2, 3, 4]]]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_d1_in_every_type(name, bad):
    dtype = numpy_dtype(name)
    q, k, v = np.zeros((2, 4), dtype), np.zeros((3, 4), dtype), counting(3).astype(dtype)
    k[2], v[2] = bad, bad
    assert attend(q, k, v, mask=np.array([[True, True, False]])).ravel().tolist() == [1.5, 1.5]


def test_d1_questions_do_not_see_it_either():
    q, k, v = random(1, 2, 4), random(1, 4, 4, seed=1), random(1, 4, 3, seed=2)
    plain = attention(q, k, v, mask=keys(3))
    k[:, 3] = v[:, 3] = np.nan
    a = attention(q, k, v, mask=keys(3))
    for ask in (
        lambda a: a.weights(range(2)),
        lambda a: a.top(4).weights,
        lambda a: a.received(),
        lambda a: a.entropy(),
        lambda a: a.contributions(1).norm,
        lambda a: a.contributions(1).share,
        lambda a: a.influence(1, vectors=True).vectors,
    ):
        assert same_bits(ask(a), ask(plain))


# D2: allowed and not finite.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_d2_the_error_names_the_array_and_the_index_as_passed(name, bad, layout):
    arrays = {"query": random(2, 4, 3, 5), "key": random(2, 2, 6, 5), "value": random(2, 2, 6, 7)}
    heads = 4 if name == "query" else 2
    at = (1, heads - 1, 2, 3)
    arrays[name][at] = bad
    arrays[name][(1, heads - 1, 2, 4)] = bad
    if layout == "blhd":
        arrays = {n: x.swapaxes(1, 2) for n, x in arrays.items()}
        at = (1, 2, heads - 1, 3)
    with pytest.raises(NonFiniteError) as caught:
        attend(**arrays, layout=layout)
    assert (caught.value.argument, caught.value.index) == (name, at)
    assert str(caught.value).startswith(f"{name}[{', '.join(map(str, at))}] must be finite")


def test_d2_first_means_first_in_the_layout_that_was_passed():
    q, k = zeros(1, 2, 3, 2), zeros(1, 2, 3, 2)
    v = zeros(1, 2, 3, 2)
    v[0, 0, 2, 0] = v[0, 1, 1, 0] = np.nan  # (head, key): (0, 2) and (1, 1)
    with pytest.raises(NonFiniteError) as caught:
        attend(q, k, v)
    assert caught.value.index == (0, 0, 2, 0)
    with pytest.raises(NonFiniteError) as caught:
        attend(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="blhd")
    assert caught.value.index == (0, 1, 1, 0)  # length stands first there


def test_d2_index_has_as_many_numbers_as_the_array_has_axes():
    v = counting(3)
    v[1] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        attend(zeros(2, 2), zeros(3, 2), v)
    assert caught.value.index == (1, 0)


def test_d2_an_unread_nan_before_it_is_not_named():
    v = counting(4)
    v[0] = v[3] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        attend(zeros(2, 2), zeros(4, 2), v, mask=keys(1, 4))
    assert caught.value.index == (3, 0)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_d2_any_number_of_threads_names_the_same(threads, engine):
    q, k, v = random(4, 40, 8), random(4, 40, 8), random(4, 40, 8)
    for h, j in ((3, 0), (2, 39), (1, 5)):
        v[h, j, 2] = np.nan
    k[3, 7, 1] = np.inf
    problem = canonical(q, k, v)
    plan = engines.choose(problem, engine, threads)
    result = engines.run(problem, plan, np.empty((4, 40, 8), np.float32))
    with pytest.raises(NonFiniteError) as caught:
        raise_faults(problem, result.status, result.wrong)
    assert (caught.value.argument, caught.value.index) == ("key", (3, 7, 1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_d2_the_weight_does_not_matter(bad):
    """Also one of weight 0 by underflow."""
    key = np.array([[0], [-1e6]], np.float32)
    value = np.array([[1], [bad]], np.float32)
    assert attention(np.ones((1, 1), np.float32), key, counting(2)).weights(0).tolist() == [[1, 0]]
    with pytest.raises(NonFiniteError, match=r"value\[1, 0\]"):
        attend(np.ones((1, 1), np.float32), key, value)
    assert np.isnan(attend(np.ones((1, 1), np.float32), key, value, nonfinite="propagate")).all()


def test_d2_an_infinite_key_whose_score_is_minus_infinity():
    key = np.array([[0], [-np.inf]], np.float32)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(NonFiniteError, match=r"key\[1, 0\]"):
        attend(one, key, counting(2))
    a = attention(one, key, counting(2), nonfinite="propagate")
    assert np.isnan(a.output).all()
    assert np.isnan(a.lse).all()
    with pytest.raises(NonFiniteError, match=r"key\[1, 0\]"):  # also where the product with it is 0 · inf
        attend(np.zeros((1, 1), np.float32), key, counting(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_d2_propagate_makes_exactly_the_rows_that_reach_it_nan(name, bad):
    arrays = {"query": random(2, 4, 9, 5), "key": random(2, 2, 9, 5), "value": random(2, 2, 9, 7)}
    expected = attention(**arrays, mask=causal())
    arrays[name][1, 1, 4, 2] = bad
    wrong = np.zeros((2, 4, 9), bool)
    if name == "query":
        wrong[1, 1, 4] = True
    else:
        wrong[1, 2:, 4:] = True  # query heads 2 and 3 read key head 1
    a = attention(**arrays, mask=causal(), nonfinite="propagate")
    assert np.array_equal(np.isnan(a.output).all(-1), wrong)
    assert np.array_equal(np.isnan(a.output).any(-1), wrong)  # the whole row
    assert np.array_equal(np.isnan(a.lse), wrong)
    assert same_bits(a.output[~wrong], expected.output[~wrong])
    assert same_bits(a.lse[~wrong], expected.lse[~wrong])


def test_d2_a_nan_query_with_no_allowed_key_is_an_empty_row():
    q = zeros(2, 2)
    q[1] = np.nan
    mask = np.array([[True, True], [False, False]])
    with pytest.raises(EmptyRowError):
        attend(q, zeros(2, 2), counting(2), mask=mask)
    a = attention(q, zeros(2, 2), counting(2), mask=mask, empty="zero")
    assert a.output.tolist() == [[1.5], [0]]
    assert a.lse[1] == -np.inf
    sunk = attention(q, zeros(2, 2), counting(2), mask=mask, sink=[3.0])
    assert sunk.lse[1] == 3


@pytest.mark.parametrize("nonfinite", ["nan", "ignore", None, False])
def test_d2_there_is_no_third_way(nonfinite):
    with pytest.raises(ValueError, match="nonfinite must be one of 'raise', 'propagate'"):
        attend(zeros(1, 1), zeros(1, 1), zeros(1, 1), nonfinite=nonfinite)


def test_d2_errors_come_in_one_order():
    """Shape, alignment, empty, query, key, value: each is told once those before it are mended."""
    q, k, v = zeros(1, 2, 4), zeros(1, 5, 4), zeros(1, 5, 3)
    q[0, 1, 0] = k[0, 2, 0] = v[0, 1, 0] = np.nan
    nothing = np.zeros((2, 5), bool)
    rule = causal() & nothing
    with pytest.raises(ShapeError):
        attend(q, k[..., :3], v, mask=rule)
    with pytest.raises(ShapeError):
        attend(q, k, v, mask=causal() & nothing[:, :4])
    with pytest.raises(AlignmentError):
        attend(q, k, v, mask=rule)
    with pytest.raises(EmptyRowError):
        attend(q, k, v, mask=causal(align="end") & nothing)
    half = np.array([[True] * 5, [False] * 5])
    with pytest.raises(EmptyRowError):  # one row that is empty, beside one that reads a NaN
        attend(q, k, v, mask=half)
    for name, index, array in (("query", (0, 1, 0), q), ("key", (0, 2, 0), k), ("value", (0, 1, 0), v)):
        with pytest.raises(NonFiniteError) as caught:
            attend(q, k, v)
        assert (caught.value.argument, caught.value.index) == (name, index)
        array[index] = 0
    assert attend(q, k, v).shape == (1, 2, 3)


def test_d2_non_finite_comes_before_overflow():
    q, k, v = np.full((2, 1), 1e30, np.float32), np.full((2, 1), 1e30, np.float32), counting(2)
    v[1] = np.nan
    with pytest.raises(NonFiniteError):
        attend(q, k, v)
    v[1] = 1
    with pytest.raises(ScoreOverflowError):
        attend(q, k, v)


# D3: overflow.


def one_row(query, key, value=None, dtype=np.float32, **arguments):
    query, key = (np.asarray(x, dtype).reshape(-1, np.asarray(query).size) for x in (query, key))
    value = counting(len(key)) if value is None else np.asarray(value)
    return attention(query, key, value.astype(dtype), **{"scale": 1, **arguments})


@pytest.mark.parametrize("softcap", [None, 1.0])
@pytest.mark.parametrize("key", [[[1e30]], [[0.0], [1e30]]], ids=["all", "one of two"])
def test_d3_a_score_that_overflows_is_an_error(key, softcap):
    """Also where a softcap would make a number of it."""
    with pytest.raises(ScoreOverflowError) as caught:
        one_row([1e30], key, softcap=softcap)
    assert caught.value.index == (0, 0)
    a = one_row([1e30], key, softcap=softcap, nonfinite="propagate")
    assert np.isnan(a.output).all()
    assert np.isnan(a.lse).all()


def test_d3_a_scale_that_overflows_is_an_error():
    with pytest.raises(ScoreOverflowError):
        one_row([1e30], [[1.0]], scale=1e30)


def test_d3_a_bias_that_overflows_a_score_is_an_error():
    high = np.array([[3e38]], np.float32)
    with pytest.raises(ScoreOverflowError):
        one_row([3e38], [[1.0]], bias=high)


def test_d3_opposite_infinities_are_an_error_or_the_right_number():
    """A partial sum that overflows is refused in the engine's order, or never met; it is never a wrong number."""
    query, key = [3e38, 3e38, 3e38, 3e38], [[1, 1, -1, -1], [0, 0, 0, 0]]
    try:
        a = one_row(query, key)
    except ScoreOverflowError:
        return
    assert a.output.item() == 1.5
    assert a.lse.item() == one_row([0.0], [[0.0], [0.0]]).lse.item()


@pytest.mark.parametrize("terms", [[1, -2, 1], [-1, -1, 1], [1, 1, -2], [-2, 1, 1]])
def test_d3_a_partial_sum_that_falls_below_is_an_error_or_the_right_number(terms):
    """The exact score is 0 or -3e38: as good as the other key's, or far below it."""
    exact = 3e38 * sum(terms)
    try:
        a = one_row([3e38] * 3, [terms, [0, 0, 0]])
    except ScoreOverflowError:
        return
    assert a.output.item() == (1.5 if exact == 0 else 2)


def test_d3_minus_infinity_beside_a_finite_score_is_weight_zero():
    a = one_row([1e30], [[0.0], [-1e30], [0.0]])
    assert a.output.item() == 2  # the mean of 1 and 3
    assert a.weights(0).tolist() == [[0.5, 0, 0.5]]
    assert one_row([1e30], [[-1e30], [-1.0]]).lse.item() == np.float32(-1e30)


def test_d3_minus_infinity_everywhere_is_an_error():
    for key in ([[-1e30]], [[-1e30], [-2e30]]):
        with pytest.raises(ScoreOverflowError):
            one_row([1e30], key)
        assert np.isnan(one_row([1e30], key, nonfinite="propagate").output).all()
    mask = np.array([[True, False]])
    with pytest.raises(ScoreOverflowError):  # a finite score that is forbidden does not help
        one_row([1e30], [[-1e30], [0.0]], mask=mask)


def test_d3_minus_infinity_under_a_softcap_is_minus_the_cap():
    a = one_row([1e30], [[-1e30]], softcap=2.0)
    assert a.lse.item() == -2
    assert a.output.item() == 1


def test_d3_only_the_rows_that_overflow_are_wrong():
    q, k = np.array([[1.0], [1e30], [2.0]], np.float32), np.array([[1e30], [0.0]], np.float32)
    a = attention(q, k, counting(2), scale=1, nonfinite="propagate", mask=np.array([[True, True]] * 3))
    assert np.isnan(a.output).ravel().tolist() == [False, True, False]
    assert a.output[[0, 2]].ravel().tolist() == [1, 1]
    with pytest.raises(ScoreOverflowError) as caught:
        attend(q, k, counting(2), scale=1)
    assert caught.value.index == (0, 1)


def test_d3_an_overflow_behind_a_mask_does_not_exist():
    assert one_row([1e30], [[1.0], [1e30]], mask=np.array([[True, False]])).output.item() == 1
    assert one_row([1e30], [[1.0], [1e30]], bias=np.array([[0, -np.inf]], np.float32)).output.item() == 1


@pytest.mark.parametrize(
    ("name", "large"), [("float32", 2e38), ("float64", 1.5e308), ("float16", 65504.0), ("bfloat16", 2.0**127)]
)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [2, 3, 4, 1000, 5000])
def test_d3_a_finite_mixture_is_never_infinite(name, large, sign, count):
    dtype = numpy_dtype(name)
    value = np.full((count, 1), sign * large).astype(dtype)
    out = attend(np.zeros((1, 1), dtype), np.zeros((count, 1), dtype), value)
    if count in (2, 4):
        assert same_bits(out, value[:1])  # four equal keys with v = 2e38 give 2e38
    else:
        assert np.isfinite(out.astype(np.float64)).all()
        assert (np.sign(out.astype(np.float64)) == sign).all()


def test_d3_largest_numbers_of_both_signs_cancel():
    top = np.finfo(np.float32).max
    assert one_row([0.0], [[0.0]] * 4, value=np.array([[top], [top], [-top], [-top]])).output.item() == 0
    assert one_row([0.0], [[0.0]] * 4, value=np.array([[top], [-top], [top], [-top]])).output.item() == 0


def test_d3_merged_parts_of_the_largest_numbers_stay_finite():
    top = np.full((4, 1), np.finfo(np.float32).max, np.float32)
    q, k = zeros(1, 1), zeros(4, 1)
    parts = [partial(q, k[a : a + 2], top[a : a + 2], first_key=a, total_keys=4) for a in (0, 2)]
    assert parts[0].merge(parts[1]).finish().output.item() == top[0, 0]


def test_d3_underflow_is_not_overflow():
    a = one_row([1.0], [[0.0], [-200.0], [-1e30]])
    assert a.output.item() == 1
    assert a.weights(0).tolist() == [[1, 0, 0]]
    tiny = np.float32(1e-30)
    assert one_row([tiny], [[tiny], [tiny]]).output.item() == 1.5  # a product that underflows to 0


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_d3_half_types_accumulate_in_float32(name):
    """q = k = 300 at D = 64: a score of 720,000, far above 65,504."""
    x = np.full((2, 64), 300).astype(numpy_dtype(name))
    value = np.array([[1], [3]]).astype(x.dtype)
    a = attention(x[:1], x, value)
    assert a.output.item() == 2
    single = attention(x[:1], x[:1], value[:1]).lse.item()
    assert single == float(x[0, 0]) ** 2 * 8


def test_d3_long_sums_of_half_numbers_are_not_lost():
    """4,096 equal weights: a float16 sum would stop at 2,048, and float16 weights would be too coarse."""
    value = np.ones((4096, 1), np.float16)
    assert attend(np.zeros((1, 1), np.float16), np.zeros((4096, 1), np.float16), value).item() == 1


def test_d3_a_mean_that_float64_sums_cannot_hold():
    assert math.isinf(float(np.finfo(np.float64).max) * 2)
    top = np.full((2, 1), np.finfo(np.float64).max)
    assert attend(np.zeros((1, 1)), np.zeros((2, 1)), top).item() == top[0, 0]
