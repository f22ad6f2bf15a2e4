"""One attention call of which only the answers were kept: a summary, pooled maps, and the exact rows that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from qkv.errors import ArgumentError, UnsupportedError
from qkv.floats import Array
from qkv.ranges import Ints

if TYPE_CHECKING:
    from .row import Row
    from .summary import Summary

__all__ = ["Reduced"]


@dataclass(frozen=True, eq=False)
class Reduced:
    """What is left of a layer when its tensors are gone. Axes as in `Layer`.

    Attributes:
        name, index, heads, positions: as in `Layer`; positions of all rows. keys: S. causal: as in `Layer`.
        summary: of all rows, with the pooled maps in it.
        exact: (sequence, head, position) -> the rows that were asked for.
        tokens: whether the summary was made with tokens.
    """

    name: str
    index: int
    heads: Ints
    positions: Ints
    keys: int
    causal: bool
    summary: Summary
    exact: Mapping[tuple[int, int, int], Row]
    tokens: bool

    @property
    def rows(self) -> Ints:
        """Numbers of the rows that the summary is of, (L,)."""
        return np.arange(len(self.positions))

    @property
    def batches(self) -> int:
        """B."""
        return int(self.summary.entropy.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes this record keeps."""
        arrays = [x for one in (self.summary, *self.exact.values()) for x in vars(one).values()]
        arrays += [x for score in self.summary.scores.values() for x in vars(score).values()]
        return sum(int(x.nbytes) for x in arrays if isinstance(x, np.ndarray))

    def slot(self, head: int) -> int:
        """Where query head `head` of the model's layer is among the heads kept."""
        found = np.flatnonzero(self.heads == head)
        if not len(found):
            kept = ", ".join(map(str, self.heads[:8]))
            raise ArgumentError(
                f"head must be one of the heads kept of {self.name}, {kept}, but {head} came; capture with heads={head}"
            )
        return int(found[0])

    def row(self, head: int, query: int, sequence: int) -> Row:
        """The exact row, if it was asked for."""
        self.slot(head)
        at = query + max(self.keys, int(self.positions.max(initial=-1)) + 1) if query < 0 else query
        found = self.exact.get((sequence, head, at))
        if found is None:
            kept = sorted({q for _, _, q in self.exact})
            raise ArgumentError(
                f"query must be one of the rows kept of {self.name}, {', '.join(map(str, kept[:8]))}, but {query} came; "
                f'capture with queries={query}, or keep="tensors" to ask for any row afterwards'
            )
        return found

    def kept(self, tokens: Sequence[str] | Sequence[int] | None) -> Summary:
        """The summary; with tokens only if it was made with them."""
        if tokens is not None and not self.tokens:
            raise ArgumentError(
                f"tokens came too late for {self.name}, whose tensors are gone; pass tokens= to capture, where the summary is made"
            )
        return self.summary

    def pooled(self, rows: int, cols: int, *, sequence: int = 0) -> Array:
        """(H, r, c): the kept maps made coarser, to the finest grid of at most `rows` × `cols` cells that the kept one is cut into."""
        assert self.summary.pooled is not None
        out: Array = self.summary.pooled[sequence]
        for axis, most in ((1, rows), (2, cols)):
            size = out.shape[axis]
            cells = max(d for d in range(1, size + 1) if size % d == 0 and d <= max(most, 1))
            out = np.maximum.reduceat(out, np.arange(cells) * (size // cells), axis=axis)
        return out

    def on_host(self) -> NoReturn:
        """Refused: there are no tensors."""
        raise self._gone("this")

    def part(self, **_: Any) -> NoReturn:
        """Refused: there are no tensors."""
        raise self._gone("this")

    def attention(self) -> NoReturn:
        """Refused: there are no tensors."""
        raise self._gone("attention()")

    def _gone(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f'{what} needs the tensors of {self.name}, and this capture keeps summaries; capture with keep="tensors"'
        )
