"""Masks by their public names: `causal`, `window`, `prefix`, `first`, `keys`, `segments`, `allow`, `where` (contract B5).

Arguments are checked here; what the rules mean is in `rules.py`, how they combine in `algebra.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .algebra import Allow, Bools, Mask, read_booleans
from .align import Align, read_align
from .errors import ArgumentError, DTypeError, ShapeError, shown
from .interop import to_numpy
from .ranges import END, Ints
from .rules import Causal, First, KeyMask, KeyRange, KeySet, Prefix, Segments, Where, Window, flat

__all__ = ["Mask", "allow", "causal", "first", "keys", "prefix", "segments", "where", "window"]


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
        raise ShapeError(
            f"keys: start and stop must have one shape, but have {start.shape} and {end.shape}; pass for both one integer, or one per sequence"
        ) from None
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
    q = _integers("query_ids", to_numpy(query_ids, "segments", scalars=True), at_least=None, where="segments")
    k = (
        q
        if key_ids is None
        else _integers("key_ids", to_numpy(key_ids, "segments", scalars=True), at_least=None, where="segments")
    )
    for name, ids in (("query_ids", q), ("key_ids", k)):
        if ids.ndim == 0:
            raise ShapeError(
                f"segments: {name} must have one id a position, but is a single number; pass an array (B…, length)"
            )
    return Segments(q, k, key_ids is None)


def allow(array: Any) -> Mask:
    """A boolean array of pairs, True = this query may read this key, that broadcasts to (B…, H, L, S) from the right.

    Two axes are (L, S), three (H, L, S). A bare array in `mask=` means the same, but is refused where it could also be
    a padding mask (B, S); `allow` says that it is not. The array is not copied: changing it changes the mask.
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


def _key_set(exists: Bools) -> Mask:
    if exists.ndim == 0:
        raise ShapeError("keys: booleans must have shape (B…, S), but a single bool came; pass lengths or an array")
    size = exists.shape[-1]
    rows = flat(exists)
    padded = np.zeros((rows.shape[0], size + 2), np.int8)
    padded[:, 1:-1] = rows
    step = np.diff(padded, axis=-1)
    if rows.shape[0] and int((step == 1).sum(axis=-1).max()) > 1:
        return KeySet(np.array(exists))
    # One run a sequence: a range, which tiles can be skipped by.
    start = np.where(rows.any(axis=-1), (step == 1).argmax(axis=-1), 0) if rows.shape[0] else np.zeros(0, np.int64)
    stop = start + rows.sum(axis=-1)
    shape = exists.shape[:-1]
    return KeyMask(
        start.reshape(shape).astype(np.int64),
        stop.reshape(shape).astype(np.int64),
        f"keys(<bool {exists.shape}>)",
        size,
    )


def _integer(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _count(name: str, value: Any, extra: str = "") -> None:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"{name} must be a whole number{extra}, but {shown(value)} came; pass an int") from None
    if number < 0:
        raise ArgumentError(
            f"{name} must not be negative{extra}, but {number} came; it counts keys besides the query's own"
            if name.startswith("window")
            else f"{name} must not be negative, but {number} came; it counts keys from the first one"
        )
    if number >= END:
        raise ArgumentError(
            f"{name} must be below 2**40, but {number} came; {'None leaves the side open' if extra else 'the number of keys is enough'}"
        )


def _integers(name: str, array: Any, *, at_least: int | None = 0, where: str = "keys") -> Ints:
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{where}: {name} must be whole numbers, but has dtype {array.dtype}; write .astype(int)")
    if at_least is not None and array.size and int(array.min()) < at_least:
        raise ArgumentError(
            f"{where}: {name} must not be negative, but {int(array.min())} came; keys are counted from the first one, at 0"
        )
    if array.size and int(array.max()) >= 1 << 62:
        raise ArgumentError(
            f"{where}: {name} must be below 2**62, but {int(array.max())} came; number what there is from 0 on"
        )
    # A copy, so that a later change of the caller's array cannot change a mask that was already made.
    out: Ints = np.array(array, dtype=np.int64)
    return out


def _short(array: Any) -> str:
    values = array.tolist()
    return str(values) if array.size <= 8 else f"<{array.dtype} {array.shape}>"
