"""Tensors from files and to files: `.safetensors`, `.npz` and `.npy`, safe to open when a stranger sent them.

Nothing is ever unpickled. What a header declares is held against what the file has before memory is taken for it.
Every fault of a file is a `FileError` of one sentence that names the file.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import npy, npz, safetensors
from .tensor import Tensor, Wanted, fault

__all__ = ["Tensor", "read_tensors", "write_tensors"]

_FORMATS = {".safetensors": safetensors, ".npz": npz, ".npy": npy}
_PICKLES = {".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib"}


def read_tensors(
    path: str | os.PathLike[str], *, names: Iterable[str] | None = None, max_bytes: int = 8 * 2**30
) -> dict[str, Tensor]:
    """Read the tensors of a file, in the file's order.

    Args:
        path: a `.safetensors`, `.npz` or `.npy` file. The one array of a `.npy` file is named after the file.
        names: which tensors to read; the others are not touched. Default: all.
        max_bytes: the most memory the tensors that are read may need together. A compressed file of a few megabytes
            can stand for thousands of times its size.

    Returns:
        For every name a `Tensor`: a NumPy array in native byte order and the name of its element type. bfloat16, which
        NumPy has not, is a uint16 array of bit patterns with the dtype "bfloat16".

    Raises:
        FileError: the file cannot be read, is not what it says, lacks a name, holds element types that are neither
            booleans, integers nor floats, or needs more than `max_bytes`; also where `.safetensors` is read without
            the `safetensors` library.

    Example:
        >>> write_tensors("qkv.npz", {"query": np.ones((2, 3), np.float32)})
        >>> read_tensors("qkv.npz")["query"].array.shape
        (2, 3)
    """
    path = Path(path)
    wanted = Wanted(None if names is None else tuple(names), max_bytes)
    reader = _format(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise fault(path, "is not a regular file; name a .safetensors, .npz or .npy file")
        with path.open("rb") as stream:
            tensors: dict[str, Tensor] = reader.read(path, stream, wanted)
            return tensors
    except OSError as error:
        raise fault(path, f"cannot be read ({error.strerror or error}); check the name and the permissions") from error


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor | npt.NDArray[Any]]) -> None:
    """Write tensors to a file, in the format that its ending names. The same tensors give the same bytes.

    The file appears whole or not at all: it is written beside its place and then moved there.

    Args:
        path: a `.safetensors`, `.npz` (uncompressed) or `.npy` (exactly one tensor) file.
        tensors: by name, each a `Tensor` or a NumPy array of booleans, integers or floats, bfloat16 of `ml_dtypes`
            included.

    Raises:
        FileError: the file cannot be written, or its format cannot hold what it should (bfloat16 needs `.safetensors`).
        DTypeError: a tensor is made of something else than booleans, integers or floats.

    Example:
        >>> write_tensors("output.safetensors", {"output": Tensor(np.array([0x3F80], np.uint16), "bfloat16")})
    """
    path = Path(path)
    writer = _format(path)
    whole = {name: each if isinstance(each, Tensor) else Tensor(np.asarray(each)) for name, each in tensors.items()}
    writer.check(path, whole)
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would not be written to, but replaced
            raise fault(path, "exists and is not a regular file; give another name")
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                writer.write(stream, whole)
            Path(beside).chmod(0o666 & ~_umask())  # mkstemp lets only the owner read
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise fault(path, f"cannot be written ({error.strerror or error}); choose another place") from error


def _format(path: Path) -> Any:
    known = _FORMATS.get(path.suffix.lower())
    if known is not None:
        return known
    if path.suffix.lower() in _PICKLES:
        raise fault(
            path, "may hold a pickle, which runs code when it is read; save it with safetensors.torch.save_file"
        )
    raise fault(
        path, f"ends in {path.suffix!r}, and tensors are kept in .safetensors, .npz or .npy; rename or convert it"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
