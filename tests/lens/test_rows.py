"""The quantities of one row against brute force: forbid the key, run the head again (B5, C1, C2, C4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError, ShapeError
from qkv.lens.layer import Layer, Projection
from qkv.lens.reads import interval_reads

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402


def layer(
    *,
    size: int = 7,
    heads: int = 4,
    groups: int = 2,
    width: int = 3,
    seed: int = 0,
    projected: bool = True,
    shared: bool = True,
    sink: bool = False,
    left: int | None = None,
) -> Layer:
    """A captured layer of random numbers, float64, causal."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(2, h, size, width)) for h in (heads, groups, groups))
    positions = np.arange(size)
    return Layer(
        name="layer",
        index=0,
        query=q,
        key=k,
        value=v,
        heads=np.arange(heads),
        groups=np.arange(heads) // (heads // groups),
        rows=positions,
        positions=positions,
        reads=interval_reads(positions[None], causal=True, left=left, exists=None, keys=size),
        bias=None,
        scale=0.7,
        softcap=None,
        sink=rng.normal(size=heads) if sink else None,
        projection=Projection(
            rng.normal(size=(heads, width, 5)) if projected else None,
            None,
            rng.normal(size=(groups, width)) if shared else None,
        ),
    )


def output(one: Layer) -> Any:
    """(width,) of the only row of the only head, through its projection where there is one."""
    out = np.asarray(one.attention().output)[0, 0, 0]
    return out if one.projection.weight is None else out @ one.projection.weight[0]


#: How far float64 sums of a few numbers may be off, relative to the largest of them.
CLOSE = 64 * np.finfo(np.float64).eps


@pytest.mark.parametrize(
    "options", [{}, {"projected": False}, {"shared": False}, {"sink": True}, {"left": 2}, {"size": 1}]
)
@pytest.mark.parametrize("head", [0, 3])
def test_influence_is_what_forbidding_the_key_does(options: dict[str, Any], head: int) -> None:
    whole = layer(**options)
    for query in range(len(whole.rows)):
        seen = lens.row(whole, head, query, sequence=1)
        one = whole.part(batch=1, head=head, rows=np.array([query]))
        before = output(one)
        for key in range(whole.keys):
            without = replace(one, reads=one.reads.without(key))
            relative = np.linalg.norm(before - output(without)) / np.linalg.norm(before)
            if not seen.allowed[key]:
                relative = 0.0
            assert abs(seen.influence[key] - relative) <= CLOSE * max(relative, 1)
            alone = bool(seen.allowed[key]) and seen.allowed.sum() == 1
            assert bool(seen.sole[key]) == alone


def test_row_0_of_a_causal_head_has_a_sole_key() -> None:
    """C2: without its only key the row is the zero row, so the change is the whole of it."""
    seen = lens.row(layer(), 1, 0)
    assert seen.sole.tolist() == [True] + [False] * 6
    assert seen.influence[0] == 1
    assert (seen.weight[0], seen.entropy, seen.effective_keys, seen.mean_distance) == (1, 0, 1, 0)


@pytest.mark.parametrize("options", [{}, {"projected": False}, {"shared": False}, {"sink": True}])
def test_contributions_are_of_values_without_their_shared_bias(options: dict[str, Any]) -> None:
    """value-bias: it is the same for every key, so it is told by itself."""
    whole = layer(**options)
    one = whole.part(batch=0, head=2, rows=np.array([5]))
    seen = lens.row(whole, 2, 5)
    value = one.value[0, 0] - (0 if one.projection.value_bias is None else one.projection.value_bias[0])
    through = np.eye(3) if one.projection.weight is None else one.projection.weight[0]
    each = seen.weight[:, None] * value @ through
    total = each.sum(axis=0)
    np.testing.assert_allclose(seen.norm, np.linalg.norm(each, axis=1), rtol=CLOSE, atol=0)
    np.testing.assert_allclose(seen.norm_share.sum(), 1, rtol=CLOSE)
    np.testing.assert_allclose(
        seen.share, each @ total / (total @ total), rtol=1, atol=CLOSE * np.abs(seen.share).max()
    )
    np.testing.assert_allclose(seen.share.sum(), 1, rtol=CLOSE)
    lengths = np.linalg.norm(each, axis=1).sum()
    assert abs(seen.cancellation - (1 - np.linalg.norm(total) / lengths)) <= CLOSE
    shared = 0 if one.projection.value_bias is None else one.projection.value_bias[0] @ through * seen.weight.sum()
    assert abs(seen.bias_norm - np.linalg.norm(shared)) <= CLOSE * 10
    assert seen.space == ("head" if one.projection.weight is None else "residual")
    assert seen.weight.sum() + seen.sink_share == pytest.approx(1, rel=CLOSE)
    np.testing.assert_array_equal(seen.uniform, [1 / 6] * 6 + [0])


