"""How far a right gradient may lie from the definition's, derived like `qkv.bounds` and from the same numbers (F2).

With u the unit roundoff of the type T an engine computes in and γ(n) as there; e_x is the error of x.

1. A weight is exp(s − l) with the log-sum-exp as the forward pass left it: e_p = p (exp(ε) − 1) + η,
   ε = e_s + e_l + 2u |s − l| + 2·ULPS·u.
2. dp sums E products: e_dp = γ(E + 2) Σ|v||do|. δ = Σ o·do − dl reads the output as it was rounded:
   e_δ = Σ|do| e_o + γ(E + 3) (Σ|do| (|o| + e_o) + |dl|).
3. ds = p (dp − δ): e_p (g + e_g) + p e_g + 3u (p + e_p)(g + e_g), g = |dp − δ|, e_g = e_dp + e_δ.
4. A softcap multiplies by b = 1 − t², e_t = e_raw / c + (2·ULPS + 3) u: e_b = 2 e_t + e_t² + 3u.
5. dq, dk, dv and a bias that was broadcast sum over keys, rows, or both: errors of the terms, and γ(n + 4) of their sizes.
6. Rounding to the operand's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv import bounds, reference_gradient
from qkv.floats import FLOATS, widen


def summed(array: Any, shape: tuple[int, ...]) -> Any:
    """(…, H, L, S) summed to the shape of a bias that was broadcast to it."""
    full = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(full) if size != array.shape[axis])
    return array.sum(axis=axes, keepdims=True).reshape(shape)


def gradient_bounds(
    query: Any,
    key: Any,
    value: Any,
    doutput: Any,
    dtype: str,
    *,
    dlse: Any = 0.0,
    allowed: Any = True,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
) -> dict[str, tuple[Any, Any]]:
    """For query, key, value, bias and sink: (what the definition says, how far off a gradient may be). Finite operands."""
    kind = FLOATS[dtype]
    wide: Any = np.longdouble if dtype == "float64" else np.float64
    q, k, v, do = (widen(x, dtype).astype(wide) for x in (query, key, value, doutput))
    exact_scale = 1 / np.sqrt(wide(q.shape[-1])) if scale is None else wide(scale)
    shape = None if bias is None else bias.shape
    bias = None if bias is None else np.broadcast_to(bias.astype(wide), (*q.shape[:-1], k.shape[-2]))
    options = {"allowed": allowed, "bias": bias, "softcap": softcap, "sink": sink}
    right = bounds.bound(query, key, value, dtype, **options, scale=scale)
    dl = np.broadcast_to(np.asarray(dlse, wide), right.lse.shape)
    g = reference_gradient.gradient(q, k, v, do, dlse=dl, **options, scale=exact_scale)

    u, eta = wide(np.finfo(kind.compute).eps / 2) + np.finfo(wide).eps / 2, np.finfo(kind.compute).smallest_subnormal
    sharing = q.shape[-3] // k.shape[-3]
    ks, vs = (np.repeat(x, sharing, axis=-3) for x in (k, v))
    work = bounds._Work(kind, u, wide(eta), right.answer.reach)
    score = bounds._scores(work, q, ks, bias, 0, exact_scale, softcap)
    reach, p, lse = (
        right.answer.reach,
        right.answer.weights,
        np.where(np.isfinite(right.answer.lse), right.answer.lse, 0),
    )
    gap = abs(np.where(reach, score.final, 0) - lse[..., None])
    spread = score.final_error + right.lse[..., None] + 2 * u * gap + 2 * bounds.ULPS * u
    e_p = np.where(reach, p * np.expm1(spread) + eta, 0)
    width = v.shape[-1]
    size_dp = np.einsum("...le,...se->...ls", abs(do), abs(vs))
    dp, e_dp = np.einsum("...le,...se->...ls", do, vs), work.roundings(width + 2) * size_dp + eta * width
    o, e_o = abs(right.answer.output), right.output
    delta = (do * right.answer.output).sum(-1) - dl
    e_delta = (
        (abs(do) * e_o).sum(-1) + work.roundings(width + 3) * ((abs(do) * (o + e_o)).sum(-1) + abs(dl)) + eta * width
    )
    change, e_change = abs(dp - delta[..., None]), e_dp + e_delta[..., None]
    ds = p * (dp - delta[..., None])
    e_ds = np.where(reach, e_p * (change + e_change) + p * e_change + 3 * u * (p + e_p) * (change + e_change) + eta, 0)
    raw, e_raw = ds, e_ds
    if softcap is not None:
        t = np.tanh(score.raw / softcap)
        e_t = score.raw_error / softcap + (2 * bounds.ULPS + 3) * u
        bend, e_bend = 1 - t * t, 2 * e_t + e_t * e_t + 3 * u
        raw, e_raw = ds * bend, (e_ds * (bend + e_bend) + abs(ds) * e_bend) * (1 + u) + u * abs(ds * bend) + eta

    def of(terms: Any, errors: Any, other: Any, count: int) -> Any:
        """Σ terms · other over one side, with `count` numbers in the sum."""
        return errors @ abs(other) + work.roundings(count + 4) * ((abs(terms) + errors) @ abs(other)) + count * eta

    def grouped(x: Any) -> Any:
        return x.reshape(*x.shape[:-3], x.shape[-3] // sharing, sharing, *x.shape[-2:]).sum(-3)

    rows, keys = q.shape[-2] * sharing, k.shape[-2]
    turned, e_turned = raw.swapaxes(-1, -2), e_raw.swapaxes(-1, -2)
    errors = {
        "query": abs(exact_scale) * of(raw, e_raw, ks, keys),
        "key": grouped(abs(exact_scale) * of(turned, e_turned, q, rows)),
        "value": grouped(of(p.swapaxes(-1, -2), e_p.swapaxes(-1, -2), do, rows)),
    }
    found = {name: (getattr(g, name), error) for name, error in errors.items()}
    if shape is not None:
        many = ds.size // max(int(np.prod(shape)), 1)
        found["bias"] = (
            summed(g.bias, shape),
            summed(e_ds, shape) + work.roundings(many + 4) * summed(abs(ds) + e_ds, shape),
        )
    if sink is not None:
        share = np.exp(np.asarray(sink, wide)[:, None] - right.answer.lse)
        e_share = share * np.expm1(right.lse + 4 * u)
        off = e_share * (abs(delta) + e_delta) + share * e_delta
        off = off + work.roundings(share.size + 4) * (share + e_share) * (abs(delta) + e_delta)
        found["sink"] = (g.sink, off.sum(-1).reshape(-1, q.shape[-3]).sum(0))
    stored = {"bias": kind.compute, "sink": np.float64}
    for name, (exact, error) in found.items():
        unit, least = (
            (np.finfo(stored[name]).eps / 2, np.finfo(stored[name]).tiny)
            if name in stored
            else (kind.unit, kind.smallest)
        )
        found[name] = exact, error + unit * (abs(exact) + error) + least / 2
    return found


def assert_close(found: dict[str, Any], bound: dict[str, tuple[Any, Any]]) -> None:
    """Every gradient lies within its bound, number by number."""
    for name, (exact, most) in bound.items():
        got = np.asarray(found[name], exact.dtype)
        assert got.shape == exact.shape, name
        assert np.isfinite(got).all(), name
        off = abs(got - exact)
        worst = float(np.divide(off, most, out=np.where(off > 0, np.inf, 0.0), where=most > 0).max(initial=0))
        assert worst <= 1, f"F2: the gradient of the {name} is off by {worst:.3g} times its bound"
