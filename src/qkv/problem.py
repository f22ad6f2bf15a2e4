"""The frozen record behind the front door: one attention problem, validated, in one spelling.

Nothing behind `contract.py` sees user arguments; everything behind it reads this.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .algebra import Mask
from .floats import Array, Float
from .frame import Frame
from .interop import Kind
from .ranges import Ints, Ranges

Floats64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Layout:
    """How the caller spells shapes: how many axes, and whether length stands before heads."""

    axes: int
    length_first: bool
    kind: Kind

    def canonical(self, array: Array) -> Array:
        """(…) as the caller has it -> a view (B…, H, L, D)."""
        if self.axes == 2:
            one: Array = array[None]
            return one
        return array.swapaxes(-2, -3) if self.length_first else array

    def spelled(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape (B…, H, L, E) in the caller's axes."""
        if self.axes == 2:
            return shape[1:]
        return (*shape[:-3], shape[-2], shape[-3], shape[-1]) if self.length_first else shape

    def restored(self, array: Array, trailing: int) -> Array:
        """(B…, H, L[, E]) -> the caller's axes. The log-sum-exp is (B…, H, L) in every layout (A1)."""
        if self.axes == 2:
            one: Array = array[0]
            return one
        if self.length_first and trailing == 1:
            return np.ascontiguousarray(array.swapaxes(-2, -3))
        return array


class Kept(NamedTuple):
    """Answers that were worked out in one pass with the output, None where they were not asked for.

    Attributes:
        entropy: (N, H, L). received: (N, H, S). top: keys and weights of a row's largest weights, (N, H, L, count) each.
    """

    entropy: Array | None = None
    received: Array | None = None
    top: tuple[Ints, Array] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention problem (axes as in the contract: B… batch, H query heads, G key heads, L, S, D, E).

    Attributes:
        query, key, value: views (B…, H, L, D), (B…, G, S, D), (B…, G, S, E) of the caller's memory, in storage form.
        dtype: the float type all three have.
        scale, softcap, sink (H,), slopes (H,): the scores' arithmetic (B1 to B3, C4); None: absent.
        bias: view (B…, H, L, S) or None, in storage form; bias_dtype its float type, bias_shape as the caller had it.
        mask: the expression, with the frame it is asked in; None allows every pair.
        frame: sizes and positions of the *whole* sequence; `first_key` is where this problem's keys begin in it (E1).
        ranges: keys each row may read, counted in this problem's own keys and clipped to [0, S).
        rule: what has to hold besides `ranges`; None: the ranges are exact.
        origin: first key of each row's own sequence, (N or 1, L or 1), in this problem's own keys (F3); may be negative.
        lost: rows for which an engine found no right finite answer, (N, H, L); None where there are none.
        sums: maximum and sum of the rows' states, (N, H, L) each, once an engine has found them. kept: what it answered then.
        empty, nonfinite: what a row without keys, or one that reads a NaN, is answered with (C2, D2).
    """

    query: Array
    key: Array
    value: Array
    dtype: Float
    scale: float
    softcap: float | None
    sink: Floats64 | None
    slopes: Floats64 | None
    bias: Array | None
    bias_dtype: str
    bias_shape: tuple[int, ...]
    mask: Mask | None
    frame: Frame
    first_key: int
    ranges: Ranges
    rule: Mask | None
    origin: Ints
    empty: Literal["raise", "zero"]
    nonfinite: Literal["raise", "propagate"]
    layout: Layout
    lost: npt.NDArray[np.bool_] | None = None
    sums: tuple[Array, Array] | None = None
    kept: Kept | None = None

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes B…."""
        return self.query.shape[:-3]

    @property
    def batches(self) -> int:
        """N, all batch axes flattened."""
        return self.frame.batches

    @property
    def heads(self) -> int:
        """H, query heads."""
        return int(self.query.shape[-3])

    @property
    def groups(self) -> int:
        """G, key/value heads."""
        return int(self.key.shape[-3])

    @property
    def sharing(self) -> int:
        """Query heads that read one key/value head (A2)."""
        return self.heads // self.groups

    @property
    def queries(self) -> int:
        """L."""
        return int(self.query.shape[-2])

    @property
    def keys(self) -> int:
        """S, keys of this problem (a part of the frame's when it is a partial one)."""
        return int(self.key.shape[-2])

    @property
    def width(self) -> int:
        """D."""
        return int(self.query.shape[-1])

    @property
    def value_width(self) -> int:
        """E."""
        return int(self.value.shape[-1])

    def at(self, n: int) -> tuple[int, ...]:
        """Flattened batch n as an index into the batch axes."""
        return tuple(int(i) for i in np.unravel_index(n, self.batch)) if self.batch else ()

    @cached_property
    def positions(self) -> Ints:
        """Position of each row counted in this problem's own keys: (N or 1, L)."""
        return self.frame.positions() - self.first_key

    def allowed(self, n: int, heads: slice, rows: Ints, lo: int, hi: int) -> npt.NDArray[np.bool_]:
        """Pairs that mask and lengths allow (the bias not asked): broadcasts to (heads, rows, hi - lo)."""
        cols = np.arange(lo, hi, dtype=np.int64)
        out = self.ranges.inside(n, rows, cols)
        if self.rule is not None:
            out = out & self.rule.tile(self.frame, n, heads, rows, cols + self.first_key)
        return out

    def same(self, other: Problem) -> bool:
        """Whether two records state one problem, whatever way it was spelled (habit 3 of the house)."""

        def equal(a: Any, b: Any) -> bool:
            if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
                return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            if isinstance(a, Ranges) and isinstance(b, Ranges):
                shape = np.broadcast_shapes(a.lo.shape, b.lo.shape) if a.count == b.count else None
                return shape is not None and bool(np.all(a.lo == b.lo) and np.all(a.hi == b.hi))
            return bool(a == b)

        spelling = ("mask", "frame", "layout", "rule", "bias_shape", "lost", "sums", "kept")
        return all(
            equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.name not in spelling
        ) and ((self.rule is None) == (other.rule is None))