def worked_example(second: float) -> Any:
    """The lesson's example as a captured head: scores 1 and 0."""
    return replace(
        layer(size=2, heads=1, groups=1, width=2, projected=False, shared=False),
        query=np.array([[[[0, 0], [1.0, 0]]]]),
        key=np.array([[[[1.0, 0], [0, 1]]]]),
        value=np.array([[[[10.0, 0], [0, second]]]]),
        scale=1.0,
    )


def test_the_lessons_example_weighs_73_to_27_and_contributes_58_to_42() -> None:
    """value-weighted: weight and contribution are different things, and can rank keys differently."""
    seen = lens.row(worked_example(20.0), 0, 1)
    assert (seen.weight * 100).round().tolist() == [73, 27]
    assert (seen.norm_share * 100).round().tolist() == [58, 42]
    assert seen.top(1) == seen.top(1, "norm") == [0]
    turned = lens.row(worked_example(30.0), 0, 1)
    np.testing.assert_array_equal(turned.weight, seen.weight)
    assert turned.top(1) == [0]
    assert turned.top(1, "norm") == [1]


def test_an_output_of_zero_has_no_shares() -> None:
    """C6."""
    flat = replace(layer(projected=False, shared=False), value=np.zeros((2, 2, 7, 3)))
    seen = lens.row(flat, 0, 3)
    assert np.isnan(seen.share).all()
    assert np.isnan(seen.influence[:4]).all()
    assert seen.influence[4:].tolist() == [0, 0, 0]
    assert np.isnan(seen.cancellation)
    assert seen.to_dict()["cancellation"] is None
    assert seen.to_dict()["share"] == [None] * 7


def test_a_row_without_keys_reads_nothing() -> None:
    """C2."""
    empty = replace(layer(), reads=layer().reads.without(0))
    seen = lens.row(empty, 0, 0)
    assert not seen.allowed.any()
    assert not seen.weight.any()
    assert not seen.uniform.any()
    assert np.isnan(seen.mean_distance)
    assert (seen.entropy, seen.effective_keys, seen.top()) == (0, 0, [])


def test_a_bias_of_minus_infinity_forbids() -> None:
    """B3."""
    bias = np.zeros((1, 1, 7, 7))
    bias[..., 2] = -np.inf
    seen = lens.row(replace(layer(), bias=bias), 1, 4)
    assert seen.allowed.tolist() == [True, True, False, True, True, False, False]
    assert seen.weight[2] == 0


def test_differences_are_signed() -> None:
    a, b = lens.row(layer(), 0, 4), lens.row(layer(), 3, 4)
    change = lens.compare(a, b)
    np.testing.assert_array_equal(change.change, b.weight - a.weight)
    assert abs(change.change.sum()) <= CLOSE
    assert change.moved == pytest.approx(np.abs(b.weight - a.weight).sum() / 2)
    assert change.top(2) == list(np.argsort(-np.abs(change.change), kind="stable")[:2])
    assert not lens.compare(a, a, "influence").change.any()


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (
            lambda: lens.compare(lens.row(layer(), 0, 1), lens.row(layer(size=6), 0, 1)),
            ShapeError,
            "b has 6 keys and a has 7",
        ),
        (
            lambda: lens.compare(lens.row(layer(), 0, 1), lens.row(layer(), 0, 1), "size"),
            ArgumentError,
            "quantity must be",
        ),
        (
            lambda: lens.compare(lens.row(layer(), 0, 1), lens.row(layer(projected=False), 0, 1), "norm"),
            ArgumentError,
            "a is measured in the residual space and b in the head space",
        ),
        (
            lambda: lens.row(layer(), 4, 1),
            ArgumentError,
            "head must be one of the heads kept of layer, 0, 1, 2, 3, but 4 came",
        ),
        (lambda: lens.row(layer(), 0, 7), ArgumentError, "query must be one of the rows kept"),
        (lambda: lens.row(layer(), 0, 1).top(3, "size"), ArgumentError, "by must be"),
    ],
)
def test_wrong_questions_are_refused(asked: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        asked()
