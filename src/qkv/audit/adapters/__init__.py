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
        slow: left out of `--all` unless it is asked for. heavy: compiles for each shape, so it is begun first.
    """

    module: str
    needs: tuple[str, ...]
    short: str
    aliases: tuple[str, ...] = ()
    slow: bool = False
    heavy: bool = False


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
    "torch-flex": Adapter(
        "torch_flex", ("torch",), "flex", ("torch.nn.attention.flex_attention:flex_attention",), heavy=True
    ),
    "torch-flex-compiled": Adapter("torch_flex", ("torch",), "flex-c", slow=True),
    "jax": Adapter(
        "jax_nn", ("jax",), "jax", ("jax.nn:dot_product_attention", "jax.nn.dot_product_attention"), heavy=True
    ),
    "keras-torch": Adapter("keras_ops", ("keras", "torch"), "ker-t"),
    "keras-jax": Adapter("keras_ops", ("keras", "jax"), "ker-j", ("keras.ops:dot_product_attention",), heavy=True),
    "keras-layer-torch": Adapter("keras_ops", ("keras", "torch"), "kly-t"),
    "keras-layer-jax": Adapter(
        "keras_ops", ("keras", "jax"), "kly-j", ("keras.layers:MultiHeadAttention",), heavy=True
    ),
    "transformers-eager": Adapter("transformers_functions", ("transformers", "torch"), "hf-eag"),
    "transformers-sdpa": Adapter("transformers_functions", ("transformers", "torch"), "hf-sdp"),
    "transformers-flex": Adapter("transformers_functions", ("transformers", "torch"), "hf-flx", slow=True),
    "onnx": Adapter("onnx_attention", ("onnx",), "onnx"),
    "onnxruntime": Adapter("onnx_attention", ("onnxruntime", "onnx"), "ort"),
    "mlx": Adapter("mlx_fast", ("mlx",), "mlx", ("mlx.core.fast:scaled_dot_product_attention",)),
    "openvino": Adapter("openvino_sdpa", ("openvino",), "ov"),
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
