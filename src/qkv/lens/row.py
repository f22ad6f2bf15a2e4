"""One query of one head, and everything the lens says about it: `row(layer, head, query)`.

A weight says how much of a key's value is mixed in. It does not say how much that value is (contribution), in which
direction it points (share), nor what would happen without the key (influence). All four stand side by side here, in the
head's own space or, where the layer's output projection is known, in the residual stream that later layers read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.floats import Array

from .baseline import recency, uniform
from .layer import Layer
from .reduced import Reduced

__all__ = ["Row", "lengths", "metric", "row"]


@dataclass(frozen=True, eq=False)
class Row:
    """What one query of one head read. S keys; α_j the weight of key j, v_j its value, o = Σ_j α_j v_j, W the projection.

    The value bias b, the part of every value that is the same for all keys, is left out of contributions, as it says
    nothing about a key: v_j below means v_j − b; `bias_norm` is its own length ‖(Σ_j α_j) b W‖.

    Attributes:
        layer: the module's name. head: the model's number. query: position of the query. sequence: which of the batch.
        space: "residual" where W is known, then lengths are of vectors after W; else "head", and W below is left out.
        allowed: (S,) which keys the query may read.
        weight: (S,) α_j, exactly 0 where forbidden.
        norm: (S,) ‖α_j v_j W‖. norm_share: (S,) the same over their sum.
        share: (S,) signed, α_j v_j W · oW / ‖oW‖², adds up to 1; NaN where oW is 0.
        cancellation: 1 − ‖Σ_j α_j v_j W‖ / Σ_j ‖α_j v_j W‖: 0 where all contributions point one way, 1 where they cancel.
        influence: (S,) ‖(o − o₋ⱼ) W‖ / ‖o W‖, o₋ⱼ the output with key j forbidden (with the value bias, as the model
            computes it); 0 for forbidden keys, NaN where oW is 0. It is local to this head: later layers may make up for it.
        sole: (S,) True where the key is the only one allowed: without it the row is the zero row.
        entropy: nats, of the weights renormalised over the keys. effective_keys: exp(entropy).
        mean_distance: Σ_j α_j (i − j) / Σ_j α_j, i the query's position, in tokens; NaN for a row that reads nothing.
        sink_share: weight that goes to a learned sink logit. bias_norm: ‖(Σ_j α_j) b W‖, 0 without a value bias.
        uniform: (S,) baseline: 1/n over the n allowed keys. recency: (S,) baseline: weights in proportion to 1 / (1 + |i − j|)
            over the allowed keys, see `qkv.lens.baseline`.
    """

    layer: str
    head: int
    query: int
    sequence: int
    space: str
    allowed: Array
    weight: Array
    norm: Array
    norm_share: Array
    share: Array
    cancellation: float
    influence: Array
    sole: Array
    entropy: float
    effective_keys: float
    mean_distance: float
    sink_share: float
    bias_norm: float
    uniform: Array
    recency: Array

    def top(self, k: int = 10, by: str = "weight") -> list[int]:
        """The k allowed keys with the largest number in the column `by`, largest first; ties take the lower index."""
        from qkv.errors import ArgumentError

        if by not in ("weight", "norm", "share", "influence"):
            raise ArgumentError(
                f'by must be "weight", "norm", "share" or "influence", but {by!r} came; name one column'
            )
        column = np.where(self.allowed, np.nan_to_num(np.abs(getattr(self, by)), nan=-1.0), -2.0)
        return [int(j) for j in np.argsort(-column, kind="stable")[:k] if self.allowed[j]]

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON; NaN as None."""
        out: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                out[name] = [None if x != x else x for x in value.tolist()]
            else:
                out[name] = None if value != value else value
        return out


def row(layer: Layer | Reduced, head: int, query: int, *, sequence: int = 0) -> Row:
    """Everything about one query of one head of a captured layer.

    Args:
        layer: from `Capture.layer`. head: the model's number. query: position in the sequence, negative from the end.
        sequence: which of the batch.

    Raises:
        ArgumentError: a head or query that was not kept.
    """
    if isinstance(layer, Reduced):
        return layer.row(head, query, sequence)
    at = layer.row(query)
    one = layer.part(batch=sequence, head=head, rows=np.array([at]))
    asked = one.attention()
    one = one.on_host()
    allowed = one.reads.ranges.dense(one.keys)[0, 0]
    if one.bias is not None:
        allowed = allowed & ~np.isneginf(np.broadcast_to(one.bias, (1, 1, 1, one.keys))[0, 0, 0])
    influence = asked.influence(0, head=0, vectors=True)
    weight = np.asarray(asked.contributions(0, head=0).weight, np.float64)[0]
    value = one.value[0, 0].astype(np.float64)
    shared = one.projection.value_bias
    free = value if shared is None else value - shared[0]
    through = metric(one)
    output = weight @ value
    clean = weight @ free
    norm = weight * lengths(free, through)
    total, whole = float(norm.sum()), float(lengths(clean[None], through)[0])
    along = free @ (clean if through is None else through @ clean)
    with np.errstate(all="ignore"):
        share = np.where(whole > 0, weight * along / whole**2, np.nan)
        size = float(lengths(output[None], through)[0])
        moved = lengths(np.asarray(influence.vectors, np.float64)[0], through)
        relative = np.where(size > 0, moved / size, np.nan) if size > 0 else np.where(allowed, np.nan, 0.0)
        norm_share = norm / total if total > 0 else np.full_like(norm, np.nan)
    position = int(one.positions[0])
    mass = float(weight.sum())
    distance = float(weight @ (position - np.arange(one.keys))) / mass if mass > 0 else float("nan")
    bias_norm = 0.0 if shared is None else mass * float(lengths(shared[0][None].astype(np.float64), through)[0])
    return Row(
        layer=layer.name,
        head=head,
        query=position,
        sequence=sequence,
        space="head" if through is None else "residual",
        allowed=allowed,
        weight=weight,
        norm=norm,
        norm_share=norm_share,
        share=share,
        cancellation=1 - whole / total if total > 0 else float("nan"),
        influence=relative,
        sole=np.asarray(influence.sole)[0],
        entropy=float(np.asarray(asked.entropy()).reshape(-1)[0]),
        effective_keys=float(np.asarray(asked.effective_keys()).reshape(-1)[0]),
        mean_distance=distance,
        sink_share=float(np.asarray(asked.sink_share()).reshape(-1)[0]),
        bias_norm=bias_norm,
        uniform=uniform(allowed),
        recency=recency(allowed, np.array(position)),
    )


def metric(one: Layer) -> Array | None:
    """W Wᵀ, (E, E): ‖x W‖² = x W Wᵀ xᵀ, so that no (S, M) array is built; None where W is not known."""
    weight = one.projection.weight
    if weight is None:
        return None
    matrix = weight[0].astype(np.float64)
    out: Array = matrix @ matrix.T
    return out


def lengths(vectors: Array, by: Array | None) -> Array:
    """‖x W‖ of each row x."""
    if by is None:
        out: Array = np.linalg.norm(vectors, axis=-1)
        return out
    squared = np.einsum("se,se->s", vectors @ by, vectors)
    root: Array = np.sqrt(np.maximum(squared, 0))
    return root
