"""Documents of unequal length side by side, without padding: `attend_packed` (contract A5).

A packed batch is one sequence whose rows have ranges and an origin of their own, so it needs no kernel and copies
nothing: tiles end where documents do, all tiles of all documents share one queue of threads, and a row's bits are those
of its document alone (F3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from . import engines
from .algebra import Mask
from .alibi import Alibi
from .align import Align, agreed, resolve_offset
from .attention import _carry_out
from .cache import Cache, CachePart
from .contract import canonical, read_mask, refuse_foreign
from .errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from .frame import Frame
from .interop import to_numpy
from .problem import Problem
from .ranges import Ints, Ranges, interval
from .rules import Causal, First, Prefix, Window

__all__ = ["attend_packed"]


def attend_packed(
    query: Any,
    key: Any,
    value: Any,
    query_offsets: Any,
    key_offsets: Any = None,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    empty: str = "raise",
    nonfinite: str = "raise",
    **others: Any,
) -> Any:
    """Attention of documents packed one behind the other: the queries of each read the keys of the same one.

    Args:
        query: (total queries, H, D), all documents' rows in one array; NumPy, torch, JAX or DLPack on the CPU.
        key, value: (total keys, G, D) and (total keys, G, E).
        query_offsets: integers (documents + 1,): document d has the rows query_offsets[d] … query_offsets[d + 1] - 1. So
            they begin with 0, never descend, and end with the number of rows. Flash attention calls them `cu_seqlens`.
        key_offsets: the same for the keys; left out, the same offsets as the queries.
        mask: an expression of `causal`, `window`, `prefix` and `first`, which speaks of each document by itself. Where a
            document has not as many queries as keys, `align` has to be told (B6), a position may be one per document.
        bias: None or `alibi(slopes)`.
        scale, softcap, sink, empty, nonfinite: as in `attend`.

    Returns:
        (total queries, H, E) in the caller's kind and dtype. A row's bits are those of its document alone (F3).

    Raises:
        What `attend` raises; rows are counted in the packed arrays. ShapeError, ArgumentError, DTypeError for offsets that
        do not cut the arrays into documents; UnsupportedError for masks and biases that are arrays.

    >>> import numpy as np, qkv
    >>> x, v = np.zeros((5, 1, 2)), np.array([1.0, 3.0, 10.0, 20.0, 60.0]).reshape(5, 1, 1)
    >>> qkv.attend_packed(x, x, v, [0, 2, 5], mask=qkv.causal()).ravel().tolist()
    [1.0, 2.0, 10.0, 15.0, 30.0]
    """
    if "layout" in others:
        raise UnsupportedError(
            "layout is not an argument here, since packed arrays are (total, H, D); transpose yours if heads come first"
        )
    refuse_foreign(others, attend_packed)
    problem = _problem(query, key, value, mask, bias, scale, softcap, sink, empty, nonfinite)
    queries = _offsets("query_offsets", query_offsets, "query", problem.queries)
    if key_offsets is None:
        keys = (
            queries if problem.keys == problem.queries else _offsets("key_offsets", query_offsets, "key", problem.keys)
        )
    else:
        keys = _offsets("key_offsets", key_offsets, "key", problem.keys)
    if keys.size != queries.size:
        raise ShapeError(
            f"key_offsets must cut as many documents as query_offsets, {queries.size - 1}, but cut {keys.size - 1}; "
            "a document without keys has two equal offsets"
        )
    problem = _cut(problem, queries, keys, read_mask(mask), bias)
    return _carry_out(problem, engines.choose(problem))[0]


def _problem(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    sink: Any,
    empty: str,
    nonfinite: str,
) -> Problem:
    """Everything but offsets and mask, checked, as one sequence."""
    if isinstance(key, (Cache, CachePart)):
        raise UnsupportedError("key must be an array (total, G, D) here, but a Cache came; write attend(query, cache)")
    expression = read_mask(mask)
    for leaf in expression.leaves() if expression is not None else ():
        if not isinstance(leaf, (Causal, Window, Prefix, First)):
            kind = repr(leaf).partition("(")[0]
            raise UnsupportedError(
                f"mask must be made of causal, window, prefix and first here, since documents differ in size, but holds {kind}(…); "
                "the offsets say which keys exist, and what else there is goes through attend, document by document"
            )
    slopes = bias
    if isinstance(bias, Alibi):
        slopes = Alibi(bias.slopes, "start")  # where a document stands is said further on
    elif bias is not None and not isinstance(bias, (Mask, bool, int, float)):
        raise UnsupportedError(
            f"bias must be None or alibi(…) here, since documents differ in size, but a {type(bias).__name__} came; "
            "call attend for each document"
        )
    problem = canonical(
        query,
        key,
        value,
        bias=slopes,
        scale=scale,
        softcap=softcap,
        sink=sink,
        empty=empty,
        nonfinite=nonfinite,
        layout="blhd",
    )
    if problem.layout.axes != 3:
        raise ShapeError(
            f"query must have three axes, (total queries, H, D), but has {problem.layout.axes}; "
            "merge batch and length, reshape(-1, H, D), and say by query_offsets where documents begin"
        )
    return problem


def _offsets(name: str, offsets: Any, whose: str, total: int) -> Ints:
    array = to_numpy(offsets, name, scalars=True)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name} must be whole numbers, but has dtype {array.dtype}; write .astype(np.int64)")
    if array.ndim != 1 or not array.size:
        raise ShapeError(
            f"{name} must have shape (documents + 1,), but has shape {array.shape}; "
            "write np.concatenate([[0], np.cumsum(lengths)])"
        )
    if array[0] != 0:
        raise ArgumentError(
            f"{name} must begin with 0, where the first document does, but begins with {int(array[0])}; put a 0 in front of the ends"
        )
    falls = array[1:] < array[:-1]
    if falls.any():
        at = int(falls.argmax())
        raise ArgumentError(
            f"{name} must not descend, but {name}[{at + 1}] = {int(array[at + 1])} comes after {int(array[at])}; "
            "they are sums of lengths, np.cumsum(lengths)"
        )
    if array[-1] != total:
        raise ArgumentError(
            f"{name} must end with the length of {whose}, {total}, but ends with {int(array[-1])}; every row belongs to a document"
        )
    return array.astype(np.int64)


def _cut(problem: Problem, queries: Ints, keys: Ints, mask: Mask | None, bias: Any) -> Problem:
    """The problem of one sequence, with each row's ranges, position and origin those of its document."""
    rows, sizes = np.diff(queries), np.diff(keys)
    document = np.repeat(np.arange(rows.size), rows)
    rules: list[tuple[str, Align]] = [] if mask is None else [(repr(x), x.align) for x in mask.leaves() if x.positional]
    if isinstance(bias, Alibi):
        rules.append((repr(bias), bias.align))
    start = keys[:-1][document]
    local = np.arange(problem.queries) - (queries[:-1] - _places(rows, sizes, rules))[document]
    size = (problem.heads, problem.queries, problem.keys, problem.frame.offset)
    ranges = interval(0, sizes[document][None])
    if mask is not None:
        may, _ = mask.bounds(Frame((), *size, local[None]))
        ranges = may & ranges
    return replace(
        problem,
        mask=mask,
        frame=Frame((), *size, (local + start)[None]),
        ranges=Ranges(ranges.lo + start[None, :, None], ranges.hi + start[None, :, None]).clip(problem.keys),
        origin=start[None],
    )


def _places(rows: Ints, sizes: Ints, rules: Iterable[tuple[str, Align]]) -> Ints:
    """Where the first query of each document stands among its keys, (documents,) (B6)."""
    rules = list(rules)
    # Documents of one length need no alignment; for the others the first that does speaks for all.
    odd = np.flatnonzero((rows != sizes) & (rows > 0) & (sizes > 0))
    one = (int(rows[odd[0]]), int(sizes[odd[0]])) if odd.size else (0, 0)
    told = resolve_offset(rows.shape, *one, rules, None)
    align = agreed(rules)
    return sizes - rows if isinstance(align, str) and align == "end" else told
