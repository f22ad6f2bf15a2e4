"""One query's attention with every step kept, to be read as a table, a picture, JSON, or one step at a time.

The numbers are those of `plain.attention_steps`; here they are only kept, named and drawn. Standard library only.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .plain import attention_steps, checked

Numbers = float | list[float] | list[float | None] | list[list[float]]

TABLE_WIDTH = 80


def trace(query: Any, keys: Any, values: Any, allowed: Any = None) -> Trace:
    """Attention of one query, every step kept.

    The formula is softmax(q · k / √d) · v (Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1).

    Args:
        query: D numbers.
        keys: S vectors of D numbers.
        values: S vectors of E numbers.
        allowed: S booleans, `True` where the query may read the key; `None` allows every key.

    Lists, tuples, and anything with `.tolist()`, such as the arrays of NumPy and torch.

    Raises:
        TypeError, ValueError: as `qkv.plain.attend`.

    >>> print(trace([2**0.5, 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]]))
      key  q·k/√2    −max    exp  weight  value    weight·value
      0     1.000   0.000  1.000   0.731  [10, 0]  [7.311, 0.000]
      1     0.000  -1.000  0.368   0.269  [0, 20]  [0.000, 5.379]
      sum                  1.368   1.000
      context                                      [7.311, 5.379]
    """
    q, k, v, mask = checked(_as_lists(query), _as_lists(keys), _as_lists(values), _as_lists(allowed))
    steps = attention_steps(q, k, v, mask)
    return Trace(query=q, keys=k, values=v, mask=mask, scale=1 / math.sqrt(len(q)), **steps._asdict())


@dataclass(frozen=True, repr=False)
class Trace:
    """The inputs and every number that attention makes of them, for one query, S keys of width D, values of width E.

    Lists of S entries, one per key, except `query` (D numbers), `context` (E numbers) and the single numbers `scale`,
    `maximum` and `sum`; `keys`, `values` and `contributions` hold a vector per key. Where `mask` is False,
    `masked_scores` and `shifted_scores` are `None`, `exponentials` and `weights` 0.0. A dot product beyond the largest
    float stays in `dot_products` and `scaled_scores` as an infinity if its key is forbidden (or its weight is 0).

    `print(trace)` shows a table of at most 80 columns, a notebook shows the picture of `to_svg()`.

    >>> t = trace([1, 1], [[1, 0], [0, 1]], [[2, 6], [8, 0]])
    >>> t.weights, t.context
    ([0.5, 0.5], [5.0, 3.0])
    """

    query: list[float]
    keys: list[list[float]]
    values: list[list[float]]
    mask: list[bool]
    scale: float
    dot_products: list[float]
    scaled_scores: list[float]
    masked_scores: list[float | None]
    maximum: float
    shifted_scores: list[float | None]
    exponentials: list[float]
    sum: float
    weights: list[float]
    contributions: list[list[float]]
    context: list[float]

    def steps(self) -> list[Step]:
        """The computation as ten steps in order, each with its numbers.

        >>> [step.name for step in trace([1], [[1]], [[1]]).steps()][:3]
        ['dot products', 'scaled scores', 'masked scores']
        """
        return _steps(self)

    def table(self, *, ascii_only: bool = False) -> str:
        """The table that `print(trace)` shows; `ascii_only` for a terminal without Unicode.

        A number that prints as 0.000 is exactly 0. Long vectors end in … (in ASCII ~), and of more than 20 keys the
        middle ones are left out, with a line that says how many and what they weigh.
        """
        return _table(self, "score").translate(_ASCII) if ascii_only else _table(self, f"q·k/√{len(self.query)}")

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON, which has no infinity: one is written `"Infinity"` or `"-Infinity"`.

        `Trace.from_dict(trace.to_dict()) == trace`, and so after a round through JSON.

        >>> trace([1], [[2]], [[3]]).to_dict()["dot_products"]
        [2.0]
        """
        return {field.name: _json_ready(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trace:
        """The trace of the inputs in `data`; its other numbers are computed again, never believed.

        Raises:
            KeyError: query, keys, values or mask is missing.
            TypeError, ValueError: as `trace`.
        """
        return trace(data["query"], data["keys"], data["values"], data["mask"])

    def to_json(self) -> str:
        """`to_dict()` as one line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_svg(self) -> str:
        """A picture that needs nothing else: steps as columns, keys as rows, bars for the weights.

        Light or dark as the reader prefers; title and description for screen readers; the same trace, the same bytes.
        """
        return _svg(self)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class Step:
    """One step of a trace: what it is called, its formula, the line of code that does it, one sentence, its numbers.

    `numbers` is one number, a list with a number (or `None`: not allowed) per key, or a list with a vector per key;
    in the last step it is the context, one number per coordinate of the values.
    """

    name: str
    formula: str
    code: str
    explanation: str
    numbers: Numbers

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON, infinities as in `Trace.to_dict`."""
        return {name: _json_ready(value) for name, value in asdict(self).items()}


def _as_lists(given: Any) -> Any:
    if hasattr(given, "tolist"):
        return given.tolist()
    if isinstance(given, (list, tuple)):
        return [_as_lists(item) for item in given]
    return given


def _json_ready(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_ready(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


# The steps in words ---------------------------------------------------------------------------------------------------


def _steps(t: Trace) -> list[Step]:
    width, count, readable = len(t.query), len(t.keys), t.mask.count(True)
    heaviest = t.weights.index(max(t.weights))
    return [
        Step(
            "dot products",
            "q · kⱼ",
            "dot_products = [dot(query, key) for key in keys]",
            "Query and key are multiplied coordinate by coordinate and added up: the better they agree, the more.",
            t.dot_products,
        ),
        Step(
            "scaled scores",
            f"sⱼ = (q · kⱼ) / √{width}",
            "scaled_scores = [product / math.sqrt(width) for product in dot_products]",
            f"Dividing by the square root of the key width, √{width} = {_number(math.sqrt(width))}, keeps scores from "
            "growing with the width.",
            t.scaled_scores,
        ),
        Step(
            "masked scores",
            "sⱼ where allowed, else nothing",
            "masked_scores = [score if may else None for score, may in zip(scaled_scores, allowed, strict=True)]",
            f"The query may read {readable} of {count} {_plural('key', count)}; a forbidden score is taken out, not "
            "replaced by a very negative number.",
            t.masked_scores,
        ),
        Step(
            "maximum",
            "m = max sⱼ",
            "maximum = max(score for score in masked_scores if score is not None)",
            f"The largest score the query may see is {_number(t.maximum)}, and a forbidden score has no part in it.",
            t.maximum,
        ),
        Step(
            "shifted scores",
            "sⱼ − m",
            "shifted_scores = [None if score is None else score - maximum for score in masked_scores]",
            "With the maximum subtracted the largest score is 0, so that no exponential can overflow, and the weights "
            "stay the same.",
            t.shifted_scores,
        ),
        Step(
            "exponentials",
            "eⱼ = exp(sⱼ − m)",
            "exponentials = [0.0 if shifted is None else math.exp(shifted) for shifted in shifted_scores]",
            "The exponential makes every score positive and a difference of scores a ratio; a forbidden key has "
            "exactly 0.",
            t.exponentials,
        ),
        Step(
            "sum",
            "Σ = e₀ + e₁ + …",
            "total = math.fsum(exponentials)",
            f"Together the exponentials are {_number(t.sum)}, at least 1 because the largest of them is 1.",
            t.sum,
        ),
        Step(
            "weights",
            "wⱼ = eⱼ / Σ",
            "weights = [exponential / total for exponential in exponentials]",
            f"Divided by their sum they add up to 1, and key {heaviest} has the largest share, "
            f"{_number(t.weights[heaviest])}.",
            t.weights,
        ),
        Step(
            "contributions",
            "wⱼ vⱼ",
            "contributions = [[weight * number for number in value] for weight, value in zip(weights, values, "
            "strict=True)]",
            "Each value is shrunk by its weight, and what is left of it is what its key contributes.",
            t.contributions,
        ),
        Step(
            "context",
            "o = w₀ v₀ + w₁ v₁ + …",
            "context = [mixture(weights, numbers) for numbers in zip(*values, strict=True)]",
            f"The contributions add up to the context, {_vector(t.context, 40)}.",
            t.context,
        ),
    ]


# Numbers and vectors in little room -----------------------------------------------------------------------------------


def _number(x: float) -> str:
    """At most 9 characters; 0.000 only for 0 itself."""
    if x == 0:
        return "0.000"
    return f"{x:.3f}" if 0.001 <= abs(x) < 9999 else f"{x:.1e}"


def _given(x: float) -> str:
    """At most 9 characters, a whole number as people write it."""
    if abs(x) < 1e5 and x == int(x):
        return str(int(x))
    return _number(x).rstrip("0").rstrip(".") if 0.001 <= abs(x) < 9999 else _number(x)


def _vector(numbers: Sequence[float], room: int, number: Callable[[float], str] = _number) -> str:
    """The numbers in brackets, in at most `room` characters (3 or more); what does not fit is one ellipsis."""
    parts: list[str] = []
    used = 1
    for i, x in enumerate(numbers):
        text = number(x)
        # Either the vector ends here, or there must be room for an ellipsis after this number.
        if used + len(text) + (1 if i == len(numbers) - 1 else 4) > room:
            return f"[{', '.join([*parts, '…'])}]"
        parts.append(text)
        used += len(text) + 2
    return f"[{', '.join(parts)}]"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _shown(count: int) -> tuple[range, range]:
    """Which keys a table or picture shows before and after its gap."""
    return (range(count), range(0)) if count <= 20 else (range(8), range(count - 8, count))


def _gap_text(t: Trace, head: range, tail: range) -> str:
    hidden = t.weights[head.stop : tail.start]
    heaviest = max(hidden)
    text = f"… {len(hidden)} more keys, together weight {_number(math.fsum(hidden))}"
    return f"{text}, at most {_number(heaviest)} (key {head.stop + hidden.index(heaviest)})"


# The table ------------------------------------------------------------------------------------------------------------

_ASCII = str.maketrans({"·": "*", "−": "-", "…": "~"})  # one character for one, so that the columns stand


def _table(t: Trace, score_title: str) -> str:
    head, tail = _shown(len(t.keys))
    titles = ["key", score_title if len(score_title) <= 9 else "score", "−max", "exp", "weight"]
    rows = {
        j: [
            str(j),
            _number(t.scaled_scores[j]),
            "masked" if (shifted := t.shifted_scores[j]) is None else _number(shifted),
            _number(t.exponentials[j]),
            _number(t.weights[j]),
        ]
        for j in (*head, *tail)
    }
    total = ["sum", "", "", _number(t.sum), _number(math.fsum(t.weights))]
    widths = [max(len(row[i]) for row in (titles, total, *rows.values())) for i in range(len(titles))]

    before = 2 + sum(width + 2 for width in widths)
    room = TABLE_WIDTH - before - 2
    wanted = [
        max(len(title), *(len(_vector(vectors[j], room, number)) for j in rows))
        for title, vectors, number in (("value", t.values, _given), ("weight·value", t.contributions, _number))
    ]
    value_room = min(wanted[0], max(room // 2, room - wanted[1]))
    contribution_room = room - value_room

    def line(cells: list[str], value: str = "", contribution: str = "") -> str:
        numbers = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
        return ("  " + "  ".join([*numbers, value.ljust(value_room), contribution])).rstrip()

    def key_line(j: int) -> str:
        return line(
            rows[j], _vector(t.values[j], value_room, _given), _vector(t.contributions[j], contribution_room, _number)
        )

    lines = [line(titles, "value", "weight·value"), *map(key_line, head)]
    if tail:
        lines += ["  " + _gap_text(t, head, tail), *map(key_line, tail)]
    lines.append(line(total))
    # Under its contributions where it fits, else as far to the right as it must reach.
    context = _vector(t.context, TABLE_WIDTH - 2 - len("context") - 2)
    start = min(before + value_room + 2, TABLE_WIDTH - len(context))
    lines.append("  context".ljust(start) + context)
    return "\n".join(lines)


# The picture ----------------------------------------------------------------------------------------------------------

_ROW = 32
_TOP = 142
_WIDTH = 1200
_MARGIN = 28
_BAR = 104
# Right edges of the columns of numbers, left edges of the others: 8 for a character, and the widest number has 9.
_X = {"index": 28, "key": 84, "dot": 326, "scaled": 420, "shifted": 536, "exp": 632, "weight": 716, "bar": 730}
_X |= {"value": 858, "contribution": 1018}
_CHARACTERS = {"key": 18, "value": 18, "contribution": 19}
# Presentation attributes are the light colours, also where a page's policy forbids the style sheet or a program that
# shows SVG does not know it; the style sheet only adds the dark ones.
_LIGHT = {"paper": "#ffffff", "ink": "#1c2330", "soft": "#566072", "rule": "#d9dee7", "track": "#e9edf4"}
_LIGHT |= {"bar": "#2f62d0", "mark": "#eaf0fd"}
_DARK = {"paper": "#10151e", "ink": "#e8ecf4", "soft": "#a3aec0", "rule": "#2c3646", "track": "#222b3a"}
_DARK |= {"bar": "#7ba4ff", "mark": "#1a2740"}
_SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _text(
    x: float, y: float, text: str, *, color: str = "ink", size: float = 13, end: bool = False, more: str = ""
) -> str:
    anchor = ' text-anchor="end"' if end else ""
    place = f'x="{x}" y="{y}" font-size="{size}"{anchor}{more}'
    return f'<text class="qkv-{color}" fill="{_LIGHT[color]}" {place}>{text}</text>'


def _box(x: float, y: float, width: float, height: float, color: str, radius: float = 0) -> str:
    return (
        f'<rect class="qkv-{color}" fill="{_LIGHT[color]}" x="{x}" y="{y}" width="{width:.2f}" height="{height}" '
        f'rx="{radius}"/>'
    )


def _svg(t: Trace) -> str:
    head, tail = _shown(len(t.keys))
    rows = [_svg_row(t, j, _TOP + _ROW * place) for place, j in enumerate(head)]
    if tail:
        gap = _TOP + _ROW * len(head)
        rows.append(_text(_X["key"], gap + 21, _gap_text(t, head, tail), color="soft"))
        rows += [_svg_row(t, j, gap + _ROW * (place + 1)) for place, j in enumerate(tail)]
    bottom = _TOP + _ROW * (len(head) + len(tail) + bool(tail))
    height = bottom + 84
    name = f"qkv-trace-{zlib.crc32(t.to_json().encode()):08x}"  # two traces in one page keep their ids apart
    dark = "".join(f".{name} .qkv-{part}{{fill:{color}}}" for part, color in _DARK.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" aria-labelledby="{name}-title {name}-desc">',
            f'<title id="{name}-title">Attention of one query over {len(t.keys)} {_plural("key", len(t.keys))}</title>',
            f'<desc id="{name}-desc">{_description(t, head, tail)}</desc>',
            f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>",
            _box(0, 0, _WIDTH, height, "paper", 10),
            *_svg_head(t),
            f'<g font-family="{_MONO}">',
            *rows,
            *_svg_foot(t, bottom),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _svg_head(t: Trace) -> list[str]:
    width, count = len(t.query), len(t.keys)
    columns = [
        ("key", "key", "k", False),
        ("dot", "dot product", "q · k", True),
        ("scaled", "score", f"÷ √{width}", True),
        ("shifted", "shifted", f"− max {_number(t.maximum)}", True),
        ("exp", "exponential", "exp", True),
        ("weight", "weight", f"÷ {_number(t.sum)}", True),
        ("value", "value", "v", False),
        ("contribution", "contribution", "weight · v", False),
    ]
    heading = f"One query reads {t.mask.count(True)} of {count} {_plural('key', count)}"
    return [
        f'<g font-family="{_SANS}">',
        _text(_MARGIN, 42, heading, size=19, more=' font-weight="600"'),
        _text(_MARGIN, 68, f"query {_vector(t.query, 90, _given)}", color="soft", more=f' font-family="{_MONO}"'),
        *(
            _text(_X[column], 108, title, end=end, size=12.5, more=' font-weight="600"')
            + _text(_X[column], 127, formula, end=end, size=12, color="soft")
            for column, title, formula, end in columns
        ),
        "</g>",
        _box(_MARGIN, _TOP - 4, _WIDTH - 2 * _MARGIN, 1.5, "rule"),
    ]


def _svg_row(t: Trace, j: int, y: float) -> str:
    base, may = y + 21, t.mask[j]
    color = "ink" if may else "soft"
    shifted = t.shifted_scores[j]
    numbers = {
        "dot": _number(t.dot_products[j]),
        "scaled": _number(t.scaled_scores[j]),
        "shifted": "masked" if shifted is None else _number(shifted),
        "exp": _number(t.exponentials[j]),
        "weight": _number(t.weights[j]),
    }
    vectors = {
        "key": _vector(t.keys[j], _CHARACTERS["key"], _given),
        "value": _vector(t.values[j], _CHARACTERS["value"], _given),
        "contribution": _vector(t.contributions[j], _CHARACTERS["contribution"]),
    }
    return "".join(
        [
            "<g>",
            _text(_X["index"], base, str(j), color="soft"),
            *(_text(_X[column], base, text, color=color) for column, text in vectors.items()),
            *(_text(_X[column], base, text, color=color, end=True) for column, text in numbers.items()),
            _box(_X["bar"], y + 10, _BAR, 12, "track", 3) if may else "",
            _box(_X["bar"], y + 10, max(_BAR * t.weights[j], 1.5), 12, "bar", 3) if t.weights[j] > 0 else "",
            _box(_MARGIN, y + _ROW - 2, _WIDTH - 2 * _MARGIN, 1, "rule"),
            "</g>",
        ]
    )


def _svg_foot(t: Trace, bottom: float) -> list[str]:
    context = _vector(t.context, 60)
    left = min(_X["contribution"], _WIDTH - _MARGIN - 10 - 9 * len(context))
    return [
        _text(_X["index"], bottom + 21, "sum", color="soft"),
        _text(_X["exp"], bottom + 21, _number(t.sum), end=True),
        _text(_X["weight"], bottom + 21, _number(math.fsum(t.weights)), end=True),
        _box(left - 88, bottom + 34, _WIDTH - _MARGIN - left + 88, 34, "mark", 6),
        _text(left - 12, bottom + 56, "context", color="soft", end=True),
        _text(left, bottom + 56, context, size=15, more=' font-weight="600"'),
    ]


def _description(t: Trace, head: range, tail: range) -> str:
    weights = [f"key {j} {_number(t.weights[j])}" + ("" if t.mask[j] else " (masked)") for j in (*head, *tail)]
    if tail:
        weights.insert(len(head), _gap_text(t, head, tail).removeprefix("… "))
    return f"Weights: {', '.join(weights)}. Context: {_vector(t.context, 200)}."
