"""Named ways to read a call: the conventions kernels follow where they do not follow the contract, and known faults.

A reading rewrites the call before the definition answers it, or the answer afterwards, so that every answer, right or
not, comes from the one definition. A reading that does not apply to a call gives None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import Array, Call
from .tolerance import Right, right

__all__ = ["Reading", "answer"]

Change = Callable[[Call], "Call | None"]
Finish = Callable[[Call, Right], "Right | None"]


@dataclass(frozen=True)
class Reading:
    """A named way to read calls.

    Attributes:
        name: what it is called in reports.
        change: rewrites the call, finish: rewrites the answer; None: leaves it.
        fault: nobody means it this way; a kernel that answers so is wrong.
    """

    name: str
    change: Change | None = None
    finish: Finish | None = None
    fault: bool = False


def answer(call: Call, reading: Reading, arithmetic: frozenset[str]) -> Right | None:
    """What a kernel with this reading answers; None where the reading does not apply."""
    changed: Call | None = call
    if reading.change is not None:
        changed = reading.change(call)
        if changed is None:
            return None
    assert changed is not None
    if changed.unsaid:
        return None
    out = right(changed, arithmetic)
    return out if reading.finish is None else reading.finish(changed, out)


# Writing answers anew. ---------------------------------------------------------------------------------------------


def _with(answer: Right, **parts: tuple[Array, Any]) -> Right:
    fresh = {k: (np.asarray(n, np.float64), np.broadcast_to(t, np.shape(n))) for k, (n, t) in parts.items()}
    return answer._replace(parts={**answer.parts, **fresh})


def _empty(answer: Right) -> Any:
    return ~answer.reach.any(-1)


def _empty_rows(numbers: Callable[[Call], Array] | float) -> Finish:
    """Rows without keys hold these numbers; their log-sum-exp is not asked."""

    def finish(call: Call, answer: Right) -> Right | None:
        rows = _empty(answer)
        if not rows.any() or call.sink is not None:
            return None
        n, tol = answer.parts["output"]
        want = numbers(call) if callable(numbers) else np.full_like(n, numbers)
        largest = np.abs(call.value[np.isfinite(call.value)]).max(initial=1.0)
        # Some of the order in which a mean is taken: as many roundings as keys, to the type of the arrays.
        unit = 2.0**-7 if call.dtype == "bfloat16" else 2.0**-10 if call.dtype == "float16" else 2.0**-23
        loose = unit * (call.sizes[4] + 2) * largest
        return _with(answer, output=(np.where(rows[..., None], want, n), np.where(rows[..., None], loose, tol)))

    return finish


def _mean_of_values(call: Call) -> Array:
    B, H, G, _, S, _, E = call.sizes
    value = np.repeat(call.value, H // G, axis=1)
    mean = value.mean(2, keepdims=True) if S else np.zeros((B, H, 1, E))
    return np.broadcast_to(mean, (B, H, len(call.judged), E))


def _unmasked(call: Call) -> Array:
    bare = call.but(
        mask=None,
        causal=False,
        window=None,
        lengths=None,
        segments=None,
        prefix=None,
        where=None,
        offsets=None,
        bias=None if call.bias is None else np.where(np.isneginf(call.bias), 0, call.bias),
        wants=frozenset(),
    )
    return right(bare, frozenset()).parts["output"][0]


EMPTY_NAN = Reading("a row without keys is NaN", finish=_empty_rows(float("nan")))
EMPTY_MEAN = Reading(
    "a row without keys is the mean of every V, forbidden ones included", finish=_empty_rows(_mean_of_values)
)
EMPTY_SOFTMAX = Reading("a row without keys ignores its mask", finish=_empty_rows(_unmasked))
EMPTY_ZERO = Reading("a row without keys is 0", finish=_empty_rows(0.0))


def _empty_in_every_head(call: Call, answer: Right) -> Right | None:
    rows = _empty(answer)
    if not rows.any() or call.sizes[1] < 2:
        return None
    n, tol = answer.parts["output"]
    return _with(answer, output=(np.where(rows.any(1, keepdims=True)[..., None], np.nan, n), tol))


EMPTY_NAN_HEADS = Reading("a row without keys is NaN, in its other heads as well", finish=_empty_in_every_head)
EMPTY = (EMPTY_NAN, EMPTY_MEAN, EMPTY_SOFTMAX, EMPTY_NAN_HEADS)


def _empty_lse(number: float, tolerance: float) -> Finish:
    def finish(call: Call, answer: Right) -> Right | None:
        rows = _empty(answer)
        if not rows.any() or "lse" not in call.wants:
            return None
        n, tol = answer.parts["lse"]
        return _with(answer, lse=(np.where(rows, number, n), np.where(rows, tolerance, tol)))

    return finish


LSE_PLUS = Reading("the log-sum-exp of a row without keys is +inf", finish=_empty_lse(np.inf, 0))
LSE_NAN = Reading("the log-sum-exp of a row without keys is NaN", finish=_empty_lse(np.nan, 0))
LSE_FINITE = Reading("the log-sum-exp of a row without keys is a finite stand-in", finish=_empty_lse(0, np.inf))
EMPTY_LSE = (LSE_PLUS, LSE_NAN, LSE_FINITE)


def _base_two(call: Call, answer: Right) -> Right | None:
    if "lse" not in call.wants:
        return None
    n, tol = answer.parts["lse"]
    return _with(
        answer,
        lse=(n / np.log(2), np.asarray(tol) / np.log(2) + 1e-15 + np.abs(np.where(np.isfinite(n), n, 0)) * 2.0**-22),
    )


def _sink_left_out_of_lse(call: Call, answer: Right) -> Right | None:
    if call.sink is None or "lse" not in call.wants:
        return None
    bare = right(call.but(sink=None), frozenset())
    return _with(answer, lse=bare.parts["lse"])


BASE_TWO = Reading("log-sum-exp in base 2", finish=_base_two)
LSE_WITHOUT_SINK = Reading("the log-sum-exp leaves the sink out", finish=_sink_left_out_of_lse)


def _nan_rows(zero: bool) -> Finish:
    """Rows that read a NaN are answered as if the bad keys were not there, or had the value 0."""

    def finish(call: Call, answer: Right) -> Right | None:
        n, _tol = answer.parts["output"]
        if not np.isnan(n).any():
            return None
        bad = ~(np.isfinite(call.key).all(-1) & np.isfinite(call.value).all(-1))
        if zero:
            clean = call.but(
                key=np.where(np.isfinite(call.key), call.key, 0), value=np.where(np.isfinite(call.value), call.value, 0)
            )
        else:
            B, H, G, L, S, _, _ = call.sizes
            keep = np.repeat(~bad, H // G, axis=1)[:, :, None]
            mask = keep if call.mask is None else keep & np.broadcast_to(call.mask, (B, H, L, S))
            clean = call.but(mask=mask)
        clean = clean.but(query=np.where(np.isfinite(clean.query), clean.query, 0))
        return _with(answer, output=right(clean, frozenset()).parts["output"])

    return finish


NAN_SKIPPED = Reading("keys that hold NaN or infinity are left out in silence", finish=_nan_rows(zero=False))
NAN_ZEROED = Reading("NaN and infinity are taken for 0", finish=_nan_rows(zero=True))


def _nan_columns(call: Call, answer: Right) -> Right | None:
    """Rows that reach a bad number are NaN only in the columns that hold it."""
    n, _tol = answer.parts["output"]
    bad_query = ~np.isfinite(call.query[:, :, call.judged]).all(-1)
    if not np.isnan(n).any() or bad_query.any() or not np.isfinite(call.key).all():
        return None
    clean = right(call.but(value=np.where(np.isfinite(call.value), call.value, 0)), frozenset())
    value = np.repeat(call.value, call.sizes[1] // call.sizes[2], axis=1)
    with np.errstate(invalid="ignore"):
        column = (answer.reach[..., None] & ~np.isfinite(value)[:, :, None]).any(-2)
    return _with(answer, output=(np.where(column, np.nan, clean.parts["output"][0]), clean.parts["output"][1]))


NAN_COLUMNS = Reading("only the columns of the output that read NaN are NaN", finish=_nan_columns)


def _infinite_columns(call: Call, answer: Right) -> Right | None:
    """Infinite values flow through as infinities."""
    if np.isnan(call.value).any() or not np.isinf(call.value).any():
        return None
    clean = right(call.but(value=np.where(np.isfinite(call.value), call.value, 0)), frozenset())
    value = np.repeat(call.value, call.sizes[1] // call.sizes[2], axis=1)[:, :, None]
    read = answer.reach[..., None]
    plus, minus = (read & (value == np.inf)).any(-2), (read & (value == -np.inf)).any(-2)
    want = np.where(plus & minus, np.nan, np.where(plus, np.inf, np.where(minus, -np.inf, clean.parts["output"][0])))
    return _with(answer, output=(want, clean.parts["output"][1]))


INFINITY_FLOWS = Reading("an infinite value makes its column infinite", finish=_infinite_columns)


def _signed_infinities(
    call: Call, answer: Right, nothing_left: float = float("nan"), through_mask: bool = False
) -> Right | None:
    """A key whose score is -inf has weight 0 and does no harm; one whose score is +inf or NaN does."""
    if (
        not (np.isinf(call.key).any() or np.isinf(call.query).any())
        or np.isnan(call.key).any()
        or np.isnan(call.query).any()
    ):
        return None
    B, H, G, L, S, _, _ = call.sizes
    with np.errstate(invalid="ignore"):
        score = np.einsum("bhld,bhsd->bhls", call.query, np.repeat(call.key, H // G, axis=1))
    low = np.isneginf(score)
    seen = np.ones_like(answer.reach) if through_mask else answer.reach
    harm: Any = (seen & (~np.isfinite(score) & ~low)[:, :, call.judged]).any(-1)
    keep = ~low if call.mask is None else ~low & np.broadcast_to(call.mask, (B, H, L, S))
    clean = call.but(
        mask=keep,
        query=np.where(np.isfinite(call.query), call.query, 0),
        key=np.where(np.isfinite(call.key), call.key, 0),
    )
    other = right(clean, frozenset())
    want, tolerance = other.parts["output"]
    left, read = (~_empty(x)[..., None] for x in (other, answer))
    want = np.where(left | ~read, want, nothing_left)
    return _with(answer, output=(np.where(harm[..., None], np.nan, want), tolerance))


MINUS_INFINITY_DROPPED = Reading(
    "a key whose score is -inf is left out, a row with nothing else is NaN", finish=_signed_infinities
)
MINUS_INFINITY_ZERO = Reading(
    "a key whose score is -inf is left out, a row with nothing else is 0",
    finish=lambda c, a: _signed_infinities(c, a, 0.0),
)


INFINITY_THROUGH_MASK = Reading(
    "-inf is added where forbidden, so a forbidden score of +inf is NaN; one of -inf is left out",
    finish=lambda c, a: _signed_infinities(c, a, 0.0, through_mask=True),
)


def _crossing(columns: bool, flows: bool = False) -> Finish:
    """0 times NaN: numbers that are not finite reach rows that may not read them."""

    def finish(call: Call, answer: Right) -> Right | None:
        _B, H, G, _, _, _, _ = call.sizes
        bad_value, bad_key = (~np.isfinite(np.repeat(x, H // G, axis=1)) for x in (call.value, call.key))
        if not (bad_value.any() if columns else bad_value.any() or bad_key.any()):
            return None
        if columns and (bad_key.any() or not np.isfinite(call.query).all()):
            return None
        clean = call.but(**{n: np.where(np.isfinite(x), x, 0) for n, x in (("key", call.key), ("value", call.value))})
        want, tolerance = right(clean, frozenset()).parts["output"]
        if flows:
            # A row that may read an infinity gets it; 0 times infinity is NaN.
            value = np.repeat(call.value, H // G, axis=1)
            if np.isnan(value).any() or np.isneginf(value).any():
                return None
            read = (answer.reach[..., None] & np.isinf(value)[:, :, None]).any(-2)
            idle = (~answer.reach[..., None] & np.isinf(value)[:, :, None]).any(-2)
            return _with(answer, output=(np.where(idle, np.nan, np.where(read, np.inf, want)), tolerance))
        hit = (
            bad_value.any(2)[:, :, None] if columns else (bad_value.any((2, 3)) | bad_key.any((2, 3)))[:, :, None, None]
        )
        return _with(answer, output=(np.where(hit, np.nan, want), tolerance))

    return finish


NAN_CROSSES = Reading(
    "0 times NaN: every row has NaN in the columns of such a value", finish=_crossing(columns=True), fault=True
)
INFINITY_CROSSES = Reading(
    "0 times infinity: rows that may not read it are NaN, those that may are infinite",
    finish=_crossing(columns=True, flows=True),
    fault=True,
)
NAN_FILLS = Reading("NaN in one key or value fills every row", finish=_crossing(columns=False), fault=True)


# Positions and windows. --------------------------------------------------------------------------------------------


def _aligned(where: str) -> Change:
    return lambda call: call.but(align=where) if call.positional and call.align != where else None


def _aligned_lengths(call: Call) -> Call | None:
    """The last query at the end of its sequence, also where there are as many queries as keys."""
    _B, _, _, L, S, _, _ = call.sizes
    if call.lengths is None or not call.causal or (L != S and call.align == "end"):
        return None
    later = np.arange(S) <= (np.arange(L) + (call.lengths - L)[:, None])[:, None, :, None]
    return call.but(causal=False, mask=later if call.mask is None else later & call.mask)


ALIGN_LENGTHS = Reading("the last query stands at the end of its length, also where L = S", change=_aligned_lengths)
ALIGN_START = Reading("the queries stand at the start of the keys", change=_aligned("start"))
ALIGN_END = Reading("the queries stand at the end of the keys", change=_aligned("end"))


def _aligned_end_of_all(call: Call) -> Call | None:
    """At the end of all keys, whatever the lengths say."""
    _B, _, _, L, S, _, _ = call.sizes
    if call.lengths is None or L == S or not call.causal:
        return None
    later = np.arange(S) <= np.arange(L)[:, None] + S - L
    mask = later if call.mask is None else later & call.mask
    return call.but(causal=False, mask=mask)


ALIGN_ALL = Reading("the queries stand at the end of all keys, whatever the lengths", change=_aligned_end_of_all)


def _window(left: Callable[[int], int | None], right_: Callable[[int], int | None]) -> Change:
    def change(call: Call) -> Call | None:
        if call.window is None:
            return None
        old = call.window
        new = tuple(None if n is None else f(n) for n, f in zip(old, (left, right_), strict=True))
        if any(n is not None and n < 0 for n in new):
            # A window in which not even the query's own key is left.
            return call.but(window=None, mask=np.zeros((1, 1), np.bool_)) if new != old else None
        return call.but(window=new) if new != old else None

    return change


def _same(n: int) -> int:
    return n


WINDOW_W = Reading("a window of W has W keys, the query's own included", change=_window(lambda n: n - 1, _same))
WINDOW_W2 = Reading("a window of W reaches W + 1 keys back", change=_window(lambda n: n + 1, _same))
WINDOW_BOTH = Reading(
    "a window of W reaches W keys to both sides",
    change=lambda c: c.but(window=(c.window[0], c.window[0])) if c.window and c.window[1] != c.window[0] else None,
)
WINDOW_BOTH_LESS = Reading(
    "a window of W reaches W - 1 keys to both sides",
    change=lambda c: c.but(window=(c.window[0] - 1, c.window[0] - 1)) if c.window and c.window[0] else None,
)
WINDOW_LEFT = Reading("a window looks back only", change=_window(_same, lambda n: 0))
WINDOWS = (WINDOW_W, WINDOW_W2, WINDOW_BOTH, WINDOW_BOTH_LESS, WINDOW_LEFT)


# Masks, heads, scores. ---------------------------------------------------------------------------------------------

TRUE_DROPS = Reading("True = this pair is dropped", change=lambda c: None if c.mask is None else c.but(mask=~c.mask))


def _added_mask(call: Call) -> Call | None:
    if call.mask is None:
        return None
    return call.but(mask=None, bias=call.mask.astype(np.float64) if call.bias is None else call.bias + call.mask)


MASK_ADDED = Reading("0 and 1 of a mask are added to the scores", change=_added_mask)
#: What a kernel in which True drops is handed is the opposite mask.
DROPS_ADDED = Reading(MASK_ADDED.name, change=lambda c: None if c.mask is None else _added_mask(c.but(mask=~c.mask)))


def _repeat_keys(call: Call, index: Array) -> Call:
    return call.but(key=call.key[:, index], value=call.value[:, index])


def _interleaved(call: Call) -> Call | None:
    _, H, G, *_ = call.sizes
    return _repeat_keys(call, np.arange(H) % G) if 1 < G < H else None


INTERLEAVED = Reading("query head h reads key head h mod G", change=_interleaved)
DEFAULT_SCALE = Reading(
    "the scale is ignored, 1/sqrt(D) taken", change=lambda c: None if c.scale is None else c.but(scale=None)
)
NO_SCALE = Reading(
    "no scale is applied", change=lambda c: c.but(scale=1.0) if c.scale is None and c.sizes[5] > 1 else None
)
NEGATIVE_SCALE = Reading(
    "a negative scale gives NaN, since its root is taken",
    finish=lambda c, a: (
        _with(a, output=(np.full_like(a.parts["output"][0], np.nan), 0.0))
        if c.scale is not None and c.scale < 0
        else None
    ),
    fault=True,
)
ROOT_SCALE = Reading(
    "the scale multiplies 1/sqrt(D)",
    change=lambda c: None if c.scale is None else c.but(scale=c.scale * c.sizes[5] ** -0.5),
)


def _capped_after(call: Call) -> Call | None:
    """c · tanh((s + b) / c): the score such that capping it before the bias gives this."""
    if call.softcap is None or call.bias is None or not np.isfinite(call.bias).all():
        return None
    return _as_bias(call, lambda raw, b, c: c * np.tanh((raw + b) / c))


def _capped_before_scale(call: Call) -> Call | None:
    if call.softcap is None:
        return None
    scale = call.sizes[5] ** -0.5 if call.scale is None else call.scale
    return _as_bias(call, lambda raw, b, c: scale * c * np.tanh(raw / scale / c) + b) if scale != 1 else None


def _as_bias(call: Call, score: Callable[[Array, Any, float], Array]) -> Call:
    """The call whose scores are all in its bias."""
    B, H, _, L, S, D, _ = call.sizes
    scale = D**-0.5 if call.scale is None else call.scale
    raw = scale * np.einsum("bhld,bhsd->bhls", call.query, np.repeat(call.key, H // call.sizes[2], axis=1))
    bias = np.zeros((1, 1)) if call.bias is None else call.bias
    cap = np.inf if call.softcap is None else call.softcap
    return call.but(bias=score(raw, np.broadcast_to(bias, (B, H, L, S)), cap), softcap=None, scale=0.0)


SOFTCAP_AFTER = Reading("the softcap acts after the bias", change=_capped_after)
SOFTCAP_FIRST = Reading("the softcap acts before the scale", change=_capped_before_scale)
BIAS_SCALED = Reading(
    "the bias is scaled like a score",
    change=lambda c: (
        None if c.bias is None else c.but(bias=c.bias * (c.sizes[5] ** -0.5 if c.scale is None else c.scale))
    ),
)
ALIBI_SIGNED = Reading("alibi adds slope * (j - position), also for later keys", change=lambda c: _signed_alibi(c))


def _signed_alibi(call: Call) -> Call | None:
    if call.slopes is None or call.sizes[3] != call.sizes[4]:
        return None
    _, _, _, L, S, _, _ = call.sizes
    return call.but(slopes=None, bias=call.slopes[:, None, None] * (np.arange(S) - np.arange(L)[:, None]))


BROADCAST_BATCH = Reading(
    "key and value of batch 1 serve every batch",
    change=lambda c: (
        None
        if c.key.shape[0] == c.query.shape[0]
        else c.but(
            key=np.broadcast_to(c.key, (c.query.shape[0], *c.key.shape[1:])),
            value=np.broadcast_to(c.value, (c.query.shape[0], *c.value.shape[1:])),
        )
    ),
)


def _set_to(number: float) -> Change:
    """Scores of forbidden pairs are set to a number."""

    def change(call: Call) -> Call | None:
        if call.mask is None or call.rows is not None:
            return None
        B, H, _, L, S, _, _ = call.sizes
        mask = np.broadcast_to(call.mask, (B, H, L, S))
        cap = call.softcap
        return _as_bias(
            call.but(mask=None),
            lambda raw, b, c: np.where(mask, (raw if cap is None else c * np.tanh(raw / c)) + b, number),
        )

    return change


def _masked_before_cap(call: Call) -> Call | None:
    if call.softcap is None or call.mask is None:
        return None
    return _set_to(-call.softcap)(call)


SOFTCAP_MASK = Reading(
    "the softcap acts after the mask, so forbidden pairs have the score -c", change=_masked_before_cap
)
SET_LOW = Reading("forbidden scores are set to -0.7 of the largest number", change=_set_to(-0.7 * 3.4028235e38))
SET_MIN = Reading("forbidden scores are set to the most negative number", change=_set_to(-3.4028235e38))
AS_BOOLEANS = Reading("0 and 1 are read as booleans", change=lambda c: c)
PROMOTED = Reading("mixed types are promoted", change=lambda c: c)


def _infinite_mixture(call: Call, answer: Right) -> Right:
    n, _ = answer.parts["output"]
    return _with(answer, output=(np.where(np.abs(n) > 1e38, np.copysign(np.inf, n), n), 0.0))


MIXTURE_INFINITE = Reading("values whose sum overflows give infinity", finish=_infinite_mixture)


def both(first: Reading, second: Reading) -> Reading:
    """Two conventions at once: the call read as the first says, its answer finished as the second says."""
    return Reading(f"{first.name}; {second.name}", first.change, second.finish, first.fault or second.fault)


def _as_many_keys_as_values(call: Call) -> Call | None:
    count = call.value.shape[2]
    return None if count >= call.sizes[4] else call.but(key=call.key[:, :, :count])


KEYS_WITHOUT_VALUES = Reading("keys that have no value are left out in silence", change=_as_many_keys_as_values)
