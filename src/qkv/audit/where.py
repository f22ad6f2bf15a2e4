"""Rules that are functions of (batch, head, position, key), by name, so that a call stays plain data.

They use operators alone: the same function takes indices of NumPy, torch and JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["WHERE"]

#: Every row reads a key whatever its position is: with key 0, or from the query's own place.
WHERE: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "(position + 2 * key + head) % 3 != 0, or key 0": lambda b, h, p, j: ((p + 2 * j + h) % 3 != 0) | (j == 0),
    "key <= position / 2": lambda b, h, p, j: 2 * j <= p,
}
