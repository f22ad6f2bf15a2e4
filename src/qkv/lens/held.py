"""Where the tensors of a capture lie: on the host, on the model's device, or in a file; and how they come to the host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import FileError
from qkv.files import read_tensors
from qkv.floats import Array

__all__ = ["Stored", "host", "is_tensor", "on_device"]


@dataclass(frozen=True, eq=False)
class Stored:
    """An array in a file, read when it is asked for and not kept afterwards.

    Attributes:
        path, name: the file and the array's name in it. shape, dtype: as the file's record says; held against the array.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes in memory: none."""
        return 0

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def read(self) -> Array:
        """The array."""
        found = read_tensors(self.path, names=[self.name])[self.name].array
        if found.shape != self.shape or found.dtype != self.dtype:
            raise FileError(
                f"file {str(self.path)!r} has {self.name!r} as {found.shape} of {found.dtype}, but its record says {self.shape} of {self.dtype}; "
                "capture again, it was changed"
            )
        return found

    def __getitem__(self, at: Any) -> Array:
        part: Array = self.read()[at]
        return part


def is_tensor(array: Any) -> bool:
    """Whether it is a tensor of torch."""
    return type(array).__module__.partition(".")[0] == "torch"


def host(array: Any) -> Array:
    """An array on the host: a tensor copied to memory of its own, half types as float32, which holds them exactly."""
    if isinstance(array, Stored):
        return array.read()
    if not is_tensor(array):
        already: Array = array
        return already
    import torch

    kept = array.detach()
    narrow = kept.dtype in (torch.float16, torch.bfloat16)
    there = kept.to("cpu", torch.float32 if narrow else kept.dtype).numpy()
    # Moved or widened it is new memory already; else it is still the model's.
    out: Array = np.ascontiguousarray(there) if narrow or kept.device.type != "cpu" else np.array(there, order="C")
    return out


def on_device(tensor: Any) -> Any:
    """A tensor as it is, where it is, in memory of its own: the model may write over what it gave."""
    return tensor.detach().clone()
