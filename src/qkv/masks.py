"""The mask algebra: which query may read which key (contract B4 to B7).

A mask is a value. `&`, `|` and `~` combine masks, and masks with boolean arrays, as booleans. An expression answers
three questions, and none of them builds an L×S array unless the caller passed one:

- `bounds(frame)`: intervals of keys each row *may* read, and intervals it *must* be allowed; where both agree the
  intervals are the mask, and they alone decide which tiles are skipped, full or partial;
- `tile(frame, …)`: what is allowed inside one tile, evaluated from O(B·(L+S)) data;
- `origin(frame)`: the first key of each row's own sequence, from which key blocks are counted (contract F3).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import AlignmentError, ArgumentError, DTypeError, MaskError, ShapeError
from .floats import Array
from .interop import to_numpy
from .ranges import ALL, END, NONE, Ints, Ranges, interval

__all__ = ["Mask", "allow", "causal", "first", "keys", "prefix", "segments", "where", "window"]

Bools = npt.NDArray[np.bool_]
Align = Literal["start", "end"] | int | npt.NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class Frame:
    """The place an expression is asked about: sizes, and where each query row stands among its keys.

    Attributes:
        batch: the batch axes B….
        heads, queries, keys: H, L, S.
        offset: int64 (N,), N = product of `batch`; row i of batch n stands at position i + offset[n] (B6).
    """

    batch: tuple[int, ...]
    heads: int
    queries: int
    keys: int
    offset: Ints

    @property
    def batches(self) -> int:
        """N, all batch axes flattened."""
        return int(np.prod(self.batch, dtype=np.int64))

    def positions(self) -> Ints:
        """Position of each row: (N or 1, L)."""
        offset = self.offset[:1] if self.offset.size and (self.offset == self.offset[0]).all() else self.offset
        return offset[:, None] + np.arange(self.queries, dtype=np.int64)[None, :]


class Mask:
    """Which query may read which key. Made by `causal`, `window`, `keys`, …; combined with `&`, `|`, `~`.

    >>> from qkv import causal, window, first
    >>> causal() & (window(2, 0) | first(1))
    causal() & (window(2, 0) | first(1))
    """

    #: NumPy leaves `array & mask` to us, so that arrays combine from either side.
    __array_ufunc__ = None
    #: Binding strength, for printing with no more brackets than needed.
    _strength = 3

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`tensor & mask` and `tensor | mask`; nothing else of torch takes a mask."""
        name = getattr(func, "__name__", "")
        if name in ("and", "__and__", "bitwise_and", "logical_and", "__rand__"):
            return _as_mask(args[0]) & _as_mask(args[1])
        if name in ("or", "__or__", "bitwise_or", "logical_or", "__ror__"):
            return _as_mask(args[0]) | _as_mask(args[1])
        raise MaskError(
            f"a mask expression is not a tensor and torch's {name} cannot take it; combine masks with &, | and ~"
        )

    def __and__(self, other: Any) -> Mask:
        return And(self, _as_mask(other))

    def __rand__(self, other: Any) -> Mask:
        return And(_as_mask(other), self)

    def __or__(self, other: Any) -> Mask:
        return Or(self, _as_mask(other))

    def __ror__(self, other: Any) -> Mask:
        return Or(_as_mask(other), self)

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise MaskError(
            f"a mask has no truth value, so `and`, `or`, `not` and `if` cannot take {self!r}; combine masks with &, | and ~"
        )

    def _no_arithmetic(self, other: Any) -> Any:
        raise MaskError(
            "masks combine as booleans, not by adding or multiplying; write & for 'both', | for 'either', ~ for 'not'"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic

    def parts(self) -> tuple[Mask, ...]:
        """The operands, for walking an expression."""
        return ()

    def leaves(self) -> Iterator[Mask]:
        """The rules and arrays at the bottom of the expression, left to right."""
        below = self.parts()
        if not below:
            yield self
        for part in below:
            yield from part.leaves()

    def conjuncts(self) -> Iterator[Mask]:
        """The terms that all have to hold."""
        yield self

    @property
    def positional(self) -> bool:
        """Whether the expression speaks of positions, and so needs an alignment when L != S (B6)."""
        return any(leaf._speaks_of_positions for leaf in self.leaves())

    _speaks_of_positions = False

    @property
    def align(self) -> Align:
        """The alignment this rule was given (None: not said)."""
        return None

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        """(may, must): every allowed key lies in `may`; every key in `must` is allowed. The same object twice: exact."""
        raise NotImplementedError

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        """What is allowed for batch n, those heads, rows and keys: booleans that broadcast to (heads, rows, keys)."""
        _, must = self.bounds(frame)
        at = (must.lo.shape[0] > 1 and n) or 0
        lo, hi = must.lo[at], must.hi[at]
        if lo.shape[0] > 1:
            lo, hi = lo[rows], hi[rows]
        inside = (lo[:, None, :] <= cols[None, :, None]) & (cols[None, :, None] < hi[:, None, :])
        out: Bools = inside.any(axis=-1)[None]
        return out

    def origin(self, frame: Frame) -> Ints:
        """First key of each row's own sequence: (N or 1, L or 1)."""
        return np.zeros((1, 1), np.int64)

    def check(self, frame: Frame) -> None:
        """Raise where the expression does not fit the sizes."""
        for part in self.parts():
            part.check(frame)

    def reads_future(self, queries: int | None = None, keys: int | None = None) -> bool:
        """Whether some query is allowed to read a key that stands after it.

        Exact. Without sizes it answers for every L and S at once (and for the arrays' own sizes where the expression
        holds arrays); `where` needs the sizes.

        >>> from qkv import causal, window, first
        >>> (causal() & (window(255, 0) | first(4))).reads_future()
        False
        >>> (causal() & window(255, 0) | first(4)).reads_future()  # & binds closer than |
        True
        """
        from .future import reads_future

        return reads_future(self, queries, keys)


def _bracket(mask: Mask, strength: int) -> str:
    return f"({mask!r})" if mask._strength < strength else repr(mask)


@dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    a: Mask
    b: Mask
    _strength = 2

    def __repr__(self) -> str:
        return f"{_bracket(self.a, 2)} & {_bracket(self.b, 2)}"

    def parts(self) -> tuple[Mask, ...]:
        return self.a, self.b

    def conjuncts(self) -> Iterator[Mask]:
        yield from self.a.conjuncts()
        yield from self.b.conjuncts()

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        (may_a, must_a), (may_b, must_b) = self.a.bounds(frame), self.b.bounds(frame)
        may = may_a & may_b
        return may, (may if may_a is must_a and may_b is must_b else must_a & must_b)

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        return self.a.tile(frame, n, heads, rows, cols) & self.b.tile(frame, n, heads, rows, cols)

    def origin(self, frame: Frame) -> Ints:
        return np.maximum(self.a.origin(frame), self.b.origin(frame))


@dataclass(frozen=True, eq=False, repr=False)
class Or(Mask):
    a: Mask
    b: Mask
    _strength = 1

    def __repr__(self) -> str:
        return f"{_bracket(self.a, 1)} | {_bracket(self.b, 1)}"

    def parts(self) -> tuple[Mask, ...]:
        return self.a, self.b

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        (may_a, must_a), (may_b, must_b) = self.a.bounds(frame), self.b.bounds(frame)
        may = may_a | may_b
        return may, (may if may_a is must_a and may_b is must_b else must_a | must_b)

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        return self.a.tile(frame, n, heads, rows, cols) | self.b.tile(frame, n, heads, rows, cols)

    def origin(self, frame: Frame) -> Ints:
        return np.minimum(self.a.origin(frame), self.b.origin(frame))


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    a: Mask

    def __repr__(self) -> str:
        return f"~{_bracket(self.a, 3)}"

    def parts(self) -> tuple[Mask, ...]:
        return (self.a,)

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        may, must = self.a.bounds(frame)
        out = ~must
        return out, (out if may is must else ~may)

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        return ~self.a.tile(frame, n, heads, rows, cols)


@dataclass(frozen=True, eq=False, repr=False)
class _Positional(Mask):
    """A rule about positions; `align` says where the queries stand among the keys."""

    aligned: Align
    _speaks_of_positions = True

    @property
    def align(self) -> Align:
        return self.aligned

    def _said(self, *before: str) -> str:
        return ", ".join([*before, *([] if self.aligned is None else [f"align={self.aligned!r}"])])


@dataclass(frozen=True, eq=False, repr=False)
class Causal(_Positional):
    def __repr__(self) -> str:
        return f"causal({self._said()})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        out = interval(0, frame.positions() + 1)
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class Window(_Positional):
    left: int | None
    right: int | None

    def __repr__(self) -> str:
        return f"window({self._said(repr(self.left), repr(self.right))})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        p = frame.positions()
        out = interval(0 if self.left is None else p - self.left, END if self.right is None else p + self.right + 1)
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(_Positional):
    n: int

    def __repr__(self) -> str:
        return f"prefix({self._said(repr(self.n))})"

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        out = interval(0, np.maximum(frame.positions() + 1, self.n))
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class First(Mask):
    n: int

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

    def __repr__(self) -> str:
        return self.spelling

    def check(self, frame: Frame) -> None:
        for name, bound in (("start", self.start), ("stop" if self.start.any() else "lengths", self.stop)):
            if bound.ndim and bound.shape != frame.batch:
                way = ""
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
        return _flat(self.exists)

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        exists = self.flat()
        some = exists.any(axis=-1)
        start = np.where(some, exists.argmax(axis=-1), 0)
        stop = np.where(some, exists.shape[-1] - exists[:, ::-1].argmax(axis=-1), 0)
        return interval(start[:, None], stop[:, None]), NONE

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        exists = self.flat()
        return exists[n if exists.shape[0] > 1 else 0][cols][None, None, :]

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

    def _runs(self) -> tuple[Ints, Ints, bool]:
        """First and past-the-last key with each row's id, (N or 1, L) each, and whether all of those runs are gapless."""
        q, k = _flat(self.query_ids), _flat(self.key_ids)
        count = max(q.shape[0], k.shape[0])
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
        q, k = _flat(self.query_ids), _flat(self.key_ids)
        out: Bools = (
            q[n if q.shape[0] > 1 else 0][rows][None, :, None] == k[n if k.shape[0] > 1 else 0][cols][None, None, :]
        )
        return out

    def origin(self, frame: Frame) -> Ints:
        return self._runs()[0]


@dataclass(frozen=True, eq=False, repr=False)
class Allow(Mask):
    """A boolean array; `explicit` when the caller said through `allow()` that its axes are (…, L, S)."""

    array: Bools
    explicit: bool

    def __repr__(self) -> str:
        return f"allow(<bool {self.array.shape}>)"

    def __invert__(self) -> Mask:
        return Allow(~self.array, self.explicit)

    def check(self, frame: Frame) -> None:
        check_pair_shape("mask", self.array.shape, frame, explicit=self.explicit)

    def full(self, frame: Frame) -> Bools:
        """A view of shape (B…, H, L, S)."""
        return np.broadcast_to(self.array, (*frame.batch, frame.heads, frame.queries, frame.keys))

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        return ALL, NONE

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        at = np.unravel_index(n, frame.batch) if frame.batch else ()
        return self.full(frame)[at][heads][:, rows][:, :, cols]


@dataclass(frozen=True, eq=False, repr=False)
class Where(_Positional):
    rule: Callable[[Any, Any, Any, Any], Any]

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


# The public names. -------------------------------------------------------------------------------------------------


def causal(*, align: Align = None) -> Mask:
    """Key j is allowed for the query at position p iff j <= p: a position reads itself and what came before.

    Args:
        align: where the queries stand when L != S (B6): "end" (they are the newest rows, as with a cache), "start", or
            the position of the first query itself, an int or one per sequence, shape (B…).

    >>> import numpy as np, qkv
    >>> v = np.array([[1.0], [2.0], [3.0]])
    >>> qkv.attend(np.zeros((3, 1)), np.zeros((3, 1)), v, mask=qkv.causal()).ravel().tolist()
    [1.0, 1.5, 2.0]
    """
    return Causal(read_align("causal", align))


def window(left: int | None, right: int | None, *, align: Align = None) -> Mask:
    """Keys at most `left` before and at most `right` after the query's own position, both ends inclusive.

    The numbers count the keys *besides* its own: `window(255, 0)` sees 256 keys. `None` leaves that side open.

    >>> from qkv import window
    >>> window(1, None)
    window(1, None)
    """
    for name, value in (("left", left), ("right", right)):
        if value is not None:
            _count(f"window: {name}", value, " (None = open)")
    return Window(read_align("window", align), _integer(left), _integer(right))


def prefix(n: int, *, align: Align = None) -> Mask:
    """The first n keys for everybody, and causal after them: j < n or j <= position."""
    _count("prefix: n", n)
    return Prefix(read_align("prefix", align), operator.index(n))


def first(n: int) -> Mask:
    """The first n keys: j < n. With `window` this is the "attention sink" pattern.

    >>> from qkv import causal, first, window
    >>> causal() & (window(255, 0) | first(4))
    causal() & (window(255, 0) | first(4))
    """
    _count("first: n", n)
    return First(operator.index(n))


def keys(lengths: Any, stop: Any = None) -> Mask:
    """Which keys exist: `keys(lengths)`, `keys(start, stop)` or `keys(booleans)`.

    Args:
        lengths: with one argument: how many keys each sequence has, an int or integers (B…), 0…S; or booleans (B…, S),
            True = the key exists.
        stop: with two arguments the keys start <= j < stop exist (left padding: `keys(pad, S)`).

    >>> import numpy as np, qkv
    >>> qkv.keys(np.array([3, 5]))
    keys([3, 5])
    """
    first_arg = to_numpy(lengths, "keys", scalars=True)
    if stop is None and first_arg.dtype == np.bool_:
        return _key_set(first_arg)
    if stop is None:
        return KeyRange(np.zeros((), np.int64), _integers("lengths", first_arg), f"keys({_short(first_arg)})")
    start, end = _integers("start", first_arg), _integers("stop", to_numpy(stop, "keys", scalars=True))
    try:
        crossed = bool((start > end).any())
    except ValueError:
        raise ShapeError(f"keys: start and stop must have one shape, but have {start.shape} and {end.shape}") from None
    if crossed:
        raise ArgumentError(
            "keys: start must not be after stop, but is for some sequence; keys(n, n) is the empty range"
        )
    return KeyRange(start, end, f"keys({_short(start)}, {_short(end)})")


def segments(query_ids: Any, key_ids: Any = None) -> Mask:
    """A query reads the keys that carry its own id: several documents packed side by side.

    Args:
        query_ids: integers (B…, L) or (L,).
        key_ids: integers (B…, S) or (S,); left out, the same ids as the queries.

    >>> import numpy as np, qkv
    >>> packed = qkv.segments(np.array([0, 0, 0, 1, 1])) & qkv.causal()
    """
    q = _integers("query_ids", to_numpy(query_ids, "segments"), at_least=None, where="segments")
    k = q if key_ids is None else _integers("key_ids", to_numpy(key_ids, "segments"), at_least=None, where="segments")
    for name, ids in (("query_ids", q), ("key_ids", k)):
        if ids.ndim == 0:
            raise ShapeError(
                f"segments: {name} must have one id a position, but is a single number; pass an array (B…, length)"
            )
    return Segments(q, k, key_ids is None)


def allow(array: Any) -> Mask:
    """A boolean array of pairs, True = this query may read this key, that broadcasts to (B…, H, L, S) from the right.

    Two axes are (L, S), three (H, L, S). A bare array in `mask=` means the same, but is refused where it could also be
    a padding mask (B, S); `allow` says that it is not.
    """
    return Allow(read_booleans(array, "allow"), explicit=True)


def where(rule: Callable[[Any, Any, Any, Any], Any], *, align: Align = None) -> Mask:
    """Any rule: `rule(batch, head, position, key)` gets index arrays that broadcast and returns booleans.

    It is called tile by tile; `batch` counts all batch axes flattened in C order, `position` is the query's position
    among its keys (B6). The rule has to be pure: the same indices, the same answer.

    >>> from qkv import where
    >>> every_third = where(lambda batch, head, position, key: (position - key) % 3 == 0)
    """
    if not callable(rule):
        raise DTypeError(
            f"where: rule must be a function of (batch, head, position, key), but {type(rule).__name__} came; for an array use allow()"
        )
    return Where(read_align("where", align), rule)


# Reading arguments. ------------------------------------------------------------------------------------------------


def _as_mask(other: Any) -> Mask:
    return other if isinstance(other, Mask) else Allow(read_booleans(other, "mask"), explicit=False)


def read_booleans(array: Any, name: str) -> Bools:
    out = to_numpy(array, name)
    if out.dtype != np.bool_:
        raise DTypeError(
            f"{name} must be boolean, True = this query may read this key, but has dtype {out.dtype}; if it is to be added to the "
            "scores pass it as bias=, if it holds 0 and 1 write .astype(bool) (torch.nn.MultiheadAttention and TransformerEngine mean "
            "the opposite by True: for their masks write ~a)"
        )
    return out


def _key_set(exists: Bools) -> Mask:
    if exists.ndim == 0:
        raise ShapeError("keys: booleans must have shape (B…, S), but a single bool came; pass lengths or an array")
    size = exists.shape[-1]
    flat = _flat(exists)
    padded = np.zeros((flat.shape[0], size + 2), np.int8)
    padded[:, 1:-1] = flat
    step = np.diff(padded, axis=-1)
    if flat.shape[0] and int((step == 1).sum(axis=-1).max()) > 1:
        return KeySet(np.array(exists))
    # One run a sequence: a range, which tiles can be skipped by.
    start = np.where(flat.any(axis=-1), (step == 1).argmax(axis=-1), 0) if flat.shape[0] else np.zeros(0, np.int64)
    stop = start + flat.sum(axis=-1)
    shape = exists.shape[:-1]
    return KeyMask(
        start.reshape(shape).astype(np.int64),
        stop.reshape(shape).astype(np.int64),
        f"keys(<bool {exists.shape}>)",
        size,
    )


@dataclass(frozen=True, eq=False, repr=False)
class KeyMask(KeyRange):
    """`keys(booleans)` with one run of True a sequence: a range that remembers how long the booleans were."""

    size: int

    def check(self, frame: Frame) -> None:
        _check_key_shape((*self.start.shape, self.size), frame)


def _check_key_shape(shape: tuple[int, ...], frame: Frame) -> None:
    if shape not in ((*frame.batch, frame.keys), (frame.keys,)):
        raise ShapeError(
            f"keys: booleans must have shape (B…, S) = {(*frame.batch, frame.keys)}, but have shape {shape}; "
            "for an array of pairs (…, L, S) use allow()"
        )


def check_pair_shape(name: str, shape: tuple[int, ...], frame: Frame, *, explicit: bool) -> None:
    """Raise unless an array of pairs broadcasts to (B…, H, L, S) from the right, in one meaning only (B4)."""
    full = (*frame.batch, frame.heads, frame.queries, frame.keys)
    queries, size, letters = frame.queries, frame.keys, "(B, H, L, S)" if len(frame.batch) == 1 else "(B…, H, L, S)"
    fits = len(shape) <= len(full) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(full), strict=False))
    padding = len(frame.batch) > 0 and shape == (*frame.batch, size)
    way_padding = "pass mask=qkv.keys(mask)" if name == "mask" else f"pass {name}[:, None, None, :]"
    if fits and padding and len(shape) == 2 and queries == shape[0] > 1 and not explicit:
        if name == "mask":
            way = "write qkv.allow(mask) for (L, S) or qkv.keys(mask) for (B, S)"
        else:
            way = f"write {name}[None, None] for (L, S) or {name}[:, None, None, :] for (B, S)"
        raise ShapeError(
            f"{name} has shape {shape}, which is both (L, S) and (B, S) here, since L == B == {queries}; {way}"
        )
    if fits:
        return
    way = ""
    if padding:
        way = (
            f"; if it says which keys exist, {way_padding}"
            if name == "mask"
            else f"; if it is one row of keys a sequence, {way_padding}"
        )
    elif len(frame.batch) > 0 and shape == (*frame.batch, queries, size):
        way = f"; if it is (B, L, S), one array a sequence, pass {name}[:, None]"
    elif len(shape) >= 3 and shape[-3] not in (1, frame.heads):
        way = f"; its head axis must be the query's {frame.heads} heads or 1"
    said = (
        f"neither (L, S) = {(queries, size)} nor broadcastable to {letters} = {full}"
        if len(shape) == 2
        else f"not broadcastable to {letters} = {full}"
    )
    raise ShapeError(f"{name} has shape {shape}, which is {said}{way}")


