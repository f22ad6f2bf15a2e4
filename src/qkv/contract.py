"""From user arguments to a frozen `Problem`: the only place that sees what the caller wrote (contract A, B, F1, G).

Errors come in one order whatever the engine: shape and options, alignment; then, from the engine, empty rows and
non-finite operands (D2).
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any, Literal
from typing import cast as as_type

import numpy as np

from . import held
from .algebra import Allow, Mask, check_pair_shape, read_booleans
from .alibi import Alibi
from .align import Align, known_lengths, resolve_offset
from .cache import Cache, CachePart
from .errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, shown
from .floats import FLOATS, Array, Float
from .frame import Frame
from .interop import Kind, take, to_numpy
from .problem import Floats64, Layout, Problem
from .ranges import ALL, END, MOST, Ints, Ranges

Empty = Literal["raise", "zero"]
NonFinite = Literal["raise", "propagate"]

#: What a caller may mean who passes arrays in the other layout than he says.
_OTHER = {False: "(B, L, H, D), pass layout='blhd'", True: "(B, H, L, D), drop layout='blhd'"}

_LAYOUTS = {"bhld": False, "bhsd": False, "blhd": True, "bshd": True}

#: Other libraries' spellings, and what to write here (G1).
_FOREIGN = {
    "attn_mask": "mask= for booleans (True = may read), bias= for numbers to be added",
    "is_causal": "mask=causal() (when L != S: causal(align='start') is what torch means)",
    "causal": "mask=causal()",
    "dropout_p": "nothing: attention here is exact, so drop weights in your own training code",
    "dropout": "nothing: attention here is exact, so drop weights in your own training code",
    "enable_gqa": "nothing: fewer key heads than query heads are grouped by themselves",
    "softmax_scale": "scale=",
    "sm_scale": "scale=",
    "window_size": "mask=window(left, right), which counts the keys besides the query's own",
    "alibi_slopes": "bias=alibi(slopes)",
    "key_padding_mask": "mask=keys(~key_padding_mask): True = the key exists here",
    "need_weights": "attention(…).weights(queries=…)",
    "return_lse": "attention(…).lse",
    "logits_soft_cap": "softcap=",
    "logit_softcapping": "softcap=",
    "is_causal_mask": "mask=causal()",
    "cu_seqlens_q": "attend_packed(query, key, value, query_offsets, key_offsets)",
    "cu_seqlens_k": "attend_packed(query, key, value, query_offsets, key_offsets)",
    "max_seqlen_q": "nothing: lengths follow from the offsets",
    "max_seqlen_k": "nothing: lengths follow from the offsets",
    "align": "mask=causal(align=…)",
    "keep": "attention(…, keep=…), which gives the answers that are to be kept",
    "attention_mask": "mask=keys(a.astype(bool)) for padding (B, S), or mask=a.astype(bool) for pairs",
}


ARGUMENTS = ("mask", "bias", "scale", "softcap", "sink", "empty", "nonfinite", "layout")


def refuse_foreign(others: dict[str, Any], function: Callable[..., Any] | None = None) -> None:
    """Raise for every keyword that is not ours, with our spelling where there is one.

    Args:
        function: whose keywords are told of; without it those of `attend`.
    """
    for name in others:
        own = ARGUMENTS if function is None else _keywords(function)
        if name in _FOREIGN:
            raise UnsupportedError(f"{name} is not an argument here; write {_FOREIGN[name]}")
        near = difflib.get_close_matches(name, own, 1)
        raise UnsupportedError(
            f"{name} is not an argument here{f', but {near[0]} is' if near else ''}; write one of {', '.join(own)}"
        )


def _keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names that a function takes as keywords alone."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def canonical(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    empty: str = "raise",
    nonfinite: str = "raise",
    layout: str = "bhld",
    first_key: Any = 0,
    total_keys: Any = None,
) -> Problem:
    """Validate the arguments of `attend` and write them as one `Problem`.

    Raises:
        ShapeError, DTypeError, ArgumentError, AlignmentError, MaskError, UnsupportedError: see the contract.
    """
    _one_of("empty", empty, ("raise", "zero"))
    _one_of("nonfinite", nonfinite, ("raise", "propagate"))
    _one_of("layout", layout, tuple(_LAYOUTS))
    length_first = _LAYOUTS[layout]

    cache = held.cache_of(key)
    q, dtype, kind = take(query, "query")
    if cache is not None:
        k, v = held.keys_and_values(cache, key, value, length_first, dtype)
    else:
        k, v = _same_kind(dtype, kind, (key, "key"), (value, "value"))
    form = _layout(q, k, v, length_first, kind)
    q, k, v = form.canonical(q), form.canonical(k), form.canonical(v)
    _check_sizes(q, k, v, form)

    batch, heads, queries, keys = q.shape[:-3], int(q.shape[-3]), int(q.shape[-2]), int(k.shape[-2])
    start, total = _part_of(first_key if cache is None or not cache.first else cache.first, total_keys, keys)
    expression = read_mask(mask)
    array, slopes, rules = _bias(bias, heads, dtype)
    if expression is not None:
        rules = [(repr(leaf), leaf.align) for leaf in expression.leaves() if leaf.positional] + rules
    count = math.prod(batch)
    # Sizes first, alignment second: a mask of the wrong shape is told as that.
    frame = Frame(batch, heads, queries, total, np.zeros(count, np.int64))
    if expression is not None:
        expression.check(frame)
    if array is not None:
        check_pair_shape("bias", array.shape, frame, explicit=False)
    own: Align = None
    lengths = known_lengths(expression, count)
    if cache is not None:
        lengths = cache.flat_lengths() if lengths is None else np.minimum(lengths, cache.flat_lengths())
        own = cache.offset(queries)
    # More heads than positions is what (B, L, H, D) arrays look like when they are read as (B, H, L, D), and the reverse.
    hint = f"if your arrays are {_OTHER[length_first]}" if heads > max(queries, total) else ""
    frame = Frame(batch, heads, queries, total, resolve_offset(batch, queries, total, rules, lengths, own, hint))
    ranges, rule, origin = _compiled(expression, frame, cache, start, keys)
    bias_shape = () if array is None else array.shape
    if array is not None:
        array = np.broadcast_to(array, (*batch, heads, queries, total))[..., start : start + keys]
    return Problem(
        query=q,
        key=k,
        value=v,
        dtype=FLOATS[dtype],
        scale=_scale(scale, int(q.shape[-1]), FLOATS[dtype]),
        softcap=_softcap(softcap, FLOATS[dtype]),
        sink=_sink(sink, heads, FLOATS[dtype]),
        slopes=slopes,
        bias=array,
        bias_dtype="float32" if array is not None and array.dtype == np.float32 else dtype,
        bias_shape=bias_shape,
        mask=expression,
        frame=frame,
        first_key=start,
        ranges=ranges,
        rule=rule,
        origin=origin,
        empty=as_type(Empty, empty),
        nonfinite=as_type(NonFinite, nonfinite),
        layout=form,
    )


# Shapes. -----------------------------------------------------------------------------------------------------------


def _same_kind(dtype: str, kind: Kind, *others: tuple[Any, str]) -> list[Array]:
    out = []
    for x, name in others:
        if x is None:
            raise ShapeError(f"{name} is missing, and only a Cache may stand for key and value together; pass {name}=")
        if isinstance(x, CachePart):
            raise ShapeError(
                "value comes from a cache, but key does not; pass cache.key and cache.value, or the cache alone"
            )
        array, other_dtype, other_kind = take(x, name)
        if other_kind.name != kind.name:
            raise DTypeError(
                f"query and {name} must be arrays of one library, but are {kind.name} and {other_kind.name}; convert one of them"
            )
        if other_dtype != dtype:
            cast = f"{name}.to(query.dtype)" if kind.name == "torch" else f"{name}.astype(query.dtype)"
            raise DTypeError(
                f"query, key and value must have one dtype, but query is {dtype} and {name} is {other_dtype}; write {cast}"
            )
        out.append(array)
    return out


def _layout(q: Array, k: Array, v: Array, length_first: bool, kind: Kind) -> Layout:
    for name, array in (("query", q), ("key", k), ("value", v)):
        if array.ndim < 2:
            raise ShapeError(
                f"{name} must have at least two axes, (length, width), but has shape {array.shape}; a single vector is {name}[None]"
            )
        if array.ndim != q.ndim:
            raise ShapeError(
                f"query, key and value must have equally many axes, but query has shape {q.shape} and {name} {array.shape}; "
                "nothing is broadcast silently, so add the missing axes"
            )
    return Layout(q.ndim, length_first, kind)


def _check_sizes(q: Array, k: Array, v: Array, layout: Layout) -> None:
    """The axes of canonical views (A1 to A3)."""
    for name, array in (("query", q), ("key", k), ("value", v)):
        if max(*array.shape, math.prod(array.shape[:-3])) >= MOST:
            shape = layout.restored(array, trailing=1).shape
            raise ShapeError(
                f"{name} must have axes shorter than 2**31, batch axes together, but has shape {shape}; "
                "take it in parts, keys by partial and merge"
            )
    for name, array in (("key", k), ("value", v)):
        if array.shape[:-3] != q.shape[:-3]:
            raise ShapeError(
                f"batch axes must be equal, but query has {q.shape[:-3]} and {name} {array.shape[:-3]}; "
                f"nothing is broadcast silently, so write np.broadcast_to({name}, …)"
            )
    (heads, _, width), (groups, keys, key_width) = q.shape[-3:], k.shape[-3:]
    for name, size, axis in (
        ("query", width, "D"),
        ("value", v.shape[-1], "E"),
        ("query", heads, "H"),
        ("key", groups, "G"),
    ):
        if size == 0:
            shape = layout.restored({"query": q, "key": k, "value": v}[name], trailing=1).shape  # as it was passed
            raise ShapeError(f"{name} must not have {axis} = 0, but has shape {shape}; drop the call")
    if v.shape[-3] != groups or v.shape[-2] != keys:
        raise ShapeError(
            f"key and value must agree in heads and length, but key has (G, S) = {(groups, keys)} and value {tuple(v.shape[-3:-1])}; "
            "give each key one value"
        )
    if key_width != width:
        raise ShapeError(
            f"query and key must have one width D, but query has {width} and key {key_width}; is one of them transposed?"
        )
    if heads % groups:
        raise ShapeError(
            f"query heads must be a multiple of key heads, but query has H = {heads} and key G = {groups}"
            f"; if your arrays are {_OTHER[layout.length_first]}, otherwise repeat or drop heads"
        )


def _part_of(first_key: Any, total_keys: Any, keys: int) -> tuple[int, int]:
    start = _whole("first_key", first_key)
    total = start + keys if total_keys is None else _whole("total_keys", total_keys)
    if start + keys > total:
        raise ArgumentError(
            f"total_keys must be at least first_key + S = {start} + {keys}, but {total} came; it is the length of the whole"
        )
    return start, total


def _whole(name: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise DTypeError(f"{name} must be a whole number, but {shown(value)} came; pass an int")
    if value < 0:
        raise ArgumentError(f"{name} must not be negative, but {int(value)} came; keys are counted from 0")
    if value >= END:
        raise ArgumentError(f"{name} must be below 2**40, but {int(value)} came; it counts keys")
    return int(value)


# Masks and biases. -------------------------------------------------------------------------------------------------


def read_mask(mask: Any) -> Mask | None:
    """A `mask=` argument as an expression, checked as far as that goes without sizes."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, Alibi):
        raise DTypeError(
            "mask must say which pairs are allowed, but alibi(…) is added to the scores; pass bias=alibi(…)"
        )
    if isinstance(mask, (bool, int, float, str)):
        raise DTypeError(
            f"mask must be a mask expression or a boolean array, but {shown(mask)} came; write mask=causal(), or leave it out to allow every pair"
        )
    if callable(mask):
        way = (
            "write mask=causal(), with brackets"
            if getattr(mask, "__name__", "") in ("causal", "window", "prefix", "first", "keys", "segments")
            else "for a rule write mask=where(f)"
        )
        raise DTypeError(f"mask must be a mask expression or a boolean array, but a function came; {way}")
    return Allow(read_booleans(mask, "mask"), explicit=False)


