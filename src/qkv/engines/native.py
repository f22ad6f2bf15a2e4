"""The native engine: the only file that touches the extension module.

It imports where no extension could be built; `available()` and `why_not()` then say so.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import EngineError
from .threads import default_threads

_extension: Any = None
_reason = ""
try:
    _extension = importlib.import_module("qkv._native")
except ImportError as error:  # no compiler when the package was built, or it was built for another machine
    _reason = f"the extension module could not be imported ({error})"

__all__ = [
    "Call",
    "Keep",
    "Result",
    "available",
    "default_threads",
    "level",
    "levels",
    "recipe",
    "run",
    "why_not",
]

Array = npt.NDArray[Any]

_DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
_STORAGE = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32, "float64": np.float64}


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call, validated and planned.

    Attributes:
        query, key, value: (B…, H, L, D), (B…, G, S, D), (B…, G, S, E), any strides; bfloat16 as its uint16 patterns.
        dtype: the float type all three have: "float16", "bfloat16", "float32" or "float64".
        scale, softcap: as in the contract (B1, B2); softcap None: absent.
        offset: int64 (N,), position of row 0 among the keys, for each of the N flattened batches (B6).
        lo, hi: int32 (1 or N, L, K): row i may read the keys lo <= j < hi of each of its K disjoint ascending ranges.
        tile_rows, block, split, spread, threads: the plan; only block and split may change bits.
        slopes, sink: float64 (H,).
        bias: (B…, H, L, S) view in the query's dtype or float32; bias_dtype its float type.
        allow: bool or uint8 (B…, H, L, S) view; a 0 forbids the pair.
        origin: int32 (1 or N, L), first key of each row's own sequence; None: key 0 (F3).
        want: "output" for output and lse, "state" for max, sum and mix, "both" for all of them but mix.
    """

    query: Array
    key: Array
    value: Array
    dtype: str
    scale: float
    offset: npt.NDArray[np.int64]
    lo: npt.NDArray[np.int32]
    hi: npt.NDArray[np.int32]
    tile_rows: int
    block: int
    split: int
    spread: bool
    threads: int
    softcap: float | None = None
    slopes: npt.NDArray[np.float64] | None = None
    sink: npt.NDArray[np.float64] | None = None
    bias: Array | None = None
    bias_dtype: str = "float32"
    allow: Array | None = None
    origin: npt.NDArray[np.int32] | None = None
    want: Literal["output", "state", "both"] = "output"


class Result(NamedTuple):
    """What a call computed; arrays that were not wanted are None.

    Attributes:
        output: (B…, H, L, E) in the query's storage dtype; lse (B…, H, L) in the compute dtype.
        max, sum, mix: the running state, without the sink, in the compute dtype.
        status: uint8 (B…, H, L), a row's bits: 1 a pair is allowed, 2 a NaN or infinity was read, 4 a score overflowed,
            8 an allowed score overflowed to -inf. Output and lse are NaN with bit 2 or 4, or with bit 1 and no finite
            score; max, sum and mix are NaN with bit 2 or 4, and the empty state where no score is finite.
        status_any, status_all: OR and AND over all rows (both 0 if there are none).
        blocks_touched: key blocks packed, summed over tasks.
    """

    output: Array | None
    lse: Array | None
    max: Array | None
    sum: Array | None
    mix: Array | None
    status: npt.NDArray[np.uint8]
    status_any: int
    status_all: int
    blocks_touched: int


class Keep(NamedTuple):
    """Where answers about a call's weights go that are wanted from the same pass, in the compute dtype; None: not wanted.

    Attributes:
        first_key: added to `keys`. entropy: (N, H, L). received: (N, H, S). keys, weights: of a row's largest weights, int64
            and compute dtype, (N, H, L, count).
    """

    first_key: int
    entropy: Array | None
    received: Array | None
    keys: npt.NDArray[np.int64] | None
    weights: Array | None


def available() -> bool:
    """Whether the extension is there."""
    return _extension is not None


def why_not() -> str:
    """Why the extension is not there, a clause to go on a sentence with; empty if it is there."""
    return _reason


