"""A `.safetensors` file: a JSON header and the elements. The `safetensors` library judges the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .extras import how_to_install
from .tensor import DAMAGED, STORAGE, Declared, Tensor, Wanted, fault, short

_LENGTH = 8  # bytes that say how long the header is
_CODES = {"bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
_CODES |= {f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)} | {
    f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)
}
_NAMES = {code: name for name, code in _CODES.items()}


def read(path: Path, stream: BinaryIO, wanted: Wanted) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file, in the order of their elements."""
    _judge(path)
    length = int.from_bytes(stream.read(_LENGTH), "little")
    entries = _header(path, stream.read(length))
    begin = {name: entry["data_offsets"][0] for name, entry in entries.items()}
    names = wanted.select(path, sorted(entries, key=lambda name: (begin[name], name)))
    declared = [_declared(path, name, entries[name]) for name in names]
    wanted.afford(path, sum(each.nbytes for each in declared))
    tensors = {}
    for each in declared:
        stream.seek(_LENGTH + length + begin[each.name])
        tensors[each.name] = each.take(path, stream)
    return tensors


def _judge(path: Path) -> None:
    """Let the library check the header: sizes, offsets without gaps or overlaps, and an end where the file ends."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise fault(path, f"needs the safetensors library to be read; {how_to_install('files')}") from error
    try:
        with safe_open(str(path), "np"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].replace("Error while deserializing header: ", "")
        raise fault(path, f"is not a sound .safetensors file ({reason}); {DAMAGED}") from error


def _header(path: Path, text: bytes) -> dict[str, dict[str, Any]]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, entry in pairs:
            if name in seen:  # the library keeps the last of two that claim the same bytes
                raise fault(path, f"has two tensors named {short(name)}; {DAMAGED}")
            seen[name] = entry
        return seen

    entries: dict[str, dict[str, Any]] = json.loads(text, object_pairs_hook=once)
    entries.pop("__metadata__", None)
    return entries


def _declared(path: Path, name: str, entry: dict[str, Any]) -> Declared:
    if entry["dtype"] not in _NAMES:
        raise fault(
            path,
            f"holds elements of type {entry['dtype']} in {short(name)}, which this package does not read; "
            "pass names= without it, or save it as a wider float",
        )
    declared = Declared(name, _NAMES[entry["dtype"]], tuple(entry["shape"]))
    begin, end = entry["data_offsets"]
    declared.hold_against(path, end - begin)
    return declared


def check(path: Path, tensors: dict[str, Tensor]) -> None:
    """Refuse what a `.safetensors` file cannot hold."""
    if "__metadata__" in tensors:
        raise fault(path, "cannot hold a tensor named '__metadata__', which the format reserves; give it another name")


def write(stream: BinaryIO, tensors: dict[str, Tensor]) -> None:
    """Write header and elements; wide elements first, so that all of them are aligned."""
    order = sorted(tensors, key=lambda name: (-STORAGE[tensors[name].dtype].itemsize, name))
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.array.nbytes
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": tensor.array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(_LENGTH, "little") + text)
    for name in order:
        array = tensors[name].array
        little = array.dtype.newbyteorder("<")
        stream.write(np.ascontiguousarray(array, dtype=little).reshape(-1).view(np.uint8).data)
