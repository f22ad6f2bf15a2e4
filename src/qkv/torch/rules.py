"""Mask expressions as text and tensors, which is what an operator of a graph can take.

`spell` writes an expression as a Python literal in which arrays are numbered, and lists those arrays as tensors, so that a
compiled or exported graph carries the expression whole; `read` is its inverse. Plain enough that torch's compiler traces it.
"""

from __future__ import annotations

import ast
import dataclasses
import weakref
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..algebra import Allow, And, Not, Or
from ..alibi import Alibi
from ..contract import read_mask as _as_mask
from ..errors import UnsupportedError
from ..rules import Causal, First, KeyMask, KeyRange, KeySet, Prefix, Segments, Where, Window

_KINDS: tuple[Any, ...] = (
    And, Or, Not, Allow, Causal, Window, Prefix, First, KeyRange, KeyMask, KeySet, Segments, Where, Alibi,
)  # fmt: skip
_FIELDS: dict[Any, tuple[str, ...]] = {kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in _KINDS}
_NAMES: dict[Any, str] = {kind: kind.__name__ for kind in _KINDS}
_BY_NAME: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}

#: Rules of `where` that are in use, by number: a graph cannot hold a function, so none is compiled with one.
_FUNCTIONS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def spell(rule: Any, arrays: list[torch.Tensor]) -> str:
    """The text of a mask expression or alibi; its arrays are added to `arrays`.

    >>> import qkv
    >>> spell(qkv.causal() & qkv.window(3, None), [])
    "('And', ('Causal', None), ('Window', None, 3, None))"
    """
    kind = type(rule)
    if kind in _FIELDS:
        text = "('" + _NAMES[kind] + "'"
        for name in _FIELDS[kind]:
            text = text + ", " + _field(name, getattr(rule, name), arrays)
        return text + ")"
    if isinstance(rule, (np.ndarray, np.generic)):
        arrays.append(torch.as_tensor(rule))
        return "['" + str(len(arrays) - 1) + "']"
    if isinstance(rule, torch.Tensor):
        arrays.append(rule)
        return "['" + str(len(arrays) - 1) + "']"
    if isinstance(rule, str):
        return "'" + rule + "'"
    if rule is None or isinstance(rule, (bool, int, float)):
        return str(rule)
    return spell(_as_mask(rule), arrays)  # an array of another library, or the error that says what is wrong


def read(text: str, arrays: list[Any]) -> Any:
    """What `spell` wrote, with NumPy arrays in the place of tensors.

    >>> read("('Window', None, 3, None)", [])
    window(3, None)
    """
    return _build(_parsed(text), arrays)


def functions(text: str) -> list[Any]:
    """The rules of `where` that a text names, for whoever has to keep them alive."""
    return list(_named(_parsed(text)))


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return ast.literal_eval(text)


def _build(part: Any, arrays: list[Any]) -> Any:
    if isinstance(part, list):
        return arrays[int(part[0])]
    if isinstance(part, tuple):
        return _BY_NAME[part[0]](*(_build(field, arrays) for field in part[1:]))
    return _FUNCTIONS[part["function"]] if isinstance(part, dict) else part


def _named(part: Any) -> Any:
    if isinstance(part, dict):
        yield _FUNCTIONS[part["function"]]
    elif isinstance(part, tuple):
        for field in part:
            yield from _named(field)


def _field(name: str, value: Any, arrays: list[torch.Tensor]) -> str:
    if name == "rule":
        return _function(value)
    # How it was written names the numbers, and each would be a graph of its own.
    return "'keys(…)'" if name == "spelling" else spell(value, arrays)


def _function(rule: Any) -> str:
    if torch.compiler.is_compiling():
        raise UnsupportedError(
            "mask has a where(f), which a compiled graph cannot hold, since f is Python; evaluate it outside and pass allow(array)"
        )
    _FUNCTIONS[id(rule)] = rule
    return "{'function': " + str(id(rule)) + "}"
