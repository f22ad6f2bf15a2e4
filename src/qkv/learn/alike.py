"""Which of the audit's cases a learner's input is like. A loose file beside plain.py in the browser, so no NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

try:
    from .. import plain  # as qkv.learn.alike
except ImportError:
    import plain  # type: ignore[no-redef, import-not-found]  # as a loose file

__all__ = ["MOST", "alike"]

#: How many cases are named at most.
MOST = 3

#: From here on a score counts as large, as low, and as lower than any stand-in for "not allowed".
_LARGE, _LOW, _LOWEST = 700.0, -1e4, -1e30


def alike(problem: tuple[Any, Any, Any, Any]) -> list[str]:
    """Ids of the audit's cases that ask the same of a library as this input asks of `attend`, the likest first.

    Args:
        problem: (query, keys, values, allowed), as in `grader.try_input`; each may be anything.

    >>> alike(([1.0], [[1.0], [2.0]], [[1.0], [2.0]], [False, False]))
    ['C2-mask']
    >>> alike(([1.0], [[1.0]], [["a"]], [True]))
    []
    """
    query, keys, values, allowed = problem
    if not (_numbers(query) and _vectors(keys) and _vectors(values) and isinstance(allowed, (list, tuple))):
        return []
    shape = _shape(query, keys, values)
    if shape:
        return [shape] if shape != "-" else []
    if len(allowed) != len(keys) or not allowed:
        return []
    if not all(isinstance(may, bool) for may in allowed):
        return ["B4-numbers"] if all(type(may) in (int, float) and may in (0, 1) for may in allowed) else []
    found = list(_non_finite(query, keys, values, allowed))
    if not any(allowed):
        return ["D2-empty-query"] if "D2-query-nan" in found else ["C2-mask"]
    return (found or list(_finite(query, keys, values, allowed)))[:MOST]


def _numbers(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and all(type(n) in (int, float) for n in x)


def _vectors(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and all(map(_numbers, x))


def _shape(query: Any, keys: Any, values: Any) -> str:
    """The case of a shape that is none, "-" where the audit has none, "" where all fits."""
    if not query:
        return "A3-no-width"
    if not keys:
        return "A3-no-keys" if not values else "-"
    if any(len(key) != len(query) for key in keys):
        return "G2-width" if len({len(key) for key in keys}) == 1 else "-"
    if len(values) < len(keys):
        return "G2-values" if values else "-"
    return "" if len(values) == len(keys) and values[0] and len({len(value) for value in values}) == 1 else "-"


def _non_finite(query: Any, keys: Any, values: Any, allowed: Any) -> Iterator[str]:
    """What NaN and infinities are met, those that the query may read first."""
    if kind := _odd([query]):
        yield f"D2-query-{kind}"
    for name, vectors in (("key", keys), ("value", values)):
        if kind := _odd([vector for vector, may in zip(vectors, allowed, strict=True) if may]):
            yield f"D2-{name}-{kind}"
    for name, vectors in (("key", keys), ("value", values)):
        kind = _odd([vector for vector, may in zip(vectors, allowed, strict=True) if not may])
        if kind and (name, kind) != ("key", "inf"):
            yield f"D1-{name}-{kind}-mask"


def _odd(vectors: list[Any]) -> str:
    numbers = [_float(n) for vector in vectors for n in vector]
    if any(map(math.isnan, numbers)):
        return "nan"
    return "inf" if any(map(math.isinf, numbers)) else ""


def _float(n: float) -> float:
    try:
        return float(n)
    except OverflowError:  # an int beyond the largest float
        return math.inf if n > 0 else -math.inf


def _finite(query: Any, keys: Any, values: Any, allowed: Any) -> Iterator[str]:
    """What is remarkable about scores and values; what everybody meets where nothing is."""
    scores = _scores(query, keys)
    read = [score for score, may in zip(scores, allowed, strict=True) if may]
    highest = max(read)
    if highest in (math.inf, -math.inf):
        yield from ("D3-score", "D3-half")
        return
    if -math.inf in read:
        yield "D3-minus"
    if any(math.isinf(sum(abs(_float(n)) for n in column)) for column in zip(*values, strict=True)):
        yield "D3-mixture"
    hidden = [score for score, may in zip(scores, allowed, strict=True) if not may]
    if hidden and highest < _LOW:
        yield "C3-lowest-score" if highest < _LOWEST else "C3-low-score"
    if hidden and max(hidden) > highest:
        yield "C1-forbidden-maximum"
    if any(abs(score) > _LARGE for score in read):
        yield "C1-large-scores"
    yield "B4-polarity" if hidden else "B1-default"


def _scores(query: Any, keys: Any) -> list[float]:
    width = math.sqrt(len(query))
    given = [_float(n) for n in query]
    return [plain.dot(given, [_float(n) for n in key]) / width for key in keys]
