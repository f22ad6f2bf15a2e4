"""The peers: each gets a shape and its numbers, prepares what its users would prepare once, and gives a function that
computes the output (batch, heads, queries, width); or None where it has nothing of its own to say about that shape.

To add one, write such a function and add it to PEERS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers import arrays, onnx_runtime, ours, torch_flex, torch_sdpa, vllm
from shapes import Inputs, Shape

Run = Callable[[], Any]
Prepare = Callable[[Shape, Inputs], "Run | None"]

OWN: Prepare = ours.native

PEERS: dict[str, Prepare] = {
    "torch SDPA": torch_sdpa.plain,
    "torch SDPA, sliced": torch_sdpa.sliced,
    "torch SDPA, loop": torch_sdpa.loop,
    "torch SDPA, folded": torch_sdpa.folded,
    "torch Flex, compiled": torch_flex.compiled,
    "vLLM": vllm.attention,
    "vLLM, with its cache write": vllm.attention_and_write,
    "JAX": arrays.jax,
    "onnxruntime": onnx_runtime.attention,
    "NumPy formula": arrays.numpy,
    "qkv, NumPy engine": ours.numpy,
}
