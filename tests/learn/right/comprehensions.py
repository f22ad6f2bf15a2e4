"""Comprehensions and math.fsum, lengths left to zip(strict=True)."""

import math
from math import exp, fsum, isfinite, sqrt


def attend(query, keys, values, allowed):
    for given in (query, keys, values, allowed, *keys, *values):
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"a list or tuple is wanted, not {type(given).__name__}")
        if not given:
            raise ValueError("a list is empty")
    numbers = [*query, *(x for key in keys for x in key), *(x for value in values for x in value)]
    if any(not isinstance(x, (int, float)) for x in numbers):
        raise TypeError("a number is wanted")
    if not all(map(isfinite, numbers)):
        raise ValueError("a finite number is wanted")
    if any(type(may) is not bool for may in allowed):
        raise TypeError("True or False is wanted")
    scores = [fsum(q * k for q, k in zip(query, key, strict=True)) / sqrt(len(query)) for key in keys]
    top = max(score for score, may in zip(scores, allowed, strict=True) if may)
    if math.isinf(top) or math.isnan(top):
        raise ValueError("a score overflows")
    e = [exp(score - top) if may else 0.0 for score, may in zip(scores, allowed, strict=True)]
    weights = [x / fsum(e) for x in e]
    rows = list(zip(*values, strict=True))
    return weights, [fsum(w * v for w, v in zip(weights, row, strict=True)) for row in rows]
