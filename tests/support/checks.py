"""Checks of the contract, written against any attend-like function: the real one, or one with a fault planted in it.

Each raises AssertionError with what differs. `attend` takes the arguments of `qkv.attend` and gives (output, lse).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import qkv
from qkv.bounds import Bounds

from .arrays import same_bits, wide
from .problems import Problem
from .runs import Attend, loose


def within(found: Any, right: Any, bound: Any, what: str) -> None:
    """|found − right| ≤ bound wherever the right answer is a number; NaN and infinities equal."""
    found, right = np.asarray(found), np.asarray(right)
    assert found.shape == right.shape, f"{what} has shape {found.shape}, not {right.shape}"
    with np.errstate(all="ignore"):
        off = np.abs(found.astype(right.dtype) - right)
        good = (off <= bound) | (found == right) | (np.isnan(found) & np.isnan(right))
    if not good.all():
        at = tuple(int(i) for i in np.unravel_index(int((~good).argmax()), good.shape))
        limit = float(np.broadcast_to(bound, good.shape)[at])
        raise AssertionError(f"{what}{list(at)} is {found[at]!r}, not {right[at]!r} within {limit:.3g}")


def definition(attend: Attend, problem: Problem, limits: Bounds | None = None) -> None:
    """F2, and with it A to D: every row is within its bound of the definition, zero when empty, NaN exactly when it reads one.

    A row whose scores may overflow is right or NaN; one whose scores must is NaN (D3).
    """
    limits = problem.bounds() if limits is None else limits
    output, lse = loose(attend, problem.query, problem.key, problem.value, **problem.arguments)
    assert output.dtype == problem.query.dtype, f"F1: the output is {output.dtype}, the query {problem.query.dtype}"
    expected = np.float64 if problem.dtype == "float64" else np.float32
    assert lse.dtype == expected, f"C5: the log-sum-exp is {lse.dtype}, not {expected}"
    holds(wide(problem.canonical(output)), wide(problem.rows(lse)), limits)


def holds(output: np.ndarray, lse: np.ndarray, limits: Bounds) -> None:
    """Wide canonical (output, log-sum-exp) against bounds."""
    answer = limits.answer
    given_up = np.isnan(lse) & limits.may_overflow
    wrong = limits.must_overflow & ~np.isnan(lse)
    assert not wrong.any(), f"D3: rows {np.argwhere(wrong)[:3].tolist()} overflow and were answered"
    within(output, np.where(given_up[..., None], np.nan, answer.output), limits.output, "F2: output")
    within(lse, np.where(given_up, np.nan, answer.lse), limits.lse, "F2: lse")


def errors(attend: Attend, problem: Problem, limits: Bounds | None = None) -> None:
    """D2, D3, C2: by default the first fault is raised, empty rows before non-finite operands before overflow."""
    limits = problem.bounds() if limits is None else limits
    answer = limits.answer
    empty = ~answer.reach.any(-1) & ("sink" not in problem.arguments)
    spoilt = np.isnan(answer.lse) & ~empty
    raised: qkv.QkvError | None = None
    try:
        attend(problem.query, problem.key, problem.value, **problem.arguments)
    except (qkv.EmptyRowError, qkv.NonFiniteError, qkv.ScoreOverflowError) as error:
        raised = error
    if empty.any():
        assert isinstance(raised, qkv.EmptyRowError), f"C2: a row is empty, but {raised!r} came"
        first = tuple(int(i) for i in np.unravel_index(int(empty.argmax()), empty.shape))
        assert (raised.index, raised.count) == (first, int(empty.sum())), (
            f"C2: {raised} names the wrong row, not {first}"
        )
    elif spoilt.any():
        assert isinstance(raised, qkv.NonFiniteError), f"D2: a NaN is read, but {raised!r} came"
        assert (raised.argument, raised.index) == _first_spoilt(problem, limits), f"D2: {raised} names the wrong number"
    elif raised is not None:
        assert isinstance(raised, qkv.ScoreOverflowError), f"no row is empty and no NaN is read, but {raised!r} came"
        assert limits.may_overflow.any(), f"D3: no score can overflow, but {raised!r} came"
    else:
        assert not limits.must_overflow.any(), "D3: an overflow was not refused"


def _first_spoilt(problem: Problem, limits: Bounds) -> tuple[str, tuple[int, ...]]:
    """The first non-finite number that is read: query, key, value, in C order of the caller's axes (D2)."""
    reach = limits.answer.reach
    query, key, value = problem.operands()
    read = _keys_read(reach, key.shape[-3])
    for name, array, used in (("query", query, reach.any(-1)), ("key", key, read), ("value", value, read)):
        bad = ~np.isfinite(wide(array)) & used[..., None]
        # Into the caller's axes and back: the first index there is the first in C order.
        bad = bad[0] if problem.query.ndim == 2 else bad.swapaxes(-2, -3) if problem.layout == "blhd" else bad
        if bad.any():
            return name, tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    raise AssertionError("nothing that is read is non-finite")


