"""Clauses B4 to B7: mask arrays, rules, alignment, lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .. import readings as r
from ..call import Call
from ..case import Case, Make, Size
from ..where import WHERE
from .draw import ordinary, some_allowed, uniform

__all__ = ["cases"]

CAUSAL, WINDOW, LENGTHS = frozenset({"causal"}), frozenset({"window"}), frozenset({"lengths"})


def cases() -> Iterator[Case]:
    """The cases of this group."""
    yield from _arrays()
    yield from _rules()
    yield from _alignment()


def _arrays() -> Iterator[Case]:
    mask = frozenset({"mask"})
    for name, shape in (
        ("full", lambda s: (2, 2, s.L, s.S)),
        ("batches", lambda s: (2, 1, s.L, s.S)),
        ("heads", lambda s: (1, 2, s.L, s.S)),
        ("keys", lambda s: (2, 1, 1, s.S)),
        ("two-axes", lambda s: (s.L, s.S)),
    ):
        yield Case(
            f"B4-{name}",
            ("B4",),
            f"a mask of shape {shape(Size(5, 5))}, L = S = 5",
            "core",
            _random_mask(shape),
            about=mask,
            deep=name == "full",
        )
    yield Case(
        "B4-polarity",
        ("B4",),
        "what True means",
        "edges",
        lambda rng, s: ordinary(
            rng,
            s,
            odd=frozenset({"raw mask"}),
            mask=np.tril(np.ones((s.L, s.S), np.bool_), -1) | np.eye(s.L, dtype=np.bool_),
        ),
        about=mask,
        # At least one pair of each row is dropped under either reading.
        alternatives=(
            r.both(r.TRUE_DROPS, r.EMPTY_ZERO),
            *(r.both(r.TRUE_DROPS, e) for e in r.EMPTY),
            r.TRUE_DROPS,
            r.MASK_ADDED,
        ),
    )
    yield Case(
        "B4-numbers",
        ("B4", "G1"),
        "a mask of 0.0 and 1.0 instead of booleans",
        "edges",
        lambda rng, s: ordinary(rng, s, odd=frozenset({"float mask"}), mask=some_allowed(rng, 1, 1, s.L, s.S)),
        about=mask,
        only_refusal=True,
        alternatives=(r.MASK_ADDED, r.DROPS_ADDED, r.AS_BOOLEANS, r.TRUE_DROPS),
    )


def _random_mask(shape: Callable[[Size], tuple[int, ...]]) -> Make:
    return lambda rng, size: ordinary(rng, size, mask=some_allowed(rng, *shape(size)))


def _rules() -> Iterator[Case]:
    yield Case(
        "B5-causal",
        ("B5", "B6"),
        "causal, L = S",
        "core",
        lambda rng, s: ordinary(rng, s, causal=True),
        about=CAUSAL,
        deep=True,
    )
    yield Case(
        "B5-causal-mask",
        ("B5",),
        "causal and a mask: both have to allow",
        "core",
        _causal_and_mask,
        about=frozenset({"causal", "mask"}),
    )
    for left, right in ((1, 0), (2, 0), (0, 0)):
        yield Case(
            f"B5-window-{left}-{right}",
            ("B5",),
            f"causal & window({left}, {right}): the query's own key and {left} before it",
            "edges",
            lambda rng, s, w=(left, right): ordinary(rng, s, causal=True, window=w),  # type: ignore[misc]
            about=WINDOW,
            alternatives=r.WINDOWS,
        )
    yield Case(
        "B5-window-2-1",
        ("B5",),
        "window(2, 1): both ends inclusive",
        "edges",
        lambda rng, s: ordinary(rng, s, window=(2, 1)),
        about=WINDOW,
        alternatives=r.WINDOWS,
    )
    yield Case(
        "B5-lengths",
        ("B5",),
        "keys([3, 5])",
        "core",
        lambda rng, s: ordinary(rng, s, lengths=np.array([3, s.S])),
        about=LENGTHS,
    )
    yield Case(
        "B5-lengths-causal",
        ("B5", "B6"),
        "causal and keys([3, 5])",
        "core",
        lambda rng, s: ordinary(rng, s, causal=True, lengths=np.array([3, s.S])),
        about=LENGTHS | CAUSAL,
        alternatives=(r.ALIGN_LENGTHS,),
    )
    yield Case("B5-segments", ("B5",), "two packed sequences", "core", _packed, about=frozenset({"segments"}))
    yield Case(
        "B5-segments-causal",
        ("B5",),
        "two packed causal sequences",
        "core",
        lambda rng, s: _packed(rng, s).but(causal=True),
        about=frozenset({"segments", "causal"}),
    )
    yield from _functions_and_packs()
    yield Case(
        "B7-bound",
        ("B7", "B5"),
        "a mask that allows everything does not reach past the lengths",
        "core",
        lambda rng, s: ordinary(rng, s, lengths=np.array([3, s.S]), mask=np.ones((1, 1, s.L, s.S), np.bool_)),
        about=frozenset({"lengths", "mask"}),
    )


def _alignment() -> Iterator[Case]:
    cross = frozenset({"causal", "cross"})
    ends = (r.ALIGN_START, r.ALIGN_END)
    yield Case(
        "B6-decode",
        ("B6",),
        "causal, 1 query and 4 keys, alignment unsaid",
        "edges",
        lambda rng, s: uniform([1, 2, 3, 4], 1, causal=True),
        about=cross,
        refusal=True,
        alternatives=ends,
        seeds=1,
    )
    yield Case(
        "B6-long",
        ("B6",),
        "causal, 3 queries and 7 keys, alignment unsaid",
        "edges",
        lambda rng, s: ordinary(rng, s, causal=True),
        about=cross,
        refusal=True,
        alternatives=ends,
        sizes=(Size(3, 7),),
    )
    yield Case(
        "B6-short",
        ("B6", "C2"),
        "causal, 4 queries and 2 keys, alignment unsaid",
        "edges",
        lambda rng, s: uniform([1, 2], 4, causal=True),
        about=cross,
        refusal=True,
        alternatives=(r.ALIGN_START, r.ALIGN_END, *(r.both(r.ALIGN_END, e) for e in r.EMPTY)),
        seeds=1,
    )
    for where in ("start", "end"):
        yield Case(
            f"B6-said-{where}",
            ("B6", "G1"),
            f'align="{where}", 3 queries and 7 keys',
            "core",
            lambda rng, s, where=where: ordinary(rng, s, causal=True, align=where),  # type: ignore[misc]
            about=cross | {"align"},
            alternatives=tuple(x for x in ends if where not in x.name),
            sizes=(Size(3, 7),),
        )
    yield Case(
        "B6-lengths",
        ("B6",),
        'align="end" counts from the length of each sequence',
        "core",
        lambda rng, s: ordinary(rng, s, causal=True, align="end", lengths=np.array([4, s.S])),
        about=cross | {"align", "lengths"},
        alternatives=(r.ALIGN_ALL, r.ALIGN_START),
        sizes=(Size(3, 7),),
    )


def _functions_and_packs() -> Iterator[Case]:
    prefix, where, offsets = (frozenset({n}) for n in ("prefix", "where", "offsets"))
    yield Case(
        "B5-prefix",
        ("B5",),
        "prefix(2): two keys for everybody, causal after them",
        "core",
        lambda rng, s: ordinary(rng, s, prefix=2),
        about=prefix,
    )
    yield Case(
        "B5-prefix-lengths",
        ("B5", "B7"),
        "prefix(4) and keys([3, 5]): the prefix does not reach past a length",
        "core",
        lambda rng, s: ordinary(rng, s, prefix=4, lengths=np.array([3, s.S])),
        about=prefix | {"lengths"},
    )
    for name, rule in zip(("heads", "half"), WHERE, strict=True):
        yield Case(
            f"B5-where-{name}",
            ("B5",),
            f"where: {rule}",
            "core",
            lambda rng, s, rule=rule: ordinary(rng, s, where=rule),  # type: ignore[misc]
            about=where,
        )
    yield Case(
        "B6-where",
        ("B6",),
        "a rule of positions, 3 queries and 7 keys, alignment unsaid",
        "edges",
        lambda rng, s: ordinary(rng, s, where=next(iter(WHERE))),
        about=where | {"cross"},
        refusal=True,
        alternatives=(r.ALIGN_START, r.ALIGN_END),
        sizes=(Size(3, 7),),
    )
    for name, title, at in (
        ("packed", "two packed sequences by their offsets", ([0, 2, 5], [0, 2, 5])),
        ("packed-cross", "two packed sequences, fewer queries than keys", ([0, 1, 3], [0, 3, 7])),
        ("packed-empty", "three packed sequences, the second has no query", ([0, 2, 2, 3], [0, 3, 5, 7])),
    ):
        size = Size(at[0][-1], at[1][-1])
        yield Case(
            f"B5-{name}",
            ("B5",),
            title,
            "core",
            lambda rng, s, at=at: ordinary(rng, s, B=1, offsets=(np.array(at[0]), np.array(at[1]))),  # type: ignore[misc]
            about=offsets if size.L == size.S else offsets | {"cross"},
            sizes=(size,),
        )
    yield Case(
        "B5-packed-causal",
        ("B5", "B6"),
        "two packed causal sequences by their offsets",
        "core",
        lambda rng, s: ordinary(rng, s, B=1, causal=True, offsets=(np.array([0, 2, 5]), np.array([0, 2, 5]))),
        about=offsets | {"causal"},
    )


def _causal_and_mask(rng: np.random.Generator, size: Size) -> Call:
    mask = some_allowed(rng, 1, 1, size.L, size.S)
    mask[..., 0] = True
    return ordinary(rng, size, causal=True, mask=mask)


def _packed(rng: np.random.Generator, size: Size) -> Call:
    cut = max(size.S // 2, 1)
    ids = np.where(np.arange(size.S) < cut, 0, 1)
    return ordinary(rng, size, segments=(ids, ids))
