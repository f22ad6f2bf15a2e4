"""From "something changed" to the first position that leaks and one input it comes from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .subject import Chosen, Subject
from .values import Array, differ, other

__all__ = ["Spot", "future", "inside"]


class Spot:
    """A leak that was seen: what differs, and with which contents.

    Attributes:
        at: (sequence, position) of the output. source: (sequence, position) of the input. varied: the whole input that
            shows it, other than the example at `source` alone. kept: outputs that may not depend on `source`.
    """

    def __init__(
        self, at: tuple[int, int], source: tuple[int, int], varied: Array, kept: Chosen, before: float, after: float
    ) -> None:
        self.at, self.source, self.varied, self.kept = at, source, varied, kept
        self.before, self.after = before, after


def _changed(subject: Subject, base: Array, varied: Array, kept: Chosen) -> Chosen:
    """Outputs (sequence, position) that may not change, and did."""
    found: Chosen = differ(base, subject.answer(varied), subject.part).any(-1) & kept
    return found


def _cuts(low: int, high: int) -> Iterator[int]:
    """low … high - 1, the middle first and then the middles of both halves: a wide leak is seen at once."""
    halves = [(low, high)]
    while halves:
        following = []
        for a, b in halves:
            if a < b:
                middle = (a + b) // 2
                yield middle
                following += [(a, middle), (middle + 1, b)]
        halves = following


def future(subject: Subject, base: Array, trials: int, rng: np.random.Generator) -> Spot | None:
    """The first position that depends on a later input.

    Inputs from a cut on are exchanged, outputs before it may not change. A position that sees one input too far shows at
    one cut alone, so every cut is asked, those behind the first leaking position excepted.
    """
    B, L = subject.lead
    first, found = L - 1, None
    for cut in _cuts(1, L):
        # Whatever this cut could show lies at or behind the leak that is known.
        for _ in range(trials if cut <= first else 0):
            contents = other(subject.varied, rng)
            chosen = np.zeros((B, L), np.bool_)
            chosen[:, cut:] = True
            changed = _changed(subject, base, subject.with_contents(chosen, contents), ~chosen)
            if changed.any():
                first = min(first, int(changed.any(0).argmax()))
                if found is None or first <= found[0]:
                    sequence = int(changed[:, first].argmax())
                    found = first, sequence, chosen, contents
                break
    if found is None:
        return None
    first, sequence, chosen, contents = found
    # A sequence of its own: the others are the business of the batch.
    own = chosen.copy()
    own[np.arange(B) != sequence] = False
    spot = narrow(subject, base, own, contents, (sequence, first), chosen)
    spot.kept = np.broadcast_to(np.arange(L) < spot.source[1], (B, L))
    return spot


def inside(
    subject: Subject, base: Array, chosen: Chosen, kept: Chosen, trials: int, rng: np.random.Generator
) -> Spot | None:
    """The first of the kept outputs that depends on the chosen inputs."""
    for _ in range(trials):
        contents = other(subject.varied, rng)
        changed = _changed(subject, base, subject.with_contents(chosen, contents), kept)
        if changed.any():
            sequence, position = map(int, np.argwhere(changed)[0])
            return narrow(subject, base, chosen, contents, (sequence, position), chosen)
    return None


def narrow(
    subject: Subject, base: Array, chosen: Chosen, contents: Array, at: tuple[int, int], fallback: Chosen
) -> Spot:
    """Halve the chosen inputs for as long as a half alone still shows the leak at this output.

    The later half is asked first: how far it sees tells more than the next input, which reaches most later ones.
    """

    def shows(some: Chosen) -> bool:
        kept = np.zeros_like(some)
        kept[at] = True
        return bool(_changed(subject, base, subject.with_contents(some, contents), kept).any())

    here = chosen if chosen.any() and shows(chosen) else fallback
    while here.sum() > 1:
        places = np.argwhere(here)
        for half in (places[len(places) // 2 :], places[: len(places) // 2]):
            some = np.zeros_like(here)
            some[tuple(half.T)] = True
            if shows(some):
                here = some
                break
        else:
            break
    sequence, position = map(int, np.argwhere(here)[0])
    varied = subject.with_contents(here, contents)
    after, row = subject.answer(varied)[at], base[at]
    feature = int(np.nan_to_num(np.abs(after - row), nan=np.inf).argmax())
    return Spot(at, (sequence, position), varied, ~fallback, float(row[feature]), float(after[feature]))
