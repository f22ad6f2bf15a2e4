"""What stands between `{{` and `}}` in a lesson: computed by the package, and written as people read it.

An expression is parsed with Python's grammar and walked by hand; of all that Python can do there is arithmetic, lists,
indexing, and the named computations below. `content/README.md` is the reference.
"""

from __future__ import annotations

import ast
import html
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from qkv import plain
from qkv.errors import FileError
from qkv.trace import Trace, trace

from .head import HeadFacts, facts

__all__ = ["FUNCTIONS", "compute", "show", "written"]

Vector = Sequence[float]


# The named computations -----------------------------------------------------------------------------------------------


def _refusal(*arguments: Any) -> str:
    try:
        plain.attend(*arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    raise ValueError("the definition takes this input, so there is no refusal to show")


def _softmax(scores: Vector) -> list[float]:
    # A query [1.0] and keys of width 1 have exactly these scores.
    return trace([1.0], [[score] for score in scores], [[0.0] for _ in scores]).weights


def _mix(weights: Vector, values: Sequence[Vector]) -> list[float]:
    return [plain.mixture(weights, numbers) for numbers in zip(*values, strict=True)]


def _exp(x: float) -> float | str:
    try:
        return math.exp(x)
    except OverflowError:
        return "overflow"


def _causal(n: int) -> list[list[bool]]:
    return [[j <= i for j in range(n)] for i in range(n)]


def _causal_weights(query: Sequence[Vector], key: Sequence[Vector]) -> list[list[float]]:
    nothing = [[0.0] for _ in key]
    return [trace(row, key, nothing, allowed).weights for row, allowed in zip(query, _causal(len(key)), strict=True)]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "trace": trace,
    "refusal": _refusal,
    "softmax": _softmax,
    "mix": _mix,
    "dot": plain.dot,
    "sqrt": math.sqrt,
    "exp": _exp,
    "add": lambda scores, x: [score + x for score in scores],
    "times": lambda scores, x: [score * x for score in scores],
    "causal": _causal,
    "causal_weights": _causal_weights,
    "count": len,
    "total": math.fsum,
    "largest": max,
    "mean": lambda numbers: math.fsum(numbers) / len(numbers),
    "head": facts,
}

_FIELDS = {
    Trace: frozenset(field.name for field in fields(Trace)),
    HeadFacts: frozenset(field.name for field in fields(HeadFacts)),
}

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


# The walk -------------------------------------------------------------------------------------------------------------


def compute(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Args:
        expression: the text.
        names: what the front matter's `let` has computed.

    Raises:
        FileError: it is none, or it cannot be computed; the sentence says what is wrong with it.
    """
    expression = expression.strip()
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError):
        raise FileError(f"{expression!r} is not an expression; see content/README.md for what can be written") from None
    try:
        return _value(tree.body, names)
    except FileError as error:
        raise FileError(f"{expression!r}: {error}") from None
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise FileError(f"{expression!r} cannot be computed: {error}") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return constant
        case ast.Name(id=name):
            if name not in names:
                raise FileError(f"there is no {name}; add it to let in the front matter")
            return names[name]
        case ast.List(elts=items):
            return [_value(item, names) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_number(_value(left, names)), _number(_value(right, names)))
        case ast.Subscript(value=value, slice=index):
            found, at = _value(value, names), _value(index, names)
            if not isinstance(found, list) or not isinstance(at, int):
                raise FileError("only a list can be indexed, by a whole number")
            return found[at]
        case ast.Attribute(value=value, attr=name):
            owner = _value(value, names)
            if name not in _FIELDS.get(type(owner), ()):
                raise FileError(f"there is no field {name}")
            return getattr(owner, name)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=options):
            if name not in FUNCTIONS:
                raise FileError(f"there is no function {name}; there are {', '.join(FUNCTIONS)}")
            given = {str(option.arg): _value(option.value, names) for option in options}
            return FUNCTIONS[name](*(_value(argument, names) for argument in arguments), **given)
        case _:
            raise FileError("this is not written in a lesson; see content/README.md for what can be")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FileError("only numbers can be added and multiplied; for lists there are add and times")
    return value


# How it is shown ------------------------------------------------------------------------------------------------------


def show(text: str, names: Mapping[str, Any]) -> str:
    """The HTML of what stands between `{{` and `}}`.

    >>> show(" 1 / 3 | 2 ", {})
    '<data class="computed" value="0.3333333333333333">0.33</data>'
    """
    expression, bar, style = text.rpartition("|")
    value = compute(expression if bar else text, names)
    shown = html.escape(written(value, style.strip() if bar else ""))
    if isinstance(value, str) or (isinstance(value, list) and any(isinstance(part, str) for part in value)):
        return f'<span class="computed">{shown}</span>'
    return f'<data class="computed" value="{html.escape(_exact(value))}">{shown}</data>'


def written(value: Any, style: str = "") -> str:
    """A value as people read it.

    >>> written([7.3105857863000490, 5.0]), written(-1.0), written(0.7310585, "percent"), written(4.54e-05)
    ('[7.311, 5]', '−1', '73.1 %', '4.54e−05')
    """
    if isinstance(value, list):
        parts = ", ".join(written(part, style) for part in value)
        return parts if style == "tokens" else f"[{parts}]"
    if style == "tokens" and isinstance(value, str):
        return f"“{value.strip() or value}”"
    if isinstance(value, bool | str):
        return str(value)
    if value is None:
        return "masked"
    if not isinstance(value, int | float):
        raise FileError(f"a {type(value).__name__} cannot be shown; show one of its fields")
    return _digits(value, style).replace("-", "−")


def _digits(value: float, style: str) -> str:
    if not math.isfinite(value):
        return "-∞" if value < 0 else "∞" if value > 0 else "not a number"
    match style:
        case "":
            return str(int(value)) if value == int(value) and abs(value) < 1e15 else _decimals(value, 3)
        case "percent":
            return f"{100 * value:.1f} %"
        case "g":
            return f"{value:.4g}"
        case "given":
            return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
        case _ if style.isdecimal() and int(style) <= 15:
            return _decimals(value, int(style))
        case _:
            raise FileError(f"{style!r} is no way to show a number; see content/README.md")


def _decimals(value: float, count: int) -> str:
    fixed = f"{value:.{count}f}"
    # What is not 0 never shows as 0.
    return fixed if float(fixed) or not value else f"{value:.3g}"


def _exact(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_exact(part) for part in value)}]"
    return repr(value) if isinstance(value, float) else str(value)
