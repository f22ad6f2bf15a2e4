"""A mask expression in text, such as `causal() & (window(255, 0) | first(4))`, read without being evaluated.

The text becomes a syntax tree, and the tree is walked against a short list of what may stand in it: the operators
`&`, `|`, `~`, calls of the rules below, and literal arguments. Nothing else is looked at, so text from a stranger's
file or command line can do nothing but make a mask or raise one error.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from . import masks
from .errors import ArgumentError, QkvError
from .masks import Mask

__all__ = ["RULES", "parse_mask"]

#: The rules an expression may call. `allow` and `where` take arrays and functions, which text has none of.
RULES: dict[str, Callable[..., Mask]] = {
    "causal": masks.causal,
    "window": masks.window,
    "first": masks.first,
    "prefix": masks.prefix,
    "keys": masks.keys,
    "segments": masks.segments,
}

MAX_LENGTH = 10_000
MAX_DEPTH = 64
_INTEGER_LIMIT = 2**62
#: What a parameter takes besides an integer; `align` also takes "end" and "start".
_MAY_BE_NONE = {"left", "right", "align"}
_MAY_BE_LIST = {"lengths", "stop", "query_ids", "key_ids", "align"}
_CARET_WIDTH = 72

_OPERATORS_SAID = "masks combine with & (both), | (either) and ~ (not)"


def parse_mask(text: str) -> Mask:
    """The mask that an expression in text stands for.

    Args:
        text: rules `causal`, `window`, `first`, `prefix`, `keys`, `segments` with literal arguments, combined with
            `&`, `|`, `~` and brackets. Python's precedence holds: `~` before `&` before `|`. A rule without arguments
            may leave its brackets out. Arguments are integers, `None`, `"end"` or `"start"`, and lists of integers.

    Returns:
        The same mask the expression would make in Python.

    Raises:
        ArgumentError: anything else; the message shows where, with a caret, and what to write instead.

    >>> parse_mask("causal & (window(255, 0) | first(4))")
    causal() & (window(255, 0) | first(4))
    >>> parse_mask("causal and first(4)")
    Traceback (most recent call last):
        ...
    qkv.errors.ArgumentError: mask has `and` where an operator is expected; masks combine with & (both), | (either) and ~ (not)
      causal and first(4)
             ^
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"mask must be an expression in text here, but {type(text).__name__} came; pass a string such as 'causal()'"
        )
    return _Reader(text).read()


