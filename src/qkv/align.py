"""Where the queries stand among the keys (contract B6): one alignment an expression, told or refused."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import AlignmentError, shown
from .interop import to_numpy
from .ranges import END, Ints

if TYPE_CHECKING:
    from .algebra import Mask

#: What a positional rule may be told: a word, the position of the first query, or one such position per sequence.
Align = Literal["start", "end"] | int | npt.NDArray[Any] | None


def read_align(name: str, align: Any) -> Align:
    """The `align=` of a rule, checked."""
    way = 'pass "end" (the queries are the newest rows), "start", or the position of the first query, an int or one per sequence'
    if align is None:
        return None
    if isinstance(align, str):
        if align == "start":
            return "start"
        if align == "end":
            return "end"
        raise AlignmentError(f"{name}: align must be one of two words or a position, but {shown(align)} came; {way}")
    offset = to_numpy(align, f"{name}: align", scalars=True)
    if offset.dtype.kind not in "iu":
        raise AlignmentError(f"{name}: align must be a word or whole numbers, but dtype {offset.dtype} came; {way}")
    furthest = max(-int(offset.min()), int(offset.max())) if offset.size else 0
    if furthest >= END:
        raise AlignmentError(f"{name}: align must be below 2**40 in size, but {furthest} came; {way}")
    return int(offset) if offset.ndim == 0 else np.array(offset, dtype=np.int64)


#: An array of more numbers than this is not compared to remember a call by.
FEW = 1024


def numbers_token(array: npt.NDArray[Any]) -> Hashable | None:
    """An array by value; None if it is a long one."""
    return (array.shape, array.tobytes()) if array.size <= FEW else None


def align_token(align: Align) -> Hashable | None:
    """An alignment by value; None if it is long."""
    return numbers_token(align) if isinstance(align, np.ndarray) else (align,)


def resolve_offset(
    batch: tuple[int, ...],
    queries: int,
    keys: int,
    rules: Iterable[tuple[str, Align]],
    lengths: Ints | None,
    own: Align = None,
    hint: str = "",
) -> Ints:
    """The position of the first query of each sequence, int64 (N,).

    Args:
        rules: (how it is written, its alignment) of every positional rule of the call.
        lengths: (N,) keys that exist in each sequence, None for S.
        own: what to use where no rule says (a cache knows that its queries are the newest rows).
        hint: what else may be wrong, for the error.

    Raises:
        AlignmentError: two rules say different things, or L != S and none says anything.
    """
    count = math.prod(batch)
    rules = list(rules)
    align = agreed(rules)
    align = own if align is None else align
    if align is None:
        if queries != keys and queries and keys and rules:
            raise AlignmentError(_picture(rules[0][0], queries, keys, hint))
        return np.zeros(count, np.int64)
    if isinstance(align, str):
        if align == "start":
            return np.zeros(count, np.int64)
        return (np.full(count, keys, np.int64) if lengths is None else lengths) - queries
    if isinstance(align, int):
        return np.full(count, align, np.int64)
    if align.shape != batch:
        raise AlignmentError(
            f"align must be one offset or one per sequence, shape (B…) = {batch}, but has shape {align.shape}; reshape it to the batch axes"
        )
    return align.reshape(-1).astype(np.int64)


def agreed(rules: Iterable[tuple[str, Align]]) -> Align:
    """The one alignment that some of the rules say, None if none does."""
    said: list[tuple[str, Align]] = []
    for text, align in rules:
        if align is not None and not any(_equal(align, other) for _, other in said):
            said.append((text, align))
    if len(said) > 1:
        (text_a, a), (text_b, b) = said[:2]
        raise AlignmentError(
            f"mask and bias must have one alignment, but {text_a} says align={_show(a)} and {text_b} says align={_show(b)}; write it once"
        )
    return said[0][1] if said else None


def known_lengths(mask: Mask | None, count: int) -> Ints | None:
    """Past-the-last existing key of each sequence, (N,), as the conjoined `keys(…)` of an expression tell it."""
    out: Ints | None = None
    for term in mask.conjuncts() if mask is not None else ():
        stop = term.last_keys()
        if stop is not None:
            stop = np.broadcast_to(stop, (count,)).astype(np.int64)
            out = stop if out is None else np.minimum(out, stop)
    return out


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(np.array_equal(a, b))


def _show(align: Any) -> str:
    return repr(align) if isinstance(align, (str, int)) else f"<{align.shape} offsets>"


def _picture(rule: str, queries: int, keys: int, hint: str) -> str:
    """Both readings of a causal rule side by side, at most 12 keys and 4 rows of it."""
    rows, cols = min(queries, 4), min(keys, 12)
    short = rows < queries or cols < keys
    if short:  # the same shape in small: as many rows more or fewer than keys as fit
        rows, cols = (rows, min(max(rows + 2, 3), cols)) if queries < keys else (min(max(cols // 2, 3), 4), 2)
    end, start = [], []
    for i in range(rows):
        end.append(" ".join("x" if j <= i + cols - rows else "." for j in range(cols)))
        start.append(" ".join("x" if j <= i else "." for j in range(cols)))
    pad = max(len(end[0]), 20)
    lines = [
        f"{rule} with {queries} {_plural(queries, 'query', 'queries')} and {keys} {_plural(keys, 'key', 'keys')} can mean two things, "
        'so say which: align="end", align="start", or the position of the first query'
        + (" (drawn small)" if short else "")
        + ":"
    ]
    for i in range(rows):
        head_a, head_b = ('align="end"  ', 'align="start"  ') if i == 0 else (" " * 13, " " * 15)
        lines.append(f"   {head_a}{end[i]:<{pad}}   {head_b}{start[i]}")
    lines.append(f"   {'the queries are the newest rows (a cache)':<{pad + 16}}   the queries are the first rows")
    if hint:
        lines.append(f"   heads outnumber queries and keys here: {hint}")
    return "\n".join(lines)


def _plural(n: int, one: str, many: str) -> str:
    return one if n == 1 else many
