"""Keys and values of a growing sequence, for decoding: append, attend, trim, fork (contract B6, B7, F3).

The cache knows how many keys each sequence has and where the newest queries stand, so `causal()` needs no `align`.
Queries of as many rows as were appended last stand where those were appended,
row by row (so a right-padded prompt is placed rightly, and its padding rows stand past the end); any other number of
rows are the newest ones. Memory behind a sequence's length may hold anything: no mask reaches it (B7, D1).

Lengths, dtypes and what is refused are here. Where the numbers lie is not: in one growing block (`growing.py`), or in
pages that sequences share (`pages.py`). No bit of a result depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ArgumentError, DTypeError, ShapeError, shown
from .floats import FLOATS, Array, narrow, widen
from .growing import Growing
from .interop import Kind, take, to_numpy, whole_number
from .pages import Pages
from .ranges import END, MOST, Ints

__all__ = ["Cache", "CachePart"]

#: Tokens of a page where nobody says otherwise, and the 16-bit types that numbers may be kept in.
_PAGE = 64
_HALVES = ("float16", "bfloat16")


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
        return self.cache.shapes()[0 if self.name == "key" else 1]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.cache.dtype == "bfloat16" and self.cache.kind == "torch":
            raise DTypeError(f"cache.{self.name} is bfloat16, which NumPy has not; take cache.{self.name}.array")
        return np.array(self.array, dtype=dtype, copy=bool(copy) or None)

    def __repr__(self) -> str:
        return f"<cache.{self.name} {self.shape}>"


class Cache:
    """Keys and values of growing sequences, with a length each.

    Args:
        page: tokens of a page; the cache is then kept in pages, which `fork` shares. None: one block that doubles.
        window: forget keys that stand more than this many before the first token appended last: the `left` of
            `window(left, 0)` that the queries will be asked with. Kept in pages (of 64 tokens unless `page` says).
        storage: "float16" or "bfloat16": keep keys and values rounded to it. They are computed with as before, in the
            dtype that was appended; what is read is widened, one call at a time.

    Memory: at most twice what the longest sequence needs, for every sequence; in pages twice what each sequence needs,
    shared pages counted once, and four pages a sequence more. Pages are read where they lie as long as each sequence is
    one run and the runs begin at equal distances, which is so for sequences of equal length that were not forked; else
    a call reads them through a copy.

    >>> import numpy as np, qkv
    >>> rng = np.random.default_rng(0)
    >>> cache = qkv.Cache()
    >>> for _ in range(3):  # one new token a step: 2 sequences, 4 query heads on 2 key heads
    ...     _ = cache.append(rng.normal(size=(2, 2, 1, 8)), rng.normal(size=(2, 2, 1, 8)))
    ...     out = qkv.attend(rng.normal(size=(2, 4, 1, 8)), cache, mask=qkv.causal())
    >>> out.shape, cache.lengths.tolist()
    ((2, 4, 1, 8), [3, 3])
    """

    def __init__(self, *, page: int | None = None, window: int | None = None, storage: str | None = None) -> None:
        if storage is not None and not (isinstance(storage, str) and storage in _HALVES):
            raise ArgumentError(
                f"storage must be 'float16' or 'bfloat16', but {shown(storage)} came; leave it out to keep numbers as they are appended"
            )
        self._page, self._window = _tokens("page", page, 1), _tokens("window", window, 0)
        if self._page is None and self._window is not None:
            self._page = _PAGE
        self._storage = storage
        self._held: Growing | Pages | None = None
        self._widths = (0, 0)
        self._groups, self._headed = 0, True
        self._dtype = ""
        self._kind = Kind("numpy")
        self._lengths: Ints = np.zeros((), np.int64)
        self._firsts: Ints = self._lengths
        self._before: Ints = self._lengths
        self._longest, self._oldest, self._even = 0, 0, False
        self._appended = 0

    def __len__(self) -> int:
        """Length of the longest sequence, S."""
        return self._longest

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self._held is None:
            return "Cache()"
        shape = (*self._lengths.shape, self._groups)
        if isinstance(self._held, Pages):
            room = f"pages of {self._page}" + ("" if self._window is None else f", window {self._window}")
        else:
            room = f"room for {self._held.key.shape[-2]}"
        kept = "" if self._storage is None else f", kept in {self._storage}"
        return f"<Cache {self._dtype} {shape} × {len(self)} keys × {self._widths[0]}, {room}{kept}>"

    @property
    def lengths(self) -> Ints:
        """How many keys each sequence has had, int64 (B…); a copy."""
        out: Ints = self._lengths.copy()
        return out

    @property
    def first(self) -> int:
        """The first key that some sequence still holds: 0 unless a window has forgotten some.

        Positions and masks count from key 0 all the same. Answers of `attention(…)` that are key by key begin here.
        """
        return self._oldest

    @property
    def dtype(self) -> str:
        """The float type of what was appended, "" before."""
        return self._dtype

    @property
    def kind(self) -> str:
        """Which library the keys and values came from."""
        return self._kind.name

    @property
    def nbytes(self) -> int:
        """Bytes held, slack included; what forks share is counted by each of them."""
        return 0 if self._held is None else self._held.nbytes

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
            ShapeError, DTypeError, ArgumentError: the arrays do not fit each other or what is in the cache; the cache is
                unchanged then.
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
        for name, new, width in (("key", k, self._widths[0]), ("value", v, self._widths[1])):
            held = (*self._lengths.shape, *((self._groups,) if self._headed else ()))
            if self._held is not None and (new.shape[:-2] != held or new.shape[-1] != width):
                raise ShapeError(
                    f"{name} must fit the cache, (B…, G, T, width) = ({', '.join(map(str, held))}, T, {width}), "
                    f"but has shape {new.shape}; "
                    "start a new Cache for other sizes"
                )
        if self._held is not None and dtype != self._dtype:
            raise DTypeError(
                f"key and value must have the cache's dtype {self._dtype}, but have {dtype}; convert them first"
            )
        new_tokens = int(k.shape[-2])
        counts = None
        if lengths is not None or not self._even:
            counts = self._counts("lengths", lengths, k.shape[:-3], new_tokens, new_tokens)
        k, v = (self._kept(x, name, dtype) for x, name in ((k, "key"), (v, "value")))
        if self._held is None:
            self._start(k, v, dtype, kind)
        assert self._held is not None
        self._forget()
        sequences = self._lengths.size
        k, v = (x.reshape(sequences, self._groups, *x.shape[-2:]) for x in (k, v))
        if counts is None:  # every step of decoding
            assert isinstance(self._held, Growing)
            self._held.write_evenly(k, v, self._longest)
            self._before, self._lengths, self._appended = self._lengths, self._lengths + new_tokens, new_tokens
            self._longest += new_tokens
            return self
        self._held.write(k, v, self.flat_lengths(), counts.reshape(-1))
        self._before, self._lengths, self._appended = self._lengths, self._lengths + counts, new_tokens
        self._measure()
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
        # The next tokens stand behind the keys that stay, and their window has to be there.
        missing = (self._firsts > 0) & (wanted - (self._window or 0) < self._firsts)
        if missing.any():
            least = int((self._firsts + (self._window or 0))[missing][0])
            raise ArgumentError(
                f"lengths must leave a window whole, at least {least} keys, but {int(wanted[missing][0])} came; older keys are forgotten"
            )
        self._lengths, self._before, self._appended = wanted, wanted, 0
        self._measure()
        if self._held is not None:
            self._held.trim(self.flat_lengths())
        return self

    def fork(self, sequences: Any = None) -> Cache:
        """A cache of the same keys that grows by itself: what is appended to one is not in the other.

        In pages nothing is copied: a page is shared until one of its holders writes to it. Without pages it is a copy.

        Args:
            sequences: which sequences the new cache has, indices in any order and as often as wanted (beams); needs one
                batch axis. All of them if left out.

        >>> import numpy as np, qkv
        >>> prompt = qkv.Cache(page=16).append(np.ones((1, 2, 40, 8)), np.ones((1, 2, 40, 8)))
        >>> answers = prompt.fork([0, 0, 0])
        >>> answers.append(np.ones((3, 2, 1, 8)), np.ones((3, 2, 1, 8))).lengths.tolist(), prompt.lengths.tolist()
        ([41, 41, 41], [40])
        """
        count = self._lengths.size
        chosen: Any = np.arange(count)
        if sequences is not None:
            if self._lengths.ndim != 1:
                raise ShapeError(
                    f"fork takes sequences of a cache with one batch axis, but this one has batch axes {self._lengths.shape}; leave them out"
                )
            if isinstance(sequences, Iterable) and not hasattr(sequences, "dtype"):
                sequences = list(sequences)
            chosen = to_numpy(sequences, "sequences", scalars=True)
            if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
                raise DTypeError(
                    f"sequences must be a list of indices, but {chosen.dtype} of shape {chosen.shape} came; pass whole numbers, [0, 0, 1]"
                )
            if chosen.size and (int(chosen.min()) < 0 or int(chosen.max()) >= count):
                raise ArgumentError(
                    f"sequences must be within 0…{count - 1}, but {chosen.tolist()} came; they count from the first sequence"
                )
        out = Cache(page=self._page, window=self._window, storage=self._storage)
        shape = self._lengths.shape if sequences is None else (chosen.size,)
        for name in ("_lengths", "_firsts", "_before"):
            setattr(out, name, getattr(self, name).reshape(-1)[chosen.astype(np.int64)].reshape(shape))
        out._widths, out._groups, out._headed = self._widths, self._groups, self._headed
        out._dtype, out._kind, out._appended = self._dtype, self._kind, self._appended
        out._held = None if self._held is None else self._held.fork(chosen.tolist())
        out._measure()
        return out

    def frozen(self) -> Cache | None:
        """The cache as it is now, whatever is appended to it later; not a copy. None in pages, which move."""
        if not isinstance(self._held, Growing):
            return None
        out = Cache.__new__(Cache)
        out.__dict__.update(self.__dict__)
        out._held = Growing(self._held.key, self._held.value)
        return out

    def numbers(self) -> tuple[Array, Array] | None:
        """Keys and values in storage form, (N, G, at least S − first, D) and so on, from key `first` on; None before any came."""
        held = self._held
        if held is None:
            return None
        if type(held) is Growing and (self._storage is None or self._storage == self._dtype):
            return held.key, held.value
        return self._read()

    def standing(self, queries: int) -> tuple[Ints, Ints, int, Ints | None, int, int]:
        """(lengths, places, back, firsts, S − first, first): row 0 of `queries` rows stands at places − back, arrays (N,) each.

        `firsts` is None where no key was forgotten.
        """
        lengths = self._lengths.reshape(-1)
        firsts = self._firsts.reshape(-1) if self._window is not None else None
        if queries == self._appended:
            return lengths, self._before.reshape(-1), 0, firsts, self._longest - self._oldest, self._oldest
        return lengths, lengths, queries, firsts, self._longest - self._oldest, self._oldest

    def sizes(self) -> tuple[Any, ...]:
        """What decides, besides how long it is, how calls with this cache go."""
        return self._dtype, self._lengths.shape, self._groups, self._headed, self._widths

    def view(self) -> tuple[Any, Any]:
        """Keys and values up to the longest sequence's length, (B…, G, S, D) and (B…, G, S, E), as the kind that was appended.

        Not a copy, unless pages or `storage` make it one. Rows of shorter sequences past their own length are slack. A
        window's begin with key `first`.
        """
        k, v, dtype = self.storage()
        return self._kind.wrap(k, dtype, strided=True), self._kind.wrap(v, dtype, strided=True)

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of what `view` gives."""
        if self._held is None:
            raise ShapeError("the cache is empty and has no shape yet; append keys and values first")
        heads = (self._groups,) if self._headed else ()
        first, second = ((*self._lengths.shape, *heads, len(self) - self.first, width) for width in self._widths)
        return first, second

    def storage(self) -> tuple[Array, Array, str]:
        """Keys and values in storage form with the name of their float type."""
        shapes = self.shapes()
        key, value = self._read()
        return key.reshape(shapes[0]), value.reshape(shapes[1]), self._dtype

    def _read(self) -> tuple[Array, Array]:
        assert self._held is not None
        key, value = self._held.read(self.first, self.flat_firsts(), self.flat_lengths())
        if self._storage is not None and self._storage != self._dtype:
            key, value = (narrow(widen(x, self._storage), self._dtype) for x in (key, value))
        return key, value

    def flat_lengths(self) -> Ints:
        """Lengths with all batch axes flattened, int64 (N,)."""
        return self._lengths.reshape(-1)

    def flat_firsts(self) -> Ints:
        """The first key each sequence still holds, int64 (N,)."""
        return self._firsts.reshape(-1)

    def offset(self, queries: int) -> Any:
        """Position of the first of L queries: the tokens appended last if there were as many, else the newest rows (B6)."""
        first = self._before if queries == self._appended else self._lengths - queries
        return first if first.ndim else int(first)

    def _start(self, k: Array, v: Array, dtype: str, kind: Kind) -> None:
        self._dtype, self._kind = dtype, kind
        self._widths, self._headed = (int(k.shape[-1]), int(v.shape[-1])), k.ndim > 2
        self._groups = int(k.shape[-3]) if self._headed else 1
        self._lengths = self._firsts = self._before = np.zeros(k.shape[:-3], np.int64)
        k, v = (x if self._headed else x[None] for x in (k, v))
        sequences = self._lengths.size
        self._held = Growing.new(k, v, sequences) if self._page is None else Pages.new(self._page, k, v, sequences)

    def _forget(self) -> None:
        """What the tokens that come now do not need any more."""
        if self._window is None:
            return
        self._firsts = np.maximum(self._firsts, self._lengths - self._window)
        assert isinstance(self._held, Pages)
        self._held.forget(self._firsts.reshape(-1))

    def _measure(self) -> None:
        self._longest = int(self._lengths.max()) if self._lengths.size else 0
        self._oldest = int(self._firsts.min()) if self._firsts.size else 0
        # All of one length in one block: then a step appends to all alike.
        self._even = (
            self._lengths.size > 0 and type(self._held) is Growing and bool((self._lengths == self._longest).all())
        )

    def _kept(self, array: Array, name: str, dtype: str) -> Array:
        """The numbers as they are kept."""
        if self._storage is None or self._storage == dtype:
            return array
        wide = widen(array, dtype)
        beyond = np.isfinite(wide) & (np.abs(wide) > FLOATS[self._storage].largest)
        if beyond.any():
            raise ArgumentError(
                f"{name} must fit the cache's storage {self._storage}, but holds {wide[beyond][0]:.4g}; "
                + ("use storage='bfloat16'" if self._storage == "float16" else "leave storage= out")
            )
        return narrow(wide, self._storage)

    def _counts(self, name: str, lengths: Any, batch: tuple[int, ...], default: int | None, most: int | None) -> Ints:
        if lengths is None and default is not None:
            return np.full(batch, default, np.int64)
        counts = to_numpy(lengths, name, scalars=True)
        if counts.dtype.kind not in "iu":
            raise DTypeError(f"{name} must be whole numbers, but has dtype {counts.dtype}; write .astype(int)")
        if counts.dtype == np.uint64:
            counts = np.minimum(counts, np.uint64(END))  # what is larger would be negative as int64
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


def _tokens(name: str, value: Any, least: int) -> int | None:
    """A number of tokens, or None where nothing was said."""
    if value is None:
        return None
    count = whole_number(value)
    if count is None:
        raise DTypeError(f"{name} must be a whole number, but {shown(value)} came; it counts tokens")
    if not least <= count < MOST:
        limit = "" if count < least else " and below 2**31"
        raise ArgumentError(f"{name} must be at least {least}{limit}, but {count} came; it counts tokens")
    return count
