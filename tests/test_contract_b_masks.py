"""Contract B: scores, biases, mask arrays, mask expressions, alignment, lengths of a cache."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from qkv import (
    AlignmentError,
    ArgumentError,
    Cache,
    DTypeError,
    EmptyRowError,
    MaskError,
    NonFiniteError,
    ShapeError,
    alibi,
    allow,
    attend,
    attention,
    causal,
    explain,
    first,
    keys,
    prefix,
    segments,
    where,
    window,
)
from support.arrays import DTYPES, numpy_dtype, same_bits
from support.tiny import FORBIDDEN, batch_rows, counting, mean, pairs, rows, score, zeros

pytestmark = pytest.mark.usefixtures("engine")

LOWEST = float(np.finfo(np.float32).min)


# B1: scale.


@pytest.mark.parametrize("D", [1, 4, 16, 64, 256])
def test_b1_the_default_scale_is_one_over_the_root_of_the_width(D):
    one = np.ones((1, D), np.float32)
    assert score(one, one) == math.sqrt(D)  # D / sqrt(D), all of them exact


def test_b1_the_score_is_the_scaled_dot_product():
    assert score([2, 3], [5, -1], scale=1) == 7
    assert score([2, 3], [5, -1], scale=0.5) == 3.5
    assert score([2, 3], [5, -1], scale=-2) == -14
    assert score([2, 3], [5, -1], scale=0) == 0


def test_b1_scale_zero_weighs_all_keys_alike():
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert attend(x, x, counting(5), scale=0).ravel().tolist() == [3.0] * 5


def test_b1_a_negative_scale_prefers_the_smallest_product():
    key = np.array([[0.0], [1000.0]], np.float32)
    assert attend(np.ones((1, 1), np.float32), key, counting(2), scale=-1).item() == 1.0


@pytest.mark.parametrize("scale", [2, np.float32(2), np.float64(2), np.int64(2), np.array(2.0), True], ids=repr)
def test_b1_scale_is_one_number(scale):
    if scale is True:
        with pytest.raises(DTypeError, match="scale must be one number, but True came"):
            score([1], [1], scale=scale)
    else:
        assert score([1], [1], scale=scale) == 2


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 1e39])
def test_b1_scale_is_finite(scale):
    with pytest.raises(ArgumentError, match="scale must be finite in float32"):
        score([1], [1], scale=scale)


# B2: softcap.


def test_b2_softcap_bends_the_scaled_score():
    assert round(score([100], [1], scale=1, softcap=50), 2) == 48.20  # 50 · tanh(2)
    assert round(score([200], [1], scale=0.5, softcap=50), 2) == 48.20  # after the scale
    assert score([1e6], [1], scale=1, softcap=4) == 4  # tanh is 1 there
    assert score([-1e6], [1], scale=1, softcap=4) == -4
    assert score([0], [1], scale=1, softcap=4) == 0


def test_b2_softcap_acts_before_the_bias():
    bias = np.array([[1000]], np.float32)
    assert score([1e6], [1], scale=1, softcap=4, bias=bias) == 1004


def test_b2_softcap_acts_before_alibi():
    assert score([1e6], [1], scale=1, softcap=4, bias=alibi([0.5], align=2)) == 3


@pytest.mark.parametrize("softcap", [0, -1, math.nan, math.inf, 1e39, 1e-40])
def test_b2_softcap_is_finite_and_above_zero(softcap):
    with pytest.raises(ArgumentError, match="softcap must be finite and > 0"):
        score([1], [1], softcap=softcap)


# B3: bias.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias_dtype", DTYPES)
def test_b3_a_bias_has_the_querys_dtype_or_float32(dtype, bias_dtype):
    q = np.ones((1, 1), numpy_dtype(dtype))
    bias = np.array([[2.5]], numpy_dtype(bias_dtype))
    if bias_dtype in (dtype, "float32"):
        assert attention(q, q, q, bias=bias).lse.item() == 3.5
    else:
        with pytest.raises(DTypeError, match="bias must have"):
            attend(q, q, q, bias=bias)


def test_b3_a_bias_broadcasts_as_a_mask_does():
    q, v = zeros(2, 3, 4, 1), np.broadcast_to(counting(5), (2, 3, 5, 1))
    k = zeros(2, 3, 5, 1)
    full = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    for at in (np.s_[:1, :1, :1], np.s_[:1, :, :1], np.s_[:, :1], np.s_[:, :, :, :1]):
        part = full[at]
        whole = np.ascontiguousarray(np.broadcast_to(part, full.shape))
        assert same_bits(attend(q, k, v, bias=part), attend(q, k, v, bias=whole))
    assert same_bits(attend(q, k, v, bias=full[0]), attend(q, k, v, bias=np.stack([full[0]] * 2)))  # (H, L, S)
    assert same_bits(attend(q, k, v, bias=full[0, 0]), attend(q, k, v, bias=np.tile(full[0, 0], (2, 3, 1, 1))))


def test_b3_minus_infinity_forbids_as_a_mask_does():
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    mask = np.tril(np.ones((4, 4), bool))
    bias = np.where(mask, np.float32(0), np.float32(-np.inf))
    assert same_bits(attend(x, x, x, bias=bias), attend(x, x, x, mask=mask))
    with pytest.raises(EmptyRowError):
        attend(x, x, x, bias=np.full((4, 4), -np.inf, np.float32))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_b3_nan_and_plus_infinity_at_an_allowed_pair_are_errors(bad):
    bias = zeros(1, 2, 3, 3)
    bias[0, 1, 2, 1] = bad
    q, v = zeros(1, 2, 3, 2), np.broadcast_to(counting(3), (1, 2, 3, 1))
    with pytest.raises(NonFiniteError) as caught:
        attend(q, q, v, bias=bias)
    assert (caught.value.argument, caught.value.index) == ("bias", (0, 1, 2, 1))
    out = attention(q, q, v, bias=bias, nonfinite="propagate")
    wrong = zeros(1, 2, 3).astype(bool)
    wrong[0, 1, 2] = True
    assert np.array_equal(np.isnan(out.output[..., 0]), wrong)
    assert np.array_equal(np.isnan(out.lse), wrong)
    assert (out.output[..., 0][~wrong] == 2).all()


@pytest.mark.parametrize("bad", [*FORBIDDEN, LOWEST])
@pytest.mark.parametrize("how", ["array", "causal", "keys"])
def test_b3_a_bias_at_a_forbidden_pair_is_never_read(bad, how):
    bias = zeros(3, 3)
    mask = {"array": np.tril(np.ones((3, 3), bool)), "causal": causal(), "keys": keys(2)}[how]
    forbidden = ~pairs(3, 3, mask)[0]
    expected = rows(3, 3, mask, bias=bias)
    bias[forbidden] = bad
    assert rows(3, 3, mask, bias=bias) == expected


def test_b3_the_most_negative_number_is_a_number():
    assert score([0], [0], bias=np.array([[LOWEST]], np.float32)) == LOWEST
    bias = np.array([[LOWEST, LOWEST]], np.float32)
    assert rows(1, 2, bias=bias) == [1.5]
    assert rows(1, 2, np.array([[True, False]]), bias=bias) == [1.0]


def test_b3_alibi_is_minus_slope_times_distance():
    seen = [score([0], [0], bias=alibi([0.5], align=3 - j)) for j in range(4)]
    assert seen == [-1.5, -1.0, -0.5, 0.0]  # position 3, keys 0 … 3
    assert [score([0], [0], bias=alibi([0.5], align=-j)) for j in range(4)] == [0.0, -0.5, -1.0, -1.5]  # keys ahead


@pytest.mark.parametrize("align", ["start", "end", 1])
def test_b3_alibi_equals_its_array(align):
    H, L, S = 2, 3, 5
    slopes = np.array([0.5, 2.0])
    offset = {"start": 0, "end": S - L}.get(align, align)
    distance = np.abs(np.arange(L)[:, None] + offset - np.arange(S))
    bias = (-slopes[:, None, None] * distance).astype(np.float32)
    q, k, v = zeros(H, L, 2), zeros(H, S, 2), np.broadcast_to(counting(S), (H, S, 1))
    got = attend(q, k, v, bias=alibi(slopes, align=align), mask=causal(align=align))
    assert same_bits(got, attend(q, k, v, bias=bias, mask=causal(align=align)))


def test_b3_alibi_speaks_of_positions():
    with pytest.raises(AlignmentError, match=r"alibi\(<1 slopes>\) with 1 query and 4 keys"):
        rows(1, 4, bias=alibi([1.0]))
    assert rows(1, 4, causal(align="end"), bias=alibi([1000.0])) == [4.0]  # one alignment for both
    with pytest.raises(AlignmentError, match="one alignment"):
        rows(1, 4, causal(align="end"), bias=alibi([1.0], align="start"))


def test_b3_slopes_are_one_a_query_head():
    with pytest.raises(ShapeError, match=r"slopes must have shape \(H,\) = \(1,\)"):
        rows(2, 2, bias=alibi([1.0, 2.0]))
    with pytest.raises(ArgumentError, match=r"slopes\[1\] is nan"):
        alibi([1.0, math.nan])


def test_b3_alibi_builds_no_array_of_pairs():
    L = 4096
    q = zeros(L, 1)
    attend(q[:8], q[:8], q[:8], mask=causal() & window(7, 0), bias=alibi([1.0]))
    tracemalloc.start()
    attend(q, q, q, mask=causal() & window(127, 0), bias=alibi([1.0]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < L * L


# B4: mask arrays.


def test_b4_true_means_this_query_may_read_this_key():
    assert rows(1, 2, np.array([[True, False]])) == [1.0]
    assert rows(2, 2, np.array([[False, True], [True, True]])) == [2.0, 1.5]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.float64, np.float16, np.complex64])
def test_b4_anything_but_booleans_is_refused_with_both_ways_out(dtype):
    with pytest.raises(DTypeError) as caught:
        rows(1, 2, np.array([[1, 0]], dtype))
    for word in ("bias=", ".astype(bool)", "torch.nn.MultiheadAttention", "TransformerEngine", "the opposite"):
        assert word in str(caught.value)


def test_b4_the_same_numbers_have_three_meanings():
    assert rows(1, 2, np.array([[1.0, 0.0]]).astype(bool)) == [1.0]
    with pytest.raises(DTypeError):
        rows(1, 2, np.array([[1.0, 0.0]]))
    value = np.array([[1], [3]], np.float32)
    out = attend(zeros(1, 2), zeros(2, 2), value, bias=np.array([[1, 0]], np.float32)).item()
    assert round(out, 3) == 1.538


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
@pytest.mark.parametrize(
    "shape",
    [(), (5,), (1,), (4, 5), (4, 1), (1, 5), (6, 4, 5), (1, 4, 5), (6, 1, 1), (2, 6, 4, 5), (2, 1, 4, 5), (1, 6, 1, 5)],
    ids=str,
)
def test_b4_arrays_broadcast_from_the_right_whatever_the_layout(shape, layout):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, h, n, 3)).astype(np.float32) for h, n in ((6, 4), (2, 5), (2, 5)))
    mask = rng.random(shape) < 0.7
    full = np.ascontiguousarray(np.broadcast_to(mask, (2, 6, 4, 5)))
    expected = attend(q, k, v, mask=full, empty="zero")
    if layout == "blhd":
        q, k, v, expected = (x.swapaxes(1, 2) for x in (q, k, v, expected))
    assert same_bits(attend(q, k, v, mask=np.asarray(mask), empty="zero", layout=layout), expected)


def test_b4_two_axes_are_queries_by_keys_and_three_are_heads_first():
    lower = np.tril(np.ones((3, 3), bool))
    assert rows(3, 3, lower) == [1, 1.5, 2]
    assert np.array_equal(pairs(3, 3, np.stack([lower, ~lower]), H=2), np.stack([lower, ~lower]))


def test_b4_the_head_axis_is_never_that_of_the_keys():
    q, k = zeros(2, 6, 3, 2), zeros(2, 2, 4, 2)
    with pytest.raises(ShapeError, match="head axis must be the query's 6 heads or 1"):
        attend(q, k, k, mask=np.ones((2, 2, 3, 4), bool))
    with pytest.raises(ShapeError, match="head axis must be the query's 6 heads or 1"):
        attend(q, k, k, bias=zeros(2, 2, 3, 4))


def test_b4_a_padding_array_is_refused_and_keys_takes_it():
    q, k = zeros(3, 1, 2, 2), zeros(3, 1, 5, 2)
    padding = np.arange(5) < np.array([[5], [3], [1]])
    with pytest.raises(ShapeError, match=r"if it says which keys exist, pass mask=qkv\.keys\(mask\)"):
        attend(q, k, k, mask=padding)
    assert batch_rows(3, 2, 5, keys(padding)) == [[3, 3], [2, 2], [1, 1]]


def test_b4_one_array_a_sequence_is_refused_and_an_axis_more_is_taken():
    q, k = zeros(3, 2, 2, 2), zeros(3, 2, 5, 2)
    mask = np.ones((3, 2, 5), bool)
    with pytest.raises(ShapeError, match=r"\(B, L, S\), one array a sequence, pass mask\[:, None\]"):
        attend(q, k, k, mask=mask)
    assert attend(q, k, k, mask=mask[:, None]).shape == (3, 2, 2, 2)
    with pytest.raises(ShapeError, match=r"pass bias\[:, None\]"):
        attend(q, k, k, bias=zeros(3, 2, 5))


def test_b4_two_axes_that_could_be_either_are_refused():
    q, k = zeros(3, 1, 3, 2), zeros(3, 1, 5, 2)
    mask = np.arange(5) < np.array([[5], [3], [1]])
    for expression in (mask, mask & first(5), first(5) & mask, ~(first(0) | mask)):
        with pytest.raises(ShapeError, match=r"both \(L, S\) and \(B, S\).*qkv\.allow\(mask\).*qkv\.keys\(mask\)"):
            attend(q, k, k, mask=expression)
    assert batch_rows(3, 3, 5, allow(mask)) == [[3, 2, 1]] * 3
    assert batch_rows(3, 3, 5, keys(mask)) == [[3] * 3, [2] * 3, [1] * 3]
    with pytest.raises(ShapeError, match=r"both \(L, S\) and \(B, S\)"):
        attend(q, k, k, bias=zeros(3, 5))
    assert rows(1, 2, np.array([[True, False]])) == [1.0]  # L == B == 1 is no question: there is no batch
    assert batch_rows(1, 1, 2, np.array([[True, False]])) == [[1.0]]


def test_b4_other_shapes_do_not_fit():
    for shape in ((3, 4), (2, 2, 3, 5), (1, 1, 1, 1, 1)):
        with pytest.raises(ShapeError, match="mask has shape"):
            attend(zeros(1, 3, 2), zeros(1, 5, 2), zeros(1, 5, 2), mask=np.ones(shape, bool))


# B5: mask values.

IDS = np.array([0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (causal(), [1, 1.5, 2, 2.5, 3]),
        (causal() & window(1, 0), [1, 1.5, 2.5, 3.5, 4.5]),
        (causal() & window(2, 0), [1, 1.5, 2, 3, 4]),
        (causal() & (window(0, 0) | first(1)), [1, 1.5, 2, 2.5, 3]),
        (causal() & window(0, 0) | first(2), [1.5, 1.5, 2, mean(1, 2, 4), mean(1, 2, 5)]),
        (prefix(3), [2, 2, 2, 2.5, 3]),
        (segments(IDS), [1.5, 1.5, 4, 4, 4]),
        (causal() & keys(2, 5), [0, 0, 3, 3.5, 4]),
        (window(0, 0), [1, 2, 3, 4, 5]),
        (window(1, 1), [1.5, 2, 3, 4, 4.5]),
        (window(0, 2), [2, 3, 4, 4.5, 5]),
        (window(None, 0), [1, 1.5, 2, 2.5, 3]),
        (window(0, None), [3, 3.5, 4, 4.5, 5]),
        (window(None, None), [3] * 5),
        (window(1, None), [3, 3, 3.5, 4, 4.5]),
        (window(None, 1), [1.5, 2, 2.5, 3, 3]),
        (window(255, 0), [1, 1.5, 2, 2.5, 3]),
        (first(2), [1.5] * 5),
        (first(0), [0] * 5),
        (first(9), [3] * 5),
        (prefix(0), [1, 1.5, 2, 2.5, 3]),
        (prefix(9), [3] * 5),
        (keys(2), [1.5] * 5),
        (keys(0), [0] * 5),
        (keys(1, 3), [2.5] * 5),
        (keys(3, 3), [0] * 5),
        (keys(np.array([True, True, False, False, False])), [1.5] * 5),
        (keys(np.array([True, False, True, False, True])), [3] * 5),
        (keys(np.zeros(5, bool)), [0] * 5),
        (~causal(), [3.5, 4, 4.5, 5, 0]),
        (~~causal(), [1, 1.5, 2, 2.5, 3]),
        (~window(1, 1), [4, 4.5, 3, 1.5, 2]),
        (~first(2), [4] * 5),
        (~keys(2), [4] * 5),
        (~prefix(3), [4.5, 4.5, 4.5, 5, 0]),
        (~segments(IDS), [4, 4, 1.5, 1.5, 1.5]),
        (segments(np.array([0, 1, 0, 1, 0])), [3, 3, 3, 3, 3]),
        (segments(np.array([7, -1, 7, 7, -1])), [mean(1, 3, 4), 3.5, mean(1, 3, 4), mean(1, 3, 4), 3.5]),
        (segments(IDS, np.array([1, 0, 0, 1, 2])), [2.5, 2.5, 2.5, 2.5, 2.5]),
        (segments(IDS, np.array([5, 5, 5, 5, 1])), [0, 0, 5, 5, 5]),
        (segments(IDS) & causal(), [1, 1.5, 3, 3.5, 4]),
        (allow(np.eye(5, dtype=bool)), [1, 2, 3, 4, 5]),
        (~allow(np.eye(5, dtype=bool)), [3.5, 3.25, 3, 2.75, 2.5]),
        (where(lambda b, h, p, j: (p - j) % 2 == 0), [3, 3, 3, 3, 3]),
        (where(lambda b, h, p, j: j > p), [3.5, 4, 4.5, 5, 0]),
        (causal() & where(lambda b, h, p, j: (p - j) % 2 == 0), [1, 2, 2, 3, 3]),
        (causal() | keys(4, 5), [3, mean(1, 2, 5), 2.75, 3, 3]),
        ((causal() & window(1, 0)) | first(1), [1, 1.5, 2, mean(1, 3, 4), mean(1, 4, 5)]),
    ],
    ids=lambda x: repr(x) if not isinstance(x, list) else "",
)
def test_b5_each_mask_reads_what_the_table_says(mask, expected):
    assert rows(5, 5, mask, empty="zero") == expected


def test_b5_a_window_counts_the_keys_besides_its_own():
    seen = pairs(300, 300, causal() & window(255, 0))
    assert seen[0, 299].sum() == 256
    assert pairs(9, 9, window(0, 0))[0].sum() == 9


@pytest.mark.parametrize("make", [lambda n: window(n, 0), lambda n: window(0, n), first, prefix, keys])
def test_b5_counts_are_whole_numbers_from_zero_on(make):
    with pytest.raises(ArgumentError, match="must not be negative"):
        make(-1)
    with pytest.raises(DTypeError, match="whole number"):
        make(1.5)
    with pytest.raises(DTypeError):
        make("1")
    with pytest.raises((DTypeError, ShapeError)):  # True is not 1
        make(True)
    assert rows(2, 2, make(np.int32(2))) == rows(2, 2, make(2))


def test_b5_keys_are_one_number_or_one_a_sequence():
    assert batch_rows(2, 1, 5, keys([2, 5])) == [[1.5], [3]]
    assert batch_rows(2, 1, 5, keys(np.array([2, 5], np.uint8))) == [[1.5], [3]]
    assert batch_rows(2, 1, 5, keys([0, 3], 5)) == [[3], [4.5]]
    assert batch_rows(2, 1, 5, keys(1, [2, 5])) == [[2], [3.5]]
    assert batch_rows(2, 1, 5, keys([0, 1], [2, 5])) == [[1.5], [3.5]]
    assert batch_rows(2, 1, 3, keys(np.array([[True, False, True], [False, True, True]]))) == [[2], [2.5]]
    assert batch_rows(2, 1, 3, keys(np.array([[True, True, False], [False, True, True]]))) == [[1.5], [2.5]]
    with pytest.raises(ShapeError, match="lengths must be one integer or one per sequence"):
        batch_rows(2, 1, 5, keys([2, 5, 1]))


def test_b5_keys_lie_within_the_keys_there_are():
    assert rows(1, 5, keys(5)) == [3]
    with pytest.raises(ArgumentError, match="lengths must be within 0…S = 5, but 6 came"):
        rows(1, 5, keys(6))
    with pytest.raises(ArgumentError, match="stop must be within 0…S = 5, but 7 came"):
        rows(1, 5, keys(1, 7))
    with pytest.raises(ArgumentError, match="start must not be after stop"):
        keys(3, 2)


def test_b5_an_integer_array_of_keys_may_be_a_mask_and_is_refused():
    with pytest.raises(ShapeError, match=r"keys\(a\.astype\(bool\)\)"):
        batch_rows(2, 1, 3, keys(np.array([[1, 1, 0], [0, 1, 1]])))


def test_b5_one_run_of_true_is_a_range():
    run = np.array([[False, True, True, False], [True, True, True, True]])
    q, k = zeros(2, 1, 1, 2), zeros(2, 1, 4, 2)
    assert explain(q, k, k, mask=keys(run)).pairs == 6 / 8  # counted without asking pair by pair
    run[1, 1] = False
    assert explain(q, k, k, mask=keys(run)).pairs is None


def test_b5_segments_may_differ_a_sequence():
    ids = np.array([[0, 0, 1], [0, 1, 1]])
    assert batch_rows(2, 3, 3, segments(ids)) == [[1.5, 1.5, 3], [1, 2.5, 2.5]]
    assert batch_rows(2, 3, 3, segments(ids[0])) == [[1.5, 1.5, 3]] * 2
    assert batch_rows(2, 1, 3, segments(np.array([[1], [1]]), ids)) == [[3], [2.5]]
    with pytest.raises(ShapeError, match="pass key_ids as well, since L != S"):
        batch_rows(2, 1, 3, segments(ids[:, :1]))


def test_b5_where_is_asked_a_tile_at_a_time_about_indices_that_broadcast():
    asked = []

    def rule(batch, head, position, key):
        asked.append((batch, head, position, key))
        return (batch == 3) & (head >= 0) & (position >= key)

    B, H, L, S = (2, 2), 3, 2, 4
    seen = pairs(L, S, where(rule, align=1), batch=B, H=H)
    expected = np.zeros((*B, H, L, S), bool)
    expected[1, 1] = np.arange(L)[:, None] + 1 >= np.arange(S)  # batch counts all batch axes in C order
    assert np.array_equal(seen, expected)
    for indices in asked:
        shape = np.broadcast_shapes(*(x.shape for x in indices))
        assert len(shape) == 3
        assert sum(x.size for x in indices) <= 1 + H + L + S  # nothing the size of the pairs
        assert all(np.issubdtype(x.dtype, np.integer) for x in indices)
    assert {int(x) for b, *_ in asked for x in b.ravel()} == {0, 1, 2, 3}
    assert {int(x) for _, h, *_ in asked for x in h.ravel()} == {0, 1, 2}
    assert {int(x) for _, _, p, _ in asked for x in p.ravel()} == {1, 2}


def test_b5_where_returns_booleans_that_fit():
    with pytest.raises(DTypeError, match="rule must return booleans"):
        rows(2, 2, where(lambda b, h, p, j: p - j))
    with pytest.raises(ShapeError, match="rule must return an array that broadcasts"):
        rows(2, 2, where(lambda b, h, p, j: np.ones(7, bool)))
    with pytest.raises(DTypeError, match="rule must be a function"):
        where(np.eye(2))
    assert rows(2, 2, where(lambda b, h, p, j: np.True_)) == [1.5, 1.5]
    with pytest.raises(ZeroDivisionError):  # a rule's own errors are the caller's
        rows(2, 2, where(lambda b, h, p, j: 1 // 0))


def test_b5_masks_combine_as_booleans():
    dense = np.random.default_rng(0).random((2, 5, 5)) < 0.5
    a, b = allow(dense[0]), allow(dense[1])
    assert np.array_equal(pairs(5, 5, a & b)[0], dense[0] & dense[1])
    assert np.array_equal(pairs(5, 5, a | b)[0], dense[0] | dense[1])
    assert np.array_equal(pairs(5, 5, ~a)[0], ~dense[0])
    forbidden = ~allow(np.ones((5, 5), bool))
    assert not pairs(5, 5, forbidden & forbidden).any()  # forbidden twice is forbidden
    assert pairs(5, 5, forbidden | first(5)).all()


def test_b5_arrays_combine_from_either_side():
    array = np.random.default_rng(0).random((5, 5)) < 0.5
    lower = np.tril(np.ones((5, 5), bool))
    for mask in (array & causal(), causal() & array):
        assert np.array_equal(pairs(5, 5, mask)[0], array & lower)
    for mask in (array | causal(), causal() | array):
        assert np.array_equal(pairs(5, 5, mask)[0], array | lower)
    mask = causal()
    mask &= array
    assert np.array_equal(pairs(5, 5, mask)[0], array & lower)
    with pytest.raises(DTypeError, match="mask must be boolean"):
        causal() & array.astype(int)


def test_b5_a_mask_has_no_truth_value():
    for use in (
        lambda: causal() and first(2),
        lambda: causal() or first(2),
        lambda: not causal(),
        lambda: 1 if causal() else 0,
        lambda: bool(causal()),
    ):
        with pytest.raises(MaskError, match=r"no truth value.*combine masks with &, | and ~"):
            use()


def test_b5_masks_are_not_added_up():
    for use in (
        lambda: causal() + first(2),
        lambda: causal() * first(2),
        lambda: np.eye(2) + causal(),
        lambda: 1 - causal(),
        lambda: causal() * -1e9,
    ):
        with pytest.raises(MaskError, match="masks combine as booleans"):
            use()


def test_b5_pythons_precedence_holds():
    mask = causal() & window(255, 0) | first(4)
    assert np.array_equal(pairs(6, 6, mask), pairs(6, 6, (causal() & window(255, 0)) | first(4)))
    assert not np.array_equal(pairs(6, 6, mask), pairs(6, 6, causal() & (window(255, 0) | first(4))))
    assert np.array_equal(pairs(6, 6, ~first(2) & causal()), pairs(6, 6, (~first(2)) & causal()))
    assert repr(causal() & (window(2, 0) | first(1))) == "causal() & (window(2, 0) | first(1))"
    assert repr(causal() & window(2, 0) | ~first(1)) == "causal() & window(2, 0) | ~first(1)"


@pytest.mark.parametrize(
    ("mask", "future"),
    [
        (causal(), None),
        (causal() & window(255, 0), None),
        (causal() & (window(255, 0) | first(4)), None),
        (causal() & window(255, 0) | first(4), (0, 0, 0, 1)),
        (causal() | keys(3, 4), (0, 0, 0, 3)),
        (~causal(), (0, 0, 0, 1)),
        (~~causal(), None),
        (causal() & ~first(1), None),
        (causal() | window(0, 2), (0, 0, 0, 1)),
        (causal() & segments(np.array([0, 1, 0, 1, 0, 1])), None),
        (causal() | segments(np.array([0, 0, 0, 1, 1, 2])), (0, 0, 0, 1)),
        (causal() | np.eye(6, k=2, dtype=bool), (0, 0, 0, 2)),
        (causal() | where(lambda b, h, p, j: j == p + 4), (0, 0, 0, 4)),
        (causal() & where(lambda b, h, p, j: j == p + 4), None),
        (causal(align="end"), None),
        (causal(align=1), None),
    ],
    ids=lambda x: repr(x),
)
def test_b5_explain_names_the_first_pair_that_reads_the_future(mask, future):
    q = zeros(6, 2)
    e = explain(q, q, q, mask=mask)
    assert e.future == future
    assert ("lets a query read the future" in str(e)) == (future is not None)
    if future is not None:
        assert f"row {future[2]} may read key {future[3]}" in str(e)
    assert mask.reads_future(queries=6, keys=6) == (future is not None)


def test_b5_only_an_expression_with_causal_promises_not_to_read_the_future():
    q = zeros(6, 2)
    assert explain(q, q, q, mask=first(4)).future is None
    assert explain(q, q, q).future is None
    assert first(4).reads_future()  # asked outright it answers all the same


@pytest.mark.parametrize(
    ("mask", "future"),
    [
        (causal() & (window(255, 0) | first(4)), False),
        (causal() & window(255, 0) | first(4), True),
        (prefix(0), False),
        (prefix(1), False),  # key 0 stands after nobody
        (prefix(2), True),
        (first(1), False),
        (window(3, 0), False),
        (window(3, 1), True),
        (causal() | keys(5, 5), False),
        (causal() | keys([0, 3]), True),
        (~window(None, 0) & window(None, 0), False),
    ],
    ids=lambda x: repr(x),
)
def test_b5_without_sizes_the_answer_holds_for_all_of_them(mask, future):
    assert mask.reads_future() is future


@pytest.mark.parametrize(
    "mask",
    [
        causal() & window(127, 0),
        causal() & (window(63, 0) | first(4)) & ~keys(5, 9),
        segments(np.repeat(np.arange(64), 128)) & causal(),
        prefix(8) & window(64, 64),
        where(lambda b, h, p, j: (p >= j) & (p - j < 64)) & window(64, 0),
    ],
    ids=repr,
)
def test_b5_nothing_of_the_size_of_the_pairs_is_built(mask):
    L = 8192
    q = zeros(L, 1)
    tracemalloc.start()
    attend(q, q, q, mask=mask, empty="zero")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < L * L  # not even as booleans


# B6: positions and alignment.


@pytest.mark.parametrize(
    ("L", "S", "mask", "expected"),
    [
        (1, 4, causal(align="start"), [1]),
        (1, 4, causal(align="end"), [2.5]),
        (2, 4, causal(align="start"), [1, 1.5]),
        (2, 4, causal(align="end"), [2, 2.5]),
        (2, 4, causal(align=1), [1.5, 2]),
        (4, 2, causal(align="start"), [1, 1.5, 1.5, 1.5]),
        (4, 2, causal(align="end"), [0, 0, 1, 1.5]),
        (2, 5, causal(align="end") & keys([3]), [1.5, 2]),
        (2, 5, causal(align="end") & keys([1]), [0, 1]),
        (2, 5, causal(align="end") & keys(1, 4), [2.5, 3]),
        (2, 5, keys([3]) & causal(align="end"), [1.5, 2]),
        (2, 5, causal(align="end") & keys([4]) & keys([3]), [1.5, 2]),
        (2, 5, causal(align="end") & keys(np.array([True, True, True, False, False])), [1.5, 2]),
        (2, 5, causal(align="end") & keys(np.array([True, False, True, False, False])), [1, 2]),
        (2, 5, causal(align="end") | keys([3]), [2.5, 3]),  # not conjoined: the queries end at S
        (3, 5, window(0, 0, align="end"), [3, 4, 5]),
        (3, 5, window(1, 1, align="start"), [1.5, 2, 3]),
        (3, 5, window(0, 0, align=-1), [0, 1, 2]),
        (3, 5, window(0, 0, align=9), [0, 0, 0]),
        (2, 5, prefix(1, align="end"), [2.5, 3]),
        (2, 5, prefix(4, align="start"), [2.5, 2.5]),
        (2, 5, ~causal(align="end"), [5, 0]),
        (2, 5, where(lambda b, h, p, j: j == p, align="end"), [4, 5]),
        (2, 5, where(lambda b, h, p, j: j == p, align=np.int64(1)), [2, 3]),
        (3, 3, causal(align=1), [1.5, 2, 2]),  # L == S is 0 unless told otherwise
        (3, 3, causal(align="end"), [1, 1.5, 2]),
        (3, 3, causal(align="end") & keys([2]), [0, 1, 1.5]),
        (3, 3, causal() & keys([2]), [1, 1.5, 1.5]),
        (2, 4, causal(align="end") & window(1, 0), [2.5, 3.5]),  # one alignment an expression
        (2, 4, causal() & window(1, 0, align="end"), [2.5, 3.5]),
        (2, 4, causal(align="end") & window(1, 0, align="end"), [2.5, 3.5]),
        (2, 4, ~(~causal(align="end") | ~window(1, 0)), [2.5, 3.5]),
    ],
    ids=lambda x: repr(x),
)
def test_b6_the_queries_stand_where_the_alignment_says(L, S, mask, expected):
    assert batch_rows(1, L, S, mask, empty="zero") == [expected]


@pytest.mark.parametrize("rule", [causal, lambda **a: window(1, 0, **a), lambda **a: prefix(1, **a)])
@pytest.mark.parametrize("around", [lambda m: m, lambda m: ~m, lambda m: m & first(3), lambda m: first(3) | m])
def test_b6_a_positional_rule_must_be_told(rule, around):
    with pytest.raises(AlignmentError) as caught:
        rows(1, 4, around(rule()))
    text = str(caught.value)
    assert repr(rule()) in text
    assert 'align="end"' in text
    assert 'align="start"' in text
    rows(1, 4, around(rule(align="end")), empty="zero")


def test_b6_where_must_be_told():
    with pytest.raises(AlignmentError):
        rows(1, 4, where(lambda b, h, p, j: j <= 2))


def test_b6_the_error_draws_both_readings():
    with pytest.raises(AlignmentError) as caught:
        attend(zeros(3, 2), zeros(9, 2), zeros(9, 2), mask=causal())
    _, *drawn = str(caught.value).splitlines()
    ends = ["x x x x x x x . .", "x x x x x x x x .", "x x x x x x x x x"]
    starts = ["x . . . . . . . .", "x x . . . . . . .", "x x x . . . . . ."]
    for line, end, start in zip(drawn, ends, starts, strict=False):
        assert line.index(end) < line.rindex(start)


@pytest.mark.parametrize("mask", [first(2), keys(2), segments(np.array([0]), np.array([0, 0, 1, 1]))], ids=repr)
def test_b6_other_masks_need_no_alignment(mask):
    assert rows(1, 4, mask) == [1.5]
    assert rows(1, 4, np.array([[True, True, False, False]])) == [1.5]


def test_b6_an_offset_a_sequence():
    assert batch_rows(2, 2, 4, causal(align=[0, 2])) == [[1, 1.5], [2, 2.5]]
    assert batch_rows(2, 2, 4, causal(align=np.array([1, 0]))) == [[1.5, 2], [1, 1.5]]
    assert batch_rows(2, 2, 5, causal(align="end") & keys([3, 5])) == [[1.5, 2], [2.5, 3]]
    with pytest.raises(AlignmentError, match=r"one offset or one per sequence, shape \(B…\) = \(2,\)"):
        batch_rows(2, 2, 4, causal(align=[0, 1, 2]))


def test_b6_two_different_alignments_are_an_error():
    for mask in (
        causal(align="end") & window(1, 0, align="start"),
        causal(align=1) | ~window(1, 0, align=2),
        causal(align="end") & window(1, 0, align=2),  # even where they would come to the same
    ):
        with pytest.raises(AlignmentError, match="one alignment"):
            rows(2, 4, mask)


@pytest.mark.parametrize("align", ["END", "left", 1.5, [0.5], True], ids=repr)
def test_b6_other_alignments_do_not_exist(align):
    with pytest.raises((AlignmentError, DTypeError)):
        causal(align=align)


def test_b6_a_cache_knows_where_its_queries_stand():
    cache = Cache()
    cache.append(zeros(1, 3, 2), counting(3)[None])
    assert attend(zeros(1, 3, 2), cache, mask=causal()).ravel().tolist() == [1, 1.5, 2]
    cache.append(zeros(1, 1, 2), counting(4)[None, 3:])
    assert attend(zeros(1, 1, 2), cache, mask=causal()).item() == 2.5
    assert attend(zeros(1, 1, 2), cache.key, cache.value, mask=causal() & window(1, 0)).item() == 3.5
    assert attend(zeros(1, 2, 2), cache, mask=causal()).ravel().tolist() == [2, 2.5]  # the newest two
    assert attend(zeros(1, 1, 2), cache, mask=causal(align="start")).item() == 1  # told otherwise


@pytest.mark.parametrize(("L", "S"), [(0, 4), (4, 0), (0, 0)])
def test_b6_nothing_to_place_needs_no_alignment(L, S):
    for mask in (causal(), ~window(1, 0), prefix(2)):
        assert rows(L, S, mask, empty="zero") == [0.0] * L


# B7: lengths of a cache.


@pytest.mark.parametrize(
    "mask",
    [None, ~keys(0), first(1000), ~causal() | causal(), window(None, None), causal() | ~causal(), ~first(0)],
    ids=repr,
)
@pytest.mark.parametrize("slack", [math.nan, math.inf, 3e38])
def test_b7_no_mask_reaches_past_the_lengths_of_a_cache(mask, slack):
    cache = Cache()
    key, value = zeros(2, 1, 5, 2), np.broadcast_to(counting(5), (2, 1, 5, 1)).copy()
    key[0, :, 2:], value[0, :, 2:] = slack, slack
    cache.append(key, value, lengths=[2, 5])
    assert attend(zeros(2, 1, 1, 2), cache, mask=mask).ravel().tolist() == [1.5, 3.0]


def test_b7_an_array_that_allows_everything_does_not_either():
    cache = Cache()
    cache.append(zeros(2, 1, 5, 2), np.broadcast_to(counting(5), (2, 1, 5, 1)), lengths=[2, 5])
    q = zeros(2, 1, 1, 2)
    assert attend(q, cache, mask=np.ones((2, 1, 1, 5), bool)).ravel().tolist() == [1.5, 3.0]
    assert attend(q, cache, bias=zeros(2, 1, 1, 5)).ravel().tolist() == [1.5, 3.0]


def test_b7_what_was_trimmed_does_not_exist():
    cache = Cache()
    cache.append(zeros(1, 5, 2), counting(5)[None]).trim(2)
    assert attend(zeros(1, 1, 2), cache, mask=~keys(0)).item() == 1.5
    with pytest.raises(ArgumentError, match="lengths must be within 0…S = 2"):
        attend(zeros(1, 1, 2), cache, mask=keys(5))
