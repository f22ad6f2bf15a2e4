"""One captured attention call: what its heads were given, small enough to keep, in the form the engine takes.

Everything the lens says about a head is computed from this record by the front door; nothing here has a formula.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qkv.attention import Attention, attention
from qkv.errors import ArgumentError
from qkv.floats import Array
from qkv.ranges import Ints

from .device import DeviceAttention, stays
from .held import host
from .reads import Reads

__all__ = ["Layer", "Projection"]


@dataclass(frozen=True, eq=False)
class Projection:
    """The output projection of a layer: what one head's output adds to the residual stream.

    Attributes:
        weight: (H, E, M) float32: output of head h · weight[h] is its part of the layer's output of width M.
        bias: (M,) or None.
        value_bias: (G, E) or None: the part of every value that is the same for each key; None where the layer has none.
    """

    weight: Any
    bias: Any
    value_bias: Any


@dataclass(frozen=True, eq=False)
class Layer:
    """What one attention call of the model was given. Axes: B sequences, H heads kept, L query rows kept, S keys.

    Attributes:
        name: the module's name in the model. index: its number among the model's attention calls, from 0.
        query: (B, H, L, D); key: (B, G, S, D); value: (B, G, S, E): floats, keys after RoPE; arrays on the host, tensors on
            the model's device, or `Stored` in a file.
        heads: which query heads of the layer were kept, (H,). groups: key/value head (row of `key`) each reads, (H,).
        rows: which query rows were kept, (L,). positions: key position each of them stands at, (L,).
        reads: the keys each row may read. bias: (B or 1, H or 1, L, S) numbers added to the scores, or None.
        scale, softcap, sink: as in `qkv.attend`; sink (H,) or None.
        projection: the output projection. causal: whether no row reads a key after its own position.
        rotary: whether the model turns queries and keys by their positions before its attention.
    """

    name: str
    index: int
    query: Any
    key: Any
    value: Any
    heads: Ints
    groups: Ints
    rows: Ints
    positions: Ints
    reads: Reads
    bias: Any
    scale: float
    softcap: float | None
    sink: Array | None
    projection: Projection
    rotary: bool = False

    @property
    def batches(self) -> int:
        """B."""
        return int(self.query.shape[0])

    @property
    def keys(self) -> int:
        """S."""
        return int(self.key.shape[-2])

    @property
    def end(self) -> int:
        """The position after the last: of the keys or, where there are more queries than keys, of the rows kept."""
        return max(self.keys, int(self.positions.max(initial=-1)) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes this record keeps."""
        arrays = [self.query, self.key, self.value, *([] if self.bias is None else [self.bias])]
        return sum(int(a.nbytes) for a in arrays) + self.reads.nbytes

    @cached_property
    def causal(self) -> bool:
        """Whether no kept row reads a key after its own position."""
        last = np.where(self.reads.ranges.lo < self.reads.ranges.hi, self.reads.ranges.hi, 0).max(axis=-1, initial=0)
        return bool((last <= self.positions + 1).all())

    def slot(self, head: int) -> int:
        """Where query head `head` of the model's layer is among the heads kept."""
        found = np.flatnonzero(self.heads == head)
        if not len(found):
            raise ArgumentError(
                f"head must be one of the heads kept of {self.name}, {_few(self.heads)}, but {head} came; capture with heads={head}"
            )
        return int(found[0])

    def row(self, query: int) -> int:
        """Where query row `query` of the sequence is among the rows kept; negative ones count from the last."""
        wanted = query + self.end if query < 0 else query
        found = np.flatnonzero(self.positions == wanted)
        if not len(found):
            raise ArgumentError(
                f"query must be one of the rows kept of {self.name}, {_few(self.positions)}, but {query} came; capture with queries={query}"
            )
        return int(found[0])

    def part(self, *, batch: int | None = None, head: int | None = None, rows: Ints | None = None) -> Layer:
        """The same call seen through one sequence, one head (by the model's number) or some of the kept rows."""
        out = self
        if batch is not None:
            if not 0 <= batch < self.batches:
                raise ArgumentError(f"batch must be within 0…{self.batches - 1}, but {batch} came; count from 0")
            at = slice(batch, batch + 1)
            bias = out.bias if out.bias is None or out.bias.shape[0] == 1 else out.bias[at]
            reads = out.reads.sequence(batch)
            out = replace(out, query=out.query[at], key=out.key[at], value=out.value[at], reads=reads, bias=bias)
        if head is not None:
            h = out.slot(head)
            g = int(out.groups[h])
            bias = out.bias if out.bias is None or out.bias.shape[1] == 1 else out.bias[:, h : h + 1]
            weight, value_bias = out.projection.weight, out.projection.value_bias
            out = replace(
                out,
                query=out.query[:, h : h + 1],
                key=out.key[:, g : g + 1],
                value=out.value[:, g : g + 1],
                heads=out.heads[h : h + 1],
                groups=np.zeros(1, np.int64),
                sink=None if out.sink is None else out.sink[h : h + 1],
                bias=bias,
                projection=Projection(
                    None if weight is None else weight[h : h + 1],
                    out.projection.bias,
                    None if value_bias is None else value_bias[g : g + 1],
                ),
            )
        if rows is not None:
            bias = out.bias if out.bias is None or out.bias.shape[2] == 1 else out.bias[:, :, rows]
            out = replace(
                out,
                query=out.query[:, :, rows],
                rows=out.rows[rows],
                positions=out.positions[rows],
                reads=out.reads.rows(rows),
                bias=bias,
            )
        return out

    @property
    def stays(self) -> bool:
        """Whether its tensors are asked where they are, see `qkv.lens.device`."""
        return stays(self.query)

    def valued(self, value: Array) -> Layer:
        """The same with other values, (B, G, S, any width), given on the host."""
        if not self.stays:
            return replace(self, value=value.astype(host(self.key).dtype, copy=False))
        import torch

        wide = torch.float64 if self.key.dtype == torch.float64 else torch.float32
        return replace(self, value=torch.from_numpy(value).to(self.key.device, wide))

    def on_host(self) -> Layer:
        """The same with its tensors as NumPy arrays."""
        old = self.projection
        parts = (self.query, self.key, self.value, self.bias, old.weight, old.bias, old.value_bias)
        if all(part is None or isinstance(part, np.ndarray) for part in parts):
            return self
        q, k, v, bias, *through = (None if part is None else host(part) for part in parts)
        return replace(self, query=q, key=k, value=v, bias=bias, projection=Projection(*through))

    def pooled(self, rows: int, cols: int, *, sequence: int = 0) -> Array:
        """(H, r, c): the largest weight of each head in a grid of at most `rows` × `cols` cells over its kept rows and keys."""
        one = self.part(batch=sequence)
        one = one if one.stays else one.on_host()
        one = one.valued(np.zeros((*one.key.shape[:3], 1)))  # a map needs no mixture
        out: Array = np.asarray(one.attention().pooled(min(rows, len(self.rows)), min(cols, self.keys)))[0]
        return out

    def attention(self) -> Attention | DeviceAttention:
        """These heads by the engine: `qkv.attention` of what was captured. Empty rows give 0, NaN rows NaN."""
        if not self.stays and not isinstance(self.query, np.ndarray):
            return self.on_host().attention()
        key, value = self._grouped(self.key), self._grouped(self.value)
        options = {
            "mask": self.reads,
            "bias": self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sink": self.sink,
        }
        if self.stays:
            return DeviceAttention(self.query, key, value, **options)
        return attention(self.query, key, value, **options, empty="zero", nonfinite="propagate")

    def _grouped(self, array: Any) -> Any:
        """Key/value heads such that head h reads head h // (H // G), copied only where the heads kept are uneven."""
        many, kept = array.shape[1], len(self.groups)
        if kept % many == 0 and np.array_equal(self.groups, np.arange(kept) // (kept // many)):
            return array
        return array[:, self.groups]


def _few(numbers: Any) -> str:
    if len(numbers) > 8:
        return f"{', '.join(str(int(n)) for n in numbers[:3])}, …, {int(numbers[-1])}"
    return ", ".join(str(int(n)) for n in numbers)
