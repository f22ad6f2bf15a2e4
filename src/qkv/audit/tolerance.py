"""How far a foreign kernel may be from the definition: `qkv.bounds`, widened by the arithmetic the kernel declares.

Nothing is known of the order in which a kernel adds and of how often it rescales, so every allowed key counts as a step
of its own. What a kernel may declare beyond that, u being the unit roundoff of the type its arrays have:

- `p-rounded`: weights are rounded to that type before they meet the values, the denominator from rounded or unrounded
  ones: 2u Σ w|v|, and the smallest number of the type per value for weights that underflow.
- `stepwise`: each intermediate result is rounded to that type: the scores three times (product, scale, bias) and
  the scaled operands before; ε_j = u·(3|s_j| + 4|scale|Σ|q||k|), and weights as above with 4u (exponential and quotient).
- `tf32`: products of operands rounded to 11 bits: ε_j = 2·2⁻¹¹·(1 + 2⁻¹¹)|scale|Σ|q||k|, weights and values likewise.
- `stale-max`: the maximum may lag by at most 2⁸ in base 2, so exponents are larger by that: ε_j = 2u·8·ln 2·(steps).

Scores off by ε_j move a mixture by at most Σ w_j (e^ε_j − 1)|v_j − o| / Σ w_j e^−ε_j (step 5 of `qkv.bounds`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv import bounds
from qkv.floats import FLOATS

from .call import Array, Call, stored

__all__ = ["ARITHMETIC", "Right", "right"]

#: What `Domain.arithmetic` may name.
ARITHMETIC = ("p-rounded", "stepwise", "tf32", "stale-max")

_TF32 = 2.0**-11


class Right(NamedTuple):
    """What the definition says of the judged rows.

    Attributes:
        parts: name -> (numbers, how far an answer may be from them).
        reach: allowed pairs, bias included, (B, H, rows, S).
    """

    parts: dict[str, tuple[Array, Array]]
    reach: Array


def right(call: Call, arithmetic: frozenset[str]) -> Right:
    """The right answer to a call and how far a kernel of this arithmetic may be from it."""
    B, H, G, _, S, _, _ = call.sizes
    query = call.query[:, :, call.judged]
    value = call.value
    cast = [stored(x, call.dtype) for x in (query, call.key, value)]
    options: dict[str, Any] = {
        "allowed": call.allowed(),
        "bias": call.added(),
        "bias_roundings": 3 if call.slopes is not None else 0,
        "scale": call.scale,
        "softcap": call.softcap,
        "sink": call.sink,
    }
    # Every allowed key may be a step of its own.
    options["merges"] = _reach(call).sum(-1)
    whole = bounds.bound(cast[0], cast[1], cast[2], call.dtype, **options)
    answer = whole.answer
    score_error, weight_unit, small = _declared(call, query, arithmetic)
    parts = {}
    extra, extra_lse = _widened(answer, _per_head(value, H), score_error, weight_unit, small)
    parts["output"] = (answer.output, whole.output + extra)
    parts["lse"] = (answer.lse, whole.lse + extra_lse)
    if "weights" in call.wants:
        # Weights are the output for values that are the unit vectors.
        unit = np.broadcast_to(np.eye(S), (B, G, S, S))
        as_output = bounds.bound(cast[0], cast[1], stored(unit, call.dtype), call.dtype, **options)
        more, _ = _widened(as_output.answer, _per_head(unit, H), score_error, weight_unit, small)
        parts["weights"] = (answer.weights, np.where(answer.reach, as_output.output + more, 0))
    if "grad" in call.wants:
        parts.update(_gradients(call, answer, arithmetic))
    must = np.asarray(whole.must_overflow)
    for name in ("output", "lse", "weights"):
        if name in parts and must.any():
            # Never a wrong finite number (D3).
            number, tolerance = parts[name]
            lost = must if name == "lse" else must[..., None]
            parts[name] = (np.where(lost, np.nan, number), tolerance)
    return Right(parts, answer.reach)


def _reach(call: Call) -> Array:
    bias, allowed = call.added(), call.allowed()
    return allowed if bias is None else allowed & ~np.isneginf(bias)


def _per_head(x: Array, heads: int) -> Array:
    return np.repeat(x, heads // x.shape[1], axis=1)


def _sizes(call: Call, query: Array) -> Array:
    """|scale| Σ|q||k| of each pair, non-finite operands as 0."""
    scale = query.shape[-1] ** -0.5 if call.scale is None else abs(call.scale)
    finite = [np.where(np.isfinite(x), np.abs(x), 0) for x in (query, _per_head(call.key, query.shape[1]))]
    return np.asarray(scale * np.einsum("bhld,bhsd->bhls", *finite))


def _declared(call: Call, query: Array, arithmetic: frozenset[str]) -> tuple[Any, float, float]:
    """(errors of the scores, relative error of the weights, absolute one) that the declared arithmetic adds."""
    kind = FLOATS[call.dtype]
    error: Any = 0.0
    weights = small = 0.0
    size = _sizes(call, query) if arithmetic else 0.0
    bias = call.added()
    if "p-rounded" in arithmetic:
        weights, small = 2 * kind.unit, kind.smallest
    if "stepwise" in arithmetic:
        added = 0.0 if bias is None else np.where(np.isfinite(bias), np.abs(bias), 0)
        error, weights, small = kind.unit * (7 * size + 3 * added), 4 * kind.unit, kind.smallest
    if "tf32" in arithmetic:
        error = error + 2 * _TF32 * (1 + _TF32) * size
        weights += 2 * _TF32
    if "stale-max" in arithmetic:
        error = error + float(np.finfo(kind.compute).eps) * 8 * float(np.log(2)) * call.sizes[4]
    return error, weights, small


def _widened(answer: Any, value: Array, error: Any, unit: float, small: float) -> tuple[Any, Any]:
    if isinstance(error, float) and error == 0 and unit == 0:
        return 0.0, 0.0
    weight = np.where(np.isfinite(answer.weights), answer.weights, 0)
    error = np.where(answer.reach, np.minimum(error, 50.0), 0)
    v = np.where(np.isfinite(value), value, 0).astype(weight.dtype)
    output = np.where(np.isfinite(answer.output), answer.output, 0)
    # A sink, or nothing, holds the rest of the mass at value 0.
    rest = np.maximum(1 - weight.sum(-1), 0)
    down = np.maximum((weight * np.exp(-error)).sum(-1) + rest, np.finfo(np.float64).tiny)
    moved = weight * np.expm1(error)
    distance = np.einsum("bhls,bhse->bhle", moved, np.abs(v)) + moved.sum(-1)[..., None] * np.abs(output)
    mass = np.einsum("bhls,bhse->bhle", weight * np.exp(error), np.abs(v))
    seen = np.where(answer.reach[..., None], np.abs(v)[:, :, None], 0)
    most = seen.max(-2, initial=0)
    out = np.minimum(distance / down[..., None], 2 * most) + unit * np.minimum(mass / down[..., None], most)
    lse = error.max(-1, initial=0) + unit * (1 + np.where(np.isfinite(answer.lse), np.abs(answer.lse), 0))
    return out + small * seen.sum(-2), lse


def _gradients(call: Call, answer: Any, arithmetic: frozenset[str]) -> dict[str, tuple[Array, Array]]:
    """Gradients of Σ output · cotangent by the weights of the definition, and how far off they may be.

    dv = Pᵀ do; dP = do vᵀ; dS = P (dP − Σ P dP); dq = scale dS k. Each is a sum of products whose absolute values are
    summed beside it; a computed one is off by the relative errors of its factors: weights e^2ε − 1, and as many
    roundings as there are terms.
    """
    B, H, G, _, S, D, E = call.sizes
    query, do = call.query[:, :, call.judged], np.asarray(call.cotangent)[:, :, call.judged]
    key, value = _per_head(call.key, H), _per_head(call.value, H)
    key, value, query = (np.where(np.isfinite(x), x, 0) for x in (key, value, query))
    scale = D**-0.5 if call.scale is None else call.scale
    P = np.asarray(answer.weights, np.float64)
    dP = np.einsum("bhle,bhse->bhls", do, value)
    abs_dP = np.einsum("bhle,bhse->bhls", np.abs(do), np.abs(value))
    dS = P * (dP - (P * dP).sum(-1, keepdims=True))
    abs_dS = P * (abs_dP + (P * abs_dP).sum(-1, keepdims=True))
    if call.softcap is not None:
        raw = scale * np.einsum("bhld,bhsd->bhls", query, key)
        slope = 1 - np.tanh(raw / call.softcap) ** 2
        dS, abs_dS = dS * slope, abs_dS
    numbers = {
        "dq": scale * np.einsum("bhls,bhsd->bhld", dS, key),
        "dk": scale * np.einsum("bhls,bhld->bhsd", dS, query),
        "dv": np.einsum("bhls,bhle->bhse", P, do),
    }
    sizes = {
        "dq": abs(scale) * np.einsum("bhls,bhsd->bhld", abs_dS, np.abs(key)),
        "dk": abs(scale) * np.einsum("bhls,bhld->bhsd", abs_dS, np.abs(query)),
        "dv": np.einsum("bhls,bhle->bhse", P, np.abs(do)),
    }
    kind = FLOATS[call.dtype]
    unit = float(np.finfo(kind.compute).eps) / 2
    spread = float(_sizes(call, query).max(initial=0))
    declared = kind.unit if arithmetic & {"p-rounded", "stepwise"} else _TF32 if "tf32" in arithmetic else unit
    terms = D + E + 3 * S + len(call.judged) * H // G + 20
    relative = np.expm1(2 * (D + 4) * declared * (1 + spread)) + terms * unit + 8 * declared + 2 * kind.unit
    out = {}
    for name, number in numbers.items():
        size = sizes[name]
        if name != "dq":
            number = number.reshape(B, G, H // G, *number.shape[2:]).sum(2)
            size = size.reshape(B, G, H // G, *size.shape[2:]).sum(2)
        out[name] = (number, relative * size + 2 * kind.smallest)
    return out
