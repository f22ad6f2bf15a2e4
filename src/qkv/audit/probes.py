"""Metamorphic probes: pairs of calls whose answers are bound to each other, whatever the right answer is.

Two answers of one kernel may be apart by the sum of what each may be from the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .call import Array, Call, Result
from .case import Case, Size, agree
from .cases.draw import ordinary, some_allowed
from .tolerance import right
from .verdict import Mismatch

__all__ = ["cases"]

Map = Callable[[Array], Array]


def cases() -> Iterator[Case]:
    """The probes, each as a case."""
    for name, clauses, title, make, expand, move in _TABLE:
        yield Case(
            f"P-{name}",
            clauses,
            title,
            "core",
            make,
            about=_ABOUT.get(name, frozenset()),
            expand=expand,
            relation=_related(move, f"{title}: not so"),
            seeds=1,
            sizes=(Size(5, 7),) if name == "split" else (Size(5, 5),),
        )
    yield Case(
        "P-gradients",
        ("C1", "D1"),
        "gradients agree with those of the definition and vanish on forbidden pairs",
        "core",
        _graded,
        about=frozenset({"grad"}),
        seeds=2,
    )


def _related(move: Map, fault: str) -> Any:
    """The second output, moved back, is the first one."""

    def relation(calls: list[Call], results: list[Result], arithmetic: frozenset[str]) -> Mismatch | None:
        first, second = results[0].parts["output"], results[1].parts["output"]
        tolerances = [np.asarray(right(c, arithmetic).parts["output"][1], np.float64) for c in calls]
        if calls[0].rows is not None:
            first, second = first[:, :, calls[0].judged], second[:, :, calls[1].judged]
        back = move(second)
        if back.shape != first.shape:
            first, tolerances[0] = first[: back.shape[0]], tolerances[0][: back.shape[0]]
        found = agree("output", first, tolerances[0] + move(tolerances[1]), back)
        if found is None:
            return None
        said = fault if np.isfinite(found.want) and np.isfinite(found.got) else f"{fault} (not a number)"
        return found._replace(note="two calls that mean the same", fault=said)

    return relation


def _same(x: Array) -> Array:
    return x


def _masked(rng: np.random.Generator, size: Size) -> Call:
    return ordinary(rng, size, mask=some_allowed(rng, 2, 1, size.L, size.S))


def _graded(rng: np.random.Generator, size: Size) -> Call:
    return _masked(rng, size).but(wants=frozenset({"grad"}), cotangent=rng.normal(size=(2, 2, size.L, 8)))


def _forbid_last(rng: np.random.Generator, size: Size) -> Call:
    mask = some_allowed(rng, 1, 1, size.L, size.S)
    mask[..., 0], mask[..., -1] = True, False
    return ordinary(rng, size, mask=mask)


def _other_last(base: Call) -> list[Call]:
    key, value = base.key.copy(), base.value.copy()
    key[:, :, -1], value[:, :, -1] = 50.0, -5000.0
    return [base, base.but(key=key, value=value)]


def _other_future(base: Call) -> list[Call]:
    half = base.sizes[4] // 2
    key, value = base.key.copy(), base.value.copy()
    key[:, :, half:], value[:, :, half:] = 20.0, -3000.0
    # Only the rows before the change are compared.
    rows = tuple(range(half))
    return [base.but(rows=rows), base.but(key=key, value=value, rows=rows)]


def _permuted_keys(base: Call) -> list[Call]:
    return [
        base,
        base.but(
            key=base.key[:, :, ::-1],
            value=base.value[:, :, ::-1],
            mask=None if base.mask is None else base.mask[..., ::-1],
        ),
    ]


def _one_batch(base: Call) -> list[Call]:
    part: dict[str, Any] = {n: getattr(base, n)[:1] for n in ("query", "key", "value")}
    if base.mask is not None:
        part["mask"] = base.mask[:1]
    return [base, base.but(**part)]


def _swapped_heads(base: Call) -> list[Call]:
    return [base, base.but(**{n: getattr(base, n)[:, ::-1] for n in ("query", "key", "value")})]


def _expanded_mask(base: Call) -> list[Call]:
    B, H, _, L, S, _, _ = base.sizes
    assert base.mask is not None
    return [base, base.but(mask=np.broadcast_to(base.mask, (B, H, L, S)).copy())]


def _strided(base: Call) -> list[Call]:
    return [base, base.but(strides="transposed")]


def _as_bias(base: Call) -> list[Call]:
    assert base.mask is not None
    return [base, base.but(mask=None, bias=np.where(base.mask, 0.0, -np.inf))]


def _with_weights(base: Call) -> list[Call]:
    return [base, base.but(wants=base.wants | {"weights"})]


def _with_lse(base: Call) -> list[Call]:
    return [base, base.but(wants=base.wants | {"lse"})]


def _twice(base: Call) -> list[Call]:
    return [base, base]


def _sixteenths(rng: np.random.Generator, size: Size) -> Call:
    call = ordinary(rng, size)
    return call.but(key=np.clip(np.round(call.key * 16) / 16, -3, 3))


def _shifted_keys(base: Call) -> list[Call]:
    # A constant added to every key adds the same to every score of a row. Sixteenths stay exact in every type.
    return [base, base.but(key=base.key + 0.5)]


_TABLE: tuple[tuple[str, tuple[str, ...], str, Any, Any, Map], ...] = (
    ("forbidden", ("D1",), "forbidden keys and values do not matter", _forbid_last, _other_last, _same),
    (
        "future",
        ("D1", "B5"),
        "the future does not matter",
        lambda g, s: ordinary(g, s, causal=True),
        _other_future,
        _same,
    ),
    ("permuted", ("E1", "C1"), "the order of keys does not matter", _masked, _permuted_keys, _same),
    ("batch", ("A1", "F3"), "a batch equals its rows alone", _masked, _one_batch, _same),
    ("heads", ("A1", "A2"), "heads commute", lambda g, s: ordinary(g, s), _swapped_heads, lambda x: x[:, ::-1]),
    ("broadcast", ("B4",), "a broadcast mask equals its expansion", _masked, _expanded_mask, _same),
    ("strided", ("A4",), "strided equals contiguous", lambda g, s: ordinary(g, s), _strided, _same),
    ("bias", ("B3", "B4"), "a boolean mask equals its -inf bias", _masked, _as_bias, _same),
    ("weights", ("G1", "C2"), "asking for weights does not change the output", _masked, _with_weights, _same),
    ("lse", ("G1", "C5"), "asking for the log-sum-exp does not change the output", _masked, _with_lse, _same),
    ("twice", ("F4",), "running twice gives the same", lambda g, s: ordinary(g, s), _twice, _same),
    ("shifted", ("C1",), "a constant added to all keys does not matter", _sixteenths, _shifted_keys, _same),
)

_ABOUT = {
    "future": frozenset({"causal"}),
    "bias": frozenset({"mask", "bias"}),
    "broadcast": frozenset({"mask"}),
    "weights": frozenset({"weights"}),
    "lse": frozenset({"lse"}),
}
