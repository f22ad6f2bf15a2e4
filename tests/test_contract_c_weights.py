"""Contract C: softmax weights, empty rows, no stand-in for a mask, sinks, log-sum-exp, ties and zero outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qkv import (
    ArgumentError,
    DTypeError,
    EmptyRowError,
    ShapeError,
    alibi,
    attend,
    attention,
    bounds,
    causal,
    first,
    keys,
    window,
)
from support.arrays import DTYPES, numpy_dtype, same_bits
from support.libraries import library
from support.tiny import counting, mean, pairs, rows, zeros

pytestmark = pytest.mark.usefixtures("engine")

LOWEST = float(np.finfo(np.float32).min)
LN2 = math.log(2)


def uniform(L: int, S: int, H: int = 1, **arguments):
    """Equal scores, values 1 … S in every head."""
    return attention(zeros(H, L, 2), zeros(H, S, 2), np.broadcast_to(counting(S), (H, S, 1)), **arguments)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def of_scores(*scores: float, value=None, **arguments):
    """One query whose scores are those numbers exactly."""
    key = np.array(scores, np.float32)[:, None]
    value = counting(len(scores)) if value is None else np.asarray(value, np.float32)
    return attention(np.ones((1, 1), np.float32), key, value, **{"scale": 1, **arguments})


# C1: softmax.


def test_c1_the_worked_example():
    a = of_scores(1, 0, value=[[10, 0], [0, 20]])
    assert a.weights(0).astype(float).round(3).tolist() == [[0.731, 0.269]]
    assert a.output.astype(float).round(3).tolist() == [[7.311, 5.379]]
    masked = of_scores(1, 0, value=[[10, 0], [0, 20]], mask=np.array([[True, False]]))
    assert masked.weights(0).tolist() == [[1, 0]]
    assert masked.output.tolist() == [[10, 0]]


@pytest.mark.parametrize("sink", [None, [0.5, -2.0, 3.0]])
def test_c1_weights_are_a_distribution_over_the_allowed_keys(sink):
    q, k, v = random(3, 5, 4), random(1, 7, 4), random(1, 7, 2)
    mask = causal(align="end") & window(3, 0)
    allowed = np.broadcast_to(pairs(5, 7, mask), (3, 5, 7))
    a = attention(q, k, v, mask=mask, sink=sink)
    weights = a.weights(range(5))
    assert (weights[allowed] > 0).all()
    assert (weights[~allowed] == 0).all()
    # A row of weights is the output for values that are the unit vectors, so its sum has their bounds.
    limit = bounds.bound(q, k, np.eye(7, dtype=np.float32)[None], "float32", allowed=allowed, sink=sink)
    assert (abs(weights - limit.answer.weights) <= limit.output).all()
    whole = weights.astype(np.float64).sum(-1) + a.sink_share()
    assert (abs(whole - 1) <= limit.output.sum(-1) + limit.output.max(-1)).all()


@pytest.mark.parametrize("count", [1, 2, 64, 512])
def test_c1_equal_scores_weigh_exactly_alike(count):
    assert (uniform(1, count).weights(0) == 1 / count).all()


@pytest.mark.parametrize("high", [88.0, 1e4, 1e30, 3e38])
def test_c1_the_maximum_is_that_of_the_allowed_scores(high):
    """Subtracting a forbidden maximum would push every allowed weight to 0."""
    for forbid in ({"mask": np.array([[True, True, False]])}, {"bias": np.array([[0, 0, -np.inf]], np.float32)}):
        a = of_scores(0, 0, high, **forbid)
        assert a.output.item() == 1.5
        assert a.weights(0).tolist() == [[0.5, 0.5, 0]]


def test_c1_large_scores_lose_nothing():
    assert of_scores(1e30, 1e30, -1e30).output.item() == 1.5
    assert of_scores(-1e30, -1e30).output.item() == 1.5
    a = of_scores(1000, 1001)
    assert same_bits(a.weights(0), of_scores(0, 1).weights(0))


def test_c1_what_is_asked_does_not_change_the_answer():
    """C1: the output does not depend on what else is asked for."""
    q, k, v = random(2, 3, 4), random(2, 5, 4), random(2, 5, 3)
    a = attention(q, k, v)
    before = a.output.copy()
    a.weights([0]), a.top(2), a.received(), a.entropy(), a.influence(0)
    assert same_bits(a.output, before)
    assert same_bits(attend(q, k, v), before)


# C2: empty rows.

HOLED = np.ones((3, 2, 4, 5), bool)  # (B, H, L, S) with two rows that read nothing
HOLED[1, 0, 2] = HOLED[2, 1, 0] = False


def holed(**arguments):
    q, k, v = random(3, 2, 4, 3), random(3, 2, 5, 3), random(3, 2, 5, 2)
    return attention(q, k, v, mask=HOLED, **arguments)


def test_c2_an_empty_row_is_refused_and_named():
    with pytest.raises(EmptyRowError) as caught:
        holed()
    assert caught.value.index == (1, 0, 2)  # batch, head, row
    assert caught.value.count == 2
    assert "(batch, head, row) = (1, 0, 2) has none (there are 2 such rows)" in str(caught.value)


def test_c2_zero_answers_an_empty_row_with_zero_everywhere():
    a = holed(empty="zero")
    empty = ~HOLED.any(-1)
    top = a.top(2)
    assert (a.output[empty] == 0).all()
    assert (a.lse[empty] == -np.inf).all()
    assert (a.weights(range(4))[empty] == 0).all()
    assert (a.entropy()[empty] == 0).all()
    assert (a.effective_keys()[empty] == 0).all()
    assert (top.keys[empty] == -1).all()
    assert (top.weights[empty] == 0).all()
    assert (a.sink_share()[empty] == 0).all()
    for asked in (a.contributions(2), a.influence(2)):
        assert np.isnan(getattr(asked, "share", getattr(asked, "relative", None))[1, 0]).all()  # C6
    assert (a.contributions(2).norm[1, 0] == 0).all()
    assert not a.influence(2).sole[1, 0].any()


def test_c2_an_empty_row_disturbs_no_other_row():
    a = holed(empty="zero")
    whole = attention(random(3, 2, 4, 3), random(3, 2, 5, 3), random(3, 2, 5, 2), mask=np.ones((3, 2, 4, 5), bool))
    some = HOLED.any(-1)
    assert same_bits(a.output[some], whole.output[some])
    assert same_bits(a.lse[some], whole.lse[some])


def test_c2_an_empty_row_takes_part_in_no_sum():
    a = uniform(2, 2, mask=np.array([[True, True], [False, False]]), empty="zero")
    assert a.received().tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("how", ["bias", "keys", "causal", "window", "segments", "no keys"])
def test_c2_it_does_not_matter_what_emptied_the_row(how):
    from qkv import segments

    S = 0 if how == "no keys" else 3
    arguments = {
        "bias": {"bias": np.full((2, 3), -np.inf, np.float32)},
        "keys": {"mask": keys(0)},
        "causal": {"mask": causal(align=-2)},
        "window": {"mask": window(0, 0, align=5)},
        "segments": {"mask": segments(np.array([1, 1]), np.array([0, 0, 0]))},
        "no keys": {},
    }[how]
    with pytest.raises(EmptyRowError) as caught:
        uniform(2, S, **arguments)
    assert (caught.value.index, caught.value.count) == ((0, 0), 2)
    a = uniform(2, S, empty="zero", **arguments)
    assert a.output.tolist() == [[[0], [0]]]
    assert a.lse.tolist() == [[-math.inf, -math.inf]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_c2_in_every_type(dtype):
    x = np.zeros((2, 2), numpy_dtype(dtype))
    a = attention(x, x, x + 1, mask=np.array([[True, False], [False, False]]), empty="zero")
    assert a.output.tolist() == [[1, 1], [0, 0]]
    assert a.lse.tolist() == [0, -math.inf]


@pytest.mark.parametrize("empty", ["nan", "uniform", None, True, 0])
def test_c2_there_is_no_third_way(empty):
    with pytest.raises(ArgumentError, match="empty must be one of 'raise', 'zero'"):
        rows(1, 1, empty=empty)


def test_c2_gradients_wait_for_a_backward():
    """C2: an empty row has gradients 0. There is no backward yet, so a tensor that asks for one is refused (G1)."""
    torch = library("torch")
    from qkv import UnsupportedError

    x = torch.zeros(2, 2, requires_grad=True)
    with pytest.raises(UnsupportedError, match="requires grad"):
        attend(x, x, x, mask=torch.tensor([[True, False], [False, False]]), empty="zero")


# C3: no finite stand-in.


@pytest.mark.parametrize("low", [-1e9, -65504.0, -3.3e38, LOWEST])
def test_c3_the_lowest_allowed_score_beats_every_forbidden_key(low):
    assert of_scores(low, 0, 1e30, mask=np.array([[True, False, False]])).output.item() == 1
    assert of_scores(low, low, 0, mask=np.array([[True, True, False]])).output.item() == 1.5
    bias = np.array([[low, -np.inf, -np.inf]], np.float32)
    assert of_scores(0, 0, 0, bias=bias).output.item() == 1


def test_c3_the_example():
    q, k = np.array([[-20000]], np.float32), np.array([[1], [0]], np.float32)
    v = np.array([[1], [100]], np.float32)
    assert attend(q, k, v, scale=1, mask=np.array([[True, False]])).item() == 1


def test_c3_in_half_precision():
    q, k = np.array([[-60000]], np.float16), np.array([[60000], [0]], np.float16)
    v = np.array([[1], [100]], np.float16)
    assert attend(q, k, v, scale=1, mask=np.array([[True, False]])).item() == 1


# C4: sink.


def test_c4_a_sink_takes_its_share_and_gives_nothing():
    a = of_scores(0, value=[[8]], sink=[0])
    assert a.output.item() == 4
    assert a.weights(0).item() == 0.5
    assert a.sink_share().item() == 0.5
    assert round(a.lse.item(), 3) == 0.693
    assert a.entropy().item() == 0
    assert a.effective_keys().item() == 1


def test_c4_the_share_is_told_apart_from_the_keys():
    a = of_scores(0, 0, 0, sink=[0], value=[[4], [8], [12]])
    assert a.weights(0).tolist() == [[0.25, 0.25, 0.25]]
    assert a.sink_share().item() == 0.25
    assert a.output.item() == 6
    assert same_bits(a.entropy(), of_scores(0, 0, 0).entropy())  # of the weights renormalised over the keys
    assert same_bits(a.effective_keys(), of_scores(0, 0, 0).effective_keys())
    assert a.received().tolist() == [0.25] * 3
    assert a.top(4).keys.tolist() == [[0, 1, 2, -1]]


def test_c4_softcap_bias_and_mask_do_not_touch_it():
    assert of_scores(0, sink=[1000], softcap=1, mask=first(0)).lse.item() == 1000
    assert of_scores(0, sink=[7], bias=np.array([[-np.inf]], np.float32)).lse.item() == 7
    assert of_scores(0, sink=[7], bias=alibi([1.0]), mask=keys(0)).lse.item() == 7
    assert of_scores(0, sink=[7], scale=1e-30, mask=keys(0)).lse.item() == 7


@pytest.mark.parametrize("empty", ["raise", "zero"])
def test_c4_a_row_with_a_sink_is_never_empty(empty):
    a = of_scores(0, 0, sink=[2.5], mask=first(0), empty=empty)
    assert a.output.item() == 0
    assert a.lse.item() == 2.5
    assert a.weights(0).tolist() == [[0, 0]]
    assert a.sink_share().item() == 1
    assert a.entropy().item() == 0
    assert a.effective_keys().item() == 0
    none = attention(zeros(1, 2), zeros(0, 2), zeros(0, 3), sink=[2.5], empty=empty)
    assert none.output.tolist() == [[0, 0, 0]]
    assert none.lse.tolist() == [2.5]


def test_c4_the_maximum_is_over_scores_and_sink():
    a = of_scores(0, 0, sink=[1e4])
    assert a.output.item() == 0
    assert a.lse.item() == 1e4
    assert a.sink_share().item() == 1
    low = of_scores(0, 0, sink=[-1e4])
    assert low.output.item() == 1.5
    assert low.sink_share().item() == 0
    assert same_bits(low.lse, of_scores(0, 0).lse)
    assert of_scores(1e30, 1e30, sink=[0]).output.item() == 1.5


def test_c4_one_logit_a_query_head():
    a = uniform(2, 1, H=4, sink=[0, 1e4, -1e4, 0])
    assert a.output[..., 0].tolist() == [[0.5] * 2, [0] * 2, [1] * 2, [0.5] * 2]
    with pytest.raises(ShapeError, match=r"sink must have shape \(H,\) = \(4,\)"):
        uniform(2, 1, H=4, sink=[0])
    with pytest.raises(ShapeError, match=r"sink must have shape \(H,\) = \(4,\)"):
        uniform(2, 1, H=4, sink=zeros(2, 4))
    with pytest.raises(ShapeError, match=r"sink must have shape"):
        uniform(2, 1, sink=0.5)
    with pytest.raises(DTypeError, match="sink must be one real number per query head"):
        uniform(2, 1, sink=[True])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39])
def test_c4_a_sink_is_finite(bad):
    with pytest.raises(ArgumentError, match=r"sink must be finite in float32, but sink\[1\] is"):
        uniform(1, 1, H=2, sink=[0, bad])


# C5: log-sum-exp.


@pytest.mark.parametrize("dtype", DTYPES)
def test_c5_the_log_sum_exp_is_natural(dtype):
    kind = numpy_dtype(dtype)
    q, k = np.zeros((1, 2), kind), np.zeros((2, 2), kind)
    lse = attention(q, k, k).lse
    assert lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert round(lse.item(), 3) == 0.693  # ln 2, where base 2 would give 1
    single = attention(q + 1, k[:1] + 1, k[:1], scale=-3).lse
    assert single.item() == -6  # one key: the score itself


def test_c5_the_log_sum_exp_is_within_its_bound():
    q, k, v = random(2, 5, 4), random(2, 33, 4), random(2, 33, 3)
    limit = bounds.bound(q, k, v, "float32")
    a = attention(q, k, v)
    assert (abs(a.lse - limit.answer.lse) <= limit.lse).all()


def test_c5_the_sink_is_in_it():
    limit = bounds.bound(zeros(1, 1, 1), zeros(1, 3, 1), zeros(1, 3, 1), "float32", sink=[1.0])
    assert abs(of_scores(0, 0, 0, sink=[1.0]).lse.item() - math.log(3 + math.e)) <= limit.lse.item()


# C6: ties and zero outputs.


def test_c6_ties_take_the_lower_index():
    assert uniform(1, 9).top(4).keys.tolist() == [[[0, 1, 2, 3]]]
    assert of_scores(0, 5, 0, 5, 5, 0).top(5).keys.tolist() == [[1, 3, 4, 0, 2]]
    assert of_scores(0, 5, 0, 5, 5, 0, mask=~keys(1, 2)).top(3).keys.tolist() == [[3, 4, 0]]
    long = np.zeros(700)
    long[[650, 20, 300]] = 9
    assert of_scores(*long).top(5).keys.tolist() == [[20, 300, 650, 0, 1]]


def test_c6_top_is_in_order_of_weight():
    top = of_scores(1, 3, 2).top(3)
    assert top.keys.tolist() == [[1, 2, 0]]
    assert (np.diff(top.weights) < 0).all()
    keys_too, weights_too = top
    assert keys_too is top.keys
    assert weights_too is top.weights


def test_c6_a_weight_that_underflowed_ranks_above_a_forbidden_key():
    top = of_scores(0, -1e6, -1e6, mask=np.array([[True, False, True]])).top(3)
    assert top.keys.tolist() == [[0, 2, -1]]
    assert top.weights.tolist() == [[1, 0, 0]]


def test_c6_shares_along_an_output_that_is_zero_are_nan():
    a = of_scores(0, 0, value=[[1, 0], [-1, 0]])
    assert a.output.tolist() == [[0, 0]]
    c = a.contributions(0)
    assert np.isnan(c.share).all()
    assert np.ravel(c.norm).tolist() == [0.5, 0.5]
    assert np.isnan(a.influence(0).relative).all()


def test_c6_shares_add_up_to_one():
    c = of_scores(0, 0, 0, 0, value=[[2, 0], [4, 0], [0, 0], [2, 0]]).contributions(0)
    assert np.ravel(c.weight).tolist() == [0.25] * 4
    assert np.ravel(c.norm).tolist() == [0.5, 1, 0, 0.5]
    assert np.ravel(c.share).tolist() == [0.25, 0.5, 0, 0.25]


def test_c6_influence_in_closed_form():
    """C2, C4, C6: o₋ⱼ − o, an only key is sole, and the sink stays when a key leaves."""
    i = of_scores(0, 0, value=[[1], [3]]).influence(0, vectors=True)
    assert np.ravel(i.vectors).tolist() == [1, -1]  # mean 2 becomes 3, or 1
    assert np.ravel(i.relative).tolist() == [0.5, 0.5]
    assert not i.sole.any()
    only = of_scores(0, 0, value=[[5], [3]], mask=first(1)).influence(0, vectors=True)
    assert np.ravel(only.sole).tolist() == [True, False]
    assert np.ravel(only.vectors).tolist() == [-5, 0]
    assert np.ravel(only.relative).tolist() == [1, 0]
    sunk = of_scores(0, value=[[8]], sink=[0]).influence(0, vectors=True)
    assert np.ravel(sunk.vectors).tolist() == [-4]
    assert sunk.sole.all()  # without the key all of it goes to the sink, which has no value: the zero row


def test_c1_received_adds_up_the_weights_of_all_queries():
    assert np.ravel(uniform(2, 2, mask=causal()).received()).tolist() == [1.5, 0.5]
    assert np.ravel(uniform(4, 4).received()).tolist() == [1] * 4


def test_c1_entropy_counts_the_keys_a_row_spreads_over():
    a = uniform(1, 8)
    limit = bounds.bound(zeros(1, 1, 2), zeros(1, 8, 2), zeros(1, 8, 1), "float32")
    assert abs(a.entropy().item() - math.log(8)) <= limit.lse.item()
    assert round(a.effective_keys().item(), 3) == 8
    assert uniform(1, 8, mask=first(1)).entropy().item() == 0
    assert uniform(1, 8, mask=first(1)).effective_keys().item() == 1


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_c1_answers_have_heads_before_length_in_every_layout(layout):
    q, k, v = random(2, 4, 3, 5), random(2, 2, 6, 5), random(2, 2, 6, 7)
    expected = attention(q, k, v)
    a = attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout=layout) if layout == "blhd" else expected
    assert a.weights(range(3)).shape == (2, 4, 3, 6)
    assert a.top(2).keys.shape == (2, 4, 3, 2)
    assert a.received().shape == (2, 4, 6)
    assert a.entropy().shape == a.effective_keys().shape == a.sink_share().shape == (2, 4, 3)
    assert a.contributions(0).share.shape == (2, 4, 6)
    assert a.contributions(0, head=1).share.shape == (2, 6)
    assert a.influence(0, vectors=True).vectors.shape == (2, 4, 6, 7)
    assert same_bits(
        a.weights([2, 0], heads=[3], keys=[5, 1]), expected.weights(range(3))[:, [3]][:, :, [2, 0]][..., [5, 1]]
    )
    assert same_bits(a.weights(-1), expected.weights([2]))


def test_c2_a_row_of_thirds_is_not_uniform_by_accident():
    assert rows(2, 3, np.array([[True, True, True], [False] * 3]), empty="zero") == [mean(1, 2, 3), 0]
