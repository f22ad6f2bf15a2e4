"""Kernels of libraries, one small file each. An adapter imports the library it adapts, and only when it is made."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from qkv.errors import ArgumentError

from ..kernel import Kernel

__all__ = ["ADAPTERS", "Adapter", "make", "missing"]


@dataclass(frozen=True)
class Adapter:
    """One kernel that is known by name.

    Attributes:
        module: file of this folder with `make(name)`. needs: packages that have to be installed.
        short: at most seven letters, for the head of a table. aliases: other names, such as where the function lives.
        slow: left out of `--all` unless it is asked for.
    """

    module: str
    needs: tuple[str, ...]
    short: str
    aliases: tuple[str, ...] = ()
    slow: bool = False


ADAPTERS: dict[str, Adapter] = {
    "torch-sdpa": Adapter(
        "torch_sdpa",
        ("torch",),
        "sdpa",
        ("torch.nn.functional:scaled_dot_product_attention", "torch.nn.functional.scaled_dot_product_attention"),
    ),
    "torch-sdpa-math": Adapter("torch_sdpa", ("torch",), "math"),
    "torch-sdpa-flash": Adapter("torch_sdpa", ("torch",), "flash"),
    "torch-mha": Adapter(
        "torch_mha", ("torch",), "mha", ("torch.nn:MultiheadAttention", "torch.nn.MultiheadAttention")
    ),
    "torch-mha-weights": Adapter("torch_mha", ("torch",), "mha-w"),
    "torch-flex": Adapter("torch_flex", ("torch",), "flex", ("torch.nn.attention.flex_attention:flex_attention",)),
    "torch-flex-compiled": Adapter("torch_flex", ("torch",), "flex-c", slow=True),
    "jax": Adapter("jax_nn", ("jax",), "jax", ("jax.nn:dot_product_attention", "jax.nn.dot_product_attention")),
    "qkv-native": Adapter("qkv_engines", (), "qkv", ("qkv:attend", "qkv.attend")),
    "qkv-numpy": Adapter("qkv_engines", (), "qkv-np"),
}


def canonical(name: str) -> str:
    """The adapter's name for a name or an alias, "" where there is none."""
    if name in ADAPTERS:
        return name
    return next((n for n, a in ADAPTERS.items() if name in a.aliases), "")


def missing(name: str) -> list[str]:
    """Packages an adapter needs and that are not installed."""
    return [package for package in ADAPTERS[name].needs if importlib.util.find_spec(package) is None]


def make(name: str) -> Kernel:
    """The kernel of an adapter.

    Raises:
        ArgumentError: there is none of this name. ImportError: its library is not installed.
    """
    if name not in ADAPTERS:
        raise ArgumentError(f"there is no adapter {name!r}; there are {', '.join(ADAPTERS)}")
    module = importlib.import_module(f".{ADAPTERS[name].module}", __name__)
    kernel: Kernel = module.make(name)
    return kernel