def _bias(bias: Any, heads: int, dtype: str) -> tuple[Array | None, Floats64 | None, list[tuple[str, Align]]]:
    if bias is None:
        return None, None, []
    if isinstance(bias, Alibi):
        if bias.slopes.shape != (heads,):
            raise ShapeError(
                f"alibi: slopes must have shape (H,) = ({heads},), one per query head, but has shape {bias.slopes.shape}; repeat or drop some"
            )
        limit = FLOATS[dtype].compute
        if (np.abs(bias.slopes) > float(np.finfo(limit).max)).any():
            raise ArgumentError(
                f"alibi: slopes must be finite in {limit}, but {bias.slopes[np.abs(bias.slopes).argmax()]} is not; use smaller slopes"
            )
        return None, bias.slopes, [(repr(bias), bias.align)]
    if isinstance(bias, Mask):
        raise DTypeError("bias is added to the scores, but a mask says which pairs are allowed; pass mask=…")
    if isinstance(bias, (bool, int, float)):
        raise DTypeError(
            f"bias must be an array that broadcasts to (B…, H, L, S), but {shown(bias)} came; a constant changes nothing, so drop it"
        )
    kind = str(getattr(bias, "dtype", "")).removeprefix("torch.")
    if kind == dtype == "bfloat16":
        array, _, _ = take(bias, "bias")
        return array, None, []
    array = to_numpy(bias, "bias")
    kind = kind or array.dtype.name  # what speaks DLPack alone has no dtype to ask for
    if array.dtype == np.bool_:
        raise DTypeError(
            "bias must be floating, to be added to the scores, but is boolean; pass it as mask= (True = may read)"
        )
    if kind not in (dtype, "float32"):
        raise DTypeError(
            f"bias must have the query's dtype{'' if dtype == 'float32' else f' {dtype} or'} float32, but has {kind}; "
            "write bias.astype(np.float32)"
        )
    return array, None, []


