"""Numbers of layers, heads and rows as they were asked for, read in one way."""

from __future__ import annotations

import operator
from typing import Any

from qkv.errors import ArgumentError

__all__ = ["several", "within"]


def several(what: str, given: Any, *, names: bool = False) -> Any:
    """One number or a sequence of them as a list of int, None as it is; with `names` names of modules too.

    Raises:
        ArgumentError: something else, or none at all: an answer about nothing would look like one about everything.
    """
    if given is None:
        return None
    kinds = "numbers or names of modules" if names else "numbers"
    refused = ArgumentError(f"{what} must be {kinds}, one or several, but {given!r} came; leave it out for all")
    if isinstance(given, str):
        if not names:
            raise refused
        return [given]
    try:
        out = [
            one if names and isinstance(one, str) else operator.index(one)
            for one in (given if hasattr(given, "__iter__") and getattr(given, "ndim", None) != 0 else [given])
        ]
    except TypeError:
        raise refused from None
    if not out:
        raise refused
    return out


def within(what: str, given: Any, size: int) -> int:
    """A number of 0…size-1, negative ones counted from the end.

    Raises:
        ArgumentError: no such number.
    """
    try:
        number = operator.index(given)
    except TypeError:
        number = size
    if not -size <= number < size:
        raise ArgumentError(f"{what} must be within -{size}…{size - 1}, but {given!r} came; count from 0")
    return number % size
