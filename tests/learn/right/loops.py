"""Plain loops, every check written out."""

import math


def attend(query, keys, values, allowed):
    for name, vectors in (("keys", keys), ("values", values)):
        if not isinstance(vectors, (list, tuple)):
            raise TypeError(f"{name} must be a list")
    for vector in [query, *keys, *values]:
        if not isinstance(vector, (list, tuple)):
            raise TypeError("a vector must be a list")
        if len(vector) == 0:
            raise ValueError("a vector must hold a number")
        for number in vector:
            if not isinstance(number, (int, float)):
                raise TypeError("a number must be an int or a float")
            if math.isnan(number) or math.isinf(number):
                raise ValueError("a number must be finite")
    if not isinstance(allowed, (list, tuple)):
        raise TypeError("allowed must be a list")
    if len(keys) != len(values) or len(keys) != len(allowed):
        raise ValueError("there must be one value and one boolean per key")
    for key in keys:
        if len(key) != len(query):
            raise ValueError("keys must be as wide as the query")
    for value in values:
        if len(value) != len(values[0]):
            raise ValueError("values must have one width")
    for may in allowed:
        if may is not True and may is not False:
            raise TypeError("allowed must hold booleans")
    if True not in allowed:
        raise ValueError("no key is allowed")

    scores = []
    for key in keys:
        total = 0.0
        for i in range(len(query)):
            total += query[i] * key[i]
        scores.append(total / math.sqrt(len(query)))
    best = None
    for j in range(len(keys)):
        if allowed[j] and (best is None or scores[j] > best):
            best = scores[j]
    if not math.isfinite(best):
        raise ValueError("a score overflows")
    weights = []
    for j in range(len(keys)):
        weights.append(math.exp(scores[j] - best) if allowed[j] else 0.0)
    total = sum(weights)
    for j in range(len(weights)):
        weights[j] = weights[j] / total
    context = []
    for e in range(len(values[0])):
        number = 0.0
        for j in range(len(values)):
            number += weights[j] * values[j][e]
        context.append(number)
    return weights, context
