"""The problems that everybody is timed on, and the numbers they are made of."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

import qkv

Array = Any

#: Lengths of a ragged batch, from an eighth of full length on: what a server finds in its queue.
RAGGED = (128, 384, 640, 896, 1152, 1536, 1792, 2048)
#: 64 documents of 64 … 1024 tokens; the same ones each time.
DOCUMENTS = tuple(int(n) for n in np.random.default_rng(7).integers(64, 1025, 64))


@dataclass(frozen=True)
class Shape:
    """One problem: query (batch, heads, queries, width), key and value (batch, key_heads, keys, width).

    Attributes:
        causal, window: a row reads no later key; and of those the last `window`.
        lengths: of each sequence of the batch, the tokens that count; the others are padding behind them.
        documents: their lengths where batch is 1 and all are packed one behind the other, each causal by itself.
        dtype: "float32", "bfloat16" or "float16".
    """

    name: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    window: int | None = None
    lengths: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """The name with its dtype, as tables write it."""
        return f"{self.name}, {self.dtype}"

    @property
    def masked(self) -> bool:
        """Whether any pair is forbidden."""
        return self.causal or self.window is not None or bool(self.lengths) or bool(self.documents)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where documents begin in the packed arrays, and their end."""
        return (0, *itertools.accumulate(self.documents))

    def rows(self, batch: int) -> int:
        """The rows of a sequence that count."""
        return self.lengths[batch] if self.lengths else self.queries

    def allowed(self, batch: int, rows: Array) -> Array:
        """The dense mask of some rows of a sequence, (rows, keys)."""
        place, key = rows[:, None] + self.keys - self.queries, np.arange(self.keys)
        seen = np.ones((len(rows), self.keys), bool)
        if self.causal or self.documents:
            seen &= key <= place
        if self.window is not None:
            seen &= key > place - self.window
        if self.lengths:
            seen &= key < self.lengths[batch]
        if self.documents:
            document = np.searchsorted(self.offsets, key, side="right")
            seen &= document == document[rows][:, None]
        return seen

    @cached_property
    def pairs(self) -> int:
        """Query-key pairs that count, all heads and sequences together."""
        total = 0
        for b in range(self.batch):
            rows = np.arange(self.rows(b))
            total += sum(
                int(self.allowed(b, part).sum()) for part in np.array_split(rows, 1 + len(rows) // 512) if len(part)
            )
        return total * self.heads

    @property
    def work(self) -> int:
        """Useful floating-point operations: a multiplication and an addition for score and mixture of each pair."""
        return 4 * self.width * self.pairs

    @property
    def key_bytes(self) -> int:
        """Bytes of keys and values, which decoding has to read once."""
        return 2 * self.batch * self.key_heads * self.keys * self.width * (4 if self.dtype == "float32" else 2)

    def mask(self) -> qkv.Mask | None:
        """The mask as qkv spells it. Documents have offsets of their own instead."""
        masks: list[qkv.Mask] = [qkv.causal()] if self.causal or self.documents else []
        if self.window is not None:
            masks.append(qkv.window(self.window - 1, 0))
        if self.lengths:
            ids = np.arange(self.queries) < np.array(self.lengths)[:, None]
            # Padding has another id as a query than as a key, so a padded row reads nothing.
            masks.append(qkv.segments(np.where(ids, 1, -1), np.where(ids, 1, 0)))
        for one in masks[1:]:
            masks[0] &= one
        return masks[0] if masks else None


def _shapes() -> tuple[Shape, ...]:
    dense = [("16 × 1024², d64", 16, 16, 1024, 64), ("16 × 4096², d64", 16, 16, 4096, 64)]
    dense += [("32 × 2048², d128", 32, 32, 2048, 128)]
    found: list[Shape] = []
    for dtype in ("float32", "bfloat16", "float16"):
        for causal in (False, True):
            for name, heads, key_heads, length, width in [*dense, ("32/8 × 2048², d128", 32, 8, 2048, 128)][
                : 3 + causal
            ]:
                kind = "causal" if causal else "full"
                found.append(
                    Shape(f"{kind} {name}", 1, heads, key_heads, length, length, width, causal=causal, dtype=dtype)
                )
        found += [
            Shape("window 256 of 16 × 8192², d64", 1, 16, 16, 8192, 8192, 64, causal=True, window=256, dtype=dtype),
            Shape("ragged 8 × 16 × 2048², d64", 8, 16, 16, 2048, 2048, 64, lengths=RAGGED, dtype=dtype),
            Shape(
                "packed 64 documents, 16 heads, d64",
                1, 16, 16, sum(DOCUMENTS), sum(DOCUMENTS), 64, documents=DOCUMENTS, dtype=dtype,
            ),
            Shape("decode 32/8 × 8192, d128", 1, 32, 8, 1, 8192, 128, dtype=dtype),
            Shape("decode 8 × 32/8 × 4096, d128", 8, 32, 8, 1, 4096, 128, dtype=dtype),
            Shape("decode 32 × 32768, d128", 1, 32, 32, 1, 32768, 128, dtype=dtype),
            Shape("cross 16 × 64 × 4096, d64", 1, 16, 16, 64, 4096, 64, dtype=dtype),
            Shape("small 8 × 32², d64", 1, 8, 8, 32, 32, 64, dtype=dtype),
        ]  # fmt: skip
    return tuple(found)


SHAPES = _shapes()


@dataclass
class Inputs:
    """The same random numbers for everybody: standard normal, as layers with normalisation roughly have them.

    Attributes:
        query, key, value: NumPy arrays of the shape's dtype; bfloat16 through `ml_dtypes`.
    """

    query: Array
    key: Array
    value: Array
    _tensors: tuple[Any, Any, Any] | None = field(default=None, repr=False)

    def torch(self) -> tuple[Any, Any, Any]:
        """The same memory as torch tensors."""
        if self._tensors is None:
            import torch

            def tensor(x: Array) -> Any:
                if x.dtype.name == "bfloat16":
                    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
                return torch.from_numpy(x)

            self._tensors = (tensor(self.query), tensor(self.key), tensor(self.value))
        return self._tensors


def inputs(shape: Shape) -> Inputs:
    """Numbers for a shape."""
    rng = np.random.default_rng(0)
    if shape.dtype == "bfloat16":
        import ml_dtypes

        dtype: Any = ml_dtypes.bfloat16
    else:
        dtype = np.dtype(shape.dtype)

    def draw(heads: int, length: int) -> Array:
        return rng.standard_normal((shape.batch, heads, length, shape.width), np.float32).astype(dtype)

    return Inputs(
        draw(shape.heads, shape.queries), draw(shape.key_heads, shape.keys), draw(shape.key_heads, shape.keys)
    )


def as_numpy(result: Any) -> Array:
    """A result of any kind as a float32 NumPy array (batch, heads, rows, width)."""
    if hasattr(result, "detach"):
        return result.detach().float().numpy()
    return np.asarray(result).astype(np.float32)
