"""Clauses F: types, accuracy, bits that do not depend on the neighbours, repetition. And long sequences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import readings as r
from ..call import Array, Call, Result
from ..case import Case, Size, agree, differ
from ..tolerance import right
from ..verdict import Mismatch
from .draw import ordinary

__all__ = ["LONG", "cases"]

#: Long enough that what is lost of it hides from `allclose(1e-2)`.
LONG = 8192


def cases() -> Iterator[Case]:
    """The cases of this group."""
    yield Case(
        "F1-output-type",
        ("F1",),
        "the output has the query's type",
        "core",
        ordinary,
        relation=_of_the_query,
        seeds=1,
    )
    yield Case(
        "F1-mixed",
        ("F1", "G1"),
        "float32 queries beside float16 keys",
        "edges",
        lambda rng, s: ordinary(rng, s, key_dtype="float16"),
        only_refusal=True,
        alternatives=(r.PROMOTED,),
        dtypes=("float32",),
        seeds=1,
    )
    yield Case(
        "F2-spread",
        ("F2",),
        "scores from 0 to 40 apart",
        "core",
        lambda rng, s: _scaled(ordinary(rng, s, D=16), 8.0),
        sizes=(Size(33, 33),),
    )
    yield from _long()
    yield from _bits()


def _of_the_query(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    said, wanted = results[0].dtypes.get("output", ""), calls[0].dtype
    if said != wanted:
        words = f"output is {said} for {wanted} input"
        return Mismatch("output", (), 0, 0, 0, words, words)
    return differ(calls[0], results[0], right(calls[0], arithmetic))


def _scaled(call: Call, by: float) -> Call:
    return call.but(query=call.query * by)


# Long. -------------------------------------------------------------------------------------------------------------


def _long() -> Iterator[Case]:
    causal = frozenset({"causal"})
    yield Case(
        "F2-long",
        ("F2", "C1"),
        "8,192 keys, each 256 of them in a column of their own",
        "core",
        _columns,
        about=frozenset({"cross"}),
        sizes=(Size(4, LONG),),
        seeds=1,
    )
    yield Case(
        "F2-long-causal",
        ("F2", "B5", "D1"),
        "8,192 causal rows, large values right behind the rows judged",
        "core",
        _future,
        about=causal,
        sizes=(Size(LONG, LONG),),
        seeds=1,
    )
    yield Case(
        "B5-long-window",
        ("B5",),
        "8,192 rows, window(255, 0), large values right outside",
        "edges",
        _edges_of_window,
        about=causal | {"window"},
        alternatives=r.WINDOWS,
        sizes=(Size(LONG, LONG),),
        seeds=1,
    )
    yield Case(
        "B5-long-lengths",
        ("B5", "D1"),
        "8,000 of 8,192 keys, large values right behind",
        "core",
        _behind_lengths,
        about=frozenset({"cross", "lengths"}),
        sizes=(Size(4, LONG),),
        seeds=1,
    )


def _columns(rng: np.random.Generator, size: Size) -> Call:
    """Each column of the output is the mass of 256 keys, so that no key can be lost without being seen in one."""
    E = max(size.S // 256, 1)
    call = ordinary(rng, size, B=1, H=1, D=8, E=E)
    value = np.zeros((1, 1, size.S, E))
    value[0, 0, np.arange(size.S), np.minimum(np.arange(size.S) // 256, E - 1)] = 1
    value[0, 0, -64:] *= 100
    return call.but(query=call.query / 8, value=value)


def _judged(rng: np.random.Generator, size: Size) -> tuple[int, ...]:
    n = size.L
    marks = {0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 255, 256, 257, n // 2 - 1, n // 2, n - 65, n - 64, n - 2, n - 1}
    marks |= {int(i) for i in rng.integers(0, n, 6)}
    return tuple(sorted(i for i in marks if 0 <= i < n))


def _future(rng: np.random.Generator, size: Size) -> Call:
    rows = _judged(rng, size)
    call = ordinary(rng, size, B=1, H=1, causal=True, rows=rows)
    value = call.value.copy()
    for at, row in enumerate(rows):
        if row + 1 < size.S:
            value[0, 0, row + 1] = 0
            value[0, 0, row + 1, at % 8] = 4000.0
    return call.but(query=call.query / 8, value=value)


def _edges_of_window(rng: np.random.Generator, size: Size) -> Call:
    call = _future(rng, size).but(window=(255, 0))
    value = call.value.copy()
    assert call.rows is not None
    for row in call.rows:
        if row >= 256:
            value[0, 0, row - 256, :] = -3000.0
            value[0, 0, row - 255, :] = 500.0
    return call.but(value=value)


def _behind_lengths(rng: np.random.Generator, size: Size) -> Call:
    held = size.S - size.S // 42
    call = ordinary(rng, size, B=2, H=1, lengths=np.array([held, size.S]))
    value = call.value.copy()
    value[:, :, held] = 30000.0
    value[:, :, held - 1] = 10000.0
    return call.but(query=call.query / 8, value=value)


# Bits. -------------------------------------------------------------------------------------------------------------


def _bits() -> Iterator[Case]:
    yield Case(
        "F3-batch",
        ("F3",),
        "a batch alone gives the bits it gives among others",
        "strict",
        lambda rng, s: ordinary(rng, s, B=3, D=16),
        expand=lambda base: [base, _batch(base, 1)],
        relation=lambda calls, results, a: _same_bits(
            results[0].parts["output"][1:2], results[1].parts["output"], results, 0, calls, a
        ),
        promise="bit invariance",
        sizes=(Size(33, 33),),
    )
    yield Case(
        "F3-row",
        ("F3",),
        "a row alone gives the bits it gives among others",
        "strict",
        lambda rng, s: ordinary(rng, s, D=16),
        about=frozenset({"cross"}),
        expand=lambda base: [base, base.but(query=base.query[:, :, 7:8], rows=None)],
        # A kernel made for other lengths gets the row with more rows after it.
        relation=lambda calls, results, a: _same_bits(
            results[0].parts["output"][:, :, 7:8], results[1].parts["output"][:, :, :1], results, 0, calls, a
        ),
        promise="bit invariance",
        sizes=(Size(33, 33),),
    )
    yield Case(
        "F3-padding",
        ("F3", "D1"),
        "keys behind a length change no bit",
        "strict",
        lambda rng, s: ordinary(rng, s, D=16, lengths=np.array([20, 29])),
        about=frozenset({"lengths"}),
        expand=lambda base: [base, base.but(value=_changed_padding(base))],
        relation=lambda calls, results, a: _same_bits(
            results[0].parts["output"], results[1].parts["output"], results, 0, calls, a
        ),
        promise="bit invariance",
        sizes=(Size(33, 33),),
    )
    yield Case(
        "F4-twice",
        ("F4",),
        "the same call gives the same bits twice",
        "strict",
        lambda rng, s: ordinary(rng, s, D=16),
        expand=lambda base: [base, base],
        relation=lambda calls, results, a: _same_bits(
            results[0].parts["output"], results[1].parts["output"], results, 0, calls, a
        ),
        promise="repeatability",
        sizes=(Size(33, 33),),
    )
    yield Case(
        "F4-right-twice",
        ("F4",),
        "the same call is right twice",
        "core",
        ordinary,
        expand=lambda base: [base, base],
        relation=_right_twice,
        seeds=1,
    )


def _batch(call: Call, at: int) -> Call:
    return call.but(query=call.query[at : at + 1], key=call.key[at : at + 1], value=call.value[at : at + 1])


def _changed_padding(call: Call) -> Array:
    assert call.lengths is not None
    behind = np.arange(call.sizes[4])[None, None, :, None] >= call.lengths[:, None, None, None]
    return np.where(behind, 7.0, call.value)


def _same_bits(
    a: Array, b: Array, results: list[Result], base: int, calls: list[Call], arithmetic: frozenset[str]
) -> Mismatch | None:
    found = agree("output", a, 0.0, b) if a.shape == b.shape else Mismatch("output", (), 0, 0, 0, "other shapes")
    return None if found is None else found._replace(note="other bits", fault="other bits")


def _right_twice(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    for call, result in zip(calls, results, strict=True):
        found = differ(call, result, right(call, arithmetic))
        if found is not None:
            return found
    return None
