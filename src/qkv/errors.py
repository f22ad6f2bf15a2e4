"""The errors of the contract, one class a kind of fault.

    QkvError
    ├── ArgumentError       (ValueError)       an option has a value it cannot have
    ├── ShapeError          (ValueError)       axes that do not fit each other
    ├── DTypeError          (TypeError)        an element type, or a kind of object, that is not taken
    ├── MaskError           (TypeError)        a mask used as something it is not
    ├── AlignmentError      (ValueError)       a positional rule that could mean two things
    ├── EmptyRowError       (ValueError)       a query row with no key to read
    ├── NonFiniteError      (ValueError)       a NaN or infinity that an allowed pair reads
    ├── ScoreOverflowError  (ArithmeticError)  finite operands whose score is not finite
    ├── UnsupportedError    (TypeError)        something that is refused rather than ignored
    ├── EngineError         (RuntimeError)     an engine that was asked for and is not there
    └── FileError           (ValueError)       a file that is not what it says

Each also inherits from the built-in exception in brackets, so code that catches those keeps working.
The message is one sentence: the argument, what was expected, what came, the way out; a picture may follow.
"""

from __future__ import annotations

__all__ = [
    "AlignmentError",
    "ArgumentError",
    "DTypeError",
    "EmptyRowError",
    "EngineError",
    "FileError",
    "MaskError",
    "NonFiniteError",
    "QkvError",
    "ScoreOverflowError",
    "ShapeError",
    "UnsupportedError",
]


def shown(value: object) -> str:
    """What came, in a message: as it is written if that is short, otherwise what kind of thing it is.

    >>> shown("bhdl"), shown([0] * 100)
    ("'bhdl'", 'a list')
    """
    try:
        text = repr(value)
    except Exception:
        text = "\n"
    if len(text) <= 60 and "\n" not in text and " at 0x" not in text:
        return text
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


class QkvError(Exception):
    """Base of every error this package raises on purpose."""


class ArgumentError(QkvError, ValueError):
    """An option has a value it cannot have (B1, B2, B5, C4)."""


class ShapeError(QkvError, ValueError):
    """Axes that do not fit each other (A1 to A3, B4)."""


class DTypeError(QkvError, TypeError):
    """An element type, or a kind of object, that is not taken (A4, B4, F1)."""


class MaskError(QkvError, TypeError):
    """A mask used as something it is not, such as a truth value (B5)."""


class AlignmentError(QkvError, ValueError):
    """A positional rule that could mean two things when L != S (B6)."""


class EmptyRowError(QkvError, ValueError):
    """A query row with no allowed key has no distribution (C2).

    Attributes:
        index: (batch…, head, row) of the first such row.
        count: how many rows have no allowed key.
    """

    def __init__(self, message: str, index: tuple[int, ...] = (), count: int = 0) -> None:
        super().__init__(message)
        self.index = index
        self.count = count


class NonFiniteError(QkvError, ValueError):
    """A NaN or infinity that an allowed pair reads (D2).

    Attributes:
        argument: "query", "key", "value" or "bias".
        index: where it stands, in the caller's layout.
    """

    def __init__(self, message: str, argument: str = "", index: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.argument = argument
        self.index = index


class ScoreOverflowError(QkvError, ArithmeticError):
    """Finite operands whose score is not finite in the type it is computed in (D3).

    Attributes:
        index: (batch…, head, row) of the first such row.
    """

    def __init__(self, message: str, index: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.index = index


class UnsupportedError(QkvError, TypeError):
    """Something that is refused, because the alternative would be to ignore it (G1)."""


class EngineError(QkvError, RuntimeError):
    """An engine or instruction set that was asked for and is not there."""


class FileError(QkvError, ValueError):
    """A file that is not what it says it is."""
