"""A function that makes functions; a named pair as the answer; the input's lists read by index only."""

import math
from collections import namedtuple

Answer = namedtuple("Answer", "weights context")


def refusing(check, error, sentence):
    def refuse(thing):
        if not check(thing):
            raise error(sentence)
        return thing

    return refuse


is_list = refusing(lambda x: isinstance(x, (list, tuple)), TypeError, "a list is wanted")
is_full = refusing(lambda x: len(x) > 0, ValueError, "an empty list")
is_number = refusing(lambda x: isinstance(x, (int, float)), TypeError, "a number is wanted")
is_finite = refusing(math.isfinite, ValueError, "a finite number is wanted")
is_bool = refusing(lambda x: isinstance(x, bool), TypeError, "a boolean is wanted")


def each(*checks):
    def check(items):
        for item in is_full(is_list(items)):
            for use in checks:
                use(item)
        return len(items)

    return check


def attend(query, keys, values, allowed):
    vector = each(is_number, is_finite)
    width, count = vector(query), each(vector)(keys)
    if each(vector)(values) != count or each(is_bool)(allowed) != count:
        raise ValueError("one value and one boolean per key")
    value_width = len(values[0])
    for j in range(count):
        if len(keys[j]) != width or len(values[j]) != value_width:
            raise ValueError("widths differ")
    read = [j for j in range(count) if allowed[j]]
    is_full(read)
    scores = {j: sum(query[d] * keys[j][d] for d in range(width)) / width**0.5 for j in read}
    top = is_finite(max(scores.values()))
    powers = {j: math.e ** (scores[j] - top) for j in read}
    total = sum(powers.values())
    weights = [powers[j] / total if j in powers else 0 for j in range(count)]
    context = [sum(weights[j] * values[j][e] for j in read) for e in range(value_width)]
    return Answer(weights, context)
