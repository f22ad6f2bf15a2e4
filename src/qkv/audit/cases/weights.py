"""Clauses C: softmax, empty rows, stand-ins, sink, log-sum-exp, ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import readings as r
from ..call import Call, Result
from ..case import Case, Size, differ
from ..faults import SENTINELS
from ..tolerance import right
from ..verdict import Mismatch
from .draw import ordinary, some_allowed, uniform

__all__ = ["cases"]

LSE, SINK, WEIGHTS = frozenset({"lse"}), frozenset({"sink"}), frozenset({"weights"})


def cases() -> Iterator[Case]:
    """The cases of this group."""
    yield Case("C1-large-scores", ("C1",), "scores of ±3000", "core", lambda rng, s: _large(ordinary(rng, s)))
    yield Case(
        "C1-forbidden-maximum",
        ("C1", "D1"),
        "the largest score is a forbidden one",
        "core",
        _forbidden_maximum,
        seeds=1,
    )
    yield Case(
        "C1-weights",
        ("C1",),
        "weights: 0 where forbidden, adding up to 1",
        "core",
        lambda rng, s: ordinary(rng, s, wants=WEIGHTS, mask=some_allowed(rng, 1, 1, s.L, s.S)),
        about=WEIGHTS,
    )
    yield from _empty()
    yield Case(
        "C3-low-score",
        ("C3", "D1"),
        "an allowed score of -20000 beats a forbidden 0",
        "core",
        lambda rng, s: Call(_a([-20000]), _a([1, 0]), _a([1, 100]), scale=1.0, mask=np.array([[True, False]])),
        alternatives=SENTINELS,
        seeds=1,
    )
    yield Case(
        "C3-lowest-score",
        ("C3",),
        "an allowed score of -3.2e38 beats a forbidden 0",
        "edges",
        lambda rng, s: Call(_a([-1.8e19]), _a([1.8e19, 0]), _a([1, 100]), scale=1.0, mask=np.array([[True, False]])),
        refusal=True,
        alternatives=(r.SET_LOW, r.SET_MIN, *r.EMPTY),
        seeds=1,
        dtypes=("float32", "bfloat16"),
    )
    yield Case(
        "C4-sink",
        ("C4", "G1"),
        "a sink takes part in the denominator",
        "core",
        lambda rng, s: ordinary(rng, s, sink=np.array([1.0, -0.5])),
        about=SINK,
    )
    yield Case(
        "C4-sink-lse",
        ("C4", "C5"),
        "and in the log-sum-exp",
        "core",
        lambda rng, s: ordinary(rng, s, sink=np.array([1.0, -0.5]), wants=LSE),
        about=SINK | LSE,
        alternatives=(r.LSE_WITHOUT_SINK, r.BASE_TWO),
    )
    yield Case(
        "C4-sink-empty",
        ("C4", "C2"),
        "a row with a sink and no key is 0",
        "core",
        lambda rng, s: uniform([1, 3], 2, mask=np.array([[True, False], [False, False]]), sink=np.array([0.5])),
        about=SINK,
        seeds=1,
    )
    yield Case(
        "C5-lse",
        ("C5",),
        "the log-sum-exp is natural",
        "core",
        lambda rng, s: ordinary(rng, s, wants=LSE),
        about=LSE,
        alternatives=(r.BASE_TWO,),
        deep=True,
    )
    yield Case(
        "C5-lse-type",
        ("C5",),
        "the log-sum-exp of half precision is float32",
        "edges",
        lambda rng, s: ordinary(rng, s, wants=LSE),
        about=LSE,
        relation=_lse_type,
        dtypes=("float16", "bfloat16"),
        seeds=1,
    )
    yield Case(
        "C6-ties",
        ("C6",),
        "of equal weights the lower index comes first",
        "core",
        lambda rng, s: uniform([1, 2, 3, 4, 5], 1, wants=frozenset({"top"})),
        about=frozenset({"top"}),
        relation=_ties,
        seeds=1,
    )


def _empty() -> Iterator[Case]:
    first_only = np.array([[True, False], [False, False]])
    yield Case(
        "C2-mask",
        ("C2",),
        "a row that may read nothing",
        "edges",
        lambda rng, s: uniform([1, 3], 2, mask=first_only),
        refusal=True,
        alternatives=r.EMPTY,
        seeds=1,
    )
    yield Case(
        "C2-neighbours",
        ("C2",),
        "one empty row among others, two batches and heads",
        "edges",
        _one_empty_row,
        refusal=True,
        alternatives=r.EMPTY,
    )
    yield Case(
        "C2-lengths",
        ("C2", "B5"),
        "a sequence of length 0",
        "edges",
        lambda rng, s: ordinary(rng, s, lengths=np.array([0, s.S])),
        about=frozenset({"lengths"}),
        refusal=True,
        alternatives=r.EMPTY,
        seeds=1,
    )
    yield Case(
        "C2-lse",
        ("C2", "C5"),
        "the log-sum-exp of a row that may read nothing is -inf",
        "edges",
        lambda rng, s: uniform([1, 3], 2, mask=first_only, wants=LSE),
        about=LSE,
        refusal=True,
        alternatives=(*r.EMPTY_LSE, *(_and(e, x) for e in r.EMPTY for x in (*r.EMPTY_LSE, None))),
        seeds=1,
    )
    yield Case(
        "C2-grad",
        ("C2",),
        "gradients of a row that may read nothing are 0",
        "edges",
        lambda rng, s: uniform([1, 3], 2, mask=first_only, wants=frozenset({"grad"}), cotangent=np.ones((1, 1, 2, 1))),
        about=frozenset({"grad"}),
        refusal=True,
        alternatives=(
            GRAD_NAN,
            *(_and(e, None) for e in r.EMPTY),
            *(_and(e, GRAD_NAN) for e in r.EMPTY),
            *(_and(e, GRAD_MEAN) for e in r.EMPTY),
            *(_and(e, GRAD_TWICE) for e in r.EMPTY),
        ),
        seeds=1,
    )


def _and(first: r.Reading, second: r.Reading | None) -> r.Reading:
    """Two ways to finish an answer, one after the other."""
    if second is None:
        return first

    def finish(call: Call, answer: Any) -> Any:
        assert first.finish is not None
        assert second.finish is not None
        out = first.finish(call, answer)
        return None if out is None else second.finish(call, out)

    return r.Reading(f"{first.name}; {second.name}", None, finish)


def _grad(numbers: dict[str, Any], name: str) -> r.Reading:
    def finish(call: Call, answer: Any) -> Any:
        parts = dict(answer.parts)
        for part, number in numbers.items():
            if part not in parts:
                return None
            want = np.broadcast_to(np.asarray(number, np.float64), parts[part][0].shape)
            parts[part] = (want, np.full(want.shape, 1e-2))
        return answer._replace(parts=parts)

    return r.Reading(name, None, finish)


GRAD_NAN = _grad({"dq": [[[[0.0], [np.nan]]]], "dk": np.nan, "dv": np.nan}, "its gradient is NaN")
#: The cotangents are 1: the first value gets the row that reads it, and both get half of the empty row.
GRAD_TWICE = _grad({"dv": [[[[2.0], [1.0]]]]}, "its gradient flows to forbidden values, once for each")
GRAD_MEAN = _grad({"dv": [[[[1.5], [0.5]]]]}, "its gradient flows to forbidden values")


def _a(numbers: list[float]) -> Any:
    return np.asarray(numbers, np.float64).reshape(1, 1, -1, 1)


def _large(call: Call) -> Call:
    return call.but(query=call.query * 1000)


def _forbidden_maximum(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size)
    key = call.key.copy()
    key[:, :, 1] = 0
    query = call.query.copy()
    query[..., 0], key[:, :, 1, 0] = 100.0, 40.0
    mask = np.ones((1, 1, size.L, size.S), np.bool_)
    mask[..., 1] = False
    return call.but(query=query, key=key, mask=mask)


def _one_empty_row(rng: np.random.Generator, size: Size) -> Call:
    mask = some_allowed(rng, 2, 2, size.L, size.S)
    mask[0, 1, 2] = False
    return ordinary(rng, size, mask=mask)


def _lse_type(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    said = results[0].dtypes.get("lse", "")
    if said == "float32":
        return differ(calls[0], results[0], right(calls[0], arithmetic))
    return Mismatch(
        "lse", (), 0, 0, 0, f"the log-sum-exp of {calls[0].dtype} input is {said}", f"the log-sum-exp is {said}"
    )


def _ties(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    keys = results[0].parts.get("top_keys")
    if keys is None:
        return Mismatch("top_keys", (), 0, 0, 0, "top_keys are missing")
    found = keys.reshape(-1)[:3].tolist()
    if found != [0.0, 1.0, 2.0]:
        return Mismatch(
            "top_keys",
            (0,),
            0.0,
            float(found[0]),
            0.0,
            f"keys {found}, should be [0, 1, 2]",
            "ties take a higher index",
        )
    return None
