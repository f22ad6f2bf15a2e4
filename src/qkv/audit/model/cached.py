"""Reading in parts, with a cache, against reading at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qkv.errors import ShapeError

from .hooks import Entry, Hooks, head_of, is_module
from .known import Steps
from .subject import Subject
from .twins import twin
from .values import Array, is_array, numpy_of

__all__ = ["Apart", "Parts", "Read", "cached"]


class Apart(NamedTuple):
    """An output that differs.

    Attributes:
        at: (sequence, position). whole, parts: one number of it, read at once and in parts. bound: how far apart the
            two may be. way: how it was read. begin: of the part that it is in. entry: where it was seen first.
    """

    at: tuple[int, int]
    whole: float
    parts: float
    bound: float
    way: str
    begin: int
    entry: Entry


class Parts:
    """The inputs of some positions.

    Args:
        subject: the model with its example. padding: the input that is 0 at padding, which has to name the positions
            that were read before as well.
    """

    def __init__(self, subject: Subject, padding: str | int | None) -> None:
        self.subject, self.padding = subject, padding
        self.axis = 1 if subject.batched else 0
        self.length = subject.lead[1]

    def why_not(self) -> str:
        """Why the example cannot be read in parts, or ""."""
        for name, x in self.subject.words.items():
            if is_array(x) and self.length in x.shape and not self._has_positions(x):
                return f"the input {name!r} of shape {tuple(x.shape)} cannot be cut into parts"
        return ""

    def _has_positions(self, x: Any) -> bool:
        lead = self.subject.lead if self.subject.batched else self.subject.lead[1:]
        # One row for the whole batch broadcasts.
        return len(x.shape) > self.axis and x.shape[self.axis] == self.length and x.shape[0] in (lead[0], 1)

    def words(self, begin: int, end: int) -> dict[str | int, Any]:
        """The inputs for positions begin … end - 1."""
        out = {}
        for name, x in self.subject.words.items():
            first = 0 if name == self.padding else begin
            cut = (slice(None),) * self.axis + (slice(first, end),)
            out[name] = x[cut] if is_array(x) and self._has_positions(x) else x
        return out

    def ways(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(in words, where each part ends): what a generation does, and what a long prompt in pieces does."""
        L = self.length
        half = max(L // 2, 1)
        seen = set()
        for said, ends in (
            (f"{half} at once, then one by one", (half, *range(half + 1, L + 1))),
            (f"{half} at once, then {L - half} at once", (half, L)),
            ("one by one", tuple(range(1, L + 1))),
        ):
            if ends not in seen:
                seen.add(ends)
                yield said, ends


class Read(NamedTuple):
    """What came of reading in parts.

    Attributes:
        apart: the first output that differs beyond the bound. runs: how often the model was called. refused: cache ->
            the error with which the model did not go on; "" for all of them.
    """

    apart: Apart | None
    runs: int
    refused: dict[str, str]


def cached(subject: Subject, steps: Steps, padding: str | int | None) -> Read:
    """Read the example at once and in parts, with each cache."""
    low, high = twin(subject, "float32"), twin(subject, "float64")
    try:
        exact = high.answer()
    except Exception as error:
        return Read(None, 1, {"": f"it does not run in float64, from which the bound comes ({_said(error)})"})
    bound = 2 * float(np.abs(exact - low.answer()).max())
    parts, runs = Parts(high, padding), 2
    refused: dict[str, str] = {}
    for name, start in steps.caches.items():
        for said, ends in parts.ways():
            cache, begin = start(high.model, parts.length), 0
            for end in ends:
                try:
                    answer, cache = _step(high, steps, cache, parts.words(begin, end))
                except Exception as error:
                    # Whoever brings a decode of their own wants to see where it fails.
                    if not name:
                        raise
                    refused[name] = f"read {said}, the model ends in an error ({_said(error)})"
                    break
                runs += 1
                there, found = exact[:, begin:end], _rows(high, answer, end - begin)
                # A NaN is no number near another.
                wrong = ~(np.abs(found - there) <= bound)
                if wrong.any():
                    at, whole, part = _first(wrong, there, found)
                    entry = Entry()
                    if is_module(high.model):
                        entry = _entry(low, high, steps, (start, ends), (begin, end), parts)
                        runs += 2 + ends.index(end) + 1
                    way = f"{said}, {name}" if name else said
                    return Read(Apart((at[0], begin + at[1]), whole, part, bound, way, begin, entry), runs, refused)
                begin = end
    return Read(None, runs, refused)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _first(wrong: Any, whole: Array, part: Array) -> tuple[tuple[int, int], float, float]:
    """((sequence, position), both numbers) of the first position that is wrong, where it is wrong most."""
    position = int(wrong.any((0, 2)).argmax())
    sequence = int(wrong[:, position].any(-1).argmax())
    row = np.abs(part[sequence, position] - whole[sequence, position])
    feature = int(np.where(np.isnan(row), np.inf, row).argmax())
    place = sequence, position, feature
    return (sequence, position), float(whole[place]), float(part[place])


def _step(subject: Subject, steps: Steps, cache: Any, words: dict[str | int, Any]) -> tuple[Any, Any]:
    place = [words[n] for n in sorted(n for n in words if isinstance(n, int))]
    named = {n: x for n, x in words.items() if isinstance(n, str)}
    return subject.quietly(lambda: steps.decode(subject.model, cache, *place, **named))


def _rows(subject: Subject, answer: Any, count: int) -> Array:
    """The output as (sequences, positions of the part, features)."""
    found = subject.output(answer)
    out = numpy_of(found)
    out = out if subject.batched else out[None]
    if out.ndim < 2 or out.shape[:2] != (subject.lead[0], count):
        raise ShapeError(
            f"decode must answer with the {count} positions of its part, but the shape is {found.shape}; pass output="
        )
    return out.reshape(subject.lead[0], count, -1)


def _entry(
    low: Subject, high: Subject, steps: Steps, way: tuple[Any, tuple[int, ...]], part: tuple[int, int], parts: Parts
) -> Entry:
    """Which module it enters in: what passes between the modules in this part, against the same rows of the whole."""
    whole: list[tuple[str, str, list[Any]]] = []
    with Hooks(high.model, lambda *event: whole.append(event)):
        high.answer()
    bounds: list[list[float]] = []

    def rounding(name: str, side: str, tensors: list[Any]) -> None:
        before = whole[len(bounds)] if len(bounds) < len(whole) else ("", "", [])
        same = before[:2] == (name, side) and [x.shape for x in before[2]] == [x.shape for x in tensors]
        bounds.append([2 * _distance(a, b) for a, b in zip(before[2], tensors, strict=True)] if same else [])

    with Hooks(low.model, rounding):
        low.answer()
    start, ends = way
    cache, begin = start(high.model, parts.length), 0
    for end in ends[: ends.index(part[1])]:
        _, cache = _step(high, steps, cache, parts.words(begin, end))
        begin = end
    seen = _Part(whole, bounds, part, parts.length)
    with Hooks(high.model, seen.event):
        _step(high, steps, cache, parts.words(*part))
    owner = dict(high.model.named_modules()).get(seen.module)
    return Entry(seen.module, seen.tensor, seen.features, head_of(owner, seen.module, seen.tensor, seen.features))


def _distance(a: Any, b: Any) -> float:
    if not a.numel():
        return 0.0
    found = (a.double() - b.double()).abs()
    # Both may hold the -inf of a mask.
    return float(found[found == found].max()) if bool((found == found).any()) else 0.0


class _Part:
    """The events of one part, each against its rows of the whole; as in `hooks`, but within bounds."""

    def __init__(self, whole: list[Any], bounds: list[list[float]], part: tuple[int, int], length: int) -> None:
        self.whole, self.bounds, self.part, self.length, self.at = whole, bounds, part, length, 0
        self.open: list[bool] = []
        self.module = self.tensor = ""
        self.features: tuple[int, int] | None = None

    def event(self, name: str, side: str, tensors: list[Any]) -> None:
        """One module begins or ends."""
        at, self.at = self.at, self.at + 1
        changes: list[Any] = [None]
        if at < len(self.whole) and self.whole[at][:2] == (name, side):
            pairs = zip(self.whole[at][2], tensors, self.bounds[at] if at < len(self.bounds) else (), strict=False)
            changes = [self._change(*pair) for pair in pairs]
        seen = [c for c in changes if isinstance(c, tuple)]
        if side == "input":
            # A mask for fewer rows and more keys has another shape, and says nothing.
            self.open.append(not seen)
        if seen and not self.tensor:
            self.tensor, self.features = f"the {side} of {name}", seen[0]
        if side == "output" and self.open.pop() and seen and not self.module:
            self.module = name

    def _change(self, whole: Any, part: Any, bound: float) -> tuple[int, int] | bool | None:
        begin, end = self.part
        if whole.ndim != part.ndim or whole.ndim < 2:
            return None
        axes = [n for n in range(1, whole.ndim) if whole.shape[n] == self.length and part.shape[n] == end - begin]
        if not axes or any(whole.shape[n] != part.shape[n] for n in range(whole.ndim) if n != axes[0]):
            return None
        rows = whole.narrow(axes[0], begin, end - begin).double()
        wrong = ~(((part.double() - rows).abs() <= bound) | (part == rows))
        if not wrong.any():
            return False
        last = np.flatnonzero(wrong.reshape(-1, wrong.shape[-1]).any(0).cpu().numpy())
        return int(last[0]), int(last[-1])
