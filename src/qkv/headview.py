"""A picture of one query of one head: the text it reads, shaded by weight, and its heaviest keys as a table.

Weight, share of the output and influence stand side by side because they are different things: a sink can take much
weight, say next to nothing itself, and still change the output when it is taken away. NumPy and the standard library
only; the same arguments give the same bytes.
"""

from __future__ import annotations

import textwrap
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError, ShapeError

__all__ = ["head_svg"]

Floats = npt.NDArray[np.float64]

_WIDTH, _MARGIN = 1240, 36
_TEXT_RIGHT, _TABLE_LEFT = 672, 716
_SIZE = 14.5  # of the tokens, in pixels
_ADVANCE = 0.602 * _SIZE  # of one character; the common monospaced faces are this wide or a little narrower
_LINE, _ROW = 28, 33
_TOP_KEYS, _MOST_LINES, _LONGEST_TOKEN = 10, 30, 40
_SHADE = 0.52  # opacity of the heaviest key; more would cost the token on it its contrast

# Presentation attributes are the light colours, also for programs that know no style sheets; the style sheet only adds
# the dark ones. All text has a contrast of at least 4.5 to 1 on what is behind it.
_LIGHT = {"paper": "#ffffff", "ink": "#1c2330", "soft": "#566072", "faint": "#6c7687", "rule": "#d9dee7"}
_LIGHT |= {"track": "#e9edf4", "bar": "#2f62d0", "minus": "#b4473a", "sink": "#a05a00"}
_DARK = {"paper": "#10151e", "ink": "#e8ecf4", "soft": "#a3aec0", "faint": "#8590a3", "rule": "#2c3646"}
_DARK |= {"track": "#222b3a", "bar": "#7ba4ff", "minus": "#ff8f7f", "sink": "#f0b455"}
_SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# The columns of numbers: left edge, and what the number means.
_COLUMNS = {
    "weight": (898, "how much of the key’s value is mixed into the output; all weights add up to 1"),
    "share": (1004, "how far that goes along the output; all shares add up to 1, and a key that pulls back is below 0"),
    "influence": (1110, "how far the output would move if this key alone were forbidden, ‖o − o₋ⱼ‖ / ‖o‖"),
}
_NUMBER, _BAR = 46, 40  # pixels of a column for the number, and for the bar to the right of it


def head_svg(
    tokens: Sequence[str],
    weights: npt.ArrayLike,
    shares: npt.ArrayLike,
    influences: npt.ArrayLike,
    *,
    query_index: int,
    title: str,
    caption: str,
    sink: int | None = 0,
) -> str:
    """Draw what one query of a causal head reads, as an SVG document.

    Args:
        tokens: the L tokens of the text. They may hold anything; what XML or the eye cannot take is shown by its code.
        weights: the query's attention weights, one per token, or one per token up to and including the query; 0 after
            the query, for the picture says that nothing there can be read.
        shares: share of the output per key, as many; NaN where the output is 0.
        influences: relative change of the output without each key, as many; NaN or infinite where there is none.
        query_index: which token asks.
        title: of the picture.
        caption: a sentence or two below the title.
        sink: the token that is marked as sink and held out of the scale of the shading; None for no such token.

    Returns:
        The document, 1,240 pixels wide, for light and dark surroundings, with a description for screen readers.

    Raises:
        ShapeError: the numbers are not as many as the tokens.
        ArgumentError: an index that is no token, or a weight after the query.

    Example:
        >>> picture = head_svg(["a", " b"], [0.4, 0.6], [0.3, 0.7], [0.2, 0.5], query_index=1, title="t", caption="c")
        >>> picture.startswith("<svg ")
        True
    """
    view = _view(tokens, weights, shares, influences, query_index, sink)
    lines = _lines(view)
    caption_lines = textwrap.wrap(_plain(caption), 150)
    top = 62 + 20 * len(caption_lines) + 34
    text, text_bottom = _draw_text(view, lines, top)
    table, table_bottom = _draw_table(view, top)
    legend, legend_bottom = _draw_legend(view, table_bottom + 40)
    height = round(max(text_bottom, legend_bottom) + 24)
    description = _description(view)
    body = [
        _box(0, 0, _WIDTH, height, "paper", radius=12),
        f'<g font-family="{_SANS}">',
        _text(_MARGIN, 50, _plain(title), size=21, more=' font-weight="600"'),
        *(_text(_MARGIN, 78 + 20 * i, line, color="soft", size=14) for i, line in enumerate(caption_lines)),
        *text,
        *table,
        *legend,
        "</g>",
    ]
    name = f"qkv-head-{zlib.crc32(''.join(body).encode()):08x}"  # two pictures in one page keep their ids apart
    dark = "".join(
        f".{name} .f-{part}{{fill:{color}}}.{name} .s-{part}{{stroke:{color}}}" for part, color in _DARK.items()
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="{name}-title {name}-desc">',
        f'<title id="{name}-title">{escape(_plain(title))}</title>',
        f'<desc id="{name}-desc">{escape(_plain(f"{caption} {description}"))}</desc>',
        f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>",
    ]
    return "\n".join([*head, *body, "</svg>", ""])