def levels() -> tuple[str, ...]:
    """The instruction levels this machine can run, the slowest first."""
    found: tuple[str, ...] = _loaded().levels()
    return found


@lru_cache(maxsize=1)
def level() -> str:
    """The level in use: the last of `levels`, or the one that `QKV_ISA` names."""
    here = levels()
    name = os.environ.get("QKV_ISA", "")
    if name and name not in here:
        raise EngineError(
            f"QKV_ISA must be one of {', '.join(here)} on this machine, not {name!r}; unset it to take the best"
        )
    return name or here[-1]


def run(call: Call, level_name: str | None = None, output: Array | None = None, keep: Keep | None = None) -> Result:
    """Carries the call out on the level in use, or on the one named; into `output` if given, (B…, H, L, E)
    with either heads or length first in memory. With `keep` also its answers, from the same pass."""
    extension = _loaded()
    shape = call.query.shape[:-1]
    storage = _STORAGE[call.dtype]
    compute = np.float64 if call.dtype == "float64" else np.float32
    wide = (*shape, call.value.shape[-1])
    status = np.empty(shape, np.uint8)
    lse = top = total = mix = None
    if call.want != "state":
        output = np.empty(wide, storage) if output is None else output
        lse = np.empty(shape, compute)
    if call.want != "output":
        top, total = np.empty(shape, compute), np.empty(shape, compute)
    if call.want == "state":
        mix = np.empty(wide, compute)
    way, asked = (extension.attend, ()) if keep is None else (extension.keep, keep)
    seen, shared, blocks = way(
        _index(level_name or level()), _arguments(call), output, lse, top, total, mix, status, *asked
    )
    return Result(output, lse, top, total, mix, status, seen, shared, blocks)


def answers(
    call: Call,
    base: Array | None,
    whole: Array | None,
    run: int,
    *,
    first_key: int = 0,
    entropy: Array | None = None,
    received: Array | None = None,
    top: tuple[Array, Array] | None = None,
    score: tuple[Array, npt.NDArray[np.bool_]] | None = None,
    level_name: str | None = None,
) -> None:
    """Questions about the weights exp(score - base) / whole of a call, answered into the arrays given.

    Args:
        base, whole: (N, H, L) in the compute dtype; base finite, whole NaN for a row that has no right answer. None where
            only scores are asked for.
        run: keys that share one pass over the rows for `received`.
        first_key: added to the keys in `top`.
        entropy: (N, H, L). received: (N, H, S). top: int64 keys and weights, (N, H, L, count). score: scores and whether
            a pair is allowed, (N, H, L, S), written where it is. All contiguous.
    """
    keys, weights = (None, None) if top is None else top
    scores, reach = (None, None) if score is None else score
    _loaded().answers(
        _index(level_name or level()),
        _arguments(call),
        run,
        base,
        whole,
        first_key,
        entropy,
        received,
        keys,
        weights,
        scores,
        reach,
    )


def survey(
    call: Call,
    base: Array,
    whole: Array,
    part: Array,
    position: Array,
    *,
    entropy: Array | None = None,
    distance: Array | None = None,
    received: tuple[Array, Array, float] | None = None,
    pooled: tuple[Array, Array, Array] | None = None,
    first: tuple[int, int] = (0, 0),
    level_name: str | None = None,
) -> None:
    """A summary's questions about the weights in one pass over a call's pairs, answered into the arrays given.

    Args:
        base, whole, part: (N, H, L) in the compute dtype: a weight is exp(score - base) / whole among the keys alone and
            exp(score - base) * part beside the sink; base finite, the others NaN for a row that has no right answer.
        position: int64 (1 or N, L), where each row stands among the keys.
        entropy, distance: (N, H, L).
        received: int64 (N, H, S), uint8 (N, H, S) and a unit: sums of weights in units of 1 / unit are added to the first,
            and the second becomes 1 where a row without a right answer may read the key.
        pooled: zeros (N, H, bands, cells), and the int64 edges of bands and cells. first: number of the call's first row
            and first key among those edges.
    """
    sums, spoiled, unit = (None, None, 1.0) if received is None else received
    cells, row_edge, key_edge = (None, None, None) if pooled is None else pooled
    _loaded().survey(
        _index(level_name or level()),
        _arguments(call),
        base,
        whole,
        part,
        position,
        entropy,
        distance,
        sums,
        spoiled,
        unit,
        cells,
        row_edge,
        key_edge,
        *first,
    )


