"""A kernel that is named on the command line: what its options say of it, and what is refused."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import TYPE_CHECKING, Any

from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.audit.targets import Target

__all__ = ["refuse", "target"]

#: Options that say what somebody's own kernel is like, and their defaults.
_ITS_OWN: dict[str, Any] = {
    "accepts": "",
    "arrays": "numpy",
    "layout": "bhld",
    "device": "cpu",
    "head_dims": None,
    "lengths": None,
    "longest": None,
    "arithmetic": None,
    "true_drops": False,
    "contiguous": False,
    "seconds": None,
    "memory": None,
}


def refuse(arguments: argparse.Namespace, name: str) -> None:
    """Refuse what would have no effect on kernels that are known by name.

    Raises:
        ArgumentError: there is such an option.
    """
    for option, default in _ITS_OWN.items():
        if getattr(arguments, option) != default:
            said = f"--{option.replace('_', '-')}"
            whose = (
                "a known kernel declares what it takes"
                if name == "--all"
                else f"{name} is known, and declares what it takes"
            )
            way_out = (
                "; audit a function of your own that calls it there" if option == "device" else f"; leave out {said}"
            )
            raise ArgumentError(f"{said} is for your own kernel; {whose}{way_out}")


def target(name: str, arguments: argparse.Namespace) -> Target:
    """A kernel known by name, or somebody's own.

    Raises:
        ArgumentError: nothing has this name, or an option says what cannot be.
    """
    from qkv.audit import adapters
    from qkv.audit.targets import target_of

    if adapters.canonical(name):
        refuse(arguments, name)
        return target_of(name)
    if ":" not in name:
        raise ArgumentError(_unknown(name, list(adapters.ADAPTERS)))
    fields: dict[str, Any] = {"arrays": arguments.arrays, "layout": arguments.layout, "device": arguments.device}
    if arguments.dtype:
        fields["dtypes"] = tuple(w.strip() for w in arguments.dtype.split(","))
    if arguments.head_dims:
        fields["widths"] = tuple(sorted(_whole("--head-dims", w) for w in arguments.head_dims.split(",")))
    if arguments.lengths:
        word, _, numbers = arguments.lengths.partition(":")
        parts = [_whole("--lengths", w) for w in numbers.split(",")] if word == "multiple" else []
        if len(parts) not in (1, 2):
            raise ArgumentError(f"--lengths must be multiple:N or multiple:N,M, but {arguments.lengths!r} came")
        fields["query_multiple"], fields["key_multiple"] = parts[0], parts[-1]
    if arguments.longest is not None:
        fields["longest"] = _whole("--longest", str(arguments.longest))
    if arguments.arithmetic:
        fields["arithmetic"] = frozenset(w.strip() for w in arguments.arithmetic.split(","))
    if arguments.true_drops:
        fields["polarity"] = "drop"
    if arguments.contiguous:
        fields["strides"] = False
    if arguments.seconds is not None:
        fields["seconds"] = _positive("--seconds", arguments.seconds)
    if arguments.memory is not None:
        fields["memory"] = int(_positive("--memory", arguments.memory) * 2**30)
    return target_of(name, arguments.accepts, command=_again(name, arguments.target), **fields)


def _again(name: str, all_names: list[str]) -> str:
    """The words that audit this kernel again: those of this command, without other kernels and what chooses cases."""
    words, skip = ["qkv", "audit", name], 0
    chooses = {"--case", "--seed", "--clause", "--profile"}
    given = sys.argv[2:] if len(sys.argv) > 1 and sys.argv[1] == "audit" else []
    for word in given:
        if skip:
            skip -= 1
        elif word in chooses or word == "--dtype":
            skip = 1
        elif word not in (*all_names, "--json", "--deep") and not word.startswith(tuple(f"{c}=" for c in chooses)):
            words.append(f"'{word}'" if " " in word else word)
    return " ".join(words)


def _unknown(name: str, known: list[str]) -> str:
    """What to write instead."""
    if name.endswith(".py"):
        return f"{name} names a file and no function in it; write {name}:FUNCTION"
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"there is no kernel {name!r}; is it spelled {near[0]}? qkv audit --list shows those known by name"
    return f"there is no kernel {name!r}; known are {', '.join(known)}, your own is module:function or file.py:function"


def _positive(option: str, number: float) -> float:
    if not 0 < number < 1e9:
        raise ArgumentError(f"{option} takes a number above 0, but {number:g} came")
    return number


def _whole(option: str, word: str) -> int:
    if not word.strip().isdigit() or int(word) < 1:
        raise ArgumentError(f"{option} takes whole numbers of at least 1, but {word!r} came")
    return int(word)
