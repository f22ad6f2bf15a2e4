"""The lab's grader: run a learner's `attend` on cases, hold it to the contract, show the smallest input that breaks it.

    report = grade(source)            # the text of a solution, or a function
    report.passed, report.to_dict()

The same file runs in CPython as `qkv.learn.grader` and in a browser's Python as a loose file beside `plain.py`, the
definition it grades by. Standard library only; no processes, no clocks: whoever runs it sets the limits (`runner.py`
does for CPython, a worker for the page), and `on_case` and `skip` let a host that had to stop one case go on with the
next.

A mistake is named by computing it: `TWINS` are the definition with one mistake each, and a cause is named when its twin
gives the learner's numbers on the failing input and on several others. The source is never read.
"""

from __future__ import annotations

import builtins
import json
import math
import opcode
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

__all__ = [
    "CASE_IDS",
    "CAUSES",
    "CLAUSES",
    "Local",
    "Output",
    "Report",
    "decode",
    "encode",
    "essence",
    "explain",
    "grade",
    "grade_json",
    "read_input",
    "submission",
    "try_input",
]

SCHEMA = "qkv-lab-report/1"
SUBMISSION = "qkv-lab-submission/1"

Problem = tuple[Any, Any, Any, Any]  # query, keys, values, allowed
Outcome = dict[str, Any]  # what a call came to, see `Local.call`
Run = Callable[[Problem], Outcome]

U = 2.0**-53  # half the distance of neighbouring floats at 1: the relative error of one rounding
SMALLEST = 2.0**-1022  # below it floats lose digits

# The clauses ----------------------------------------------------------------------------------------------------------

#: The clauses of the contract that the lab grades, by the contract's own numbers, in words for one query.
CLAUSES: dict[str, str] = {
    "A1": "query is D numbers, keys are S vectors of D numbers, values are S vectors of E numbers; anything else is "
    "refused with ValueError. The answer is a pair: S weights, then a context of E numbers.",
    "A3": "A vector holds at least one number and a query has at least one key: an empty list is refused with "
    "ValueError.",
    "A4": "Inputs are never written to, and the answer is made of new lists.",
    "B1": "The score of a key is its dot product with the query, divided by the square root of the query's width.",
    "B4": "allowed says which keys may be read: True means that the query may read this key. It is a list of booleans, "
    "one per key; another length is refused with ValueError, another type with TypeError.",
    "C1": "Weights are the softmax over the allowed keys, their largest score subtracted first: at least 0, exactly 0 "
    "where a key is forbidden, adding up to 1. The context is the sum of the values, each times its weight.",
    "C2": "With no allowed key there is no distribution, and no answer: it is refused with ValueError.",
    "C3": "No finite number stands for 'not allowed': an allowed key with a very negative score still beats every "
    "forbidden one.",
    "D1": "A forbidden key has no influence on the answer, whatever its key or value holds.",
    "D2": "NaN and infinity are not numbers one can weigh: they are refused with ValueError.",
    "D3": "An allowed score beyond the largest float is refused with ValueError; one beyond the most negative float "
    "weighs 0 beside a finite one. A mixture of finite values is never infinite.",
    "F2": "Every number of the answer is within rounding of float64 of the definition.",
    "F4": "The same call gives the same answer, whatever was called before.",
    "G1": "Every input is honoured or refused. Vectors are lists or tuples of ints or floats; another type is refused "
    "with TypeError (or ValueError). A boolean among the numbers may be refused, or taken as 1 or 0.",
}

# Numbers and data -----------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """Any input as JSON: lists, numbers, texts, booleans and null as they are, all else as an object that says what.

    >>> encode([1.0, float("nan"), (2, True), 1j])
    [1.0, {'float': 'nan'}, {'tuple': [2, True]}, {'complex': [0.0, 1.0]}]
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return [encode(item) for item in value]
    if kind is tuple:
        return {"tuple": [encode(item) for item in value]}
    if kind is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if kind is dict:
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    return {"other": kind.__name__}


def decode(data: Any) -> Any:
    """The input that `encode` wrote down.

    >>> decode(encode([1.0, (2, True), float("inf")]))
    [1.0, (2, True), inf]
    """
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("an input cannot hold an object; write numbers, lists, tuples, texts, True, False or None")
    ((tag, content),) = data.items()
    if tag == "float":
        return float(content)
    if tag == "int":
        return int(content, 16)
    if tag == "tuple":
        return tuple(decode(item) for item in content)
    if tag == "complex":
        return complex(*(decode(part) for part in content))
    if tag == "dict":
        return {decode(key): decode(item) for key, item in content}
    raise ValueError(f"an input cannot hold {tag!r}; write numbers, lists, tuples, texts, True, False or None")


def read_input(text: str) -> Problem:
    """An input of `attend` as a learner writes it down: Python, JSON, or a few lines of numbers.

    Takes `attend([1], [[1]], [[2]], [True])`, the same without `attend`, an object with the fields query, keys, values
    and, if not all keys are allowed, allowed, and lines such as `keys: 1 0; 0 1`. Numbers may be computed: `1/3`,
    `10**400`, `[1] * 3`, `math.sqrt(2)`; `nan` and `inf` are names one may write. Nothing is guessed: what has two
    readings, or none, is refused.

    >>> read_input("attend([1, 0], [[1, inf]], [[2]], [True])")
    ([1, 0], [[1, inf]], [[2]], [True])
    >>> read_input('{"query": [1], "keys": [[1]], "values": [[2]]}')
    ([1], [[1]], [[2]], [True])
    >>> read_input("query: 1 0\\nkeys: 1 0; 0 1\\nvalues: 10; 20\\nallowed: yes no")
    ([1, 0], [[1, 0], [0, 1]], [[10], [20]], [True, False])

    Raises:
        ValueError: the text is not such an input; the message says where, and what may be written.
    """
    if len(text) > 100_000:
        raise ValueError("an input must have at most 100,000 characters; find a smaller one that breaks too")
    fields = _small_form(text) if _FIELD.match(text) else _Reader(text).fields()
    for name in _FIELDS[:3]:
        if name not in fields:
            raise ValueError(f"the input must have query, keys, values and allowed, but has no {name}; {_LIKE_THIS}")
    if "allowed" not in fields:
        fields["allowed"] = [True] * (len(fields["keys"]) if type(fields["keys"]) in (list, tuple) else 1)
    return fields["query"], fields["keys"], fields["values"], fields["allowed"]


_FIELDS = ("query", "keys", "values", "allowed")
_LIKE_THIS = "write it like attend([1, 0], [[1, 0]], [[2]], [True])"
_DEPTH = 20  # brackets and signs within each other
_SIZE = 10_000  # things in a list that is computed, and bits of an int

