"""Messages between the audit and its child: a length, a JSON head, raw arrays. Nothing that comes back is unpickled."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from .call import Call, Result

__all__ = ["call_from", "call_to", "pack", "result_from", "result_to", "unpack"]

_LENGTH = struct.Struct("<QQ")

#: No honest head is larger; a child that sends more is not speaking this protocol.
_MOST = 1 << 26


def pack(head: dict[str, Any], arrays: dict[str, Any]) -> bytes:
    """One message."""
    described, bodies = [], []
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array)
        described.append([name, plain.dtype.str, list(np.shape(array))])
        bodies.append(plain.tobytes())
    text = json.dumps({"head": head, "arrays": described}).encode()
    body = b"".join(bodies)
    return _LENGTH.pack(len(text), len(body)) + text + body


def unpack(read: Callable[[int], bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One message, by a function that reads exactly so many bytes.

    Raises:
        ValueError: not a message.
    """
    size, body_size = _LENGTH.unpack(read(_LENGTH.size))
    if size > _MOST:
        raise ValueError("the head of a message is too long")
    told = json.loads(read(size))
    body, arrays, at = read(body_size), {}, 0
    for name, kind, shape in told["arrays"]:
        dtype = np.dtype(kind)
        if dtype.kind not in "bifu":
            raise ValueError(f"a message may not hold {kind}")
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape).copy()
        at += count * dtype.itemsize
    return told["head"], arrays


_CALL_ARRAYS = ("query", "key", "value", "mask", "lengths", "bias", "slopes", "sink", "cotangent")
_CALL_PLAIN = (
    "dtype",
    "key_dtype",
    "causal",
    "align",
    "scale",
    "softcap",
    "strides",
    "repeat",
    "watch",
    "prefix",
    "where",
)
#: Fields that are two arrays, of queries and of keys.
_CALL_PAIRS = ("segments", "offsets")


def call_to(call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call as (head, arrays)."""
    head = {name: getattr(call, name) for name in _CALL_PLAIN}
    head["window"] = None if call.window is None else list(call.window)
    head["wants"], head["odd"] = sorted(call.wants), sorted(call.odd)
    arrays = {name: getattr(call, name) for name in _CALL_ARRAYS if getattr(call, name) is not None}
    for name in _CALL_PAIRS:
        if getattr(call, name) is not None:
            arrays[f"{name}_query"], arrays[f"{name}_key"] = getattr(call, name)
    return head, arrays


def call_from(head: dict[str, Any], arrays: dict[str, Any]) -> Call:
    """The inverse of `call_to`; which rows are judged is the parent's business."""
    pairs: dict[str, Any] = {
        name: (arrays.pop(f"{name}_query"), arrays.pop(f"{name}_key"))
        for name in _CALL_PAIRS
        if f"{name}_query" in arrays
    }
    window = None if head["window"] is None else (head["window"][0], head["window"][1])
    plain = {name: head[name] for name in _CALL_PLAIN}
    return Call(**arrays, **plain, **pairs, window=window, wants=frozenset(head["wants"]), odd=frozenset(head["odd"]))


def result_to(result: Result) -> bytes:
    """A result as one message."""
    head = {
        "status": result.status,
        "message": result.message,
        "dtypes": result.dtypes,
        "facts": result.facts,
        "seconds": result.seconds,
        "busy": result.busy,
    }
    return pack(head, dict(result.parts))


def result_from(head: dict[str, Any], arrays: dict[str, Any]) -> Result:
    """The inverse, for what `unpack` gave."""
    return Result(
        str(head["status"]),
        str(head["message"]),
        arrays,
        dict(head["dtypes"]),
        dict(head["facts"]),
        float(head["seconds"]),
        float(head["busy"]),
    )
