"""A capture under the hook names of TransformerLens, for code that was written against its activation cache.

Names and shapes are those of its attention block: `blocks.{l}.attn.hook_…`, l being the number of the call. Nothing is
computed before it is asked for, and what a capture does not have is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qkv.errors import ArgumentError
from qkv.floats import Array

from .held import host
from .layer import Layer
from .reduced import Reduced

__all__ = ["Hooks"]

#: The `rot_` ones are of a model that turns queries and keys, the plain ones of a model that does not.
_NAMES = ("q", "k", "rot_q", "rot_k", "v", "attn_scores", "pattern", "z", "result")


class Hooks(Mapping[str, Array]):
    """Hook name -> array. B sequences, L query rows kept, S keys, H heads kept, G key/value heads, D and E widths, M the model's.

    - `hook_q` (B, L, H, D), `hook_k` (B, S, G, D): queries and keys of a model without rotary embedding. With it a capture has
      them only after they were turned: `hook_rot_q`, `hook_rot_k`.
    - `hook_v` (B, S, G, E): values. `hook_z` (B, L, H, E): the heads' outputs.
    - `hook_attn_scores` (B, H, L, S): scores after scale, softcap and mask, -inf where forbidden. `hook_pattern` (B, H, L, S):
      weights. Both are as large as they look.
    - `hook_result` (B, L, H, M): each head's output through its part of the output projection, where that is known.

    Raises:
        ArgumentError: a name that the capture does not have, which says what it has instead.

    >>> import torch, qkv.lens
    >>> class Tiny(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> hooks = qkv.lens.capture(Tiny(), torch.eye(4)[None, None]).hooks()
    >>> hooks["blocks.0.attn.hook_pattern"].shape
    (1, 1, 4, 4)
    """

    def __init__(self, layers: tuple[Any, ...]) -> None:
        self._layers: dict[int, Layer] = {one.index: one for one in layers if not isinstance(one, Reduced)}

    def __getitem__(self, name: str) -> Array:
        found = self._find(name)
        if found is None:
            raise ArgumentError(f"hook must be one that this capture has, but {name!r} came; {self._why(name)}")
        return _array(*found)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The array, or `default` where the capture does not have it."""
        found = self._find(name)
        return default if found is None else _array(*found)

    def __iter__(self) -> Iterator[str]:
        for index, layer in self._layers.items():
            yield from (f"blocks.{index}.attn.hook_{hook}" for hook in _NAMES if _has(layer, hook))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _find(self, name: str) -> tuple[Layer, str] | None:
        parts = name.split(".")
        if len(parts) != 4 or (parts[0], parts[2]) != ("blocks", "attn") or not parts[1].isdecimal():
            return None
        layer, hook = self._layers.get(int(parts[1])), parts[3].removeprefix("hook_")
        if layer is None or parts[3] == hook or hook not in _NAMES or not _has(layer, hook):
            return None
        return layer, hook

    def _why(self, name: str) -> str:
        hook = name.rpartition(".")[2].removeprefix("hook_")
        if not self._layers:
            return 'it keeps summaries; capture with keep="tensors"'
        rotary = any(layer.rotary for layer in self._layers.values())
        if hook in ("q", "k") and rotary:
            return f"queries and keys are captured after rotary embedding, so ask for hook_rot_{hook}"
        if hook in ("rot_q", "rot_k") and not rotary:
            return f"this model has no rotary embedding, so ask for hook_{hook.removeprefix('rot_')}"
        return f"list(hooks) names all of them, {next(iter(self))} the first"


def _has(layer: Layer, hook: str) -> bool:
    if hook in ("q", "k", "rot_q", "rot_k"):
        return hook.startswith("rot_") == layer.rotary
    return hook != "result" or layer.projection.weight is not None


def _array(layer: Layer, hook: str) -> Array:
    if hook in ("q", "rot_q", "k", "rot_k", "v"):
        given = {"q": layer.query, "k": layer.key, "v": layer.value}[hook[-1]]
        return np.ascontiguousarray(host(given).swapaxes(1, 2))
    asked = layer.attention()
    if hook in ("attn_scores", "pattern"):
        rows = range(len(layer.rows))
        return np.asarray(asked.scores(rows) if hook == "attn_scores" else asked.weights(rows))
    mixed = np.asarray(asked.output)
    if hook == "z":
        return np.ascontiguousarray(mixed.swapaxes(1, 2))
    through: Array = np.einsum("bhle,hem->blhm", mixed, host(layer.projection.weight), optimize=True)
    return through
