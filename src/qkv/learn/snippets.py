"""The code of a lesson: run when the lesson is built, and shown in colours with what it printed."""

from __future__ import annotations

import contextlib
import html
import io
import traceback

from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import PythonLexer  # type: ignore[import-untyped]

from qkv.errors import FileError

__all__ = ["coloured", "printed"]


def printed(code: str, place: str, raises: str | None = None) -> str:
    """What the code prints, run by itself in a fresh namespace.

    The code is the lesson's own, never a learner's.

    Args:
        code: Python.
        place: file and line, for tracebacks.
        raises: the name of the exception that it has to end with.

    Raises:
        FileError: it raised, or did not raise what it has to.
    """
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"<{place}>", "exec"), {"__name__": "__main__"})
    except Exception as error:
        if type(error).__name__ == raises:
            return out.getvalue() + traceback.format_exception_only(error)[-1]
        raise FileError(f"{place}: the snippet raised {type(error).__name__}: {error}; correct it") from error
    if raises is not None:
        raise FileError(f"{place}: the snippet has to raise {raises}, but it did not; take raises= out")
    return out.getvalue()


def coloured(code: str) -> str:
    """HTML of the code, its tokens in spans with Pygments' short classes."""
    if not code.strip():
        return html.escape(code)
    lexer = PythonLexer(stripnl=False)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix="tok-")))
