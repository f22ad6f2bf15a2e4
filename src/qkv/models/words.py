"""What a tokenizer is made of, before a library makes it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Words"]


@dataclass(frozen=True)
class Words:
    """A byte-pair encoding.

    Attributes:
        vocabulary: token -> id. merges: pairs of tokens, the most wanted first.
        spaces: "bytes" for a byte-level encoding with single digits (SmolLM2), "marked" for characters with ▁ for a
            space (glassllm).
        special: tokens that no text is turned into. unknown, bos, eos, pad: their names among the tokens, or None.
    """

    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]
    spaces: str
    special: list[str] = field(default_factory=list)
    unknown: str | None = None
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
