"""A counterexample in words and few numbers, so that it can be read, and typed, by a person."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from .call import Array, Call

__all__ = ["MOST", "describe"]

#: Numbers a description may hold.
MOST = 64


def describe(call: Call) -> tuple[list[str], int]:
    """(lines, how many numbers they hold)."""
    lines, count = [], 0
    B, H, G, L, S, D, E = call.sizes
    lines.append(f"B={B} H={H} G={G} L={L} S={S} D={D} E={E}, {call.dtype}")
    for name in ("query", "key", "value", "mask", "bias", "sink", "slopes", "lengths"):
        array = getattr(call, name)
        if array is None:
            continue
        text, used = _array(np.asarray(array), MOST - count)
        lines.append(f"{name} {text}")
        count += used
    for name in ("causal", "window", "prefix", "where", "align", "scale", "softcap", "key_dtype"):
        value = getattr(call, name)
        if value not in (None, False):
            lines.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
            count += (type(value) in (int, float)) + 2 * isinstance(value, tuple)
    for pair, words in ((call.segments, "ids"), (call.offsets, "offsets")):
        for name, ids in zip(("query", "key"), pair or (), strict=pair is not None):
            text, used = _array(np.asarray(ids), MOST - count)
            lines.append(f"{name} {words} {text}")
            count += used
    if call.strides != "plain":
        lines.append(f"arrays lie {call.strides}")
    if call.wants:
        lines.append(f"asked for {', '.join(sorted(call.wants))}")
    return lines, count


def _array(array: Array, room: int) -> tuple[str, int]:
    """Words for one array, in at most so many numbers."""
    shape = "×".join(map(str, array.shape))
    flat = array.reshape(-1)
    if not flat.size:
        return f"{shape}: nothing", 0
    runs = _runs(flat)
    if len(runs) == 1:
        return f"{shape}: all {_number(flat[0])}", 1
    common = max(runs, key=lambda run: run[1] - run[0])[2]
    others = [run for run in runs if not _equal(run[2], common)]
    sparse = 1 + 2 * sum(1 if b - a == 1 else 2 for a, b, _ in others)
    if sparse <= min(room, flat.size - 1):
        said = ", ".join(f"{_where(a, b, array.shape)}={_number(x)}" for a, b, x in others)
        return f"{shape}: {_number(common)}, but {said}", sparse
    if flat.size <= room:
        # The leading axes are told by the shape.
        rows = np.squeeze(array) if array.ndim > 1 else array
        return f"{shape}: {_list(rows)}", int(flat.size)
    text, used = _repeated(array)
    if used <= room:
        return f"{shape}: {text}", used
    return f"{shape}: {flat.size} numbers, made by the line that reproduces it", 0


def _repeated(array: Array) -> tuple[str, int]:
    """Words for an array of which neighbouring parts are alike, as lifting into a kernel's domain makes them."""
    small, said, used = array, [], 0
    for axis in range(array.ndim):
        starts, times = _alike(small, axis)
        if len(starts) == small.shape[axis]:
            continue
        small = small.take(starts, axis)
        each = len(set(times.tolist())) == 1
        said.append(f"along axis {axis} {times[0]} times each" if each else f"along axis {axis} {_list(times)} times")
        used += 1 if each else len(times)
    return f"{_list(np.squeeze(small))} repeated {', '.join(said)}", used + small.size


def _alike(array: Array, axis: int) -> tuple[Array, Array]:
    """Where runs of equal neighbours start along an axis, and how long they are."""
    parts = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    same = (parts[1:] == parts[:-1]) | ((parts[1:] != parts[1:]) & (parts[:-1] != parts[:-1]))
    starts = np.flatnonzero(np.append(True, ~same.all(axis=1)))
    return starts, np.diff(np.append(starts, len(parts)))


def _runs(flat: Array) -> list[tuple[int, int, Any]]:
    out, at = [], 0
    for _, group in groupby(flat.tolist(), key=lambda x: "nan" if x != x else x):
        items = list(group)
        out.append((at, at + len(items), items[0]))
        at += len(items)
    return out


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def _where(start: int, stop: int, shape: tuple[int, ...]) -> str:
    def index(at: int) -> str:
        return "[" + ",".join(str(int(i)) for i in np.unravel_index(at, shape)) + "]"

    return index(start) if stop - start == 1 else f"{index(start)}…{index(stop - 1)}"


def _number(x: Any) -> str:
    return ("T" if x else "F") if isinstance(x, (bool, np.bool_)) else f"{x:.6g}"


def _list(rows: Array) -> str:
    if rows.ndim == 0:
        return _number(rows.item())
    if rows.ndim == 1:
        return "[" + " ".join(_number(x) for x in rows.tolist()) + "]"
    return "[" + ", ".join(_list(row) for row in rows) + "]"
