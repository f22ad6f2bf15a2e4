"""`qkv demo`: attention computed, traced and checked, on a worked example and on a trained head reading a real text.

Where a real model is installed it reads the text too, and the demo ends in a page of what its heads read.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import demo_page, draw
from .info import header

if TYPE_CHECKING:
    from qkv.attention import Attention
    from qkv.real import RealHead

__all__ = ["add_command"]

Numbers = npt.NDArray[Any]

#: The worked example; the query is √2 long so that the scores, divided by √2, are 1 and 0.
QUERY, KEYS, VALUES = [math.sqrt(2), 0.0], [[1.0, 0.0], [0.0, 1.0]], [[10.0, 0.0], [0.0, 20.0]]
FIRST_ONLY = [True, False]

TOP_KEYS, TOP_LEAKS, WORDS_BEFORE = 8, 3, 12


def add_command(commands: Any) -> None:
    """Add `demo` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="see attention computed, traced and checked",
        description="A worked example, then a trained head reading a real text, checked against the definition and the "
        "model, then what its mask keeps from leaking, then a page of what a real model reads.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("demo"),
        help="folder for the picture and the page (default: demo)",
    )
    parser.add_argument("--no-page", action="store_true", help="leave out the real model and its page")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compute everything, save the picture, then show or print the numbers."""
    from qkv.attention import attention
    from qkv.info import info
    from qkv.masks import causal
    from qkv.real import load_head
    from qkv.trace import trace

    head = load_head()
    reading = attention(head.query, head.key, head.value, mask=causal())
    row = read_row(head, reading)
    seen = heaviest(head, row)
    checked = check(head, reading)
    leaked = leak(head, reading, attention(head.query, head.key, head.value))
    picture = save_picture(head, row, arguments.out)
    example, masked = trace(QUERY, KEYS, VALUES), trace(QUERY, KEYS, VALUES, FIRST_ONLY)

    def page() -> demo_page.Page | str | None:
        if arguments.no_page:
            return None
        return demo_page.make("".join(head.tokens), head.default_query + 1, arguments.out, show=not arguments.json)

    if arguments.json:
        draw.write_json(
            {
                "info": info().to_dict(),
                "example": example.to_dict(),
                "example_masked": masked.to_dict(),
                "head": {
                    "model": head.model,
                    "text": head.text,
                    "layer": head.layer,
                    "head": head.heads[head.default_head],
                    "query": head.default_query,
                    "token": head.tokens[head.default_query],
                    "tokens": len(head.tokens),
                    "keys": [asdict(key) for key in seen],
                },
                "check": asdict(checked),
                "leak": asdict(leaked),
                "picture": str(picture),
                "page": demo_page.record(page()),
            }
        )
        return 0
    draw.text(header(info()))
    draw.heading("The worked example: one query, two keys")
    draw.lines(str(example))
    draw.heading("The same query, allowed to read the first key only")
    draw.lines(str(masked))
    show_head(head, seen)
    draw.text(
        f"against the definition: {checked.definition:.1e} · against the model's own output: {checked.model:.1e}",
        indent=2,
    )
    draw.text(
        f"the largest differences of {checked.rows} rows in {checked.dtype}; "
        f"the largest entry is {checked.largest:.2f}",
        "dim",
        indent=2,
    )
    draw.text(f"picture: {picture}", indent=2)
    show_leak(head, leaked)
    draw.heading("The lesson")
    draw.text(
        "qkv learn teaches this in the browser, with figures to move and a lab in which you write attend yourself "
        "and run it on this very head (docs/images/lesson.png and lab.png show it).",
        indent=2,
    )
    demo_page.show(page())
    return 0


@dataclass(frozen=True)
class Key:
    """One key as the query sees it: its weight, its part of the output, and what the output would lose without it."""

    key: int
    token: str
    after: str
    weight: float
    norm: float
    share: float
    influence: float


@dataclass(frozen=True)
class Check:
    """Largest absolute differences over all rows of all heads, and the scale to read them on."""

    definition: float
    model: float
    largest: float
    rows: int
    dtype: str


@dataclass(frozen=True)
class Future:
    """A token that comes after the query, and the weight it would take."""

    key: int
    token: str
    weight: float


@dataclass(frozen=True)
class Leak:
    """What one row would read of the tokens after it if no mask kept it from them.

    Attributes:
        mass: the weight they would take together. tokens: how many there are. top: the heaviest.
        change: how far the output would move, in lengths of the output.
    """

    mass: float
    tokens: int
    top: list[Future]
    change: float


@dataclass(frozen=True)
class Row:
    """What one query reads: for every key its weight, its part of the output (norm and share), and its influence."""

    weight: Numbers
    norm: Numbers
    share: Numbers
    influence: Numbers


def read_row(head: RealHead, reading: Attention) -> Row:
    """Ask the default query of the default head, (S,) numbers each."""
    parts = reading.contributions(head.default_query, head=head.default_head)
    influence = reading.influence(head.default_query, head=head.default_head)
    return Row(_weights(head, reading), *(np.asarray(x) for x in (parts.norm, parts.share, influence.relative)))


def _weights(head: RealHead, reading: Attention) -> Numbers:
    return np.asarray(reading.weights(queries=[head.default_query], heads=[head.default_head])).reshape(-1)


def heaviest(head: RealHead, row: Row) -> list[Key]:
    """The keys with the largest weights, heaviest first; of equal weights the lower index (C6)."""
    return [
        Key(
            key=int(j),
            token=head.tokens[j],
            after=head.tokens[j - 1] if j else "",
            weight=float(row.weight[j]),
            norm=float(row.norm[j]),
            share=float(row.share[j]),
            influence=float(row.influence[j]),
        )
        for j in np.argsort(-row.weight, kind="stable")[:TOP_KEYS]
    ]


def check(head: RealHead, reading: Attention) -> Check:
    """Compare with the definition in float64 and with what the model itself computed."""
    from qkv.reference import attend

    operands = (x.astype(np.float64) for x in (head.query, head.key, head.value))
    defined = attend(*operands, allowed=np.tri(len(head.tokens), dtype=np.bool_)).output
    return Check(
        definition=float(np.abs(reading.output - defined).max()),
        model=float(np.abs(reading.output - head.output).max()),
        largest=float(np.abs(head.output).max()),
        rows=head.output.shape[0] * head.output.shape[1],
        dtype=str(reading.output.dtype),
    )


def leak(head: RealHead, reading: Attention, unmasked: Attention) -> Leak:
    """What the default query would take from the tokens after it without `causal()`."""
    after = head.default_query + 1
    weights = _weights(head, unmasked)[after:]
    order = np.argsort(-weights, kind="stable")[:TOP_LEAKS]
    kept, lost = (np.asarray(a.output)[head.default_head, head.default_query] for a in (reading, unmasked))
    return Leak(
        mass=float(weights.sum(dtype=np.float64)),
        tokens=int(weights.size),
        top=[Future(after + int(j), head.tokens[after + int(j)], float(weights[j])) for j in order],
        change=float(np.linalg.norm(lost - kept) / np.linalg.norm(kept)),
    )


def save_picture(head: RealHead, row: Row, folder: Path) -> Path:
    """Draw the head as `head.svg` in a folder."""
    from qkv.headview import head_svg

    number, token = head.heads[head.default_head], head.tokens[head.default_query].strip()
    drawing = head_svg(
        head.tokens,
        row.weight,
        row.share,
        row.influence,
        query_index=head.default_query,
        title=f"What “{token}” reads: {head.model}, layer {head.layer}, head {number}",
        caption=f"Token {head.default_query} of {len(head.tokens)} of {head.text} asks; causal, after RoPE.",
        sink=0 if is_sink(row.weight[0], row.share[0]) else None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "head.svg"
    picture.write_text(drawing, encoding="utf-8")
    return picture


def is_sink(weight: float, share: float) -> bool:
    """Whether a key holds weight and says little of the output."""
    return bool(weight > 0.05 and abs(share) < weight / 2)


def show_head(head: RealHead, seen: list[Key]) -> None:
    """The text around the query, its heaviest keys, and what they say, in words."""
    query = head.default_query
    draw.heading("A trained head reading a real text")
    draw.text(f"{head.model}, layer {head.layer}, head {head.heads[head.default_head]}, reading", indent=2)
    draw.text(f"{head.text}:", indent=2)
    before = "".join(head.tokens[max(query - WORDS_BEFORE, 0) : query]).strip()
    draw.text(f"… {before} [{head.tokens[query].strip()}]", indent=2)
    draw.text(f"token {query} of {len(head.tokens)}, in brackets, asks; these keys answer most:", indent=2)
    draw.text()
    draw.table(
        ["key", "after", "token", "weight", "share of output", "influence ‖o−o₋ⱼ‖/‖o‖"],
        [
            [str(key.key), _quoted(key.after), _quoted(key.token)]
            + [f"{number:.3f}" for number in (key.weight, key.share, key.influence)]
            for key in seen
        ],
        left=(1, 2),
    )
    draw.text()
    draw.text(
        "share: the part of the output that points along it; all keys add up to 1. "
        "influence: how far the output moves, in its own lengths, if the key is forbidden.",
        "dim",
        indent=2,
    )
    draw.text()
    for line in (_repeats(head, seen), _sink(seen)):
        if line:
            draw.text(line, indent=2)
    draw.text()


def _repeats(head: RealHead, seen: list[Key]) -> str:
    """In words: how many of the keys follow an earlier occurrence of the query's word."""
    word = head.tokens[head.default_query].strip()
    followers = [key for key in seen if key.after.strip().lower() == word.lower()]
    if len(followers) < 2:
        return ""
    return (
        f"{len(followers)} of these keys stand right after an earlier “{word}” and hold "
        f"{sum(key.weight for key in followers):.2f} of the weight: the head looks up what came next the last times."
    )


