"""From status bits to the error of the contract: which row, which number, in one fixed order (C2, D2, D3).

Runs only after an engine reported a fault, so it may take its time; it reads the arrays again to name the first index.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import EmptyRowError, NonFiniteError, ScoreOverflowError
from .floats import Array, widen
from .plan import SEARCH_KEYS, SEARCH_ROWS
from .problem import Problem
from .state import ALLOWED, NONFINITE

Status = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


def raise_faults(problem: Problem, status: Status, wrong: Bools | None) -> None:
    """Raise what the contract asks for: empty rows first, then non-finite operands, then overflowed scores.

    Args:
        status: (N, H, L) status bits. wrong: rows without a right finite answer, (N, H, L) or None.
    """
    if problem.empty == "raise" and problem.sink is None:
        raise_empty(problem, (status & ALLOWED) == 0)
    if problem.nonfinite == "propagate" or wrong is None:
        return
    if (status & NONFINITE).any():
        raise_nonfinite(problem, (status & ALLOWED) != 0)
    raise_overflow(problem, wrong)


def raise_empty(problem: Problem, rows: Bools) -> None:
    """EmptyRowError for the first of the rows marked, (N, H, L), if there is one."""
    count = int(rows.sum())
    if not count:
        return
    index = _row(problem, rows)
    many = "is 1 such row" if count == 1 else f"are {count:,} such rows"
    raise EmptyRowError(
        f"mask must leave every query row a key, but (batch, head, row) = {_show(index)} has none (there {many}); "
        "allow it a key, or pass empty='zero' for a zero output",
        index,
        count,
    )


def raise_overflow(problem: Problem, rows: Bools) -> None:
    """ScoreOverflowError for the first of the rows marked, (N, H, L)."""
    index = _row(problem, rows)
    count = int(rows.sum())
    raise ScoreOverflowError(
        f"scores of query and key must be finite in {problem.dtype.compute}, but overflow in (batch, head, row) = {_show(index)} "
        f"({count:,} {'row' if count == 1 else 'rows'} in all); make query or key smaller, lower scale, or compute in float64",
        index,
    )


def raise_nonfinite(problem: Problem, allowed_rows: Bools) -> None:
    """NonFiniteError for the first non-finite number that an allowed pair reads: query, key, value, then bias."""
    shape = (*problem.batch, problem.heads, problem.queries)
    _first(problem, "query", problem.query, allowed_rows.reshape(shape))
    reached = keys_reached(problem).reshape(*problem.batch, problem.groups, problem.keys)
    _first(problem, "key", problem.key, reached)
    _first(problem, "value", problem.value, reached)
    if problem.bias is not None:
        _first_bias(problem)


def keys_reached(problem: Problem) -> Bools:
    """Keys that some allowed pair reads, (N, G, S)."""
    out = np.zeros((problem.batches, problem.groups, problem.keys), np.bool_)
    for n, rows, lo, hi in _tiles(problem):
        reach = np.broadcast_to(
            problem.allowed(n, slice(0, problem.heads), rows, lo, hi), (problem.heads, rows.size, hi - lo)
        )
        if problem.bias is not None:
            reach = reach & ~np.isneginf(_bias(problem, n, rows, lo, hi))
        out[n, :, lo:hi] |= reach.reshape(problem.groups, -1, hi - lo).any(axis=1)
    return out


def _tiles(problem: Problem) -> Any:
    for n in range(problem.batches):
        for start in range(0, problem.queries, SEARCH_ROWS):
            rows = np.arange(start, min(start + SEARCH_ROWS, problem.queries), dtype=np.int64)
            for lo in range(0, problem.keys, SEARCH_KEYS):
                yield n, rows, lo, min(lo + SEARCH_KEYS, problem.keys)


def _bias(problem: Problem, n: int, rows: Any, lo: int, hi: int) -> Array:
    assert problem.bias is not None
    return widen(problem.bias[problem.at(n)][:, rows[0] : rows[-1] + 1, lo:hi], problem.bias_dtype)


def _first(problem: Problem, name: str, array: Array, reached: Bools) -> None:
    """Raise for the first non-finite number of the vectors that are reached, in C order of the caller's layout."""
    bad = ~np.isfinite(widen(array, problem.dtype.name)) & reached[..., None]
    if not bad.any():
        return
    bad = _as_caller(problem, bad)
    index = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    number = float(_as_caller(problem, widen(array, problem.dtype.name))[index])
    raise NonFiniteError(_message(name, index, number), name, index)


def _first_bias(problem: Problem) -> None:
    for n in range(problem.batches):
        for h in range(problem.heads):
            for start in range(0, problem.queries, SEARCH_ROWS):
                rows = np.arange(start, min(start + SEARCH_ROWS, problem.queries), dtype=np.int64)
                bias = _bias(problem, n, rows, 0, problem.keys)[h]
                allowed = problem.allowed(n, slice(h, h + 1), rows, 0, problem.keys)[0]
                bad = allowed & ~np.isfinite(bias) & ~np.isneginf(bias)
                if bad.any():
                    i, j = (int(a) for a in np.unravel_index(int(bad.argmax()), bad.shape))
                    full = (*problem.at(n), h, start + i, j + problem.first_key)
                    # In the caller's own array, which may have fewer axes, or length 1 where it is broadcast.
                    shape = problem.bias_shape
                    index = tuple(
                        a if size > 1 else 0 for a, size in zip(full[len(full) - len(shape) :], shape, strict=True)
                    )
                    raise NonFiniteError(_message("bias", index, float(bias[i, j])), "bias", index)


def _message(name: str, index: tuple[int, ...], number: float) -> str:
    what = "nan" if math.isnan(number) else f"{number:+}"
    forbid = "forbid the pair with mask=" if name in ("query", "bias") else "forbid the key with mask="
    rest = "" if name == "bias" else ", or pass nonfinite='propagate' for NaN rows"
    if name == "bias":
        forbid += " or with -inf"
    return f"{name}[{', '.join(map(str, index))}] must be finite where an allowed pair reads it, but is {what}; clean it, {forbid}{rest}"


def _as_caller(problem: Problem, array: Array) -> Array:
    """A canonical (B…, H, L, D) array in the caller's axes."""
    if problem.layout.axes == 2:
        one: Array = array[0]
        return one
    return array.swapaxes(-2, -3) if problem.layout.length_first else array


def _row(problem: Problem, rows: Bools) -> tuple[int, ...]:
    n, h, i = (int(a) for a in np.unravel_index(int(rows.argmax()), rows.shape))
    return (*problem.at(n), h, i)


def _show(index: tuple[int, ...]) -> str:
    batch, (head, row) = index[:-2], index[-2:]
    return f"({batch[0] if len(batch) == 1 else batch if batch else '-'}, {head}, {row})"
