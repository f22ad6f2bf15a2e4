"""Keys and values in pages of a fixed number of tokens, with a table of pages for each sequence.

Sequences that begin alike share their pages by reference; whoever writes to a page that others hold as well writes to a
copy of its own. A pool prefers the page after a sequence's last one, so that a sequence mostly lies in one run of pages:
then its keys are read where they are. A table that is no run, and sequences whose runs do not begin at equal distances,
are read through a copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .floats import Array
from .ranges import Ints

__all__ = ["Pages"]

#: The entry of a page that a window cache has forgotten.
_GONE = -1


class Pool:
    """The memory: keys (G, pages · size, D) and values (G, pages · size, E), and how many tables hold each page."""

    def __init__(self, size: int, key: Array, value: Array) -> None:
        self.size = size
        self.key, self.value = (np.empty((x.shape[-3], 0, x.shape[-1]), x.dtype) for x in (key, value))
        self.holders = np.zeros(0, np.int64)
        self.users: weakref.WeakSet[Pages] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes held, free pages included."""
        return self.key.nbytes + self.value.nbytes

    def free(self, page: int) -> bool:
        """Whether there is such a page and no table holds it."""
        return 0 <= page < self.holders.size and self.holders[page] == 0

    def settle(self, writer: Pages, needed: Sequence[int]) -> None:
        """Move every page so that each sequence is one run with as much room behind it again as it has or will need.

        Args:
            needed: pages that each sequence of `writer` is about to have.
        """
        place: dict[int, int] = {}
        total = 0
        for user in (writer, *(user for user in self.users if user is not writer)):
            for n, table in enumerate(user.tables):
                mine = [page for page in table if page != _GONE and page not in place]
                place.update((page, total + i) for i, page in enumerate(mine))
                user.homes[n] = total + len(mine)
                elsewhere = len(table) - len(mine)
                total += 2 * max(len(mine), needed[n] - elsewhere if user is writer else 0, 1)
        key, value = (np.empty((x.shape[0], total * self.size, x.shape[-1]), x.dtype) for x in (self.key, self.value))
        holders = np.zeros(total, np.int64)
        for old, new in place.items():
            holders[new] = self.holders[old]
            self._copy(old, new, (key, value))
        self.key, self.value, self.holders = key, value, holders
        for user in self.users:
            for table in user.tables:
                table[:] = [page if page == _GONE else place[page] for page in table]

    def copy(self, old: int, new: int) -> None:
        """What page `old` holds goes to page `new` as well, which is held once."""
        self._copy(old, new, (self.key, self.value))
        self.holders[new] = 1

    def _copy(self, old: int, new: int, into: tuple[Array, Array]) -> None:
        for held, moved in zip((self.key, self.value), into, strict=True):
            moved[:, new * self.size : (new + 1) * self.size] = held[:, old * self.size : (old + 1) * self.size]

    def drop(self, pages: Sequence[int]) -> None:
        """One table less holds these pages."""
        for page in pages:
            if page != _GONE:
                self.holders[page] -= 1


class Piece(NamedTuple):
    """Rows of the pool that hold consecutive keys of a sequence: keys lo…hi, from row `row` of the pool on."""

    lo: int
    hi: int
    row: int


