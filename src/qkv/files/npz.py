"""A `.npz` file: a zip archive of `.npy` members, whose directory is checked before any of them is unpacked."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from qkv.errors import FileError

from . import npy
from .tensor import DAMAGED, Tensor, Wanted, fault, short

_LOCAL_HEADER = 30  # bytes before the name of a member

#: Deflate cannot expand further than this, so a directory that says so lies.
_DEFLATE_AT_MOST = 1032

#: What `zipfile` raises on archives that are not what they say.
_BROKEN = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error),
    *(EOFError, OSError, ValueError, OverflowError, RuntimeError, LookupError),
)


def read(path: Path, stream: BinaryIO, wanted: Wanted) -> dict[str, Tensor]:
    """The arrays of a `.npz` file, by name without `.npy`."""
    try:
        with zipfile.ZipFile(stream) as archive:
            members = _directory(path, archive)
            names = wanted.select(path, list(members))
            wanted.afford(path, sum(members[name].file_size for name in names))
            return {name: _member(path, archive, name, members[name]) for name in names}
    except FileError:
        raise
    except _BROKEN as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise fault(path, f"is not a sound .npz archive ({reason}); {DAMAGED}") from error


def _directory(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by name, once nothing the directory says of them is impossible."""
    members: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            raise fault(path, f"has a member {short(name)} that is not a .npy array; write it with np.savez")
        if name in members:
            raise fault(path, f"has two arrays named {short(name)}; {DAMAGED}")
        if info.flag_bits & 1:
            raise fault(path, f"has its array {short(name)} encrypted; write it with np.savez")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise fault(path, f"compresses {short(name)} by a method other than deflate; write it with np.savez")
        stored = info.compress_type == zipfile.ZIP_STORED
        most = info.compress_size * (1 if stored else _DEFLATE_AT_MOST)
        if info.file_size > most or (stored and info.file_size != most):
            raise fault(
                path,
                f"declares {info.file_size:,} bytes for {short(name)}, which the {info.compress_size:,} bytes it has "
                f"for it cannot hold; {DAMAGED}",
            )
        if info.header_offset < end:
            raise fault(path, f"has the array {short(name)} overlap another one; {DAMAGED}")
        end = info.header_offset + _LOCAL_HEADER + info.compress_size
        if end > archive.start_dir:
            raise fault(path, f"has the array {short(name)} end beyond the archive; {DAMAGED}")
        members[name] = info
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def _member(path: Path, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> Tensor:
    with archive.open(info) as opened:
        stream = cast(BinaryIO, opened)
        declared = npy.read_header(path, name, stream)
        declared.hold_against(path, info.file_size - stream.tell())
        return declared.take(path, stream)  # with the last byte zipfile checks the sum


def check(path: Path, tensors: dict[str, Tensor]) -> None:
    """Refuse what a `.npz` file cannot hold."""
    for name in tensors:
        if not name or "\0" in name:
            raise fault(path, f"cannot hold an array named {short(name)}; give it another name")
    npy.refuse_bfloat16(path, tensors)


def write(stream: BinaryIO, tensors: dict[str, Tensor]) -> None:
    """Write the arrays as np.savez does, whatever their names are."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, tensor in tensors.items():
            # A ZipInfo of its own carries no time of day, so that the same arrays give the same bytes.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, tensor.array, allow_pickle=False)
