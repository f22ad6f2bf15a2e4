"""Caches on the short way, at any length: the long way's bits and the long way's errors, or nothing (B6, B7, F3).

A recipe for a cache is found at every length, so each is asked again after every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import Cache, alibi, attend, attention, causal, first, keys, recipes, window
from support.arrays import DTYPES, cast
from support.libraries import library
from support.twice import agree, long_way, outcome

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_engine")]


@pytest.fixture(autouse=True)
def _nothing_remembered():
    recipes.forget()
    yield
    recipes.forget()


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return cast(rng.standard_normal(shape), dtype)


#: Rules by how far they reach, and some that are none of those.
MASKS: dict[str, Any] = {
    "none": lambda: None,
    "causal": causal,
    "window": lambda: window(3, 1),
    "open before": lambda: window(None, 2),
    "open behind": lambda: window(2, None),
    "both": lambda: causal() & window(5, 0),
    "twice": lambda: window(9, 2) & window(4, None) & causal(),
    "told": lambda: causal(align="end"),
    "at the start": lambda: causal(align="start"),
    "first": lambda: first(2) | window(2, 0),
    "lengths": lambda: keys(3) & causal(),
}


@st.composite
def steps(draw: Any) -> dict[str, Any]:
    batch, dtype = draw(st.sampled_from([(), (1,), (2,), (2, 2)])), draw(st.sampled_from(DTYPES))
    groups, sharing, paged = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3])), draw(st.integers(0, 3)) == 0
    halves = {"float32": "bfloat16", "float64": "float16"}
    return {
        "seed": draw(st.integers(0, 2**32 - 1)),
        "batch": batch,
        "dtype": dtype,
        "groups": groups,
        "heads": groups * sharing,
        "cache": {
            "page": draw(st.sampled_from([1, 3, 16])) if paged else None,
            "window": draw(st.none() | st.integers(0, 6)) if paged else None,
            "storage": draw(st.none() | st.just(halves.get(dtype))),
        },
        "tokens": draw(st.lists(st.sampled_from([0, 1, 1, 2, 5]), min_size=1, max_size=4)),
        "ragged": draw(st.booleans()),
        "trim": draw(st.booleans()),
        "queries": draw(st.sampled_from([None, 1, 2, 3])),
        "mask": draw(st.sampled_from(sorted(MASKS))),
        "alibi": draw(st.booleans()),
        "sink": draw(st.booleans()),
        "planted": draw(st.integers(0, 3)) == 0,
        "words": draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "empty": st.sampled_from(["zero", "raise"]),
                    "nonfinite": st.sampled_from(["propagate", "raise"]),
                    "softcap": st.just(4.0),
                    "scale": st.just(0.5),
                    "layout": st.sampled_from(["bhsd", "blhd"]),
                },
            )
        ),
    }


@given(case=steps())
def test_f3_every_step_is_the_long_way(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    batch, groups, dtype = case["batch"], case["groups"], case["dtype"]
    cache = Cache(**case["cache"])
    bias = {"bias": alibi(2.0 ** -np.arange(case["heads"]))} if case["alibi"] else {}
    sink = {"sink": rng.standard_normal(case["heads"])} if case["sink"] else {}

    def asked(tokens: int) -> None:
        rows = case["queries"] or max(tokens, 1)
        q = numbers(rng, (*batch, case["heads"], rows, 8), dtype)
        for ask in (attend, attention):
            for parts in ((cache,), (cache.key, cache.value)):
                agree(lambda a=ask, p=parts: a(q, *p, mask=MASKS[case["mask"]](), **bias, **sink, **case["words"]))

    for tokens in case["tokens"]:
        k, v = (numbers(rng, (*batch, groups, tokens, width), dtype) for width in (8, 5))
        if case["planted"] and k.size:
            k.reshape(-1)[0] = rng.choice([np.nan, np.inf])
        real = rng.integers(0, tokens + 1, batch) if case["ragged"] else None
        try:
            cache.append(k, v, lengths=real)
        except qkv.QkvError:  # an infinity that the cache's storage has no room for
            return
        asked(tokens)
    if case["trim"] and case["cache"]["window"] is None:
        cache.trim(cache.lengths // 2)
        asked(1)


def remembered(*arguments: Any, **words: Any) -> bool:
    attend(*arguments, **words)
    before = len(recipes._recipes)
    attend(*arguments, **words)
    return bool(before == len(recipes._recipes) == 1)


@pytest.mark.parametrize("name", MASKS)
def test_what_is_remembered_whatever_the_length(name):
    rng = np.random.default_rng(0)
    cache = Cache()
    for length in (5, 1, 1, 70, 1):
        cache.append(*(numbers(rng, (2, 1, length, 4), "float32") for _ in range(2)))
        attend(numbers(rng, (2, 2, 1, 4), "float32"), cache, mask=MASKS[name]())
    assert len(recipes._recipes) == (
        name in ("none", "causal", "window", "open before", "open behind", "both", "twice")
    )


def test_f3_threads_and_splits_follow_the_length():
    """From keys that one thread does alone to keys whose splits two threads share."""
    rng = np.random.default_rng(1)
    cache, q = Cache(), numbers(rng, (1, 2, 1, 16), "float32")
    with qkv.threads(2):
        for length in (3, 100, 1945, 1, 3000, 1):
            cache.append(*(numbers(rng, (1, 2, length, 16), "float32") for _ in range(2)))
            agree(lambda: attend(q, cache, mask=causal()))
        (recipe,) = recipes._recipes.values()
    assert next((threads, spread) for _, threads, spread in recipe.by_length) == (2, True)
    assert recipe.by_length[-1] == (1, 1, False)


def test_answers_are_of_the_cache_as_it_was():
    rng = np.random.default_rng(2)
    cache, q = Cache(), numbers(rng, (1, 2, 1, 4), "float32")
    cache.append(*(numbers(rng, (1, 1, 9, 4), "float32") for _ in range(2)))
    asked = [attention(q, cache, mask=causal()) for _ in range(3)]
    right = asked[0].received()
    for _ in range(9):
        cache.append(*(numbers(rng, (1, 1, 20, 4), "float32") for _ in range(2)))
    for one in asked[1:]:
        assert (one.received() == right).all()
        assert one.weights([0]).shape[-1] == 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_a4_tensors_ask_caches_of_either_library(dtype):
    torch = library("torch")
    rng = np.random.default_rng(3)
    k, v = (numbers(rng, (1, 2, 7, 4), "float32") for _ in range(2))
    q = torch.from_numpy(numbers(rng, (1, 4, 2, 4), "float32")).to(getattr(torch, dtype))
    theirs = Cache().append(*(torch.from_numpy(x).to(q.dtype) for x in (k, v)))
    mine = Cache().append(*(cast(x.astype(np.float64), dtype) for x in (k, v)))
    for cache in (theirs, mine):
        for ask in (attend, attention):
            agree(lambda c=cache, a=ask: a(q, c, mask=causal()))
    graded = q.clone().requires_grad_()
    assert outcome(lambda: attend(graded, theirs)) == long_way(lambda: attend(graded, theirs))


LOOKALIKES: dict[str, Any] = {
    "further": lambda q, c: [attend(q, c, mask=window(2, 0)), attend(q, c, mask=window(3, 0))],
    "the other side": lambda q, c: [attend(q, c, mask=window(0, 2)), attend(q, c, mask=window(2, 0))],
    "no rule": lambda q, c: [attend(q, c), attend(q, c, mask=causal())],
    "its array": lambda q, c: [attend(q, c), attend(q, c.key.array, c.value.array)],
    "a sink": lambda q, c: [attend(q, c), attend(q, c, sink=np.ones(2))],
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_g1_no_call_gets_another_ones_answer(name):
    rng = np.random.default_rng(4)
    cache = Cache().append(*(numbers(rng, (1, 1, 9, 4), "float32") for _ in range(2)))
    q = numbers(rng, (1, 2, 3, 4), "float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "known", lambda *_: (None, None))
        right = LOOKALIKES[name](q, cache)
    for _ in range(3):
        for found, wanted in zip(LOOKALIKES[name](q, cache), right, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_g1_what_is_no_plain_cache_takes_the_long_way():
    rng = np.random.default_rng(5)
    q = numbers(rng, (1, 1, 1, 4), "float32")
    cache, other = (Cache().append(*(numbers(rng, (1, 1, 3, 4), "float32") for _ in range(2))) for _ in range(2))
    assert remembered(q, cache)
    for call in (
        lambda: attend(q, cache, cache.value),
        lambda: attend(q, cache.key, other.value),
        lambda: attend(q, cache.value, cache.key),
        lambda: attend(q, cache.key),
        lambda: attend(q, Cache()),
        lambda: attend(q[..., :3], cache),
        lambda: attend(q.astype(np.float64), cache),
        lambda: attend(q, cache, mask=np.ones((1, 3), bool)),
        lambda: attend(q, cache, bias=np.zeros((1, 3), np.float32)),
        lambda: attend(q, cache, mask=causal(align=5)),
    ):
        agree(call)


#: What a recipe could forget, and the check that sees it.
FORGETFUL = {
    "the side behind": (recipes, "_reach", lambda right: lambda mask: right(mask) and (right(mask)[0], -1)),
    "the side before": (recipes, "_reach", lambda right: lambda mask: right(mask) and (-1, right(mask)[1])),
    "an alignment": (recipes, "_reach", lambda right: lambda mask: (-1, 0)),
    "rows appended": (
        Cache,
        "standing",
        lambda right: lambda self, rows: (*right(self, -1)[:2], rows, *right(self, -1)[3:]),
    ),
    "what is forgotten": (
        Cache,
        "standing",
        lambda right: lambda self, rows: (*right(self, rows)[:3], None, *right(self, rows)[4:]),
    ),
}


@pytest.mark.parametrize("fault", FORGETFUL)
def test_a_forgetful_recipe_is_caught(fault, monkeypatch):
    place, name, wrong = FORGETFUL[fault]
    monkeypatch.setattr(place, name, wrong(getattr(place, name)))
    rng = np.random.default_rng(6)

    def check() -> None:
        for mask in (causal() & window(2, 0), causal(align="start"), causal()):
            recipes.forget()
            cache = Cache(window=2) if fault == "what is forgotten" else Cache()
            for _ in range(2):
                cache.append(*(numbers(rng, (2, 1, 5, 4), "float32") for _ in range(2)), lengths=[5, 3])
                q = numbers(rng, (2, 1, 5 if fault == "rows appended" else 2, 4), "float32")
                agree(lambda m=mask, c=cache, q=q: attend(q, c, mask=m, empty="zero"))

    with pytest.raises(AssertionError):
        check()
