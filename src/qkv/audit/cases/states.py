"""Clauses E: parts of the keys, merged by their log-sum-exp, are the whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..call import Array, Call, Result
from ..case import Case, Size, agree
from ..tolerance import right
from ..verdict import Mismatch
from .draw import ordinary, some_allowed

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """The cases of this group."""
    lse = frozenset({"lse"})
    for name, clauses, title, parts, profile, make in (
        ("E1-halves", ("E1",), "two halves of the keys merge to the whole", 2, "core", _masked_both),
        ("E1-empty-part", ("E1", "C2"), "a part without keys is the identity", 2, "edges", _masked_half),
        ("E2-parts", ("E2", "E1"), "four parts, merged from the last to the first", 4, "core", _plain),
    ):
        yield Case(
            name,
            clauses,
            title,
            profile,
            make,
            about=lse,
            expand=lambda base, parts=parts: _split(base, parts),  # type: ignore[misc]
            relation=_merged,
            sizes=(Size(5, 8),),
            refusal=profile == "edges",
            seeds=2,
        )


def _plain(rng: np.random.Generator, size: Size) -> Call:
    return ordinary(rng, size, wants=frozenset({"lse"}))


def _masked_both(rng: np.random.Generator, size: Size) -> Call:
    half = size.S // 2
    mask = np.concatenate([some_allowed(rng, 1, 1, size.L, half), some_allowed(rng, 1, 1, size.L, size.S - half)], -1)
    return _plain(rng, size).but(mask=mask)


def _masked_half(rng: np.random.Generator, size: Size) -> Call:
    call = _masked_both(rng, size)
    assert call.mask is not None
    mask = call.mask.copy()
    mask[..., 0, : size.S // 2] = False
    return call.but(mask=mask)


def _split(base: Call, parts: int) -> list[Call]:
    edges = np.linspace(0, base.sizes[4], parts + 1).astype(int)
    out = [base]
    for lo, hi in pairwise(edges):
        part = base.but(key=base.key[:, :, lo:hi], value=base.value[:, :, lo:hi])
        for name in ("mask", "bias"):
            array = getattr(base, name)
            if array is not None and array.shape[-1] > 1:
                part = part.but(**{name: array[..., lo:hi]})
        out.append(part)
    return out


def _merged(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
    """The parts weighted by their mass, in float64, against the whole."""
    answers = [right(c, arithmetic) for c in calls]
    # Rows that only fill a kernel's length up are not judged.
    outputs = [x.parts["output"][:, :, c.judged] for c, x in zip(calls[:0:-1], results[:0:-1], strict=True)]
    masses = [x.parts["lse"][:, :, c.judged] for c, x in zip(calls[:0:-1], results[:0:-1], strict=True)]
    with np.errstate(all="ignore"):
        top = _largest(masses)
        shares = [np.exp(m - np.where(np.isneginf(top), 0, top)) for m in masses]
        total = sum(shares)
        whole = sum(np.where((s > 0)[..., None], s[..., None] * o, 0) for s, o in zip(shares, outputs, strict=True))
        # Whether or not a mass is a number, its share has to be one.
        bad = np.isnan(np.stack(masses)).any(0)
        merged = np.where(bad[..., None], np.nan, np.where(total[..., None] > 0, whole / total[..., None], 0))
    largest = np.abs(calls[0].value).max()
    tolerance = answers[0].parts["output"][1]
    for answer in answers[1:]:
        out, lse = answer.parts["output"][1], answer.parts["lse"][1]
        # An error of the log-sum-exp moves the share of a part, and with it the mixture, by twice as much.
        tolerance = tolerance + out + 2 * largest * np.expm1(np.minimum(lse, 1.0))[..., None]
    found = agree("output", answers[0].parts["output"][0], tolerance, np.asarray(merged))
    if found is None:
        return None
    natural = agree("lse", answers[1].parts["lse"][0], answers[1].parts["lse"][1] + 1e-6, masses[-1])
    name = "parts merged by their log-sum-exp are not the whole"
    if natural is not None and np.isfinite(natural.want) and natural.want:
        ratio = natural.got / natural.want
        if abs(ratio * np.log(2) - 1) < 1e-3:
            name = "log-sum-exp in base 2"
    return found._replace(note="parts merged by their log-sum-exp", fault=name)


def _largest(masses: list[Array]) -> Array:
    return np.asarray(np.fmax.reduce(np.stack(masses), 0))