def shares(
    call: Call,
    base: Array,
    whole: Array,
    output: Array,
    run: int,
    *,
    weight: Array | None = None,
    norm: Array | None = None,
    share: Array | None = None,
    relative: Array | None = None,
    vectors: Array | None = None,
    counted: tuple[Array, Array] | None = None,
    level_name: str | None = None,
) -> None:
    """What each key put into the output of a row, and what the output would be without it, written into the arrays given.

    Args:
        base, whole: (N, H, L) in the compute dtype: the weight w of a pair, beside the sink, is exp(score - base) / whole; base
            finite, whole NaN for a row that has no right answer. output: (N, H, L, E), o in the compute dtype.
        run: keys of one task.
        weight: w. norm: w |v|. share: w v·o / |o|². relative: |o - o'| / |o| with o' the output without the key, all (N, H, L, S).
        vectors: o' - o, (N, H, L, S, E). Zeros before, which forbidden pairs keep; meaningless where o is 0.
        counted: int64 zeros (N, H, L) each: how many keys a row may read, and the sum of their numbers.
    """
    heavy = None if relative is None and vectors is None else np.full(base.shape, -1, np.int64)
    _loaded().shares(
        _index(level_name or level()),
        _arguments(call),
        run,
        base,
        whole,
        output,
        weight,
        norm,
        share,
        relative,
        vectors,
        *(counted or (None, None)),
        heavy,
    )


def recipe(call: Call, axes: int, reach: tuple[int, int] | None = None) -> Any:
    """The call kept without its arrays; its `run` carries it out on others of those sizes, see native/recipe.cpp.

    Args:
        axes: of the arrays of a run: 2, or as many as those of the call.
        reach: for keys that a growing cache holds, how many before and after its own a row may read; -1: all.
    """
    return _loaded().Recipe(_index(level()), _arguments(call), axes, reach)


def backward(
    call: Call,
    output: Array,
    doutput: Array,
    lse: Array,
    dlse: Array | None,
    dquery: Array,
    dkey: Array,
    dvalue: Array,
    dbias: Array | None,
    delta: Array,
    level_name: str | None = None,
) -> None:
    """The gradients of a call, written to `dquery` and `delta` and added to `dkey`, `dvalue` and `dbias`.

    Args:
        call: as it went forward; `split` says how many keys a task takes where `spread`, and no part of it changes a bit.
        output, doutput: (B…, H, L, E) in the query's storage dtype. lse, dlse: contiguous (N, H, L), compute type.
        dquery (B…, H, L, D), dkey (B…, G, S, D), dvalue (B…, G, S, E), dbias (B…, H, L, S), delta (N, H, L): compute
            type; dbias with stride 0 along rows or keys where the bias was broadcast, and then not with `spread`.
    """
    _loaded().backward(
        _index(level_name or level()),
        _arguments(call),
        output,
        doutput,
        lse,
        dlse,
        dquery,
        dkey,
        dvalue,
        dbias,
        delta,
    )


def _arguments(call: Call) -> tuple[Any, ...]:
    """What all functions of the extension take, in the order of native/call.h."""
    return (
        call.query,
        call.key,
        call.value,
        _DTYPES[call.dtype],
        call.scale,
        call.softcap or 0.0,
        call.slopes,
        call.sink,
        call.offset,
        call.bias,
        _DTYPES[call.bias_dtype],
        call.allow,
        call.lo,
        call.hi,
        call.origin,
        call.tile_rows,
        call.block,
        call.split,
        call.spread,
        call.threads,
    )


def _loaded() -> Any:
    if _extension is None:
        raise EngineError(
            f"the native engine was asked for, but is not there: {_reason}; build qkv with a C++ compiler"
        )
    return _extension


@lru_cache(maxsize=8)
def _index(name: str) -> int:
    return levels().index(name)
