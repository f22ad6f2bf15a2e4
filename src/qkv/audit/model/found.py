"""What was found out about a model: its leaks, what was asked, and what could not be."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Leak", "Leaks"]


@dataclass(frozen=True)
class Leak:
    """One dependence that may not be.

    Attributes:
        kind: "future", "left padding", "right padding", "batch", "packing" or "cache".
        position: the first position whose output depends on what it may not. source: an input position it depends on;
            for a cache, where the part that holds the position begins.
        sequence: index in the batch of the output. source_sequence: of the input.
        before, after: one number of that output, with the example and with other input at `source`; for a cache, read
            at once and in parts.
        module: the innermost torch module whose inputs had not changed and whose output had; "" where none is known.
        layer: the number in its name, None where it has none. features: (first, last) that changed of `tensor`.
        tensor: the first tensor in which the change is seen, such as "the input of layers.17.attention.out".
        head: whose features they are, where the module is an attention of transformers and they are one head's.
        way: how a cache was used. bound: how far apart rounding may bring the two.
    """

    kind: str
    position: int
    source: int
    sequence: int
    source_sequence: int
    before: float
    after: float
    module: str = ""
    tensor: str = ""
    features: tuple[int, int] | None = None
    head: int | None = None
    way: str = ""
    bound: float = 0.0

    @property
    def layer(self) -> int | None:
        """The first number in the module's name."""
        return next((int(part) for part in self.module.split(".") if part.isdigit()), None)

    def __str__(self) -> str:
        where = f" of sequence {self.sequence}" if self.kind == "batch" else ""
        whose = {"batch": f" of sequence {self.source_sequence}", "packing": ", which is of another document"}
        numbers = f"{self.before:.9g} becomes {self.after:.9g}"
        if self.kind == "cache":
            said = (
                f"cache: the output at position {self.position} is another where the text is read {self.way}: "
                f"{numbers}, and rounding gives {self.bound:.2g} at most"
            )
        else:
            said = (
                f"{self.kind}: the output at position {self.position}{where} depends on the input at position "
                f"{self.source}{whose.get(self.kind, '')}: {numbers}"
            )
        if self.module:
            said += f"; it enters in {self.module}"
        if self.tensor:
            said += f", first seen in {self.tensor}"
            if self.features is not None:
                said += f", features {self.features[0]}…{self.features[1]}"
            if self.head is not None:
                said += f" (head {self.head})"
        return said


@dataclass(frozen=True)
class Leaks:
    """The audit of a model.

    Attributes:
        leaks: at most one a kind. asked: kinds that were asked about. left_out: kind -> why it could not be asked.
        runs: how often the model was called. rounding: what depends on other inputs in its last bits alone, and no more
            in float64; experts, for one, are multiplied in groups whose size the other tokens decide. No leak, but not
            the same bits (F3).
    """

    leaks: tuple[Leak, ...]
    asked: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    rounding: tuple[Leak, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing leaks of what was asked about."""
        return not self.leaks

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "leaks": [{**asdict(leak), "layer": leak.layer} for leak in self.leaks],
            "asked": list(self.asked),
            "left_out": self.left_out,
            "runs": self.runs,
            "rounding": [{**asdict(leak), "layer": leak.layer} for leak in self.rounding],
        }

    def __str__(self) -> str:
        leaking = {leak.kind for leak in self.leaks}
        lines = [str(leak) for leak in self.leaks]
        rounded = {leak.kind for leak in self.rounding} - leaking
        lines += [f"in rounding alone, {leak}" for leak in self.rounding if leak.kind in rounded]
        lines += [f"{kind}: none found" for kind in self.asked if kind not in leaking | rounded]
        lines += [f"{kind}: not asked, {why}" for kind, why in self.left_out.items()]
        return "\n".join([*lines, f"{self.runs} runs"])