def _keys_read(reach: np.ndarray, groups: int) -> np.ndarray:
    """Keys of each key head that some allowed pair reads, (B…, G, S)."""
    sharing = reach.shape[-3] // groups
    return np.stack([reach[..., g * sharing : (g + 1) * sharing, :, :].any((-3, -2)) for g in range(groups)], axis=-2)


def isolation(attend: Attend, problem: Problem, rng: np.random.Generator) -> None:
    """D1: whatever stands where no allowed pair reads changes no bit, and one row's operands change no other row."""
    before = loose(attend, problem.query, problem.key, problem.value, **problem.arguments)
    key, value = (np.array(x) for x in (problem.key, problem.value))
    reach = problem.bounds().answer.reach
    read = _keys_read(reach, problem.canonical(key).shape[-3])
    for array in (problem.canonical(key), problem.canonical(value)):
        garbage = rng.choice(np.array([np.nan, np.inf, -np.inf, 3.0e4, 0.0]), array[~read].shape)
        array[~read] = garbage.astype(array.dtype)
    after = loose(attend, problem.query, key, value, **problem.arguments)
    for name, a, b in zip(("output", "lse"), before, after, strict=True):
        assert same_bits(a, b), f"D1: what no pair may read changed the {name}"


def row_isolation(attend: Attend, problem: Problem, rng: np.random.Generator) -> None:
    """D1: a key changes the rows that may read it and no bit of any other, also in the same tile and head group."""
    limits = problem.bounds()
    reach = limits.answer.reach
    keys = problem.canonical(problem.key).shape[-2]
    if not keys or not reach.size:
        return
    before = loose(attend, problem.query, problem.key, problem.value, **problem.arguments)
    j = int(rng.integers(keys))
    for spoil in (np.nan, np.inf, 2.0):
        key, value = (np.array(x) for x in (problem.key, problem.value))
        for array in (problem.canonical(key), problem.canonical(value)):
            array[..., j, :] = np.asarray(spoil).astype(array.dtype)
        after = loose(attend, problem.query, key, value, **problem.arguments)
        untouched = ~reach[..., j]
        for a, b in zip(before, after, strict=True):
            a, b = (problem.canonical(x) if x.ndim == problem.query.ndim else problem.rows(x) for x in (a, b))
            assert same_bits(a[untouched], b[untouched]), f"D1: key {j} = {spoil} changed a row that may not read it"
        if not np.isfinite(spoil):
            lost = wide(problem.rows(after[1]))[reach[..., j]]
            assert np.isnan(lost).all(), f"D2: key {j} = {spoil} is read, and the row is not NaN"


def repeatable(attend: Attend, problem: Problem) -> None:
    """F4: the same call gives the same bits twice."""
    first, second = (loose(attend, problem.query, problem.key, problem.value, **problem.arguments) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert same_bits(a, b), "F4: the same call gave other bits"


def memory(attend: Attend, problem: Problem) -> None:
    """A4: no input is written to, and the output is a view of none."""
    given = [problem.query, problem.key, problem.value]
    given += [a for a in (problem.arguments.get("bias"), problem.arguments.get("sink")) if isinstance(a, np.ndarray)]
    before = [a.tobytes() for a in given]
    output, lse = loose(attend, problem.query, problem.key, problem.value, **problem.arguments)
    for array, held in zip(given, before, strict=True):
        assert array.tobytes() == held, "A4: an input was written to"
        for result in (output, lse):
            assert not np.shares_memory(array, result), "A4: a result is a view of an input"
    assert output.flags.writeable, "A4: the output is read-only"
