"""What is installed and what it can do here: version, engine, instruction sets, threads, optional packages."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .engines import engine_in_use, native, threads_in_use
from .version import __version__

__all__ = ["Info", "info"]

#: Packages that add something when they are there, and what.
_OPTIONAL = {
    "rich": "draws the command line",
    "safetensors": "reads .safetensors files",
    "ml_dtypes": "bfloat16 in NumPy arrays",
    "torch": "tensors in and out",
    "jax": "arrays in and out",
}


@dataclass(frozen=True)
class Info:
    """Answer of `info`; `str()` of it is a short text.

    Attributes:
        version: of this package. python, numpy: versions. system: operating system and processor family.
        engine: "native" or "numpy", what `attend` uses. why: a clause where it is not the native one, else "".
        level: instruction set in use, "" for NumPy; levels: all that this machine and build offer.
        threads: how many a call of the native engine uses now.
        row_invariant: whether the bits of a row depend on nothing but the row (F3); the NumPy engine promises only that
            the same call gives the same bits.
        optional: optional package -> whether it is installed (found without importing it).
    """

    version: str
    python: str
    numpy: str
    system: str
    engine: str
    why: str
    level: str
    levels: tuple[str, ...]
    threads: int
    row_invariant: bool
    optional: dict[str, bool]

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        engine = (
            f"native engine ({self.level}, {self.threads} threads)"
            if self.engine == "native"
            else f"NumPy engine ({self.why})"
        )
        there = ", ".join(name for name, found in self.optional.items() if found) or "none"
        return f"qkv {self.version} · {engine} · NumPy {self.numpy} · Python {self.python} · optional: {there}"


def info() -> Info:
    """Version, engine and why, instruction sets, threads, and which optional packages are there.

    >>> import qkv
    >>> qkv.info().engine in ("native", "numpy")
    True
    """
    used = engine_in_use() == "native"
    there = native.available()
    why = native.why_not() if not there else "" if used else "QKV_ENGINE=numpy"
    return Info(
        version=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        system=f"{platform.system()} {platform.machine()}",
        engine="native" if used else "numpy",
        why=why,
        level=native.level() if used else "",
        levels=tuple(native.levels()) if there else (),
        threads=threads_in_use() if used else 1,
        row_invariant=used,
        optional={name: _found(name) for name in _OPTIONAL},
    )


def _found(name: str) -> bool:
    # A module set to None in sys.modules is one that may not be imported.
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None
