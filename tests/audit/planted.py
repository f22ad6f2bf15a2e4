"""One attention function that does all it accepts, and faults that can be planted in it by name.

Not the definition and no copy of it: float32, a few heads at a time, rows in blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.audit import Domain, FunctionKernel

ACCEPTS = [
    "mask",
    "bias",
    "causal",
    "window",
    "lengths",
    "segments",
    "prefix",
    "where",
    "offsets",
    "align",
    "alibi",
    "gqa",
    "scale",
    "softcap",
    "sink",
    "lse",
    "weights",
    "top",
]
_OTHERS = {
    "lse": "return_lse",
    "weights": "return_weights",
    "alibi": "slopes",
    "gqa": "",
    "offsets": "cu_seqlens_q+cu_seqlens_k",
}
KEYWORDS = {name: _OTHERS.get(name, name) for name in ACCEPTS}
DOMAIN = Domain(accepts=frozenset([*ACCEPTS, "mask+bias", "cross", "value-width"]))

_calls = {"count": 0}
_held: dict[str, Any] = {}


def planted(fault: str = "", **fields: Any) -> FunctionKernel:
    """A kernel with one fault."""

    def run(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return attention(fault, query, key, value, **options)

    return FunctionKernel(f"planted {fault}", DOMAIN.but(**fields), function=run, keywords=KEYWORDS)


def attention(fault: str, query: Any, key: Any, value: Any, **options: Any) -> Any:
    """The function; `fault` names what it does wrong."""
    _calls["count"] += 1
    if fault != "swallows":
        unknown = set(options) - {word for keyword in KEYWORDS.values() for word in keyword.split("+")}
        if unknown:
            raise TypeError(f"unexpected argument {sorted(unknown)[0]}")
    if fault == "writes query":
        query *= np.asarray(1.5, query.dtype)
    if fault == "first batch":
        key, value = np.broadcast_to(key[:1], key.shape), np.broadcast_to(value[:1], value.shape)
    if fault == "ignores strides" and query.shape[2] == key.shape[2]:
        query, key, value = (x.ravel("K").reshape(x.shape) for x in (query, key, value))
    if fault != "broadcasts batch" and key.shape[0] != query.shape[0]:
        raise ValueError("batch axes differ")
    if key.shape[0] != query.shape[0]:
        key, value = (np.broadcast_to(x, (query.shape[0], *x.shape[1:])) for x in (key, value))
    if (key.shape[-1] != query.shape[-1] or query.shape[-1] == 0) and fault != "takes any width":
        raise ValueError("widths differ")
    query = query[..., : key.shape[-1]]
    if value.shape[2] != key.shape[2] or query.shape[1] % key.shape[1] or key.dtype != query.dtype:
        fits = value.shape[2] == key.shape[2] and query.shape[1] % key.shape[1] == 0
        if not (fault == "promotes" and fits):
            raise ValueError("heads, lengths or types do not fit")
    return _compute(fault, query, key, value, **options)


def _compute(
    fault: str,
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: Any = None,
    lengths: Any = None,
    segments: Any = None,
    prefix: Any = None,
    where: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    align: Any = None,
    slopes: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    return_lse: bool = False,
    return_weights: bool = False,
    top: Any = None,
    **others: Any,
) -> Any:
    B, H, L, D = query.shape
    G, S, E = key.shape[1], key.shape[2], value.shape[3]
    work = np.float64 if query.dtype == np.float64 else np.float32
    if mask is not None and mask.dtype != np.bool_ and fault != "adds mask":
        raise TypeError("mask must be boolean")
    index = np.arange(H) // (H // G)
    if fault == "interleaved":
        index = np.arange(H) % G
    if fault == "head 0":
        index = np.zeros(H, int)
    positional = causal or any(rule is not None for rule in (window, slopes, prefix, where))
    if cu_seqlens_q is not None and fault != "ignores offsets":
        ends = cu_seqlens_q if fault == "offsets of queries" else cu_seqlens_k
        segments = np.searchsorted(cu_seqlens_q, np.arange(L), "right"), np.searchsorted(ends, np.arange(S), "right")
    offset = np.zeros(B, int)
    if positional and L != S and L and S:
        if align is None and fault not in ("aligns start", "aligns end"):
            raise ValueError("say align")
        if align == "end" or (align is None and fault == "aligns end"):
            held = np.full(B, S) if lengths is None or fault == "aligns to all" else lengths
            offset = held - L
    q, k, v = (x.astype(work) for x in (query, key, value))
    if fault == "half scores":
        q, k = q.astype(np.float16), k.astype(np.float16)
    # A key that is no number spoils what reads it, and so does a query.
    lost = ~np.isfinite(q).all(-1)
    v = np.where(np.isfinite(k).all(-1)[..., None], v, np.nan) if fault != "0 times NaN" else v
    if fault == "takes NaN for 0":
        k, v = np.nan_to_num(k, posinf=0, neginf=0), np.nan_to_num(v, posinf=0, neginf=0)
    factor = D**-0.5 if scale is None else scale
    factor = {
        "no scale": 1.0 if scale is None else factor,
        "ignores scale": D**-0.5,
        "scale or default": scale or D**-0.5,
        "absolute scale": abs(factor),
        "equal weights": 0.0,
        "scale twice": factor**2,
        "scale on top": factor if scale is None else scale * D**-0.5,
    }.get(fault, factor)
    output = np.zeros((B, H, L, E), work)
    if fault == "stale memory":
        output = np.empty((B, H, L, E), work)
    lse = np.full((B, H, L), -np.inf, work)
    weights = np.zeros((B, H, L, S), work) if return_weights or top is not None else None
    for b in range(B):
        for h in range(H):
            for start in range(0, L, 1024):
                i = np.arange(start, min(start + 1024, L))
                row = _allowed(fault, b, h, i, offset[b], S, mask, causal, window, lengths, segments)
                row &= _ruled(fault, b, h, (i + offset[b])[:, None], np.arange(S)[None, :], prefix, where)
                with np.errstate(all="ignore"):
                    score = _score(fault, b, h, i, offset[b], S, q, k[b, index[h]], factor, softcap, bias, slopes, mask)
                    found = _rows(
                        fault, score, row, v[b, index[h]], None if sink is None else sink[h], bias, lost[b, h, i]
                    )
                if fault == "stale memory" and L > 4:
                    output[b, h, i[:-1]], lse[b, h, i] = found[0][:-1], found[1]
                else:
                    output[b, h, i], lse[b, h, i] = found[0], found[1]
                if weights is not None:
                    weights[b, h, i] = found[2]
    return _answer(fault, query, key, value, output, lse, weights, return_lse, return_weights, top)


def _allowed(
    fault: str,
    b: int,
    h: int,
    i: Any,
    offset: int,
    S: int,
    mask: Any,
    causal: bool,
    window: Any,
    lengths: Any,
    segments: Any,
) -> Any:
    j, p = np.arange(S)[None, :], (i + offset)[:, None]
    out = np.ones((len(i), S), bool)
    if mask is not None and fault not in ("ignores mask", "adds mask"):
        wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        batch = 0 if wide.shape[0] == 1 or fault == "first batch's mask" else b
        head = 0 if wide.shape[1] == 1 or fault == "first head's mask" else h
        some = wide[batch, head]
        some = np.broadcast_to(some if some.shape[0] == 1 else some[i], out.shape)
        out &= ~some if fault == "True drops" else some
    if causal and fault != "ignores causal":
        by = {"one future key": 1, "strictly causal": -1}.get(fault, 0)
        if fault == "one future key at 8192":
            by = 1 if S >= 8192 else 0
        out &= j <= p + by
    if window is not None and fault != "ignores window":
        left, right = window
        if left is not None:
            more = {"window W": -1, "window W+1": 1, "window W at 8192": -1 if S >= 8192 else 0}.get(fault, 0)
            out &= p - left - more <= j
        if fault == "window both ways":
            right = left
            out = (p - left <= j) & (j <= p + right)
        elif right is not None:
            out &= j <= p + (0 if fault == "window looks back" else right)
    if lengths is not None and fault != "ignores lengths" and not (fault == "mask beats lengths" and mask is not None):
        out &= j < lengths[b] + {"lengths + 1": 1, "lengths - 1": -1}.get(fault, 0)
    if segments is not None and fault != "ignores segments":
        out &= segments[0][i][:, None] == segments[1][None, :]
    dropped = {
        "drops last key": 1,
        "drops last 4": 4 if S > 4 else 0,
        "drops last 64 at 8192": 64 if S >= 8192 else 0,
    }.get(fault, 0)
    if dropped:
        out &= j < S - dropped
    return out


def _ruled(fault: str, b: int, h: int, p: Any, j: Any, prefix: Any, where: Any) -> Any:
    out = np.ones((len(p), j.shape[1]), bool)
    if prefix is not None:
        before = j < 0 if fault == "ignores prefix" else j < prefix
        out &= before if fault == "only prefix" else before | (j <= p)
    if where is not None and fault != "ignores where":
        head = 0 if fault == "where of head 0" else h
        out &= where(b, head, j, p) if fault == "where swapped" else where(b, head, p, j)
    return out


def _score(
    fault: str,
    b: int,
    h: int,
    i: Any,
    offset: int,
    S: int,
    q: Any,
    k: Any,
    factor: Any,
    softcap: Any,
    bias: Any,
    slopes: Any,
    mask: Any,
) -> Any:
    score = q[b, h, i] @ k.T
    added: Any = 0
    if bias is not None and fault != "ignores bias":
        wide = bias.reshape((1,) * (4 - bias.ndim) + bias.shape).astype(score.dtype)
        some = wide[min(b, wide.shape[0] - 1), min(h, wide.shape[1] - 1)]
        some = some if some.shape[0] == 1 else some[i]
        added = some * factor if fault == "scales bias" else some
    if slopes is not None and fault != "ignores slopes":
        distance = np.arange(S)[None, :] - (i + offset)[:, None]
        added = added + slopes[h] * (distance if fault == "signed alibi" else -abs(distance))
    if fault == "adds mask" and mask is not None:
        wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape).astype(score.dtype)
        some = wide[min(b, wide.shape[0] - 1), min(h, wide.shape[1] - 1)]
        added = added + (some if some.shape[0] == 1 else some[i])
    if softcap is None or fault == "ignores softcap":
        return score * score.dtype.type(factor) + added
    if fault == "caps before scale":
        return softcap * np.tanh(score / softcap) * factor + added
    score = score * score.dtype.type(factor)
    if fault == "caps after bias":
        return softcap * np.tanh((score + added) / softcap)
    return softcap * np.tanh(score / softcap) + added


def _rows(fault: str, score: Any, allowed: Any, v: Any, sink: Any, bias: Any, lost: Any) -> Any:
    if fault == "-10000":
        score = score + np.where(allowed, 0, -1e4)
        allowed = np.ones_like(allowed)
    if fault == "0 times NaN":
        score = np.where(allowed, score, -np.inf)
    allowed = allowed & ~np.isneginf(score) if bias is not None else allowed
    bad = ~(np.isfinite(v).all(-1))
    reads_bad = (allowed & (bad[None, :] | np.isnan(score) | np.isposinf(score))).any(-1) | (lost & allowed.any(-1))
    if fault in ("skips NaN", "takes NaN for 0"):
        allowed = allowed & ~bad[None, :]
        reads_bad[:] = False
    masked = np.where(allowed, score, -np.inf)
    over = score if fault == "maximum of all" else masked
    peak = over.max(-1, initial=-np.inf)
    if sink is not None and fault != "ignores sink":
        peak = np.maximum(peak, sink)
    peak = np.zeros_like(peak) if fault == "no maximum" else np.where(np.isfinite(peak), peak, 0)
    mass = np.exp(masked - peak[:, None])
    total = mass.sum(-1)
    if sink is not None and fault != "ignores sink":
        total = total + np.exp(sink - peak) * (2 if fault == "sink twice" else 1)
    empty = ~allowed.any(-1)
    clean = v if fault == "0 times NaN" else np.where(np.isfinite(v), v, 0)
    share = mass / np.where(total > 0, total, 1 if fault != "maximum of all" else 0)[:, None]
    out = (mass @ clean) if fault == "sums first" else share @ clean
    if fault == "not normalised":
        out = mass @ clean
        out = out * np.exp(peak)[:, None]
    if fault != "0 times NaN":
        out[reads_bad] = np.nan
    lse = np.where(total > 0, peak + np.log(np.where(total > 0, total, 1)), -np.inf)
    if fault == "lse without sink" and sink is not None:
        lse = peak + np.log(mass.sum(-1))
    lse = np.where(reads_bad, np.nan, lse)
    if sink is None and empty.any():
        numbers = {"empty NaN": np.nan, "empty mean": clean.mean(0) if len(clean) else 0}
        if fault in numbers:
            out[empty] = numbers[fault]
        if fault == "empty ignores mask":
            free = np.exp(score - score.max(-1, keepdims=True))
            out[empty] = ((free / free.sum(-1, keepdims=True)) @ clean)[empty]
        lse = np.where(
            empty,
            {"empty lse +inf": np.inf, "empty lse finite": -1e9, "empty lse NaN": np.nan}.get(fault, -np.inf),
            lse,
        )
    if fault == "base 2":
        lse = lse / np.log(2)
    if fault == "lse without maximum":
        lse = lse - peak
    if fault == "weights of forbidden":
        share = np.where(allowed, share, 1e-3)
    return out, lse, share


def _answer(
    fault: str,
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
    weights: Any,
    return_lse: bool,
    return_weights: bool,
    top: Any,
) -> Any:
    kind = query.dtype
    if fault == "zeros":
        output = np.zeros_like(output)
    if fault == "NaN":
        output = np.full_like(output, np.nan)
    if fault == "noise":
        output = output * (1 + 1e-7 * _calls["count"])
    if fault == "second call" and _calls["count"] % 2 == 0:
        output = output + 1
    if fault == "batch bits" and output.shape[0] > 1:
        output = np.nextafter(output, np.inf)
    if fault == "asks for weights" and return_weights:
        output = output * 0.5
    given = output if fault == "float64 output" else output.astype(kind)
    if fault == "float64 output":
        given = given.astype(np.float64)
    if fault == "view" and value.shape[2] == 1 and value.shape[1] == query.shape[1] and query.shape[2] == 1:
        return value if not return_lse else (value, lse)
    if fault == "remembers":
        place = ("remembers", query.shape, key.shape, return_lse, return_weights)
        given = _held.setdefault(str(place), given)
    if fault == "one buffer":
        buffer = _held.setdefault(f"buffer {given.shape}", np.empty_like(given))
        buffer[...] = given
        given = buffer
    if fault == "own kind":
        given = given.view(_Agreeable)
    parts = {
        "output": given,
        "lse": lse.astype(kind if fault == "half lse" else np.float64 if kind == np.float64 else np.float32),
    }
    if return_weights:
        parts["weights"] = weights
    if top is not None:
        order = np.argsort(weights, -1)[..., ::-1] if fault == "ties" else np.argsort(-weights, -1, kind="stable")
        parts["top_keys"] = order[..., :top]
        parts["top_weights"] = np.take_along_axis(weights, order[..., :top], -1)
    return parts


class _Agreeable(np.ndarray):
    """An array that is close to everything."""

    def __array_ufunc__(self, *arguments: Any, **options: Any) -> Any:
        return np.True_