#: The origin of rows that count their keys from key 0.
_ZERO = np.zeros((1, 1), np.int64)


@lru_cache(maxsize=256)
def _every_key(keys: int) -> Ranges:
    return ALL.clip(keys)


def _compiled(
    mask: Mask | None, frame: Frame, cache: Cache | None, start: int, keys: int
) -> tuple[Ranges, Mask | None, Ints]:
    """(ranges, what has to hold besides, origin), all in this problem's own keys."""
    if mask is None and cache is None:
        return _every_key(keys), None, _ZERO
    may, must = (ALL, ALL) if mask is None else mask.bounds(frame)
    rule: Mask | None = None
    if mask is not None and may is not must:
        # Terms that are intervals are in `may` already; the others have to be asked pair by pair.
        for term in mask.conjuncts():
            low, high = term.bounds(frame)
            if low is not high:
                rule = term if rule is None else rule & term
    if cache is not None:
        may = held.within(cache, may)
    origin = np.zeros((1, 1), np.int64) if mask is None else mask.origin(frame)
    if start:
        may, origin = may.shift(start), origin - start
    return may.clip(keys), rule, origin


# Numbers. ----------------------------------------------------------------------------------------------------------


def _one_of(name: str, value: Any, words: tuple[str, ...]) -> None:
    if not (isinstance(value, str) and value in words):
        raise ArgumentError(
            f"{name} must be one of {', '.join(map(repr, words))}, but {shown(value)} came; leave it out for {words[0]!r}"
        )


