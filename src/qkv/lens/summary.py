"""All rows of a layer at once, reduced to a few numbers a head: `summary(layer)`.

Two passes of the engine over the pairs (the rows' sums, then a survey of the weights), and one over those that each score
counts; memory stays linear in the tokens. Beside every score stand the two baselines of `qkv.lens.baseline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.floats import Array
from qkv.ranges import Ints

from .baseline import allowed_of
from .held import host
from .layer import Layer
from .reduced import Reduced
from .row import lengths, metric, row
from .scores import Score, numbered, scores

__all__ = ["CELLS", "Summary", "reduce", "summary"]

#: Rows and columns of the maps that are kept where the tensors are not; a page can make it coarser by whole factors.
CELLS = 96


@dataclass(frozen=True, eq=False)
class Summary:
    """A layer's heads over all kept rows. B sequences, H heads, L rows, S keys.

    Attributes:
        name, index: of the layer. heads: the model's numbers, (H,). positions: of the rows, (L,).
        entropy, effective_keys, sink_share, mean_distance: (B, H, L), as in `Row`; distance NaN for a row that reads nothing.
        received: (B, H, S) sum over the rows of each key's weight.
        sink_mass, sink_contribution: (B, H), over the rows that may read key 0: mean weight on it, α_0, and mean part it has in
            the lengths of all contributions, ‖α_0 v_0 W‖ / Σ_j ‖α_j v_j W‖, values without their shared bias. A sink takes
            much of the first and gives little of the second; NaN where no row may read it.
        scores: name -> `Score`; those that need tokens are there only where tokens were given.
        pooled: (B, H, rows, cols) the largest weight in each rectangle of rows and keys, or None.
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
    sink_mass: Array
    sink_contribution: Array
    scores: dict[str, Score]
    pooled: Array | None = None


def summary(layer: Any, tokens: Sequence[str] | Sequence[int] | None = None, *, cells: int | None = None) -> Summary:
    """Reduce a captured layer to numbers per head and row, in memory linear in its tokens.

    Args:
        layer: from `Capture.layers`; of a capture of summaries it gives what was kept.
        tokens: the S tokens of the text, for the scores "same" and "induction".
        cells: rows and columns of the pooled map, at most; no map if left out.

    Raises:
        ArgumentError: tokens that are not as many as the keys.
    """
    if isinstance(layer, Reduced):
        kept: Summary = layer.kept(tokens)
        return kept
    layer = layer if layer.stays else layer.on_host()
    ids = numbered(layer, tokens)
    asked = layer.valued(_lengths_of_values(layer)).attention()
    grid = (None, None) if cells is None else (min(cells, len(layer.rows)), min(cells, layer.keys))
    seen = asked.survey(*grid, positions=layer.positions)
    allowed = allowed_of(layer)
    lse = np.asarray(asked.lse, np.float64)
    named, first = scores(layer, allowed, lse, ids)
    entropy = np.asarray(seen.entropy, np.float64)
    sink_share = np.asarray(asked.sink_share(), np.float64)
    reads = np.broadcast_to((allowed.sizes() > 0)[:, None], entropy.shape)
    with np.errstate(all="ignore"):
        effective = np.where(reads | np.isnan(entropy), np.exp(entropy), 0)
    return Summary(
        layer.name,
        layer.index,
        layer.heads,
        layer.positions,
        entropy,
        effective,
        sink_share,
        np.asarray(seen.distance, np.float64),
        np.asarray(seen.received, np.float64),
        named["first"].value,
        _first_contribution(layer, first, np.asarray(asked.output, np.float64)),
        named,
        None if seen.pooled is None else np.asarray(seen.pooled),
    )


def _places(layer: Layer) -> Ints:
    """Which number each head has among the heads of its group, (H,)."""
    return np.array([int((layer.groups[:h] == g).sum()) for h, g in enumerate(layer.groups)], np.int64)


def _lengths_of_values(layer: Layer) -> Array:
    """(B, G, S, m) ‖v_j W‖ of the m heads of each group: mixed by the weights they are the lengths of all contributions."""
    place = _places(layer)
    out = np.zeros((*layer.value.shape[:3], int(place.max(initial=0)) + 1))
    shared = layer.projection.value_bias
    for h, g in enumerate(layer.groups):
        by = metric(layer.part(head=int(layer.heads[h])))
        for n in range(layer.batches):
            value = host(layer.value[n, g]).astype(np.float64)
            found = lengths(value if shared is None else value - shared[g], by)
            # A value that is not finite loses the rows that read it, as it does in the layer itself.
            out[n, g, :, place[h]] = np.where(np.isfinite(value).all(axis=-1), found, np.nan)
    return out


def _first_contribution(layer: Layer, weight: Array, mixed: Array) -> Array:
    """(B, H): mean over the rows that may read key 0 of its part in the lengths of all contributions."""
    place = _places(layer)
    whole = np.stack([mixed[:, h, :, m] for h, m in enumerate(place)], axis=1)
    length = np.stack([_lengths_of_first(layer, h) for h in range(len(place))], axis=1)
    allowed = allowed_of(layer)
    reads = np.broadcast_to((allowed.lo == 0).any(axis=-1) & (allowed.sizes() > 0), (layer.batches, len(layer.rows)))
    with np.errstate(all="ignore"):
        part = np.where(whole > 0, weight * length[..., None] / whole, np.nan)
        counted = reads[:, None] & np.isfinite(part)
        many = counted.sum(axis=-1)
        out: Array = np.where(counted, part, 0).sum(axis=-1) / np.where(many > 0, many, np.nan)
    return out


def _lengths_of_first(layer: Layer, h: int) -> Array:
    """(B,) ‖v_0 W‖ of one head."""
    if not layer.keys:
        return np.zeros(layer.batches)
    value = host(layer.value[:, layer.groups[h], 0]).astype(np.float64)
    shared = layer.projection.value_bias
    return lengths(
        value if shared is None else value - shared[layer.groups[h]], metric(layer.part(head=int(layer.heads[h])))
    )


def reduce(layer: Layer, exact: Ints, tokens: Sequence[str] | Sequence[int] | None) -> Reduced:
    """A layer's answers without the layer: its summary and maps, and every head's rows at the numbers `exact` of its rows."""
    fitting = tokens is not None and len(tokens) == layer.keys  # cross attention reads another text
    rows = {
        (n, int(head), int(layer.positions[at])): row(layer, int(head), int(layer.positions[at]), sequence=n)
        for n in range(layer.batches)
        for head in layer.heads
        for at in exact
    }
    return Reduced(
        name=layer.name,
        index=layer.index,
        heads=layer.heads,
        positions=layer.positions,
        keys=layer.keys,
        causal=layer.causal,
        summary=summary(layer, tokens if fitting else None, cells=CELLS),
        exact=rows,
        tokens=fitting,
    )
