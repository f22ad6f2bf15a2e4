"""`qkv trace`: one query over a few keys, every step of it, from numbers on the command line or from JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from qkv.errors import ArgumentError, FileError

from . import draw

__all__ = ["add_command"]

#: A problem to be read by a person; anything larger is for `qkv attend`.
MAX_JSON_BYTES = 16 * 1024 * 1024

#: The largest float has 309; the trace itself says of longer ones that they are too large.
MAX_DIGITS = 1000

_EPILOG = """\
examples:
  qkv trace --query 1,0 --key 1,0 0,1 --value 10,0 0,20
  qkv trace --query 1,0 --key 1,0 0,1 --value 10,0 0,20 --allowed 1,0
  qkv trace problem.json --svg steps.svg
  some-program | qkv trace - --json

a problem in JSON, where allowed may be left out:
  {"query": [1, 0], "keys": [[1, 0], [0, 1]], "values": [[10, 0], [0, 20]],
   "allowed": [true, false]}
"""

_EXAMPLE = "for example qkv trace --query 1,0 --key 1,0 0,1 --value 10,0 0,20"
_FIELDS = {"query": "query", "keys": "keys", "key": "keys", "values": "values", "value": "values"}
_FIELDS |= {"allowed": "allowed", "mask": "allowed"}
_YES = {"1", "true", "t", "yes", "y"}
_NO = {"0", "false", "f", "no", "n"}


def add_command(commands: Any) -> None:
    """Add `trace` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="show every step of one query over a few keys",
        description="Show every step of one query over a few keys.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("problem", nargs="?", help="a JSON file with query, keys, values and allowed; - reads stdin")
    parser.add_argument("--query", metavar="X,Y", help="the query, numbers separated by commas")
    parser.add_argument(
        "--key", dest="keys", nargs="+", action="extend", metavar="X,Y", help="one key a word; may be given again"
    )
    parser.add_argument(
        "--value", dest="values", nargs="+", action="extend", metavar="X,Y", help="one value a word, as many as keys"
    )
    parser.add_argument(
        "--allowed", metavar="1,0", help="which keys the query may read: 1 or 0 for each (default: all)"
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="also save the steps as a picture")
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trace one problem and show it."""
    from qkv.trace import trace

    problem = _problem(arguments)
    try:
        traced = trace(problem["query"], problem["keys"], problem["values"], problem.get("allowed"))
    except (TypeError, ValueError) as error:
        # The trace stands on the standard library alone and raises its kinds of error.
        raise ArgumentError(str(error)) from None
    except RecursionError:
        raise ArgumentError(
            "the problem must be lists of numbers, but is nested too deeply to be read; flatten it"
        ) from None
    if arguments.svg is not None:
        # The picture first: a path that cannot be written is known before anything is printed.
        arguments.svg.write_text(traced.to_svg(), encoding="utf-8")
    if arguments.json:
        draw.write_json(traced.to_dict())
        return 0
    draw.lines(str(traced))
    if arguments.svg is not None:
        draw.text(f"picture: {arguments.svg}")
    return 0


def _problem(arguments: argparse.Namespace) -> dict[str, Any]:
    said = [
        f"--{name}" for name in ("query", "key", "value", "allowed") if getattr(arguments, _FIELDS[name]) is not None
    ]
    if arguments.problem is not None and said:
        raise ArgumentError(
            f"trace takes numbers either from {arguments.problem} or from {', '.join(said)}, but both came; "
            "leave one out"
        )
    if arguments.problem is not None:
        return _read_json(arguments.problem)
    missing = [f"--{name}" for name in ("query", "key", "value") if getattr(arguments, _FIELDS[name]) is None]
    if missing:
        raise ArgumentError(f"trace needs {' and '.join(missing)}, or a JSON file; write {_EXAMPLE}")
    problem: dict[str, Any] = {
        "query": _numbers(arguments.query, "--query"),
        "keys": [_numbers(word, "--key") for word in arguments.keys],
        "values": [_numbers(word, "--value") for word in arguments.values],
    }
    if arguments.allowed is not None:
        problem["allowed"] = [_flag(word) for word in _words(arguments.allowed)]
    return problem


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if "," in text else text.split()


def _numbers(text: str, option: str) -> list[float]:
    numbers = []
    for word in _words(text):
        try:
            # float() reads 1_0 as ten.
            numbers.append(float(word if "_" not in word else ""))
        except ValueError:
            raise ArgumentError(
                f"{option} must be numbers separated by commas, but {word!r} came in {text.strip()!r}; "
                f"write it like {option} 1,0"
            ) from None
    return numbers


def _flag(word: str) -> bool:
    if word.lower() in _YES:
        return True
    if word.lower() in _NO:
        return False
    raise ArgumentError(
        f"--allowed must be 1 (may read) or 0 for each key, but {word!r} came; write it like --allowed 1,0"
    )


def _read_json(path: str) -> dict[str, Any]:
    name = "stdin" if path == "-" else path
    if path == "-":
        raw = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
    else:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    if len(raw) > MAX_JSON_BYTES:
        raise FileError(
            f"{name} must have at most {MAX_JSON_BYTES:,} bytes to be traced, but has more; "
            "for large arrays use qkv attend"
        )
    try:
        # A mark of the byte order, as some editors write it, is no part of the text.
        record = json.loads(
            raw.decode("utf-8-sig"),
            parse_int=partial(_integer, name),
            parse_constant=_no_constant,
            object_pairs_hook=_once,
        )
    except UnicodeDecodeError as error:
        raise FileError(
            f"{name} must be JSON in UTF-8, but byte {error.start} is not UTF-8; save it as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise FileError(
            f"{name} must be JSON, but line {error.lineno} column {error.colno} is not ({error.msg.lower()}); "
            f'write it like {{"query": [1, 0], "keys": [[1, 0]], "values": [[10, 0]]}}'
        ) from None
    except RecursionError:
        raise FileError(f"{name} must be lists of numbers, but is nested too deeply to be read; flatten it") from None
    return _fields(record, name)


def _fields(record: Any, name: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise FileError(
            f"{name} must be a JSON object with query, keys, values and allowed, but is {_kind(record)}; "
            f'write it like {{"query": [1, 0], "keys": [[1, 0]], "values": [[10, 0]]}}'
        )
    problem: dict[str, Any] = {}
    for field, content in record.items():
        if field not in _FIELDS or _FIELDS[field] in problem:
            said = "twice, as" if field in _FIELDS else "the field"
            raise FileError(
                f"{name} must have the fields query, keys, values and allowed, but has {said} {field!r}; take it out"
            )
        problem[_FIELDS[field]] = content
    for field in ("query", "keys", "values"):
        if field not in problem:
            raise FileError(f"{name} must have the fields query, keys and values, but has no {field!r}; add it")
    return problem


def _kind(content: Any) -> str:
    kinds = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(content), "a number")


def _no_constant(word: str) -> NoReturn:
    raise FileError(f"JSON has no number {word}, and a trace takes finite numbers only; take it out")


def _integer(name: str, word: str) -> int:
    digits = len(word.removeprefix("-"))
    # Python reads no integer of thousands of digits, and says so in words about itself.
    if digits > MAX_DIGITS:
        raise FileError(
            f"{name} must have integers of at most {MAX_DIGITS:,} digits to be traced, but has one of {digits:,}; "
            "write a smaller number"
        )
    return int(word)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for field, content in pairs:
        if field in record:
            raise FileError(f"JSON must have every field once, but {field!r} came twice; take one out")
        record[field] = content
    return record
