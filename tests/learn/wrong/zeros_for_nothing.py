"""No key, no context: zeros."""

import math


def attend(query, keys, values, allowed):
    checked(query, keys, values, allowed)
    scores = [sum(q * k for q, k in zip(query, key)) / math.sqrt(len(query)) for key in keys]
    if not any(allowed):
        return [0.0] * len(keys), [0.0] * len(values[0])
    top = max(score for score, may in zip(scores, allowed) if may)
    if not math.isfinite(top):
        raise ValueError("a score overflows")
    exponentials = [math.exp(score - top) if may else 0.0 for score, may in zip(scores, allowed)]
    total = sum(exponentials)
    weights = [exponential / total for exponential in exponentials]
    context = [sum(w * v for w, v in zip(weights, column)) for column in zip(*values)]
    return weights, context


def checked(query, keys, values, allowed):
    for name, given in (("keys", keys), ("values", values), ("allowed", allowed)):
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"{name} must be a list")
    for vector in [query, *keys, *values]:
        if not isinstance(vector, (list, tuple)):
            raise TypeError("a vector must be a list")
        if not all(isinstance(number, (int, float)) for number in vector):
            raise TypeError("a number must be an int or a float")
        if not vector or not all(math.isfinite(number) for number in vector):
            raise ValueError("a vector must hold finite numbers")
    if not len(keys) == len(values) == len(allowed):
        raise ValueError("there must be one value and one boolean per key")
    if any(len(key) != len(query) for key in keys) or any(len(value) != len(values[0]) for value in values):
        raise ValueError("widths must fit")
    if not all(isinstance(may, bool) for may in allowed):
        raise TypeError("allowed must hold booleans")
