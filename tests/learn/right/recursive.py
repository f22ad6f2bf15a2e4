"""Lists taken apart by recursion; the errors of the computation become refusals."""

import math


def dot(a, b):
    return 0.0 if not a else a[0] * b[0] + dot(a[1:], b[1:])


def largest(scores):
    if len(scores) == 1:
        return scores[0]
    rest = largest(scores[1:])
    return scores[0] if scores[0] > rest else rest


def number(x):
    if isinstance(x, (int, float)):
        if x - x == 0:
            return x
        raise ValueError("not finite")
    raise TypeError("no number")


def vector(v, width=None):
    if not isinstance(v, (list, tuple)):
        raise TypeError("no vector")
    if not v or (width is not None and len(v) != width):
        raise ValueError("a vector of the wrong width")
    return [number(x) for x in v]


def attend(query, keys, values, allowed):
    if not all(isinstance(x, (list, tuple)) for x in (keys, values, allowed)):
        raise TypeError("no list")
    if len(keys) == 0 or len(keys) != len(values) or len(keys) != len(allowed):
        raise ValueError("lengths do not fit")
    if [may for may in allowed if may is not True and may is not False]:
        raise TypeError("no boolean")
    query = vector(query)
    keys = [vector(key, len(query)) for key in keys]
    first = vector(values[0])
    values = [vector(value, len(first)) for value in values]
    read = [j for j in range(len(keys)) if allowed[j]]
    if not read:
        raise ValueError("nothing to read")
    scores = [dot(query, keys[j]) / len(query) ** 0.5 for j in read]
    top = largest(scores)
    if abs(top) == math.inf or top != top:
        raise ValueError("overflow")
    powers = [math.exp(score - top) for score in scores]
    weights = [0.0] * len(keys)
    for j, power in zip(read, powers):
        weights[j] = power / sum(powers)
    return tuple(weights), tuple(dot([weights[j] for j in read], [values[j][e] for j in read]) for e in range(len(first)))
