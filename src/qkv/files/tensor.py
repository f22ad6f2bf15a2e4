"""A tensor of a file, and the checks that all formats share: what is declared is held against what is there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from qkv.errors import DTypeError, FileError

#: Element types a file may hold, and how NumPy stores each.
STORAGE: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
} | {"bfloat16": np.dtype(np.uint16)}

#: How much is asked of a stream at a time: decompressing holds a second copy of no more than this.
_CHUNK = 2**20

DAMAGED = "the file is damaged or cut short, so copy or write it again"


@dataclass(frozen=True, eq=False)
class Tensor:
    """A NumPy array and the name of its element type.

    Attributes:
        array: the elements; for bfloat16 their bit patterns as uint16.
        dtype: "bfloat16", or the name of the array's own dtype, which is also the default.

    Raises:
        DTypeError: an element type that no file can hold, or bfloat16 whose array is not uint16.

    Example:
        >>> Tensor(np.zeros(3, np.float16)).dtype
        'float16'
    """

    array: npt.NDArray[Any]
    dtype: str = ""

    def __post_init__(self) -> None:
        dtype = self.dtype or self.array.dtype.name
        array = self.array
        if dtype == "bfloat16" == array.dtype.name:  # as ml_dtypes has it
            array = array.view(np.uint16)
        if dtype not in STORAGE or array.dtype.newbyteorder("=") != STORAGE[dtype]:
            holds = f"an array of {array.dtype} called {dtype}" if self.dtype else f"an array of {array.dtype}"
            raise DTypeError(
                f"a tensor for a file is made of booleans, integers or floats, not {holds}; convert it first"
            )
        object.__setattr__(self, "array", array.astype(STORAGE[dtype], copy=False))  # native byte order
        object.__setattr__(self, "dtype", dtype)


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for: which names (None: all), and how much memory at most."""

    names: tuple[str, ...] | None
    max_bytes: int

    def select(self, path: Path, there: list[str]) -> list[str]:
        """The names to read, in the file's order."""
        if self.names is None:
            return there
        for name in self.names:
            if name not in there:
                raise fault(path, f"has no tensor {short(name)}; it has {listing(there)}")
        return [name for name in there if name in self.names]

    def afford(self, path: Path, nbytes: int) -> None:
        """Refuse what needs more memory than the caller gave."""
        if nbytes > self.max_bytes:
            raise fault(
                path,
                f"needs {nbytes:,} bytes for its tensors, more than max_bytes={self.max_bytes:,}; "
                "raise max_bytes= if you trust the file, or pass names= to read some of them",
            )


@dataclass(frozen=True)
class Declared:
    """What a header says of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    foreign: bool = False  # the other byte order
    fortran: bool = False  # the first axis runs fastest

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORAGE[self.dtype].itemsize

    def hold_against(self, path: Path, there: int) -> None:
        """Refuse a header that declares more or fewer bytes than there are."""
        if self.nbytes != there:
            raise fault(
                path,
                f"declares {short(self.name)} as {listing_shape(self.shape)} of {self.dtype}, which is {self.nbytes:,} "
                f"bytes, but has {there:,} for it; {DAMAGED}",
            )

    def take(self, path: Path, stream: BinaryIO) -> Tensor:
        """Read the elements that come next in the stream, once `hold_against` has passed."""
        storage = STORAGE[self.dtype]
        try:
            array = np.empty(self.shape[::-1] if self.fortran else self.shape, storage)
        except (ValueError, OverflowError) as error:  # too many axes, or (0, 2**70)
            raise fault(path, f"declares {short(self.name)} with a shape that no array can have; {DAMAGED}") from error
        if self.nbytes:
            fill(path, self.name, stream, array.reshape(-1).view(np.uint8).data)
        if self.foreign:
            array.byteswap(inplace=True)
        if self.dtype == "bool" and (array.view(np.uint8) > 1).any():
            raise fault(
                path, f"has bytes other than 0 and 1 in {short(self.name)}, which it declares as bool; {DAMAGED}"
            )
        return Tensor(array.T if self.fortran else array, self.dtype)


def fill(path: Path, name: str, stream: BinaryIO, memory: memoryview) -> None:
    """Fill the memory from the stream."""
    done = 0
    while done < len(memory):
        chunk = stream.read(min(_CHUNK, len(memory) - done))
        if not chunk:
            raise fault(path, f"ends after {done:,} of the {len(memory):,} bytes of {short(name)}; {DAMAGED}")
        memory[done : done + len(chunk)] = chunk
        done += len(chunk)


def fault(path: Path, sentence: str) -> FileError:
    """The error that names the file."""
    return FileError(f"file {str(path)!r} {sentence}")


def short(name: str) -> str:
    """A name from a stranger, quoted, without control characters and not long."""
    return repr(name if len(name) <= 60 else name[:57] + "...")


def listing(names: list[str]) -> str:
    """Some names, quoted."""
    if not names:
        return "none"
    shown = ", ".join(short(name) for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8:,} more"


def listing_shape(shape: tuple[int, ...]) -> str:
    """A shape from a stranger, not long."""
    return str(shape) if len(shape) <= 8 else f"({', '.join(map(str, shape[:8]))}, ...)"
