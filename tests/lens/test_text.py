"""Numbers of a whole text: summaries and named scores against the dense weights, spans, and the causal check."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402
from qkv.lens.reads import interval_reads, reads_of_blocks  # noqa: E402

from .test_rows import CLOSE, layer  # noqa: E402

TOKENS = ["a", "b", "a", "c", "b", "a", "b"]


def near(allowed: Any, distance: Any) -> Any:
    """The recency baseline as its docstring says: in proportion to 1 / (1 + |i − j|) over the allowed keys."""
    mass = allowed / (1 + np.abs(distance))
    return mass / np.maximum(mass.sum(axis=-1, keepdims=True), 1e-300)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"left": 2},
        {"sink": True},
        {"size": 1},
        {"projected": False},
        {"both": True},
        {"holes": True},
        {"per_head": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("pairs", [1, 1 << 22])
def test_a_summary_is_made_of_the_weights(options: dict[str, Any], pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["qkv.lens.scores"], "_PAIRS", pairs)
    options = dict(options)
    both, holes, per_head = (options.pop(name, False) for name in ("both", "holes", "per_head"))
    whole = layer(**options)
    size = whole.keys
    i, j = np.indices((size, size))
    if both:
        whole = replace(
            whole, reads=interval_reads(np.arange(size)[None], causal=False, left=None, exists=None, keys=size)
        )
    if holes:
        allow = (i >= j) & ((i + j) % 3 > 0)
        allow[4] = False
        whole = replace(whole, reads=reads_of_blocks(lambda a, b: allow[None, a:b], size))
    if per_head:
        bias = np.where(np.random.default_rng(1).random((1, 4, size, size)) < 0.3, -np.inf, 0.5)
        whole = replace(whole, bias=bias)
    seen = lens.summary(whole, TOKENS[:size], cells=3)
    weight = np.asarray(whole.attention().weights(range(size)))
    allowed = np.broadcast_to(whole.reads.ranges.dense(size)[0], (size, size))
    if per_head:
        allowed = allowed & ~np.isneginf(bias[0]).all(axis=0)
    t = np.array(TOKENS[:size])
    sets = {
        "first": j == 0,
        "current": i == j,
        "previous": j == i - 1,
        "same": (t[i] == t[j]) & (j < i),
        "induction": (t[np.maximum(j - 1, 0)] == t[i]) & (j >= 1) & (j <= i),
    }
    assert set(seen.scores) == set(lens.SCORES) == set(sets)
    np.testing.assert_allclose(seen.received, weight.sum(axis=2), rtol=CLOSE, atol=CLOSE)
    mass = weight.sum(axis=-1)
    with np.errstate(all="ignore"):
        right = (weight * (i - j)).sum(axis=-1) / mass
    np.testing.assert_allclose(seen.mean_distance, right, rtol=CLOSE, atol=CLOSE)
    entropy = np.asarray(whole.attention().entropy())
    np.testing.assert_allclose(seen.entropy, entropy, rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(seen.effective_keys, whole.attention().effective_keys(), rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(seen.sink_share, whole.attention().sink_share(), rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(seen.pooled, whole.attention().pooled(min(size, 3), min(size, 3)), rtol=CLOSE)
    even = allowed / np.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    for name, inside in sets.items():
        inside = inside & allowed
        rows = inside.any(axis=-1)
        score = seen.scores[name]
        assert score.rows.tolist() == [rows.sum()] * 2
        for found, of in ((score.value, weight), (score.recency, near(allowed, i - j)), (score.uniform, even)):
            if not rows.any():
                assert np.isnan(found).all()
                continue
            right = np.broadcast_to((of * inside).sum(axis=-1), (2, 4, size))[:, :, rows].mean(axis=-1)
            np.testing.assert_allclose(found, right, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("options", [{}, {"projected": False}, {"shared": False}, {"sink": True}])
def test_a_sinks_mass_stands_beside_what_it_contributes(options: dict[str, Any]) -> None:
    whole = layer(**options)
    seen = lens.summary(whole)
    for n in range(2):
        for head in range(4):
            rows = [lens.row(whole, head, query, sequence=n) for query in range(7)]
            mass, part = (np.mean([getattr(one, name)[0] for one in rows]) for name in ("weight", "norm_share"))
            np.testing.assert_allclose(seen.sink_mass[n, head], mass, rtol=CLOSE)
            np.testing.assert_allclose(seen.sink_contribution[n, head], part, rtol=CLOSE)
    late = replace(whole, reads=whole.reads.without(0))
    assert np.isnan(lens.summary(late).sink_mass).all()
    assert np.isnan(lens.summary(late).sink_contribution).all()


def test_some_rows_are_summed_up_at_their_places() -> None:
    """rectangular: rows 3, 5 and 6 of seven, each where it stands."""
    whole = layer()
    at = np.array([3, 5, 6])
    part, every = lens.summary(whole.part(rows=at), TOKENS), lens.summary(whole, TOKENS)
    np.testing.assert_allclose(part.mean_distance, every.mean_distance[:, :, at], rtol=CLOSE)
    weight = np.asarray(whole.attention().weights(at))
    np.testing.assert_allclose(part.received, weight.sum(axis=2), rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(part.scores["previous"].value, weight[:, :, range(3), at - 1].mean(axis=-1), rtol=CLOSE)


def test_a_head_made_to_read_the_previous_token_scores_1() -> None:
    """And its baselines do not: the previous token is one of the allowed keys, and the second nearest of them."""
    size = 6
    one = np.eye(size)
    head = replace(
        layer(size=size, heads=1, groups=1),
        query=np.stack([[one]] * 2) * 100,
        key=np.stack([[np.roll(one, 1, axis=1)]] * 2),
        value=np.ones((2, 1, size, 1)),
        projection=lens.Projection(None, None, None),
    )
    seen = lens.summary(head)
    assert set(seen.scores) == {"first", "current", "previous"}
    np.testing.assert_allclose(seen.scores["previous"].value, 1, rtol=CLOSE)
    harmonic = np.cumsum(1 / np.arange(1, size + 1))[1:]
    np.testing.assert_allclose(seen.scores["previous"].recency, (0.5 / harmonic).mean(), rtol=CLOSE)
    np.testing.assert_allclose(seen.scores["previous"].uniform, (1 / np.arange(2, size + 1)).mean(), rtol=CLOSE)


def test_baselines_of_a_row_know_its_keys_and_their_distance_alone() -> None:
    """baseline: beside each row, each span and each found head stand even weights and weights by distance."""
    for options in ({}, {"left": 2}):
        whole = layer(**options)
        allowed = np.broadcast_to(whole.reads.ranges.dense(7)[0], (7, 7))
        i, j = np.indices((7, 7))
        expected = near(allowed, i - j)
        for query in range(7):
            seen = lens.row(whole, 1, query)
            np.testing.assert_allclose(seen.recency, expected[query], rtol=CLOSE)
            np.testing.assert_allclose(seen.uniform, allowed[query] / allowed[query].sum(), rtol=CLOSE)
        assert seen.to_dict()["recency"] == seen.recency.tolist()
        spans = [lens.Span("a", 0, 3), lens.Span("b", 3, 7)]
        table = lens.between(whole, 1, spans, spans, quantity="recency")
        right = [
            [expected[a.start : a.stop, b.start : b.stop].sum() / (a.stop - a.start) for b in spans] for a in spans
        ]
        np.testing.assert_allclose(table, right, rtol=CLOSE)
        found = lens.find(lens.Capture((whole,), None, None), spans[1], spans[0])
        assert {one.recency for one in found} == {table[1, 0]}


def test_tokens_are_one_for_each_key() -> None:
    with pytest.raises(ArgumentError, match="tokens must be one for each of the 7 keys of layer, but 2 came"):
        lens.summary(layer(), ["a", "b"])


# Spans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "how", "spans"),
    [
        (["a\n", "b", " c\n", "d"], "lines", [(0, 1), (1, 3), (3, 4)]),
        (["a\n", "\n", "b\n", "c"], "paragraphs", [(0, 2), (2, 4)]),
        (["a", "\n\nb", "c"], "lines", [(0, 2), (2, 3)]),  # a token belongs where its first character does
        (["<|im_start|>", "user", "hi", "<|im_start|>", "bot"], "turns", [(0, 3), (3, 5)]),
        (["User", ":", " hi\n", "Assistant", ": yo"], "turns", [(0, 3), (3, 5)]),
        (["One. ", "Two", ". ", "Three"], r"(?<=\. )", [(0, 1), (1, 3), (3, 4)]),
        (["x"], "lines", [(0, 1)]),
        ([], "lines", []),
        (["a", "b", "c"], [(0, 1), ("rest", 1, 3)], [(0, 1), (1, 3)]),
    ],
)
def test_a_text_is_cut(tokens: list[str], how: Any, spans: list[tuple[int, int]]) -> None:
    assert [(span.start, span.stop) for span in lens.cut(tokens, how)] == spans


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("(", "spans must be"),
        ([(0, 4)], "must lie within 0…3"),
        ([(1, 1)], "must lie within 0…3"),
        ([5], "each must be .start, stop."),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused(how: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        lens.cut(["a", "b", "c"], how)


def test_spans_add_up_to_the_rows() -> None:
    whole = layer()
    spans = [lens.Span("a", 0, 2), lens.Span("b", 2, 3), lens.Span("c", 3, 7)]
    weight = np.asarray(whole.attention().weights(range(7)))[1, 2]
    for quantity in ("weight", "norm_share", "share", "influence"):
        table = lens.between(whole, 2, spans, spans, quantity=quantity, sequence=1)
        every = (
            weight
            if quantity == "weight"
            else np.stack([getattr(lens.row(whole, 2, i, sequence=1), quantity) for i in range(7)])
        )
        right = [[every[a.start : a.stop, b.start : b.stop].sum() / (a.stop - a.start) for b in spans] for a in spans]
        np.testing.assert_allclose(table, right, rtol=CLOSE, atol=CLOSE)
        if quantity != "influence":
            np.testing.assert_allclose(table.sum(axis=1), 1, rtol=CLOSE)
    late = whole.part(rows=np.arange(3, 7))
    assert np.isnan(lens.between(late, 0, spans, spans)[0]).all()
    with pytest.raises(ArgumentError, match="quantity must be one of"):
        lens.between(whole, 0, spans, spans, quantity="size")


def test_heads_are_found_by_what_they_read() -> None:
    whole = layer()
    seen = lens.Capture((whole, replace(whole, index=1, name="other", query=whole.query * 3)), None, None)
    found = lens.find(seen, (4, 7), lens.Span("start", 0, 2))
    assert len(found) == 8
    assert [one.value for one in found] == sorted((one.value for one in found), reverse=True)
    best = found[0]
    again = lens.between(seen.layer(best.layer), best.head, [lens.Span("", 4, 7)], [lens.Span("", 0, 2)])
    assert best.value == again[0, 0]
    assert best.uniform == pytest.approx((2 / 5 + 2 / 6 + 2 / 7) / 3)


# The model without a key ----------------------------------------------------------------------------------------------


def llama() -> Any:
    pytest.importorskip("transformers")
    from support.tiny_models import inputs, tiny

    return tiny("llama"), inputs("llama", batch=1)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_forbidding_a_key_everywhere_is_masking_its_token(kernel: str) -> None:
    model, given = llama()
    model.set_attn_implementation(kernel)
    mask = torch.ones_like(given["input_ids"])
    mask[0, 3] = 0
    with torch.no_grad():
        p = model(**given).logits[0, -1].double().softmax(-1).numpy()
        positions = torch.arange(mask.shape[1])[None]
        q = model(**given, attention_mask=mask, position_ids=positions).logits[0, -1].double().softmax(-1).numpy()
    effect = lens.forbid(model, given, 3)
    # Two layers in float32 on both sides, by different kernels.
    limit = 200 * np.finfo(np.float32).eps
    assert abs(effect.total_variation - np.abs(p - q).sum() / 2) < limit
    assert abs(effect.kl - (p * np.log(p / q)).sum()) < limit
    assert effect.total_variation > 1e4 * limit / 200
    assert effect.before[0][0] == p.argmax()
    assert effect.after[0][0] == q.argmax()
    assert effect.rows == 2 * 4 * 6
    assert effect.emptied == 0


def test_forbidding_nothing_that_was_read_changes_nothing() -> None:
    """D1: row 8 stands after every row asked, so no bit moves."""
    model, given = llama()
    effect = lens.forbid(model, given, 8, queries=[0, 3])
    assert (effect.total_variation, effect.kl, effect.rows) == (0, 0, 0)
    assert effect.before == effect.after


def test_it_is_forbidden_where_it_was_asked_and_only_there() -> None:
    model, given = llama()
    one = lens.forbid(model, given, 2, layers=1, heads=3, queries=-1)
    assert one.rows == 1
    assert 0 < one.total_variation < lens.forbid(model, given, 2).total_variation
    sole = lens.forbid(model, given, 0, layers=0, heads=[0, 1], queries=[0])
    assert (sole.rows, sole.emptied) == (2, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"key": 9}, "key must be within -9…8, but 9 came"), ({"key": 0, "layers": 2}, "layers must be within 0…1")],
)
def test_what_is_not_there_cannot_be_forbidden(options: dict[str, Any], said: str) -> None:
    model, given = llama()
    with pytest.raises(ArgumentError, match=said):
        lens.forbid(model, given, **options)


def test_a_model_without_a_language_head_is_refused() -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    with pytest.raises(UnsupportedError, match="must carry logits"):
        lens.forbid(Plain(), torch.zeros(1, 2, 3, 4), 0)


def test_a_model_that_calls_torch_itself_can_be_asked_too() -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]

    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    effect = lens.forbid(Plain(), x, 1, heads=0)
    weight = torch.softmax((x[0, 0] @ x[0, 0].T / 2)[-1].masked_fill(torch.arange(5) == 1, -torch.inf), -1)
    right = (weight @ x[0, 0]).double().softmax(-1).numpy()
    after = dict(effect.after)
    np.testing.assert_allclose([after[j] for j in range(4)], right, rtol=64 * np.finfo(np.float32).eps)
