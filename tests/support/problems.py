"""Random attention problems as a caller would write them, each with what the definition is to be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import qkv
from qkv import bounds
from qkv.floats import FLOATS

from .arrays import DTYPES, STRIDES, cast, restride, stored, wide
from .masks import alignments, expressions
from .meanings import Pair, Sizes, dense_of, placed

#: 0, 1, primes and the edges of tiles, blocks and splits, ±1.
SHORT = (0, 1, 1, 2, 3, 5, 7, 13, 16, 17, 31, 32, 33)
EDGES = (63, 64, 65, 127, 128, 129, 255, 256, 257)
LONG = (2047, 2048, 2049)
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 64, 65)

#: What the numbers are like: ordinary, tiny, large scores, and the edge of the type.
MAGNITUDES = ("tame", "tame", "tame", "small", "peaked", "edge", "subnormal", "values at the edge")


@dataclass(frozen=True)
class Problem:
    """One call of the front door.

    Attributes:
        query, key, value: as the caller passes them, in the caller's layout and strides. arguments: the rest of the call.
        dense: booleans (B…, H, L, S) that the mask stands for. bias: the exact numbers added, or None; bias_roundings as
            in `qkv.bounds`. pair: the mask with its dense form, or None. sizes: with positions.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    dtype: str
    arguments: dict[str, Any]
    dense: np.ndarray
    bias: np.ndarray | None
    bias_roundings: int
    pair: Pair | None
    sizes: Sizes

    @property
    def layout(self) -> str:
        return str(self.arguments.get("layout", "bhld"))

    def canonical(self, array: np.ndarray) -> np.ndarray:
        """(…) in the caller's axes to (B…, H, L, D)."""
        if array.ndim == 2:
            return array[None]
        return array.swapaxes(-2, -3) if self.layout == "blhd" else array

    def rows(self, array: np.ndarray) -> np.ndarray:
        """A log-sum-exp to (B…, H, L)."""
        return array[None] if self.query.ndim == 2 else array

    def operands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return tuple(self.canonical(x) for x in (self.query, self.key, self.value))  # type: ignore[return-value]

    def bounds(self, merges: int = 0) -> bounds.Bounds:
        """What is right, and how far from it an engine may be."""
        a = self.arguments
        return bounds.bound(
            *(stored(x) for x in self.operands()),
            self.dtype,
            allowed=self.dense,
            bias=self.bias,
            bias_roundings=self.bias_roundings,
            scale=a.get("scale"),
            softcap=a.get("softcap"),
            sink=a.get("sink"),
            merges=merges,
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        shapes = " ".join(f"{n}{x.shape}" for n, x in (("q", self.query), ("k", self.key), ("v", self.value)))
        return f"<{self.dtype} {shapes} mask={self.pair!r} {self.arguments}>"


#: Exponents of a column of queries, least and largest, and how much smaller than 1 its products with the keys are.
_EXPONENTS = {
    "float16": (-20, 12, 6),
    "bfloat16": (-131, 118, 8),
    "float32": (-134, 118, 8),
    "float64": (-1040, 1000, 40),
}


@st.composite
def sizes(draw: Any, lengths: tuple[int, ...] = SHORT, edges: bool = True) -> tuple[Sizes, int]:
    """(sizes, key heads). Long lengths come with few heads, so that an example stays a matter of milliseconds."""
    queries = draw(st.sampled_from(lengths + (EDGES if edges and draw(st.integers(0, 4)) == 0 else ())))
    keys = draw(st.sampled_from([queries, draw(st.sampled_from(lengths + (EDGES if edges else ())))]))
    if edges and draw(st.integers(0, 24)) == 0:
        queries, keys = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from(LONG))
    heavy = queries * keys > 4096
    batch = draw(st.sampled_from([(), (1,), (2,)] if heavy else [(), (), (1,), (2,), (3,), (2, 2), (0,), (1, 3)]))
    groups, sharing = draw(
        st.sampled_from([(1, 1), (2, 1), (1, 2)] if heavy else [(1, 1), (1, 1), (2, 1), (1, 3), (2, 2), (3, 3)])
    )
    return Sizes(batch, groups * sharing, queries, keys), groups


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, magnitude: str, role: str) -> np.ndarray:
    """Random numbers of one magnitude, float64, for query, key or value."""
    kind = FLOATS[dtype]
    out = np.clip(rng.standard_normal(shape), -4, 4)
    edge = np.finfo(kind.compute).max
    if magnitude == "small":
        return out * 2.0**-10
    if magnitude == "peaked":
        return out * (16 if role != "value" else 1)
    if magnitude == "edge":
        # Products of query and key come to the edge of what scores are computed in, on either side of it.
        if role == "value":
            return out * (kind.largest / 4)
        return out * min(float(np.sqrt(edge)) * rng.choice([0.25, 1.0, 4.0]), kind.largest / 4)
    if magnitude == "subnormal":
        return out * kind.smallest * 64
    if magnitude == "opposed" and role != "value":
        # A column's queries are as small as its keys are large, or the other way round, subnormal numbers included.
        low, high, apart = _EXPONENTS[dtype]
        exponent = low + np.arange(shape[-1]) * 37 % (high - low + 1)
        return out * 2.0 ** (exponent if role == "query" else -exponent - apart)
    if magnitude == "values at the edge" and role == "value":
        return np.where(rng.random(shape) < 0.9, kind.largest, -kind.largest) * rng.choice([1, 1, 1, 2.0**-3], shape)
    return out


