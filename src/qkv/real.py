"""A trained head on a real text: the tensors that come with the package.

They were taken from SmolLM2-135M-Instruct while it read the opening of a novel; `data/README.md` says how.
NumPy only, and read from inside the package, so that this works offline and from a zip file.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

__all__ = ["RealHead", "load_head"]


@dataclass(frozen=True, eq=False)
class RealHead:
    """Three query heads of one trained layer, the key/value head they share, and what the model made of them.

    `query`, `key` and `value` are what the layer's attention saw (after RoPE); `output` is what it returned, before the
    output projection. Attention is causal with one query per token (L == S), so `output` is
    `softmax(scale * query @ key.T, causal) @ value` up to float32 rounding.

    Attributes:
        query: (3, L, 64) float32.
        key: (1, L, 64) float32.
        value: (1, L, 64) float32.
        output: (3, L, 64) float32.
        tokens: the L tokens as text; joined, they are the passage.
        layer: which layer of the model, counted from 0.
        heads: which query heads of the layer the three are, counted from 0.
        key_value_head: which key/value head of the layer they read.
        scale: what the scores are multiplied by, 1/sqrt(64).
        model: the model's name.
        licence: the licence of the model's weights.
        title: of the text.
        author: of the text.
        year: in which the text was published.
        default_head: the row of `query` a first look should take; the model calls it `heads[default_head]`.
        default_query: the token a first look should ask from.
    """

    query: npt.NDArray[np.float32]
    key: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    output: npt.NDArray[np.float32]
    tokens: tuple[str, ...]
    layer: int
    heads: tuple[int, ...]
    key_value_head: int
    scale: float
    model: str
    licence: str
    title: str
    author: str
    year: int
    default_head: int
    default_query: int

    @property
    def text(self) -> str:
        """Where the tokens come from, in words: title, author, year."""
        return f"{self.title} ({self.author}, {self.year})"


def load_head() -> RealHead:
    """Load the captured head.

    Every call gives arrays of its own, so a caller may change them.

    Example:
        >>> head = load_head()
        >>> head.query.shape, head.key.shape, head.tokens[head.default_query]
        ((3, 307, 64), (1, 307, 64), ' rabbit')
    """
    stored = resources.files(__package__).joinpath("data/smollm2_alice.npz").read_bytes()
    with np.load(io.BytesIO(stored), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    tokens = json.loads(arrays.pop("tokens").tobytes())
    return RealHead(
        **arrays,
        tokens=tuple(tokens),
        layer=about["layer"],
        heads=tuple(about["heads"]),
        key_value_head=about["key_value_head"],
        scale=about["scale"],
        model=about["model"],
        licence=about["licence"],
        title=about["title"],
        author=about["author"],
        year=about["year"],
        default_head=about["default_head"],
        default_query=about["default_query"],
    )