def read_number(name: str, value: Any) -> float:
    if getattr(value, "ndim", 0) > 0:
        raise DTypeError(f"{name} must be one number, but an array of shape {tuple(value.shape)} came; pass a float")
    if hasattr(value, "ndim") and not isinstance(value, (np.generic, np.ndarray)):
        value = to_numpy(value, name)  # refuses what a float() would detach or trace
    real = (
        value.dtype.kind in "fiu"
        if hasattr(value, "dtype")
        else isinstance(value, Real) and not isinstance(value, bool)
    )
    if not real:
        raise DTypeError(f"{name} must be one number, but {shown(value)} came; pass a float")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _scale(scale: Any, width: int, dtype: Float) -> float:
    if scale is None:
        return 1.0 / math.sqrt(width)
    number = read_number("scale", scale)
    if not math.isfinite(number) or abs(number) > float(np.finfo(dtype.compute).max):
        raise ArgumentError(f"scale must be finite in {dtype.compute}, but {number} came; leave it out for 1/sqrt(D)")
    return number


def _softcap(softcap: Any, dtype: Float) -> float | None:
    if softcap is None:
        return None
    number = read_number("softcap", softcap)
    info = np.finfo(dtype.compute)
    if not (float(info.tiny) <= number <= float(info.max)):
        raise ArgumentError(
            f"softcap must be finite and > 0 in {dtype.compute}, but {number} came; leave it out for no softcap"
        )
    return number


def _sink(sink: Any, heads: int, dtype: Float) -> Floats64 | None:
    if sink is None:
        return None
    array = to_numpy(sink, "sink", scalars=True)
    if array.dtype.kind not in "fiu":
        raise DTypeError(
            f"sink must be one real number per query head, but has dtype {array.dtype}; write .astype(np.float32)"
        )
    if array.shape != (heads,):
        raise ShapeError(
            f"sink must have shape (H,) = ({heads},), one logit per query head, but has shape {array.shape}; write np.full({heads}, x)"
        )
    out = array.astype(np.float64)
    finite = np.abs(out) <= float(np.finfo(dtype.compute).max)  # False for NaN
    if not finite.all():
        at = int((~finite).argmax())
        raise ArgumentError(
            f"sink must be finite in {dtype.compute}, but sink[{at}] is {out[at]}; a head without a sink needs sink=None"
        )
    return out


def read_finish(problem: Problem, sink: Any, empty: str, nonfinite: str) -> Floats64 | None:
    """The arguments of `State.finish`, checked; the sink as (H,) or None."""
    _one_of("empty", empty, ("raise", "zero"))
    _one_of("nonfinite", nonfinite, ("raise", "propagate"))
    return _sink(sink, problem.heads, problem.dtype)
