"""Rows of the captured head, as the lesson tells of them and as the lab runs a learner's function on them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv import attention
from qkv.bounds import bound
from qkv.masks import causal
from qkv.real import load_head

__all__ = ["HeadFacts", "chosen_rows", "facts"]

#: So many rows are enough to see what the head does, and few enough for a Python in a browser.
_ROWS = 4

#: How many of the tokens it reads the lesson names.
_READ = 5


@dataclass(frozen=True)
class HeadFacts:
    """What a lesson can say of the head, from its default query.

    `tokens` are those of the whole text, `word` is the query's own, `read` are those it reads most, `weights` how much.
    """

    model: str
    layer: int
    head: int
    width: int
    text: str
    tokens: list[str]
    query_index: int
    word: str
    read: list[str]
    weights: list[float]


@functools.cache
def facts() -> HeadFacts:
    """The facts, computed once."""
    head = load_head()
    at = head.default_query
    weights = attention(head.query, head.key, head.value, mask=causal()).weights(
        queries=[at], heads=[head.default_head]
    )
    row = np.asarray(weights).reshape(-1)
    most = np.argsort(-row, kind="stable")[:_READ]
    return HeadFacts(
        model=head.model,
        layer=head.layer,
        head=head.heads[head.default_head],
        width=head.query.shape[-1],
        text=head.text,
        tokens=list(head.tokens),
        query_index=at,
        word=head.tokens[at],
        read=[head.tokens[j] for j in most],
        weights=[float(row[j]) for j in most],
    )


@functools.cache
def chosen_rows() -> dict[str, Any]:
    """A few queries of one head with every key they may read, and what the model made of each.

    In each of `rows`: `output[e]` was computed by the model in float32, and `bound[e]` is how far from the exact result
    such a computation can be (`qkv.bounds`). `allowed_count` keys, from the first, may be read. Every number is a
    float32 in as few digits as name it, which halves the document; rounded to float32 it is what the model saw.
    """
    head = load_head()
    which = head.default_head
    group = which // (head.query.shape[0] // head.key.shape[0])
    # Every place where the default query's word stands: the first has nothing to copy, the later ones do.
    word = head.tokens[head.default_query].strip().casefold()
    places = [at for at, token in enumerate(head.tokens) if token.strip().casefold() == word][-_ROWS:]
    count = max(places) + 1
    query, key, value = head.query[which, places], head.key[group, :count], head.value[group, :count]
    allowed = np.arange(count) <= np.array(places)[:, None]
    bounds = bound(query[None], key[None], value[None], "float32", allowed=allowed, scale=head.scale).output[0]
    return {
        "model": head.model,
        "licence": head.licence,
        "title": head.title,
        "author": head.author,
        "year": head.year,
        "text": "".join(head.tokens[:count]),
        "tokens": list(head.tokens[:count]),
        "layer": head.layer,
        "head": head.heads[which],
        "width": head.query.shape[-1],
        "scale": head.scale,
        "keys": _numbers(key),
        "values": _numbers(value),
        "default": places.index(head.default_query),
        "rows": [
            {
                "query_index": at,
                "allowed_count": at + 1,
                "query": _numbers(head.query[which, at]),
                "output": _numbers(head.output[which, at]),
                "bound": [float(number) for number in bounds[row]],
            }
            for row, at in enumerate(places)
        ],
    }


def _numbers(array: npt.NDArray[np.float32]) -> Any:
    """Lists of floats with the few digits that name each float32."""
    return [_numbers(row) for row in array] if array.ndim > 1 else [float(str(number)) for number in array]
