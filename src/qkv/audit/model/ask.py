"""`leaks(model, example)`: does an output depend on inputs that it may not see?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qkv.errors import ArgumentError

from .found import Leak, Leaks
from .hooks import Entry, enters, is_module
from .search import Spot, future, inside
from .subject import Chosen, Subject
from .values import Array, back, differ, numpy_of

__all__ = ["leaks"]

KINDS = ("future", "left padding", "right padding", "batch")


def leaks(
    model: Callable[..., Any],
    example: Any,
    *,
    ask: Iterable[str] = KINDS,
    vary: str | int | None = None,
    padding: str | int | None = "attention_mask",
    output: Callable[[Any], Any] | None = None,
    batched: bool = True,
    trials: int = 2,
    seed: int = 0,
) -> Leaks:
    """Exchange inputs that an output may not see, and compare the output number for number.

    Nothing is estimated and nothing is a tolerance: two runs on the same shapes whose visible inputs are equal have to
    give equal numbers. For a torch module, hooks name the module in which a leak enters.

    Args:
        model: a function or torch module of arrays of any library. One that is not repeatable is refused: dropout.
        example: its input (batch, positions, …), a tuple of inputs, or a dict of them by keyword, as a tokenizer gives.
        ask: kinds of leaks, among "future" (not of an encoder), "left padding", "right padding", "batch".
        vary: name or index of the input whose contents are exchanged (default: input_ids, inputs_embeds, or the first).
        padding: name or index of the input (batch, positions) that is 0 at padding.
        output: takes the array (batch, positions, …) from an answer (default: itself, logits, last_hidden_state).
        batched: False for inputs and outputs (positions, …).
        trials: how many other contents are tried at each cut. seed: of those.

    Raises:
        ArgumentError: the model answers the same input differently or with NaN, or a name is unknown.

    >>> import numpy as np
    >>> print(leaks(lambda x: np.cumsum(x, 1), np.ones((1, 4, 2)), ask=["future"]))
    future: none found
    8 runs
    >>> print(leaks(lambda x: x + np.roll(x, -1, 1), np.ones((1, 4, 2)), ask=["future"]).leaks[0].source)
    1
    """
    wanted = tuple(ask)
    for kind in wanted:
        if kind not in KINDS:
            raise ArgumentError(f"ask must be among {', '.join(KINDS)}, but {kind!r} came")
    if trials < 1:
        raise ArgumentError(f"trials must be at least 1, but {trials} came")
    subject = Subject(model, example, vary, output, batched)
    run = _Run(subject, padding, trials, seed)
    for kind in wanted:
        run.ask(kind)
    return Leaks(tuple(run.found), tuple(run.asked), run.left_out, run.runs)


class _Run:
    def __init__(self, subject: Subject, padding: str | int | None, trials: int, seed: int) -> None:
        self.subject, self.padding, self.trials, self.seed = subject, padding, trials, seed
        self.found: list[Leak] = []
        self.asked: list[str] = []
        self.left_out: dict[str, str] = {}
        self.runs = 0

    def ask(self, kind: str) -> None:
        """One kind of leak."""
        subject, why = self._subject(kind)
        if subject is None:
            self.left_out[kind] = why
            return
        self.asked.append(kind)
        base = subject.answer()
        if differ(base, subject.answer()).any():
            raise ArgumentError(
                "the model must answer the same input the same way, but did not; write model.eval(), or fix its seed"
            )
        kept = ~_padded(kind, subject.lead) if "padding" in kind else np.ones(subject.lead, np.bool_)
        unseen = np.isnan(base).any(-1) & kept
        if unseen.any():
            sequence, position = np.argwhere(unseen)[0]
            raise ArgumentError(
                f"the output is NaN at position {position} of sequence {sequence}, and NaN hides what it depends on; "
                f"pass another example, or leave {kind!r} out of ask="
            )
        spot = self._search(kind, subject, base)
        if spot is not None:
            self.found.append(_told(kind, spot, enters(subject, spot) if is_module(subject.model) else Entry()))
        self.runs += subject.runs

    def _search(self, kind: str, subject: Subject, base: Array) -> Spot | None:
        rng = np.random.default_rng(self.seed)
        if kind == "future":
            return future(subject, base, self.trials, rng)
        if kind != "batch":
            padded = _padded(kind, subject.lead)
            return inside(subject, base, padded, ~padded, self.trials, rng)
        for own in range(subject.lead[0]):
            others = np.ones(subject.lead, np.bool_)
            others[own] = False
            spot = inside(subject, base, others, ~others, self.trials, rng)
            if spot is not None:
                return spot
        return None

    def _subject(self, kind: str) -> tuple[Subject | None, str]:
        """(the model with the example this kind needs, "") or (None, why there is none)."""
        subject = self.subject
        B, L = subject.lead
        if kind == "batch":
            if not subject.batched:
                return None, "the example has no batch"
            return (subject.copy() if B > 1 else subject.twice()), ""
        if L < 2:
            return None, "the example has one position"
        if kind == "future":
            return subject.copy(), ""
        if self.padding is None or self.padding not in subject.words:
            return None, f"the example has no input {self.padding!r} that is 0 at padding"
        given = subject.words[self.padding]
        if numpy_of(given).shape != (B, L):
            return None, f"the input {self.padding!r} has not the shape {(B, L)}"
        made = subject.copy()
        made.words[self.padding] = back(~_padded(kind, (B, L)), given)
        return made, ""


def _padded(kind: str, lead: tuple[int, ...]) -> Chosen:
    """Half of the positions: the padding that is asked about."""
    padded = np.zeros(lead, np.bool_)
    half = lead[1] // 2
    padded[:, slice(half) if kind == "left padding" else slice(lead[1] - half, None)] = True
    return padded


def _told(kind: str, spot: Spot, entry: Entry) -> Leak:
    return Leak(
        kind,
        spot.at[1],
        spot.source[1],
        spot.at[0],
        spot.source[0],
        spot.before,
        spot.after,
        entry.module,
        entry.tensor,
        entry.features,
    )
