"""What a view shows, decided once: pooled maps of every head, and the exact rows that were asked for.

A page of every number of 270 heads at 8,192 tokens would hold 18 thousand million of them. So maps are pooled, by
maximum, because a mean hides the one key that is read; and rows are exact where they were asked for. What was left out
is said in words, in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError, ShapeError

from ..capture import Capture
from ..row import Row, row

__all__ = ["BASELINES", "COLUMNS", "Map", "Picture", "Shown", "picture"]

#: The columns of an exact row, and what each means, in words.
COLUMNS = {
    "weight": "how much of the key’s value is mixed into the output; over the keys a query may read the weights add up to 1, less a learned sink",
    "norm_share": "how long the key’s contribution is, α_j v_j through the output projection, over the sum of all those lengths",
    "share": "how far the contribution goes along the output; adds up to 1, and a key that pulls back is below 0",
    "influence": "how far the head’s output would move if this key alone were forbidden, ‖o − o₋ⱼ‖ / ‖o‖; later layers may make up for it",
}

#: What stands beside the weights, to read them by: what a head would give that knows nothing of the text.
BASELINES = {
    "recency": "the weight that the distance alone would give, in proportion to 1 / (1 + distance); what is near it says nothing about the text",
    "uniform": "the same for every key that may be read",
}

#: Bytes that the maps of all heads may take in a page, before they are written as text.
_MAP_BYTES = 2_400_000
_LARGEST, _SMALLEST = 96, 12

#: Told how many maps are done, of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Map:
    """The weights of one head pooled by maximum: (R, C) float16, of the kept rows and all keys."""

    layer: int
    head: int
    cells: npt.NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Shown:
    """One exact row of a view."""

    layer: int
    row: Row

    def top(self, many: int, quantity: str) -> list[int]:
        """The allowed keys with the most of a column, most first; ties take the lower index."""
        # A share of all lengths is ordered as the lengths are.
        return self.row.top(many, "norm" if quantity == "norm_share" else quantity)


@dataclass(frozen=True, eq=False)
class Picture:
    """Everything a view shows.

    Attributes:
        tokens: (S,) the text. facts: model, text hash, versions. command: the line that draws it again.
        layers: (number, name, heads) of those captured. maps: pooled maps, in the order of layers and heads.
        rows: the exact rows. sink: the key that is marked and held out of the scale of colours, or None.
        first, last: positions of the first and the last query row that the maps cover.
        causal: whether no captured row reads a key after its own position.
        start: the layer, head and query that a view opens with, and the quantity.
    """

    tokens: tuple[str, ...]
    facts: Mapping[str, str]
    command: str
    layers: tuple[tuple[int, str, tuple[int, ...]], ...]
    maps: tuple[Map, ...]
    rows: tuple[Shown, ...]
    sink: int | None
    first: int
    last: int
    causal: bool
    quantity: str

    @property
    def start(self) -> Shown:
        """The row that a view opens with."""
        return self.rows[0]

    def left_out(self, *, one_head: bool = False, served: bool = False) -> str:
        """What is not shown, in two sentences.

        `one_head` where only the head and row of `start` are drawn; `served` where other rows can be had from the capture.
        """
        heads = 1 if one_head else sum(len(one[2]) for one in self.layers)
        rows = 1 if one_head else len(self.rows)
        cells = f"{self.maps[0].cells.shape[0]} × {self.maps[0].cells.shape[1]}" if self.maps else "no"
        queries = self.last - self.first + 1
        if self.maps and self.maps[0].cells.shape == (queries, len(self.tokens)):
            maps = f"every weight of {heads} head{'s' if heads != 1 else ''}, rounded to 3 digits"
        elif self.maps:
            several = "s" if heads != 1 else ""
            maps = f"maps of {heads} head{several} with {cells} cells, each the largest weight of {queries} × {len(self.tokens)} in it"
        else:
            maps = "no maps"
        numbers = f"{'the heaviest keys' if one_head else 'every number'} of {rows} row{'s' if rows != 1 else ''}"
        others = "are computed when they are asked for" if served else "are left out"
        return (
            f"It holds {maps}, and {numbers}; all other rows {others}. "
            "It shows what heads of one layer read, not what the model as a whole concludes: values, other heads and later layers matter too."
        )

    def axes(self) -> str:
        """What rows, columns, brightness and mask are, in words."""
        mask = (
            "A query may read itself and what stands before it."
            if self.causal
            else "A query may read keys on both sides, as its mask says."
        )
        return (
            "Rows are queries, the positions that ask, from the first at the top to the last; columns are keys, the positions that are read, "
            f"from left to right. The stronger a cell’s colour, the more weight. {mask}"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON: maps as nested lists, NaN as None."""
        return {
            "facts": dict(self.facts),
            "command": self.command,
            "tokens": list(self.tokens),
            "layers": [{"index": i, "name": name, "heads": list(heads)} for i, name, heads in self.layers],
            "queries": [self.first, self.last],
            "causal": self.causal,
            "sink": self.sink,
            "quantity": self.quantity,
            "axes": self.axes(),
            "left_out": self.left_out(),
            "columns": {**COLUMNS, **BASELINES},
            "maps": [
                {"layer": m.layer, "head": m.head, "cells": m.cells.astype(float).round(5).tolist()} for m in self.maps
            ],
            "rows": [{"layer_index": one.layer, **one.row.to_dict()} for one in self.rows],
        }


