"""One question to a kernel, in canonical axes, and what came back. Plain data: it travels to the child process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.floats import FLOATS, narrow, widen

from .where import WHERE

__all__ = ["Array", "Call", "Result", "rounded"]

Array = npt.NDArray[Any]


def rounded(numbers: Any, dtype: str) -> Array:
    """The numbers rounded once to a float type, as float64 (longdouble is not needed: every type fits).

    >>> rounded([1 / 3], "bfloat16").tolist()
    [0.333984375]
    """
    wide = np.asarray(numbers, np.float64)
    if dtype == "float64":
        return wide
    with np.errstate(over="ignore"):
        return widen(narrow(wide.astype(np.float32), dtype), dtype).astype(np.float64)


def stored(numbers: Array, dtype: str) -> Array:
    """Exact numbers of a float type in its storage form (bfloat16 as its 16-bit pattern)."""
    return narrow(numbers.astype(FLOATS[dtype].compute), dtype)


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call.

    Attributes:
        query, key, value: float64 (B, H, L, D), (B, G, S, D), (B, G, S, E); numbers of `dtype`, exactly, once lifted.
        dtype: float type of the three. key_dtype: another one for key and value (F1), else None.
        mask: booleans that broadcast to (B, H, L, S), True = may read, in the shape in which they are passed.
        causal, window, lengths (B,), segments (ids of queries (L,), of keys (S,)): rules, passed as such; and
        prefix (keys for everybody, causal after them), where (the name of a rule of `WHERE`),
        offsets (where packed sequences begin and end, (N + 1,) of queries and of keys).
        align: "start", "end" or None: what is said about L != S (B6).
        bias: numbers that broadcast to (B, H, L, S), passed as they are. slopes: alibi's, (H,).
        scale, softcap, sink (H,): as in the contract; None: not passed.
        wants: what is asked for besides the output: "lse", "weights", "grad", "top". cotangent: (B, H, L, E) for "grad".
        strides: how the arrays lie in memory. repeat: how often the kernel is called, each time with fresh copies.
        watch: look for what only a program under audit would do (profile `generated`).
        odd: spelling faults put in on purpose, such as "unknown" (an argument no kernel has) or "raw mask".
        rows: query rows that are judged; None: all.
    """

    query: Array
    key: Array
    value: Array
    dtype: str = "float32"
    key_dtype: str | None = None
    mask: Array | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    lengths: Array | None = None
    segments: tuple[Array, Array] | None = None
    prefix: int | None = None
    where: str | None = None
    offsets: tuple[Array, Array] | None = None
    align: str | None = None
    bias: Array | None = None
    slopes: Array | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Array | None = None
    wants: frozenset[str] = frozenset()
    cotangent: Array | None = None
    strides: str = "plain"
    repeat: int = 1
    watch: bool = False
    odd: frozenset[str] = frozenset()
    rows: tuple[int, ...] | None = None

    def but(self, **changes: Any) -> Call:
        """The same call with some fields changed."""
        return replace(self, **changes)

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """(B, H, G, L, S, D, E)."""
        (B, H, L, D), (_, G, S, _) = self.query.shape, self.key.shape
        return B, H, G, L, S, D, self.value.shape[-1]

    @property
    def positional(self) -> bool:
        """Whether a rule asks where the queries stand (B6)."""
        rules = (self.window, self.slopes, self.prefix, self.where)
        return self.causal or any(rule is not None for rule in rules)

    @property
    def unsaid(self) -> bool:
        """Whether the contract refuses the call, because a rule could mean two things (B6)."""
        _, _, _, L, S, _, _ = self.sizes
        return self.positional and L != S and L > 0 and S > 0 and self.align is None

    @property
    def judged(self) -> list[int]:
        """The query rows that are judged."""
        return list(range(self.sizes[3])) if self.rows is None else list(self.rows)

    def positions(self) -> Array:
        """Position of each judged row among the keys, (B, rows)."""
        B, _, _, L, S, _, _ = self.sizes
        offset = np.zeros(B, np.int64)
        if L != S and self.align == "end":
            offset = (np.full(B, S) if self.lengths is None else self.lengths) - L
        return np.asarray(offset[:, None] + np.asarray(self.judged, np.int64)[None, :])

    def allowed(self) -> Array:
        """Which pairs mask and rules allow, dense, (B, H, judged rows, S); a bias of -inf is not asked here."""
        B, H, _, L, S, _, _ = self.sizes
        rows = self.judged
        out = np.ones((B, H, len(rows), S), np.bool_)
        j, p = np.arange(S), self.positions()[:, None, :, None]
        if self.mask is not None:
            out &= _pick(np.broadcast_to(self.mask, (B, H, L, S)), rows)
        if self.causal:
            out &= j <= p
        if self.window is not None:
            left, right = self.window
            out &= True if left is None else p - left <= j
            out &= True if right is None else j <= p + right
        if self.lengths is not None:
            out &= j < self.lengths[:, None, None, None]
        if self.segments is not None:
            of_query, of_key = self.segments
            out &= of_query[rows][:, None] == of_key[None, :]
        if self.offsets is not None:
            of_query, of_key = self.packed_ids()
            out &= of_query[rows][:, None] == of_key[None, :]
        if self.prefix is not None:
            out &= (j < self.prefix) | (j <= p)
        if self.where is not None:
            b, h = np.arange(B)[:, None, None, None], np.arange(H)[None, :, None, None]
            out &= WHERE[self.where](b, h, p, j)
        return out

    def packed_ids(self) -> tuple[Array, Array]:
        """Which packed sequence each query and each key is of."""
        assert self.offsets is not None
        _, _, _, L, S, _, _ = self.sizes
        of_query, of_key = (
            np.searchsorted(at, np.arange(n), "right") for at, n in zip(self.offsets, (L, S), strict=True)
        )
        return of_query, of_key

    def added(self) -> Array | None:
        """What is added to the scores, (B, H, judged rows, S), or None."""
        B, H, _, L, S, _, _ = self.sizes
        out = None if self.bias is None else _pick(np.broadcast_to(self.bias, (B, H, L, S)), self.judged)
        if self.slopes is not None:
            distance = np.abs(self.positions()[:, None, :, None] - np.arange(S))
            alibi = -self.slopes[:, None, None] * distance
            out = alibi if out is None else out + alibi
        return out


def _pick(array: Array, rows: list[int]) -> Array:
    return array[..., rows, :]


@dataclass
class Result:
    """What a kernel did with one call.

    Attributes:
        status: "answer", "refusal" (an error with words), "error" (one that says that something broke), or
            "crash" (whatever else ended the call).
        message: the error in one line.
        parts: float64 arrays in canonical axes: output, lse, weights, dq, dk, dv, top_keys, top_weights.
        dtypes: the float type each part came in.
        facts: what was seen around the call: changed inputs, shared memory, functions called in secret, …
        seconds: how long the kernel took. busy: of these, those of a processor, of all of its threads.
    """

    status: str = "answer"
    message: str = ""
    parts: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    busy: float = 0.0
