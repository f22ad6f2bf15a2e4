"""Keys and values of a growing sequence, for decoding: append, attend, trim (contract B6, B7, F3).

The cache knows how many keys each sequence has and where the newest queries stand, so `causal()` needs no `align`.
Queries of as many rows as were appended last stand where those were appended,
row by row (so a right-padded prompt is placed rightly, and its padding rows stand past the end); any other number of
rows are the newest ones. Memory behind a sequence's length may hold anything: no mask reaches it (B7, D1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ArgumentError, DTypeError, ShapeError
from .floats import FLOATS, Array
from .interop import Kind, take, to_numpy
from .ranges import Ints

__all__ = ["Cache", "CachePart"]

_FIRST_CAPACITY = 64


@dataclass(frozen=True, eq=False)
class CachePart:
    """`cache.key` or `cache.value`: the array together with the cache it belongs to, for `attend(q, cache.key, cache.value)`."""

    cache: Cache
    name: str

    @property
    def array(self) -> Any:
        """The keys or values up to the longest sequence's length, (B…, G, S, D), as the kind that was appended; not a copy."""
        return self.cache.view()[0 if self.name == "key" else 1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `array`."""
        key, value, _ = self.cache.storage()
        return tuple((key if self.name == "key" else value).shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.cache.storage()[2] == "bfloat16" and self.cache.kind == "torch":
            raise DTypeError(f"cache.{self.name} is bfloat16, which NumPy has not; take cache.{self.name}.array")
        return np.array(self.array, dtype=dtype, copy=bool(copy) or None)

    def __repr__(self) -> str:
        return f"<cache.{self.name} {self.shape}>"


class Cache:
    """Keys and values of growing sequences, with a length each.

    >>> import numpy as np, qkv
    >>> rng = np.random.default_rng(0)
    >>> cache = qkv.Cache()
    >>> for _ in range(3):  # one new token a step: 2 sequences, 4 query heads on 2 key heads
    ...     _ = cache.append(rng.normal(size=(2, 2, 1, 8)), rng.normal(size=(2, 2, 1, 8)))
    ...     out = qkv.attend(rng.normal(size=(2, 4, 1, 8)), cache, mask=qkv.causal())
    >>> out.shape, cache.lengths.tolist()
    ((2, 4, 1, 8), [3, 3])
    """

    def __init__(self) -> None:
        self._key: Array | None = None
        self._value: Array | None = None
        self._dtype = ""
        self._kind = Kind("numpy")
        self._lengths: Ints = np.zeros((), np.int64)
        self._before: Ints = self._lengths
        self._appended = 0

    def __len__(self) -> int:
        """Length of the longest sequence, S."""
        return int(self._lengths.max()) if self._lengths.size else 0

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self._key is None:
            return "Cache()"
        return f"<Cache {self._dtype} {self._key.shape[:-2]} × {len(self)} keys × {self._key.shape[-1]}, room for {self._key.shape[-2]}>"

    @property
    def lengths(self) -> Ints:
        """How many keys each sequence has, int64 (B…); a copy."""
        out: Ints = self._lengths.copy()
        return out

    @property
    def kind(self) -> str:
        """Which library the keys and values came from."""
        return self._kind.name

    @property
    def nbytes(self) -> int:
        """Bytes held, slack included."""
        return 0 if self._key is None or self._value is None else self._key.nbytes + self._value.nbytes

    @property
    def key(self) -> CachePart:
        """The keys, for `attend(q, cache.key, cache.value)`."""
        return CachePart(self, "key")

    @property
    def value(self) -> CachePart:
        """The values, for `attend(q, cache.key, cache.value)`."""
        return CachePart(self, "value")

    def append(self, key: Any, value: Any, *, lengths: Any = None) -> Cache:
        """Add T new tokens to every sequence (the first `lengths[b]` of them, where given); returns the cache.

        Args:
            key, value: (B…, G, T, D) and (B…, G, T, E), copied in.
            lengths: integers (B…) in 0…T: how many of the T rows are real for each sequence (right-padded prompts).

        Raises:
            ShapeError, DTypeError: the arrays do not fit each other or what is in the cache; the cache is unchanged then.
        """
        k, dtype, kind = take(key, "key")
        v, value_dtype, _ = take(value, "value")
        if dtype != value_dtype:
            raise DTypeError(
                f"key and value must have one dtype, but key is {dtype} and value is {value_dtype}; convert one of them"
            )
        if k.ndim < 2 or k.shape[:-1] != v.shape[:-1]:
            raise ShapeError(
                f"key and value must have shapes (B…, G, T, D) and (B…, G, T, E), but have {k.shape} and {v.shape}; give each key one value"
            )
        for name, new, held in (("key", k, self._key), ("value", v, self._value)):
            if held is not None and (new.shape[:-2] != held.shape[:-2] or new.shape[-1] != held.shape[-1]):
                raise ShapeError(
                    f"{name} must fit the cache, (B…, G, T, width) = ({', '.join(map(str, held.shape[:-2]))}, T, {held.shape[-1]}), "
                    f"but has shape {new.shape}; "
                    "start a new Cache for other sizes"
                )
        if self._key is not None and dtype != self._dtype:
            raise DTypeError(
                f"key and value must have the cache's dtype {self._dtype}, but have {dtype}; convert them first"
            )
        new_tokens = int(k.shape[-2])
        counts = self._counts("lengths", lengths, k.shape[:-3], new_tokens, new_tokens)
        if self._key is None:
            self._start(k, v, dtype, kind)
        self._grow(int((self._lengths + counts).max()) if counts.size else 0)
        self._write(k, v, counts)
        self._before, self._lengths, self._appended = self._lengths, self._lengths + counts, new_tokens
        return self

    def trim(self, lengths: Any) -> Cache:
        """Forget the newest keys: afterwards sequence b has `lengths[b]` keys (an int trims all alike); returns the cache."""
        wanted = self._counts("lengths", lengths, self._lengths.shape, None, None)
        over = wanted > self._lengths
        if over.any():
            raise ArgumentError(
                f"lengths must not be longer than what is held, but {int(wanted[over][0])} came for a sequence of "
                f"{int(self._lengths[over][0])} keys; append adds keys"
            )
        self._lengths, self._before, self._appended = wanted, wanted, 0
        return self

    def view(self) -> tuple[Any, Any]:
        """Keys and values up to the longest sequence's length, (B…, G, S, D) and (B…, G, S, E), as the kind that was appended.

        Not a copy. Rows of shorter sequences past their own length are slack.
        """
        k, v, dtype = self.storage()
        return self._kind.wrap(k, dtype), self._kind.wrap(v, dtype)

    def storage(self) -> tuple[Array, Array, str]:
        """Keys and values in storage form with the name of their float type."""
        if self._key is None or self._value is None:
            raise ShapeError("the cache is empty and has no shape yet; append keys and values first")
        size = len(self)
        return self._key[..., :size, :], self._value[..., :size, :], self._dtype

    def flat_lengths(self) -> Ints:
        """Lengths with all batch axes flattened, int64 (N,)."""
        return self._lengths.reshape(-1)

    def offset(self, queries: int) -> Any:
        """Position of the first of L queries: the tokens appended last if there were as many, else the newest rows (B6)."""
        first = self._before if queries == self._appended else self._lengths - queries
        return first if first.ndim else int(first)

    def _start(self, k: Array, v: Array, dtype: str, kind: Kind) -> None:
        room = max(_FIRST_CAPACITY, int(k.shape[-2]))
        self._key = np.zeros((*k.shape[:-2], room, k.shape[-1]), FLOATS[dtype].storage)
        self._value = np.zeros((*v.shape[:-2], room, v.shape[-1]), FLOATS[dtype].storage)
        self._dtype, self._kind = dtype, kind
        self._lengths = np.zeros(k.shape[:-3], np.int64)
        self._before = self._lengths

    def _counts(self, name: str, lengths: Any, batch: tuple[int, ...], default: int | None, most: int | None) -> Ints:
        if lengths is None and default is not None:
            return np.full(batch, default, np.int64)
        counts = to_numpy(lengths, name, scalars=True)
        if counts.dtype == np.bool_ or not np.issubdtype(counts.dtype, np.integer):
            raise DTypeError(f"{name} must be whole numbers, but has dtype {counts.dtype}; write .astype(int)")
        if counts.ndim and counts.shape != batch:
            raise ShapeError(
                f"{name} must be one number or one per sequence, shape (B…) = {batch}, but has shape {counts.shape}; "
                "reshape it to the batch axes"
            )
        if counts.size and (int(counts.min()) < 0 or (most is not None and int(counts.max()) > most)):
            raise ArgumentError(
                f"{name} must be within 0…{'T = ' + str(most) if most is not None else 'the length held'}, but {counts.tolist()} came; "
                + (
                    "it counts the rows of this call that are real"
                    if most is not None
                    else "it says how many keys stay"
                )
            )
        return np.broadcast_to(counts, batch).astype(np.int64)

    def _grow(self, needed: int) -> None:
        assert self._key is not None
        assert self._value is not None
        room = int(self._key.shape[-2])
        if needed <= room:
            return
        # Doubling: a token is copied a constant number of times on average, however long decoding goes on.
        room = max(needed, 2 * room)
        for name in ("_key", "_value"):
            held = getattr(self, name)
            grown = np.zeros((*held.shape[:-2], room, held.shape[-1]), held.dtype)
            grown[..., : len(self), :] = held[..., : len(self), :]
            setattr(self, name, grown)

    def _write(self, k: Array, v: Array, counts: Ints) -> None:
        assert self._key is not None
        assert self._value is not None
        lengths = self._lengths
        if lengths.size and (lengths == lengths.flat[0]).all() and (counts == counts.flat[0]).all():
            at, many = int(lengths.flat[0]), int(counts.flat[0])
            self._key[..., at : at + many, :] = k[..., :many, :]
            self._value[..., at : at + many, :] = v[..., :many, :]
            return
        for index in np.ndindex(lengths.shape):
            at, many = int(lengths[index]), int(counts[index])
            self._key[index][..., at : at + many, :] = k[index][..., :many, :]
            self._value[index][..., at : at + many, :] = v[index][..., :many, :]
