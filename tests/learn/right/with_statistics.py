"""statistics.mean and exact fractions for the sums."""

import math
import statistics
from fractions import Fraction


def attend(query, keys, values, allowed):
    if not all(isinstance(x, (list, tuple)) for x in (query, keys, values, allowed)):
        raise TypeError("lists are wanted")
    if not all(isinstance(v, (list, tuple)) for v in (*keys, *values)):
        raise TypeError("vectors are wanted")
    if not query or not keys or not len(keys) == len(values) == len(allowed):
        raise ValueError("lengths do not fit")
    if any(len(key) != len(query) for key in keys) or len(set(map(len, values))) != 1 or not values[0]:
        raise ValueError("widths do not fit")
    if not all(isinstance(may, bool) for may in allowed):
        raise TypeError("booleans are wanted")
    if not any(allowed):
        raise ValueError("there is no distribution over nothing")
    for x in (*query, *sum(map(list, keys), []), *sum(map(list, values), [])):
        if not isinstance(x, (int, float)):
            raise TypeError("numbers are wanted")
        if math.isinf(x) or math.isnan(x):
            raise ValueError("finite numbers are wanted")

    def score(key):
        # The mean of the products, times the width; exact until the root is taken.
        exact = statistics.mean(Fraction(q) * Fraction(k) for q, k in zip(query, key)) * len(query)
        try:
            return float(exact) / math.sqrt(len(query))
        except OverflowError:
            return math.inf if exact > 0 else -math.inf

    scores = [score(key) if may else None for key, may in zip(keys, allowed)]
    top = max(s for s in scores if s is not None)
    if not math.isfinite(top):
        raise ValueError("a score overflows")
    powers = [Fraction(math.exp(s - top)) if s is not None else Fraction(0) for s in scores]
    total = sum(powers)
    weights = [power / total for power in powers]
    context = [float(sum(w * Fraction(v[e]) for w, v in zip(weights, values))) for e in range(len(values[0]))]
    return [float(w) for w in weights], context
