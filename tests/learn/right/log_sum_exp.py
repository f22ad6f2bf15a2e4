"""Weights as exp(score - logsumexp), the query scaled before the products, minus infinity for forbidden keys."""

import math
import operator
from functools import reduce
from itertools import chain


def log_sum_exp(scores):
    top = max(scores)
    return top + math.log(sum(math.exp(s - top) for s in scores))


def attend(query, keys, values, allowed):
    validate(query, keys, values, allowed)
    scaled = [q / math.sqrt(len(query)) for q in query]
    scores = [
        reduce(operator.add, map(operator.mul, scaled, key)) if may else -math.inf for key, may in zip(keys, allowed)
    ]
    if not math.isfinite(max(scores)) or any(map(math.isnan, scores)):
        raise ValueError("scores must stay within the floats")
    total = log_sum_exp(scores)
    weights = [math.exp(score - total) for score in scores]
    return weights, list(map(lambda column: sum(map(operator.mul, weights, column)), zip(*values)))


def validate(query, keys, values, allowed):
    try:
        sizes = {"keys": len(keys), "values": len(values), "allowed": len(allowed)}
        widths = [len(vector) for vector in chain([query], keys, values)]
        numbers = [x for vector in chain([query], keys, values) for x in vector]
    except TypeError as error:
        raise ValueError("lists of lists are wanted") from error
    if isinstance(query, str) or isinstance(allowed, str) or isinstance(keys, dict):
        raise TypeError("lists are wanted")
    if len(set(sizes.values())) != 1 or not keys or min(widths) < 1:
        raise ValueError(f"sizes must be equal and not 0: {sizes}")
    if len(set(widths[: len(keys) + 1])) != 1 or len(set(widths[len(keys) + 1 :])) != 1:
        raise ValueError("widths must be equal")
    if not set(map(type, allowed)) <= {bool}:
        raise TypeError("booleans are wanted")
    if not set(map(type, numbers)) <= {int, float}:
        raise TypeError("numbers are wanted")
    if not any(allowed) or not all(x == x and abs(x) != math.inf for x in numbers):
        raise ValueError("a key to read and finite numbers are wanted")
