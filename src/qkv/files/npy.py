"""One `.npy` file: a magic string, a header that is a Python literal, and the elements.

The header is read here and not by NumPy, so that nothing of it reaches `np.dtype` but what is in a short list.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .tensor import DAMAGED, STORAGE, Declared, Tensor, Wanted, fault, short

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # NumPy's own limit

#: `<f4` and its like: byte order, kind, bytes per element.
_ELEMENT = re.compile(r"([<>|=])([biuf][1248])")
_NAMES = {f"{dtype.kind}{dtype.itemsize}": name for name, dtype in STORAGE.items() if name != "bfloat16"}
_FOREIGN = np.dtype("=i2").newbyteorder("S").str[0]


def read(path: Path, stream: BinaryIO, wanted: Wanted) -> dict[str, Tensor]:
    """The array of a `.npy` file, under the file's own name."""
    size = os.fstat(stream.fileno()).st_size
    declared = read_header(path, path.stem, stream)
    declared.hold_against(path, size - stream.tell())
    names = wanted.select(path, [path.stem])
    wanted.afford(path, declared.nbytes if names else 0)
    return {name: declared.take(path, stream) for name in names}


def read_header(path: Path, name: str, stream: BinaryIO) -> Declared:
    """Read magic string, version and header; the elements come next in the stream."""
    magic = stream.read(8)
    if magic[:6] != _MAGIC[: len(magic[:6])] or not magic:
        raise fault(path, f"should start {short(name)} with the magic string of .npy, not {magic[:6]!r}; {DAMAGED}")
    if len(magic) == 8 and (magic[6], magic[7]) not in ((1, 0), (2, 0)):
        version = f"{magic[6]}.{magic[7]}"
        raise fault(path, f"has {short(name)} in version {version} of .npy, not 1.0 or 2.0; save it with np.save")
    width = 2 if magic[6:7] == b"\x01" else 4
    length_bytes = stream.read(width)
    length = int.from_bytes(length_bytes, "little")
    if length > _LONGEST_HEADER:
        raise fault(
            path, f"declares a header of {length:,} bytes for {short(name)}, over {_LONGEST_HEADER:,}; {DAMAGED}"
        )
    text = stream.read(length)
    if len(magic) < 8 or len(length_bytes) < width or len(text) < length:
        raise fault(path, f"ends inside the header of {short(name)}; {DAMAGED}")
    return _parse(path, name, text)


def _parse(path: Path, name: str, text: bytes) -> Declared:
    fields = _literal(text)
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise fault(path, f"has no .npy header with descr, fortran_order and shape for {short(name)}; {DAMAGED}")
    element, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if not isinstance(shape, tuple) or any(type(axis) is not int or axis < 0 for axis in shape):
        raise fault(path, f"declares {short(name)} with a shape that is not a tuple of sizes >= 0; {DAMAGED}")
    if not isinstance(fortran, bool):
        raise fault(path, f"declares {short(name)} with a fortran_order that is not True or False; {DAMAGED}")
    if isinstance(element, str) and element[1:2] == "O":
        raise fault(path, f"holds Python objects in {short(name)}, a pickle that could run code; save it as numbers")
    match = _ELEMENT.fullmatch(element) if isinstance(element, str) else None
    if match is None or match[2] not in _NAMES:
        raise fault(
            path,
            f"holds elements of type {short(str(element))} in {short(name)}, not booleans, integers or floats; "
            "pass names= without it, or save it as one of those (bfloat16: in .safetensors)",
        )
    return Declared(name, _NAMES[match[2]], shape, foreign=match[1] == _FOREIGN, fortran=fortran)


def _literal(text: bytes) -> Any:
    if b"\\" in text:  # no honest header has one, and the parser would print warnings about some
        return None
    try:
        return ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def check(path: Path, tensors: dict[str, Tensor]) -> None:
    """Refuse what a `.npy` file cannot hold."""
    if len(tensors) != 1:
        raise fault(path, f"can hold one array, not {len(tensors)}; write a .npz or .safetensors file")
    refuse_bfloat16(path, tensors)


def refuse_bfloat16(path: Path, tensors: dict[str, Tensor]) -> None:
    """The .npy format has no name for bfloat16: its bit patterns would come back as integers."""
    for name, tensor in tensors.items():
        if tensor.dtype == "bfloat16":
            raise fault(path, f"cannot say that {short(name)} is bfloat16; write a .safetensors file")


def write(stream: BinaryIO, tensors: dict[str, Tensor]) -> None:
    """Write the one array."""
    for tensor in tensors.values():
        np.lib.format.write_array(stream, tensor.array, allow_pickle=False)
