"""The captured head is what it says: shapes, tokens, and softmax in float64 gives the model's own output."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.real import RealHead, load_head

U = float(np.finfo(np.float32).eps) / 2  # unit roundoff of the model's arithmetic
EXP_ULPS = 20  # what vectorised float32 exponentials promise, in units in the last place


@pytest.fixture(scope="module")
def head() -> RealHead:
    return load_head()


def attend(head: RealHead, *, scale: float | None = None, causal: bool = True, order: tuple[int, ...] = (0, 1, 2)):
    """The definition in float64 and, per entry, how far float32 arithmetic may stray from it.

    A score is a sum of D products, scaled and shifted by the maximum: it is off by at most gamma(D + 3) times the same
    sum of absolute values. Twice that (numerator and denominator), the exponential, and the two sums over S keys bound
    the relative error of every weight; times sum(weight * |value|) this bounds the output, whatever the order of sums.
    """
    query, key, value = (array.astype(np.float64) for array in (head.query[list(order)], head.key, head.value))
    scale = head.scale if scale is None else scale
    allowed = np.tril(np.ones((query.shape[1], key.shape[1]), bool)) if causal else True
    scores = np.where(allowed, scale * query @ key.transpose(0, 2, 1), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    size = np.where(allowed, abs(scale) * np.abs(query) @ np.abs(key).transpose(0, 2, 1), 0).max(-1, keepdims=True)
    relative = 2 * (query.shape[-1] + 3) * U * size + 2 * EXP_ULPS * 2 * U + 2 * key.shape[1] * U
    return weights @ value, np.expm1(relative) * (weights @ np.abs(value)), weights


def test_shapes_and_types(head: RealHead):
    length = len(head.tokens)
    assert head.query.shape == head.output.shape == (3, length, 64)
    assert head.key.shape == head.value.shape == (1, length, 64)
    assert {array.dtype.name for array in (head.query, head.key, head.value, head.output)} == {"float32"}
    assert all(np.isfinite(array).all() for array in (head.query, head.key, head.value, head.output))
    assert head.heads == (3, 4, 5)
    assert {h // 3 for h in head.heads} == {head.key_value_head}  # A2: query head h reads key/value head h // (H // G)
    assert head.scale == 64**-0.5


def test_tokens_join_to_the_text(head: RealHead):
    text = "".join(head.tokens)
    assert text.startswith("Alice was beginning to get very tired of sitting by her sister on the bank,")
    assert text.endswith("just in time to see it pop down a large rabbit-hole under the hedge.")
    assert head.text == "Alice's Adventures in Wonderland (Lewis Carroll, 1865)"
    assert (head.model, head.licence) == ("SmolLM2-135M-Instruct", "Apache-2.0")


def test_the_definition_gives_the_models_own_output(head: RealHead):
    output, bound, _ = attend(head)
    assert (np.abs(head.output - output) <= bound).all()


@pytest.mark.parametrize("fault", [{"scale": 1.0}, {"scale": 0.124}, {"causal": False}, {"order": (0, 2, 1)}], ids=str)
def test_a_wrong_reading_is_beyond_the_bound(head: RealHead, fault: dict[str, object]):
    output, bound, _ = attend(head, **fault)
    assert (np.abs(head.output - output) > bound).mean() > 0.5


def test_the_default_query_is_worth_looking_at(head: RealHead):
    """The fourth rabbit reads what followed the three before it, and the sink."""
    _, _, weights = attend(head)
    row = weights[head.default_head, head.default_query]
    earlier = [i for i in range(head.default_query) if head.tokens[i].lower() == head.tokens[head.default_query]]
    assert head.tokens[head.default_query] == " rabbit"
    assert len(earlier) == 3
    assert set(np.argsort(-row)[:4]) == {0, *(i + 1 for i in earlier)}


def test_every_call_gives_arrays_of_its_own():
    first, second = load_head(), load_head()
    assert not np.shares_memory(first.query, second.query)
    assert first.query.flags.writeable