# What is shown --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _View:
    """The checked arguments; the numbers are of the keys the query can read, itself included."""

    tokens: tuple[str, ...]
    weights: Floats
    shares: Floats
    influences: Floats
    query: int
    sink: int | None

    @property
    def top(self) -> list[int]:
        """The heaviest keys, heaviest first; ties take the lower index."""
        order = np.argsort(-self.weights, kind="stable")[:_TOP_KEYS]
        return [int(j) for j in order if self.weights[j] > 0]

    @property
    def full_shade(self) -> float:
        """The weight that is shaded most: the heaviest besides the sink's."""
        others = np.delete(self.weights, self.sink) if self.sink is not None else self.weights
        return float(others.max(initial=0.0))


def _view(tokens: Sequence[str], weights: Any, shares: Any, influences: Any, query: int, sink: int | None) -> _View:
    if not 0 <= query < len(tokens):
        raise ArgumentError(f"query_index must be one of the {len(tokens)} tokens, not {query}; count from 0")
    if sink is not None and not 0 <= sink < len(tokens):
        raise ArgumentError(f"sink must be one of the {len(tokens)} tokens or None, not {sink}; count from 0")
    numbers = []
    for name, given in (("weights", weights), ("shares", shares), ("influences", influences)):
        array = np.asarray(given, dtype=np.float64)
        if array.shape not in ((len(tokens),), (query + 1,)):
            raise ShapeError(
                f"{name} has shape {array.shape}, not one number for each of the {len(tokens)} tokens, or for each of "
                f"the {query + 1} up to the query; pass the row of one query of one head"
            )
        numbers.append(array)
    ahead = np.flatnonzero(numbers[0][query + 1 :])
    if len(ahead):
        raise ArgumentError(
            f"weights must be 0 after the query, token {query}, not {numbers[0][query + 1 + ahead[0]]:.3g} at token "
            f"{query + 1 + ahead[0]}; the picture is of a causal head"
        )
    readable = (numbers[0][: query + 1], numbers[1][: query + 1], numbers[2][: query + 1])
    return _View(tuple(tokens), *readable, query, None if sink is None or sink > query else sink)


def _glyphs(token: str) -> str:
    """A token with what cannot be seen made visible: · for a space, ↵ for a line break, codes for the rest."""
    if len(token) > _LONGEST_TOKEN:
        token = token[: _LONGEST_TOKEN - 1] + "…"
    return "".join(_glyph(character) for character in token) or "∅"


def _glyph(character: str) -> str:
    known = {"\n": "↵", "\t": "⇥", "\r": "␍"}.get(character)
    if known is not None:
        return known
    kind = unicodedata.category(character)
    if kind == "Zs":
        return "·"
    # Controls, marks that reverse the line, surrogates and what is not a character at all.
    return f"⟨{ord(character):X}⟩" if kind[0] == "C" or kind in ("Zl", "Zp") else character


def _plain(text: str) -> str:
    """Running text for title and caption: spaces stay, controls go."""
    return "".join(" " if c.isspace() else _glyph(c) if unicodedata.category(c) != "Zs" else c for c in text)


