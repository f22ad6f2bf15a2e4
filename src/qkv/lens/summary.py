"""All rows of a layer at once, reduced to a few numbers a head: `summary(layer)`; and named scores of heads over a text.

One pass over the rows, a block at a time, so memory stays linear in the tokens. Beside every score stand two baselines:
what a head would score that spreads evenly over its allowed keys, and one that knows only how far back a key lies (this
head's own mean weight at each distance). A score near its baseline says nothing about the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.algebra import Bools
from qkv.errors import ArgumentError
from qkv.floats import Array
from qkv.ranges import Ints

from .layer import Layer

__all__ = ["SCORES", "Score", "Summary", "summary"]

#: Pairs of (query, key) held at once for one pass.
_PAIRS = 1 << 22

#: Named scores: which keys j a row i counts. `t` are the tokens as numbers, (S,); rows and keys are positions.
_SETS: dict[str, Callable[[Ints, Ints, Ints], Bools]] = {
    "first": lambda i, j, t: np.broadcast_to(j == 0, (len(i), len(j[0]))),
    "current": lambda i, j, t: j == i,
    "previous": lambda i, j, t: j == i - 1,
    "same": lambda i, j, t: (t[j] == t[i]) & (j < i),
    "induction": lambda i, j, t: (t[np.maximum(j - 1, 0)] == t[i]) & (j >= 1) & (j <= i),
}

#: What each named score is, in words; each is a mean over the rows that have such a key.
SCORES = {
    "first": "weight on key 0, where many heads leave what they do not need",
    "current": "weight on the query's own position",
    "previous": "weight on the position just before the query",
    "same": "weight on earlier places of the same token",
    "induction": "weight on the places that followed an earlier, or this, place of the same token",
}


@dataclass(frozen=True, eq=False)
class Score:
    """A named score of every head, (B, H) each, NaN where no row has such a key.

    Attributes:
        value: mean over those rows of the weight in the set. uniform: the same for even weights over the allowed keys.
        recency: the same for weights that know the distance only. rows: how many rows count, (B,).
    """

    value: Array
    uniform: Array
    recency: Array
    rows: Ints


@dataclass(frozen=True, eq=False)
class Summary:
    """A layer's heads over all kept rows. B sequences, H heads, L rows, S keys.

    Attributes:
        name, index: of the layer. heads: the model's numbers, (H,). positions: of the rows, (L,).
        entropy, effective_keys, sink_share, mean_distance: (B, H, L), as in `Row`; distance NaN for a row that reads nothing.
        received: (B, H, S) sum over the rows of each key's weight.
        by_distance: (B, H, S) mean weight at distance d = i − j, over the rows that may read that far; NaN where none may.
        scores: name -> `Score`; those that need tokens are there only where tokens were given.
    """

    name: str
    index: int
    heads: Ints
    positions: Ints
    entropy: Array
    effective_keys: Array
    sink_share: Array
    mean_distance: Array
    received: Array
    by_distance: Array
    scores: dict[str, Score]


def summary(layer: Layer, tokens: Sequence[str] | Sequence[int] | None = None) -> Summary:
    """Reduce a captured layer to numbers per head and row, in memory linear in its tokens.

    Args:
        layer: from `Capture.layers`. tokens: the S tokens of the text, for the scores "same" and "induction".

    Raises:
        ArgumentError: tokens that are not as many as the keys.
    """
    ids = None
    if tokens is not None:
        if len(tokens) != layer.keys:
            raise ArgumentError(
                f"tokens must be one for each of the {layer.keys} keys of {layer.name}, but {len(tokens)} came; pass those of the model's input"
            )
        ids = np.unique(np.asarray(tokens, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)
    asked = layer.attention()
    shape = (layer.batches, len(layer.heads), len(layer.rows))
    distance, received = np.full(shape, np.nan), np.zeros((*shape[:2], layer.keys))
    far_sum, far_rows = np.zeros((*shape[:2], layer.keys)), np.zeros((shape[0], layer.keys))
    names = [name for name in SCORES if ids is not None or name in ("first", "current", "previous")]
    tally = {name: _Tally(shape) for name in names}
    known = ids if ids is not None else np.zeros(layer.keys, np.int64)
    step = max(_PAIRS // max(shape[0] * shape[1] * layer.keys, 1), 1)
    keys = np.arange(layer.keys)
    for start in range(0, shape[2], step):
        rows = np.arange(start, min(start + step, shape[2]))
        weight = np.asarray(asked.weights(rows), np.float64)
        allowed = np.broadcast_to(layer.reads.rows(rows).ranges.dense(layer.keys), (shape[0], len(rows), layer.keys))
        at = layer.positions[rows]
        whole = weight.sum(axis=-1)
        with np.errstate(all="ignore"):
            distance[:, :, rows] = (weight * (at[:, None] - keys)).sum(axis=-1) / np.where(whole > 0, whole, np.nan)
        received += weight.sum(axis=2)
        for r, i in enumerate(at):
            back = i - keys[: i + 1]
            far_sum[:, :, back] += weight[:, :, r, : i + 1]
            far_rows[:, back] += allowed[:, r, : i + 1]
        for name in names:
            inside = _SETS[name](at[:, None], keys[None], known) & allowed
            tally[name].add(rows, (weight * inside[:, None]).sum(axis=-1), inside, allowed)
    with np.errstate(all="ignore"):
        by_distance = far_sum / np.where(far_rows > 0, far_rows, np.nan)[:, None]
    scores = {name: one.score(by_distance, layer, _SETS[name], known) for name, one in tally.items()}
    entropy, effective, sink = (
        np.asarray(x, np.float64) for x in (asked.entropy(), asked.effective_keys(), asked.sink_share())
    )
    return Summary(
        layer.name,
        layer.index,
        layer.heads,
        layer.positions,
        entropy,
        effective,
        sink,
        distance,
        received,
        by_distance,
        scores,
    )


class _Tally:
    """A score as it is added up, row by row."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.value = np.zeros(shape)
        self.uniform = np.zeros((shape[0], shape[2]))
        self.there = np.zeros((shape[0], shape[2]), np.bool_)

    def add(self, rows: Ints, value: Array, inside: Bools, allowed: Bools) -> None:
        self.value[:, :, rows] = value
        self.there[:, rows] = inside.any(axis=-1)
        self.uniform[:, rows] = inside.sum(axis=-1) / np.maximum(allowed.sum(axis=-1), 1)

    def score(self, by_distance: Array, layer: Layer, chosen: Callable[[Ints, Ints, Ints], Bools], ids: Ints) -> Score:
        count = self.there.sum(axis=-1)
        with np.errstate(all="ignore"):
            many = np.where(count > 0, count, np.nan)
            value = (self.value * self.there[:, None]).sum(axis=-1) / many[:, None]
            uniform = (self.uniform * self.there).sum(axis=-1) / many
            recency = self._recency(by_distance, layer, chosen, ids) / many[:, None]
        return Score(value, np.broadcast_to(uniform[:, None], value.shape).copy(), recency, count)

    def _recency(
        self, by_distance: Array, layer: Layer, chosen: Callable[[Ints, Ints, Ints], Bools], ids: Ints
    ) -> Array:
        """Sum over the rows of the weight in the set, were weights this head's mean at each distance, made to add up to 1."""
        profile = np.nan_to_num(by_distance)
        out = np.zeros(profile.shape[:2])
        for r, i in enumerate(layer.positions):
            back = int(i) - np.arange(int(i) + 1)
            keys = np.arange(int(i) + 1)
            inside = chosen(np.array([[i]]), keys[None], ids)[0]
            for n in np.flatnonzero(self.there[:, r]):
                allowed = layer.reads.ranges.inside(int(n), np.array([r]), keys)[0, 0]
                mass = profile[n][:, back] * allowed
                out[n] += (mass * inside).sum(axis=-1) / np.maximum(mass.sum(axis=-1), np.finfo(np.float64).tiny)
        return out
