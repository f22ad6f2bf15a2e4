"""What `qkv lens` prints: the text shaded, the keys a row reads, and how much every head reads of the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import ArgumentError

from . import draw

if TYPE_CHECKING:
    from qkv.lens import Capture
    from qkv.lens.views import Picture

__all__ = ["show"]

#: Tokens of the text that are shown, keys in the table, and layers beside each other in the map.
_TOKENS, _KEYS, _LAYERS = 220, 8, 64


def show(shown: Picture, seen: Capture, outs: list[Path], *, served: bool) -> None:
    """The row that a picture opens with, in a terminal of 80 columns."""
    one, row = shown.start, shown.start.row
    facts = shown.facts
    many = facts.get("tokens", str(len(shown.tokens))).removeprefix("the first ")
    read = f"{many} tokens, {len(seen.layers)} layers"
    draw.text(f"{facts['model']}: {facts['kind']}, {facts['attention']} attention, {read}")
    draw.text()
    draw.text(f"Layer {one.layer}, head {row.head}, query {row.query} {shown.tokens[row.query]!r}", "bold")
    draw.shaded(_window(shown, getattr(row, shown.quantity)))
    keys = one.top(_KEYS, shown.quantity)
    draw.text()
    _table(shown, keys)
    draw.text()
    draw.text(
        f"as even as {row.effective_keys:.3g} keys, {row.mean_distance:.3g} tokens back on average; contributions cancel by {row.cancellation:.2f}"
    )
    if keys:
        _every_head(seen, shown, keys[0])
    draw.text()
    for path in outs:
        draw.text(f"written: {path} ({path.stat().st_size:,} bytes)")
    draw.text(
        shown.left_out(served=served)
        if outs or served
        else "--out view.html writes a page with every head; --layer, --head and --query choose another row"
    )


def _table(shown: Picture, keys: list[int]) -> None:
    row = shown.start.row
    baseline = getattr(row, "recency", None)
    names = ["weight", *(["recency"] if baseline is not None else []), "norm_share", "share", "influence"]
    said = {"norm_share": "contribution", "recency": "by distance"}
    rows = []
    for j in keys:
        numbers = [draw.number(float(getattr(row, name)[j]), 3) for name in names]
        note = "sink" if j == shown.sink else "itself" if j == row.query else ""
        rows.append((str(j), repr(shown.tokens[j])[:16], *numbers, note))
    draw.table(("key", "token", *(said.get(name, name) for name in names), ""), rows, left=(1, len(names) + 2))


def _every_head(seen: Capture, shown: Picture, key: int) -> None:
    """The layer × head map: how much of its weight each head gives the key, in tenths."""
    one, query = shown.start, shown.start.row.query
    given: dict[int, dict[int, float]] = {}
    for layer in seen.layers:
        try:
            weights = np.asarray(layer.attention().weights([layer.row(query)]), np.float64)[0, :, 0, key]
        except ArgumentError:  # a layer that did not keep this row
            continue
        given[layer.index] = {int(head): float(weights[slot]) for slot, head in enumerate(layer.heads)}
    heads = sorted({head for column in given.values() for head in column})
    if len(heads) * len(given) < 2:
        return
    draw.text()
    draw.text(
        f"How much of its weight each head gives key {key} {shown.tokens[key]!r}, in tenths (· less than half a tenth):"
    )
    layers = list(given)
    for start in range(0, len(layers), _LAYERS):
        part = layers[start : start + _LAYERS]
        draw.lines(f"  layer    {_ruler(part)}")
        for head in heads:
            cells = [(given[layer].get(head), (layer, head) == (one.layer, one.row.head)) for layer in part]
            draw.shaded([(f"  head {head:<4}", 0.0, False), *(_cell(x, chosen) for x, chosen in cells)])


def _ruler(layers: list[int]) -> str:
    """The numbers of every fifth column, above it."""
    out = ""
    for at in range(0, len(layers), 5):
        out = out.ljust(at) + str(layers[at])
    return out


def _cell(weight: float | None, chosen: bool) -> tuple[str, float, bool]:
    if weight is None or weight != weight:
        return " ", 0.0, False
    tenths = round(weight * 10)
    return "·" if tenths == 0 else "X" if tenths == 10 else str(tenths), weight, chosen and draw.has_colour()


def _window(shown: Picture, column: Any) -> list[tuple[str, float, bool]]:
    """(token, shade 0…1, whether it is framed) of the text around the query and at the start, as much as fits a screen."""
    row = shown.start.row
    best = max((abs(float(x)) for j, x in enumerate(column) if j != shown.sink and x == x), default=0.0) or 1.0
    size = len(shown.tokens)
    start = max(min(row.query + 8, size) - _TOKENS, 0)
    parts = [("…", 0.0, False)] if start else []
    for j in range(start, min(start + _TOKENS, size)):
        shade = 0.0 if j == shown.sink else abs(float(column[j])) / best
        parts.append((shown.tokens[j], shade if shade == shade else 0.0, j == row.query))
    return [*parts, *([("…", 0.0, False)] if start + _TOKENS < size else [])]
