"""What a kernel can take, and how a case is lifted into that without losing its point.

width: zero columns appended, the scale kept · length: every key repeated equally often, or, under causal rows, rows and
keys appended that no judged row reads · dtype: inputs rounded once, and the right answer is that of the rounded ones ·
a rule the kernel has no argument for becomes a mask, a mask becomes a bias of -inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from qkv.errors import ArgumentError
from qkv.floats import FLOATS

from .call import Call, rounded
from .tolerance import ARITHMETIC

__all__ = ["FEATURES", "CannotExpressError", "Domain", "lift"]

#: Everything `accepts` may name.
FEATURES = {
    "mask": "boolean mask, broadcast to (B, H, L, S)",
    "bias": "float array added to the scores",
    "mask+bias": "mask and bias in one call",
    "causal": "flag: a query reads itself and what came before",
    "window": "(left, right): keys besides the query's own",
    "lengths": "how many keys each sequence has, (B,)",
    "segments": "ids of queries and keys, equal ids see each other",
    "prefix": "so many first keys for everybody, causal after them",
    "where": "a function of (batch, head, position, key)",
    "offsets": "where packed sequences begin and end: cu_seqlens of queries and keys",
    "align": "'start' or 'end' for causal with L != S",
    "alibi": "slopes, (H,)",
    "gqa": "fewer key heads than query heads",
    "scale": "factor of the scores",
    "softcap": "c * tanh(score / c)",
    "sink": "one logit per head in the denominator",
    "lse": "returns the log-sum-exp",
    "weights": "returns the weights",
    "grad": "gradients of query, key and value",
    "top": "returns the largest weights and their keys",
    "cross": "L != S",
    "value-width": "E != D",
}

#: Rules that can also be said by a dense mask.
_RULES = ("causal", "window", "lengths", "segments", "prefix", "where", "offsets")
_UNSAID: dict[str, Any] = dict.fromkeys(_RULES) | {"causal": False}


class CannotExpressError(Exception):
    """A case that cannot be said to this kernel; the text says why."""


@dataclass(frozen=True)
class Domain:
    """What a kernel can take.

    Attributes:
        accepts: names of `FEATURES`.
        dtypes: float types of its arrays, the first one is used where one is enough.
        arrays: "numpy", "torch" or "jax". device: where they are. layout: "bhld", "blhd", or "packed": (T, H, D) and
            offsets, the log-sum-exp (H, T), no batch axis, so no masks.
        widths: head widths it is made for, ascending; empty: any. query_multiple, key_multiple: what L and S must divide by.
        longest: most keys (and queries) that a case may have.
        strides: whether arrays may lie in memory as they like ("plain" only, or any).
        polarity: "keep" or "drop", what it documents True of a mask to mean; other cases are said to it in that way.
        arithmetic: names of `tolerance.ARITHMETIC`.
        promises: what its documentation promises beyond `core`: "contract" (the clauses of `edges`), "nan isolation",
            "bit invariance", "repeatability".
        documented: (case, name of a convention, where the library says so): no fault, but another meaning.
        seconds, memory: limits of one call, and bytes beyond what the loaded library takes.
    """

    accepts: frozenset[str] = frozenset({"cross", "value-width"})
    dtypes: tuple[str, ...] = ("float32",)
    arrays: str = "numpy"
    device: str = "cpu"
    layout: str = "bhld"
    widths: tuple[int, ...] = ()
    query_multiple: int = 1
    key_multiple: int = 1
    longest: int = 8192
    strides: bool = True
    polarity: str = "keep"
    arithmetic: frozenset[str] = frozenset()
    promises: frozenset[str] = frozenset()
    documented: tuple[tuple[str, str, str], ...] = ()
    seconds: float = 20.0
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        _known("accepts", self.accepts, FEATURES)
        _known("dtypes", self.dtypes, FLOATS)
        _known("arithmetic", self.arithmetic, ARITHMETIC)
        _known("arrays", [self.arrays], ("numpy", "torch", "jax"))
        _known("layout", [self.layout], ("bhld", "blhd", "packed"))
        _known("polarity", [self.polarity], ("keep", "drop"))
        if min(self.query_multiple, self.key_multiple, *self.widths, 1) < 1:
            raise ArgumentError("widths and multiples of a domain must be at least 1")
        if not self.dtypes:
            raise ArgumentError("dtypes of a domain must name at least one float type")
        if self.device != "cpu" and self.arrays != "torch":
            raise ArgumentError(
                f"device is for torch arrays, but {self.device!r} came with arrays of {self.arrays}; say arrays torch as well"
            )
        odd = self.accepts & {"mask", "bias", "alibi", "weights", "top"} if self.layout == "packed" else set()
        if odd:
            raise ArgumentError(
                f"packed arrays have no batch axis, so their kernel cannot accept {', '.join(sorted(odd))}"
            )

    def but(self, **changes: Any) -> Domain:
        """The same domain with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON and for the child process."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            k: sorted(v) if isinstance(v, frozenset) else list(v) if isinstance(v, tuple) else v
            for k, v in plain.items()
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Domain:
        """The inverse of `to_dict`."""
        made: dict[str, Any] = {}
        for f in fields(cls):
            if f.name in plain:
                kind = type(f.default)
                made[f.name] = kind(plain[f.name]) if kind in (frozenset, tuple) else plain[f.name]
        return cls(**made)


