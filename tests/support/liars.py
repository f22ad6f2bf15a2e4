"""Objects that are not what they say: arrays by name alone, buffers that change their mind, hooks that raise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class Raised(Exception):  # noqa: N818
    """What an object of the caller raises by itself; the caller may have it back."""


class _Quiet:
    """Nothing but a name that can be printed."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class RaisesWhenRead(_Quiet):
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Raised

    def __len__(self) -> int:
        raise Raised

    def __iter__(self) -> Any:
        raise Raised

    def __index__(self) -> int:
        raise Raised

    def __float__(self) -> float:
        raise Raised

    def __bool__(self) -> bool:
        raise Raised


class RaisesWhenCompared(_Quiet):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise Raised


class Unprintable:
    def __repr__(self) -> str:
        raise Raised


class NoArray(_Quiet):
    """Says it is an array and gives a word."""

    shape, dtype, ndim = (2, 2), np.dtype(np.float32), 2

    def __array__(self, *_: Any, **__: Any) -> Any:
        return "no array"


class FalseInterface(_Quiet):
    """An array interface without memory behind it."""

    def __init__(self, **parts: Any) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": (2, 2), "data": (0, False), **parts}


class Capsule(_Quiet):
    """Speaks DLPack, badly."""

    def __init__(self, capsule: Any, device: Any = (1, 0)) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self._capsule, Exception):
            raise self._capsule
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return self._device


class Endless(_Quiet):
    def __len__(self) -> int:
        return 1 << 60

    def __getitem__(self, at: Any) -> Any:
        return self


class Dressed(np.ndarray):
    """A subclass whose shape is another than its memory's."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return (1 << 20, 1 << 20)


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers beginning at an odd address."""
    room = np.zeros(array.nbytes + 1, np.uint8)
    out = room[1:].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def overlapping(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Rows that share their memory, one number further each."""
    room = np.arange(sum(n - 1 for n in shape) + 1).astype(dtype)
    return np.lib.stride_tricks.as_strided(room, shape, (room.itemsize,) * len(shape))


#: For any argument.
LIARS: tuple[Any, ...] = (
    RaisesWhenRead(),
    RaisesWhenCompared(),
    Unprintable(),
    NoArray(),
    FalseInterface(),
    FalseInterface(shape=(-1, 2)),
    FalseInterface(shape=(1 << 40, 1 << 40)),
    FalseInterface(typestr="nonsense"),
    FalseInterface(data=None),
    Capsule(None),
    Capsule(Raised()),
    Capsule(RuntimeError("no")),
    Capsule(BufferError("no")),
    Capsule(object(), (2, 0)),
    Capsule(object(), "cpu"),
    Capsule(object(), ()),
    Endless(),
    SimpleNamespace(shape=(2, 2), dtype=np.dtype(np.float32), ndim=2),
    np.zeros((2, 2), np.float32).view(Dressed),
    np.zeros((2, 2), np.float32).view(np.recarray),
    np.zeros((2, 2), np.float16)[::2, ::-1],
    np.zeros(4, [("x", "f4"), ("y", "f4")])["x"].reshape(2, 2),
    np.zeros((2, 2), "V4"),
    np.zeros((2, 2), "m8[s]"),
    np.zeros((2, 2), "U3"),
    np.array([[1, "a"], [None, 2.0]], object),
    np.full((2, 2), 2**63, np.uint64),
    np.zeros((2, 2), np.complex64),
    np.zeros((2, 2), np.longdouble),
    unaligned(np.ones((2, 2), np.float32)),
    overlapping((2, 3)),
    overlapping((2, 2, 3), np.float64),
    np.broadcast_to(np.float32(1), (1, 1 << 31, 2)),
    np.broadcast_to(np.float32(1), (1 << 16, 1 << 16, 1, 2, 2)),
    np.broadcast_to(np.float32(0), (1 << 15,) * 4),
    np.broadcast_to(True, (1 << 20, 1 << 20)),
    np.zeros((0, 1 << 40), np.float32),
    np.zeros((1 << 40, 0, 2), np.float32),
    2**63,
    -(2**63),
    2**1000,
    np.uint64(2**64 - 1),
    10.0**308,
    "x" * 100_000,
    b"\x00" * 1000,
    [[[[[[]]]]]],
    [0] * 10_000,
    memoryview(b"12345678"),
    bytearray(16),
    range(2**62),
    slice(None),
    NotImplemented,
    Exception("no"),
    lambda *a: None,
    (x for x in ()),
    iter([1, 2]),
    {1: 2},
    {1, 2},
)
