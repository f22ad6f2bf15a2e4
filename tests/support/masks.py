"""Random mask expressions, each with the dense booleans that clause B5 says it stands for.

The dense form is written down here a second time, from the table of B5 and on L×S arrays, so that nothing of
`qkv.masks` is used to check `qkv.masks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

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


# Leaves. -----------------------------------------------------------------------------------------------------------


def causals(sizes: Sizes, align: Any) -> st.SearchStrategy[Pair]:
    return st.builds(lambda: Pair(qkv.causal(align=align), lambda s: s.axes()[3] <= s.axes()[2], positional=True))


@st.composite
def windows(draw: Any, sizes: Sizes, align: Any) -> Pair:
    left, right = (draw(st.none() | st.integers(0, sizes.keys + 2)) for _ in range(2))

    def dense(s: Sizes) -> np.ndarray:
        _, _, p, j = s.axes()
        out = np.broadcast_to(True, np.broadcast_shapes(p.shape, j.shape))
        out = out & (p - left <= j) if left is not None else out
        return out & (j <= p + right) if right is not None else out

    return Pair(qkv.window(left, right, align=align), dense, positional=True)


@st.composite
def prefixes(draw: Any, sizes: Sizes, align: Any) -> Pair:
    n = draw(st.integers(0, sizes.keys + 1))
    return Pair(qkv.prefix(n, align=align), lambda s: (s.axes()[3] < n) | (s.axes()[3] <= s.axes()[2]), positional=True)


@st.composite
def firsts(draw: Any, sizes: Sizes, align: Any) -> Pair:
    n = draw(st.integers(0, sizes.keys + 1))
    return Pair(qkv.first(n), lambda s: s.axes()[3] < n)


@st.composite
def lengths(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """keys(lengths) and keys(start, stop), one number or one per sequence."""
    per_batch = bool(sizes.batch) and draw(st.booleans())
    count = sizes.batches if per_batch else 1
    stop = np.array([draw(st.integers(0, sizes.keys)) for _ in range(count)], np.int64)
    start = np.array([draw(st.integers(0, int(n))) for n in stop], np.int64) * draw(st.integers(0, 1))
    left_padded = bool(start.any()) or draw(st.booleans())

    def shaped(bound: np.ndarray) -> Any:
        return bound.reshape(sizes.batch) if per_batch else int(bound[0])

    mask = qkv.keys(shaped(start), shaped(stop)) if left_padded else qkv.keys(shaped(stop))

    def dense(s: Sizes) -> np.ndarray:
        j = s.axes()[3]
        return (start[:, None, None, None] <= j) & (j < stop[:, None, None, None])

    return Pair(mask, dense, ends=np.broadcast_to(stop, sizes.batches))


@st.composite
def existing(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """keys(booleans): one run of True or several."""
    per_batch = bool(sizes.batch) and draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = sizes.batches if per_batch else 1
    if draw(st.booleans()):
        edges = np.sort(rng.integers(0, sizes.keys + 1, (count, 2)), axis=-1)
        j = np.arange(sizes.keys)
        flat = (edges[:, :1] <= j) & (j < edges[:, 1:])
    else:
        flat = rng.random((count, sizes.keys)) < draw(st.sampled_from([0.2, 0.7, 1.0]))
    last = np.where(flat.any(-1), flat.shape[-1] - flat[:, ::-1].argmax(-1) if sizes.keys else 0, 0)
    runs = int(np.diff(np.pad(flat, ((0, 0), (1, 0))).astype(int), axis=-1).clip(0).sum(-1).max(initial=0))
    mask = qkv.keys(flat.reshape(*sizes.batch, sizes.keys) if per_batch else flat[0])
    return Pair(mask, lambda s: flat[:, None, None, :], ends=np.broadcast_to(last, sizes.batches), interval=runs <= 1)


@st.composite
def documents(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """segments: ascending runs of one id, or ids in any order, or ids that no key carries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = draw(st.integers(1, 4))
    ordered = draw(st.booleans())

    def ids(length: int) -> np.ndarray:
        shape = (sizes.batches, length) if draw(st.booleans()) and sizes.batch else (1, length)
        found = rng.integers(0, kinds, shape) - 1
        return np.sort(found, axis=-1) if ordered else found

    def shaped(a: np.ndarray) -> np.ndarray:
        return a[0] if a.shape[0] == 1 else a.reshape(*sizes.batch, a.shape[-1])

    q = ids(sizes.queries)
    same = sizes.queries == sizes.keys and draw(st.booleans())
    k = q if same else ids(sizes.keys)
    mask = qkv.segments(shaped(q)) if same else qkv.segments(shaped(q), shaped(k))
    return Pair(mask, lambda s: (q[:, :, None] == k[:, None, :])[:, None], interval=ordered)


@st.composite
def arrays(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """allow(array) of every shape that broadcasts from the right."""
    full = (*sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    axes = draw(st.integers(2, len(full)))
    shape = tuple(n if draw(st.integers(0, 3)) else 1 for n in full[-axes:])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 0.9]))

    def dense(s: Sizes) -> np.ndarray:
        return np.broadcast_to(array, full).reshape(sizes.batches, *full[-3:])

    return Pair(qkv.allow(array), dense, interval=False)


_RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "strided": lambda n, h, p, j: (p - j) % 3 == 0,
    "of the head": lambda n, h, p, j: (j + h) % 2 == 0,
    "of the batch": lambda n, h, p, j: j >= n,
    "of keys alone": lambda n, h, p, j: j % 5 != 1,
    "of positions alone": lambda n, h, p, j: p % 2 == 0,
}


@st.composite
def rules(draw: Any, sizes: Sizes, align: Any) -> Pair:
    name = draw(st.sampled_from(sorted(_RULES)))
    rule = _RULES[name]
    return Pair(
        qkv.where(rule, align=align),
        lambda s: rule(*s.axes()),
        interval=False,
        positional=True,
        text=f"where({name}, align={align!r})",
    )


LEAVES = (causals, windows, prefixes, firsts, lengths, existing, documents, arrays, rules)


@st.composite
def expressions(draw: Any, sizes: Sizes, align: Any, depth: int = 2, leaves: Any = LEAVES) -> Pair:
    """A leaf, or two expressions joined, or one negated."""
    joint = draw(st.sampled_from(["leaf", "and", "and", "or", "not"])) if depth else "leaf"
    if joint == "leaf":
        return draw(draw(st.sampled_from(leaves))(sizes, align))
    a = draw(expressions(sizes, align, depth - 1, leaves))
    if joint == "not":
        return negated(a)
    b = draw(expressions(sizes, align, depth - 1, leaves))
    return both(a, b) if joint == "and" else either(a, b)


@st.composite
def alignments(draw: Any, sizes: Sizes) -> Any:
    """What `align=` may say; None only where nothing has to be said."""
    choices: list[Any] = ["end", "start", draw(st.integers(-sizes.queries - 1, sizes.keys + 1))]
    if sizes.batch:
        choices.append(
            np.array([draw(st.integers(-3, sizes.keys)) for _ in range(sizes.batches)], np.int64).reshape(sizes.batch)
        )
    if sizes.queries == sizes.keys or not sizes.queries or not sizes.keys:
        choices += [None, None, None]
    return draw(st.sampled_from(choices))


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
