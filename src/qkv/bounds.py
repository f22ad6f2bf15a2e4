"""How far a right answer may lie from the definition: error bounds a row, derived and never picked (contract F2).

Let u be the unit roundoff and η the smallest positive number of the type T an engine computes in, and
γ(n) = n·u / (1 − n·u), which bounds n roundings in a row. The definition itself is computed in a wider type of unit
roundoff u′; the same derivation holds for it, so u below stands for u + u′.

1. *Scores.* scale is rounded to T, multiplies the query, and a dot product of width D follows, in any order, with or
   without fused multiply-add: at most D + 2 roundings a term, two more where log2(e) is folded into the scale. So
   |ŝ − s| ≤ γ(D + 4) · |scale| Σ|q_d||k_d| + η (D + Σ|k_d| + Σ|q_d||k_d|), the second part for underflow.
2. *Softcap.* c·tanh(s / c) has slope 1 − tanh², so it carries the error on times the largest slope near s. Rounding c,
   the quotient, tanh itself (`ULPS`) and the product adds (2·ULPS + 3) u |c·tanh|, and η·c where the quotient underflows.
3. *Bias.* Its own roundings (none for an array, three for slope · distance), and one for the sum.
4. *Weights.* With e_j the error of score j so far, the unnormalised weight is exp(s_j − m) times exp(t_j), |t_j| ≤ ε_j,
   ε_j = e_j + u·gap_j + 2·ULPS·u·(K + 1): the differences s − m and m_old − m_new are rounded and add up to at most gap_j,
   the distance of score j from the largest possible maximum; K + 1 exponentials multiply up, K being how often a key's
   weight is rescaled: softmax steps, merges of parts, and the sink.
5. *Mixture.* Since Σ w_j (v_j − o) = 0, the sink counted as a key of value 0, perturbed weights give
   |o' − o| ≤ Σ w_j (exp(ε_j) − 1) |v_j − o| / Σ w_j exp(−ε_j); and a mixture stays inside the hull of its values.
6. *Sums.* n keys and K steps of at most 5 roundings, in numerator and denominator: 2·γ(n + 5K + 4) · Σ w'_j |v_j|, where
   the mean of |v| is at most Σ w_j exp(ε_j)|v_j| / Σ w_j exp(−ε_j) and at most max|v_j|. A weight or a product that
   underflows is off by η a step: η (K + 2) (Σ|v_j| + n).
7. *Output.* Rounding to the output's type: unit roundoff and half of its smallest number.
8. *Log-sum-exp.* ln Σ w_j exp(±ε_j) for the scores, γ(n + 5K + 4) for the sum, 2·ULPS·u·ln(n + 1) for the logarithm, and u |lse|.

Overflow (D3): a row *may* overflow where Σ|scale·q_d·k_d| of an allowed pair reaches the largest number of T, since some
order of additions then overflows, or where all its scores may fall below its most negative number. It *must* where the
exact score does so by more than rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import reference
from .floats import FLOATS, Array, Float, widen
from .plan import order

__all__ = ["ULPS", "Bounds", "bound"]

#: Accuracy of exp, log and tanh in units in the last place: what NumPy's own accuracy tests hold its functions to.
#: One unit in the last place is at most 2u of the number.
ULPS = 4

#: exp of this is far from overflow in every type, and a weight that large says nothing anyway.
_CLAMP = 600.0

Bools = npt.NDArray[np.bool_]


class Bounds(NamedTuple):
    """The right answer and how far from it a right engine may be.

    Attributes:
        answer: what `qkv.reference.attend` says in float64 (longdouble for float64 input).
        output: bound on |output − answer.output|, (…, H, L, E). lse: bound on |lse − answer.lse|, (…, H, L).
        may_overflow, must_overflow: rows that are allowed to, or have to, end in `ScoreOverflowError`, (…, H, L).
    """

    answer: reference.Answer
    output: Any
    lse: Any
    may_overflow: Bools
    must_overflow: Bools


def bound(
    query: Array,
    key: Array,
    value: Array,
    dtype: str,
    *,
    allowed: Any = True,
    bias: Any = None,
    bias_roundings: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
    merges: int = 0,
) -> Bounds:
    """Bounds of attention of query (…, H, L, D) over key (…, G, S, D) and value (…, G, S, E), arrays in storage form.

    Args:
        dtype: the arrays' float type, as in `qkv.floats`. allowed, scale, softcap, sink: as in `reference.attend`.
        bias: exact numbers that broadcast to (…, H, L, S). bias_roundings: how often an entry was rounded before it is
            added, 0 for an array of the call, 3 for `alibi`.
        merges: how many states of parts are merged beyond what one call does.

    >>> import numpy as np
    >>> x = np.ones((1, 2, 4), np.float32)
    >>> b = bound(x, x, x, "float32")
    >>> b.answer.output[0, 0].tolist(), bool((b.output < 1e-5).all())
    ([1.0, 1.0, 1.0, 1.0], True)
    """
    kind = FLOATS[dtype]
    wide: Any = np.longdouble if dtype == "float64" else np.float64
    q, k, v = (widen(x, dtype).astype(wide) for x in (query, key, value))
    width = q.shape[-1]
    exact_scale = 1 / np.sqrt(wide(width)) if scale is None else wide(scale)
    with np.errstate(all="ignore"):
        answer = reference.attend(q, k, v, allowed=allowed, bias=bias, scale=exact_scale, softcap=softcap, sink=sink)
        q, k, v = (np.where(np.isfinite(x), x, 0) for x in (q, k, v))
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
        unit = wide(np.finfo(kind.compute).eps / 2) + np.finfo(wide).eps / 2
        work = _Work(kind, unit, wide(np.finfo(kind.compute).smallest_subnormal), answer.reach)
        score = _scores(work, q, k, bias, bias_roundings, exact_scale, softcap)
        steps = _steps(answer.reach, order(dtype, width)[0]) + merges
        output, lse = _mixture(work, score, v, answer, sink, steps)
    return Bounds(answer, output, lse, *_overflow(work, score, softcap))


class _Work(NamedTuple):
    """Float type, its unit roundoff (the definition's added) and smallest number, and the allowed pairs."""

    kind: Float
    unit: Any
    smallest: Any
    reach: Bools

    def roundings(self, count: Any) -> Any:
        """γ(count)."""
        part = np.minimum(count * self.unit, 0.5)
        return part / (1 - part)

    @property
    def largest(self) -> float:
        return float(np.finfo(self.kind.compute).max)


class _Scores(NamedTuple):
    """Scores and error bounds (…, H, L, S): `raw` before the softcap, `final` after the bias; `size` is Σ|scale·q·k|."""

    raw: Any
    raw_error: Any
    size: Any
    final: Any
    final_error: Any
    query_size: Any


def _scores(work: _Work, q: Any, k: Any, bias: Any, bias_roundings: int, scale: Any, softcap: Any) -> _Scores:
    u, eta, width = work.unit, work.smallest, q.shape[-1]
    raw = scale * np.einsum("...ld,...sd->...ls", q, k)
    plain = np.einsum("...ld,...sd->...ls", abs(q), abs(k))
    size = abs(scale) * plain
    raw_error = work.roundings(width + 4) * size + eta * (width + abs(k).sum(-1)[..., None, :] + plain)
    score, error = raw, raw_error
    if softcap is not None:
        cap = type(scale)(softcap)
        slope = 1 - np.tanh(np.maximum(abs(raw) - raw_error, 0) / cap) ** 2
        score = cap * np.tanh(raw / cap)
        error = slope * raw_error + (2 * ULPS + 3) * u * abs(score) + eta * (cap + 1)
    if bias is not None:
        added = np.where(work.reach & np.isfinite(bias), bias, 0)
        error = error + work.roundings(bias_roundings) * abs(added)
        score = score + added
        error = error * (1 + u) + u * abs(score)
    return _Scores(raw, raw_error, size, score, error, abs(scale) * abs(q).max(-1))


def _steps(reach: Bools, block: int) -> Any:
    """How often the weight of a key is rescaled at most: softmax steps with an allowed key, the sink, the last division."""
    keys = reach.sum(-1)
    return np.minimum(keys, reach.shape[-1] // block + 2) + 2


def _mixture(work: _Work, score: _Scores, v: Any, answer: reference.Answer, sink: Any, steps: Any) -> tuple[Any, Any]:
    u, eta, reach = work.unit, work.smallest, work.reach
    count = reach.sum(-1)
    s = np.where(reach, score.final, -np.inf)
    low, high = s - score.final_error, s + score.final_error
    top = high.max(-1, initial=-np.inf)
    exponentials = 2 * ULPS * u * (steps + 1)
    log_whole = answer.lse[..., None]
    if sink is not None:
        logit = np.asarray(sink, s.dtype).reshape(-1, 1)
        off = u * abs(logit) + eta
        # The sink may be the maximum, and then every gap is counted from it.
        top = np.maximum(top, logit + off)
    spread = np.where(reach, score.final_error + u * (top[..., None] - low) + exponentials[..., None], 0)
    log_up, log_down = s - log_whole + spread, s - log_whole - spread
    # A dot product below every finite number is weight 0, whatever a bias would have made of it (D3).
    log_down = np.where(score.raw - score.raw_error < -work.largest * (1 - 2 * u), -np.inf, log_down)
    moved_sink = np.zeros_like(top)
    if sink is not None:
        own = off + u * (top - logit + off) + exponentials
        sink_up, sink_down = logit - answer.lse + own, logit - answer.lse - own
        moved_sink = _exp(sink_up) - _exp(logit - answer.lse)
        log_up, log_down = (
            np.concatenate([a, b[..., None]], -1) for a, b in ((log_up, sink_up), (log_down, sink_down))
        )
    log_more, log_less = _log_sum(log_up), _log_sum(log_down)
    weight, up, down = (x[..., : reach.shape[-1]] for x in (answer.weights, _exp(log_up), _exp(log_down)))
    whole_down = np.exp(np.maximum(log_less, -_CLAMP))
    moved = np.where(reach, np.maximum(up - weight, weight - down), 0) / whole_down[..., None]
    moved_sink = moved_sink / whole_down
    roundings = work.roundings(count + 5 * steps + 4)
    error = np.empty(answer.output.shape, s.dtype)
    edge = np.inf if sink is None else 0.0
    for e in range(v.shape[-1]):
        column, mean = v[..., None, :, e], answer.output[..., e]
        size = np.where(reach, abs(column), 0)
        least = np.where(reach, column, np.inf).min(-1, initial=edge)
        most = np.where(reach, column, -np.inf).max(-1, initial=-edge)
        hull = np.where(count > 0, np.maximum(most - mean, mean - least), 0)
        shift = (moved * np.where(reach, abs(column - mean[..., None]), 0)).sum(-1) + moved_sink * abs(mean)
        largest = size.max(-1, initial=0)
        mass = np.minimum((up * size).sum(-1) / whole_down, largest)
        underflow = eta * (steps + 2) * (size.sum(-1) + count)
        error[..., e] = np.fmin(shift, hull) + 2 * roundings * np.fmin(mass, largest) + underflow
    if work.kind.storage != work.kind.compute:
        error = error + work.kind.unit * (abs(answer.output) + error) + work.kind.smallest / 2
    change = np.maximum(log_more, -log_less)
    lse = change + roundings + 2 * ULPS * u * np.log(count + 1.0) + eta * count
    lse = lse * (1 + u) + u * abs(np.where(np.isfinite(answer.lse), answer.lse, 0))
    seen = np.isfinite(answer.lse)
    return np.where(seen[..., None], error, 0), np.where(seen, lse, 0)


def _exp(x: Any) -> Any:
    return np.exp(np.minimum(x, _CLAMP))


def _log_sum(x: Any) -> Any:
    """log Σ exp(x) over the last axis, whatever the size of x."""
    top = x.max(-1, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    return shift + np.log(np.exp(x - shift[..., None]).sum(-1))


def _overflow(work: _Work, score: _Scores, softcap: Any) -> tuple[Bools, Bools]:
    """Rows that may overflow, and rows that must."""
    reach, most = work.reach, work.largest
    # The largest number plus half a unit in its last place is what rounds to infinity; 2u is beyond it, -2u before it.
    beyond, before = most * (1 + 2 * work.unit), most * (1 - 2 * work.unit)

    def some(pairs: Any) -> Bools:
        out: Bools = (pairs & reach).any(-1)
        return out

    def every(pairs: Any) -> Bools:
        out: Bools = reach.any(-1) & (pairs | ~reach).all(-1)
        return out

    final, error = score.final, score.final_error
    may = some(score.size + score.raw_error > before) | some(final + error > before)
    may |= every(final - error < -before) | (reach.any(-1) & (score.query_size * (1 + 2 * work.unit) > before))
    if softcap is None:
        may |= every(score.raw - score.raw_error < -before)
    must = some(score.raw - score.raw_error > beyond) | some(final - error > beyond)
    must |= every(final + error < -beyond)
    return may, must
