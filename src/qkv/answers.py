"""What an `Attention` answers with, and how rows, heads and keys are asked for by index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ArgumentError, DTypeError, shown
from .interop import to_numpy, whole_number
from .ranges import Ints

__all__ = ["Contributions", "Influence", "Survey", "Top", "indices", "one_index", "some_indices"]


@dataclass(frozen=True, eq=False)
class Top:
    """The largest weights of each row: `keys` int64 (B…, H, L, k), -1 where a row has fewer; `weights`, 0 there."""

    keys: Any
    weights: Any

    def __iter__(self) -> Any:
        return iter((self.keys, self.weights))


@dataclass(frozen=True, eq=False)
class Survey:
    """What one pass over all pairs says of the weights, (B…, H, …) each.

    Attributes:
        entropy: nats, as `Attention.entropy`, (L). distance: mean of position − j under the weights renormalised over the
            keys, (L); NaN for a row that reads no key. received: sum of each key's weight over the rows, (S).
        pooled: the map as from `Attention.pooled`, (queries, keys), or None.
    """

    entropy: Any
    distance: Any
    received: Any
    pooled: Any


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each key put into a query's output, (B…, H, S) each, or (B…, H, rows, S); without H where one head was asked.

    Attributes:
        weight: α_j. norm: ‖α_j v_j‖. share: α_j v_j · o / ‖o‖², signed, adds up to 1 over the keys; NaN where o is 0 (C6).
    """

    weight: Any
    norm: Any
    share: Any


@dataclass(frozen=True, eq=False)
class Influence:
    """How a query's output would change if one key were forbidden, for each key.

    Attributes:
        relative: ‖o − o₋ⱼ‖ / ‖o‖, (B…, H, S), or (B…, H, rows, S); 0 for keys the query may not read, NaN where o is 0.
        sole: True where the key is the only one the row may read: without it the row would be zero.
        vectors: o₋ⱼ − o, (B…, H, S, E) or (B…, H, rows, S, E), if asked for, else None.
    """

    relative: Any
    sole: Any
    vectors: Any


def one_index(name: str, wanted: Any, size: int) -> int:
    number = whole_number(wanted)
    if number is None:
        raise DTypeError(f"{name} must be one whole number, but {shown(wanted)} came; ask one {name} at a time")
    return int(indices(name, number, size)[0])


def some_indices(name: str, wanted: Any, size: int) -> tuple[Ints, bool]:
    """(indices, whether they were one number and no sequence)."""
    number = whole_number(wanted)
    return indices(name, wanted if number is None else number, size), number is not None


def indices(name: str, wanted: Any, size: int) -> Any:
    if isinstance(wanted, range):
        wanted = list(wanted)
    if isinstance(wanted, Iterable) and not isinstance(wanted, (list, tuple)) and not hasattr(wanted, "dtype"):
        wanted = list(wanted)
    array = to_numpy(wanted, name, scalars=True)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise DTypeError(
            f"{name} must be whole numbers, but has dtype {array.dtype}; np.flatnonzero(a) turns booleans into indices"
        )
    flat = array.reshape(-1)  # asked as it came: as int64 the largest of uint64 would be -1
    if int(flat.max()) >= size or int(flat.min()) < -size:
        wrong = int(flat[(flat >= size) | (flat < -size)][0])
        raise ArgumentError(
            f"{name} must be within -{size}…{size - 1}, but {wrong} came; indices count from 0, negative ones from the end"
        )
    flat = flat.astype(np.int64)
    return np.where(flat < 0, flat + size, flat)
