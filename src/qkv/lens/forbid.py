"""The one causal check: forbid a key in the model, run it, and see how its next-token distribution moves.

Weight, contribution and influence speak of one head. Whether the model as a whole would have said something else is
found out here, by running it: in the layers and heads asked, the rows asked are answered as if the key were forbidden,
and every later layer computes with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.errors import ArgumentError, UnsupportedError

from .calls import Call, watch
from .capture import _run
from .layer import Layer
from .numbers import several, within
from .record import record
from .weights import neighbours

__all__ = ["Effect", "forbid"]


@dataclass(frozen=True)
class Effect:
    """How the distribution over next tokens moved.

    Attributes:
        total_variation: half the sum of |p − q| over the vocabulary, 0 … 1.
        kl: Σ p ln(p / q) in nats, p before and q after.
        before, after: the most likely tokens' numbers with their probabilities, most likely first.
        rows: how many rows of heads were answered without the key. emptied: how many of them had no other key (they
            became the zero row).
    """

    total_variation: float
    kl: float
    before: tuple[tuple[int, float], ...]
    after: tuple[tuple[int, float], ...]
    rows: int
    emptied: int


def forbid(
    model: Any,
    inputs: Any,
    key: int,
    *,
    layers: Sequence[int] | int | None = None,
    heads: Sequence[int] | int | None = None,
    queries: Sequence[int] | int | None = None,
    position: int = -1,
    sequence: int = 0,
) -> Effect:
    """Run `model` twice, the second time with key `key` forbidden, and compare the next-token distributions.

    Args:
        model, inputs: as in `capture`; the model's output must carry logits (B, L, vocabulary).
        key: which key may not be read. Rows that could not read it anyway are untouched, bit for bit.
        layers, heads, queries: where it is forbidden; everywhere if left out. Positions may be negative.
        position: which row of the logits is compared. sequence: which of the batch.

    Raises:
        ArgumentError: a number out of range. UnsupportedError: no logits, or an attention the lens cannot read.
    """
    import torch

    wanted, picked, asked = several("layers", layers), several("heads", heads), several("queries", queries)
    beside = neighbours(model)
    count = [0, 0, 0]
    missing = set(asked or ())

    def told(call: Call, answer: Any) -> Any:
        count[2] += 1
        if wanted is not None and call.index not in wanted:
            return None
        whole = record(call, None, None, beside.get(id(call.module)))
        at = within("sequence", sequence, whole.batches)
        layer = whole.part(batch=at)
        return _answer(call, answer, layer, key, picked, asked, missing, at, count)

    with torch.no_grad():
        before = _distribution(_run(model, inputs), position, sequence)
        with watch(model, told):
            after = _distribution(_run(model, inputs), position, sequence)
    if wanted is not None and (not wanted or max(wanted) >= count[2] or min(wanted) < 0):
        raise ArgumentError(
            f"layers must be within 0…{count[2] - 1}, the model's attention calls, but {layers!r} came; count from 0"
        )
    if missing:
        raise ArgumentError(
            f"queries must be positions that a layer asked has a row of, but {min(missing)} came; count from 0, or from the end with -1"
        )
    p, q = before, after
    with np.errstate(all="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return Effect(
        float(np.abs(p - q).sum() / 2), max(float(terms.sum()), 0.0), _likely(p), _likely(q), count[0], count[1]
    )


def _answer(
    call: Call,
    answer: Any,
    layer: Layer,
    key: int,
    picked: list[int] | None,
    queries: list[int] | None,
    missing: set[int],
    sequence: int,
    count: list[int],
) -> Any:
    """The kernel's answer with the rows concerned computed anew without the key; None where there are none."""
    import torch

    if not -layer.keys <= key < layer.keys:
        raise ArgumentError(f"key must be within -{layer.keys}…{layer.keys - 1}, but {key} came; count from 0")
    key = key % layer.keys
    rows = np.arange(len(layer.rows))
    if queries is not None:
        stand = np.array([query + layer.end if query < 0 else query for query in queries], np.int64)
        missing.difference_update(query for query, at in zip(queries, stand, strict=True) if at in layer.positions)
        rows = np.flatnonzero(np.isin(layer.positions, stand))
    readers = layer.reads.ranges.inside(0, rows, np.array([key]))[0, :, 0] if len(rows) else np.zeros(0, np.bool_)
    rows = rows[np.broadcast_to(readers, rows.shape)]
    heads = list(range(len(layer.heads))) if picked is None else picked
    if not len(rows):
        return None
    out, weights = (answer[0], answer[1:]) if isinstance(answer, tuple) else (answer, ())
    changed = out.clone()
    length_first = isinstance(answer, tuple)  # transformers' kernels answer (B, L, H, E), torch's own (B, H, L, E)
    for head in heads:
        one = layer.part(head=head, rows=rows)
        forbidden = one.reads.without(key)
        count[0] += len(rows)
        count[1] += int((np.broadcast_to(forbidden.ranges.clip(layer.keys).sizes(), (1, len(rows))) == 0).sum())
        fresh = torch.from_numpy(np.ascontiguousarray(_with(one, forbidden)[0, 0])).to(changed.dtype).to(changed.device)
        at = torch.from_numpy(rows).to(changed.device)
        if changed.ndim == 3:
            changed[(head, at) if not length_first else (at, head)] = fresh
        elif length_first:
            changed[sequence, at, head] = fresh
        else:
            changed[sequence, head, at] = fresh
    return (changed, *weights) if length_first else changed


def _with(layer: Layer, reads: Any) -> Any:
    from dataclasses import replace

    return np.asarray(replace(layer, reads=reads).attention().output)


def _distribution(output: Any, position: int, sequence: int) -> Any:
    logits = getattr(output, "logits", output)
    logits = logits[0] if isinstance(logits, tuple) else logits
    if getattr(logits, "ndim", 0) != 3:
        raise UnsupportedError(
            "the model's output must carry logits (B, L, vocabulary) to say how its next-token distribution moves; pass a model with a language head"
        )
    row = (
        logits[within("sequence", sequence, logits.shape[0]), within("position", position, logits.shape[1])]
        .double()
        .softmax(-1)
    )
    return row.cpu().numpy()


def _likely(p: Any, many: int = 5) -> tuple[tuple[int, float], ...]:
    return tuple((int(j), float(p[j])) for j in np.argsort(-p, kind="stable")[:many])