def _known(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    for word in given:
        if word not in known:
            raise ArgumentError(f"{name} must be among {', '.join(known)}, but {word!r} came")


def lift(call: Call, domain: Domain, dtype: str, about: frozenset[str] = frozenset()) -> Call:
    """The call in the kernel's domain.

    Args:
        about: features that have to be said by the kernel's own argument, because the case is about it.

    Raises:
        CannotExpressError: the kernel cannot be asked this.
    """
    if domain.layout == "packed":
        if not call.sizes[0] or call.strides not in ("plain", "readonly"):
            raise CannotExpressError("packed arrays have no batch axis and no strides of their own")
        # Both are said by the offsets.
        domain = domain.but(accepts=domain.accepts | {"lengths", "offsets"})
    for name in about - domain.accepts:
        raise CannotExpressError(f"no {name}" if name in FEATURES else name)
    for name in call.wants - domain.accepts:
        raise CannotExpressError(f"no {name}")
    if call.strides not in ("plain", "readonly") and not domain.strides:
        raise CannotExpressError("arrays must be contiguous")
    call = _respell(call, domain, about)
    call = _heads(call, domain, about)
    call = _width(call, domain)
    call = _length(call, domain)
    _B, _H, _G, L, S, D, _E = call.sizes
    if max(L, S) > domain.longest:
        raise CannotExpressError(f"longer than {domain.longest}")
    if L != S and "cross" not in domain.accepts:
        raise CannotExpressError("no cross")
    if call.scale is not None and "scale" not in domain.accepts:
        # Folded into the query, before it is rounded.
        call = call.but(query=call.query * (call.scale * math.sqrt(D)), scale=None)
    return _round(call, dtype)


def _respell(call: Call, domain: Domain, about: frozenset[str]) -> Call:
    if call.offsets is not None and "offsets" not in domain.accepts and "segments" in domain.accepts:
        call = call.but(offsets=None, segments=call.packed_ids())
    missing = [n for n in _RULES if _said(call, n) and n not in domain.accepts]
    for name in missing:
        if call.unsaid:
            raise CannotExpressError(f"no {name}")
    if missing:
        kept = {n: getattr(call, n) for n in _RULES if n not in missing}
        rules = call.but(mask=None, rows=None, **{**_UNSAID, **{n: getattr(call, n) for n in missing}})
        dense = _slim(rules.allowed())
        mask = dense if call.mask is None else call.mask & dense
        call = call.but(mask=mask, **{**_UNSAID, **kept})
    if call.align is not None and call.positional and call.sizes[3] != call.sizes[4] and "align" not in domain.accepts:
        raise CannotExpressError("no align")
    if call.slopes is not None and "alibi" not in domain.accepts:
        if call.unsaid or call.bias is not None:
            raise CannotExpressError("no alibi")
        whole = call.but(rows=None)
        call = call.but(bias=whole.added(), slopes=None)
    if call.mask is not None and "mask" not in domain.accepts:
        if "raw mask" in call.odd or "bias" not in domain.accepts:
            raise CannotExpressError("no mask")
        low = np.where(call.mask, 0.0, -np.inf)
        call = call.but(mask=None, bias=low if call.bias is None else np.where(call.mask, call.bias, -np.inf))
    for name in ("bias", "softcap", "sink"):
        if getattr(call, name) is not None and name not in domain.accepts:
            raise CannotExpressError(f"no {name}")
    if call.mask is not None and call.bias is not None and "mask+bias" not in domain.accepts:
        bias = np.where(call.mask, call.bias, -np.inf)
        call = call.but(mask=None, bias=bias)
    return call


def _said(call: Call, name: str) -> bool:
    value = getattr(call, name)
    return value is not None and value is not False


def _slim(dense: Any) -> Any:
    """A dense mask with equal heads and batches told once."""
    for axis in (0, 1):
        if dense.shape[axis] > 1 and (dense == dense.take([0], axis)).all():
            dense = dense.take([0], axis)
    return dense


def _heads(call: Call, domain: Domain, about: frozenset[str]) -> Call:
    _, H, G, *_ = call.sizes
    if H == G or "gqa" in domain.accepts or H % max(G, 1):
        return call
    return call.but(key=np.repeat(call.key, H // G, axis=1), value=np.repeat(call.value, H // G, axis=1))


def _padded(x: Any, axis: int, count: int) -> Any:
    width = [(0, 0)] * x.ndim
    width[axis] = (0, count)
    return np.pad(x, width)


def _width(call: Call, domain: Domain) -> Call:
    *_, D, E = call.sizes
    if call.key.shape[-1] != D or not D or not E:
        return call
    new_d, new_e = (_fitting(n, domain.widths) for n in (D, E))
    if "value-width" not in domain.accepts:
        new_d = new_e = max(new_d, new_e)
    if (new_d, new_e) == (D, E):
        return call
    scale = call.scale if call.scale is not None else (D**-0.5 if new_d != D else None)
    cotangent = None if call.cotangent is None else _padded(call.cotangent, -1, new_e - E)
    if "zero padded query" not in call.odd:
        call = call.but(query=_padded(call.query, -1, new_d - D), key=_padded(call.key, -1, new_d - D))
    return call.but(value=_padded(call.value, -1, new_e - E), scale=scale, cotangent=cotangent)


def _fitting(width: int, widths: tuple[int, ...]) -> int:
    if not widths:
        return width
    for wide in widths:
        if wide >= width:
            return wide
    raise CannotExpressError(f"no head width of {width} or more")


def _length(call: Call, domain: Domain) -> Call:
    _, _, _, L, S, _, _ = call.sizes
    if L % domain.query_multiple == 0 and S % domain.key_multiple == 0:
        return call
    if L == 0 or S == 0:
        raise CannotExpressError("no length 0")
    rows = tuple(call.judged)
    if call.positional:
        if L != S or call.where or (call.window is not None and call.window[1] != 0 and not call.causal):
            raise CannotExpressError("positional rules with these lengths")
        step = math.lcm(domain.query_multiple, domain.key_multiple)
        new = -(-L // step) * step
        return _more_rows(_more_keys(call, new - S), new - L).but(rows=rows)
    times = domain.key_multiple // math.gcd(S, domain.key_multiple)
    call = _repeated_keys(call, times) if times > 1 else call
    new = -(-L // domain.query_multiple) * domain.query_multiple
    return _more_rows(call, new - L).but(rows=rows) if new > L else call


def _more_keys(call: Call, count: int) -> Call:
    """Keys after all others; only rows after all judged ones read them."""
    out = call.but(key=_padded(call.key, 2, count), value=_padded(call.value, 2, count))
    for name in ("mask", "bias"):
        array = getattr(call, name)
        if array is not None and array.shape[-1] > 1:
            out = out.but(**{name: np.concatenate([array, array[..., -1:].repeat(count, -1)], -1)})
    if call.segments is not None:
        out = out.but(segments=(call.segments[0], np.append(call.segments[1], call.segments[1][-1:].repeat(count))))
    if call.offsets is not None:
        out = out.but(offsets=(call.offsets[0], _last_longer(call.offsets[1], count)))
    return out


def _last_longer(offsets: Any, count: int) -> Any:
    return np.append(offsets[:-1], offsets[-1] + count)


def _more_rows(call: Call, count: int) -> Call:
    def more(x: Any, axis: int) -> Any:
        last = x.take([-1], axis).repeat(count, axis)
        return np.concatenate([x, last], axis)

    out = call.but(query=more(call.query, 2))
    for name in ("mask", "bias"):
        array = getattr(call, name)
        if array is not None and array.shape[-2] > 1:
            out = out.but(**{name: more(array, array.ndim - 2)})
    if call.segments is not None:
        out = out.but(segments=(np.append(call.segments[0], call.segments[0][-1:].repeat(count)), call.segments[1]))
    if call.offsets is not None:
        out = out.but(offsets=(_last_longer(call.offsets[0], count), call.offsets[1]))
    if call.cotangent is not None:
        out = out.but(cotangent=_padded(call.cotangent, 2, count))
    return out


def _repeated_keys(call: Call, times: int) -> Call:
    out = call.but(key=call.key.repeat(times, 2), value=call.value.repeat(times, 2))
    for name in ("mask", "bias"):
        array = getattr(call, name)
        if array is not None and array.shape[-1] > 1:
            out = out.but(**{name: array.repeat(times, -1)})
    if call.lengths is not None:
        out = out.but(lengths=call.lengths * times)
    if call.segments is not None:
        out = out.but(segments=(call.segments[0], call.segments[1].repeat(times)))
    if call.offsets is not None:
        out = out.but(offsets=(call.offsets[0], call.offsets[1] * times))
    return out


def _round(call: Call, dtype: str) -> Call:
    given = {n: rounded(getattr(call, n), dtype) for n in ("query", "key", "value")}
    if call.key_dtype is not None:
        given.update({n: rounded(given[n], call.key_dtype) for n in ("key", "value")})
    if call.bias is not None:
        given["bias"] = rounded(call.bias, dtype)
    if call.cotangent is not None:
        given["cotangent"] = rounded(call.cotangent, dtype)
    if call.sink is not None:
        given["sink"] = rounded(call.sink, "float32")
    if call.slopes is not None:
        given["slopes"] = rounded(call.slopes, "float32")
    return call.but(dtype=dtype, **given)
