"""Cut a text into spans of tokens, and sum what a head read from span to span."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.algebra import Bools
from qkv.errors import ArgumentError
from qkv.floats import Array
from qkv.ranges import Ints

from .baseline import allowed_of, recency, uniform
from .capture import Capture
from .layer import Layer
from .row import row

__all__ = ["Found", "Span", "between", "cut", "find"]

_QUANTITIES = ("weight", "norm_share", "share", "influence", "uniform", "recency")

_BASELINES: dict[str, Callable[[Bools, Ints], Array]] = {"uniform": lambda seen, _: uniform(seen), "recency": recency}

#: Where a new span begins, for the named ways to cut a text.
_NAMED = {
    "lines": r"(?<=\n)",
    "paragraphs": r"(?<=\n\n)(?!\n)",
    "turns": r"(?=<\|im_start\|>|<\|start_header_id\|>|<\|start\|>|<start_of_turn>|\[INST\]|^(?:User|Assistant|System|Human)\s*:)",
}


@dataclass(frozen=True)
class Span:
    """Tokens start ≤ t < stop of the text, and what they are called."""

    label: str
    start: int
    stop: int


def cut(tokens: Sequence[str], spans: str | re.Pattern[str] | Iterable[Any]) -> list[Span]:
    """Spans of a text's tokens.

    Args:
        tokens: the pieces of the text, in order.
        spans: "lines", "turns" (marks of chat formats), "paragraphs"; a regular expression before whose matches the text
            is cut; or a sequence of (start, stop) or (label, start, stop) in tokens.

    Returns:
        The spans in order; those cut from text cover every token once, and a token belongs where its first character does.

    >>> [(s.label, s.start, s.stop) for s in cut(["a", " b\\n", "c"], "lines")]
    [('a b', 0, 2), ('c', 2, 3)]
    """
    if not isinstance(spans, (str, re.Pattern)):
        return [_given(one, len(tokens)) for one in spans]
    pattern = _NAMED.get(spans, spans) if isinstance(spans, str) else spans
    try:
        compiled = re.compile(pattern, re.MULTILINE) if isinstance(pattern, str) else pattern
    except re.error as error:
        raise ArgumentError(
            f'spans must be "lines", "turns", "paragraphs", a regular expression or a list, but {spans!r} is none: {error}'
        ) from None
    text = "".join(tokens)
    begins = np.cumsum([0, *(len(token) for token in tokens)])
    cuts = sorted({match.start() for match in compiled.finditer(text)} | {0, len(text)})
    out = []
    for start, stop in itertools.pairwise(cuts):
        first, last = (int(np.searchsorted(begins[:-1], at, side="left")) for at in (start, stop))
        if first < last:
            out.append(Span(_label(text[start:stop]), first, last))
    return out


def _given(one: Any, many: int) -> Span:
    try:
        label, start, stop = one if len(one) == 3 else (f"{one[0]}…{one[1]}", *one)
        span = Span(str(label), int(start), int(stop))
    except (TypeError, ValueError, IndexError):
        raise ArgumentError(
            f"spans: each must be (start, stop) or (label, start, stop), but {one!r} came; count in tokens"
        ) from None
    if not 0 <= span.start < span.stop <= many:
        raise ArgumentError(
            f"spans: {one!r} must lie within 0…{many} and not be empty; stop is past the last token of the span"
        )
    return span


def _label(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 40 else words[:39] + "…"


def between(
    layer: Layer,
    head: int,
    queries: Sequence[Span],
    keys: Sequence[Span],
    *,
    quantity: str = "weight",
    sequence: int = 0,
) -> Array:
    """(queries, keys): what the rows of each query span read in each key span: summed over keys, a mean over the rows.

    Args:
        layer, head: as in `row`. queries, keys: spans, see `cut`. sequence: which of the batch.
        quantity: "weight", "norm_share", "share" or "influence", as in `Row`. Influences of single keys are added up, which
            is not the influence of forbidding them all. "uniform" and "recency" are what the two baselines would read.

    A span none of whose rows were kept is NaN. With "weight" a row of spans that cover the text adds up to 1.
    """
    if quantity not in _QUANTITIES:
        raise ArgumentError(
            f"quantity must be one of {', '.join(_QUANTITIES)}, but {quantity!r} came; see qkv.lens.Row for what each is"
        )
    out = np.full((len(queries), len(keys)), np.nan)
    one = layer.part(batch=sequence, head=head)
    asked = one.attention() if quantity == "weight" else None
    ranges = allowed_of(one)
    for a, span in enumerate(queries):
        kept = np.flatnonzero((layer.positions >= span.start) & (layer.positions < span.stop))
        if not len(kept):
            continue
        total = np.zeros(layer.keys)
        for part in np.array_split(kept, max(len(kept) * layer.keys >> 22, 1)):
            if asked is not None:
                total += np.asarray(asked.weights(part), np.float64)[0, 0].sum(axis=0)
            elif quantity in _BASELINES:
                seen = ranges.inside(0, part, np.arange(layer.keys))[0]
                total += _BASELINES[quantity](seen, layer.positions[part]).sum(axis=0)
            else:
                for r in part:
                    total += getattr(row(layer, head, int(layer.positions[r]), sequence=sequence), quantity)
        out[a] = [total[key.start : key.stop].sum() / len(kept) for key in keys]
    return out


@dataclass(frozen=True)
class Found:
    """A head, and what its rows of the query span read in the key span.

    `uniform` and `recency` are the weight that the two baselines would put there.
    """

    layer: int
    name: str
    head: int
    value: float
    uniform: float
    recency: float


def find(
    seen: Capture,
    query_span: Span | tuple[int, int],
    key_span: Span | tuple[int, int],
    *,
    quantity: str = "weight",
    sequence: int = 0,
) -> list[Found]:
    """The captured heads by how much the query span reads in the key span, most first.

    Args:
        seen: a capture. query_span, key_span: a `Span`, or (start, stop) in tokens.
        quantity: as in `between`.
    """
    out = []
    for layer in seen.layers:
        q, k = (one if isinstance(one, Span) else _given(one, layer.keys) for one in (query_span, key_span))
        if not ((layer.positions >= q.start) & (layer.positions < q.stop)).any():
            continue
        for head in layer.heads:
            value, even, near = (
                float(between(layer, int(head), [q], [k], quantity=name, sequence=sequence)[0, 0])
                for name in (quantity, "uniform", "recency")
            )
            out.append(Found(layer.index, layer.name, int(head), value, even, near))
    return sorted(out, key=lambda one: -one.value)
