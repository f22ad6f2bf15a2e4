"""Keys and values of all sequences in one block of memory that doubles when it is full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .floats import Array
from .ranges import Ints

__all__ = ["Growing"]

_FIRST_CAPACITY = 64


class Growing:
    """Keys (N, G, room, D) and values (N, G, room, E)."""

    def __init__(self, key: Array, value: Array) -> None:
        self.key, self.value = key, value

    @classmethod
    def new(cls, key: Array, value: Array, sequences: int) -> Growing:
        """Room for the first rows, (…, G, T, width) each."""
        room = max(_FIRST_CAPACITY, int(key.shape[-2]))
        return cls(*(np.zeros((sequences, x.shape[-3], room, x.shape[-1]), x.dtype) for x in (key, value)))

    @property
    def nbytes(self) -> int:
        """Bytes held, slack included."""
        return self.key.nbytes + self.value.nbytes

    def fork(self, sequences: Sequence[int]) -> Growing:
        """Those sequences, in that order, copied."""
        return Growing(self.key[list(sequences)], self.value[list(sequences)])

    def write(self, key: Array, value: Array, lengths: Ints, counts: Ints) -> None:
        """The first counts[n] of T new rows, (N, G, T, width), behind the lengths[n] keys of sequence n."""
        if not lengths.size:
            return
        if (lengths == lengths[0]).all() and (counts == counts[0]).all():
            many = int(counts[0])
            self.write_evenly(key[..., :many, :], value[..., :many, :], int(lengths[0]))
            return
        self._grow(int((lengths + counts).max()), int(lengths.max()))
        for n in range(lengths.size):
            at, many = int(lengths[n]), int(counts[n])
            self.key[n][..., at : at + many, :] = key[n][..., :many, :]
            self.value[n][..., at : at + many, :] = value[n][..., :many, :]

    def write_evenly(self, key: Array, value: Array, at: int) -> None:
        """T new rows, (N, G, T, width), behind the `at` keys of every sequence."""
        many = int(key.shape[-2])
        self._grow(at + many, at)
        self.key[..., at : at + many, :] = key
        self.value[..., at : at + many, :] = value

    def trim(self, lengths: Ints) -> None:
        """Nothing to do: what lies behind a length is written over."""

    def read(self, first: int, firsts: Ints, lengths: Ints) -> tuple[Array, Array]:
        """Keys first…S of all sequences, (N, G, S − first, width); not a copy."""
        most = int(lengths.max()) if lengths.size else 0
        return self.key[..., first:most, :], self.value[..., first:most, :]

    def _grow(self, needed: int, held: int) -> None:
        room = int(self.key.shape[-2])
        if needed <= room:
            return
        # Doubling: a token is copied a constant number of times on average, however long decoding goes on.
        room = max(needed, 2 * room)
        for name in ("key", "value"):
            old = getattr(self, name)
            new = np.zeros((*old.shape[:-2], room, old.shape[-1]), old.dtype)
            new[..., :held, :] = old[..., :held, :]
            setattr(self, name, new)
