"""A picture as one SVG document: the map of the head that is shown, the heaviest keys of its row, and all of it in words.

The map is an image inside the document; text stays text. The same picture gives the same bytes.
"""

from __future__ import annotations

import base64
import struct
import textwrap
import unicodedata
import zlib
from html import escape
from typing import Any

import numpy as np

from qkv.floats import Array

from .picture import Map, Picture

__all__ = ["to_svg"]

_WIDTH, _MARGIN, _SIDE, _LEFT = 1200, 36, 470, 560
_ROWS, _LINE = 14, 26
_SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_LIGHT = {
    "paper": "#ffffff",
    "ink": "#1c2330",
    "soft": "#515b6c",
    "rule": "#d3d9e3",
    "sink": "#8a4b00",
    "bar": "#2450b8",
}
_DARK = {
    "paper": "#10151e",
    "ink": "#e8ecf4",
    "soft": "#aab4c5",
    "rule": "#313c4d",
    "sink": "#f0b455",
    "bar": "#8fb2ff",
}
_COLUMNS = {
    "weight": (806, "weight"),
    "recency": (888, "by distance"),
    "norm_share": (974, "contribution"),
    "share": (1076, "share of output"),
    "influence": (_WIDTH - _MARGIN, "influence"),
}


def to_svg(shown: Picture) -> str:
    """The document, 1,200 pixels wide, for light and dark surroundings, with a description for screen readers."""
    one = shown.start
    model = shown.facts.get("model", "the model")
    token = _plain(shown.tokens[one.row.query])
    title = f"{model}: layer {one.layer}, head {one.row.head}, query {one.row.query} “{token}”"
    words = textwrap.wrap(f"{shown.axes()} {shown.left_out(one_head=True)}", 165)
    top = 76.0
    body = [_text(_MARGIN, 46, title, size=20, more=' font-weight="600"')]
    body += _map(shown, top)
    table, bottom = _table(shown, top)
    body += table
    y = max(bottom, top + _SIDE + 46)
    for line in [*words, *_facts(shown)]:
        y += 20
        body.append(_text(_MARGIN, y, line, size=13, color="soft"))
    height = round(y + 28)
    dark = "".join(f".f-{name}{{fill:{color}}}.s-{name}{{stroke:{color}}}" for name, color in _DARK.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
            f'aria-labelledby="lens-title lens-words" font-family="{_SANS}">',
            f'<title id="lens-title">{_safe(title)}</title>',
            f'<desc id="lens-words">{_safe(shown.axes() + " " + _spoken(shown) + " " + shown.left_out(one_head=True))}</desc>',
            f"<style>@media (prefers-color-scheme:dark){{{dark}.in-light{{display:none}}.in-dark{{display:inline}}}}</style>",
            f'<rect class="f-paper" fill="{_LIGHT["paper"]}" width="{_WIDTH}" height="{height}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _map(shown: Picture, top: float) -> list[str]:
    one = shown.start
    found = next((m for m in shown.maps if (m.layer, m.head) == (one.layer, one.row.head)), None)
    if found is None:
        return [_text(_MARGIN, top + 20, "No map was asked for.", color="soft")]
    rows, cols = found.cells.shape
    height = _SIDE * min(rows / cols, 1) if rows < cols else _SIDE
    light, dark = (
        f'<image class="{name}" {hidden}x="{_MARGIN}" y="{top}" width="{_SIDE}" height="{height:.1f}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{image}"/>'
        for name, hidden, image in (
            ("in-light", "", _image(_colours(found, shown, _WHITE_TO_BLUE))),
            ("in-dark", 'display="none" ', _image(_colours(found, shown, _BLACK_TO_BLUE))),
        )
    )
    parts = [
        light,
        dark,
        f'<rect x="{_MARGIN}" y="{top}" width="{_SIDE}" height="{height:.1f}" fill="none" class="s-rule" stroke="{_LIGHT["rule"]}"/>',
        _text(
            _MARGIN,
            top + height + 18,
            f"keys 0 … {len(shown.tokens) - 1} →   queries {shown.first} … {shown.last} ↓",
            size=13,
            color="soft",
        ),
        _text(
            _MARGIN,
            top + height + 36,
            "each row to its own largest weight; the sink’s column is held out of the scale",
            size=13,
            color="soft",
        ),
    ]
    if shown.last > shown.first:
        y = top + height * (one.row.query - shown.first + 0.5) / (shown.last - shown.first + 1)
        parts.append(f'<path d="M{_MARGIN - 12} {y - 5:.1f}l8 5l-8 5z" class="f-sink" fill="{_LIGHT["sink"]}"/>')
    return parts


#: The colours of no weight and of the largest, as in the page.
_WHITE_TO_BLUE = ((255.0, 255.0, 255.0), (22.0, 62.0, 160.0))
_BLACK_TO_BLUE = ((16.0, 21.0, 30.0), (143.0, 178.0, 255.0))


def _colours(found: Map, shown: Picture, ends: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    """(R, C, 3) bytes, every row scaled to its own largest weight besides the sink's."""
    cells: Array = found.cells.astype(np.float64)
    counted = np.ones(cells.shape[1], np.bool_)
    if shown.sink is not None and len(counted) > 1:
        counted[((shown.sink + 1) * len(counted) - 1) // len(shown.tokens)] = False
    best = np.where(counted, cells, 0).max(axis=1, keepdims=True)
    shade = np.clip(np.nan_to_num(cells / np.where(best > 0, best, 1)), 0, 1)[..., None]
    low, high = (np.array(end) for end in ends)
    return (low + (high - low) * shade).round().astype(np.uint8)


def _image(pixels: Any) -> str:
    return base64.b64encode(_png(pixels)).decode("ascii")


def _png(pixels: Any) -> bytes:
    """(R, C, 3) bytes as a PNG file (the PNG specification, sections 5 and 11): 8 bits a channel, no filter."""
    rows, cols, _ = pixels.shape
    raw = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", cols, rows, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


def _table(shown: Picture, top: float) -> tuple[list[str], float]:
    row = shown.start.row
    parts = [
        _text(
            _LEFT, top + 14, f"The keys with the most {_COLUMNS[shown.quantity][1]}", size=15, more=' font-weight="600"'
        )
    ]
    y = top + 44
    parts += [_text(x, y, name, size=12, color="soft", more=' text-anchor="end"') for x, name in _COLUMNS.values()]
    keys = shown.start.top(_ROWS, shown.quantity)
    for j in keys:
        y += _LINE
        mark = "  ← sink" if j == shown.sink else "  ← itself" if j == row.query else ""
        color = "sink" if j == shown.sink else "ink"
        parts.append(_text(_LEFT, y, f"{j}", size=14, color="soft"))
        parts.append(
            _text(
                _LEFT + 50,
                y,
                _cut(_plain(shown.tokens[j]), 17 - len(mark)) + mark,
                size=14,
                color=color,
                more=f' font-family="{_MONO}"',
            )
        )
        for name, (x, _) in _COLUMNS.items():
            parts.append(_text(x, y, _number(float(getattr(row, name)[j])), size=14, more=' text-anchor="end"'))
    if not keys:
        y += _LINE
        parts.append(_text(_LEFT, y, "This query may read no key.", color="soft"))
    y += _LINE
    parts.append(
        _text(
            _LEFT,
            y + 4,
            f"effective keys {_number(row.effective_keys)} · mean distance {_number(row.mean_distance)} · cancellation {_number(row.cancellation)}",
            size=13,
            color="soft",
        )
    )
    many = int(row.allowed.sum())
    even = f"; even weights would be {_number(1 / many)} each" if many else ""
    words = f"by distance: what 1 / (1 + distance) alone would give{even}"
    parts.append(_text(_LEFT, y + 24, words, size=13, color="soft"))
    return parts, y + 24


def _facts(shown: Picture) -> list[str]:
    facts = " · ".join(f"{name} {value}" for name, value in shown.facts.items())
    return ["", *textwrap.wrap(facts, 165), *textwrap.wrap(f"drawn by: {shown.command}" if shown.command else "", 165)]


def _spoken(shown: Picture) -> str:
    row = shown.start.row
    keys = ", ".join(
        f"key {j} “{_plain(shown.tokens[j])}” {_number(float(getattr(row, shown.quantity)[j]))}"
        for j in shown.start.top(_ROWS, shown.quantity)
    )
    return f"Keys with the most {_COLUMNS[shown.quantity][1]}: {keys or 'none'}."


def _number(x: float) -> str:
    if x != x:
        return "none"
    return f"{x:.3f}" if abs(x) >= 0.0005 or x == 0 else f"{x:.0e}"


def _plain(text: str) -> str:
    """A token with what cannot be seen, or what XML cannot hold, made visible."""
    known = {"\n": "↵", "\t": "⇥", "\r": "␍"}
    out = "".join(
        known.get(c)
        or (
            "·"
            if c == " "
            else f"⟨{ord(c):X}⟩"
            if unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp")
            else c
        )
        for c in text
    )
    return out or "∅"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _safe(text: str) -> str:
    return escape("".join(c if c.isprintable() else " " for c in text))


def _text(x: float, y: float, words: str, *, size: float = 14, color: str = "ink", more: str = "") -> str:
    return f'<text class="f-{color}" fill="{_LIGHT[color]}" x="{x}" y="{y:.1f}" font-size="{size}"{more}>{_safe(words)}</text>'
