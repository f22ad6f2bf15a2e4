"""Clauses A: axes, grouped heads, lengths of zero, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import readings as r
from ..call import Call, Result
from ..case import Case, Make, Size
from ..tolerance import right
from ..verdict import Mismatch
from .draw import ordinary

__all__ = ["cases"]

CROSS = Size(3, 7)


def cases() -> Iterator[Case]:
    """The cases of this group."""
    yield Case(
        "A1-values",
        ("A1", "F2"),
        "plain attention, L = S",
        "core",
        ordinary,
        alternatives=(r.NO_SCALE,),
        deep=True,
        seeds=3,
    )
    yield Case(
        "A1-cross",
        ("A1", "F2"),
        "more keys than queries",
        "core",
        ordinary,
        about=frozenset({"cross"}),
        sizes=(CROSS, Size(1, 7)),
    )
    yield Case(
        "A1-value-width",
        ("A1",),
        "values wider than keys",
        "core",
        lambda rng, s: ordinary(rng, s, D=8, E=16),
        about=frozenset({"value-width"}),
    )
    yield Case(
        "A1-batch-1",
        ("A1", "G1"),
        "key and value of batch 1 beside queries of batch 2",
        "edges",
        _one_batch_of_keys,
        only_refusal=True,
        alternatives=(r.BROADCAST_BATCH,),
        seeds=1,
    )
    grouped = frozenset({"gqa"})
    yield Case(
        "A2-grouped",
        ("A2",),
        "6 query heads on 2 key heads",
        "core",
        lambda rng, s: ordinary(rng, s, H=6, G=2),
        about=grouped,
        alternatives=(r.INTERLEAVED,),
    )
    yield Case(
        "A2-one",
        ("A2",),
        "4 query heads on 1 key head",
        "core",
        lambda rng, s: ordinary(rng, s, H=4, G=1),
        about=grouped,
    )
    yield Case(
        "A3-no-queries", ("A3",), "L = 0", "edges", ordinary, sizes=(Size(0, 5),), about=frozenset({"cross"}), seeds=1
    )
    yield Case(
        "A3-no-batch", ("A3",), "B = 0", "edges", lambda rng, s: ordinary(rng, s, B=2).but(**_no_batch(rng, s)), seeds=1
    )
    yield Case(
        "A3-no-keys",
        ("A3", "C2"),
        "S = 0: every row is empty",
        "edges",
        ordinary,
        refusal=True,
        alternatives=r.EMPTY,
        sizes=(Size(3, 0),),
        about=frozenset({"cross"}),
        seeds=1,
    )
    yield Case(
        "A3-no-keys-lse",
        ("A3", "C2"),
        "S = 0 and the log-sum-exp",
        "edges",
        lambda rng, s: ordinary(rng, s, wants=frozenset({"lse"})),
        refusal=True,
        alternatives=(*r.EMPTY_LSE, *r.EMPTY),
        sizes=(Size(3, 0),),
        about=frozenset({"cross", "lse"}),
        seeds=1,
    )
    yield Case(
        "A3-no-width",
        ("A3", "G2"),
        "D = 0",
        "edges",
        lambda rng, s: ordinary(rng, s, D=0, E=8),
        only_refusal=True,
        seeds=1,
    )
    for how in ("transposed", "sliced", "negative"):
        yield Case(
            f"A4-{how}",
            ("A4",),
            f"{how} arrays",
            "core",
            _lying(how),
            seeds=1,
        )
    yield Case(
        "A4-expanded",
        ("A4",),
        "key heads expanded with stride 0, S = 33",
        "core",
        _expanded,
        sizes=(Size(4, 33),),
        seeds=1,
    )
    yield Case("A4-inputs", ("A4",), "inputs are left as they are", "core", ordinary, relation=_unchanged, seeds=1)
    yield Case(
        "A4-own-memory",
        ("A4",),
        "the output owns its memory",
        "core",
        ordinary,
        relation=_owned,
        sizes=(Size(1, 1), Size(5, 5)),
        seeds=1,
    )


def _lying(how: str) -> Make:
    return lambda rng, size: ordinary(rng, size, strides=how)


def _one_batch_of_keys(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size)
    return call.but(key=call.key[:1], value=call.value[:1])


def _no_batch(rng: np.random.Generator, size: Size) -> dict[str, Any]:
    call = ordinary(rng, size)
    return {n: getattr(call, n)[:0] for n in ("query", "key", "value")}


def _expanded(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size, H=4)
    key, value = (np.broadcast_to(x[:, :1], x.shape).copy() for x in (call.key, call.value))
    return call.but(key=key, value=value, strides="expanded", mask=rng.random((1, 1, size.L, size.S)) < 0.9)


def _unchanged(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    changed = results[0].facts.get("changed")
    if changed:
        return Mismatch(
            "output", (), 0, 0, 0, f"the kernel wrote to {', '.join(changed)}", f"writes to its {changed[0]}"
        )
    return None


def _owned(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    shared = results[0].facts.get("shares")
    if shared:
        return Mismatch(
            "output", (), 0, 0, 0, f"the output lies in the memory of {shared[0]}", "the output is a view of an input"
        )
    from ..case import differ

    return differ(calls[0], results[0], right(calls[0], arithmetic))
