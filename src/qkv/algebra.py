"""The mask algebra: expressions that combine with `&`, `|`, `~` as booleans (contract B4, B5).

A mask is a value. An expression answers three questions, and none of them builds an L×S array unless the caller passed
one:

- `bounds(frame)`: intervals of keys each row *may* read, and intervals it *must* be allowed; where both agree the
  intervals are the mask, and they alone decide which tiles are skipped, full or partial;
- `tile(frame, …)`: what is allowed inside one tile, evaluated from O(B·(L+S)) data;
- `origin(frame)`: the first key of each row's own sequence, from which key blocks are counted (contract F3).

The rules at the bottom of an expression are in `rules.py`, their public names in `masks.py`; boolean arrays are here,
because they combine with every expression from either side.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .align import Align
from .errors import DTypeError, MaskError, ShapeError
from .frame import Frame
from .future import Ends, Extent, reads_future
from .interop import to_numpy
from .ranges import ALL, NONE, Ints, Ranges

Bools = npt.NDArray[np.bool_]


class Mask:
    """Which query may read which key. Made by `causal`, `window`, `keys`, …; combined with `&`, `|`, `~`.

    >>> from qkv import causal, window, first
    >>> causal() & (window(2, 0) | first(1))
    causal() & (window(2, 0) | first(1))
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **_: Any) -> Mask:
        """`array & mask`, `array | mask`: arrays combine from either side; nothing else of NumPy takes a mask."""
        if method == "__call__" and len(operands) == 2 and ufunc in (np.bitwise_and, np.logical_and):
            return _as_mask(operands[0]) & _as_mask(operands[1])
        if method == "__call__" and len(operands) == 2 and ufunc in (np.bitwise_or, np.logical_or):
            return _as_mask(operands[0]) | _as_mask(operands[1])
        raise MaskError(
            f"masks combine as booleans, and np.{ufunc.__name__} cannot take them; write & for 'both', | for 'either', ~ for 'not'"
        )

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

    __xor__ = __rxor__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic

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
    def differs_by_head(self) -> bool:
        """Whether heads may be allowed different keys."""
        return any(leaf.differs_by_head for leaf in self.parts())

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
        return must.inside(n, rows, cols)

    def origin(self, frame: Frame) -> Ints:
        """First key of each row's own sequence: (N or 1, L or 1)."""
        return np.zeros((1, 1), np.int64)

    def check(self, frame: Frame) -> None:
        """Raise where the expression does not fit the sizes."""
        for part in self.parts():
            part.check(frame)

    def last_keys(self) -> Ints | None:
        """Past-the-last existing key of each sequence, (N or 1,), if the term says which keys exist (B6)."""
        return None

    def extent(self) -> Extent:
        """The sizes a leaf's arrays have."""
        return Extent()

    def ends(self) -> Ends | None:
        """What the ends of a leaf's intervals are made of; None if it is no closed rule of positions."""
        return None

    def sequence(self, n: int) -> Mask:
        """The expression as sequence n sees it."""
        return self

    def token(self) -> Hashable | None:
        """The expression by value, to remember calls by; None if it holds a rule of the caller's, an array that is his,
        or more numbers than are compared in no time."""
        return None

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
        return reads_future(self, queries, keys)


def _bracket(mask: Mask, strength: int) -> str:
    return f"({mask!r})" if mask._strength < strength else repr(mask)


def _both(sign: str, a: Mask, b: Mask) -> Hashable | None:
    left = a.token()
    right = None if left is None else b.token()
    return None if right is None else (sign, left, right)


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

    def token(self) -> Hashable | None:
        return _both("&", self.a, self.b)

    def sequence(self, n: int) -> Mask:
        return And(self.a.sequence(n), self.b.sequence(n))

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

    def token(self) -> Hashable | None:
        return _both("|", self.a, self.b)

    def sequence(self, n: int) -> Mask:
        return Or(self.a.sequence(n), self.b.sequence(n))

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

    def token(self) -> Hashable | None:
        below = self.a.token()
        return None if below is None else ("~", below)

    def sequence(self, n: int) -> Mask:
        return Not(self.a.sequence(n))

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        return ~self.a.tile(frame, n, heads, rows, cols)


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

    def extent(self) -> Extent:
        shape = (1,) * max(0, 3 - self.array.ndim) + self.array.shape
        # An axis of 1 is broadcast: it says nothing of the size.
        return Extent(shape[:-3], shape[-3], *(None if size == 1 else size for size in shape[-2:]))

    @property
    def differs_by_head(self) -> bool:
        return self.array.ndim > 2 and self.array.shape[-3] > 1

    def full(self, frame: Frame) -> Bools:
        """A view of shape (B…, H, L, S)."""
        return np.broadcast_to(self.array, (*frame.batch, frame.heads, frame.queries, frame.keys))

    def bounds(self, frame: Frame) -> tuple[Ranges, Ranges]:
        return ALL, NONE

    def tile(self, frame: Frame, n: int, heads: slice, rows: Ints, cols: Ints) -> Bools:
        at = np.unravel_index(n, frame.batch) if frame.batch else ()
        out: Bools = self.full(frame)[at][heads][:, rows][:, :, cols]
        return out


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
    elif len(shape) >= 2 and shape[-2] == frame.heads != queries:
        way = "; as many queries as your arrays have heads suggests (B, L, H, D), which needs layout='blhd'"
    elif len(shape) >= 2 and shape[-2:] == (size, queries):
        way = f"; it is (S, L), so pass {name}.swapaxes(-1, -2)"
    else:
        way = "; its last two axes are queries and keys"
    said = (
        f"neither (L, S) = {(queries, size)} nor broadcastable to {letters} = {full}"
        if len(shape) == 2
        else f"not broadcastable to {letters} = {full}"
    )
    raise ShapeError(f"{name} has shape {shape}, which is {said}{way}")
