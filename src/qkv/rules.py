"""The rules at the bottom of a mask expression (contract B5): what each allows, as intervals wherever it can.

Their public names, with the arguments checked, are in `masks.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .algebra import Bools, Mask
from .align import Align, align_token, numbers_token
from .errors import ArgumentError, DTypeError, ShapeError
from .floats import Array
from .frame import Frame
from .future import Ends, Extent
from .ranges import ALL, END, NONE, Ints, Ranges, interval


@dataclass(frozen=True, eq=False, repr=False)
class _Positional(Mask):
    """A rule about positions; `align` says where the queries stand among the keys."""

    aligned: Align
    _speaks_of_positions = True

    @property
    def align(self) -> Align:
        return self.aligned

    def _by_value(self, *numbers: Hashable) -> Hashable | None:
        said = align_token(self.aligned)
        return None if said is None else (type(self).__name__, said, *numbers)

    def _said(self, *before: str) -> str:
        return ", ".join([*before, *([] if self.aligned is None else [f"align={self.aligned!r}"])])


@dataclass(frozen=True, eq=False, repr=False)
class Causal(_Positional):
    def token(self) -> Hashable | None:
        return self._by_value()

    def ends(self) -> Ends:
        return Ends((), (1,))

    def __repr__(self) -> str:
        return f"causal({self._said()})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        out = interval(0, frame.positions() + 1)
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class Window(_Positional):
    left: int | None
    right: int | None

    def token(self) -> Hashable | None:
        return self._by_value(self.left, self.right)

    def ends(self) -> Ends:
        return Ends((), (0 if self.left is None else -self.left, 0 if self.right is None else self.right + 1))

    def __repr__(self) -> str:
        return f"window({self._said(repr(self.left), repr(self.right))})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        p = frame.positions()
        out = interval(0 if self.left is None else p - self.left, END if self.right is None else p + self.right + 1)
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(_Positional):
    n: int

    def token(self) -> Hashable | None:
        return self._by_value(self.n)

    def ends(self) -> Ends:
        return Ends((self.n,), (1,))

    def __repr__(self) -> str:
        return f"prefix({self._said(repr(self.n))})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        out = interval(0, np.maximum(frame.positions() + 1, self.n))
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class First(Mask):
    n: int

    def token(self) -> Hashable | None:
        return "First", self.n

    def ends(self) -> Ends:
        return Ends((self.n,), ())

    def __repr__(self) -> str:
        return f"first({self.n})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        out = interval(0, self.n)
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class KeyRange(Mask):
    """Keys start <= j < stop of each sequence; the start is where its key blocks are counted from."""

    start: Ints
    stop: Ints
    spelling: str

    def token(self) -> Hashable | None:
        start, stop = numbers_token(self.start), numbers_token(self.stop)
        return None if start is None or stop is None else (type(self).__name__, start, stop)

    def __repr__(self) -> str:
        return self.spelling

    def check(self, frame: Frame) -> None:
        for name, bound in (("start", self.start), ("stop" if self.start.any() else "lengths", self.stop)):
            if bound.ndim and bound.shape != frame.batch:
                way = "; reshape it to the batch axes" if frame.batch else "; there is no batch axis, so pass an int"
                if bound.shape == (*frame.batch, frame.keys):
                    way = "; if it says with 0 and 1 which keys exist, pass keys(a.astype(bool))"
                raise ShapeError(
                    f"keys: {name} must be one integer or one per sequence, shape (B…) = {frame.batch}, but has shape {bound.shape}{way}"
                )
            if bound.size and int(bound.max()) > frame.keys:
                raise ArgumentError(
                    f"keys: {name} must be within 0…S = {frame.keys}, but {int(bound.max())} came; is S the padded length of `key`?"
                )

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        out = interval(_per_batch(self.start), _per_batch(self.stop))
        return out, out

    def origin(self, frame: Frame) -> Ints:
        return _per_batch(self.start)

    def last_keys(self) -> Ints:
        return self.stop.reshape(-1)

    def extent(self) -> Extent:
        return Extent(np.broadcast_shapes(self.start.shape, self.stop.shape))

    def ends(self) -> Ends | None:
        bounds = np.concatenate([self.start.reshape(-1), self.stop.reshape(-1)])
        return Ends(tuple(bounds.tolist()), (), max(self.start.size, self.stop.size))

    def sequence(self, n: int) -> Mask:
        start, stop = (b.reshape(-1)[n if b.size > 1 else 0].reshape(()) for b in (self.start, self.stop))
        return KeyRange(start, stop, self.spelling)


@dataclass(frozen=True, eq=False, repr=False)
class KeyMask(KeyRange):
    """`keys(booleans)` with one run of True a sequence: a range that remembers how long the booleans were."""

    size: int

    def token(self) -> Hashable | None:
        bounds = super().token()
        return None if bounds is None else (bounds, self.size)

    def check(self, frame: Frame) -> None:
        _check_key_shape((*self.start.shape, self.size), frame)

    def extent(self) -> Extent:
        return Extent(self.start.shape, 1, None, self.size)

    def ends(self) -> None:
        return None


@dataclass(frozen=True, eq=False, repr=False)
class KeySet(Mask):
    """Keys that exist, given as booleans (B…, S) with more than one run of True in some sequence."""

    exists: Bools

    def __repr__(self) -> str:
        return f"keys(<bool {self.exists.shape}>)"

    def check(self, frame: Frame) -> None:
        _check_key_shape(self.exists.shape, frame)

    def flat(self) -> Bools:
        """(N or 1, S)."""
        return flat(self.exists)

    def last_keys(self) -> Ints:
        exists = self.flat()
        last = exists.shape[-1] - exists[:, ::-1].argmax(axis=-1)
        out: Ints = np.where(exists.any(axis=-1), last, 0)
        return out

    def extent(self) -> Extent:
        return Extent(self.exists.shape[:-1], 1, None, self.exists.shape[-1])

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        exists = self.flat()
        start = np.where(exists.any(axis=-1), exists.argmax(axis=-1), 0)
        return interval(start[:, None], self.last_keys()[:, None]), NONE

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        exists = self.flat()
        out: Bools = exists[n if exists.shape[0] > 1 else 0][cols][None, None, :]
        return out

    def origin(self, frame: Frame) -> Ints:
        exists = self.flat()
        first_true: Ints = exists.argmax(axis=-1).astype(np.int64)[:, None]
        return first_true


@dataclass(frozen=True, eq=False, repr=False)
class Segments(Mask):
    """Equal ids: several documents packed side by side."""

    query_ids: Ints
    key_ids: Ints
    same: bool

    def token(self) -> Hashable | None:
        query, key = numbers_token(self.query_ids), numbers_token(self.key_ids)
        return None if query is None or key is None else ("Segments", query, key, self.same)

    def __repr__(self) -> str:
        return f"segments(<ids {self.query_ids.shape}>{'' if self.same else f', <ids {self.key_ids.shape}>'})"

    def check(self, frame: Frame) -> None:
        for name, ids, length, axis in (
            ("query_ids", self.query_ids, frame.queries, "L"),
            ("key_ids", self.key_ids, frame.keys, "S"),
        ):
            if ids.shape not in ((*frame.batch, length), (length,)):
                way = "; pass key_ids as well, since L != S" if self.same and name == "key_ids" else ""
                raise ShapeError(
                    f"segments: {name} must have shape (B…, {axis}) = {(*frame.batch, length)} or ({axis},) = ({length},), "
                    f"but has shape {ids.shape}{way}"
                )

    def extent(self) -> Extent:
        batch = np.broadcast_shapes(self.query_ids.shape[:-1], self.key_ids.shape[:-1])
        return Extent(batch, 1, self.query_ids.shape[-1], self.key_ids.shape[-1])

    def _runs(self) -> tuple[Ints, Ints, bool]:
        """First and past-the-last key with each row's id, (N or 1, L) each, and whether all of those runs are gapless."""
        q, k = flat(self.query_ids), flat(self.key_ids)
        (count,) = np.broadcast_shapes(q.shape[:1], k.shape[:1])
        lo, hi = np.zeros((2, count, q.shape[-1]), np.int64)
        gapless = True
        for n in range(count):
            q_n, k_n = q[n if q.shape[0] > 1 else 0], k[n if k.shape[0] > 1 else 0]
            if not k_n.size:
                continue
            ids, start, how_many = np.unique(k_n, return_index=True, return_counts=True)
            stop = k_n.size - np.unique(k_n[::-1], return_index=True)[1]
            at = np.minimum(np.searchsorted(ids, q_n), ids.size - 1)
            found = ids[at] == q_n
            lo[n], hi[n] = np.where(found, start[at], 0), np.where(found, stop[at], 0)
            gapless = gapless and bool((stop - start == how_many)[at[found]].all())
        return lo, hi, gapless

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        lo, hi, gapless = self._runs()
        out = interval(lo, hi)
        return out, (out if gapless else NONE)

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        q, k = flat(self.query_ids), flat(self.key_ids)
        out: Bools = (
            q[n if q.shape[0] > 1 else 0][rows][None, :, None] == k[n if k.shape[0] > 1 else 0][cols][None, None, :]
        )
        return out

    def origin(self, frame: Frame) -> Ints:
        return self._runs()[0]


