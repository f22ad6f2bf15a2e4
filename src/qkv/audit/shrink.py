"""Make a failing call small: fewer batches, heads, rows, keys, columns, simpler numbers, fewer arguments.

The call is shrunk before it is lifted, and lifted anew for each trial, so that it stays in the kernel's domain. A trial
counts when it fails in the same way: the same verdict with the same name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .call import Call

__all__ = ["shrink"]


def shrink(
    call: Call,
    fails: Callable[[Call], bool],
    at: tuple[int, ...],
    *,
    trials: int = 150,
    seconds: float = 8.0,
    clock: Callable[[], float] = time.thread_time,
) -> Call:
    """The smallest call found that still fails.

    Args:
        fails: whether a call fails in the same way. at: (batch, head, row, column) of the first number that is wrong.
        trials, seconds: when to stop, by a clock that counts work and not the waiting on a busy machine, so that the
            same call is found there.
    """
    until = clock() + seconds
    left = trials
    progress = True
    while progress:
        progress = False
        candidates = _smaller(call, at)
        while True:
            try:
                candidate = next(candidates)
            except StopIteration:
                break
            except (ValueError, IndexError):
                # Shapes that are wrong on purpose fit no scissors.
                break
            if left <= 0 or clock() > until:
                return call
            left -= 1
            try:
                worked = fails(candidate)
            except (ValueError, IndexError, TypeError, ArithmeticError, AssertionError, KeyError):
                continue
            if worked:
                call, at, progress = candidate, (), True
                break
    return call


def _smaller(call: Call, at: tuple[int, ...]) -> Iterator[Call]:
    """Candidates, the boldest first."""
    yield from _bold(call, at)
    yield from _fewer_batches(call, at)
    yield from _fewer_heads(call, at)
    yield from _fewer_rows(call, at)
    yield from _fewer_keys(call)
    yield from _fewer_arguments(call)
    yield from _fewer_columns(call)
    yield from _simpler(call)


def _bold(call: Call, at: tuple[int, ...]) -> Iterator[Call]:
    """Long calls take long, so everything at once: one row, one column, equal scores, the large values near the row."""
    if call.rows is None or len(at) < 3 or not (call.query.any() or call.key.any()):
        return
    row = at[2] if at[2] in call.rows else call.rows[0]
    _, _, _, L, S, _, E = call.sizes
    column = min(at[3], E - 1) if len(at) > 3 else 0
    value = call.value[..., column : column + 1]
    large = np.abs(value) >= 0.01 * np.abs(value).max()
    near = np.abs(np.arange(S) - row)[None, None, :, None] <= (300 if L == S else S)
    flat = call.but(query=np.zeros_like(call.query), key=np.zeros_like(call.key), rows=(row,))
    yield flat.but(value=np.where(large & near, value, 0.0))
    yield flat.but(value=np.where(large, value, 0.0))
    yield flat.but(value=value)


def _per_pair(call: Call, axis: int, index: Any) -> dict[str, Any]:
    """Mask and bias with one of their axes picked, counted from the right (-4 batch, -3 head, -2 row, -1 key)."""
    out = {}
    for name in ("mask", "bias"):
        array = getattr(call, name)
        if array is not None and array.ndim >= -axis and array.shape[axis] > 1:
            out[name] = np.take(array, index, axis)
    return out


def _fewer_batches(call: Call, at: tuple[int, ...]) -> Iterator[Call]:
    B = call.sizes[0]
    if B < 2 or call.key.shape[0] != B:
        return
    for b in dict.fromkeys([at[0] if at else 0, 0, B - 1]):
        if b >= B:
            continue
        picked = {n: getattr(call, n)[b : b + 1] for n in ("query", "key", "value")}
        if call.lengths is not None:
            picked["lengths"] = call.lengths[b : b + 1]
        if call.cotangent is not None:
            picked["cotangent"] = call.cotangent[b : b + 1]
        yield call.but(**picked, **_per_pair(call, -4, [b]))


def _fewer_heads(call: Call, at: tuple[int, ...]) -> Iterator[Call]:
    _, H, G, *_ = call.sizes
    if H < 2 or H % G:
        return
    for heads in _head_choices(H, G, at):
        share = H // G
        groups = sorted({h // share for h in heads})
        if len(heads) % len(groups):
            continue
        picked: dict[str, Any] = {
            "query": call.query[:, heads],
            "key": call.key[:, groups],
            "value": call.value[:, groups],
        }
        for name in ("sink", "slopes"):
            if getattr(call, name) is not None:
                picked[name] = getattr(call, name)[heads]
        if call.cotangent is not None:
            picked["cotangent"] = call.cotangent[:, heads]
        yield call.but(**picked, **_per_pair(call, -3, heads))


def _head_choices(H: int, G: int, at: tuple[int, ...]) -> Iterator[list[int]]:
    share = H // G
    for h in dict.fromkeys([at[1] if len(at) > 1 else 0, 0, H - 1]):
        if h < H:
            yield [h]
    if G > 1 and share > 1:
        # Two groups of two heads: the smallest place in which heads can be mixed up.
        yield [0, 1, share, share + 1]
        yield list(range(2 * share))


def _fewer_rows(call: Call, at: tuple[int, ...]) -> Iterator[Call]:
    _, _, _, L, S, _, _ = call.sizes
    if call.rows is not None:
        choice = [r for r in call.rows if len(at) > 2 and r == at[2]] or [call.rows[0]]
        if len(call.rows) > 1:
            yield call.but(rows=tuple(choice))
            yield call.but(rows=call.rows[: len(call.rows) // 2])
            yield call.but(rows=call.rows[len(call.rows) // 2 :])
        if L > 1 and len(call.rows) == 1 and call.positional and L == S:
            for n in (call.rows[0] + 1, call.rows[0] + 2, L // 2):
                if call.rows[0] < n < L:
                    yield _prefix(call, n)
        return
    if L < 2:
        return
    if not call.positional or call.sizes[3] != call.sizes[4]:
        row = at[2] if len(at) > 2 and at[2] < L else 0
        for rows in ([row], list(range(L // 2)), list(range(L // 2, L)), list(range(L - 1)), list(range(1, L))):
            if 0 < len(rows) < L:
                yield _rows(call, rows)
        return
    for n in dict.fromkeys((1, 2, 3, L // 2, L - 1)):
        if 0 < n < L:
            yield _prefix(call, n)
    for n in dict.fromkeys((L // 2, 1)):
        if 0 < n < L:
            yield _both_axes(call, list(range(n, L)))


def _rows(call: Call, rows: list[int]) -> Call:
    picked: dict[str, Any] = {"query": call.query[:, :, rows], **_per_pair(call, -2, rows)}
    if call.cotangent is not None:
        picked["cotangent"] = call.cotangent[:, :, rows]
    if call.segments is not None:
        picked["segments"] = (call.segments[0][rows], call.segments[1])
    if call.offsets is not None:
        picked["offsets"] = (_counted(call.offsets[0], rows), call.offsets[1])
    return call.but(**picked)


def _prefix(call: Call, n: int) -> Call:
    out = _both_axes(call, list(range(n)))
    return out if call.rows is None else out.but(rows=tuple(r for r in call.rows if r < n))


def _both_axes(call: Call, kept: list[int]) -> Call:
    return _keys(_rows(call, kept), kept)


def _keys(call: Call, kept: list[int]) -> Call:
    picked: dict[str, Any] = {"key": call.key[:, :, kept], "value": call.value[:, :, kept], **_per_pair(call, -1, kept)}
    if call.lengths is not None:
        picked["lengths"] = np.array([sum(j < n for j in kept) for n in call.lengths])
    if call.segments is not None:
        picked["segments"] = (call.segments[0], call.segments[1][kept])
    if call.offsets is not None:
        picked["offsets"] = (call.offsets[0], _counted(call.offsets[1], kept))
    return call.but(**picked)


def _counted(offsets: Any, kept: list[int]) -> Any:
    """Where packed sequences begin once only these are kept."""
    return np.array([sum(j < at for j in kept) for at in offsets])


def _fewer_keys(call: Call) -> Iterator[Call]:
    _, _, _, L, S, _, _ = call.sizes
    if S < 2 or (call.positional and L == S) or (call.rows is not None and L == S):
        return
    every = list(range(S))
    step = S // 2
    while step:
        for start in range(0, S, step):
            kept = every[:start] + every[start + step :]
            if kept:
                yield _keys(call, kept)
            if start // step > 8:
                break
        step //= 2


def _fewer_arguments(call: Call) -> Iterator[Call]:
    for name, plain in (
        ("bias", None),
        ("mask", None),
        ("softcap", None),
        ("sink", None),
        ("slopes", None),
        ("window", None),
        ("lengths", None),
        ("segments", None),
        ("prefix", None),
        ("where", None),
        ("offsets", None),
        ("causal", False),
        ("scale", None),
        ("wants", frozenset()),
    ):
        if (
            getattr(call, name) not in (None, False, frozenset())
            if not isinstance(getattr(call, name), np.ndarray)
            else True
        ):
            yield call.but(**{name: plain}, **({"cotangent": None} if name == "wants" else {}))
    for name in ("mask", "bias"):
        array = getattr(call, name)
        if array is not None and array.ndim == 4:
            for axis in (0, 1, 2):
                if array.shape[axis] > 1:
                    yield call.but(**{name: array.take([0], axis)})


def _fewer_columns(call: Call) -> Iterator[Call]:
    *_, D, E = call.sizes
    if call.key.shape[-1] == D and D > 1:
        for n in dict.fromkeys((1, D // 2)):
            yield call.but(query=call.query[..., :n], key=call.key[..., :n])
    if E > 1:
        for e in dict.fromkeys((0, E - 1)):
            yield call.but(
                value=call.value[..., e : e + 1],
                cotangent=None if call.cotangent is None else call.cotangent[..., e : e + 1],
            )
        for half in (slice(0, E // 2), slice(E // 2, E)):
            yield call.but(
                value=call.value[..., half], cotangent=None if call.cotangent is None else call.cotangent[..., half]
            )


def _simpler(call: Call) -> Iterator[Call]:
    for name in ("query", "key"):
        array = getattr(call, name)
        if array.any():
            yield call.but(**{name: np.zeros_like(array)})
    if call.value.size and np.isfinite(call.value).all():
        S = call.sizes[4]
        for value in (
            _largest(call.value),
            _column(np.arange(1.0, S + 1), call.value),
            np.where(call.value == 0, 0.0, 1.0),
            _ones_at_end(call.value),
        ):
            if not np.array_equal(value, call.value) and np.count_nonzero(value) <= np.count_nonzero(call.value):
                yield call.but(value=value)
    for name in ("query", "key", "value", "bias", "sink", "cotangent"):
        array = getattr(call, name)
        if array is None or not array.any():
            continue
        with np.errstate(invalid="ignore"):
            for digits in (0, 1):
                simple = np.round(array, digits) + 0.0
                if not np.array_equal(simple, array, equal_nan=True):
                    yield call.but(**{name: simple})
    if call.rows is None and call.query.size <= 64:
        for name in ("query", "key"):
            array = getattr(call, name)
            ones = np.sign(array)
            if not np.array_equal(ones, array, equal_nan=True):
                yield call.but(**{name: ones})


def _largest(value: Any) -> Any:
    out = np.zeros_like(value)
    at = np.unravel_index(int(np.abs(value).argmax()), value.shape)
    out[at] = value[at]
    return out


def _column(numbers: Any, like: Any) -> Any:
    return np.broadcast_to(numbers[None, None, :, None], like.shape).copy()


def _ones_at_end(value: Any) -> Any:
    out = np.zeros_like(value)
    out[:, :, -1:] = 1
    return out
