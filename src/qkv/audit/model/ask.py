"""`leaks(model, example)`: does an output depend on inputs that it may not see?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from qkv.errors import ArgumentError

from .cached import Parts, cached
from .found import Leak, Leaks
from .hooks import Entry, enters, is_module
from .known import Decode, Steps, is_known, opened, packs, reads_backwards, steps_of, without_cache
from .search import Spot, future, inside
from .subject import Chosen, Subject
from .twins import twin, why_no_twin
from .values import BETWEEN, Array, back, differ, numpy_of

__all__ = ["KINDS", "leaks", "wanted"]

KINDS = ("future", "left padding", "right padding", "batch", "packing", "cache")
#: What an encoder is asked: all its positions may read each other, so that it has no future and no cache.
OF_ENCODERS = ("left padding", "right padding", "batch")


def leaks(
    model: Callable[..., Any],
    example: Any,
    *,
    ask: Iterable[str] | None = None,
    vary: str | int | None = None,
    padding: str | int | None = "attention_mask",
    packing: str | int | None = "position_ids",
    decode: Decode | None = None,
    output: Callable[[Any], Any] | None = None,
    batched: bool = True,
    trials: int = 2,
    seed: int = 0,
) -> Leaks:
    """Exchange inputs that an output may not see, and compare the output number for number.

    Nothing is estimated: two runs on the same shapes whose visible inputs are equal have to give equal numbers. What is
    gone in float64 is rounding, and told apart. Only reading in parts is another computation, and held to a bound that
    the model's own rounding gives. For a torch module, hooks name the module in which a leak enters.

    Args:
        model: a function or torch module of arrays of any library, one of transformers, or a `qkv.models.Model`. One
            that is not repeatable is refused: dropout.
        example: its input (batch, positions, …), a tuple of inputs, or a dict of them by keyword, as a tokenizer gives.
            For a `qkv.models.Model` a text will do.
        ask: kinds of leaks. Default: all that can be asked; of an encoder of transformers padding and batch.
            "future": an output depends on later inputs. "left padding", "right padding": on padding. "batch": on another
            sequence. "packing": on another document of the same row. "cache": the text read in parts, with a cache,
            gives other outputs than the text read at once.
        vary: name or index of the input whose contents are exchanged (default: input_ids, inputs_embeds, or the first).
        padding: name or index of the input (batch, positions) that is 0 at padding.
        packing: name or index of the input (batch, positions) that tells documents apart: position_ids begin again with
            each; any other holds a number for each. A decoder of transformers gets position_ids by itself, and is asked
            without a cache unless the example says use_cache, since with one it packs nothing.
        decode: reads a part: `decode(model, cache, *inputs, **inputs) -> (answer, cache)`, the first time with None.
            A decoder of transformers is read with its DynamicCache and StaticCache.
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
    model, example = opened(model, example)
    kinds, left_out = wanted(ask, model)
    if trials < 1:
        raise ArgumentError(f"trials must be at least 1, but {trials} came")
    subject = Subject(model, example, vary, output, batched)
    run = _Run(subject, padding, packing, decode, trials, seed)
    for kind in kinds:
        run.ask(kind)
    return Leaks(tuple(run.found), tuple(run.asked), {**run.left_out, **left_out}, run.runs, tuple(run.rounding))