@dataclass(frozen=True, eq=False, repr=False)
class Where(_Positional):
    rule: Callable[[Any, Any, Any, Any], Any]

    @property
    def differs_by_head(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"where({self._said(getattr(self.rule, '__name__', 'f'))})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        return ALL, NONE

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        head = np.arange(*heads.indices(frame.heads), dtype=np.int64)
        position = rows + (frame.offset[n] if frame.offset.size else 0)
        found = self.rule(
            np.full((1, 1, 1), n, np.int64), head[:, None, None], position[None, :, None], cols[None, None, :]
        )
        found = np.asarray(found)
        if found.dtype != np.bool_:
            raise DTypeError(
                f"where: the rule must return booleans (True = this query may read this key), but returned {found.dtype}; "
                "compare inside the rule, or end it with .astype(bool)"
            )
        try:
            out: Bools = np.broadcast_to(found, (head.size, rows.size, cols.size))
        except ValueError:
            raise ShapeError(
                f"where: the rule must return an array that broadcasts to (heads, queries, keys) = {(head.size, rows.size, cols.size)}, "
                f"but returned shape {found.shape}; build it from its four index arguments by broadcasting"
            ) from None
        return out


def _check_key_shape(shape: tuple[int, ...], frame: Frame) -> None:
    if shape not in ((*frame.batch, frame.keys), (frame.keys,)):
        raise ShapeError(
            f"keys: booleans must have shape (B…, S) = {(*frame.batch, frame.keys)}, but have shape {shape}; "
            "for an array of pairs (…, L, S) use allow()"
        )


def flat(array: Array) -> Array:
    """(B…, length) as (N, length); spelled out, because -1 cannot stand for an axis beside a 0."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _per_batch(bound: Ints) -> Ints:
    """(B…) or a single number as (N or 1, 1)."""
    return bound.reshape(-1, 1).astype(np.int64)
