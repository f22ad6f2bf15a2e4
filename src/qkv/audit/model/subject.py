"""A model with its example: called as it is, or with other contents at some positions of one input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError, ShapeError

from .values import Array, back, is_array, is_torch, numpy_of, output_of

__all__ = ["Subject"]

Chosen = npt.NDArray[np.bool_]
T = TypeVar("T")


class Subject:
    """What is called.

    Attributes:
        varied: contents of the input that is varied. lead: (sequences, positions) of it; one sequence where the
            example has no batch. runs: how often the model was called. part: of the largest number, how far apart two
            numbers may be and count as equal; 0 but for runs in float64 that look through rounding.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        example: Any,
        vary: str | int | None,
        output: Callable[[Any], Any] | None,
        batched: bool,
    ) -> None:
        self.model: Any = model
        self.output, self.batched, self.runs, self.part = output or output_of, batched, 0, 0.0
        self.words: dict[str | int, Any]
        if isinstance(example, Mapping):
            self.words = dict(example)
        elif isinstance(example, (tuple, list)):
            self.words = dict(enumerate(example))
        else:
            self.words = {0: example}
        self.vary = self._vary(vary)
        self.varied = numpy_of(self.words[self.vary])
        need = 2 if batched else 1
        if self.varied.ndim < need or self.varied.shape[need - 1] < 1:
            axes = "(batch, positions, …)" if batched else "(positions, …)"
            raise ShapeError(f"the example must have axes {axes}, but its shape is {self.varied.shape}")
        self.lead = self.varied.shape[:2] if batched else (1, self.varied.shape[0])

    def _vary(self, vary: str | int | None) -> str | int:
        if vary is not None:
            if vary not in self.words:
                raise ArgumentError(f"vary must be among {', '.join(map(str, self.words))}, but {vary!r} came")
            return vary
        known: list[str | int] = ["input_ids", "inputs_embeds"]
        found = [n for n in known if n in self.words] or [n for n, x in self.words.items() if is_array(x)]
        if not found:
            raise ArgumentError("the example must hold an array")
        return found[0]

    def copy(self) -> Subject:
        """The same with arguments and a count of its own."""
        return Subject(self.model, self.words, self.vary, self.output, self.batched)

    def twice(self) -> Subject:
        """Every argument with the batch of the example, and the example itself, doubled along the batch."""
        B = self.lead[0]
        made = {
            n: back(np.concatenate([numpy_of(x)] * 2), x) if is_array(x) and x.shape and x.shape[0] == B else x
            for n, x in self.words.items()
        }
        again = self.copy()
        again.words, again.varied = made, np.concatenate([self.varied] * 2)
        again.lead = (2 * B, self.lead[1])
        return again

    def with_contents(self, chosen: Chosen, contents: Array) -> Array:
        """The varied input with `contents` where a position (sequence, position) is chosen."""
        where = chosen if self.batched else chosen[0]
        return np.where(where.reshape(*where.shape, *[1] * (self.varied.ndim - where.ndim)), contents, self.varied)

    def answer(self, varied: Array | None = None) -> Array:
        """The output as (sequences, positions, features)."""
        self.runs += 1
        words = dict(self.words)
        given = words[self.vary]
        # A fresh array each time: a model may write to what it is given.
        words[self.vary] = back((self.varied if varied is None else varied).copy(), given)
        place = [words[n] for n in sorted(n for n in words if isinstance(n, int))]
        named = {n: x for n, x in words.items() if isinstance(n, str)}
        found = self.output(self.quietly(lambda: self.model(*place, **named)))
        out = numpy_of(found)
        out = out if self.batched else out[None]
        if out.ndim < 2 or out.shape[:2] != self.lead:
            raise ShapeError(
                f"the output must have the positions {self.lead} of the example first, but its shape is {found.shape}; pass output="
            )
        return out.reshape(*self.lead, -1)

    def quietly(self, call: Callable[[], T]) -> T:
        """A call without gradients, where torch is used."""
        if not is_torch(self.words[self.vary]):
            return call()
        import torch

        with torch.no_grad():
            return call()
