"""Clauses B1 to B3: scale, softcap, bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import readings as r
from ..call import Call
from ..case import Case, Size
from .draw import ordinary, some_allowed

__all__ = ["cases"]

SCALE, SOFTCAP, BIAS = frozenset({"scale"}), frozenset({"softcap"}), frozenset({"bias"})


def cases() -> Iterator[Case]:
    """The cases of this group."""
    yield Case(
        "B1-default",
        ("B1",),
        "the default scale is 1/sqrt(D)",
        "core",
        lambda rng, s: ordinary(rng, s, D=16),
        alternatives=(r.NO_SCALE,),
    )
    for name, scale in (("given", 0.3), ("zero", 0.0), ("negative", -0.4)):
        yield Case(
            f"B1-{name}",
            ("B1", "G1"),
            f"scale = {scale:g}",
            "core",
            lambda rng, s, scale=scale: ordinary(rng, s, scale=scale),  # type: ignore[misc]
            about=SCALE,
            alternatives=(r.DEFAULT_SCALE, r.ROOT_SCALE, r.NEGATIVE_SCALE),
        )
    yield Case(
        "B2-softcap",
        ("B2", "G1"),
        "softcap = 2, scale = 0.5",
        "core",
        lambda rng, s: ordinary(rng, s, softcap=2.0, scale=0.5),
        about=SOFTCAP | SCALE,
        alternatives=(r.SOFTCAP_FIRST,),
    )
    yield Case(
        "B2-softcap-bias",
        ("B2", "B3"),
        "the bias is never capped",
        "core",
        lambda rng, s: ordinary(rng, s, softcap=2.0, bias=rng.normal(size=(s.L, s.S)) * 3),
        about=SOFTCAP | BIAS,
        alternatives=(r.SOFTCAP_AFTER, r.SOFTCAP_FIRST),
    )
    yield Case(
        "B2-softcap-mask",
        ("B2", "B4"),
        "a forbidden pair stays forbidden under a softcap",
        "core",
        lambda rng, s: ordinary(rng, s, softcap=2.0, mask=some_allowed(rng, 1, 1, s.L, s.S)),
        about=SOFTCAP,
        alternatives=(r.SOFTCAP_MASK, r.SOFTCAP_FIRST),
    )
    yield Case(
        "B3-bias",
        ("B3", "G1"),
        "a bias is added as it is",
        "core",
        lambda rng, s: ordinary(rng, s, bias=rng.normal(size=(2, 2, s.L, s.S)) * 2),
        about=BIAS,
        alternatives=(r.BIAS_SCALED,),
    )
    yield Case(
        "B3-bias-heads",
        ("B3", "B4"),
        "a bias of shape (1, H, L, S)",
        "core",
        lambda rng, s: ordinary(rng, s, bias=rng.normal(size=(1, 2, s.L, s.S)) * 2),
        about=BIAS,
        alternatives=(r.BIAS_SCALED,),
    )
    yield Case(
        "B3-bias-forbids",
        ("B3", "B4"),
        "a bias of -inf forbids",
        "core",
        lambda rng, s: ordinary(rng, s, bias=np.where(some_allowed(rng, 1, 1, s.L, s.S), 0.5, -np.inf)),
        about=BIAS,
    )
    yield Case(
        "B3-bias-nan",
        ("B3", "D1"),
        "NaN in the bias of a forbidden pair",
        "strict",
        _bias_nan,
        about=frozenset({"bias", "mask", "mask+bias"}),
        promise="nan isolation",
        seeds=1,
    )
    yield Case(
        "B3-alibi",
        ("B3",),
        "alibi: -slope * |position - j|",
        "core",
        lambda rng, s: ordinary(rng, s, slopes=np.array([0.5, 0.0625])),
        about=frozenset({"alibi"}),
        alternatives=(r.ALIBI_SIGNED,),
    )


def _bias_nan(rng: np.random.Generator, size: Size) -> Call:
    mask = some_allowed(rng, 1, 1, size.L, size.S)
    return ordinary(rng, size, mask=mask, bias=np.where(mask, 0.5, np.nan))