def _flat(array: Array) -> Array:
    """(B…, length) as (N, length); spelled out, because -1 cannot stand for an axis beside a 0."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _per_batch(bound: Ints) -> Ints:
    """(B…) or a single number as (N or 1, 1)."""
    return bound.reshape(-1, 1).astype(np.int64)


def _integer(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _count(name: str, value: Any, extra: str = "") -> None:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"{name} must be a whole number{extra}, but {value!r} came") from None
    if number < 0:
        raise ArgumentError(
            f"{name} must not be negative{extra}, but {number} came; it counts keys besides the query's own"
            if name.startswith("window")
            else f"{name} must not be negative, but {number} came"
        )
    if number >= END:
        raise ArgumentError(
            f"{name} must be below 2**40, but {number} came{'; None leaves the side open' if extra else ''}"
        )


def _integers(name: str, array: Any, *, at_least: int | None = 0, where: str = "keys") -> Ints:
    if array.dtype == np.bool_ or not np.issubdtype(array.dtype, np.integer):
        raise DTypeError(f"{where}: {name} must be whole numbers, but has dtype {array.dtype}; write .astype(int)")
    if at_least is not None and array.size and int(array.min()) < at_least:
        raise ArgumentError(f"{where}: {name} must not be negative, but {int(array.min())} came")
    if array.size and int(array.max()) >= 1 << 62:
        raise ArgumentError(f"{where}: {name} must be below 2**62, but {int(array.max())} came")
    # A copy, so that a later change of the caller's array cannot change a mask that was already made.
    out: Ints = np.array(array, dtype=np.int64)
    return out


def read_align(name: str, align: Any) -> Align:
    if align is None or (isinstance(align, str) and align in ("start", "end")):
        return align
    way = 'pass "end" (the queries are the newest rows), "start", or the position of the first query, an int or one per sequence'
    if isinstance(align, str):
        raise AlignmentError(f"{name}: align must be one of those, but {align!r} came; {way}")
    offset = to_numpy(align, f"{name}: align", scalars=True)
    if offset.dtype == np.bool_ or not np.issubdtype(offset.dtype, np.integer):
        raise AlignmentError(f"{name}: align must be a word or whole numbers, but dtype {offset.dtype} came; {way}")
    if offset.size and int(np.abs(offset.astype(np.int64)).max()) >= END:
        raise AlignmentError(f"{name}: align must be below 2**40 in size, but {int(np.abs(offset).max())} came; {way}")
    return int(offset) if offset.ndim == 0 else np.array(offset, dtype=np.int64)


def _short(array: Any) -> str:
    values = array.tolist()
    return str(values) if array.size <= 8 else f"<{array.dtype} {array.shape}>"
