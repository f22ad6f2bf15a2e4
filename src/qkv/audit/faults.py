"""Faults to name once no convention explains an answer: nobody means a call this way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .call import Call
from .readings import (
    BASE_TWO,
    BIAS_SCALED,
    DEFAULT_SCALE,
    EMPTY_MEAN,
    EMPTY_NAN,
    EMPTY_SOFTMAX,
    INTERLEAVED,
    LSE_WITHOUT_SINK,
    NO_SCALE,
    TRUE_DROPS,
    Change,
    Finish,
    Reading,
    _with,
)
from .tolerance import Right
from .where import WHERE

__all__ = ["SENTINELS", "faults"]


def _fault(name: str, change: Change | None = None, finish: Finish | None = None) -> Reading:
    return Reading(name, change, finish, fault=True)


def _constant(number: float) -> Finish:
    def finish(call: Call, answer: Right) -> Right:
        n, _ = answer.parts["output"]
        return _with(answer, output=(np.full_like(n, number), 0.0))

    return finish


def _without_last(count: int) -> Change:
    def change(call: Call) -> Call | None:
        _B, _H, _, _L, S, _, _ = call.sizes
        if count >= S:
            return None
        keep = np.arange(S)[None, :] < S - count
        return call.but(mask=keep if call.mask is None else keep & call.mask)

    return change


def _later(call: Call, by: int) -> Call | None:
    """causal: j <= position + by."""
    _, _, _, L, S, _, _ = call.sizes
    if not call.causal or L != S or L < 2:
        return None
    keep = np.arange(S) <= np.arange(L)[:, None] + by
    return call.but(causal=False, mask=keep if call.mask is None else keep & call.mask)


def _first_batch_mask(call: Call) -> Call | None:
    B, _H, _, _L, _S, _, _ = call.sizes
    if call.mask is None or B < 2 or call.mask.ndim < 4 or call.mask.shape[0] == 1:
        return None
    return call.but(mask=call.mask[:1])


def _first_head_mask(call: Call) -> Call | None:
    if call.mask is None or call.mask.ndim < 3 or call.mask.shape[-3] == 1:
        return None
    return call.but(mask=call.mask[..., :1, :, :])


def _first_head(call: Call) -> Call | None:
    _, H, G, *_ = call.sizes
    return call.but(**{n: np.repeat(getattr(call, n)[:, :1], H, axis=1) for n in ("key", "value")}) if G > 1 else None


def _first_batch_keys(call: Call) -> Call | None:
    if call.sizes[0] < 2 or call.key.shape[0] != call.sizes[0]:
        return None
    return call.but(**{n: np.broadcast_to(getattr(call, n)[:1], getattr(call, n).shape) for n in ("key", "value")})


def _as_contiguous(call: Call) -> Call | None:
    """Transposed arrays read in the order in which they lie."""
    if call.strides != "transposed":
        return None
    lying = {n: getattr(call, n).swapaxes(1, 2).reshape(getattr(call, n).shape) for n in ("query", "key", "value")}
    return call.but(**lying)


def _unnormalised(call: Call, answer: Right) -> Right | None:
    n, tol = answer.parts["output"]
    lse, _ = answer.parts["lse"]
    with np.errstate(over="ignore", invalid="ignore"):
        factor = np.exp(np.minimum(lse, 300))[..., None]
        return _with(answer, output=(n * factor, np.asarray(tol) * factor + np.abs(n * factor) * 2.0**-8))


def _lengths_off(by: int) -> Change:
    def change(call: Call) -> Call | None:
        if call.lengths is None:
            return None
        return call.but(lengths=np.clip(call.lengths + by, 0, call.sizes[4]))

    return change


def _finite(call: Call) -> bool:
    return all(bool(np.isfinite(x).all()) for x in (call.query, call.key, call.value))


def _sentinel(number: float) -> Change:
    """Forbidden pairs are pairs with this added."""

    def change(call: Call) -> Call | None:
        if call.mask is None or call.rows is not None or not _finite(call):
            return None
        B, H, _, L, S, _, _ = call.sizes
        low = np.where(np.broadcast_to(call.mask, (B, H, L, S)), 0.0, number)
        return call.but(mask=None, bias=low if call.bias is None else low + call.bias)

    return change


def _offsets_of_queries(call: Call) -> Call | None:
    if call.offsets is None or np.array_equal(*call.offsets):
        return None
    return call.but(offsets=(call.offsets[0], call.offsets[0]))


def _only_prefix(call: Call) -> Call | None:
    if call.prefix is None:
        return None
    keep = np.arange(call.sizes[4])[None, :] < call.prefix
    return call.but(prefix=None, mask=keep if call.mask is None else keep & call.mask)


def _where_as(call: Call, rule: Callable[[Any, Any, Any, Any], Any]) -> Call:
    B, H, _, L, S, _, _ = call.sizes
    b, h, i, j = np.ogrid[:B, :H, :L, :S]
    p = call.but(rows=None).positions()[:, None, :, None] + 0 * i
    keep = np.broadcast_to(rule(b, h, p, j), (B, H, L, S))
    return call.but(where=None, mask=keep if call.mask is None else keep & call.mask)


def _where_of_head_0(call: Call) -> Call | None:
    return None if call.where is None else _where_as(call, lambda b, h, p, j: WHERE[call.where or ""](b, 0 * h, p, j))


def _where_swapped(call: Call) -> Call | None:
    return None if call.where is None else _where_as(call, lambda b, h, p, j: WHERE[call.where or ""](b, h, j, p))


def _drop(**fields: Any) -> Change:
    def change(call: Call) -> Call | None:
        name = next(iter(fields))
        old = getattr(call, name)
        return None if old is None or old is False else call.but(**fields)

    return change


def _sink_renormalised(call: Call) -> Call | None:
    return None if call.sink is None else call.but(sink=None)


def _sink_of_other_head(call: Call) -> Call | None:
    return None if call.sink is None or len(call.sink) < 2 else call.but(sink=call.sink[::-1].copy())


def _sink_twice(call: Call) -> Call | None:
    return None if call.sink is None else call.but(sink=call.sink + np.log(2))


SENTINELS = (
    _fault("forbidden pairs have -10000 added", _sentinel(-1e4)),
    _fault("forbidden pairs have -1000 added", _sentinel(-1e3)),
)
ZEROS = _fault("the output is zeros", finish=_constant(0.0))
ALL_NAN = _fault("the output is NaN everywhere", finish=_constant(float("nan")))


def faults() -> Iterator[Reading]:
    """Faults to name once no convention explains an answer, the telling ones first."""
    yield ZEROS
    yield ALL_NAN
    yield _fault("the offsets are ignored", _drop(offsets=None))
    yield _fault("the offsets of the queries serve the keys", _offsets_of_queries)
    yield _fault("the prefix is ignored, causal taken", lambda c: c.but(prefix=None, causal=True) if c.prefix else None)
    yield _fault("nothing but the prefix is read", _only_prefix)
    yield _fault("where is ignored", _drop(where=None))
    yield _fault("where is asked about head 0 for every head", _where_of_head_0)
    yield _fault("where gets key and position swapped", _where_swapped)
    yield _fault("causal reads one key of the future", lambda c: _later(c, 1))
    yield _fault("causal does not read the query's own key", lambda c: _later(c, -1))
    for count in (1, 2, 3, 4, 8, 16, 32, 64, 128):
        yield _fault(
            f"the last {count} keys are dropped" if count > 1 else "the last key is dropped", _without_last(count)
        )
    yield _fault("causal is ignored", _drop(causal=False))
    yield _fault("the window is ignored", _drop(window=None))
    yield _fault("the lengths are ignored", _drop(lengths=None))
    yield _fault("the lengths reach one key too far", _lengths_off(1))
    yield _fault("the lengths stop one key short", _lengths_off(-1))
    yield _fault("the segments are ignored", _drop(segments=None))
    yield _fault("the keys of the first batch serve all", _first_batch_keys)
    yield _fault("strides are ignored", _as_contiguous)
    yield _fault("the mask of the first batch serves all", _first_batch_mask)
    yield _fault("the mask of the first head serves all", _first_head_mask)
    yield _fault("the mask is ignored", _drop(mask=None))
    yield from SENTINELS
    yield _fault("the bias is ignored", _drop(bias=None))
    yield BIAS_SCALED
    yield _fault("the slopes are ignored", _drop(slopes=None))
    yield _fault("the softcap is ignored", _drop(softcap=None))
    yield _fault("the sink is ignored", _sink_renormalised)
    yield _fault("the sink of another head is taken", _sink_of_other_head)
    yield _fault("the sink counts twice", _sink_twice)
    yield Reading(DEFAULT_SCALE.name, DEFAULT_SCALE.change, fault=True)
    yield Reading(NO_SCALE.name, NO_SCALE.change, fault=True)
    yield _fault(
        "the scale is applied twice",
        lambda c: c.but(scale=1 / c.sizes[5]) if c.scale is None else c.but(scale=c.scale**2),
    )
    yield _fault("1/D is the scale", lambda c: c.but(scale=1 / c.sizes[5]) if c.scale is None else None)
    yield _fault(
        "the scale loses its sign", lambda c: c.but(scale=abs(c.scale)) if c.scale is not None and c.scale < 0 else None
    )
    yield _fault(
        "query and key are ignored, every key weighs the same", lambda c: c.but(scale=0.0) if c.scale != 0 else None
    )
    yield _fault("every query head reads key head 0", _first_head)
    yield Reading(INTERLEAVED.name, INTERLEAVED.change, fault=True)
    yield _fault("the weights are not divided by their sum", finish=_unnormalised)
    yield BASE_TWO
    yield LSE_WITHOUT_SINK
    yield EMPTY_NAN
    yield EMPTY_MEAN
    yield EMPTY_SOFTMAX
    yield TRUE_DROPS
