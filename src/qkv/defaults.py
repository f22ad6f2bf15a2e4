"""What the bridges to other libraries assume where a caller says nothing, and `strict`, which turns that off.

The front door raises for an empty row and for a NaN (C2, D2). Inside a model neither will do: left-padded rows are empty,
loss scaling needs its infinities, and a compiled graph cannot raise on data. So a bridge answers with zeros and NaN rows
unless it is told otherwise, in the call or by `strict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["bridge_defaults", "strict"]

_STRICT: ContextVar[bool] = ContextVar("qkv_strict", default=False)


@contextmanager
def strict() -> Iterator[None]:
    """Inside this block the bridges (`qkv.torch`, `qkv.transformers`) raise where the front door does (C2, D2).

    It speaks for calls that do not say `empty=` or `nonfinite=` themselves, in this thread or task. The default is read
    when a call is carried out, so it holds for compiled graphs as well.

    >>> import qkv
    >>> from qkv.defaults import bridge_defaults
    >>> bridge_defaults()
    ('zero', 'propagate')
    >>> with qkv.strict():
    ...     bridge_defaults()
    ('raise', 'raise')
    """
    before = _STRICT.set(True)
    try:
        yield
    finally:
        _STRICT.reset(before)


def bridge_defaults() -> tuple[str, str]:
    """(`empty`, `nonfinite`) of a bridge's call that says neither."""
    return ("raise", "raise") if _STRICT.get() else ("zero", "propagate")
