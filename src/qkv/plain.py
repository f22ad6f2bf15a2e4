"""The definition of attention in plain Python lists, for people who learn it: one query, some keys, some values.

Standard library only and a file that stands alone, so that a Python without NumPy (one in a browser, say) can load it.
`attention_steps` is the whole computation; `attend` is the same with its inputs checked. The formula is
softmax(q · k / √d) · v from Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, NoReturn


class Steps(NamedTuple):
    """Every number between the inputs and the context, in the order in which they arise.

    With S keys: lists of S numbers, except `maximum` and `sum` (one number each), `contributions` (S vectors as wide
    as the values) and `context` (one such vector). `None` stands where a key is not allowed: there is no number for it.
    """

    dot_products: list[float]
    scaled_scores: list[float]
    masked_scores: list[float | None]
    maximum: float
    shifted_scores: list[float | None]
    exponentials: list[float]
    sum: float
    weights: list[float]
    contributions: list[list[float]]
    context: list[float]


def attend(
    query: Sequence[float],
    keys: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]],
    allowed: Sequence[bool] | None = None,
) -> tuple[list[float], list[float]]:
    """What one query reads: how much of each key's value, and the mixture that results.

    The score of a key is `dot(query, key) / sqrt(width)`; softmax over the allowed keys turns scores into weights; the
    context is the weighted sum of the values (Vaswani et al. 2017, section 3.2.1).

    Args:
        query: D numbers, D ≥ 1.
        keys: S vectors of D numbers, S ≥ 1.
        values: S vectors of E numbers, E ≥ 1.
        allowed: S booleans, `True` where the query may read the key; `None` allows every key.

    Vectors are lists or tuples of finite ints or floats (a bool is no number). All inputs are checked, a forbidden
    key's numbers too, and none is modified.

    Returns:
        `(weights, context)`: S numbers ≥ 0 that add up to 1 and are exactly 0.0 where a key is not allowed, and E
        numbers, each within the range of the values that were mixed. Two new lists.

    Raises:
        TypeError: an argument, vector, number or boolean is of another type.
        ValueError: lengths do not fit, a number is not finite, no key is allowed, or an allowed score overflows. A
            score beyond the most negative float is no error beside a finite allowed one: its weight is 0.0.

    >>> weights, context = attend([math.sqrt(2), 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]])
    >>> [round(weight, 3) for weight in weights], [round(number, 3) for number in context]
    ([0.731, 0.269], [7.311, 5.379])
    >>> attend([math.sqrt(2), 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]], allowed=[True, False])
    ([1.0, 0.0], [10.0, 0.0])
    """
    steps = attention_steps(*checked(query, keys, values, allowed))
    return steps.weights, steps.context


# The computation ------------------------------------------------------------------------------------------------------


def attention_steps(
    query: list[float], keys: list[list[float]], values: list[list[float]], allowed: list[bool]
) -> Steps:
    """All of attention for one query, one line per step; the inputs are those that `checked` returns.

    >>> attention_steps([2.0], [[3.0]], [[5.0, 7.0]], [True]).context
    [5.0, 7.0]
    """
    width = len(query)
    dot_products = [dot(query, key) for key in keys]
    scaled_scores = [product / math.sqrt(width) for product in dot_products]
    masked_scores = [score if may else None for score, may in zip(scaled_scores, allowed, strict=True)]
    maximum = max(score for score in masked_scores if score is not None)
    if not math.isfinite(maximum):
        _refuse_overflow(masked_scores.index(maximum))
    shifted_scores = [None if score is None else score - maximum for score in masked_scores]
    exponentials = [0.0 if shifted is None else math.exp(shifted) for shifted in shifted_scores]
    total = math.fsum(exponentials)
    weights = [exponential / total for exponential in exponentials]
    contributions = [[weight * number for number in value] for weight, value in zip(weights, values, strict=True)]
    context = [mixture(weights, numbers) for numbers in zip(*values, strict=True)]
    return Steps(
        dot_products,
        scaled_scores,
        masked_scores,
        maximum,
        shifted_scores,
        exponentials,
        total,
        weights,
        contributions,
        context,
    )


def dot(query: Sequence[float], key: Sequence[float]) -> float:
    """The sum of the products, coordinate by coordinate: the larger, the better query and key agree.

    Beyond the largest float it is `-inf` where no product pulls up, so that the sign is certain, and `inf` otherwise.

    >>> dot([1.0, 2.0], [3.0, 4.0])
    11.0
    """
    products = [q * k for q, k in zip(query, key, strict=True)]
    try:
        total = math.fsum(products)  # not `sum`: its rounding differs between versions of Python
    except (OverflowError, ValueError):  # a partial sum beyond the largest float, or inf - inf
        total = math.inf
    if math.isfinite(total):
        return total
    return -math.inf if max(products) <= 0 else math.inf


def mixture(weights: Sequence[float], numbers: Sequence[float]) -> float:
    """The weighted sum of numbers, the weights adding up to 1: never outside the range of the numbers it mixes.

    >>> mixture([0.5, 0.5], [2.0, 8.0])
    5.0
    """
    # Halves, because the weights may add up to 1 + 1e-16 and the numbers may be the largest there are.
    half = math.fsum(weight * number / 2 for weight, number in zip(weights, numbers, strict=True))
    mixed = [number for weight, number in zip(weights, numbers, strict=True) if weight > 0]
    return min(max(2 * half, min(mixed)), max(mixed))


# The contract of the inputs -------------------------------------------------------------------------------------------


def checked(
    query: Sequence[float],
    keys: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]],
    allowed: Sequence[bool] | None = None,
) -> tuple[list[float], list[list[float]], list[list[float]], list[bool]]:
    """The inputs of `attend` as new lists of floats and booleans, or the error that says what is wrong.

    Types and shapes are looked at first, then whether any key is allowed, then whether the numbers are finite.

    >>> checked([1], [(2,)], [[3, 4]])
    ([1.0], [[2.0]], [[3.0, 4.0]], [True])
    """
    _check_vector("query", query)
    _check_list("keys", keys, "vectors", "[[1.0, 0.0], [0.0, 1.0]]")
    if not keys:
        raise ValueError("keys must hold at least one vector, got none; a query needs something to read")
    for j, key in enumerate(keys):
        _check_vector(f"keys[{j}]", key)
        if len(key) != len(query):
            raise ValueError(
                f"keys[{j}] must be as wide as the query, {_count(len(query), 'number')}, got {len(key)}; "
                "give the query and every key the same width"
            )
    _check_list("values", values, "vectors", "[[1.0, 0.0], [0.0, 1.0]]")
    if len(values) != len(keys):
        raise ValueError(
            f"values must hold one vector per key, {len(keys)}, got {len(values)}; give every key exactly one value"
        )
    for j, value in enumerate(values):
        _check_vector(f"values[{j}]", value)
        if len(value) != len(values[0]):
            raise ValueError(
                f"values[{j}] must be as wide as values[0], {_count(len(values[0]), 'number')}, got {len(value)}; "
                "give every value the same width"
            )
    may_read = [True] * len(keys) if allowed is None else _checked_mask(allowed, len(keys))
    return (
        _finite("query", query),
        [_finite(f"keys[{j}]", key) for j, key in enumerate(keys)],
        [_finite(f"values[{j}]", value) for j, value in enumerate(values)],
        may_read,
    )


def _check_list(name: str, given: object, of: str, example: str) -> None:
    if not isinstance(given, (list, tuple)):
        way_out = f"pass {name}.tolist()" if hasattr(given, "tolist") else f"write it like {example}"
        raise TypeError(f"{name} must be a list or tuple of {of}, got {type(given).__name__}; {way_out}")


def _check_vector(name: str, vector: Sequence[float]) -> None:
    _check_list(name, vector, "numbers", "[1.0, 0.0]")
    if not vector:
        raise ValueError(f"{name} must hold at least one number, got none; a vector of width 0 says nothing")
    for i, number in enumerate(vector):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            way_out = "write 1.0 for True and 0.0 for False" if isinstance(number, bool) else "convert it with float()"
            raise TypeError(f"{name}[{i}] must be an int or a float, got {type(number).__name__}; {way_out}")


def _checked_mask(allowed: Sequence[bool], count: int) -> list[bool]:
    _check_list("allowed", allowed, "booleans", "[True, False]")
    if len(allowed) != count:
        raise ValueError(
            f"allowed must hold one boolean per key, {count}, got {len(allowed)}; write True for a key that may be read"
        )
    for j, may in enumerate(allowed):
        if not isinstance(may, bool):
            raise TypeError(
                f"allowed[{j}] must be True or False, got {type(may).__name__}; "
                "convert it with bool() if true means that the key may be read"
            )
    if not any(allowed):
        raise ValueError(
            f"allowed must let at least one key be read, got False for all {count}; "
            "there is no distribution over nothing, so leave this query out or allow it a key"
        )
    return list(allowed)


def _finite(name: str, vector: Sequence[float]) -> list[float]:
    numbers = []
    for i, given in enumerate(vector):
        try:
            number = float(given)
        except OverflowError:  # an int beyond the largest float
            number = math.inf if given > 0 else -math.inf
        if not math.isfinite(number):
            came = f"an int of {given.bit_length()} bits" if isinstance(given, int) else str(number)
            raise ValueError(
                f"{name}[{i}] must be a finite number within ±1.8e308, got {came}; replace it or leave its vector out"
            )
        numbers.append(number)
    return numbers


def _refuse_overflow(j: int) -> NoReturn:
    raise ValueError(
        f"the score of keys[{j}] overflows: its dot product with the query must stay within ±1.8e308, "
        "got a sum beyond; scale the query or the keys down"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
