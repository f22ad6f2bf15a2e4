"""Corners that were once answered wrongly, each with the right answer and its clause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv
from qkv import allow, attend, attention, causal, first, keys, prefix, where, window

F = np.float32


def zeros(*shape: int) -> Any:
    return np.zeros(shape, F)


def test_c4_entropy_beside_a_sink_that_takes_everything(engine: str) -> None:
    """C4: entropy is of the weights renormalised over the allowed keys, however small beside the sink."""
    a = attention(zeros(1, 1, 2), zeros(1, 2, 2), np.ones((1, 2, 1), F), sink=[200.0])
    assert a.entropy().item() == F(np.log(2))
    assert a.effective_keys().item() == F(2)


def test_d3_questions_agree_with_an_output_that_was_given(engine: str) -> None:
    """D3: scores whose partial sums may overflow in another order are answered rightly, or refused by all alike."""
    q, k = np.ones((1, 64)), np.tile([1.7e308, -1.7e308], 32)[None]
    try:
        a = attention(q, k, np.ones((1, 1)), scale=1)
    except qkv.ScoreOverflowError:
        return
    assert a.weights(0).tolist() == [[1.0]]
    assert a.received().tolist() == [1.0]
    assert a.top(1).weights.tolist() == [[1.0]]


def test_f3_info_names_the_engine_that_answers(engine: str) -> None:
    """F3, G1: info says what attend uses, and promises row invariance only where it is kept."""
    assert qkv.info().engine == engine
    assert qkv.info().row_invariant == (engine == "native")


def test_g1_info_refuses_an_engine_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_ENGINE", "bogus")
    with pytest.raises(qkv.ArgumentError, match="QKV_ENGINE must be 'native' or 'numpy'"):
        qkv.info()


def test_d2_the_sink_of_a_lost_row_has_no_share(engine: str) -> None:
    """D2: every answer about a row that reads a NaN is NaN."""
    k = np.array([[np.nan], [0], [0]], F)
    m = np.array([[True, False, False], [False, True, True]])
    a = attention(zeros(2, 1), k, np.ones((3, 1), F), mask=m, nonfinite="propagate", sink=[0.0])
    share = a.sink_share()
    assert np.isnan(share[0])
    assert share[1] == F(1) / F(3)


@pytest.mark.parametrize("mask", [first(1), allow(np.arange(600)[None] == 0)], ids=["rule", "array"])
def test_c1_a_lost_row_gives_forbidden_keys_exactly_zero(engine: str, mask: Any) -> None:
    """C1: weights are exactly 0 where a pair is not allowed, also in a row that is NaN where it reads."""
    k = zeros(1, 600, 1)
    k[0, 0] = np.nan
    w = attention(zeros(1, 2, 1), k, np.ones((1, 600, 1), F), mask=mask, nonfinite="propagate").weights([0])[0, 0]
    assert np.isnan(w[0])
    assert (w[1:] == 0).all()


@pytest.mark.parametrize(
    "mask",
    [
        causal(align="end") | first(1),
        causal(align=-1) | first(1),
        prefix(1, align=-4),
        keys(1) | causal(align=-3),
    ],
    ids=repr,
)
def test_b5_reading_the_future_before_the_first_key(mask: Any) -> None:
    """B5: an alignment may put queries before key 0, which makes every key the future."""
    assert mask.reads_future()


def test_b5_sizes_of_reading_the_future() -> None:
    """B5: an axis of 1 says nothing of the size, 0 is a size, and wrong sizes are refused in one sentence."""
    assert (allow(np.ones(1, bool)) & ~causal()).reads_future(3, 3)
    assert not where(lambda b, h, p, k: k > -1).reads_future(0, 5)
    for sizes in ((-1, 5), (1.5, 5), (True, 5)):
        with pytest.raises(qkv.ArgumentError, match="reads_future: queries must be a whole number"):
            causal().reads_future(*sizes)  # type: ignore[arg-type]
    with pytest.raises(qkv.ShapeError, match="one batch shape"):
        (causal() & keys([1, 2]) & keys([1, 2, 3])).reads_future(4, 4)


@pytest.mark.parametrize("wanted", [True, 1.5, "0", [1.0]], ids=repr)
def test_g1_rows_are_whole_numbers(wanted: Any) -> None:
    """G1: nothing else is taken for a row, and a list of heads is refused, not cut to its first."""
    a = attention(zeros(3, 2), zeros(3, 2), np.ones((3, 1), F))
    for ask in (a.contributions, a.influence):
        with pytest.raises(qkv.DTypeError, match="query must be whole numbers"):
            ask(wanted)
    with pytest.raises(qkv.DTypeError, match="head must be one whole number"):
        attention(zeros(2, 3, 2), zeros(2, 3, 2), zeros(2, 3, 1)).influence(0, head=[0, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "scale", [np.complex64(1 + 2j), np.array("2.0"), bytearray(b"2"), np.array(True), "2"], ids=repr
)
def test_b1_scale_is_a_real_number(scale: Any) -> None:
    """B1: nothing else is taken for one."""
    with pytest.raises(qkv.DTypeError, match="scale must be one number"):
        attend(zeros(1, 2), zeros(1, 2), zeros(1, 2), scale=scale)


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_b1_an_integer_beyond_every_float_is_refused(name: str) -> None:
    """B1, B2: finite in the compute type."""
    with pytest.raises(qkv.ArgumentError, match=f"{name} must be finite"):
        attend(zeros(1, 2), zeros(1, 2), zeros(1, 2), **{name: 10**400})


def test_a3_a_layer_of_nothing() -> None:
    """A3: no positions, no batch: an empty result."""
    layer = qkv.MultiHead(*np.random.default_rng(0).normal(size=(4, 8, 8)), heads=2)
    assert layer(np.zeros((3, 0, 8))).shape == (3, 0, 8)
    assert layer(np.zeros((0, 4, 8))).shape == (0, 4, 8)


@pytest.mark.parametrize("name", ["layout", "scale", "dropout"])
def test_g1_a_layer_refuses_what_is_its_own(name: str) -> None:
    """G1: layout and scale belong to the layer; passed on they would mean something else."""
    layer = qkv.MultiHead(*np.random.default_rng(0).normal(size=(4, 8, 8)), heads=2)
    with pytest.raises(qkv.UnsupportedError, match=f"{name} is not for a whole layer"):
        layer(np.zeros((2, 3, 8)), **{name: "blhd"})


def test_g2_a_layer_names_its_own_matrices() -> None:
    """G2: mixed weights and strange biases are told at construction."""
    w = np.random.default_rng(0).normal(size=(8, 8))
    with pytest.raises(qkv.DTypeError, match="w_q, w_k, w_v and w_o must have one dtype"):
        qkv.MultiHead(w, w.astype(F), w, w, heads=2)
    with pytest.raises(qkv.DTypeError, match="b_q must be float32 or float64"):
        qkv.MultiHead(w, w, w, w, heads=2, b_q=np.array(["x"] * 8))


def test_c4_an_only_key_is_sole_beside_a_sink(engine: str) -> None:
    """C4: without its only key the row would be zero, sink or no sink."""
    a = attention(zeros(1, 2), zeros(4, 2), np.ones((4, 1), F), mask=keys(2, 3), sink=[0.0])
    found = a.influence(0, vectors=True)
    assert found.sole.tolist() == [False, False, True, False]
    assert found.vectors[2] == -a.output[0]


def test_b5_masks_refuse_the_rest_of_numpy() -> None:
    """B5: & and | combine from either side, also as NumPy functions; everything else is refused in one sentence."""
    array = np.ones((3, 3), bool)
    assert repr(array & causal()) == "allow(<bool (3, 3)>) & causal()"
    assert repr(np.logical_or(array, causal())) == "allow(<bool (3, 3)>) | causal()"
    for wrong in (lambda: causal() ^ first(2), lambda: array ^ causal(), lambda: np.add(array, causal())):
        with pytest.raises(qkv.MaskError, match="combine"):
            wrong()


def test_g2_numbers_of_keys_have_a_limit() -> None:
    """E1, G2: first_key beyond any sequence is one sentence."""
    with pytest.raises(qkv.ArgumentError, match="first_key must be below"):
        qkv.partial(zeros(1, 2), zeros(1, 2), zeros(1, 2), first_key=2**62)


def test_a_narrow_mask_with_a_distant_part_is_asked_about_few_keys(engine: str) -> None:
    """Memory and time of a question follow the keys a row reads, not how far apart they stand."""
    from qkv.attention import Attention
    from qkv.weights import weight_rows

    x = np.zeros((1, 4096, 2), F)
    a: Attention = attention(x, x, x, mask=causal() & (window(20, 0) | first(3)))
    held = max(seen.keys.size for seen in weight_rows(a._problem, a._plan))
    assert held <= 4 * a._plan.block
