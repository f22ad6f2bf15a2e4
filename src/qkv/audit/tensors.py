"""Arrays in safetensors files: a length, a JSON head, raw numbers. Written by hand, so that the same arrays give the same bytes.

bfloat16 is its 16-bit pattern here, as everywhere in this package.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import FileError
from qkv.floats import FLOATS, widen

from .call import Array

__all__ = ["read_tensors", "write_tensors"]

#: Name in a file -> (name of the float type or NumPy's, NumPy's type of the bytes).
_TYPES = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "BOOL": ("bool", "?"),
    "I64": ("int64", "<i8"),
    "I32": ("int32", "<i4"),
}
_CODES = {name: code for code, (name, _) in _TYPES.items()}


def write_tensors(path: Path, tensors: dict[str, tuple[str, Array]]) -> None:
    """Name -> (type, numbers in its storage form)."""
    head: dict[str, Any] = {}
    body = b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array, _TYPES[_CODES[dtype]][1]).tobytes()
        head[name] = {
            "dtype": _CODES[dtype],
            "shape": list(np.shape(array)),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_tensors(path: Path) -> dict[str, tuple[str, Array]]:
    """Name -> (type, numbers: floats as float64).

    Raises:
        FileError: no safetensors file, or one with another type in it.
    """
    try:
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        head, body = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
        out = {}
        for name, told in head.items():
            if name == "__metadata__":
                continue
            dtype, kind = _TYPES[told["dtype"]]
            start, stop = told["data_offsets"]
            array = np.frombuffer(body[start:stop], kind).reshape(told["shape"])
            out[name] = (dtype, widen(array, dtype).astype(np.float64) if dtype in FLOATS else array.copy())
    except (OSError, ValueError, KeyError, TypeError, struct.error) as problem:
        raise FileError(f"{path.name} is no safetensors file of numbers: {type(problem).__name__} {problem}") from None
    return out
