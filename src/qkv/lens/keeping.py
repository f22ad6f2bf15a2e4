"""A capture in a file: written layer by layer while the model runs, and read again piece by piece.

The file is an `.npz`, so `numpy.load` reads it too; nothing in it is ever unpickled, and what its record says is held against
its arrays before they are used.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import ArgumentError, FileError
from qkv.files import read_tensors
from qkv.floats import Array
from qkv.ranges import Ranges

from .held import Stored, host
from .layer import Layer, Projection
from .reads import Reads

__all__ = ["Writer", "read_capture"]

_RECORD = "capture"
_LARGE = ("query", "key", "value", "weight", "bias", "out_bias", "value_bias")
_SMALL = ("heads", "groups", "rows", "positions", "lo", "hi", "sink")
_AXES = {"query": 4, "key": 4, "value": 4, "weight": 3, "bias": 4, "out_bias": 1, "value_bias": 2} | {
    "heads": 1,
    "groups": 1,
    "rows": 1,
    "positions": 1,
    "lo": 3,
    "hi": 3,
    "sink": 1,
}


def _arrays(layer: Layer) -> dict[str, Any]:
    return {
        "query": layer.query,
        "key": layer.key,
        "value": layer.value,
        "heads": layer.heads,
        "groups": layer.groups,
        "rows": layer.rows,
        "positions": layer.positions,
        "lo": layer.reads.ranges.lo,
        "hi": layer.reads.ranges.hi,
        "bias": layer.bias,
        "sink": layer.sink,
        "weight": layer.projection.weight,
        "out_bias": layer.projection.bias,
        "value_bias": layer.projection.value_bias,
    }


class Writer:
    """Writes layers as they come. The file appears whole or not at all: `close` moves it to its place.

    Raises:
        ArgumentError: a path that does not end in .npz. FileError: a place that cannot be written to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix != ".npz":
            raise ArgumentError(
                f'to must be "host", "device" or a path that ends in .npz, but {str(path)!r} came; capture.npz is one'
            )
        if self.path.exists() and not self.path.is_file():  # a pipe or a device would not be written to, but replaced
            raise FileError(f"file {str(path)!r} exists and is not a regular file; name another place with to=")
        self.beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self.records: list[dict[str, Any]] = []
        try:
            self.archive = zipfile.ZipFile(self.beside, "w")
        except OSError as error:
            raise _unwritten(self.path, error) from error

    def keep(self, layer: Layer) -> Layer:
        """The layer with its large arrays in the file."""
        number = len(self.records)
        shapes: dict[str, Any] = {}
        stored: dict[str, Stored] = {}
        for name, array in _arrays(layer).items():
            if array is None:
                continue
            there = host(array)
            shapes[name] = [list(there.shape), there.dtype.name]
            self._write(f"{number}.{name}", there)
            if name in _LARGE:
                stored[name] = Stored(self.path, f"{number}.{name}", there.shape, there.dtype)
        self.records.append(
            {
                "name": layer.name,
                "index": layer.index,
                "queries": layer.reads.queries,
                "scale": layer.scale,
                "softcap": layer.softcap,
                "rotary": layer.rotary,
                "arrays": shapes,
            }
        )
        return _with(layer, stored)

    def close(self, tokens: tuple[str, ...] | None, facts: Mapping[str, str]) -> None:
        """Write the record and move the file to its place."""
        words = None if tokens is None else list(tokens)
        text = json.dumps({"layers": self.records, "tokens": words, "facts": dict(facts)}, ensure_ascii=True)
        self._write(_RECORD, np.frombuffer(text.encode("ascii"), np.uint8))
        try:
            self.archive.close()
            self.beside.replace(self.path)
        except OSError as error:
            raise _unwritten(self.path, error) from error

    def give_up(self) -> None:
        """Leave nothing behind."""
        self.archive.close()
        self.beside.unlink(missing_ok=True)

    def _write(self, name: str, array: Array) -> None:
        try:
            # A ZipInfo of its own carries no time of day, so that the same capture gives the same bytes.
            with self.archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        except OSError as error:
            raise _unwritten(self.path, error) from error


def _unwritten(path: Path, error: OSError) -> FileError:
    return FileError(f"file {str(path)!r} cannot be written ({error.strerror or error}); name another place with to=")


def _with(layer: Layer, stored: Mapping[str, Any]) -> Layer:
    def of(name: str, now: Any) -> Any:
        return stored.get(name, now)

    old = layer.projection
    return replace(
        layer,
        query=of("query", layer.query),
        key=of("key", layer.key),
        value=of("value", layer.value),
        bias=of("bias", layer.bias),
        projection=Projection(of("weight", old.weight), of("out_bias", old.bias), of("value_bias", old.value_bias)),
    )


# Reading --------------------------------------------------------------------------------------------------------------


