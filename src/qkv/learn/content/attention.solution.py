from math import exp, fsum, inf, isfinite, sqrt


def attend(query, keys, values, allowed):
    # Types and shapes first, so that nothing below can crash on them.
    vector("query", query)
    sequence("keys", keys)
    if not keys:
        raise ValueError("keys is empty: a query needs something to read")
    for key in keys:
        vector("a key", key)
        if len(key) != len(query):
            raise ValueError("every key must be as wide as the query")
    sequence("values", values)
    if len(values) != len(keys):
        raise ValueError("there must be one value per key")
    for value in values:
        vector("a value", value)
        if len(value) != len(values[0]):
            raise ValueError("all values must have the same width")
    sequence("allowed", allowed)
    if len(allowed) != len(keys):
        raise ValueError("there must be one boolean per key")
    if not all(isinstance(may, bool) for may in allowed):
        raise TypeError("allowed must hold booleans")
    if not any(allowed):
        raise ValueError("no key is allowed: there is no distribution over nothing")
    query = finite("query", query)
    keys = [finite("a key", key) for key in keys]
    values = [finite("a value", value) for value in values]

    # The computation, as in the trace. A forbidden key takes no part in it.
    scores = [dot(query, key) / sqrt(len(query)) for key in keys]
    maximum = max(score for score, may in zip(scores, allowed) if may)
    if not isfinite(maximum):
        raise ValueError("the score of an allowed key overflows")
    exponentials = [exp(score - maximum) if may else 0.0 for score, may in zip(scores, allowed)]
    total = fsum(exponentials)
    weights = [exponential / total for exponential in exponentials]
    context = [mixture(weights, numbers) for numbers in zip(*values)]
    return weights, context


def sequence(name, given):
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{name} must be a list or a tuple")


def vector(name, given):
    sequence(name, given)
    if not given:
        raise ValueError(f"{name} has no numbers")
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in given):
        raise TypeError(f"{name} must hold ints and floats")


def finite(name, given):
    try:
        numbers = [float(x) for x in given]
    except OverflowError:  # an int beyond the largest float
        numbers = [inf]
    if not all(isfinite(x) for x in numbers):
        raise ValueError(f"{name} must hold finite numbers")
    return numbers


def dot(query, key):
    products = [q * k for q, k in zip(query, key)]
    try:
        total = fsum(products)
    except (OverflowError, ValueError):  # beyond the largest float, or inf - inf
        total = inf
    if isfinite(total):
        return total
    return -inf if max(products) <= 0 else inf


def mixture(weights, numbers):
    # Halves, because the weights may add up to 1 + 1e-16 and the numbers may be the largest there are.
    half = fsum(weight * number / 2 for weight, number in zip(weights, numbers))
    mixed = [number for weight, number in zip(weights, numbers) if weight > 0]
    return min(max(2 * half, min(mixed)), max(mixed))