def wanted(ask: Iterable[str] | None, model: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """(kinds to ask about, kind -> why it is not)."""
    if ask is None:
        if not is_known(model) or reads_backwards(model):
            return KINDS, {}
        why = "in an encoder all positions may read each other; name it in ask= to hear all the same"
        return OF_ENCODERS, {kind: why for kind in KINDS if kind not in OF_ENCODERS}
    kinds = tuple(ask)
    for kind in kinds:
        if kind not in KINDS:
            raise ArgumentError(f"ask must be among {', '.join(KINDS)}, but {kind!r} came")
    return kinds, {}


class _Run:
    def __init__(
        self,
        subject: Subject,
        padding: str | int | None,
        packing: str | int | None,
        decode: Decode | None,
        trials: int,
        seed: int,
    ) -> None:
        self.subject, self.padding, self.packing, self.decode = subject, padding, packing, decode
        self.trials, self.seed = trials, seed
        self.found: list[Leak] = []
        self.rounding: list[Leak] = []
        self.asked: list[str] = []
        self.left_out: dict[str, str] = {}
        self.runs = 0

    def ask(self, kind: str) -> None:
        """One kind of leak."""
        if kind == "cache":
            self._ask_cache()
            return
        subject, why = self._subject(kind)
        if subject is None:
            self.left_out[kind] = why
            return
        self.asked.append(kind)
        kept = ~_padded(kind, subject.lead) if "padding" in kind else np.ones(subject.lead, np.bool_)
        base = self._base(kind, subject, kept)
        spot = self._search(kind, subject, base)
        self.runs += subject.runs
        if spot is None:
            return
        high = _rounded_away(subject, spot)
        if high is not None:
            self.rounding.append(_told(kind, spot, Entry()))
            # What is more than rounding may stand behind it.
            subject, spot = high, self._search(kind, high, high.answer())
            self.runs += high.runs
        if spot is not None:
            self.found.append(_told(kind, spot, enters(subject, spot) if is_module(subject.model) else Entry()))

    def _base(self, kind: str, subject: Subject, kept: Chosen) -> Array:
        """The answer to the example, if it can be compared with others."""
        base = subject.answer()
        if differ(base, subject.answer()).any():
            raise ArgumentError(
                "the model must answer the same input the same way, but did not; write model.eval(), or fix its seed"
            )
        unseen = np.isnan(base).any(-1) & kept
        if unseen.any():
            sequence, position = np.argwhere(unseen)[0]
            raise ArgumentError(
                f"the output is NaN at position {position} of sequence {sequence}, and NaN hides what it depends on; "
                f"pass another example, or leave {kind!r} out of ask="
            )
        return base

    def _ask_cache(self) -> None:
        subject = self.subject.copy()
        known = is_known(subject.model)
        steps = Steps(self.decode, {"": lambda model, length: None}) if self.decode is not None else None
        steps = steps_of(subject.model) if steps is None and known else steps
        if steps is None:
            why = "how it goes on from what it has read is not known, pass decode="
        elif subject.lead[1] < 2:
            why = "the example has one position"
        else:
            why = why_no_twin(subject) or Parts(subject, self.padding).why_not()
        if why or steps is None:
            self.left_out["cache"] = why
            return
        self._base("cache", subject, np.ones(subject.lead, np.bool_))
        apart, runs, refused = cached(subject, steps, self.padding)
        self.runs += subject.runs + runs
        if "" in refused or set(refused) == set(steps.caches):
            self.left_out["cache"] = next(iter(refused.values()))
            return
        self.asked.append("cache")
        self.left_out |= {f"cache ({name})": why for name, why in refused.items()}
        if apart is not None:
            self.found.append(
                Leak(
                    "cache",
                    apart.at[1],
                    apart.begin,
                    apart.at[0],
                    apart.at[0],
                    apart.whole,
                    apart.parts,
                    *apart.entry,
                    way=apart.way,
                    bound=apart.bound,
                )
            )

    def _search(self, kind: str, subject: Subject, base: Array) -> Spot | None:
        rng = np.random.default_rng(self.seed)
        if kind == "future":
            return future(subject, base, self.trials, rng)
        for chosen, kept in self._parted(kind, subject):
            spot = inside(subject, base, chosen, kept, self.trials, rng)
            if spot is not None:
                return spot
        return None

    def _parted(self, kind: str, subject: Subject) -> Iterator[tuple[Chosen, Chosen]]:
        """(inputs to exchange, outputs that may not change)."""
        if kind == "batch":
            for own in range(subject.lead[0]):
                others = np.ones(subject.lead, np.bool_)
                others[own] = False
                yield others, ~others
        elif kind == "packing":
            documents = _documents(self.packing, subject)
            for row in range(subject.lead[0]):
                here = np.zeros(subject.lead, np.bool_)
                here[row] = True
                for number in np.unique(documents[row]):
                    chosen = here & (documents == number)
                    yield chosen, here & ~chosen
        else:
            padded = _padded(kind, subject.lead)
            yield padded, ~padded

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
        if kind == "packing":
            return self._packed()
        if self.padding is None or self.padding not in subject.words:
            return None, f"the example has no input {self.padding!r} that is 0 at padding"
        given = subject.words[self.padding]
        if numpy_of(given).shape != (B, L):
            return None, f"the input {self.padding!r} has not the shape {(B, L)}"
        made = subject.copy()
        made.words[self.padding] = back(~_padded(kind, (B, L)), given)
        return made, ""

    def _packed(self) -> tuple[Subject | None, str]:
        """The example as two documents in a row, unless it holds some already."""
        made = self.subject.copy()
        B, L = made.lead
        known = is_known(made.model)
        if known and self.packing == "position_ids" and not packs(made.model):
            return None, "its forward takes no position_ids, which would tell documents apart"
        if self.packing in made.words:
            if numpy_of(made.words[self.packing]).shape not in ((B, L), (1, L)):
                return None, f"the input {self.packing!r} has not the shape {(B, L)}"
        elif known and self.packing == "position_ids":
            half = L // 2
            rows = np.tile(np.concatenate([np.arange(half), np.arange(L - half)]), (B, 1))
            made.words[self.packing] = sys.modules["torch"].from_numpy(rows).to(made.words[made.vary].device)
            made.words.pop(self.padding or "", None)
        else:
            return None, f"the example has no input {self.packing!r} that tells documents apart"
        if known:
            made.words = without_cache(made.words)
        if (_documents(self.packing, made).max(1) == 0).all():
            return None, f"the input {self.packing!r} holds one document"
        return made, ""


def _documents(name: str | int | None, subject: Subject) -> Array:
    """The number of its document at each position (batch, positions)."""
    given = np.broadcast_to(numpy_of(subject.words[name]), subject.lead)  # type: ignore[index]
    step = 1 if name == "position_ids" else 0
    return np.asarray(np.cumsum(np.diff(given, prepend=given[:, :1] - step) != step, 1))


def _padded(kind: str, lead: tuple[int, ...]) -> Chosen:
    """Half of the positions: the padding that is asked about."""
    padded = np.zeros(lead, np.bool_)
    half = lead[1] // 2
    padded[:, slice(half) if kind == "left padding" else slice(lead[1] - half, None)] = True
    return padded


def _rounded_away(subject: Subject, spot: Spot) -> Subject | None:
    """The model in float64, if the leak is not there; None where it is, or where no such run is possible."""
    if why_no_twin(subject):
        return None
    high = twin(subject, "float64")
    high.part = BETWEEN
    try:
        base, other = high.answer(), high.answer(spot.varied)
    except Exception:
        return None
    return None if differ(base, other, BETWEEN)[spot.at].any() else high


def _told(kind: str, spot: Spot, entry: Entry) -> Leak:
    return Leak(kind, spot.at[1], spot.source[1], spot.at[0], spot.source[0], spot.before, spot.after, *entry)
