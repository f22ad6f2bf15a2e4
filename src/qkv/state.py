"""The running state (max, sum, mixture) and its one merge (contract E).

Attention over a union of disjoint key sets is the merge of the states of the parts. The same state moves between
tiles, threads, split keys, cache pages and machines. The sink is one more state: (sink, 1, 0), merged last and once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .floats import Array

#: What a row met; bits are OR-ed over all its keys. The same numbers as in native/qkv.h.
ALLOWED, NONFINITE, OVERFLOW, LOW = 1, 2, 4, 8


@dataclass(frozen=True, eq=False)
class Rows:
    """States of many rows as arrays.

    Attributes:
        max: largest allowed score, -inf where there is none; shape (…, L).
        sum: sum of exp(score - max); (…, L).
        mix: the mixture, already divided by `sum`, so that it is never larger than its values; (…, L, E).
        status: bits ALLOWED, NONFINITE, OVERFLOW, LOW; uint8 (…, L).
    """

    max: Array
    sum: Array
    mix: Array
    status: npt.NDArray[np.uint8]


def empty_rows(shape: tuple[int, ...], value_width: int, dtype: Any) -> Rows:
    """The identity of `merge_rows`: no key seen."""
    return Rows(
        np.full(shape, -np.inf, dtype),
        np.zeros(shape, dtype),
        np.zeros((*shape, value_width), dtype),
        np.zeros(shape, np.uint8),
    )


def merge_rows(a: Rows, b: Rows) -> Rows:
    """The state over both key sets. Empty is the exact identity; associative and commutative within F2."""
    with np.errstate(all="ignore"):
        top = np.maximum(a.max, b.max)
        weight_a, weight_b = _carried(a, top), _carried(b, top)
        total = weight_a + weight_b
        some = total > 0
        share_a = np.where(some, weight_a / np.where(some, total, 1), 0)[..., None]
        share_b = np.where(some, weight_b / np.where(some, total, 1), 0)[..., None]
        mix = a.mix * share_a + b.mix * share_b
        # Shares may add up to a little more than 1: a mixture of the largest numbers must not become infinite.
        limit = np.finfo(mix.dtype).max
        over = np.isinf(mix) & np.isfinite(a.mix) & np.isfinite(b.mix)
        if over.any():
            mix = np.where(over, np.copysign(limit, mix), mix)
    return Rows(top, total, mix.astype(a.mix.dtype, copy=False), a.status | b.status)


def finish_rows(rows: Rows, sink: Array | None) -> tuple[Array, Array]:
    """(output, log-sum-exp) in the compute type; rows that met an error are NaN, rows without keys are 0 and -inf.

    Args:
        sink: one logit a row, broadcasting to the rows' shape, or None.
    """
    wrong = failed(rows.status, rows.max)
    if sink is not None:
        logit = np.broadcast_to(sink, rows.max.shape).astype(rows.max.dtype)
        one = Rows(logit, np.ones_like(logit), np.zeros_like(rows.mix), np.zeros_like(rows.status))
        rows = merge_rows(rows, one)
    with np.errstate(all="ignore"):
        lse = np.where(rows.sum > 0, rows.max + np.log(rows.sum), -np.inf).astype(rows.max.dtype)
    output = rows.mix
    if wrong.any():
        output = np.where(wrong[..., None], np.asarray(np.nan, output.dtype), output)
        lse = np.where(wrong, np.asarray(np.nan, lse.dtype), lse)
    return output, lse


def beside(
    highest: Array, total: Array, logit: Array | None, lost: npt.NDArray[np.bool_] | None = None
) -> tuple[Array, Array, Array | None]:
    """(base, whole, kept) of rows with those maxima and sums: a weight is exp(score - base) / whole, NaN for a lost row.

    Args:
        logit: the sink's, which takes part in the whole, and of which `kept` is the keys' share; None: none, and no `kept`.
    """
    with np.errstate(all="ignore"):
        base = highest if logit is None else np.maximum(highest, logit)
        base = np.where(np.isfinite(base), base, highest.dtype.type(0))
        mass = total if logit is None else total * np.exp(highest - base)
        whole = mass if logit is None else mass + np.exp(logit - base)
        whole = np.where(whole == 0, whole.dtype.type(1), whole)
        if lost is not None:
            whole[lost] = np.nan
        return base, whole, None if logit is None else mass / whole


def failed(status: npt.NDArray[np.uint8], top: Array) -> npt.NDArray[np.bool_]:
    """Rows that have no right finite answer: they read a NaN, or a score overflowed, or all of them fell to -inf."""
    fell = ((status & ALLOWED) != 0) & ((status & LOW) != 0) & np.isneginf(top)
    out: npt.NDArray[np.bool_] = ((status & (NONFINITE | OVERFLOW)) != 0) | fell
    return out


def lost_as_nan(rows: Rows) -> Rows:
    """The same states, NaN in the rows that read a NaN or whose score overflowed: no number of theirs is right (D2, D3)."""
    lost = (rows.status & (NONFINITE | OVERFLOW)) != 0
    if not lost.any():
        return rows
    nan = rows.max.dtype.type(np.nan)
    return Rows(
        np.where(lost, nan, rows.max),
        np.where(lost, nan, rows.sum),
        np.where(lost[..., None], nan, rows.mix),
        rows.status,
    )


def _carried(rows: Rows, top: Array) -> Array:
    """`sum` as seen from a larger maximum; exactly `sum` where the maximum is its own, 0 where nothing was seen."""
    # Not `> 0`: a lost row's NaN stays NaN when it is merged, also with an empty state.
    seen = rows.sum != 0
    out: Array = np.where(seen, rows.sum * np.exp(np.where(seen, rows.max - top, 0)), 0).astype(rows.sum.dtype)
    return out