class _Reader:
    """One expression: its text on one line, and the walk over its syntax tree."""

    def __init__(self, text: str) -> None:
        # One line, so that a position is a column.
        self.text = "".join(" " if c in "\n\r\t" else c for c in text).rstrip()

    def read(self) -> Mask:
        start = len(self.text) - len(self.text.lstrip())
        self._check_characters(start)
        source = self.text[start:]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source, mode="eval")
        except SyntaxError as error:
            raise self._syntax_fault(error, start) from None
        except (RecursionError, MemoryError, ValueError):
            raise self._too_deep(start) from None
        # Columns count from the first character that is not a space.
        self.text = source
        return self._mask(tree.body, 1)

    def _check_characters(self, start: int) -> None:
        if len(self.text) > MAX_LENGTH:
            raise ArgumentError(
                f"mask must have at most {MAX_LENGTH:,} characters, but has {len(self.text):,}; "
                "build masks of that size in Python"
            )
        if start == len(self.text):
            raise ArgumentError("mask must be an expression, but is empty; write one such as 'causal()'")
        for at, c in enumerate(self.text):
            if not " " <= c <= "~":
                raise self._fault(f"mask has the character {c!a}", "use plain ASCII characters", at)
            if c in "#\\":
                raise self._fault(f"mask has the character {c!r}", "leave comments and escapes out", at)

    def _mask(self, node: ast.expr, depth: int) -> Mask:
        if depth > MAX_DEPTH:
            raise self._too_deep(node.col_offset)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            left, right = self._mask(node.left, depth + 1), self._mask(node.right, depth + 1)
            return left & right if isinstance(node.op, ast.BitAnd) else left | right
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return ~self._mask(node.operand, depth + 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._make(node.func.id, node, node.col_offset)
        if isinstance(node, ast.Name):
            return self._make(node.id, None, node.col_offset)
        raise self._no_mask(node)

    def _make(self, name: str, call: ast.Call | None, at: int) -> Mask:
        """The mask of one rule; a bare name is a call without arguments."""
        self._known(name, at)
        named: dict[str, ast.expr] = {}
        for keyword in call.keywords if call else ():
            # Python looks for names given twice when it compiles, and this tree is never compiled.
            if keyword.arg is None or keyword.arg in named:
                said = "** before an argument" if keyword.arg is None else f"{keyword.arg}= twice"
                raise self._fault(f"mask: {name} has {said}", f"write {_signature(name)}", keyword.value.col_offset)
            named[keyword.arg] = keyword.value
        try:
            bound = inspect.signature(RULES[name]).bind(*(call.args if call else ()), **named)
        except TypeError as error:
            raise self._fault(
                f"mask: the arguments of {name} do not fit ({error})", f"write {_signature(name)}", at
            ) from None
        for parameter, node in bound.arguments.items():
            bound.arguments[parameter] = self._argument(node, name, parameter)
        try:
            return RULES[name](*bound.args, **bound.kwargs)
        except QkvError as error:
            # The rule's own sentence says what came and the way out; the place is what it cannot know.
            raise ArgumentError(f"{error}\n{self._picture(at)}") from None

    def _known(self, name: str, at: int) -> None:
        if name in RULES:
            return
        if name in ("allow", "where", "alibi"):
            raise self._fault(f"mask has {name}, which takes an array or a function", "use it from Python", at)
        close = difflib.get_close_matches(name.lower(), RULES, n=1)
        way = f"did you mean {close[0]}?" if close else f"the rules are {', '.join(RULES)}"
        raise self._fault(f"mask has {_short(name)}, which is no rule", way, at)

    def _argument(self, node: ast.expr, rule: str, parameter: str) -> Any:
        """The value of a literal: an integer, or what else this parameter takes."""
        text, nothing, many = parameter == "align", parameter in _MAY_BE_NONE, parameter in _MAY_BE_LIST
        if isinstance(node, ast.Constant) and (
            (nothing and node.value is None) or (text and node.value in ("end", "start"))
        ):
            return node.value
        found: Any = [_integer(item) for item in node.elts] if many and isinstance(node, ast.List) else _integer(node)
        items = found if isinstance(found, list) else [found]
        if None not in items and all(abs(item) < _INTEGER_LIMIT for item in items):
            return np.array(found, np.int64) if isinstance(found, list) else found
        if None not in items:
            raise self._fault(
                f"mask: {parameter} of {rule} has an integer of more than 62 bits",
                "write a smaller one",
                node.col_offset,
            )
        kinds = ["an integer", *["a list of integers"] * many, *["None"] * nothing, *['"end"', '"start"'] * text]
        raise self._fault(
            f"mask: {parameter} of {rule} must be {' or '.join(kinds)}",
            f"write a literal in place of {_short(ast.get_source_segment(self.text, node) or 'this')}",
            node.col_offset,
        )

    def _syntax_fault(self, error: SyntaxError, start: int) -> ArgumentError:
        message = error.msg or ""
        if "integer" in message:  # more digits than Python reads
            return self._fault("mask has an integer of more than 62 bits", "write a smaller one", start)
        if "nested" in message:  # more brackets than Python opens
            return self._too_deep(start + (error.offset or 1) - 1)
        # Python's advice beyond brackets speaks of programs, not of masks.
        said = message if "'" in message else "a part is missing or out of place"
        # Where the end of the text is the fault, there is no column on its one line.
        at = start + error.offset - 1 if error.lineno == 1 and error.offset else len(self.text)
        return self._fault(f"mask is not a complete expression ({said})", "write it like causal() & window(255, 0)", at)

    def _no_mask(self, node: ast.expr) -> ArgumentError:
        at, said = node.col_offset, "something that is no mask"
        way = f"{_OPERATORS_SAID}, and the rules are {', '.join(RULES)}"
        if isinstance(node, ast.BoolOp):
            word = "and" if isinstance(node.op, ast.And) else "or"
            first, second = node.values[:2]
            at = self.text.index(word, first.end_col_offset or 0, second.col_offset)
            said, way = f"`{word}` where an operator is expected", _OPERATORS_SAID
        elif isinstance(node, ast.UnaryOp):
            word = {ast.Not: "not", ast.USub: "-"}.get(type(node.op), "+")
            said, way = f"`{word}` where an operator is expected", _OPERATORS_SAID
        elif isinstance(node, ast.BinOp):
            between = self.text[node.left.end_col_offset : node.right.col_offset]
            word = between.strip(" ()")
            at = (node.left.end_col_offset or 0) + between.index(word)
            said, way = f"`{word}` where an operator is expected", _OPERATORS_SAID
        elif isinstance(node, ast.Attribute) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            said, way = "a dotted name", "write the rule's name alone, such as causal()"
        elif isinstance(node, ast.Call):
            said, way = "a call of something that has no name", f"the rules are {', '.join(RULES)}"
        elif isinstance(node, ast.Constant):
            said = f"{_short(repr(node.value))} where a rule is expected"
            way = f"the rules are {', '.join(RULES)}"
        elif isinstance(node, ast.Tuple) and not node.elts:
            said, way = "brackets with nothing in them", "put a mask in them, such as (causal())"
        elif isinstance(node, ast.Tuple):
            said, way = "a comma between masks", _OPERATORS_SAID
        return self._fault(f"mask has {said}", way, at)

    def _too_deep(self, at: int) -> ArgumentError:
        return self._fault(
            f"mask is nested more than {MAX_DEPTH} levels deep", "build masks of that size in Python", at
        )

    def _fault(self, said: str, way: str, at: int) -> ArgumentError:
        return ArgumentError(f"{said}; {way}\n{self._picture(at)}")

    def _picture(self, at: int) -> str:
        """The part of the text around a column, with a caret under it; two columns of margin."""
        at = min(at, len(self.text))
        begin = (
            0 if len(self.text) <= _CARET_WIDTH else max(0, min(at - _CARET_WIDTH // 2, len(self.text) - _CARET_WIDTH))
        )
        shown = "".join(c if " " <= c <= "~" else "?" for c in self.text[begin : begin + _CARET_WIDTH])
        before, after = "…" if begin else "", "…" if begin + _CARET_WIDTH < len(self.text) else ""
        return f"  {before}{shown}{after}\n  {' ' * (len(before) + at - begin)}^"


def _signature(name: str) -> str:
    parameters = inspect.signature(RULES[name]).parameters.values()
    return f"{name}({', '.join(p.name if p.default is p.empty else p.name + '=…' for p in parameters)})"


def _integer(node: ast.expr) -> int | None:
    """The value of an integer literal with or without a minus; None where it is something else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _integer(node.operand) if isinstance(node.operand, ast.Constant) else None
        return None if number is None else -number
    # `type`, because True is an int.
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
