"""Clauses D: what may not leak, what non-finite input does, what overflows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import readings as r
from ..call import Call
from ..case import Case, Size
from .draw import ordinary, some_allowed

__all__ = ["cases"]

#: Ways to forbid the last key to all rows but the last, or to all of them: name -> (features, fields).
_WAYS: dict[str, tuple[frozenset[str], Callable[[Size], dict[str, Any]]]] = {
    "mask": (frozenset(), lambda s: {"mask": _all_but_last(s)}),
    "bias": (frozenset({"bias"}), lambda s: {"bias": np.where(_all_but_last(s), 0.0, -np.inf)}),
    "causal": (frozenset({"causal"}), lambda s: {"causal": True}),
    "lengths": (frozenset({"lengths"}), lambda s: {"lengths": np.array([s.S - 1, s.S - 1])}),
    "segments": (frozenset({"segments"}), lambda s: {"segments": (np.zeros(s.L), np.arange(s.S) // (s.S - 1))}),
    "window": (frozenset({"window"}), lambda s: {"causal": True, "window": (2, 0)}),
}


def _all_but_last(size: Size) -> Any:
    return np.arange(size.S)[None, None, None, :] < size.S - 1


def cases() -> Iterator[Case]:
    """The cases of this group."""
    for way, (about, fields) in _WAYS.items():
        for part in ("key", "value"):
            yield Case(
                f"D1-{part}-large-{way}",
                ("D1",),
                f"a forbidden {part} of 30000, forbidden by {way}",
                "core",
                _poked(part, 3e4, fields),
                about=about,
                seeds=1,
            )
            yield Case(
                f"D1-{part}-nan-{way}",
                ("D1",),
                f"a forbidden {part} of NaN, forbidden by {way}",
                "strict",
                _poked(part, float("nan"), fields),
                about=about,
                refusal=way in ("causal", "window"),
                alternatives=(r.NAN_CROSSES, r.INFINITY_CROSSES, r.NAN_FILLS),
                promise="nan isolation",
                seeds=1,
            )
        yield Case(
            f"D1-value-inf-{way}",
            ("D1",),
            f"a forbidden value of infinity, forbidden by {way}",
            "strict",
            _poked("value", float("inf"), fields),
            about=about,
            refusal=way in ("causal", "window"),
            alternatives=(r.NAN_CROSSES, r.INFINITY_CROSSES, r.NAN_FILLS),
            promise="nan isolation",
            seeds=1,
        )
    yield from _nonfinite()
    yield from _overflow()


def _poked(part: str, number: float, fields: Callable[[Size], dict[str, Any]]) -> Any:
    def make(rng: np.random.Generator, size: Size) -> Call:
        call = ordinary(rng, size, **fields(size))
        array = getattr(call, part).copy()
        array[:, :, -1] = number
        return call.but(**{part: array})

    return make


def _nonfinite() -> Iterator[Case]:
    silent = (
        r.NAN_SKIPPED,
        r.NAN_ZEROED,
        r.NAN_COLUMNS,
        r.INFINITY_FLOWS,
        r.MINUS_INFINITY_DROPPED,
        r.MINUS_INFINITY_ZERO,
        r.INFINITY_THROUGH_MASK,
        r.NAN_CROSSES,
        r.INFINITY_CROSSES,
        r.NAN_FILLS,
    )
    for part in ("query", "key", "value"):
        for name, number in (("nan", float("nan")), ("inf", float("inf"))):
            yield Case(
                f"D2-{part}-{name}",
                ("D2",),
                f"{name} in a {part} that some rows read",
                "edges",
                _reached(part, number),
                refusal=True,
                alternatives=silent,
                seeds=1,
            )
    yield Case(
        "D2-underflow",
        ("D2",),
        "NaN in a value whose weight underflows to 0",
        "edges",
        _underflowing,
        refusal=True,
        alternatives=silent,
        seeds=1,
    )
    yield Case(
        "D2-empty-query",
        ("D2", "C2"),
        "a NaN query that may read nothing",
        "edges",
        _empty_query,
        refusal=True,
        alternatives=r.EMPTY,
        seeds=1,
    )


def _reached(part: str, number: float) -> Any:
    def make(rng: np.random.Generator, size: Size) -> Call:
        call = ordinary(rng, size, mask=some_allowed(rng, 1, 1, size.L, size.S))
        array = getattr(call, part).copy()
        array[0, :, 1, 3] = number
        return call.but(**{part: array})

    return make


def _underflowing(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size)
    query, key, value = (x.copy() for x in (call.query, call.key, call.value))
    query[..., 0], key[..., 0], key[:, :, 1, 0] = 60.0, 0.0, -60.0
    value[0, :, 1, 0] = np.nan
    return call.but(query=query, key=key, value=value)


def _empty_query(rng: np.random.Generator, size: Size) -> Call:
    mask = some_allowed(rng, 1, 1, size.L, size.S)
    mask[..., 1, :] = False
    call = ordinary(rng, size, mask=mask)
    query = call.query.copy()
    query[:, :, 1] = np.nan
    return call.but(query=query)


def _overflow() -> Iterator[Case]:
    halves = ("float16", "bfloat16")
    yield Case(
        "D3-half",
        ("D3",),
        "half precision, q = k = 300, D = 64: a score of 720,000",
        "core",
        lambda rng, s: Call(
            np.full((1, 1, 1, 64), 300.0), np.full((1, 1, 2, 64), 300.0), np.array([[[[1.0], [3.0]]]]), scale=0.125
        ),
        dtypes=halves,
        seeds=1,
    )
    yield Case(
        "D3-score",
        ("D3",),
        "a score that overflows",
        "edges",
        lambda rng, s: _scores(rng, [1e20, 1e18, 0]),
        refusal=True,
        alternatives=(r.EMPTY_ZERO, r.NAN_SKIPPED),
        dtypes=("float32", "bfloat16"),
        seeds=1,
    )
    yield Case(
        "D3-minus",
        ("D3",),
        "a score of -inf beside a finite one",
        "edges",
        lambda rng, s: _scores(rng, [-1e20, 1e-20, 0]),
        refusal=True,
        dtypes=("float32", "bfloat16"),
        seeds=1,
    )
    yield Case(
        "D3-mixture",
        ("D3",),
        "four equal keys with v = 2e38 give 2e38",
        "edges",
        lambda rng, s: Call(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 4, 1)), np.full((1, 1, 4, 1), 2e38)),
        alternatives=(r.MIXTURE_INFINITE,),
        dtypes=("float32", "bfloat16"),
        seeds=1,
    )


def _scores(rng: np.random.Generator, keys: list[float]) -> Call:
    value = np.arange(1.0, len(keys) + 1).reshape(1, 1, -1, 1)
    return Call(np.full((1, 1, 1, 1), 1e20), np.array(keys).reshape(1, 1, -1, 1), value, scale=1.0)