def _columns(shown: str) -> int:
    """How many characters wide a string is set in a monospaced face."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in shown)


def _width(view: _View, indices: Sequence[int]) -> int:
    return sum(_columns(_glyphs(view.tokens[i])) for i in indices)


def _lines(view: _View) -> list[list[int]]:
    """The indices of the tokens of each line of text: broken between words, and after a token with a line break."""
    words: list[list[int]] = []
    for i, token in enumerate(view.tokens):
        goes_on = i and not token[:1].isspace() and "\n" not in view.tokens[i - 1]
        words[-1].append(i) if goes_on else words.append([i])
    room = int((_TEXT_RIGHT - _MARGIN) / _ADVANCE)
    lines: list[list[int]] = [[]]
    for word in words:
        for piece in [word] if _width(view, word) <= room else [[i] for i in word]:
            broken = bool(lines[-1]) and "\n" in view.tokens[lines[-1][-1]]
            if lines[-1] and (broken or _width(view, lines[-1]) + _width(view, piece) > room):
                lines.append([])
            lines[-1] += piece
    return lines


def _description(view: _View) -> str:
    """The picture in words, for those who do not see it."""
    keys = ", ".join(
        f"token {j} “{_glyphs(view.tokens[j])}”{' (the sink)' if j == view.sink else ''} weight "
        f"{_number(view.weights[j])}, share {_number(view.shares[j])}, influence {_number(view.influences[j])}"
        for j in view.top
    )
    return (
        f"Token {view.query} of {len(view.tokens)}, “{_glyphs(view.tokens[view.query])}”, asks and can read the "
        f"{view.query + 1} tokens up to itself. Its heaviest keys: {keys}."
    )


# How it is drawn ------------------------------------------------------------------------------------------------------


def _draw_text(view: _View, lines: list[list[int]], top: float) -> tuple[list[str], float]:
    """The tokens, line by line; returns where they end."""
    parts = [_heading(_MARGIN, top, "The text, token by token")]
    y = top + 18.0
    shown, gap = _shown_lines(view, lines)
    parts.append(f'<g font-family="{_MONO}">')
    for place, number in enumerate(shown):
        if gap and place == gap[0]:
            parts.append(_text(_MARGIN, y + 19, f"… {gap[1]:,} tokens left out …", color="soft", size=13))
            y += _LINE
        x = float(_MARGIN)
        for i in lines[number]:
            width = _ADVANCE * _columns(_glyphs(view.tokens[i]))
            parts.append(_draw_token(view, i, x, y, width))
            x += width
        y += _LINE
    parts.append("</g>")
    after = len(view.tokens) - 1 - lines[shown[-1]][-1]
    if after:
        parts.append(_text(_MARGIN, y + 19, f"… and {after:,} tokens more", color="soft", size=13))
        y += _LINE
    return parts, y


def _shown_lines(view: _View, lines: list[list[int]]) -> tuple[list[int], tuple[int, int] | None]:
    """Which lines are shown, and (before which place, how many tokens) something is left out."""
    if len(lines) <= _MOST_LINES:
        return list(range(len(lines))), None
    here = next(n for n, line in enumerate(lines) if line[-1] >= view.query)
    end = min(max(here + 3, _MOST_LINES), len(lines))
    start = max(end - (_MOST_LINES - 2), 2)
    left_out = sum(len(line) for line in lines[2:start])
    return [0, 1, *range(start, end)], (2, left_out) if left_out else None


def _draw_token(view: _View, i: int, x: float, y: float, width: float) -> str:
    glyphs = _glyphs(view.tokens[i])
    says = f"token {i} “{glyphs}”"
    box, color, weight = "", "ink", ""
    if i > view.query:
        color = "faint"
        says += ": after the query, cannot be read"
    else:
        says += f": weight {_number(view.weights[i])}, share {_number(view.shares[i])}"
        says += f", influence {_number(view.influences[i])}"
        if i == view.sink:
            box = _frame(x, y, width, "sink")
        else:
            shade = _SHADE * view.weights[i] / view.full_shade if view.full_shade else 0.0
            if shade >= 0.01:
                box = _box(x, y, width, 24, "bar", radius=3, opacity=shade)
    if i == view.query:
        box += _frame(x, y, width, "ink")
        weight = ' font-weight="700"'
    token = _spaced(glyphs, x, y + 17, color, weight, width)
    return f"<g><title>{escape(says)}</title>{box}{token}</g>"


def _spaced(glyphs: str, x: float, y: float, color: str, weight: str, width: float) -> str:
    """A token set to its width in any face, the marks of leading spaces fainter than its letters."""
    spaces = len(glyphs) - len(glyphs.lstrip("·"))
    marks = f'<tspan fill-opacity="0.45">{"·" * spaces}</tspan>' if spaces else ""
    return (
        f'<text class="f-{color}" fill="{_LIGHT[color]}" x="{x:.1f}" y="{y:.1f}" font-size="{_SIZE}"{weight} '
        f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{marks}{escape(glyphs[spaces:])}</text>'
    )


def _draw_legend(view: _View, y: float) -> tuple[list[str], float]:
    """What shading, frames and grey mean, in words and samples; returns where it ends."""
    parts = [_heading(_TABLE_LEFT, y, "How to read the text")]
    y += 16
    shades = 5 if view.full_shade else 0
    for step in range(shades):
        shade = _SHADE * (step + 0.5) / shades
        parts.append(_box(_TABLE_LEFT + 13 * step, y + 3, 13, 16, "bar", opacity=shade))
    rows = [
        ("shade", f"the weight, from 0 to {_number(view.full_shade)}: the stronger, the more is read"),
        ("query", "the token that asks; it can read itself and all before it"),
        ("sink", "the sink: takes leftover weight; held out of the shading"),
        ("later", "after the query: the causal mask keeps it from being read"),
        ("marks", "a space and a line break; they are part of a token"),
    ]
    for kind, says in rows:
        if (kind == "sink" and view.sink is None) or (kind == "shade" and not view.full_shade):
            continue
        if kind == "later" and view.query == len(view.tokens) - 1:
            continue
        if kind in ("query", "sink"):
            parts.append(_frame(_TABLE_LEFT, y - 1, 60, "ink" if kind == "query" else "sink"))
        if kind != "shade":
            bold = ' font-weight="700"' if kind == "query" else ""
            parts.append(
                _text(
                    _TABLE_LEFT + 10,
                    y + 16,
                    "·  ↵" if kind == "marks" else "token",
                    color={"later": "faint", "marks": "soft"}.get(kind, "ink"),
                    more=f' font-family="{_MONO}"{bold}',
                )
            )
        parts.append(_text(_TABLE_LEFT + 82, y + 16, says, color="soft"))
        y += 28
    return parts, y


def _draw_table(view: _View, top: float) -> tuple[list[str], float]:
    """The heaviest keys, one a row, with their three numbers; what the numbers mean; returns where they end."""
    parts = [_heading(_TABLE_LEFT, top, f"Its {len(view.top)} heaviest keys" if len(view.top) > 1 else "Its one key")]
    numbers = {"weight": view.weights, "share": view.shares, "influence": view.influences}
    scales = {name: _scale(column[view.top]) for name, column in numbers.items()}
    for name, (x, _) in _COLUMNS.items():
        parts.append(_text(x + _NUMBER - 39, top, name, size=13, more=' font-weight="600"'))
    y = top + 14.0
    for j in view.top:
        parts.append(_box(_TABLE_LEFT, y, _WIDTH - _MARGIN - _TABLE_LEFT, 1, "rule"))
        parts.append(f'<g font-family="{_MONO}">')
        parts.append(_text(_TABLE_LEFT + 30, y + 22, str(j), color="soft", size=12.5, end=True))
        parts.append(_draw_key(view, j, y))
        for name, (x, _) in _COLUMNS.items():
            number = float(numbers[name][j])
            parts.append(_text(x + _NUMBER, y + 22, _number(number), size=13, end=True))
            parts.append(_bar(x + _NUMBER + 8, y + 11, number, *scales[name]))
        parts.append("</g>")
        y += _ROW
    rest = len(view.weights) - len(view.top)
    if rest:
        parts.append(_box(_TABLE_LEFT, y, _WIDTH - _MARGIN - _TABLE_LEFT, 1, "rule"))
        label = f"{rest:,} others together" if rest > 1 else "the other one"
        parts.append(_text(_TABLE_LEFT + 40, y + 22, label, color="soft", size=13))
        for name in ("weight", "share"):
            sum_of_rest = float(np.delete(numbers[name], view.top).sum())
            x = _COLUMNS[name][0] + _NUMBER
            parts.append(_text(x, y + 22, _number(sum_of_rest), color="soft", end=True, more=f' font-family="{_MONO}"'))
        y += _ROW
    parts.append(_box(_TABLE_LEFT, y, _WIDTH - _MARGIN - _TABLE_LEFT, 1, "rule"))
    y += 28
    means = {name: says for name, (_, says) in _COLUMNS.items()}
    for name, says in (means | {"bars": "as long as the number, on a scale of each column’s own"}).items():
        parts.append(_text(_TABLE_LEFT, y, name, size=13, more=' font-weight="600"'))
        for line in textwrap.wrap(says, 54):
            parts.append(_text(_TABLE_LEFT + 82, y, line, color="soft"))
            y += 19
        y += 6
    return parts, y - 25


def _draw_key(view: _View, j: int, y: float) -> str:
    """The token of a row after the one before it, which often says why it is read."""
    room = 17 if j != view.sink else 12
    token = _glyphs(view.tokens[j])
    token = token if len(token) <= room else token[: room - 1] + "…"
    before = _glyphs(view.tokens[j - 1]) if j else ""
    left = room - len(token)
    before = before if len(before) <= left else ("…" + before[1 - left :] if left > 1 else "")
    mark = ' <tspan class="f-sink" fill="{}" font-family="{}" font-size="11.5">sink</tspan>'
    sink = mark.format(_LIGHT["sink"], _SANS) if j == view.sink else ""
    return (
        f'<text class="f-ink" fill="{_LIGHT["ink"]}" x="{_TABLE_LEFT + 40}" y="{y + 22:.1f}" font-size="13">'
        f'<tspan class="f-faint" fill="{_LIGHT["faint"]}">{escape(before)}</tspan>'
        f'<tspan font-weight="700">{escape(token)}</tspan>{sink}</text>'
    )


def _scale(column: Floats) -> tuple[float, float]:
    """From which number to which a column's bars go, 0 included; what is not finite has no bar."""
    finite = column[np.isfinite(column)]
    return float(finite.min(initial=0.0)), float(finite.max(initial=0.0))