@st.composite
def problems(
    draw: Any,
    *,
    dtypes: tuple[str, ...] = DTYPES,
    magnitudes: tuple[str, ...] = MAGNITUDES,
    lengths: tuple[int, ...] = SHORT,
    edges: bool = True,
    depth: int = 2,
    planted: bool = True,
    strides: bool = True,
) -> Problem:
    """Any call the contract covers.

    Args:
        planted: whether NaN and infinities may stand in the operands.
    """
    dtype = draw(st.sampled_from(dtypes))
    size, groups = draw(sizes(lengths, edges))
    batch, heads, queries, keys = size.batch, size.heads, size.queries, size.keys
    width, value_width = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(WIDTHS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    magnitude = draw(st.sampled_from(magnitudes))

    align = draw(alignments(size))
    pair = draw(st.none() | expressions(size, align, depth))
    arguments: dict[str, Any] = {}
    bias_kind = draw(st.sampled_from([None, None, "array", "alibi"]))
    size = placed(size, align, pair)
    dense = dense_of(pair, size).reshape(*batch, heads, queries, keys)
    if pair is not None:
        arguments["mask"] = pair.mask
    bias, roundings = None, 0
    if bias_kind == "array":
        arguments["bias"], bias = _bias_array(draw, rng, dtype, dense)
    elif bias_kind == "alibi":
        slopes = rng.choice([0.0, 0.5, 0.125, -0.25, 1.0], heads)
        arguments["bias"], roundings = qkv.alibi(slopes, align=align), 3
        _, _, p, j = size.axes()
        bias = (-slopes[None, :, None, None] * abs(p - j)).reshape(*batch, heads, queries, keys)
    elif pair is None or not pair.positional:
        # Nothing speaks of positions, so nothing said where they are.
        size = placed(size, None, None)
    if draw(st.integers(0, 2)) == 0:
        arguments["scale"] = draw(st.sampled_from([0.0, 1.0, -0.5, 3.0, 2.0**-20]))
    if draw(st.integers(0, 3)) == 0:
        arguments["softcap"] = draw(st.sampled_from([0.5, 5.0, 50.0, 2.0**-100, 2.0**100]))
    if draw(st.integers(0, 3)) == 0:
        arguments["sink"] = rng.choice([-30.0, -1.0, 0.0, 2.5, 40.0], heads)

    q, k, v = (
        cast(numbers(rng, (*batch, h, n, w), dtype, magnitude, role), dtype)
        for h, n, w, role in (
            (heads, queries, width, "query"),
            (groups, keys, width, "key"),
            (groups, keys, value_width, "value"),
        )
    )
    if planted and draw(st.integers(0, 2)) == 0:
        for array in (q, k, v):
            plant(rng, array, draw(st.sampled_from([0, 1, 3])))
    if not batch and heads == groups == 1 and draw(st.booleans()):
        q, k, v = q[0], k[0], v[0]
    elif draw(st.integers(0, 3)) == 0:
        arguments["layout"] = "blhd"
        q, k, v = (np.ascontiguousarray(x.swapaxes(-2, -3)) for x in (q, k, v))
    if strides:
        q, k, v = (restride(x, draw(st.sampled_from(STRIDES))) for x in (q, k, v))
    return Problem(q, k, v, dtype, arguments, dense, bias, roundings, pair, size)


def plant(rng: np.random.Generator, array: np.ndarray, count: int) -> None:
    if array.size:
        at = rng.integers(0, array.size, count)
        array.reshape(-1)[at] = rng.choice([np.nan, np.inf, -np.inf], count).astype(array.dtype)


def _bias_array(draw: Any, rng: np.random.Generator, dtype: str, dense: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(as passed, exact numbers broadcast to (B…, H, L, S)). -inf forbids; NaN stands only where nothing reads it (B3)."""
    full = dense.shape
    shape = tuple(n if draw(st.integers(0, 2)) else 1 for n in full[-draw(st.integers(2, len(full))) :])
    if len(shape) == 2:
        # Two axes that could be (B, S) as well are refused (B4); four cannot be misread.
        shape = (1,) * (len(full) - 2) + shape
    found = rng.standard_normal(shape) * draw(st.sampled_from([1.0, 10.0]))
    found[rng.random(shape) < draw(st.sampled_from([0.0, 0.2]))] = -np.inf
    array = cast(found, "float32" if draw(st.booleans()) else dtype)
    if shape == full and draw(st.booleans()):
        array[~dense] = rng.choice([np.nan, np.inf, -np.inf, 0.0], int((~dense).sum())).astype(array.dtype)
    return array, np.broadcast_to(wide(array), full)
