"""Clauses G: what cannot be honoured is refused, in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import readings as r
from ..call import Call
from ..case import Case, Size
from .draw import ordinary

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """The cases of this group."""
    yield Case(
        "G1-unknown",
        ("G1",),
        "an argument that no kernel has",
        "edges",
        lambda rng, s: ordinary(rng, s, odd=frozenset({"unknown"})),
        only_refusal=True,
        alternatives=(r.Reading("swallows arguments it does not know", change=lambda c: c),),
        seeds=1,
    )
    yield Case(
        "G2-width",
        ("G2", "A1"),
        "keys narrower than queries",
        "edges",
        _narrow_keys,
        only_refusal=True,
        seeds=1,
    )
    yield Case(
        "G2-heads",
        ("G2", "A2"),
        "3 query heads on 2 key heads",
        "edges",
        lambda rng, s: ordinary(rng, s, H=3, G=2),
        only_refusal=True,
        seeds=1,
    )
    yield Case(
        "G2-values",
        ("G2", "A1"),
        "fewer values than keys",
        "edges",
        _few_values,
        only_refusal=True,
        alternatives=(r.KEYS_WITHOUT_VALUES,),
        seeds=1,
    )


def _narrow_keys(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size)
    return call.but(key=call.key[..., :4])


def _few_values(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size)
    return call.but(value=call.value[:, :, : size.S - 1])