class Pages:
    """What one cache holds of a pool: for each sequence its pages in order."""

    def __init__(self, pool: Pool, tables: list[list[int]]) -> None:
        self.pool, self.tables = pool, tables
        #: Where a sequence goes on when the page after its last one is taken.
        self.homes = [0] * len(tables)
        pool.users.add(self)

    def __del__(self) -> None:
        self.release()

    @classmethod
    def new(cls, size: int, key: Array, value: Array, sequences: int) -> Pages:
        """No page yet, for keys and values like these (…, G, T, width)."""
        return cls(Pool(size, key, value), [[] for _ in range(sequences)])

    @property
    def nbytes(self) -> int:
        """Bytes of the pool, which forks share."""
        return self.pool.nbytes

    def release(self) -> None:
        """Hold nothing any more."""
        for table in self.tables:
            self.pool.drop(table)
            table.clear()

    def fork(self, sequences: Sequence[int]) -> Pages:
        """Those sequences, in that order, with every page shared."""
        tables = [list(self.tables[n]) for n in sequences]
        for table in tables:
            for page in table:
                if page != _GONE:
                    self.pool.holders[page] += 1
        return Pages(self.pool, tables)

    def write(self, key: Array, value: Array, lengths: Ints, counts: Ints) -> None:
        """The first counts[n] of T new rows, (N, G, T, width), behind the lengths[n] keys of sequence n."""
        size, pool = self.pool.size, self.pool
        needed = [-(-(at + count) // size) + 1 for at, count in zip(lengths.tolist(), counts.tolist(), strict=True)]
        for n, table in enumerate(self.tables):
            last = int(lengths[n]) // size
            if counts[n] and last < len(table) and pool.holders[table[last]] > 1:
                fresh = self._for_a_copy(n, needed)
                pool.copy(table[last], fresh)
                pool.drop([table[last]])
                table[last] = fresh
            while counts[n] and len(table) < needed[n] - 1:
                page = self._next(n, needed)
                pool.holders[page] = 1
                table.append(page)
        for n in range(len(self.tables)):
            at = int(lengths[n])
            for piece in self.pieces(n, at, at + int(counts[n])):
                rows, new = slice(piece.row, piece.row + piece.hi - piece.lo), slice(piece.lo - at, piece.hi - at)
                self.pool.key[:, rows] = key[n][:, new]
                self.pool.value[:, rows] = value[n][:, new]

    def _next(self, n: int, needed: Sequence[int]) -> int:
        """A free page for sequence n to go on with: the one after its last, for which all pages move if they have to."""
        table = self.tables[n]
        for _ in range(2):
            wanted = table[-1] + 1 if table else self.homes[n]
            if self.pool.free(wanted):
                return wanted
            self.pool.settle(self, needed)
        return self.homes[n]  # its last page lies in the run of a sequence that shares it

    def _for_a_copy(self, n: int, needed: Sequence[int]) -> int:
        """Any free page: a sequence that leaves the others is in two runs from then on."""
        if self.pool.free(self.homes[n]):
            return self.homes[n]
        free = np.flatnonzero(self.pool.holders == 0)
        if free.size:
            return int(free[-1])
        self.pool.settle(self, needed)
        return self.homes[n]

    def trim(self, lengths: Ints) -> None:
        """Drop the pages behind lengths[n] keys of sequence n."""
        for table, length in zip(self.tables, lengths.tolist(), strict=True):
            keep = -(-length // self.pool.size)
            self.pool.drop(table[keep:])
            del table[keep:]

    def forget(self, firsts: Ints) -> None:
        """Drop the pages that hold only keys before firsts[n] of sequence n."""
        for table, first in zip(self.tables, firsts.tolist(), strict=True):
            for i in range(min(first // self.pool.size, len(table)) - 1, -1, -1):
                if table[i] == _GONE:
                    break
                self.pool.drop([table[i]])
                table[i] = _GONE

    def pieces(self, n: int, lo: int, hi: int) -> Iterator[Piece]:
        """Where keys lo…hi of sequence n are, in as few pieces as there are runs."""
        size, table = self.pool.size, self.tables[n]
        while lo < hi:
            i = lo // size
            row = table[i] * size + lo % size
            while (i + 1) * size < hi and table[i + 1] == table[i] + 1:
                i += 1
            end = min((i + 1) * size, hi)
            yield Piece(lo, end, row)
            lo = end

    def read(self, first: int, firsts: Ints, lengths: Ints) -> tuple[Array, Array]:
        """Keys first…S of all sequences, (N, G, S − first, width): a view of the pool where the tables allow one."""
        pool, most = self.pool, int(lengths.max()) if lengths.size else 0
        rows = self._regular(first, firsts, lengths, most)
        if rows is not None:
            return self._view(pool.key, rows, most - first), self._view(pool.value, rows, most - first)
        key, value = (self._copied(x, first, firsts, lengths, most) for x in (pool.key, pool.value))
        return key, value

    def _copied(self, held: Array, first: int, firsts: Ints, lengths: Ints, most: int) -> Array:
        out = np.empty((len(self.tables), held.shape[0], most - first, held.shape[2]), held.dtype)
        for n, length in enumerate(lengths.tolist()):
            for lo, hi, row in self.pieces(n, int(firsts[n]), length):
                out[n][:, lo - first : hi - first] = held[:, row : row + hi - lo]
        return out

    def _regular(self, first: int, firsts: Ints, lengths: Ints, most: int) -> tuple[int, int] | None:
        """(the row of sequence 0's key `first`, rows from one sequence to the next), if every sequence is one run."""
        starts = []
        for n, length in enumerate(lengths.tolist()):
            pieces = list(self.pieces(n, int(firsts[n]), length))
            if len(pieces) != 1:
                return None
            starts.append(pieces[0].row - pieces[0].lo + first)
        if not starts or min(starts) < 0 or max(starts) + most - first > self.pool.key.shape[1]:
            return None
        step = starts[1] - starts[0] if len(starts) > 1 else 0
        regular = all(start == starts[0] + n * step for n, start in enumerate(starts))
        return (starts[0], step) if regular else None

    def _view(self, held: Array, rows: tuple[int, int], keys: int) -> Array:
        heads, row, column = held.strides
        shape = (len(self.tables), held.shape[0], keys, held.shape[2])
        out: Array = as_strided(held[:, rows[0] :], shape, (rows[1] * row, heads, row, column))
        return out
