"""What a case is made of: facts drawn one by one from its seed, any of which may be told instead.

The first of some options is the plainest, so that a case that fails can be made smaller without knowing what it means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

T = TypeVar("T")


class Facts:
    """The facts of one case.

    Attributes:
        seed: what they are drawn from. changes: facts that are told, by name. told: the facts so far, in order.
    """

    def __init__(
        self,
        seed: int,
        changes: dict[str, Any] | None = None,
        listen: Callable[[str, Any, list[Any]], None] | None = None,
    ) -> None:
        """`listen` hears each fact as it is drawn: name, value, and plainer values that it could have had."""
        self.seed, self.changes = seed, changes or {}
        self.told: dict[str, Any] = {}
        self._numbers = np.random.default_rng(seed)
        self._listen = listen

    def rng(self, name: str) -> np.random.Generator:
        """Numbers of their own for whatever bears this name: other facts do not move them."""
        return np.random.default_rng([self.seed, crc32(name.encode())])

    def pick(self, name: str, options: Sequence[T]) -> T:
        """One of some strings or numbers."""
        at = int(self._numbers.random() * len(options))  # drawn in any case, so that the facts after it stay
        value = self.changes.get(name, options[at])
        return self._tell(name, value, list(options[:1]))

    def kind(self, name: str, options: Sequence[T]) -> T:
        """One of some strings, of which none is plainer than another."""
        at = int(self._numbers.random() * len(options))
        return self._tell(name, self.changes.get(name, options[at]), [])

    def item(self, name: str, options: Sequence[T]) -> T:
        """One of some things of any kind; what is told is where it stands."""
        return options[min(self.whole(name, 0, len(options) - 1), len(options) - 1)]

    def chance(self, name: str, share: float) -> bool:
        drawn = bool(self._numbers.random() < share)
        return self._tell(name, bool(self.changes.get(name, drawn)), [False])

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number, both ends included."""
        drawn = low + int(self._numbers.random() * (high - low + 1))
        return self.number(name, drawn, low)

    def number(self, name: str, value: int, low: int = 0) -> int:
        """A whole number that was worked out from other facts, which may as well be told."""
        value = int(self.changes.get(name, value))
        return self._tell(name, max(value, low), sorted({low, (low + value) // 2, max(low, value - 1)}))

    def _tell(self, name: str, value: Any, plainer: list[Any]) -> Any:
        self.told[name] = value
        if self._listen is not None:
            self._listen(name, value, [p for p in plainer if p != value])
        return value

    def __str__(self) -> str:
        return json.dumps(self.told, default=str)


#: What a trial with changes says: its facts as (value, plainer values) by name, and what was wrong, "" if nothing was.
Trial = Callable[[dict[str, Any]], "tuple[dict[str, tuple[Any, list[Any]]], str]"]


def gist(text: str) -> str:
    """What is the same in two failures of one kind: the last line without its numbers."""
    last = (text.strip().splitlines() or [""])[-1]
    return re.sub(r"[^A-Za-z ]+", " ", last)[:60].strip()


def smaller(trial: Trial, most: int = 300) -> dict[str, Any]:
    """The changes that make a failing case as plain as they can, one fact at a time, in at most so many trials.

    Args:
        trial: runs the case with changes; it fails without any, and a change is one only if it fails in the same way.
    """
    changes: dict[str, Any] = {}
    told, first = trial(changes)
    moved = bool(first)
    while moved:
        moved = False
        for name in list(told):
            for option in told[name][1] if name in told else ():
                if most <= 0:
                    return changes
                most -= 1
                found, text = trial({**changes, name: option})
                if text and gist(text) == gist(first):
                    changes, told, moved = {**changes, name: option}, found, True
                    break
    return changes
