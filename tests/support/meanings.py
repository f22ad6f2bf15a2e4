"""Mask expressions, each with the dense booleans that clause B5 says it stands for.

The dense form is written down here a second time, from the table of B5 and on L×S arrays, so that nothing of
`qkv.masks` is used to check `qkv.masks`. `masks.py` draws them for property tests, `soak/draw.py` for the soak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qkv


@dataclass(frozen=True)
class Sizes:
    """What a mask is asked about; `position` (N, L) once the alignment is known."""

    batch: tuple[int, ...]
    heads: int
    queries: int
    keys: int
    position: Any = None

    @property
    def batches(self) -> int:
        return int(np.prod(self.batch, dtype=np.int64))

    def axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Batch, head, position and key as index arrays that broadcast to (N, H, L, S)."""
        n, h = np.arange(self.batches)[:, None, None, None], np.arange(self.heads)[None, :, None, None]
        return n, h, self.position[:, None, :, None], np.arange(self.keys)[None, None, None, :]


@dataclass(frozen=True)
class Pair:
    """A mask expression and what it means.

    Attributes:
        mask: the expression. dense: from sizes with positions to booleans that broadcast to (N, H, L, S).
        ends: (N,) keys that exist where the expression conjoins `keys(…)`, else None (B6).
        origin: (N, L) first key of each row's own sequence (F3), from sizes. interval: whether ranges can say it exactly.
        positional: whether it speaks of positions.
    """

    mask: Any
    dense: Callable[[Sizes], np.ndarray]
    ends: Any = None
    interval: bool = True
    positional: bool = False
    text: str = field(default="")

    def __repr__(self) -> str:
        return self.text or repr(self.mask)


def both(a: Pair, b: Pair) -> Pair:
    ends = a.ends if b.ends is None else b.ends if a.ends is None else np.minimum(a.ends, b.ends)
    return Pair(
        a.mask & b.mask,
        lambda s: a.dense(s) & b.dense(s),
        ends,
        a.interval and b.interval,
        a.positional or b.positional,
    )


def either(a: Pair, b: Pair) -> Pair:
    return Pair(
        a.mask | b.mask,
        lambda s: a.dense(s) | b.dense(s),
        None,
        a.interval and b.interval,
        a.positional or b.positional,
    )


def negated(a: Pair) -> Pair:
    return Pair(~a.mask, lambda s: ~a.dense(s), None, a.interval, a.positional)


# Leaves: the public rule, and what it means. ---------------------------------------------------------------------------


def causal(align: Any) -> Pair:
    return Pair(qkv.causal(align=align), lambda s: s.axes()[3] <= s.axes()[2], positional=True)


def window(left: int | None, right: int | None, align: Any) -> Pair:
    def dense(s: Sizes) -> np.ndarray:
        _, _, p, j = s.axes()
        out = np.broadcast_to(True, np.broadcast_shapes(p.shape, j.shape))
        out = out & (p - left <= j) if left is not None else out
        return out & (j <= p + right) if right is not None else out

    return Pair(qkv.window(left, right, align=align), dense, positional=True)


def prefix(n: int, align: Any) -> Pair:
    return Pair(qkv.prefix(n, align=align), lambda s: (s.axes()[3] < n) | (s.axes()[3] <= s.axes()[2]), positional=True)


def first(n: int) -> Pair:
    return Pair(qkv.first(n), lambda s: s.axes()[3] < n)


def lengths(sizes: Sizes, start: np.ndarray | None, stop: np.ndarray, per_batch: bool) -> Pair:
    """keys(lengths) and keys(start, stop), int64 (N,) for one number per sequence, else (1,)."""

    def shaped(bound: np.ndarray) -> Any:
        return bound.reshape(sizes.batch) if per_batch else int(bound[0])

    mask = qkv.keys(shaped(stop)) if start is None else qkv.keys(shaped(start), shaped(stop))
    begin = np.zeros_like(stop) if start is None else start

    def dense(s: Sizes) -> np.ndarray:
        j = s.axes()[3]
        return (begin[:, None, None, None] <= j) & (j < stop[:, None, None, None])

    return Pair(mask, dense, ends=np.broadcast_to(stop, sizes.batches))


def existing(sizes: Sizes, flat: np.ndarray, per_batch: bool) -> Pair:
    """keys(booleans), (N, S) or for all sequences (1, S): one run of True or several."""
    last = np.where(flat.any(-1), flat.shape[-1] - flat[:, ::-1].argmax(-1) if sizes.keys else 0, 0)
    runs = int(np.diff(np.pad(flat, ((0, 0), (1, 0))).astype(int), axis=-1).clip(0).sum(-1).max(initial=0))
    mask = qkv.keys(flat.reshape(*sizes.batch, sizes.keys) if per_batch else flat[0])
    return Pair(mask, lambda s: flat[:, None, None, :], ends=np.broadcast_to(last, sizes.batches), interval=runs <= 1)


def documents(sizes: Sizes, q: np.ndarray, k: np.ndarray | None, ordered: bool) -> Pair:
    """segments of ids (1, L) or (N, L), and (1, S) or (N, S), or None where the keys have the queries' ids."""

    def shaped(a: np.ndarray) -> np.ndarray:
        return a[0] if a.shape[0] == 1 else a.reshape(*sizes.batch, a.shape[-1])

    mask = qkv.segments(shaped(q)) if k is None else qkv.segments(shaped(q), shaped(k))
    of_keys = q if k is None else k
    return Pair(mask, lambda s: (q[:, :, None] == of_keys[:, None, :])[:, None], interval=ordered)


def array(sizes: Sizes, allowed: np.ndarray) -> Pair:
    """allow(array) of any shape that broadcasts from the right."""
    full = (*sizes.batch, sizes.heads, sizes.queries, sizes.keys)

    def dense(s: Sizes) -> np.ndarray:
        return np.broadcast_to(allowed, full).reshape(sizes.batches, *full[-3:])

    return Pair(qkv.allow(allowed), dense, interval=False)


RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "strided": lambda n, h, p, j: (p - j) % 3 == 0,
    "of the head": lambda n, h, p, j: (j + h) % 2 == 0,
    "of the batch": lambda n, h, p, j: j >= n,
    "of keys alone": lambda n, h, p, j: j % 5 != 1,
    "of positions alone": lambda n, h, p, j: p % 2 == 0,
}


def rule(name: str, align: Any) -> Pair:
    asked = RULES[name]
    return Pair(
        qkv.where(asked, align=align),
        lambda s: asked(*s.axes()),
        interval=False,
        positional=True,
        text=f"where({name}, align={align!r})",
    )


# Where rows stand. -----------------------------------------------------------------------------------------------------


def placed(sizes: Sizes, align: Any, pair: Pair | None) -> Sizes:
    """The sizes with the position of every row (B6)."""
    count = sizes.batches
    if align is None or (isinstance(align, str) and align == "start"):
        offset = np.zeros(count, np.int64)
    elif isinstance(align, str):
        ends = None if pair is None else pair.ends
        offset = (np.full(count, sizes.keys) if ends is None else ends) - sizes.queries
    else:
        offset = np.broadcast_to(np.asarray(align).reshape(-1), (count,))
    return Sizes(sizes.batch, sizes.heads, sizes.queries, sizes.keys, offset[:, None] + np.arange(sizes.queries)[None])


def dense_of(pair: Pair | None, sizes: Sizes) -> np.ndarray:
    """(N, H, L, S) booleans."""
    shape = (sizes.batches, sizes.heads, sizes.queries, sizes.keys)
    return np.ones(shape, bool) if pair is None else np.broadcast_to(pair.dense(sizes), shape)
