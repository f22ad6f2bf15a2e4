"""THE definition of attention's gradient: dense, float64, one screen, beside `reference.attend`.

With P the weights, o the output, and do, dl the gradients of output and log-sum-exp:
    dv = Pᵀ do,  dp = do vᵀ,  ds = P ∘ (dp − rowsum(do ∘ o) + dl),  dq = scale · ds k,  dk = scale · dsᵀ q.
Formula: Dao et al. 2022, "FlashAttention", appendix B.2. A softcap's derivative 1 − tanh² multiplies ds on its way to q
and k. The sink is a key with value 0, so its dp is 0, and the gradient of a bias is ds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import reference


class Gradient(NamedTuple):
    """Gradients: query (…, H, L, D), key (…, G, S, D), value (…, G, S, E), bias (…, H, L, S), and sink (H,) or None."""

    query: Any
    key: Any
    value: Any
    bias: Any
    sink: Any


def gradient(
    query: Any,
    key: Any,
    value: Any,
    doutput: Any,
    *,
    dlse: Any = None,
    allowed: Any = True,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
) -> Gradient:
    """The gradient of Σ doutput·output + Σ dlse·lse; `doutput` is (…, H, L, E), the rest as in `reference.attend`.

    A row without keys gives nothing to anybody (C2). A row that is NaN, or whose `doutput` is, makes NaN of its own
    query's gradient and of all that belongs to the pairs it may read, and of nothing else (D1, D2).

    >>> import numpy as np
    >>> x, v = np.zeros((1, 2, 2)), np.array([[[1.0], [3.0]]])
    >>> g = gradient(x, x, v, np.ones((1, 2, 1)), allowed=np.array([[True, False], [False, False]]))
    >>> g.query.any(), g.key.any(), g.value.tolist()
    (np.False_, np.False_, [[[1.0], [0.0]]])
    """
    options = {"allowed": allowed, "bias": bias, "scale": scale, "softcap": softcap, "sink": sink}
    output, lse, weights, reach = reference.attend(query, key, value, **options)
    some, finite = reach.any(-1), np.isfinite(doutput).all(-1)
    dlse = np.zeros_like(lse) if dlse is None else dlse
    lost = some & ~(finite & ~np.isnan(lse) & np.isfinite(dlse))
    live = some & ~lost
    sharing, scale = query.shape[-3] // key.shape[-3], query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value = (np.where(np.isfinite(x), x, 0) for x in (query, key, value))
    k, v = (np.repeat(x, sharing, axis=-3) for x in (key, value))
    output, doutput, weights = (np.where(live[..., None], x, 0) for x in (output, doutput, weights))

    delta = (doutput * output).sum(-1) - np.where(np.isfinite(dlse), dlse, 0)
    score = weights * (np.einsum("...le,...se->...ls", doutput, v) - delta[..., None])
    raw = score
    if softcap is not None:
        raw = score * (1 - np.tanh(scale * np.einsum("...ld,...sd->...ls", query, k) / softcap) ** 2)

    def grouped(x: Any) -> Any:
        """Sum over the query heads of each key head; NaN where a lost row may read the key."""
        shape = (*x.shape[:-3], x.shape[-3] // sharing, sharing)
        touched = (lost[..., None] & reach).any(-2).reshape(*shape, reach.shape[-1]).any(-2)
        return np.where(touched[..., None], np.nan, x.reshape(*shape, *x.shape[-2:]).sum(-3))

    dsink = None
    if sink is not None:
        logit = np.asarray(sink, score.dtype).reshape(-1, 1)
        share = np.exp(logit - np.where(lost, np.inf, lse)) * np.where(lost, 0, -delta)
        dsink = np.where(lost, np.nan, share).sum(-1).reshape(-1, query.shape[-3]).sum(0)
    return Gradient(
        np.where(lost[..., None], np.nan, scale * np.einsum("...ls,...sd->...ld", raw, k)),
        grouped(scale * np.einsum("...ls,...ld->...sd", raw, query)),
        grouped(np.einsum("...ls,...le->...se", weights, doutput)),
        np.where(lost[..., None] & reach, np.nan, score),
        dsink,
    )
