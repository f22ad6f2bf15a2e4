"""The way out of an error, in the words of the command line.

The library's sentences end in what to write in Python. Whoever typed a command has options instead, and files in place
of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from qkv.errors import QkvError

__all__ = ["in_options", "with_options"]

#: What the library says (a pattern) -> what the command line says.
_WAYS = (
    (r"\bempty='zero'", "--empty zero"),
    (r"\bnonfinite='propagate'", "--nonfinite propagate"),
    (r"\bpass layout='(\w+)'", r"pass --layout \1"),
    (r"\bdrop layout='\w+'", "leave --layout out"),
    # Of the words of an alignment, those in the sentence and in its drawing; they are as long, so that it stands.
    (r'\balign="(end|start)"', r"--align \1"),
    (r"(--align start), or the position of the first query", r"\1, or --align N, the position of the first query"),
    (r"\bwith mask=", "with --mask"),
    (r"\blower scale\b", "lower --scale"),
    (r"\bleave it out for 1/sqrt\(D\)", "leave --scale out for 1/sqrt(D)"),
    (r"\bleave it out for no softcap", "leave --softcap out for none"),
    (r"\bwrite (query|key|value)\.astype\(np\.float32\)", r"save \1 as float32"),
    (r"\bwrite (key|value)\.astype\(query\.dtype\)", r"save \1 with the dtype of query"),
    (r"\bso write np\.broadcast_to\((key|value), …\)", r"so save \1 with the batch axes of query"),
    (r"\ba single vector is (query|key|value)\[None\]", "save a single vector with an axis of length 1 before it"),
    (r"\bpass names= without it\b", "name all three with --query, --key and --value to leave it unread"),
    (
        r"\braise max_bytes= if you trust the file, or pass names= to read some of them",
        "name all three with --query, --key and --value to read no others, "
        "or read it in Python with a larger max_bytes",
    ),
)
_PATTERNS = tuple((re.compile(said), option) for said, option in _WAYS)


def in_options(sentence: str) -> str:
    """The sentence with its way out told in options.

    >>> in_options("allow it a key, or pass empty='zero' for a zero output")
    'allow it a key, or pass --empty zero for a zero output'
    """
    for said, option in _PATTERNS:
        sentence = said.sub(option, sentence)
    return sentence


@contextmanager
def with_options() -> Iterator[None]:
    """Let errors of the library out with their ways out told in options; kind and attributes stay."""
    try:
        yield
    except QkvError as error:
        error.args = (in_options(str(error)), *error.args[1:])
        raise