def _sink(seen: list[Key]) -> str:
    """In words: the first key holds weight and says little, if that is so here."""
    first = next((key for key in seen if key.key == 0), None)
    if first is None or not is_sink(first.weight, first.share):
        return ""
    return (
        f"Key 0 {_quoted(first.token)} is a sink: it holds {first.weight:.2f} of the weight and gives "
        f"{first.share:.2f} of the output. It says little itself, but without it the other weights grow by a factor of "
        f"{1 / (1 - first.weight):.2f}, and the output moves by {first.influence:.2f} of its length."
    )


def show_leak(head: RealHead, leaked: Leak) -> None:
    """What the mask kept out, in numbers."""
    after = head.default_query + 1
    draw.heading("What causal() keeps from leaking")
    draw.text(
        f"Without the mask this row would give {leaked.mass:.3f} of its weight to the {leaked.tokens} tokens that come "
        f"after it, and its output would move by {leaked.change:.2f} of its length:",
        indent=2,
    )
    draw.text()
    draw.table(
        ["key", "token", "weight", ""],
        [
            [str(future.key), _quoted(future.token), f"{future.weight:.3f}", _next(future.key == after)]
            for future in leaked.top
        ],
        left=(1, 3),
    )
    if leaked.top[0].key == after:
        draw.text()
        draw.text("The most would go to the next token: what the model has to guess, it could have read.", indent=2)


def _next(so: bool) -> str:
    return "← the next token" if so else ""


def _quoted(token: str) -> str:
    return '"{}"'.format(token.replace("\n", "\\n")) if token else ""