def picture(
    seen: Capture,
    *,
    rows: Sequence[tuple[int, int, int]] | None = None,
    quantity: str = "weight",
    maps: bool = True,
    sink: int | None = 0,
    sequence: int = 0,
    command: str = "",
    progress: Progress | None = None,
) -> Picture:
    """Choose what is shown of a capture.

    Args:
        seen: the capture, with its tokens.
        rows: (layer, head, query) of the exact rows, the first is what a view opens with; left out: the last query of
            the first head of the middle layer.
        quantity: the column a view opens with: "weight", "norm_share", "share" or "influence".
        maps: whether to pool maps of all captured heads; at thousands of tokens that takes its time.
        sink: the key marked as sink and held out of the colours' scale; None for no such key.
        sequence: which of the batch. command: the line that draws it again. progress: told of each map done.

    Raises:
        ArgumentError, ShapeError: an argument, see the message.
    """
    if quantity not in COLUMNS:
        raise ArgumentError(f"quantity must be one of {', '.join(COLUMNS)}, but {quantity!r} came; name one column")
    keys = {layer.keys for layer in seen.layers}
    if len(keys) > 1:
        raise ShapeError(
            f"the captured layers read {sorted(keys)} keys, and one picture is of one text; capture layers of one kind with layers="
        )
    size = keys.pop()
    tokens = seen.tokens if seen.tokens is not None else tuple(f"[{j}]" for j in range(size))
    if len(tokens) != size:
        raise ShapeError(
            f"tokens must be one for each of the {size} keys, but {len(tokens)} came; pass them to capture(tokens=…)"
        )
    if sink is not None and not 0 <= sink < size:
        raise ArgumentError(
            f"sink must be the number of a key, within 0…{size - 1}, but {sink} came; pass None (--sink -1) to hold none out of the colours"
        )
    middle = seen.layers[len(seen.layers) // 2]
    asked = rows if rows else [(middle.index, int(middle.heads[0]), int(middle.positions[-1]))]
    shown = tuple(Shown(seen.layer(n).index, row(seen.layer(n), h, q, sequence=sequence)) for n, h, q in asked)
    first, last = (int(f(layer.positions[at] for layer in seen.layers)) for f, at in ((min, 0), (max, -1)))
    return Picture(
        tokens=tuple(tokens),
        facts=seen.facts,
        command=command,
        layers=tuple((one.index, one.name, tuple(int(h) for h in one.heads)) for one in seen.layers),
        maps=tuple(_maps(seen, sequence, progress)) if maps else (),
        rows=shown,
        sink=sink,
        first=first,
        last=last,
        causal=all(layer.causal for layer in seen.layers),
        quantity=quantity,
    )


def _maps(seen: Capture, sequence: int, progress: Progress | None) -> Iterator[Map]:
    heads = sum(len(layer.heads) for layer in seen.layers)
    cells = int(np.clip((_MAP_BYTES / 2 / max(heads, 1)) ** 0.5, _SMALLEST, _LARGEST))
    done = 0
    for layer in seen.layers:
        pooled = layer.pooled(cells, cells, sequence=sequence).astype(np.float16)
        for slot, head in enumerate(layer.heads):
            yield Map(layer.index, int(head), pooled[slot])
        done += len(layer.heads)
        if progress is not None:
            progress(done, heads)
