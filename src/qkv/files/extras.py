"""The way to an optional package: said once, because it changes on the day there is a release."""

from __future__ import annotations

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """What to write so that the packages of an extra are there.

    >>> how_to_install("cli")
    'write pip install ".[cli]" in a clone of the repository'

    The page of the lesson is a second package, which has to be built first.

    >>> how_to_install("learn")
    'write make learn in a clone of the repository'
    """
    if extra == "learn":
        return "write make learn in a clone of the repository"
    return f'write pip install ".[{extra}]" in a clone of the repository'