def _bar(x: float, y: float, number: float, low: float, high: float) -> str:
    """A bar from 0; to the left, in another colour, for a number below 0."""
    if not np.isfinite(number) or high <= low:
        return ""
    zero = x + _BAR * -low / (high - low)
    length = _BAR * abs(number) / (high - low)
    color = "bar" if number >= 0 else "minus"
    start = zero if number >= 0 else zero - length
    return _box(x, y, _BAR, 12, "track", radius=2) + (_box(start, y, max(length, 1.2), 12, color, radius=2))


def _number(number: float) -> str:
    """Three decimals, or one digit and a power of ten for what would look like 0; a dash where there is no number."""
    if np.isnan(number):
        return "–"
    if np.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number and abs(number) < 5e-4:
        return f"{number:.0e}".replace("-", "−")
    return (f"{number + 0.0:.3f}" if abs(number) < 100 else f"{number:.3g}").replace("-", "−")


def _heading(x: float, y: float, text: str) -> str:
    return _text(x, y, text, size=14, more=' font-weight="600"')


def _text(
    x: float, y: float, text: str, *, color: str = "ink", size: float = 13, end: bool = False, more: str = ""
) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return (
        f'<text class="f-{color}" fill="{_LIGHT[color]}" x="{x:.1f}" y="{y:.1f}" font-size="{size}"{anchor}{more}>'
        f"{escape(text)}</text>"
    )


def _box(
    x: float, y: float, width: float, height: float, color: str, *, radius: float = 0, opacity: float = 1.0
) -> str:
    see_through = f' fill-opacity="{opacity:.3f}"' if opacity < 1 else ""
    return (
        f'<rect class="f-{color}" fill="{_LIGHT[color]}"{see_through} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height}" rx="{radius}"/>'
    )


def _frame(x: float, y: float, width: float, color: str) -> str:
    return (
        f'<rect class="s-{color}" fill="none" stroke="{_LIGHT[color]}" stroke-width="2" x="{x - 1.5:.1f}" '
        f'y="{y:.1f}" width="{width + 3:.1f}" height="24" rx="3"/>'
    )