_NAMES: dict[str, Any] = {"nan": math.nan, "NaN": math.nan, "inf": math.inf, "Infinity": math.inf}
_NAMES |= {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_NAMES |= {"pi": math.pi, "e": math.e}
_DIGITS = r"\d+(?:_\d+)*"
_NUMBER = re.compile(rf"0[xX][\da-fA-F]+|(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?\d+)?[jJ]?")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f]+|\#[^\n]*|\\\n) | (?P<line>\n) | (?P<number>\.?\d(?:[eE][+-]\d|[\w.])*)
    | (?P<word>[^\W\d]\w*) | (?P<text>'[^'\\\n]*'|"[^"\\\n]*") | (?P<sign>\*\*|[-+*/()\[\]{},:=.]) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _number(text: str) -> int | float | complex | None:
    """The number that is written there, or None."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        if text[-1] in "jJ":
            return complex(0.0, float(text[:-1]))
        return int(text) if text.replace("_", "").isdigit() else float(text)
    except ValueError:  # an int of thousands of digits
        return None


class _Token(NamedTuple):
    kind: str  # "number", "word", "text", "sign" or "end"
    text: str
    line: int


class _Reader:
    """Reads one input, by recursive descent with a depth of its own: an interpreter's stack may be a small one."""

    def __init__(self, text: str) -> None:
        self.tokens: list[_Token] = []
        self.at = 0
        self.depth = 0
        self.made = 0
        line = 1
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup or ""
            if kind == "line":
                line += 1
            elif kind == "other":
                if found.group() in "'\"":
                    raise self._refusal(
                        line, "has a text that does not end, or holds a backslash", "write it like 'ab'"
                    )
                raise self._refusal(
                    line, f"holds {found.group()!r}", "write numbers, lists and attend(…), nothing else"
                )
            elif kind != "space":
                self.tokens.append(_Token(kind, found.group(), line))
            elif found.group().startswith("\\"):
                line += 1
        self.end = _Token("end", "", line)

    @staticmethod
    def _refusal(line: int, what: str, way_out: str) -> ValueError:
        return ValueError(f"line {line} {what}; {way_out}")

    @property
    def token(self) -> _Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else self.end

    def _takes(self, *signs: str) -> str:
        """The sign that comes next, if it is one of these; it is then behind."""
        token = self.token
        if token.kind != "sign" or token.text not in signs:
            return ""
        self.at += 1
        return token.text

    def _wants(self, sign: str) -> None:
        if self._takes(sign):
            return
        token = self.token
        if token.kind == "end":
            raise self._refusal(
                token.line, f"is neither Python nor JSON: it ends where {sign!r} should stand", _LIKE_THIS
            )
        before = self.tokens[self.at - 1] if self.at else self.end
        if {before.kind, token.kind} <= {"number", "word", "text"}:
            way_out = "put a comma between the two, and write decimals with a point"
            raise self._refusal(token.line, f"holds {before.text} {token.text} with nothing between", way_out)
        what = f"is neither Python nor JSON: it has {token.text!r} where {sign!r} should stand"
        raise self._refusal(token.line, what, _LIKE_THIS)

    def fields(self) -> dict[str, Any]:
        """The arguments of `attend` by name, as far as they are there."""
        if self.token.kind == "end":
            raise self._refusal(self.token.line, "is neither Python nor JSON: there is nothing", _LIKE_THIS)
        first = self.token
        if first.kind == "word" and first.text not in (*_NAMES, *_CALLS, *_MODULES):
            if [token.text for token in self.tokens[:2]] != ["attend", "("]:
                what = f"begins with {first.text!r}"
                raise self._refusal(first.line, what, f"the input is a call of attend and nothing else: {_LIKE_THIS}")
            self.at += 2
            fields = self._arguments()
        else:
            fields = self._given(self._whole())
        if self.token.kind != "end":
            what = f"goes on with {self.token.text!r} after the input"
            raise self._refusal(self.token.line, what, f"write one input and nothing else: {_LIKE_THIS}")
        return fields

    def _whole(self) -> Any:
        """All of the text: one value, or several with commas between."""
        values = [self._value()]
        several = False
        while self._takes(","):
            several = True
            if self.token.kind == "end":
                break
            values.append(self._value())
        return tuple(values) if several else values[0]

    def _given(self, value: Any) -> dict[str, Any]:
        if type(value) is dict:
            for name in value:
                self._known(name)
            return value
        if type(value) not in (list, tuple):
            raise ValueError(f"the input must hold query, keys, values and allowed, but is one value; {_LIKE_THIS}")
        self._count(len(value))
        return dict(zip(_FIELDS, value, strict=False))

    def _arguments(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        positions = 0
        while not self._takes(")"):
            if self.token.kind == "sign" and self.token.text in ("*", "**"):
                raise self._refusal(self.token.line, f"unpacks with {self.token.text}", "write every argument out")
            following = self.tokens[self.at + 1 : self.at + 2]
            if self.token.kind == "word" and following and following[0].text == "=" and following[0].kind == "sign":
                name = self.token.text
                self.at += 2
                self._known(name)
            else:
                if len(fields) > positions:
                    way_out = "write arguments without a name first"
                    raise self._refusal(
                        self.token.line, "has an argument without a name after one with a name", way_out
                    )
                positions += 1
                name = _FIELDS[positions - 1] if positions <= len(_FIELDS) else ""
            value = self._value()
            if name in fields:
                raise ValueError(
                    f"the input must have query, keys, values and allowed once, but has {name} twice; {_ONCE}"
                )
            if name:
                fields[name] = value
            if not self._takes(","):
                self._wants(")")
                break
        self._count(positions)
        return fields

    @staticmethod
    def _count(given: int) -> None:
        if given > len(_FIELDS):
            raise ValueError(
                f"the input must have four parts, query, keys, values and allowed, but has {given}; leave the others out"
            )

    @staticmethod
    def _known(name: Any) -> None:
        if name not in _FIELDS:
            raise ValueError(
                f"the input must have query, keys, values and allowed, but has a field {name!r}; leave it out or rename it"
            )

    # Values: sums of products of powers ----------------------------------------------------------------------------------

    def _value(self) -> Any:
        value = self._product()
        while sign := self._takes("+", "-"):
            value = self._computed(sign, value, self._product())
        return value

    def _product(self) -> Any:
        value = self._signed()
        while sign := self._takes("*", "/"):
            value = self._computed(sign, value, self._signed())
        return value

    def _signed(self) -> Any:
        self.depth += 1
        if self.depth > _DEPTH:
            what = f"is nested more than {_DEPTH} deep"
            raise self._refusal(
                self.token.line, what, "attend takes lists of numbers and lists of such lists; flatten it"
            )
        line = self.token.line
        sign = self._takes("-", "+")
        if sign:
            value = self._signed()
            if type(value) not in (int, float, complex):
                raise self._refusal(line, f"has a {sign} before something that is not a number", "write the number out")
            value = -value if sign == "-" else value
        else:
            value = self._single()
            if self._takes("**"):
                value = self._computed("**", value, self._signed())
        self.depth -= 1
        return value

    def _computed(self, sign: str, a: Any, b: Any) -> Any:
        """a sign b, of numbers, or of a list and how many times."""
        line = self.tokens[self.at - 1].line
        kinds = type(a), type(b)
        if sign == "*" and int in kinds and (list in kinds or tuple in kinds):
            items, times = (b, a) if kinds[0] is int else (a, b)
            self.made += max(len(items), sum(1 for _ in _leaves(items))) * max(0, times)
            if self.made > _SIZE:
                what = f"makes lists of more than {_SIZE:,} things"
                raise self._refusal(line, what, "find a smaller input that breaks too")
            return _fresh(items * times)
        if not all(kind in (int, float, complex) for kind in kinds):
            raise self._refusal(line, f"has a {sign} between things that are not numbers", "write the value out")
        try:
            if sign == "**":
                if type(b) is int and type(a) is int and b >= 0 and a.bit_length() * b > _SIZE:
                    raise OverflowError
                value = a**b
            else:
                value = a * b if sign == "*" else a / b if sign == "/" else a + b if sign == "+" else a - b
        except ArithmeticError:
            what = f"has a {sign} whose result is no number that fits"
            raise self._refusal(line, what, "write the number out, or inf") from None
        if type(value) is int and value.bit_length() > _SIZE:
            raise self._refusal(line, f"makes an int of more than {_SIZE:,} bits", "take a smaller one")
        return value

    def _single(self) -> Any:
        token = self.token
        self.at += 1
        if token.kind == "number":
            number = _number(token.text)
            if number is None or (type(number) is int and number.bit_length() > _SIZE):
                raise self._refusal(
                    token.line, f"holds {token.text[:40]!r}, which is no number that fits", "write it like 1.5"
                )
            return number
        if token.kind == "text":
            return token.text[1:-1]
        if token.kind == "word":
            return self._named(token)
        if token.kind == "sign":
            if token.text == "(":
                items, comma = self._items(")")
                return tuple(items) if comma or not items else items[0]
            if token.text == "[":
                return self._items("]")[0]
            if token.text == "{":
                return self._object()
        if token.kind == "end":
            raise self._refusal(
                token.line, "is neither Python nor JSON: it ends where a value should stand", _LIKE_THIS
            )
        what = f"is neither Python nor JSON: it has {token.text!r} where a value should stand"
        raise self._refusal(token.line, what, _LIKE_THIS)

    def _items(self, close: str) -> tuple[list[Any], bool]:
        """What stands before the closing bracket, and whether there was a comma."""
        items: list[Any] = []
        comma = False
        while not self._takes(close):
            items.append(self._value())
            if not self._takes(","):
                self._wants(close)
                break
            comma = True
        return items, comma

    def _object(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not self._takes("}"):
            line = self.token.line
            key = self._value()
            self._wants(":")
            value = self._value()
            if type(key) not in (str, int, float, bool, type(None)):
                raise self._refusal(line, "has a key that is no text and no number", "write the name in quotes")
            if key in found:
                raise self._refusal(line, f"has the key {key!r} twice", _ONCE)
            found[key] = value
            if not self._takes(","):
                self._wants("}")
                break
        return found

    def _named(self, token: _Token) -> Any:
        name = token.text
        if name in _MODULES and self._takes("."):
            name = self.token.text if self.token.kind == "word" else ""
            self.at += 1
        if name in _CALLS and self._takes("("):
            arguments, _ = self._items(")")
            try:
                if len(arguments) == 1 and type(arguments[0]) in _CALLS[name][1]:
                    return _CALLS[name][0](arguments[0])
            except (ValueError, OverflowError):
                pass
            raise self._refusal(token.line, f"calls {name} on something that gives no number", "write the number out")
        if name in _NAMES:
            return _NAMES[name]
        allowed = "numbers, True, False, None, nan, inf, pi, sqrt(2), texts, and lists, tuples and dicts of these"
        raise self._refusal(token.line, f"holds {name or token.text!r}, which is not known here", f"write {allowed}")


_ONCE = "leave one of them out"
_MODULES = ("math", "np", "numpy")  # whose nan, inf, pi, e and sqrt people write
#: What may be called, and on what.
_CALLS: dict[str, tuple[Callable[[Any], Any], tuple[type, ...]]] = {
    "float": (float, (int, float, str)),
    "sqrt": (math.sqrt, (int, float)),
}

_FIELD = re.compile(r"\s*(?:query|keys|values|allowed)[ \t]*:")


def _small_form(text: str) -> dict[str, Any]:
    """Lines of numbers: `query: 1 0`, `keys: 1 0; 0 1`, `values: 10; 20`, `allowed: yes no`."""
    fields: dict[str, Any] = {}
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, content = line.partition(":")
        name = name.strip()
        if not colon or name not in _FIELDS:
            raise ValueError(
                f"line {at} must begin with query:, keys:, values: or allowed:, but is {line.strip()[:40]!r}; {_ROWS}"
            )
        if name in fields:
            raise ValueError(f"line {at} gives {name} a second time; {_ONCE}")
        rows = [[_word(word, name) for word in _words(row, name)] for row in content.split(";")]
        if name in ("query", "allowed"):
            if len(rows) > 1:
                raise ValueError(f"{name} must be one row, but has {len(rows)} parted by ';'; leave the ';' out")
            fields[name] = rows[0]
        else:
            fields[name] = rows if content.strip() else []
    return fields


_ROWS = "write query: 1 0 and, below it, keys: 1 0; 0 1"


def _words(row: str, name: str) -> list[str]:
    """The words of a row, with blanks between, or with commas and blanks."""
    words = row.split()
    return [word.removesuffix(",") if at < len(words) - 1 else word for at, word in enumerate(words)]


def _word(word: str, name: str) -> Any:
    sign, bare = (word[0], word[1:]) if word[:1] in ("-", "+") else ("", word)
    truths = {"yes": True, "true": True, "no": False, "false": False}
    if name == "allowed" and word.lower() in truths:
        return truths[word.lower()]
    number = {"nan": math.nan, "inf": math.inf}.get(bare.lower(), _number(bare))
    if number is not None:
        return -number if sign == "-" else number
    if "," in word:
        pointed = word.replace(",", ".", 1)
        raise ValueError(f"{name} holds {word!r}; write {pointed} for one number, or a blank between two")
    what = "yes, no or a number" if name == "allowed" else "a number"
    raise ValueError(
        f"{name} holds {word[:40]!r}, which is not {what}; write numbers with blanks between, like 1 0.5 -2 nan"
    )


def _code(value: Any) -> str:
    """An input as Python, after `from math import inf, nan`."""
    if type(value) is list:
        return f"[{', '.join(map(_code, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_code, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return f"{{{', '.join(f'{_code(key)}: {_code(item)}' for key, item in value.items())}}}"
    # Beyond some thousand digits Python writes an int in sixteens only.
    return hex(value) if type(value) is int and value.bit_length() > _SIZE else repr(value)


def _call_text(problem: Problem) -> str:
    return f"attend({', '.join(map(_code, problem))})"


def _short(value: Any) -> str:
    """An answer for people: six digits, and no more of it than fits."""
    if type(value) is bool or not isinstance(value, (int, float, list)):
        text = value["other"] if isinstance(value, dict) and "other" in value else repr(value)
        return str(text)[:80]
    if isinstance(value, (int, float)):
        return f"{value:.6g}" if abs(value) < 1e300 or not math.isfinite(value) else f"{value:.4g}"
    shown = [_short(item) for item in value[:8]]
    return f"[{', '.join(shown + ['…'] * (len(value) > 8))}]"


def _fresh(value: Any) -> Any:
    """The same input with no list shared."""
    kind = type(value)
    if kind is list:
        return [_fresh(item) for item in value]
    if kind is tuple:
        return tuple([_fresh(item) for item in value])
    return dict(value) if kind is dict else value


def _same(a: Any, b: Any) -> bool:
    """Whether two inputs are the same bits and types; asks no object that is not of a built-in type."""
    if type(a) is not type(b):
        return False
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is float:
        return bool(a == b or (a != a and b != b))
    if type(a) in (int, str, complex):
        return bool(a == b)
    return a is b or type(a) is dict


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (list, tuple):
        for item in value:
            yield from _leaves(item)
    elif type(value) is dict:
        yield from _leaves(list(value.values()))
    else:
        yield value


def _numbers(problem: Problem) -> list[Any]:
    return [x for x in _leaves(list(problem[:3])) if type(x) in (int, float, complex)]


class _Dice:
    """A seeded stream of numbers that is the same in every version of Python (splitmix64)."""

    def __init__(self, *words: object) -> None:
        state = 0xCBF29CE484222325
        for byte in "/".join(map(str, words)).encode():
            state = ((state ^ byte) * 0x100000001B3) % 2**64
        self.state = state

    def below(self, n: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) % n

    def number(self) -> float:
        """A quarter between -3 and 3 that is not 0: exact in a float, short on a page."""
        quarters = 1 + self.below(12)
        return quarters / 4 if self.below(2) else -quarters / 4

    def vector(self, width: int) -> list[float]:
        return [self.number() for _ in range(width)]

    def problem(self, keys: int, width: int, value_width: int, allowed: Sequence[bool] | None = None) -> Problem:
        return (
            self.vector(width),
            [self.vector(width) for _ in range(keys)],
            [self.vector(value_width) for _ in range(keys)],
            list(allowed or [True] * keys),
        )

    def mask(self, keys: int) -> list[bool]:
        """At least one key allowed and one forbidden."""
        mask = [bool(self.below(2)) for _ in range(keys)]
        at, other = self.below(keys), self.below(keys - 1)
        mask[at], mask[other if other < at else other + 1] = True, False
        return mask


# Running the learner's function -----------------------------------------------------------------------------------------


class Runs(Protocol):
    """Something that runs a learner's `attend`: in this interpreter (`Local`), or in another process.

    Both methods return an outcome, and never raise. Kinds of outcome:

        loaded      the function is there
        returned    `value`: what it returned, as nested lists of numbers; `changed`: names of inputs written to;
                    `shared`: whether a list of the answer is a list of the inputs
        raised      `type`, `refusal` ("ValueError", "TypeError" or None), `message`, `line`; `stated`: by `raise`
        hang        `seconds`: no answer within
        died        `message`: the process ended
        spent       `seconds`: there was no time left to start it
    """

    def load(self) -> Outcome:
        """Load the solution afresh, with no memory of earlier calls."""

    def call(self, problem: Problem) -> Outcome:
        """Call `attend` on fresh copies of the input."""

    def printed(self) -> tuple[str, bool]:
        """What the solution printed, and whether there was more."""


PRINTED = 4000  # characters kept


class Output:
    """What a solution prints into: a file that keeps the first `PRINTED` characters and forgets the rest.

    A host that shows them while the solution runs gives `Local` one with a `write` of its own.
    """

    encoding, errors, closed = "utf-8", "replace", False

    def __init__(self) -> None:
        self.kept = ""
        self.cut = False

    def write(self, text: str) -> int:
        room = PRINTED - len(self.kept)
        if room > 0:
            self.kept += str.__getitem__(text, slice(0, room))
        if str.__len__(text) > room:
            self.cut = True
        return str.__len__(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None: ...
    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


class _Nobody:
    """A keyboard with nobody at it: `input()` raises EOFError, in a page as in a terminal."""

    encoding, errors, closed = "utf-8", "replace", False

    def readline(self, size: int = -1) -> str:
        return ""

    read = readline

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def isatty(self) -> bool:
        return False


class _Guard:
    """Puts back what a solution may have changed in the modules that grade it: names, functions' code, the streams."""

    def __init__(self, modules: Sequence[types.ModuleType]) -> None:
        spaces: list[tuple[dict[str, Any], dict[str, Any]]] = []
        functions: dict[int, tuple[types.FunctionType, Any, Any, Any]] = {}
        classes: list[tuple[type, dict[str, Any]]] = []
        for module in modules:
            space = module.__dict__
            spaces.append((space, dict(space)))
            for thing in list(space.values()):
                if type(thing) is types.FunctionType:
                    functions[id(thing)] = (thing, thing.__code__, thing.__defaults__, thing.__kwdefaults__)
                elif isinstance(thing, type) and thing.__module__ == module.__name__ and thing.__flags__ & 1 << 9:
                    members = dict(thing.__dict__)
                    classes.append((thing, members))
                    for member in members.values():
                        if type(member) is types.FunctionType:
                            functions[id(member)] = (
                                member,
                                member.__code__,
                                member.__defaults__,
                                member.__kwdefaults__,
                            )
        kept_functions = list(functions.values())
        limit = sys.getrecursionlimit()
        system, get, clear, update = sys, dict.get, dict.clear, dict.update
        size, put, drop, has = len, type.__setattr__, type.__delattr__, dict.__contains__
        own = {"__doc__", "__dict__", "__weakref__", "__annotations__", "__annotations_cache__", "_abc_impl"}
        own |= {
            "__annotate__",
            "__annotate_func__",
            "__abstractmethods__",
            "__dataclass_fields__",
            "__static_attributes__",
            "__firstlineno__",
        }
        settrace, setprofile = sys.settrace, sys.setprofile
        set_limit, get_limit = sys.setrecursionlimit, sys.getrecursionlimit
        trace, profile, streams = sys.gettrace(), sys.getprofile(), (sys.stdout, sys.stderr, sys.stdin)
        gettrace, getprofile = sys.gettrace, sys.getprofile

        def restore() -> None:
            if get_limit() != limit:
                set_limit(limit)
            if gettrace() is not trace:
                settrace(trace)
            if getprofile() is not profile:
                setprofile(profile)
            system.stdout, system.stderr, system.stdin = streams
            for space, saved in spaces:
                for name in saved:
                    if get(space, name) is not saved[name]:
                        break
                else:
                    if size(space) == size(saved):
                        continue
                clear(space)
                update(space, saved)
            for function, code, defaults, kwdefaults in kept_functions:
                if function.__code__ is not code:
                    function.__code__ = code
                if function.__defaults__ is not defaults:
                    function.__defaults__ = defaults
                if function.__kwdefaults__ is not kwdefaults:
                    function.__kwdefaults__ = kwdefaults
            for cls, members in classes:
                now = cls.__dict__
                for name in members:
                    if name not in own and now.get(name) is not members[name]:
                        put(cls, name, members[name])
                if size(now) > size(members):
                    for name in [*now]:
                        if not has(members, name) and name not in own:
                            drop(cls, name)

        self.restore = restore


class Local:
    """Runs a solution in this interpreter: the text of a solution, or a function.

    Whatever it does to built-in names, to this module and to the streams is undone after each call; what it returns or
    raises is read without asking its objects anything. Against endless loops, memory and the end of the interpreter
    only another process helps.
    """

    def __init__(
        self, solution: str | Callable[..., Any], name: str = "solution.py", *, output: Output | None = None
    ) -> None:
        self.solution = solution
        self.name = name
        self._attend: Any = None
        self._output = Output() if output is None else output
        self._compiled: Any = None
        self._guard: _Guard | None = None

    def printed(self) -> tuple[str, bool]:
        return self._output.kept, self._output.cut

    def load(self) -> Outcome:
        if not isinstance(self.solution, str):
            return self._take(self.solution)
        module = types.ModuleType("solution")
        module.__file__ = self.name

        def start() -> None:
            if self._compiled is None:
                self._compiled = compile(self.solution, self.name, "exec", dont_inherit=True)  # type: ignore[arg-type]
            sys.modules["solution"] = module
            exec(self._compiled, module.__dict__)

        outcome, _ = self._guarded(start, ())
        if outcome["kind"] == "raised":
            # What cannot be compiled is no Python; which exception says so differs between versions.
            return outcome | {"start": "syntax" if self._compiled is None else "raised"}
        attend = module.__dict__.get("attend")
        if attend is None or not _is_callable(attend):
            return _not_started("undefined", "NameError", f"the program defines no function {_SIGNATURE}")
        return self._take(attend)

    def _take(self, attend: Any) -> Outcome:
        """Keep the function, if it can be called as it will be."""
        if type(attend) is types.FunctionType:
            code = attend.__code__
            most = sys.maxsize if code.co_flags & 0x04 else code.co_argcount  # *arguments
            least = code.co_argcount - len(attend.__defaults__ or ())
            named = code.co_kwonlyargcount - len(attend.__kwdefaults__ or ())
            if not least <= 4 <= most or named > 0:
                takes = f"its attend takes {code.co_argcount} arguments, but is called with four: {_SIGNATURE}"
                return _not_started("signature", "TypeError", takes, code.co_firstlineno)
        self._attend = attend
        return {"kind": "loaded"}

    def call(self, problem: Problem) -> Outcome:
        given = _fresh(problem)
        outcome, value = self._guarded(self._attend, given)
        if outcome["kind"] == "raised":
            outcome["changed"] = _changed(problem, given)
            return outcome
        outcome["value"] = _plain_data(value, 1000 + 10 * sum(1 for _ in _leaves(problem)))
        outcome["changed"] = _changed(problem, given)
        outcome["shared"] = _shares(value, given)
        if type(value) is types.CoroutineType:
            value.close()
        return outcome

    def _guarded(self, function: Any, arguments: tuple[Any, ...]) -> tuple[Outcome, Any]:
        if self._guard is None:
            known = ("plain", "qkv.plain", "json", "json.encoder", "json.decoder")
            modules = [builtins, math, sys.modules[__name__]]
            self._guard = _Guard(modules + [sys.modules[name] for name in known if name in sys.modules])
        restore = self._guard.restore
        anything: Any = BaseException  # a local name: the built-in one may be gone when it is needed
        raised: Any = None
        value: Any = None
        streams = sys.stdout, sys.stderr, sys.stdin
        sys.stdout = sys.stderr = self._output
        sys.stdin = _Nobody()
        try:
            try:
                value = function(*arguments)
            except anything as error:
                raised = error
        finally:
            restore()
        sys.stdout, sys.stderr, sys.stdin = streams
        if raised is None:
            return {"kind": "returned"}, value
        outcome = _raised(raised, self.name)
        return outcome, None


_SIGNATURE = "attend(query, keys, values, allowed)"


def _not_started(start: str, error: str, message: str, line: int | None = None) -> Outcome:
    return {"kind": "raised", "type": error, "refusal": None, "message": message, "line": line, "start": start}


def _is_callable(thing: Any) -> bool:
    return any("__call__" in cls.__dict__ for cls in type.__dict__["__mro__"].__get__(type(thing)))


def _raised(error: BaseException, name: str) -> Outcome:
    kind = type(error)
    refusal = next((base.__name__ for base in (ValueError, TypeError) if issubclass(kind, base)), None)

    def own_part(base: type, part: str) -> Any:
        """An attribute as the built-in class has it: a subclass may have made it a trap."""
        return base.__dict__[part].__get__(error) if issubclass(kind, base) else None

    try:
        said = own_part(SyntaxError, "msg") or ("" if error.args == (None,) else str(error))  # exit() has None to say
        message = str.__getitem__(said, slice(0, 300)) if issubclass(type(said), str) else ""
    except BaseException:
        message = "(its text cannot be read)"
    line = own_part(SyntaxError, "lineno")
    trace: Any = BaseException.__dict__["__traceback__"].__get__(error)
    if type(line) is not int:
        line = None
        last = trace
        while last is not None:
            if last.tb_frame.f_code.co_filename == name:
                line = last.tb_lineno
            last = last.tb_next
    title = str(type.__dict__["__name__"].__get__(kind))[:80]
    own = type.__dict__["__module__"].__get__(kind) != "builtins" if kind.__flags__ & 1 << 9 else False
    outcome = {"kind": "raised", "type": title, "refusal": refusal, "message": message, "line": line, "own": bool(own)}
    outcome["stated"] = _is_stated(trace)
    missing = own_part(ImportError, "name") if issubclass(kind, ModuleNotFoundError) else None
    return outcome | ({"module": str.__getitem__(missing, slice(0, 80))} if type(missing) is str else {})


_RAISE = opcode.opmap["RAISE_VARARGS"]


def _is_stated(trace: Any) -> bool:
    """Whether a statement `raise` raised it; `max([])` and `math.exp(1000)` raise without one."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code, at = trace.tb_frame.f_code.co_code, trace.tb_lasti
    return bool(0 <= at < len(code) and code[at] == _RAISE)


def _plain_data(value: Any, room: int = 1000) -> Any:
    """What was returned as nested lists of plain numbers; anything else as an object with its type's name.

    Args:
        value: anything; none of its own methods are called.
        room: how many things are read, in all.
    """
    left = [room]

    def plain(value: Any, depth: int) -> Any:
        left[0] -= 1
        kind = type(value)
        if left[0] <= 0 or depth > 6:
            return {"other": "more than fits"}
        if value is None or kind is bool:
            return {"other": repr(value)}
        if issubclass(kind, (list, tuple)):
            # The base's own methods: those of a subclass may lie.
            base = list if issubclass(kind, list) else tuple
            return [plain(item, depth + 1) for item in base.__getitem__(value, slice(0, left[0] + 1))]
        if issubclass(kind, float):
            return float.__pos__(value)
        if issubclass(kind, int):
            whole = int.__pos__(value)
            try:
                return float(whole)
            except OverflowError:
                return math.inf if whole > 0 else -math.inf
        return {"other": str(type.__dict__["__name__"].__get__(kind))[:80]}

    return plain(value, 0)


def _shares(value: Any, given: Problem) -> bool:
    """Whether an answer's weights or context are a list of the inputs."""
    if not issubclass(type(value), (list, tuple)):
        return False
    base = list if issubclass(type(value), list) else tuple
    parts = [part for part in base.__getitem__(value, slice(0, 2)) if type(part) is list]
    lists = [item for vectors in given for item in (vectors, *(vectors if type(vectors) in (list, tuple) else ()))]
    return any(part is item for part in parts for item in lists)


def _changed(problem: Problem, given: Problem) -> list[str]:
    names = ("query", "keys", "values", "allowed")
    return [name for name, before, after in zip(names, problem, given, strict=True) if not _same(before, after)]


# What is right ----------------------------------------------------------------------------------------------------------

_definition: dict[str, Any] = {}


def _define() -> dict[str, Any]:
    """The definition, loaded when first needed: a process that only runs solutions has no use for it."""
    if not _definition:
        try:
            from .. import plain  # as qkv.learn.grader
        except ImportError:
            import plain  # type: ignore[no-redef, import-not-found]  # as a loose file
        _definition.update(attend=plain.attend, checked=plain.checked, steps=plain.attention_steps)
    return _definition


class Expected(NamedTuple):
    """What the contract wants for an input: an answer, a refusal, or either of them."""

    kind: str  # "answer", "refusal" or "either"
    weights: Sequence[float] = ()
    context: Sequence[float] = ()
    bounds: Sequence[tuple[float, float]] = ()  # for each weight, then for each number of the context
    breach: str = ""  # which refusal
    clause: str = ""
    error: str = ""  # "ValueError" or "TypeError"
    message: str = ""
    mistyped: bool = False  # TypeError refuses it as well, whatever is looked at first
    doubt: str = ""  # of "either": how the answer comes about


#: How the definition's refusals read, what they are called here, and the clause they come from; the first that fits.
_BREACHES = [
    ("allowed must be a list", "mask type", "B4"),
    ("must be True or False", "mask type", "B4"),
    ("one boolean per key", "mask length", "B4"),
    ("let at least one key", "empty row", "C2"),
    ("at least one vector", "no keys", "A3"),
    ("at least one number", "no width", "A3"),
    ("as wide as the query", "key width", "A1"),
    ("as wide as values[0]", "value width", "A1"),
    ("one vector per key", "value count", "A1"),
    ("finite number", "not finite", "D2"),
    ("overflows", "overflow", "D3"),
    ("", "wrong type", "G1"),
]


def _expected(problem: Problem) -> Expected:
    """What the contract wants, with the room that it leaves: a refusal, the answer without the doubt, or either."""
    refusal = _defined(problem)
    if refusal.kind == "refusal":
        refusal = refusal._replace(mistyped=refusal.error == "TypeError" or _mistyped(problem))
        reading = _without_doubt(problem)
        if reading is None:
            return refusal
        sure, clause, doubt = _defined(reading[0]), reading[1], reading[2]
    elif problem[3] is None:
        # To the definition None allows every key; the lab's attend is given booleans.
        sure, clause, doubt = refusal, "B4", "allow every key"
        refusal = refusal._replace(error="TypeError", mistyped=True)
    else:
        return refusal
    if sure.kind != "answer":
        return refusal
    return sure._replace(kind="either", clause=clause, doubt=doubt, error=refusal.error, mistyped=refusal.mistyped)


def _defined(problem: Problem) -> Expected:
    """What the definition says, without room."""
    define = _define()
    try:
        steps = define["steps"](*define["checked"](*_fresh(problem)))
    except (TypeError, ValueError) as error:
        message = str(error)
        breach, clause = next((name, clause) for words, name, clause in _BREACHES if words in message)
        kind = "TypeError" if isinstance(error, TypeError) else "ValueError"
        return Expected("refusal", breach=breach, clause=clause, error=kind, message=message)
    query, keys, values, allowed = define["checked"](*_fresh(problem))
    bounds = _bounds(query, keys, values, allowed, steps)
    return Expected("answer", steps.weights, steps.context, bounds)


def _without_doubt(problem: Problem) -> tuple[Problem, str, str] | None:
    """The input as one may also read it, the clause that leaves the room, and how it is read; None if it leaves none.

    D1 lets a forbidden key hold anything, and the definition looks at it all the same. A bool is an int to Python.
    """
    query, keys, values, allowed = problem
    if type(allowed) not in (list, tuple, type(None)):
        return None

    def whole(x: Any) -> Any:
        return [whole(item) for item in x] if type(x) in (list, tuple) else int(x) if type(x) is bool else x

    numbers = [whole(part) for part in (query, keys, values)]
    doubts, clause = [], ""
    if not _same(numbers, [_lists_only(part) for part in (query, keys, values)]):
        clause = "G1"
        doubts.append("take True for 1 and False for 0")
    query, keys, values = numbers
    if type(allowed) in (list, tuple) and False in allowed:

        def tame(vectors: Any) -> Any:
            if type(vectors) is not list or len(vectors) != len(allowed):
                return vectors
            pairs = zip(vectors, allowed, strict=True)
            return [
                [x if may is not False or _is_finite(x) else 0.0 for x in v] if type(v) is list else v
                for v, may in pairs
            ]

        tamed = tame(keys), tame(values)
        if not _same([*tamed], [keys, values]):
            clause = clause or "D1"
            doubts.append("leave the forbidden key out")
        keys, values = tamed
    return ((query, keys, values, allowed), clause, " and ".join(doubts)) if doubts else None


def _is_finite(x: Any) -> bool:
    """Whether it fits a float, or is no number at all."""
    try:
        return type(x) not in (int, float) or math.isfinite(x)
    except OverflowError:
        return False


def _mistyped(problem: Problem) -> bool:
    """Whether anything in it is of a type that the contract does not take."""
    query, keys, values, allowed = problem

    def sequence(x: Any) -> bool:
        return isinstance(x, (list, tuple))

    if not all(map(sequence, problem)) or not all(isinstance(may, bool) for may in allowed):
        return True
    vectors = [query, *keys, *values]
    return not all(map(sequence, vectors)) or any(
        isinstance(x, bool) or not isinstance(x, (int, float)) for vector in vectors for x in vector
    )


def _gamma(operations: float) -> float:
    """The relative error that so many roundings can add up to (Higham, Accuracy and Stability, lemma 3.1)."""
    return operations * U / (1 - operations * U)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _bounds(
    query: list[float], keys: list[list[float]], values: list[list[float]], allowed: list[bool], steps: Any
) -> list[tuple[float, float]]:
    """Between which numbers an answer in float64 may lie, whatever order it adds up in.

    A score is known to within `radius`: the roundings of D products and sums and of the scale, and of a subtraction
    and an exponential that see it relative to the largest one; twice, since the definition is rounded too. From the
    scores' intervals follow those of the weights, and from these the context's.
    """
    width, count = len(query), len(keys)
    root = math.sqrt(width)
    scores = steps.scaled_scores
    largest = abs(steps.maximum) + math.log(count) + 1
    low, high = [], []
    for key, score in zip(keys, scores, strict=True):
        size = sum(abs(q * k) for q, k in zip(query, key, strict=True)) / root
        radius = 2 * _gamma(width + 6) * size + 2 * _gamma(4) * (min(abs(score), sys.float_info.max) + largest)
        low.append(score - radius if score > -math.inf else score)
        high.append(score + radius if score > -math.inf else score)
    relative = _gamma(2 * count + 8)
    tiny = SMALLEST * count
    bounds = []
    for j, may in enumerate(allowed):
        if not may:
            bounds.append((0.0, 0.0))
            continue
        others = [i for i, other in enumerate(allowed) if other and i != j]
        below = 1 / (1 + sum(_ratio(high[i], low[j]) for i in others))
        above = 1 / (1 + sum(_ratio(low[i], high[j]) for i in others)) if high[j] > -math.inf else 0.0
        bounds.append((below * (1 - relative) - tiny, above * (1 + relative) + tiny))
    loose = [b[1] - b[0] for b in bounds]
    for e, number in enumerate(steps.context):
        column = [abs(value[e]) for value in values]
        error = sum(gap * size for gap, size in zip(loose, column, strict=True))
        error += sum(relative * weight * size for weight, size in zip(steps.weights, column, strict=True))
        error += 2 * count * 5e-324
        bounds.append((number - error, number + error))
    return bounds


def _ratio(a: float, b: float) -> float:
    """exp(a - b) where both may be infinite."""
    return _exp(a - b) if a != b else 1.0


# Judging one call -------------------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """One breach of the contract."""

    kind: str  # see `FAILURES`
    key: str  # two failures with one kind and key are the same failure on different inputs
    clause: str
    says: str
    problems: list[Problem]
    outcomes: list[Outcome]
    expected: Expected | None = None
    before: Sequence[Problem] = ()  # calls that have to come first


#: The kinds of failure, and what each means.
FAILURES = {
    "wrong": "an answer with other numbers than the definition's",
    "malformed": "something that is not a pair of lists of numbers",
    "crashed": "an exception where an answer was due",
    "answered": "an answer where a refusal was due",
    "crashed instead of refusing": "an exception that is neither ValueError nor, for a wrong type, TypeError",
    "changed": "an input was written to",
    "shared": "a list of the answer is a list of the inputs",
    "unsteady": "the same call gave two answers",
    "influenced": "a forbidden key changed the answer",
    "hang": "no answer in time",
    "died": "the interpreter ended",
    "not started": "there is no attend to call: the program is no Python, or ends before it defines it",
    "unreadable": "a kept case is none",
}

_NAMES_OF_ANSWER = ("weights", "context")


def _judge(problem: Problem, expected: Expected, outcome: Outcome) -> Failure | None:
    """Hold one outcome to what is expected."""

    def fail(kind: str, key: str, clause: str, says: str) -> Failure:
        return Failure(kind, key, clause, says, [problem], [outcome], expected)

    kind = outcome["kind"]
    if kind == "hang":
        return fail("hang", "", expected.clause or "C1", f"It did not answer within {outcome['seconds']:g} s.")
    if kind == "died":
        return fail("died", "", expected.clause or "C1", f"The Python that ran it ended: {outcome['message']}.")
    at = f" at line {outcome['line']}" if outcome.get("line") else ""
    if kind == "raised":
        name, refusal = outcome["type"], outcome["refusal"]
        if expected.kind == "answer":
            says = f"It has an answer, but your code raised {name}{at}."
            return fail("crashed", name, "G1" if refusal else "C1", says)
        if refusal == "ValueError" or (refusal == "TypeError" and expected.mistyped):
            return None
        wanted = "TypeError or ValueError" if expected.mistyped else "ValueError"
        if expected.kind == "either":
            says = f"Your code raised {name}{at}; {expected.doubt}, or refuse it with {wanted}."
            return fail("crashed instead of refusing", name, expected.clause, says)
        says = f"It must be refused with {wanted}, but your code crashed with {name}{at}."
        return fail("crashed instead of refusing", f"{expected.breach}/{name}", expected.clause, says)
    value = outcome["value"]
    if expected.kind == "refusal":
        says = f"It must be refused with {expected.error}, but your code returned {_short_pair(value)}."
        return fail("answered", expected.breach, expected.clause, says)
    shape = _shape_fault(value, len(expected.weights), len(expected.context))
    if shape:
        return fail("malformed", shape.split(",")[0][:24], "A1", shape)
    numbers = [*value[0], *value[1]]
    count = len(expected.weights)
    for at_number, (number, right, (low, high)) in enumerate(
        zip(numbers, [*expected.weights, *expected.context], expected.bounds, strict=True)
    ):
        where = f"weights[{at_number}]" if at_number < count else f"context[{at_number - count}]"
        if not math.isfinite(number):
            huge = any(abs(x) > 1e154 for x in _numbers(problem) if type(x) is float)
            return fail(
                "wrong", "not finite", "D3" if huge else "C1", f"{where} must be a finite number, got {number}."
            )
        if not low <= number <= high:
            forbidden = at_number < count and low == high == 0.0
            clause = "D1" if at_number >= count and expected.clause == "D1" else "C1"
            exactly = "exactly 0, its key is forbidden" if forbidden else _near(right, number)
            key = "forbidden" if forbidden else "weight" if at_number < count else "context"
            return fail("wrong", key, clause, f"{where} must be {exactly}, got {_near(number, right)}.")
    return None


def _near(number: float, other: float) -> str:
    """With as many digits as it takes to tell the two apart."""
    for digits in (6, 9, 12, 15):
        if f"{number:.{digits}g}" != f"{other:.{digits}g}":
            return f"{number:.{digits}g}"
    return repr(number)


def _shape_fault(value: Any, count: int, width: int) -> str:
    """What is wrong with the shape of an answer, or nothing."""
    if not isinstance(value, list):
        return f"It must return the pair (weights, context), got {_short(value)}."
    if len(value) != 2:
        return f"It must return the pair (weights, context), got {len(value)} things."
    for name, part in zip(_NAMES_OF_ANSWER, value, strict=True):
        if not isinstance(part, list):
            got = "one number" if isinstance(part, float) else _short(part)
            return f"{name} must be a list or tuple of numbers, got {got}."
        for i, number in enumerate(part):
            if not isinstance(number, float):
                got = "a list" if isinstance(number, list) else _short(number)
                return f"{name}[{i}] must be a number, got {got}."
    for name, part, length, of in zip(_NAMES_OF_ANSWER, value, (count, width), ("key", "value's number"), strict=True):
        if len(part) != length:
            return f"{name} must hold one number per {of}, {length}, got {len(part)}."
    return ""


def _short_pair(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2:
        return f"({_short(value[0])}, {_short(value[1])})"
    return _short(value)


# The checks: what a case does with an input -----------------------------------------------------------------------------

Check = Callable[[Run, Problem], "Failure | None"]


def check_answer(run: Run, problem: Problem) -> Failure | None:
    """The answer, or the refusal, is the definition's."""
    return _judge(problem, _expected(problem), run(problem))


def check_unchanged(run: Run, problem: Problem) -> Failure | None:
    """A4: no input is written to, and the answer shares no list with them."""
    outcome = run(problem)
    if outcome["kind"] in ("hang", "died"):
        return _judge(problem, _expected(problem), outcome)
    if outcome.get("changed"):
        says = f"Your code wrote to {' and '.join(outcome['changed'])}."
        return Failure("changed", outcome["changed"][0], "A4", says, [problem], [outcome])
    if outcome.get("shared"):
        says = "A list of your answer is one of the lists that came in: who changes one changes both."
        return Failure("shared", "", "A4", says, [problem], [outcome])
    return None


#: An input whose two keys have different scores, and whose values tell them apart.
_TELLING: Problem = ([1.0], [[1.0], [0.0]], [[1.0], [2.0]], [True, True])

#: Another input, to call in between: half of each value.
_OTHER: Problem = ([0.0], [[0.0], [0.0]], [[0.0], [2.0]], [True, True])


def check_twice(run: Run, problem: Problem) -> Failure | None:
    """F4: the same call gives the same answer."""
    return _steady(run, problem, [])


def _between(run: Run, problem: Problem) -> Failure | None:
    """F4: also with another call between."""
    return _steady(run, problem, [_OTHER])


def _after_refusal(run: Run, problem: Problem) -> Failure | None:
    """F4: also with a refused call between."""
    return _steady(run, problem, [([1.0], [[1.0]], [[1.0]], [False])])


def _steady(run: Run, problem: Problem, between: list[Problem]) -> Failure | None:
    first = run(problem)
    if first["kind"] in ("hang", "died"):
        return _judge(problem, _expected(problem), first)
    for other in between:
        run(other)
    second = run(problem)
    if _same_outcome(first, second):
        return None
    says = f"The first call gave {_outcome_text(first)}, the same call again {_outcome_text(second)}."
    return Failure("unsteady", "", "F4", says, [problem, *between, problem], [first, second])


def _same_outcome(a: Outcome, b: Outcome) -> bool:
    if a["kind"] != b["kind"]:
        return False
    if a["kind"] == "returned":
        return _same(a["value"], b["value"]) or repr(a["value"]) == repr(b["value"])
    return bool(a["kind"] != "raised" or (a["type"] == b["type"]))


def check_uninfluenced(run: Run, problem: Problem) -> Failure | None:
    """D1: other numbers behind the mask, the same bits."""
    if _expected(problem).kind != "answer":
        return None
    query, keys, values, allowed = problem
    other = (
        query,
        [key if may else [1e9 + 7.0 * x for x in key] for key, may in zip(keys, allowed, strict=True)],
        [value if may else [-1e12 - x for x in value] for value, may in zip(values, allowed, strict=True)],
        allowed,
    )
    first = run(problem)
    failure = _judge(problem, _expected(problem), first)
    if failure:
        return failure
    second = run(other)
    if second["kind"] in ("hang", "died"):
        return _judge(other, _expected(other), second)
    if _same_outcome(first, second):
        return None
    says = (
        f"With other numbers in the forbidden key and value the answer changed from {_outcome_text(first)} "
        f"to {_outcome_text(second)}."
    )
    return Failure("influenced", second["kind"], "D1", says, [problem, other], [first, second], _expected(problem))


def _outcome_text(outcome: Outcome) -> str:
    if outcome["kind"] == "returned":
        return _short_pair(outcome["value"])
    if outcome["kind"] == "raised":
        return str(outcome["type"])
    return "no answer"


# The cases --------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One thing that is graded: a check on one or more inputs."""

    id: str
    group: str
    title: str
    clause: str
    problems: list[Problem]
    check: Check = check_answer
    hidden: bool = False
    trouble: str = ""  # why it cannot be run


EXAMPLE: Problem = ([math.sqrt(2), 0.0], [[1.0, 0.0], [0.0, 1.0]], [[10.0, 0.0], [0.0, 20.0]], [True, True])


def _cases(seed: object, hidden: object = None) -> list[Case]:
    nan, inf = math.nan, math.inf
    yes, no = True, False

    def draw(name: str, *shapes: tuple[int, int, int], masked: bool = False, times: int = 2) -> list[Problem]:
        dice = _Dice(seed, name)
        return [
            dice.problem(*shape, allowed=dice.mask(shape[0]) if masked else None)
            for _ in range(times)
            for shape in shapes
        ]

    def two(first: float, second: float, mask: list[bool] | None = None) -> Problem:
        """Two keys with these scores and the values 1 and 3."""
        return [1.0], [[first], [second]], [[1.0], [3.0]], mask or [True, True]

    Q, K, V, A = [1.0], [[1.0], [2.0]], [[3.0], [5.0]], [True, True]
    all4 = [yes, yes, yes, yes]
    # fmt: off
    cases = [
        Case("example", "mixture", "The worked example: the answer leans to the first value", "C1", [EXAMPLE]),
        Case("equal-scores", "mixture", "Two keys with the same score: half of each value", "C1", [
            ([0.0], [[1.0], [1.0]], [[2.0, 6.0], [8.0, 0.0]], A), two(101, 101), two(-100, -100),
            # However small, an answer counts.
            *(([0.0], [[1.0], [1.0]], [[tiny], [3 * tiny]], A) for tiny in (1e-13, 1e-200)),
        ]),
        Case("two-keys", "mixture", "Two keys, one coordinate", "C1", draw("two-keys", (2, 1, 1), times=5)),
        Case("one-key", "mixture", "One key is read whole", "C1", draw("one-key", (1, 1, 1), (1, 3, 2))),
        Case("scale", "mixture", "The score is divided by the square root of the width", "B1",
             draw("scale", (2, 2, 1), (3, 3, 1), (2, 4, 1), (3, 4, 2))),
        Case("many", "mixture", "Several keys, several coordinates", "C1",
             draw("many", (4, 3, 2), (5, 2, 3), (8, 16, 4)) + draw("more", (12, 1, 8), times=1)),
        Case("integers", "mixture", "Whole numbers are numbers", "G1", [([1, 2], [[3, 0], [1, 1]], [[4], [8]], A)]),
        Case("tuples", "mixture", "Tuples are as good as lists", "G1", [
            ((1.0,), ((1.0,), (0.0,)), ((2.0,), (6.0,)), (yes, yes)),
        ]),
        Case("mask-example", "mask", "The worked example, second key forbidden", "B4", [(*EXAMPLE[:3], [yes, no])]),
        Case("mask", "mask", "Forbidden keys have weight exactly 0, the others share the rest", "C1",
             draw("mask", (2, 1, 1), (3, 1, 1), (3, 2, 2), (5, 3, 2), masked=True)),
        Case("mask-last", "mask", "Only the last key is allowed", "B4", [
            ([1.0], [[3.0], [2.0], [1.0]], [[1.0], [2.0], [4.0]], [no, no, yes]),
        ]),
        Case("mask-large", "mask", "A forbidden key with by far the largest score", "C1", [
            two(0, 1000, [yes, no]), ([1.0], [[-1.0], [2000.0], [0.0]], [[1.0], [2.0], [4.0]], [yes, no, yes]),
        ]),
        Case("mask-low", "mask", "An allowed key with a very low score beats every forbidden key", "C3", [
            two(score, 0, [yes, no]) for score in (-20.0, -20000.0, -1e12, -1e45)
        ]),
        Case("mask-lowest", "mask", "The same, near the most negative float", "C3", [
            two(-1.7e308, 0, [yes, no]), two(-1.7e308, 1.7e308, [yes, no]), two(-sys.float_info.max, 0, [yes, no]),
        ]),
        Case("mask-influence", "mask", "Other numbers behind the mask change nothing", "D1",
             draw("influence", (2, 1, 1), (3, 2, 2), masked=True), check_uninfluenced),
        Case("order", "mask", "Keys in another order: the same weights in that order", "C1", [
            turned
            for q, k, v, a in draw("order", (3, 2, 2), masked=True)
            for turned in ((q, k, v, a), (q, k[::-1], v[::-1], a[::-1]),
                           (q, k[1:] + k[:1], v[1:] + v[:1], a[1:] + a[:1]))
        ]),
        Case("score-high", "numbers", "Scores 1000 and 999: the exponential of neither fits a float", "C1", [
            two(1000, 999),
        ]),
        Case("score-low", "numbers", "Scores -1000 and -1001: the exponential of both is 0", "C1", [two(-1000, -1001)]),
        Case("score-gap", "numbers", "Scores far apart, and a weight that is tiny but not 0", "C1", [
            two(1e300, -1e300), two(-1e300, 5.0), two(0, 1e200), two(0, -40), two(0, -690),
            ([1.0], [[0.0], [-40.0]], [[0.0], [1e18]], A),
        ]),
        Case("score-sinks", "numbers", "A score beyond the most negative float beside a finite one weighs 0", "D3", [
            ([1e200], [[-1e200], [0.0]], [[1.0], [3.0]], A),
        ]),
        Case("value-huge", "numbers", "A mixture of huge values is no larger than they are", "D3", [
            ([0.0], [[1.0], [1.0], [1.0], [1.0]], [[1e308], [1e308], [1e308], [1e308]], all4),
        ]),
        Case("empty-row", "refusals", "No key is allowed", "C2", [(Q, K, V, [no, no]), (Q, [[1.0]], [[3.0]], [no])]),
        Case("no-keys", "refusals", "No keys at all", "A3", [(Q, [], [], [])]),
        Case("no-width", "refusals", "Keys and query of width zero", "A3", [
            ([], [[]], [[1.0]], [yes]), ([], K, V, A), (Q, [[1.0], []], V, A),
        ]),
        Case("no-value-width", "refusals", "Values of width zero", "A3", [(Q, K, [[], []], A)]),
        Case("key-width", "refusals", "A key that is longer or shorter than the query", "A1", [
            (Q, [[1.0], [2.0, 4.0]], V, A), ([1.0, 2.0], [[1.0, 1.0], [2.0]], [[3.0], [5.0]], A), (Q, [[1.0], [2.0, 4.0, 1.0]], V, A),
        ]),
        Case("query-width", "refusals", "A query that is longer or shorter than the keys", "A1", [
            ([1.0, 2.0], K, V, A), (Q, [[1.0, 2.0]], [[3.0]], [yes]),
        ]),
        Case("value-width", "refusals", "Values of different width", "A1", [
            (Q, K, [[3.0], [5.0, 7.0]], A), (Q, K, [[3.0, 7.0], [5.0]], A),
        ]),
        Case("value-count", "refusals", "More or fewer values than keys", "A1", [
            (Q, K, [[3.0]], A), (Q, [[1.0]], [[3.0], [5.0]], [yes]),
        ]),
        Case("mask-length", "refusals", "A mask that is too short or too long", "B4", [
            (Q, K, V, [yes]), (Q, K, V, [yes, yes, yes]), (Q, K, V, []), (Q, K, V, [yes, yes, no]),
        ]),
        Case("mask-type", "refusals", "A mask that does not hold booleans", "B4", [
            (Q, K, V, [1, 0]), (Q, K, V, [1.0, 0.0]), (Q, K, V, [yes, None]), (Q, K, V, ["yes", "no"]), (Q, K, V, yes),
            (Q, K, V, "TF"),
        ]),
        Case("nan", "refusals", "NaN in query, keys or values", "D2", [
            ([nan], K, V, A), (Q, [[1.0], [nan]], V, A), (Q, K, [[nan], [5.0]], A),
        ]),
        Case("infinity", "refusals", "Infinity in query, keys or values", "D2", [
            ([inf], K, V, A), (Q, [[1.0], [inf]], V, A), (Q, [[-inf], [1.0]], V, A), (Q, K, [[-inf], [5.0]], A),
            (Q, K, [[3.0], [inf]], A), ([-inf], K, V, A),
        ]),
        Case("nan-forbidden", "refusals", "NaN behind the mask: refused, or without influence", "D1", [
            (Q, [[1.0], [nan]], V, [yes, no]), (Q, K, [[3.0], [nan]], [yes, no]), (Q, K, [[3.0], [inf]], [yes, no]),
        ]),
        Case("number-type", "refusals", "Something among the numbers that is no number", "G1", [
            (["1"], K, V, A), ([None], K, V, A), (Q, [[1.0], ["2"]], V, A), (Q, K, [[3.0], ["5"]], A),
            (Q, K, [[3.0], [None]], A), (Q, [[1.0], [2j]], V, A),
        ]),
        Case("vector-type", "refusals", "Something that is no list of vectors", "G1", [
            (1.0, K, V, A), (None, K, V, A), (Q, 1.0, V, A), (Q, [1.0, 2.0], V, A), (Q, K, [3.0, 5.0], A),
            (Q, K, None, A), ("1", K, V, A), (Q, {0: [1.0], 1: [2.0]}, V, A),
        ]),
        Case("score-overflow", "refusals", "An allowed score beyond the largest float", "D3", [
            ([1e200], [[1e200], [0.0]], [[1.0], [3.0]], A), ([-1e200], [[-1e200]], [[1.0]], [yes]),
            ([1e200], [[-1e200], [-1e200]], [[1.0], [3.0]], A),
        ]),
        Case("unchanged", "behaviour", "Inputs are left as they came", "A4", [
            *draw("unchanged", (1, 1, 1), (2, 1, 1), (2, 2, 1)),
            *draw("unchanged-masked", (2, 1, 1), (3, 2, 2), masked=True), (Q, K, V, [no, no]),
        ], check_unchanged),
        Case("twice", "behaviour", "The same call twice", "F4", draw("twice", (2, 1, 1), (3, 2, 2)), check_twice),
        Case("between", "behaviour", "The same call with another between", "F4",
             draw("between", (2, 1, 1), (3, 2, 2)), _between),
        Case("after-refusal", "behaviour", "The same call with a refused one between", "F4",
             draw("after", (2, 1, 1)), _after_refusal),
    ]
    # fmt: on
    if hidden is not None:
        for at in range(1, 13):
            dice = _Dice("hidden", hidden, at)
            shapes = [(1 + dice.below(6), 1 + dice.below(5), 1 + dice.below(4)) for _ in range(4)]
            if at > 10:
                shapes.append((9 + dice.below(4), 1 + dice.below(2), 6 + dice.below(3)))
            problems = [
                dice.problem(*shape, allowed=dice.mask(shape[0]) if shape[0] > 1 and at % 2 else None)
                for shape in shapes
            ]
            if at in (9, 10):
                # Small values, and one key so far below the other that its weight is tiny.
                scale = 2.0 ** -(45 + dice.below(600))
                q, k, v, a = dice.problem(2, 1 + dice.below(3), 1 + dice.below(3))
                problems.append((q, k, [[x * scale for x in value] for value in v], a))
                problems.append(([1.0], [[0.0], [-30.25 - dice.below(600)]], dice.problem(2, 1, 1)[2], a))
            title = "Hidden inputs with a mask" if at % 2 else "Hidden inputs"
            cases.append(Case(f"hidden-{at:02}", "hidden", title, "C1", problems, hidden=True))
    return cases


#: The cases that every report has, in order; `load` comes first.
CASE_IDS = ["load", *(case.id for case in _cases(0))]


# Shrinking --------------------------------------------------------------------------------------------------------------

TRIALS = 300


def _shrink(check: Check, run: Run, problem: Problem, failure: Failure) -> tuple[Problem, Failure]:
    """A smaller input with the same failure: greedy, larger steps first, until none helps."""
    trials = TRIALS
    progress = True
    while progress and trials > 0:
        progress = False
        for smaller in _smaller(problem):
            if _measure(smaller) >= _measure(problem):
                continue
            trials -= 1
            if trials <= 0:
                break
            found = check(run, smaller)
            if found and found.kind in ("hang", "died"):
                # Once is enough: the next such input would cost as much again.
                return problem, failure
            if found and (found.kind, found.key) == (failure.kind, failure.key):
                problem, failure, progress = smaller, found, True
                break
    return problem, failure


def _measure(problem: Problem) -> tuple[int, int, int]:
    """Fewer numbers first, at most six of them other than 0, and then numbers that say most to a reader."""
    numbers = _numbers(problem)
    oddity = sum(_oddity(x) for x in numbers) + sum(may is False for may in _leaves(problem[3]))
    # Values that differ show which of them was read.
    values = problem[2] if type(problem[2]) in (list, tuple) else []
    oddity += 9 * sum(_same(a, b) for i, a in enumerate(values) for b in values[:i])
    return len(numbers), max(0, sum(x != 0 for x in numbers) - 6), oddity


def _oddity(x: Any) -> int:
    """How much there is to read in a number: least in 1, then 0, 2, 3, ..."""
    if x in (0, 1):
        return 1 - int(x.real)
    return 2 * len(repr(x).removesuffix(".0")) + (0 if type(x) is complex else int(x < 0) + (x != 2))


def _smaller(problem: Problem) -> Iterator[Problem]:
    query, keys, values, allowed = problem
    for j in range(_length(keys)):
        yield query, _cut(keys, j), _cut(values, j), _cut(allowed, j)
    for d in range(_length(query)):
        yield _cut(query, d), _without(keys, d), values, allowed
    for e in range(max(map(_length, values), default=0) if _length(values) else 0):
        yield query, keys, _without(values, e), allowed
    for j in range(_length(allowed)):
        if allowed[j] is False:
            yield query, keys, values, _replaced(allowed, (j,), True)
    whole = [query, keys, values]
    for path, x in _paths(whole):
        if type(x) in (int, float):
            for candidate in _simpler(x):
                changed = _replaced(whole, path, candidate)
                yield changed[0], changed[1], changed[2], allowed


def _length(value: Any) -> int:
    return len(value) if type(value) in (list, tuple) else 0


def _cut(value: Any, at: int) -> Any:
    return value[:at] + value[at + 1 :] if _length(value) > at else value


def _without(vectors: Any, at: int) -> Any:
    return type(vectors)([_cut(vector, at) for vector in vectors]) if _length(vectors) else vectors


def _paths(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    if type(value) in (list, tuple):
        for i, item in enumerate(value):
            yield from _paths(item, (*path, i))
    else:
        yield path, value


def _replaced(value: Any, path: tuple[int, ...], new: Any) -> Any:
    if not path:
        return new
    items = [_replaced(item, path[1:], new) if i == path[0] else item for i, item in enumerate(value)]
    return type(value)(items)


def _simpler(x: Any) -> list[Any]:
    if not math.isfinite(x):
        return []
    candidates: list[Any] = [1, 0, 2, 3, -1, -2]
    if abs(x) < 1e15:
        candidates += [int(x)]
    if abs(x) > 10:
        sign = 1 if x > 0 else -1
        candidates += [sign * 10.0**n for n in (1, 2, 3, 4, 6, 9, 12) if 10.0**n < abs(x)]
    # 0 is more to read than 1, but six numbers beside zeros are the goal.
    return [type(x)(c) for c in candidates if c != x and (c == 0 or _oddity(type(x)(c)) < _oddity(x))]


# The twins: the definition with one mistake each -----------------------------------------------------------------------

Twin = Callable[[Any, Any, Any, Any], Any]


def _dot(q: Any, k: Any) -> float:
    return float(sum(a * b for a, b in zip(q, k, strict=False)))


def _root(width: int, count: int, value_width: int) -> float:
    return 1 / math.sqrt(width)


def _softmax(scores: list[float], allowed: list[bool]) -> list[float]:
    top = max(s for s, may in zip(scores, allowed, strict=False) if may)
    return _share([math.exp(s - top) if may else 0.0 for s, may in zip(scores, allowed, strict=False)])


def _share(exponentials: list[float]) -> list[float]:
    total = sum(exponentials)
    return [e / total for e in exponentials]


def _mixed(weights: list[float], values: Any) -> list[float]:
    return [sum(w * x for w, x in zip(weights, column, strict=False)) for column in zip(*values, strict=False)]


def _twin(
    score: Callable[[Any, Any], float] = _dot,
    scale: Callable[[int, int, int], float] = _root,
    weigh: Callable[[list[float], list[bool]], list[float]] = _softmax,
    mix: Callable[..., Any] | None = None,
    give: Callable[[Any, Any], Any] | None = None,
) -> Twin:
    def twin(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
        factor = scale(len(query), len(keys), len(values[0]))
        scores = [score(query, key) * factor for key in keys]
        weights = weigh(scores, allowed)
        context = mix(weights, keys, values, scores, allowed) if mix else _mixed(weights, values)
        return give(weights, context) if give else (weights, context)

    return twin


def _all(allowed: Any) -> list[bool]:
    return [True] * len(allowed)


def _masked(weigh: Callable[[list[float]], list[float]]) -> Callable[[list[float], list[bool]], list[float]]:
    """A way to weigh that looks at the allowed scores only; 0 for the others."""

    def weights(scores: list[float], allowed: list[bool]) -> list[float]:
        found = iter(weigh([s for s, may in zip(scores, allowed, strict=True) if may]))
        return [next(found) if may else 0.0 for may in allowed]

    return weights


def _raw(transform: Callable[[float], float]) -> Callable[[list[float], list[bool]], list[float]]:
    return _masked(lambda scores: _share([transform(s) for s in scores]))


def _sentinel(low: float, added: bool) -> Twin:
    def weigh(scores: list[float], allowed: list[bool]) -> list[float]:
        masked = [s if may else s + low if added else low for s, may in zip(scores, allowed, strict=True)]
        return _softmax(masked, _all(allowed))

    return _twin(weigh=weigh)


def _maximum(top: Callable[[list[float], list[float]], float]) -> Callable[[list[float], list[bool]], list[float]]:
    """Another number than the largest allowed score is subtracted."""

    def weigh(scores: list[float], allowed: list[bool]) -> list[float]:
        most = top(scores, [s for s, may in zip(scores, allowed, strict=True) if may])
        return _share([math.exp(s - most) if may else 0.0 for s, may in zip(scores, allowed, strict=True)])

    return weigh


def _one_hot(scores: list[float], allowed: list[bool]) -> list[float]:
    best = max((j for j, may in enumerate(allowed) if may), key=lambda j: scores[j])
    return [float(j == best) for j in range(len(scores))]


def _until_forbidden(allowed: list[bool]) -> list[bool]:
    return [all(allowed[: j + 1]) for j in range(len(allowed))]


def _rounded(digits: int) -> Twin:
    return _twin(give=lambda w, c: ([round(x, digits) for x in w], [round(x, digits) for x in c]))


def _only(kind: type, error: type[Exception]) -> Twin:
    """Refuses inputs that hold something of this type."""

    def twin(*problem: Any) -> Any:
        def holds(value: Any) -> bool:
            return type(value) is kind or (type(value) in (list, tuple) and any(map(holds, value)))

        if holds(list(problem[:3])):
            raise error("not taken")
        return _twin()(*problem)

    return twin


def _refuses_infinite_scores(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
    if not all(math.isfinite(_dot(query, key)) for key in keys):
        raise ValueError("score")
    return _twin()(query, keys, values, allowed)


def _subset(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
    weights, context = _twin()(query, keys, values, allowed)
    return [w for w, may in zip(weights, allowed, strict=True) if may], context


def _scaled_afterwards(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
    weights = [w / math.sqrt(len(query)) for w in _softmax([_dot(query, key) for key in keys], allowed)]
    return weights, _mixed(weights, values)


def _divided_last(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
    scores = [_dot(query, key) / math.sqrt(len(query)) for key in keys]
    top = max(s for s, may in zip(scores, allowed, strict=True) if may)
    exponentials = [math.exp(s - top) if may else 0.0 for s, may in zip(scores, allowed, strict=True)]
    return _share(exponentials), [x / sum(exponentials) for x in _mixed(exponentials, values)]


def _width_root(width: int, count: int, value_width: int) -> float:
    return math.sqrt(width)


def _norm(vector: Any) -> float:
    return math.sqrt(_dot(vector, vector)) or 1.0


_SENTINELS = [-10.0, -100.0, -1e3, -9999.0, -1e4, -99999.0, -1e5, -1e6, -1e7, -1e8, -999999999.0, -1e9, -1e10, -1e12]
_SENTINELS += [-1e15, -1e18, -1e20, -1e30, -3.4e38, -1e38, -1e50, -1e99, -1e100, -1e200, -1e300, -1e308]
_SENTINELS += [-sys.float_info.max]

#: Ways to read the mask one place off: round the end, or with another boolean at it.
_SHIFTS: list[Callable[[list[bool]], list[bool]]] = [
    lambda a: a[-1:] + a[:-1],
    lambda a: a[1:] + a[:1],
    lambda a: [True, *a[:-1]],
    lambda a: [*a[1:], True],
    lambda a: [False, *a[:-1]],
    lambda a: [*a[1:], False],
]

#: Cause, twin, and what to say beyond the cause's title. The more common mistake stands first.
TWINS: list[tuple[str, Twin, str]] = [
    ("no-scale", _twin(scale=lambda d, s, e: 1.0), ""),
    ("scale-by-width", _twin(scale=lambda d, s, e: 1 / d), ""),
    ("scale-multiplied", _twin(scale=_width_root), ""),
    ("scale-by-width", _twin(scale=lambda d, s, e: float(d)), "It multiplies by the width."),
    ("scale-other-length", _twin(scale=lambda d, s, e: 1 / math.sqrt(s)), "It takes the number of keys."),
    ("scale-other-length", _twin(scale=lambda d, s, e: 1 / math.sqrt(e)), "It takes the width of the values."),
    *(
        ("scale-constant", _twin(scale=lambda d, s, e, root=root: 1 / root), f"The number is about {root:.4g}.")  # type: ignore[misc]
        for root in (*map(math.sqrt, range(2, 9)), math.sqrt(64))
    ),
    ("scale-after-softmax", _scaled_afterwards, ""),
    ("score-absolute", _twin(score=lambda q, k: abs(_dot(q, k))), ""),
    ("score-absolute", _twin(score=lambda q, k: sum(abs(a * b) for a, b in zip(q, k, strict=False))), ""),
    ("score-squares", _twin(score=lambda q, k: sum((a * b) ** 2 for a, b in zip(q, k, strict=False))), ""),
    ("score-squares", _twin(score=lambda q, k: _dot(q, k) ** 2), "It squares the dot product."),
    ("score-sum", _twin(score=lambda q, k: sum(a + b for a, b in zip(q, k, strict=False))), ""),
    ("score-sum", _twin(score=lambda q, k: sum(k)), "It never looks at the query."),
    ("score-distance", _twin(score=lambda q, k: -math.dist(q, k)), ""),
    ("score-distance", _twin(score=math.dist), ""),
    ("score-distance", _twin(score=lambda q, k: -(math.dist(q, k) ** 2)), "It takes the squared distance."),
    ("score-cosine", _twin(score=lambda q, k: _dot(q, k) / _norm(q) / _norm(k), scale=lambda d, s, e: 1.0), ""),
    ("score-cosine", _twin(score=lambda q, k: _dot(q, k) / _norm(q) / _norm(k)), ""),
    ("score-sign", _twin(score=lambda q, k: -_dot(q, k)), ""),
    ("score-one-coordinate", _twin(score=lambda q, k: q[0] * k[0]), "It takes the first coordinate only."),
    ("score-one-coordinate", _twin(score=lambda q, k: q[-1] * k[-1]), "It takes the last coordinate only."),
    ("score-leaves-out", _twin(score=lambda q, k: _dot(q[:-1], k[:-1])), "It leaves out the last one."),
    ("score-leaves-out", _twin(score=lambda q, k: _dot(q[1:], k[1:])), "It leaves out the first one."),
    ("not-normalised", _twin(weigh=_masked(lambda s: [math.exp(x - max(s)) for x in s])), ""),
    ("not-normalised", _twin(weigh=_masked(lambda s: [math.exp(x) for x in s])), ""),
    ("not-normalised", _twin(weigh=_masked(lambda s: [math.exp(x - max(s)) / len(s) for x in s])), ""),
    ("no-exponential", _twin(weigh=_masked(lambda s: _share(s))), ""),
    ("no-exponential", _twin(weigh=_masked(lambda s: [x / (sum(s) or 1.0) for x in s])), ""),
    ("no-exponential", _twin(weigh=_masked(lambda s: s)), "It takes the scores themselves as weights."),
    ("no-exponential", _twin(weigh=_masked(lambda s: _share([max(x, 0.0) for x in s]))), ""),
    ("other-base", _twin(weigh=_masked(lambda s: _share([2.0 ** (x - max(s)) for x in s]))), "It takes powers of 2."),
    ("other-base", _twin(weigh=_masked(lambda s: _share([10.0 ** (x - max(s)) for x in s]))), "It takes powers of 10."),
    ("sigmoid", _twin(weigh=_masked(lambda s: [1 / (1 + _exp(-x)) for x in s])), ""),
    ("sigmoid", _twin(weigh=_raw(lambda x: 1 / (1 + _exp(-x)))), ""),
    ("other-norm", _twin(weigh=_masked(lambda s: [math.exp(x) / _norm([math.exp(y) for y in s]) for x in s])), ""),
    ("argmax", _twin(weigh=_one_hot), ""),
    (
        "argmax",
        _twin(mix=lambda w, k, v, s, a: list(v[max(range(len(w)), key=w.__getitem__)])),
        "The weights are right.",
    ),
    ("mean-of-values", _twin(weigh=_masked(lambda s: [1 / len(s)] * len(s))), ""),
    ("mean-of-values", _twin(weigh=lambda s, a: [1 / len(s)] * len(s)), "It reads forbidden keys too."),
    ("mean-of-values", _twin(mix=lambda w, k, v, s, a: _mixed([1 / len(w)] * len(w), v)), "The weights are right."),
    ("sum-of-values", _twin(mix=lambda w, k, v, s, a: _mixed([1.0] * len(w), v)), "The weights are right."),
    (
        "sum-of-values",
        _twin(mix=lambda w, k, v, s, a: _mixed([float(may) for may in a], v)),
        "The weights are right.",
    ),
    ("context-averaged", _twin(mix=lambda w, k, v, s, a: [x / len(w) for x in _mixed(w, v)]), ""),
    ("mixes-keys", _twin(mix=lambda w, k, v, s, a: _mixed(w, k)), ""),
    ("mixes-scores", _twin(mix=lambda w, k, v, s, a: _mixed(s, v)), ""),
    ("wrong-axis", _twin(mix=lambda w, k, v, s, a: [x * sum(row) for x, row in zip(w, v, strict=True)]), ""),
    ("wrong-axis", _twin(mix=lambda w, k, v, s, a: [sum(x * y for y in row) for x, row in zip(w, v, strict=True)]), ""),
    ("wrong-axis", _twin(mix=lambda w, k, v, s, a: [_dot(w, row) for row in v]), ""),
    ("wrong-axis", _twin(mix=lambda w, k, v, s, a: sum(_mixed(w, v))), "It adds the coordinates up into one number."),
    ("wrong-axis", _twin(mix=lambda w, k, v, s, a: [sum(_mixed(w, v))]), "It adds the coordinates up into one number."),
    ("not-summed", _twin(mix=lambda w, k, v, s, a: [[x * y for y in row] for x, row in zip(w, v, strict=True)]), ""),
    ("mask-ignored", _twin(weigh=lambda s, a: _softmax(s, _all(a))), ""),
    ("mask-inverted", _twin(weigh=lambda s, a: _softmax(s, [not may for may in a])), ""),
    (
        "mask-after-softmax",
        _twin(weigh=lambda s, a: [w if may else 0.0 for w, may in zip(_softmax(s, _all(a)), a, strict=True)]),
        "",
    ),
    (
        "mask-on-values-only",
        _twin(
            weigh=lambda s, a: _softmax(s, _all(a)),
            mix=lambda w, k, v, s, a: _mixed([x if may else 0.0 for x, may in zip(w, a, strict=True)], v),
        ),
        "",
    ),
    (
        "mask-on-weights-only",
        _twin(mix=lambda w, k, v, s, a: _mixed(_softmax(s, _all(a)), v)),
        "",
    ),
    (
        "mask-as-zero-score",
        _twin(weigh=lambda s, a: _softmax([x * may for x, may in zip(s, a, strict=True)], _all(a))),
        "",
    ),
    ("mask-added", _twin(weigh=lambda s, a: _softmax([x + may for x, may in zip(s, a, strict=True)], _all(a))), ""),
    (
        "mask-added",
        _twin(weigh=lambda s, a: _softmax([x - (not may) for x, may in zip(s, a, strict=True)], _all(a))),
        "",
    ),
    *(
        ("mask-shifted", _twin(weigh=lambda s, a, shift=shift: _softmax(s, shift(list(a)))), "")  # type: ignore[misc]
        for shift in _SHIFTS
    ),
    ("mask-stops", _twin(weigh=lambda s, a: _softmax(s, _until_forbidden(a))), ""),
    ("mask-stops", _twin(weigh=lambda s, a: _softmax(s, _until_forbidden(a)) if a[0] else [0.0] * len(s)), ""),
    ("mask-drops-keys", _subset, ""),
    ("maximum-over-forbidden", _twin(weigh=_maximum(lambda every, own: max(every))), ""),
    ("no-maximum", _twin(weigh=_maximum(lambda every, own: 0.0)), ""),
    ("maximum-starts-at-0", _twin(weigh=_maximum(lambda every, own: max(0.0, *own))), ""),
    ("other-maximum", _twin(weigh=_maximum(lambda every, own: min(own))), "It subtracts the smallest score."),
    ("other-maximum", _twin(weigh=_maximum(lambda every, own: max(map(abs, own)))), "It subtracts the largest size."),
    ("other-maximum", _twin(weigh=_maximum(lambda every, own: sum(own) / len(own))), "It subtracts the mean."),
    ("other-maximum", _twin(weigh=_maximum(lambda every, own: own[0])), "It subtracts the first score."),
    *(
        ("sentinel-mask", _sentinel(low, added), f"The number is {low:g}{', added to the score' if added else ''}.")
        for low in _SENTINELS
        for added in (False, True)
    ),
    ("divides-last", _divided_last, ""),
    ("refuses-tuples", _only(tuple, TypeError), ""),
    ("refuses-integers", _only(int, TypeError), ""),
    ("refuses-low-scores", _refuses_infinite_scores, ""),
    ("only-context", _twin(give=lambda w, c: c), ""),
    ("only-weights", _twin(give=lambda w, c: w), ""),
    ("pair-swapped", _twin(give=lambda w, c: (c, w)), ""),
    ("percent", _twin(give=lambda w, c: ([100 * x for x in w], c)), ""),
    *(("rounded", _rounded(digits), f"To {digits} digits after the point.") for digits in range(11)),
]


# The causes -------------------------------------------------------------------------------------------------------------


class Cause(NamedTuple):
    """A mistake that has a name: what it is, the clause it breaks, and hints that say a little more each."""

    title: str
    clause: str
    hints: tuple[str, ...]


#: A line with id, clause and title for each cause, its hints indented below it.
_CAUSES = """\
no-scale B1 The scores are not divided by √d
    With one coordinate your numbers are right, with two they are not. What depends on the width?
    A dot product of wider vectors is larger. Something keeps its size in hand.
    Divide each dot product by math.sqrt(len(query)) before the softmax.
scale-by-width B1 The scores are scaled by the width d, not by its square root
    Compare your score of one key with the one in the trace.
    Divide by math.sqrt(len(query)).
scale-multiplied B1 The scores are multiplied by √d, not divided
    Are your weights sharper or flatter than the right ones?
    Divide by math.sqrt(len(query)).
scale-other-length B1 The scores are divided by the square root of another length than the query's
    Which list's length is under your root?
    It is the width of query and keys: math.sqrt(len(query)).
scale-constant B1 The scores are divided by the same number, whatever the width
    Your numbers are right at one width only. Which one?
    The width is len(query), and may be another in each call: math.sqrt(len(query)).
scale-after-softmax B1 The weights are divided by √d, not the scores
    Do your weights add up to 1?
    The scale comes before the exponential.
score-absolute B1 Scores lose their sign
    What is your score when query and key point in opposite directions?
    A dot product may be negative; keep it.
score-squares B1 The products are squared in the score
    Write out the score of one key by hand.
    The score is sum(q * k), with no square in it.
score-sum B1 The score is not a product of query and key
    What happens to your score when the query is all zeros?
    Multiply coordinate by coordinate, then add.
score-distance B1 The score is a distance, not a dot product
    Is a key twice as long a better match in your code?
    The score is sum(q * k) / √d.
score-cosine B1 The score is a cosine: the lengths of query and key are divided out
    Does a longer key get more weight in your code? It should.
    Do not divide by the lengths of the vectors.
score-sign B1 The sign of the score is turned around
    Which of your keys gets the most weight: the best match or the worst?
    Look for a minus before the score.
score-leaves-out B1 A coordinate of query and key is left out of the score
    With vectors of one number your scores are all 0. Where does your loop begin, and where does it end?
    range(len(query)) goes over all of them, from 0 to len(query) - 1.
score-one-coordinate B1 The score uses one coordinate of query and key
    How many products does your score add up?
    One per coordinate: a loop that returns too early stops at one.
not-normalised C1 The weights do not add up to 1
    Add up your weights.
    Each exponential is divided by the sum of all of them.
no-exponential C1 The weights are made from the scores without an exponential
    What is your weight of a key with a negative score?
    Weights are exp(score - maximum), divided by their sum.
other-base C1 The softmax takes powers of another number than e
    A score that is larger by 1 should weigh how many times more?
    Use math.exp.
sigmoid C1 Each score goes through a sigmoid by itself
    Does a key's weight in your code depend on the other keys?
    Softmax: exp(score) over the sum of them all.
other-norm C1 The exponentials are divided by their length, not by their sum
    Add up your weights; then add up their squares.
    Divide by sum(exponentials).
argmax C1 The best key is picked; the values are not mixed
    How much of the second value is in your context?
    The context is the sum of weight times value over all keys.
mean-of-values C1 All keys weigh the same: the context is the mean of the values
    Does your context change when the query does?
    Weigh each value by its weight.
sum-of-values C1 The values are added up without their weights
    Is your context within the range of the values?
    Multiply each value by its weight before adding.
context-averaged C1 The weighted sum is divided by the number of keys once more
    The weights add up to 1 already. What else do you divide by?
    The context is the plain sum of weight times value.
mixes-keys C1 The keys are mixed, not the values
    Queries ask, keys address. What contributes?
    The context is the weighted sum of values.
mixes-scores C1 The values are weighted by the scores, not by the weights
    Which list do you multiply the values with?
    Use the weights, after the softmax.
wrong-axis C1 The sum runs along the wrong axis
    How many numbers has your context, and how many has one value?
    For each coordinate of the values, add over the keys: there is one sum per coordinate.
    context = [sum(w * v[e] for w, v in zip(weights, values)) for e in range(len(values[0]))]
not-summed C1 The weighted values are not added up
    You have one vector per key. How many is the context?
    Add the contributions, coordinate by coordinate.
mask-ignored C1 The softmax runs over the forbidden keys too
    What weight do you give a key that may not be read?
    Maximum, exponentials and sum are over allowed keys only.
mask-inverted B4 The mask is read the other way round
    Which key do you read when allowed is [True, False]?
    True means: this key may be read.
mask-after-softmax C1 Forbidden weights are set to 0 after the softmax, and the rest is not normalised
    Add up your weights when a key is forbidden.
    Leave forbidden keys out before the sum of exponentials.
mask-on-values-only C1 The mask is applied to the values, not to the weights
    What weight do you return for a forbidden key?
    Mask the scores, then take the softmax.
mask-on-weights-only C1 The context is mixed with weights from before the mask
    Are the weights that you return those that you mix with?
    Mix with the masked weights.
mask-as-zero-score C1 A forbidden score becomes 0, which is a score like any other
    exp(0) is 1. What is the weight of a key with score 0?
    Leave the key out of the sum, or use -math.inf.
mask-added B4 The mask is added to the scores as 0 and 1
    What does adding 1 to a score do to a weight?
    A mask decides, it is not added.
mask-shifted B4 The mask is read one place off
    Which boolean do you look at for the first key, and which for the last?
    allowed[j] belongs to keys[j] and values[j].
mask-stops B4 Everything after the first forbidden key is left out
    What happens in your loop when a key is forbidden?
    Use continue there, not break.
mask-drops-keys A1 There is no weight for forbidden keys
    How many weights do you return, and how many keys came in?
    A forbidden key has a weight: exactly 0.
maximum-over-forbidden C1 The maximum is taken over forbidden keys too
    What is exp(score - maximum) when the maximum belongs to a key that may not be read and is larger by 1000?
    Take max over the allowed scores only.
no-maximum C1 The maximum is not subtracted before the exponential
    What is math.exp(1000)? And what is exp(-1000) / exp(-1000) in floats?
    A common factor cancels: subtract the same number from all scores.
    Use math.exp(score - max(allowed scores)).
maximum-starts-at-0 C1 The search for the maximum starts at 0
    What is your maximum when all scores are negative?
    Start with the first allowed score, or use max().
other-maximum C1 What is subtracted before the exponential is not the largest allowed score
    Which of your exponents are positive?
    Subtract max(allowed scores), so that none is.
sentinel-mask C3 A finite number stands in for 'not allowed'
    What if an allowed key's score is lower than your number?
    Every finite number can be beaten. Leave the key out of the maximum and of the sum; its weight is 0.0.
divides-last D3 Values are added up before they are divided by the sum of exponentials, and overflow
    How large is your sum of four values of 1e308?
    Divide the exponentials first, then mix.
refuses-tuples G1 Tuples are refused
    A tuple of numbers is as good as a list.
    isinstance(x, (list, tuple))
refuses-integers G1 Whole numbers are refused
    1 is as good as 1.0.
    isinstance(x, (int, float))
refuses-low-scores D3 A score beyond the most negative float is refused although another key can be read
    exp(-inf) is 0, a fine weight beside a finite score.
    Refuse only if the largest allowed score is not finite.
refuses-good-input G1 A good input is refused
    Which of your checks raised, and what did it look at?
    Read the clause once more, then the check.
returns-nothing A1 Nothing is returned
    Printing is not returning.
    End with: return weights, context
only-context A1 Only the context is returned
    Two things are asked for.
    return weights, context
only-weights A1 Only the weights are returned
    Two things are asked for.
    return weights, context
pair-swapped A1 The pair is in the wrong order
    Which comes first?
    return weights, context
percent C1 The weights are percentages
    What do your weights add up to?
    They add up to 1, not to 100.
rounded F2 The answer is rounded
    Count the digits of your numbers.
    Round where you print, not in what you return.
unlisted A1 The answer holds something that is not a list
    What type is it?
    Put list(…) around a generator, zip or map.
modifies-inputs A4 The inputs are written to
    Print your arguments before and after the call.
    Build new lists; write to no list that came in.
shares-lists A4 The answer is one of the lists that came in
    Who owns the list you return?
    Return list(…), a copy.
hidden-state F4 Something is remembered from one call to the next
    Call it twice with the same input.
    Look for a list or dict outside the function, or as a default argument.
    Make every list anew within the function.
leaks-forbidden D1 A forbidden key's numbers reach the answer
    0 times NaN is NaN, and 0 times a huge number may be too late.
    Leave forbidden keys out of every sum and maximum.
empty-row-zeros C2 With no allowed key, zeros are returned
    What do your weights add up to there?
    There is no distribution over nothing: raise ValueError.
empty-row-uniform C2 With no allowed key, forbidden keys are read
    Whose values are in that answer?
    if not any(allowed): raise ValueError(…)
empty-row-nan C2 With no allowed key, the answer is NaN
    What is 0 / 0?
    if not any(allowed): raise ValueError(…)
swallowed-error G1 Errors are swallowed: zeros are returned for input that must be refused
    What does the caller learn from your zeros?
    Let the error out: no try/except around it, and no default answer.
returns-instead-of-raising G1 A refusal is returned or printed, not raised
    A caller that does not look at what came back goes on with it.
    raise ValueError(…), do not return it.
zip-stops-early A1 zip stops at the end of the shorter list and says nothing
    How many products did your score add up?
    Compare the lengths first, or use zip(…, strict=True).
shape-unchecked A1 Lengths that do not fit are not noticed
    Which lengths must be equal?
    Compare them first and raise ValueError.
mask-length-unchecked B4 The length of the mask is not checked
    How many booleans are there, and how many keys?
    if len(allowed) != len(keys): raise ValueError(…)
mask-type-unchecked B4 Anything true or false counts as a boolean
    1.0 and 0.0 have been read both ways, and 'no' is true to Python.
    if not all(isinstance(may, bool) for may in allowed): raise TypeError(…)
empty-unchecked A3 Empty lists are not refused
    What is there to read?
    Raise ValueError for a query, value or list of keys that is empty.
nonfinite-unchecked D2 NaN and infinity are not refused
    One NaN makes every weight NaN.
    Look at each number: if not math.isfinite(x): raise ValueError(…)
overflow-unchecked D3 A score that overflows is not refused
    inf - inf is NaN.
    if not math.isfinite(maximum): raise ValueError(…)
type-unchecked G1 Wrong types are not refused
    float('1') works, but '1' is a text.
    if not isinstance(x, (int, float)): raise TypeError(…)
crashes-instead-of-refusing G1 The input breaks the code before it is refused
    Who looks at the input before you compute with it?
    Check first, and raise ValueError with a sentence.
asserts-instead-of-refusing G1 assert is not a refusal
    python -O leaves every assert out.
    if not …: raise ValueError(…)
wrong-exception G1 It is refused with the wrong exception
    Callers catch ValueError, or TypeError for a wrong type.
    raise ValueError(…)
exits-instead-of-refusing G1 It ends the program, where it should refuse the input
    Who called your function wants to go on.
    raise ValueError(…), no exit.
exits A1 It ends the program, where an answer is due
    Who called your function wants to go on.
    return weights, context; no exit() and no quit().
name-undefined A1 A name is used that is not there
    The exception says which name.
    Is it spelled alike everywhere, given a value before, and imported (from math import exp, sqrt)?
module-missing A1 A module is imported that the lab does not have
    Which of your imports is not of the standard library?
    Lists and the module math are enough.
asks-the-keyboard A1 It waits for something to be typed
    Where does the input of attend come from?
    Take input() out: query, keys, values and allowed are the arguments.
recurses-forever G1 It calls itself until Python gives up
    When does it stop calling itself?
    Give it a case that answers without a further call.
"""


def _read_causes(text: str) -> dict[str, Cause]:
    causes: dict[str, Cause] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(" "):
            causes[name] = causes[name]._replace(hints=(*causes[name].hints, line.strip()))
        else:
            name, clause, title = line.split(" ", 2)
            causes[name] = Cause(title, clause, ())
    return causes


CAUSES = _read_causes(_CAUSES)

#: Hints where no cause is known: what the clause asks for.
_CLAUSE_HINT = "Trace this input step by step beside your own numbers, and look for the first that differs."


def _probes(problem: Problem, expected: Expected) -> tuple[list[Problem], list[Problem]]:
    """Inputs to compare twins on: like the failing one, and then others that tell more twins apart."""
    query, keys, values, allowed = problem
    count, width, value_width = len(keys), len(query), len(values[0])
    masked = not all(allowed)
    dice = _Dice("probe", count, width, value_width)
    near = [problem] + [dice.problem(count, width, value_width, list(allowed)) for _ in range(5)]
    far = []
    for more, wider in ((1, 0), (2, 1), (3, 2)):
        mask = dice.mask(count + more) if masked else None
        far.append(dice.problem(count + more, width, value_width + wider, mask))
    for wider in (1, 2, 5):
        far.append(dice.problem(count + 1, width + wider, value_width, dice.mask(count + 1) if masked else None))
    for first, second in ((1000.0, 999.0), (-400.0, -401.0), (-1000.0, -1001.0), (-3000.0, 0.0), (0.0, -3000.0)):
        v, a = dice.problem(2, width, value_width, [True, True])[2:]
        far.append(([1.0] * width, [[first] * width, [second] * width], v, a))
    if masked:
        v, a = dice.problem(2, width, value_width, [True, False])[2:]
        far.append(([1.0] * width, [[0.0] * width, [1000.0] * width], v, a))
        for low in (-2e9, -1e40, -1e250):
            far.append(([1.0] * width, [[low / width] * width, [0.0] * width], v, a))
    return near, far


#: Exceptions that are one mistake, whatever the input.
_BREAKS = {
    "RecursionError": "recurses-forever",
    "NameError": "name-undefined",
    "UnboundLocalError": "name-undefined",
    "ModuleNotFoundError": "module-missing",
    "EOFError": "asks-the-keyboard",
}


def _named(failure: Failure, run: Run) -> tuple[str, str]:
    """The likely cause of a failure, and more about it: both empty where the numbers point to none."""
    kind, outcome, problem = failure.kind, failure.outcomes[-1], failure.problems[0]
    if kind in ("crashed", "crashed instead of refusing") and outcome["type"] in _BREAKS:
        return _BREAKS[outcome["type"]], ""
    if kind == "changed":
        return "modifies-inputs", f"It wrote to {outcome['changed'][0]}."
    if kind == "shared":
        return "shares-lists", ""
    if kind == "unsteady":
        return "hidden-state", ""
    if kind == "influenced":
        return "leaks-forbidden", ""
    if kind in ("hang", "died"):
        return "", ""
    expected = failure.expected
    if kind == "crashed instead of refusing":
        names = {"AssertionError": "asserts-instead-of-refusing", "SystemExit": "exits-instead-of-refusing"}
        name = names.get(outcome["type"], "crashes-instead-of-refusing")
        if name == "crashes-instead-of-refusing" and (
            outcome.get("own") or outcome["type"] in ("Exception", "BaseException", "RuntimeError", "TypeError")
        ):
            name = "wrong-exception"
        return name, ""
    if expected is None:
        return "", ""
    if kind == "answered":
        return _unrefused(problem, expected, outcome["value"], run)
    if expected.kind == "either":
        if _swallows(run):
            return "swallowed-error", ""
        return ("leaks-forbidden" if kind == "wrong" and expected.clause == "D1" else ""), ""
    if kind == "crashed":
        if outcome["type"] == "SystemExit":
            return "exits", ""
        # A tuple cannot be written to.
        lists = _untupled(problem)
        wide = _Dice("wide").problem(2, 2, 2, [True, False])
        changed = run(lists).get("changed") or run(wide).get("changed")
        if changed and not _same(problem, lists):
            return "modifies-inputs", f"It writes to {changed[0]}."
    found = _matching(problem, expected, run)
    if found[0]:
        return found
    if kind == "malformed":
        value = outcome["value"]
        if value == {"other": "None"}:
            return "returns-nothing", ""
        parts = [value, *(value if isinstance(value, list) else [])]
        if any(isinstance(part, dict) for part in parts):
            return "unlisted", ""
    if kind == "crashed" and outcome["refusal"] and (outcome.get("stated") or outcome.get("message")):
        return "refuses-good-input", ""
    return "", ""


#: The first of the far probes have more keys, the next ones are wider.
_LONGER, _WIDER = 3, 6
_OF_EVERY_WIDTH = ("mean-of-values", "score-leaves-out", "scale-constant")
_OF_EVERY_LENGTH = ("mask-shifted", "mask-inverted", "scale-other-length")


def _matching(problem: Problem, expected: Expected, run: Run) -> tuple[str, str]:
    """The twin that gives the learner's numbers, on this input and on others."""
    near, far = _probes(problem, expected)
    seen = [run(probe) for probe in near]
    if any(outcome["kind"] not in ("returned", "raised") for outcome in seen):
        return "", ""
    if all(outcome["kind"] == "raised" for outcome in seen):
        # Code that never answers agrees with every twin that never does: let masks make a difference.
        dice = _Dice("masked", len(near[0][1]))
        more = [dice.problem(keys, len(problem[0]), 2, dice.mask(keys)) for keys in (2, 3, 4)]
        near, seen = near + more, seen + [run(probe) for probe in more]
        if all(outcome["kind"] != "returned" for outcome in seen):
            return "", ""
    matching = [
        twin
        for twin in TWINS
        if _fails(twin[1], problem, expected) and all(_agree(twin[1], *pair) for pair in zip(near, seen, strict=True))
    ]
    # With one coordinate a score of 0 is a mean, and a root of 2 is that of many things; with two keys many masks are
    # one place off: where a cause speaks of every width, or of every length, larger inputs have to bear it out.
    for causes, larger in ((_OF_EVERY_WIDTH, far[_LONGER:_WIDER]), (_OF_EVERY_LENGTH, far[:_LONGER])):
        if any(twin[0] in causes for twin in matching):
            pairs = [(probe, run(probe)) for probe in larger]
            matching = [
                twin for twin in matching if twin[0] not in causes or all(_agree(twin[1], *pair) for pair in pairs)
            ]
    for probe in far:
        if len({(cause, more) for cause, _, more in matching}) < 2:
            break
        outcome = run(probe)
        # An input on which none agrees tells about a second mistake, not about this one.
        matching = [twin for twin in matching if _agree(twin[1], probe, outcome)] or matching
    return (matching[0][0], matching[0][2]) if matching else ("", "")


def _fails(twin: Twin, problem: Problem, expected: Expected) -> bool:
    """Whether a twin breaks the contract on an input: one that does not explains no failure."""
    try:
        value = _plain_data(twin(*_fresh(problem)))
    except (ArithmeticError, ValueError, TypeError, IndexError):
        return True
    return _judge(problem, expected, {"kind": "returned", "value": value}) is not None


def _agree(twin: Twin, problem: Problem, outcome: Outcome) -> bool:
    """Whether a twin gives this outcome: the same numbers within rounding, or no number at all.

    A refusal that the learner wrote, with `raise ValueError`, is that of a twin that refuses, and no slip of numbers.
    """
    try:
        value: Any = _plain_data(twin(*_fresh(problem)))
        fails, refuses = not all(isinstance(x, float) and math.isfinite(x) for x in _leaves(value)), False
    except (ArithmeticError, ValueError, TypeError, IndexError) as error:
        value, fails, refuses = None, True, _is_stated(error.__traceback__)
    if outcome["kind"] == "raised":
        return refuses if outcome["refusal"] and outcome.get("stated") else fails
    return _close(value, outcome["value"], *_twin_bound(problem))


def _twin_bound(problem: Problem) -> tuple[float, bool]:
    """How far two ways to add up the same formula may differ, relative to the size of the numbers in it.

    A twin does fewer than `operations` roundings, and its largest score is no larger than d · Σ|q k| + Σ(|q|+|k|)²:
    an exponential turns its absolute error into a relative one. Where that says nothing, only equal bits agree.
    """
    query, keys, values, _ = problem
    count, width, value_width = len(keys), len(query), len(values[0])
    operations = 4 * count * (width + value_width + 4)
    largest = max(width * sum(abs(a * b) for a, b in zip(query, key, strict=True)) for key in keys)
    largest += max(
        sum((abs(a) + abs(b)) ** 2 if abs(a) + abs(b) < 1e150 else math.inf for a, b in zip(query, key, strict=True))
        for key in keys
    )
    bound = _gamma(operations) * (1 + largest)
    size = 1 + max(abs(x) for x in _leaves([values, keys]))
    return (bound * size, False) if bound < 2**-20 else (0.0, True)


def _close(a: Any, b: Any, bound: float, exact: bool) -> bool:
    if isinstance(a, list) or isinstance(b, list):
        return (
            isinstance(a, list)
            and isinstance(b, list)
            and len(a) == len(b)
            and all(_close(x, y, bound, exact) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, float) and isinstance(b, float):
        if a == b or (a != a and b != b):
            return True
        # Beside a huge value the bound would let anything pass for rounding.
        size = max(1.0, abs(a), abs(b))
        return not exact and math.isfinite(a - b) and abs(a - b) <= min(bound, 2**-20) * size
    return bool(a == b)


def _untupled(value: Any) -> Any:
    if type(value) is tuple and len(value) == 4 and type(value[3]) in (list, tuple):
        return tuple(_lists_only(part) for part in value)
    return value


def _lists_only(value: Any) -> Any:
    return [_lists_only(item) for item in value] if type(value) in (list, tuple) else value


def _swallows(run: Run) -> bool:
    """Whether zeros come back for NaN."""
    outcome = run(([1.0], [[math.nan]], [[1.0]], [True]))
    return outcome["kind"] == "returned" and _two_lists(outcome["value"]) and not any(_leaves(outcome["value"]))


#: Breaches that have one cause, when an answer came.
_UNCHECKED = {
    "mask type": "mask-type-unchecked",
    "mask length": "mask-length-unchecked",
    "no keys": "empty-unchecked",
    "no width": "empty-unchecked",
    "not finite": "nonfinite-unchecked",
    "overflow": "overflow-unchecked",
    "wrong type": "type-unchecked",
}


def _unrefused(problem: Problem, expected: Expected, value: Any, run: Run) -> tuple[str, str]:
    """Why something was answered that must be refused."""
    numbers = list(_leaves(value))
    if not _two_lists(value) or not all(isinstance(x, float) for x in numbers):
        return "returns-instead-of-raising", ""
    zeros = bool(numbers) and not any(numbers)
    if zeros and _swallows(run):
        return "swallowed-error", ""
    if expected.breach == "empty row":
        if zeros:
            return "empty-row-zeros", ""
        return ("empty-row-nan" if any(x != x for x in numbers) else "empty-row-uniform"), ""
    if expected.breach in ("key width", "value width", "value count"):
        return ("zip-stops-early" if _zipped(problem, value) else "shape-unchecked"), ""
    return _UNCHECKED.get(expected.breach, ""), ""


def _two_lists(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value)


def _zipped(problem: Problem, value: Any) -> bool:
    """Whether these are the numbers that come out when every zip stops at the shorter list."""
    query, keys, values, allowed = problem
    try:
        weights = _softmax([_dot(query, key) / math.sqrt(len(query)) for key in keys], allowed)
        return _close(
            _plain_data((weights, _mixed(weights, values))), value, *_twin_bound(([1.0], [[1.0]], [[1.0]], [True]))
        )
    except (ArithmeticError, ValueError, TypeError):
        return False


# The report -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What became of each case; ready for JSON with `to_dict`.

    `cases` are records with the fields id, title, group, clause {number, words}, hidden, status ("passed", "failed",
    "skipped" or "not run") and failure (None, or see `grade`); `causes` are the ids of `CAUSES` that were found, in
    order.
    """

    passed: bool
    counts: dict[str, int]
    cases: list[dict[str, Any]]
    causes: list[str]
    seed: Any = 0
    hidden: bool = False
    printed: str = ""
    printed_cut: bool = False
    python: str = ""
    schema: str = field(default=SCHEMA)

    @property
    def first_failure(self) -> dict[str, Any] | None:
        """The record of the first case that failed: what a learner looks at next."""
        return next((case for case in self.cases if case["status"] == "failed"), None)

    @property
    def why_not_run(self) -> str:
        """One sentence where cases were not run; else nothing."""
        count = self.counts["not run"]
        started = self.cases[0]["status"] == "passed"
        why = "the time was used up" if started else "the program does not start"
        return f"{count} {'case was' if count == 1 else 'cases were'} not run: {why}" if count else ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """The report for people: the first failure in full, then one line per case that did not pass."""
        counts = self.counts
        head = f"{counts['passed']} of {counts['cases']} cases passed"
        if self.passed:
            return f"passed: {head}"
        parts = [f"not passed: {head}"]
        first = self.first_failure
        if first:
            parts += ["", explain(first)]
        others = [case for case in self.cases if case["status"] in ("failed", "skipped") and case is not first]
        if others:
            parts += ["", "also:"]
            parts += [f"  {case['id']}: {_summary(case)}" for case in others]
        if counts["not run"]:
            parts += ["", self.why_not_run]
        return "\n".join(parts)


def _summary(case: dict[str, Any]) -> str:
    failure = case["failure"]
    if failure is None:
        return str(case["status"])
    return str(failure["cause"]["title"] if failure["cause"] else failure["says"])


def explain(case: dict[str, Any], hints: int = 0) -> str:
    """A failed case for people: input, both answers, the clause, the likely cause, and so many hints."""
    failure = case["failure"]
    lines = [f"{case['id']}: {case['title']}"]
    if failure is None:
        return "\n".join([*lines, f"  {case['status']}"])
    if failure["code"]:
        called = "the smallest input that shows it" if failure["smallest"] else "the input"
        lines += ["", f"  {called}:", *(f"  {line}" for line in failure["code"].splitlines())]
    lines += ["", f"  {failure['says']}"]
    yours = failure["yours"]
    if yours:
        said = " ".join(str(yours.get("message") or "").split())
        lines.append(f"  yours  {yours['text']}{': ' if said else ''}{said}")
    if failure["right"]:
        lines.append(f"  right  {failure['right']['text']}")
    if failure["clause"]:
        lines += ["", f"  clause {failure['clause']['number']}: {failure['clause']['words']}"]
    if failure["cause"]:
        lines += ["", f"  likely cause: {failure['cause']['title']}. {failure['cause']['more']}".rstrip()]
    lines += [f"  hint {n}: {hint}" for n, hint in enumerate(failure["hints"][:hints], 1)]
    return "\n".join(lines)


def essence(report: dict[str, Any] | Report) -> dict[str, Any]:
    """What two interpreters must agree on: a report without the Python's version, its messages, and last digits.

    Messages of exceptions and the last bit of `math.exp` differ between versions of Python and C libraries, and
    JavaScript writes 1.0 as 1.
    """
    data = report.to_dict() if isinstance(report, Report) else report

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("message", "python", "printed", "printed_cut")
            return {key: stripped(item) for key, item in value.items() if key not in left_out}
        if isinstance(value, list):
            return [stripped(item) for item in value]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(f"{value:.9g}") if number else value

    result: dict[str, Any] = stripped(data)
    return result


def _clause(number: str) -> dict[str, str] | None:
    """A clause for a report; None where none is meant, as for a program that does not start."""
    return {"number": number, "words": CLAUSES[number]} if number else None


def _record(case: Case, status: str, failure: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "id": case.id,
        "title": case.title,
        "group": case.group,
        "clause": _clause(case.clause),
        "hidden": case.hidden,
        "status": status,
        "failure": failure,
    }


def _failure_record(
    failure: Failure, cause: tuple[str, str] = ("", ""), *, smallest: bool = False, hints: Sequence[str] = ()
) -> dict[str, Any]:
    name, more = cause
    known = CAUSES.get(name)
    # A cause names the clause it breaks; but what was due in the first place is a refusal's own clause.
    refusals = ("answered", "crashed instead of refusing")
    number = known.clause if known and failure.kind not in refusals else failure.clause
    calls = [*failure.before, *failure.problems]
    numbers = [x for problem in _distinct(calls) for x in _numbers(problem)]
    return {
        "kind": failure.kind,
        "says": failure.says,
        "clause": _clause(number),
        "smallest": smallest,
        "input": _encoded(failure.problems[0]) if failure.problems else None,
        "before": [_encoded(problem) for problem in failure.before],
        "then": [_encoded(problem) for problem in failure.problems[1:]],
        "code": "\n".join(map(_call_text, calls)),
        "numbers": len(numbers),
        "nonzero": sum(x != 0 for x in numbers),
        "yours": _yours(failure.outcomes[-1]) if failure.outcomes else None,
        "right": _right(failure.expected),
        "cause": {"id": name, "title": known.title, "more": more} if known else None,
        "hints": [*hints] if hints or not number else [*known.hints] if known else [CLAUSES[number], _CLAUSE_HINT],
    }


def _distinct(problems: list[Problem]) -> list[Problem]:
    found: list[Problem] = []
    for problem in problems:
        if not any(_same(list(problem), list(other)) for other in found):
            found.append(problem)
    return found


def _encoded(problem: Problem) -> dict[str, Any]:
    return dict(zip(("query", "keys", "values", "allowed"), map(encode, problem), strict=True))


def _yours(outcome: Outcome) -> dict[str, Any]:
    kind = outcome["kind"]
    if kind == "returned":
        value = outcome["value"]
        pair = value if _two_lists(value) else [None, None]
        return {"kind": kind, "text": _short_pair(value), "weights": encode(pair[0]), "context": encode(pair[1])}
    if kind == "raised":
        at = f" at line {outcome['line']}" if outcome["line"] else ""
        text = f"{outcome['type']}{at}"
        return {"kind": kind, "text": text, "type": outcome["type"], "line": outcome["line"]} | {
            "message": outcome["message"]
        }
    return {"kind": kind, "text": _outcome_text(outcome)}


def _right(expected: Expected | None) -> dict[str, Any] | None:
    if expected is None:
        return None
    answer = {"weights": expected.weights, "context": expected.context}
    text = f"({_short(expected.weights)}, {_short(expected.context)})"
    if expected.kind == "answer":
        return {"kind": "answer", "text": text} | answer
    if expected.kind == "either":
        return {"kind": "either", "text": f"{text}, or {expected.error}"} | answer
    return {"kind": "refusal", "text": f"{expected.error}: {expected.message}", "error": expected.error}


# Grading ----------------------------------------------------------------------------------------------------------------

OnCase = Callable[[dict[str, Any]], object]


def grade(
    solution: str | Callable[..., Any] | Runs,
    *,
    seed: object = 0,
    hidden: object = None,
    extra_cases: Iterable[Any] = (),
    skip: Iterable[str] | Mapping[str, Any] = (),
    on_case: OnCase | None = None,
) -> Report:
    """Grade a solution: the text of a Python file that defines `attend`, the function itself, or what runs it.

    Args:
        solution: as said; a function or text runs in this interpreter (`Local`), without limits of time and memory.
        seed: of the inputs that are drawn; any word or number.
        hidden: another seed, which the learner does not know: twelve more cases are drawn from it.
        extra_cases: inputs to grade as well: `(query, keys, values, allowed)`, or mappings with these fields (as
            `encode` writes them) and optionally id and title.
        skip: ids of cases to leave out; they count as not passed. As a mapping, what became of them: a record from
            `on_case`, a number of seconds within which the case did not answer, or None.
        on_case: called with `{"event": "start" | "shrink" | "done", "id", "number", "of", "title"}`; "done" and
            "shrink" also have the `record`. A host that ends the run in the middle of a case starts another one with
            `skip` set to the records it has and the seconds it waited.

    A failed case's `failure` has the fields kind (see `FAILURES`), says, clause ({number, words}, or None where the
    program does not start: that breaks no clause), smallest (whether smaller inputs were looked for), input (encoded),
    before and then (further calls that it takes, before and after), code (as Python), numbers, nonzero (how many
    numbers there are in it), yours, right, cause ({id, title, more} or None) and hints (a list, one more telling than
    the other).
    """
    runs = _runs(solution)
    _define()
    known: dict[str, Any] = dict(skip) if isinstance(skip, Mapping) else dict.fromkeys(skip)
    cases = [Case("load", "load", "The program starts and defines attend", "", [])]
    cases += _cases(seed, hidden) + _extra(extra_cases)
    records: list[dict[str, Any]] = []

    def tell(event: str, case: Case, record: dict[str, Any] | None = None) -> None:
        if on_case:
            news: dict[str, Any] = {"event": event, "id": case.id, "number": len(records) + (event != "done")}
            news |= {"of": len(cases), "title": case.title}
            on_case(news | ({"record": record} if record else {}))

    loaded = True
    mistakes: list[_Mistake] = []
    for case in cases:
        if case.id in known:
            record = _known_record(case, known[case.id])
            if case.id == "load":
                # What is skipped is the judgement: without the function nothing else can run.
                loaded = known["load"] is None or (isinstance(known["load"], Mapping) and record["status"] == "passed")
                loaded = loaded and runs.load()["kind"] == "loaded"
            records.append(record)
            continue
        if not loaded:
            records.append(_record(case, "not run"))
            continue
        tell("start", case)
        record = _load_record(case, runs.load()) if case.id == "load" else _grade_case(case, runs, tell, mistakes)
        loaded = loaded and (case.id != "load" or record["status"] == "passed")
        records.append(record)
        tell("done", case, record)
    causes = [
        record["failure"]["cause"]["id"] for record in records if record["failure"] and record["failure"]["cause"]
    ]
    status = [record["status"] for record in records]
    printed, cut = runs.printed()
    counts = {word: status.count(word) for word in ("passed", "failed", "skipped", "not run")}
    return Report(
        passed=counts["passed"] == len(cases),
        counts=counts | {"cases": len(cases)},
        cases=records,
        causes=list(dict.fromkeys(causes)),
        seed=seed,
        hidden=hidden is not None,
        printed=printed,
        printed_cut=cut,
        python=".".join(map(str, sys.version_info[:3])),
    )


def _runs(solution: Any) -> Runs:
    given: Runs = Local(solution) if isinstance(solution, str) or _is_callable(solution) else solution
    return given


def grade_json(source: str, **options: Any) -> str:
    """`grade`, as one line of JSON: for a host in another language."""
    return json.dumps(grade(source, **options).to_dict(), allow_nan=False)


def try_input(solution: str | Callable[..., Any] | Runs, problem: Any) -> dict[str, Any]:
    """One input on the learner's function and on the definition, as it is, with no shrinking.

    Args:
        solution: as for `grade`. A host that had to end the call gives what tells of that outcome.
        problem: `(query, keys, values, allowed)`, or a mapping with these fields.

    Returns:
        A record as in a report, with both answers also where they agree: `yours`, `right`, `input`, `code`; and a
        `sentence` that says what came out.

    Raises:
        ValueError: the problem is none.
    """
    runs = _runs(solution)
    _define()
    (case,) = _extra([problem])
    if case.trouble:
        raise ValueError(case.trouble)
    given = case.problems[0]
    expected = _expected(given)
    shown = {"input": _encoded(given), "code": _call_text(given), "yours": None, "right": _right(expected)}
    loaded = runs.load()
    if loaded["kind"] != "loaded":
        record = _load_record(case, loaded)
        says = record["failure"]["says"] if record["failure"] else "There was no time left to start your program."
        return record | shown | {"sentence": says}
    outcome = runs.call(given)
    if outcome["kind"] == "spent":
        outcome = {"kind": "hang", "seconds": outcome["seconds"]}
    failure = _judge(given, expected, outcome)
    if not failure and outcome.get("changed"):
        says = f"Your code wrote to {' and '.join(outcome['changed'])}."
        failure = Failure("changed", "", "A4", says, [given], [outcome], expected)
    shown["yours"] = _yours(outcome)
    if not failure:
        sentence = f"Your function holds: it does what clause {case.clause} asks for."
        return _record(case, "passed") | shown | {"sentence": sentence}
    cause = _named(failure, runs.call) if not _odd(failure) else ("", "")
    record = _record(case, "failed", _failure_record(failure, cause)) | shown
    sentence = f"Your function breaks clause {record['failure']['clause']['number']}. {failure.says}"
    return record | {"clause": _clause(failure.clause), "sentence": sentence}


def _extra(given: Iterable[Any]) -> list[Case]:
    cases = []
    for at, item in enumerate(given, 1):
        name, title = f"extra-{at}", "An input of your own"
        if isinstance(item, Mapping):
            name, title = str(item.get("id", name)), str(item.get("title", title))
        try:
            problem = _problem(item)
        except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
            said = f"no field {error}" if isinstance(error, KeyError) else str(error)
            trouble = f"This kept case cannot be read ({said[:200]}); write it down again, or remove it."
            cases.append(Case(name, "extra", title, "", [], trouble=trouble))
            continue
        cases.append(Case(name, "extra", title, _expected(problem).clause or "C1", [problem]))
    return cases


def _problem(item: Any) -> Problem:
    """What a host gave as an input, as one."""
    if isinstance(item, Mapping):
        parts = [decode(item[part]) for part in ("query", "keys", "values")]
        parts += [decode(item["allowed"])] if "allowed" in item else []
    else:
        parts = list(item)
    if len(parts) == 3:
        parts.append([True] * _length(parts[1]))
    if len(parts) != 4:
        raise ValueError(f"an input has query, keys, values and allowed, but {len(parts)} parts came")
    return parts[0], parts[1], parts[2], parts[3]


def _known_record(case: Case, known: Any) -> dict[str, Any]:
    if isinstance(known, Mapping):
        return dict(known)
    if isinstance(known, (int, float)):
        outcome = {"kind": "hang", "seconds": known}
        if case.id == "load":
            return _load_record(case, outcome)
        problem = case.problems[:1]
        says = f"It did not answer within {known:g} s."
        failure = Failure("hang", "", case.clause, says, problem, [outcome])
        return _record(case, "failed", _failure_record(failure))
    return _record(case, "skipped")


def _load_record(case: Case, outcome: Outcome) -> dict[str, Any]:
    """What became of the start of a program: no clause is broken by one that does not start."""
    if outcome["kind"] == "loaded":
        return _record(case, "passed")
    kind, hints = outcome["kind"], ["What stands outside of def attend(…): is run when the program starts."]
    if kind == "raised":
        kind = "not started"
        says, hints = _why_not_started(outcome, hints)
    elif kind == "hang":
        says = f"Your program does not start: it did not load within {outcome['seconds']:g} s."
    elif kind == "died":
        says = f"Your program does not start: the Python that loaded it ended, {outcome['message']}."
    else:
        return _record(case, "not run")
    failure = Failure(kind, "", "", says, [], [outcome])
    return _record(case, "failed", _failure_record(failure, hints=hints))


def _why_not_started(outcome: Outcome, hints: list[str]) -> tuple[str, list[str]]:
    """The sentence for a program that raised before there was an attend, and hints."""
    start, error = outcome.get("start"), outcome["type"]
    where = f"line {outcome['line']}" if outcome["line"] else "it"
    if start == "syntax":
        says = f"{where} is not Python; mend it there, or on the line before."
        return f"Your program does not start: {says}", ["Look for a bracket, quote or colon that is missing."]
    if start in ("undefined", "signature"):
        says = (
            "it defines no function attend"
            if start == "undefined"
            else f"the attend of {where} does not take four arguments"
        )
        says = f"Your program cannot be called: {says}; write def {_SIGNATURE}: at the start of a line."
        return says, ["The name is attend, in small letters, and it stands outside of any class or function."]
    if "module" in outcome:
        says = (
            f"{where} imports {outcome['module']}, which the lab does not have; lists and the module math are enough."
        )
        return f"Your program does not start: {says}", ["The lab has Python's standard library and nothing else."]
    ends = {
        "SystemExit": "ends the program; take exit() and quit() out.",
        "EOFError": "asks for input; take input() out.",
    }
    says = ends.get(error, f"raises {error}; mend it, or take it out if attend does not need it.")
    return f"Your program does not start: {where} {says}", hints


class _Mistake(NamedTuple):
    """A failure made small and named: later cases that fail by the same mistake show it again."""

    check: Check
    failure: Failure
    cause: tuple[str, str]

    def explains(self, check: Check, failure: Failure) -> bool:
        """Whether the other failure is this one on another input: the same twin's numbers, or the same line's exception."""
        mine, theirs = self.failure.outcomes[-1], failure.outcomes[-1]
        if failure.kind == self.failure.kind == "unsteady":
            return True
        if check is not self.check or (failure.kind, failure.key) != (self.failure.kind, self.failure.key):
            return False
        if failure.kind == "crashed":
            return mine["line"] is not None and (mine["type"], mine["line"]) == (theirs["type"], theirs["line"])
        if failure.kind == "malformed" and self.cause[0] in ("returns-nothing", "unlisted"):
            return True
        if failure.kind not in ("wrong", "malformed") or failure.expected is None or failure.expected.kind != "answer":
            return False
        pairs = (self.failure.problems[0], mine), (failure.problems[0], theirs)
        twins = [twin for name, twin, more in TWINS if (name, more) == self.cause]
        return any(all(_agree(twin, *pair) for pair in pairs) for twin in twins)


def _grade_case(case: Case, runs: Runs, tell: Callable[..., None], mistakes: list[_Mistake]) -> dict[str, Any]:
    spent: list[Outcome] = []
    if case.trouble:
        return _record(case, "failed", _failure_record(Failure("unreadable", "", "", case.trouble, [], [])))

    def run(problem: Problem) -> Outcome:
        outcome = runs.call(problem)
        if outcome["kind"] == "spent":
            spent.append(outcome)
            return {"kind": "hang", "seconds": outcome["seconds"]}
        return outcome

    for problem in case.problems:
        failure = case.check(run, problem)
        if spent:
            return _record(case, "not run")
        if failure is None:
            continue
        tell("shrink", case, _record(case, "failed", _failure_record(failure)))
        check, failure = _settled(case.check, run, runs, problem, failure)
        shrinks = failure.kind not in ("hang", "died")
        same = next((mistake for mistake in mistakes if mistake.explains(case.check, failure)), None)
        if same:
            return _record(case, "failed", _failure_record(same.failure, same.cause, smallest=True))
        if shrinks:
            _, failure = _shrink(check, run, failure.problems[0], failure)
        cause = _named(failure, run) if not _odd(failure) else ("", "")
        if shrinks:
            mistakes.append(_Mistake(case.check, failure, cause))
        return _record(case, "failed", _failure_record(failure, cause, smallest=shrinks))
    return _record(case, "passed")


def _settled(check: Check, run: Run, runs: Runs, problem: Problem, failure: Failure) -> tuple[Check, Failure]:
    """The failure as it is on a fresh start; if it is none there, something was remembered, and that is the failure."""
    if failure.kind in ("hang", "died", "unsteady") or not _reloadable(runs):
        return check, failure

    def afresh(use: Check) -> Check:
        def checked(run: Run, problem: Problem) -> Failure | None:
            runs.load()
            return use(run, problem)

        return checked

    found = afresh(check)(run, problem)
    if found and (found.kind, found.key) == (failure.kind, failure.key):
        return check, found
    for given in (problem, _TELLING):
        for use in (check_twice, _after_another, _between, _after_refusal):
            steady = afresh(use)
            found = steady(run, given)
            if found and found.kind == "unsteady":
                return steady, found
    says = "Your answer depends on what was called before: alone this input is answered otherwise."
    return check_answer, Failure("unsteady", "", "F4", says, [problem], failure.outcomes, failure.expected)


def _after_another(run: Run, problem: Problem) -> Failure | None:
    """F4: what another call leaves behind."""
    run(_OTHER)
    outcome = run(problem)
    failure = _judge(problem, _expected(problem), outcome)
    if failure is None or failure.kind in ("hang", "died"):
        return failure
    says = f"After another call it gave {_outcome_text(outcome)}."
    return Failure("unsteady", "", "F4", says, [problem], [outcome], failure.expected, [_OTHER])


def _reloadable(runs: Runs) -> bool:
    return not isinstance(runs, Local) or isinstance(runs.solution, str)


def _odd(failure: Failure) -> bool:
    """Whether the input is one that twins cannot be asked about: they want vectors of numbers that fit."""
    if failure.kind in ("answered", "crashed instead of refusing"):
        return False
    return failure.expected is not None and failure.expected.kind == "refusal"


# Submissions ------------------------------------------------------------------------------------------------------------


def submission(
    code: str, report: Report | Mapping[str, Any] | None = None, lesson: str = "attention"
) -> dict[str, Any]:
    """What *Download submission* saves. The report is for people: whoever grades it grades the code again."""
    shown = report.to_dict() if isinstance(report, Report) else report
    return {"schema": SUBMISSION, "lesson": lesson, "code": code, "report": shown}


def submitted_code(text: str) -> str:
    """The code of a submission, or the text itself where it is Python.

    Raises:
        ValueError: it looks like a submission and holds no code.
    """
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return text
    try:
        record = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        raise ValueError("the submission is not JSON that can be read; download it again") from None
    if not isinstance(record, dict) or not isinstance(record.get("code"), str):
        raise ValueError("the submission must be an object with the text `code`; download it again")
    return str(record["code"])
