"""Inputs that most cases share: a few small shapes, scores spread enough that a wrong mask shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..call import Array, Call
from ..case import Size

__all__ = ["ordinary", "some_allowed", "uniform"]


def ordinary(
    rng: np.random.Generator,
    size: Size,
    *,
    B: int = 2,
    H: int = 2,
    G: int | None = None,
    D: int = 8,
    E: int | None = None,
    **options: Any,
) -> Call:
    """Normal numbers, scores of standard deviation 2."""
    G, E = H if G is None else G, D if E is None else E
    query = rng.normal(size=(B, H, size.L, D)) * 2
    key, value = rng.normal(size=(B, G, size.S, D)), rng.normal(size=(B, G, size.S, E)) + 1
    return Call(query, key, value, **options)


def uniform(values: Any, L: int, **options: Any) -> Call:
    """Zero queries and keys, so that each row is the mean of the values it reads."""
    value = np.asarray(values, np.float64).reshape(1, 1, -1, 1)
    return Call(np.zeros((1, 1, L, 1)), np.zeros((1, 1, value.shape[2], 1)), value, **options)


def some_allowed(rng: np.random.Generator, *shape: int) -> Array:
    """A random mask in which every row has an allowed and, where there are two keys or more, a forbidden one."""
    mask = rng.random(shape) < 0.6
    first = rng.integers(0, shape[-1], shape[:-1])
    np.put_along_axis(mask, first[..., None], True, -1)
    if shape[-1] > 1:
        np.put_along_axis(mask, ((first + 1) % shape[-1])[..., None], False, -1)
    return np.asarray(mask)