def read_capture(path: str | os.PathLike[str]) -> tuple[tuple[Layer, ...], tuple[str, ...] | None, dict[str, str]]:
    """(layers, tokens, facts) of a file that `Writer` wrote; large arrays stay in it until they are asked for."""
    place = Path(path)
    try:
        return _read(place)
    except FileError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError, AttributeError) as error:
        raise _odd(place, "a record that no capture has") from error


def _odd(path: Path, what: str) -> FileError:
    return FileError(
        f"file {str(path)!r} must be a capture that qkv.lens.capture(…, to=…) wrote, but has {what}; capture again"
    )


def _read(path: Path) -> tuple[tuple[Layer, ...], tuple[str, ...] | None, dict[str, str]]:
    text = read_tensors(path, names=[_RECORD], max_bytes=1 << 28)[_RECORD].array
    if text.dtype != np.uint8 or text.ndim != 1:
        raise _odd(path, "no record in it")
    record = json.loads(text.tobytes().decode("ascii"))
    tokens, facts = record["tokens"], record["facts"]
    words_fit = tokens is None or all(isinstance(word, str) for word in tokens)
    if not words_fit or not all(isinstance(x, str) for pair in facts.items() for x in pair):
        raise _odd(path, "tokens or facts that are not text")
    layers = tuple(_layer(path, number, one) for number, one in enumerate(record["layers"]))
    return layers, None if tokens is None else tuple(tokens), dict(facts)


def _layer(path: Path, number: int, record: Mapping[str, Any]) -> Layer:
    declared = record["arrays"]
    large: dict[str, Any] = {}
    for name in _LARGE:
        if name in declared:
            shape, dtype = declared[name]
            kind = np.dtype(dtype)
            axes = tuple(int(n) for n in shape)
            if kind.name not in ("float32", "float64") or len(axes) != _AXES[name] or min(axes, default=0) < 0:
                raise _odd(path, f"{name} of layer {number} as {axes} of {kind}")
            large[name] = Stored(path, f"{number}.{name}", axes, kind)
    wanted = {f"{number}.{name}": name for name in _SMALL if name in declared}
    small = {wanted[name]: found.array for name, found in read_tensors(path, names=wanted).items()}
    _check(path, number, large, small)
    softcap = record["softcap"]
    empty = Projection(None, None, None)
    layer = Layer(
        name=str(record["name"]),
        index=int(record["index"]),
        query=large["query"],
        key=large["key"],
        value=large["value"],
        heads=small["heads"],
        groups=small["groups"],
        rows=small["rows"],
        positions=small["positions"],
        reads=Reads(Ranges(small["lo"], small["hi"]), int(record["queries"])),
        bias=None,
        scale=float(record["scale"]),
        softcap=None if softcap is None else float(softcap),
        sink=small.get("sink"),
        projection=empty,
        rotary=bool(record["rotary"]),
    )
    return _with(layer, large)


def _check(path: Path, number: int, large: Mapping[str, Stored], small: Mapping[str, Array]) -> None:
    """Shapes that fit one another, and indices that lie where they point."""
    (batch, heads, rows, width), (groups, keys), wide = (
        large["query"].shape,
        large["key"].shape[1:3],
        large["value"].shape[3],
    )
    fits = {
        "key": (batch, groups, keys, width),
        "value": (batch, groups, keys, wide),
        "heads": (heads,),
        "groups": (heads,),
        "rows": (rows,),
        "positions": (rows,),
        "sink": (heads,),
        "value_bias": (groups, wide),
    }
    everything: dict[str, Any] = {**large, **small}
    for name, shape in fits.items():
        if name in everything and everything[name].shape != shape:
            raise _odd(path, f"{name} of layer {number} as {everything[name].shape} and not {shape}")
    if "weight" in large and large["weight"].shape[:2] != (heads, wide):
        raise _odd(path, f"weight of layer {number} as {large['weight'].shape}")
    if "bias" in large and any(
        n not in (1, m) for n, m in zip(large["bias"].shape, (batch, heads, rows, keys), strict=True)
    ):
        raise _odd(path, f"bias of layer {number} as {large['bias'].shape}")
    lo, hi = small["lo"], small["hi"]
    whole = all(small[name].dtype == np.int64 for name in _SMALL if name != "sink")
    some = (
        lo.ndim == 3
        and lo.shape == hi.shape
        and lo.shape[0] in (1, batch)
        and lo.shape[1] in (1, rows)
        and lo.shape[2] > 0
    )
    if not (whole and some and (lo <= hi).all() and (lo >= 0).all() and (lo[..., 1:] >= hi[..., :-1]).all()):
        raise _odd(path, f"runs of keys of layer {number} that are none")
    if heads < 1 or groups < 1 or not ((small["groups"] >= 0) & (small["groups"] < groups)).all():
        raise _odd(path, f"heads of layer {number} that read no key head of it")
    if (np.abs(small["positions"]) > 1 << 40).any() or ("sink" in small and small["sink"].dtype != np.float64):
        raise _odd(path, f"positions or sinks of layer {number} that no model has")
