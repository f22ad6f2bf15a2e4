"""A mask that transformers hands from layer to layer: a tensor to everybody, rules to our attention.

It is a boolean tensor (B, 1, L, S) without memory. Whatever torch is asked to do with it, it is written out first, so
models that slice or combine their masks go on as they do; such a result is a plain tensor, and honoured as one. Left
alone, it arrives at the attention function as it was made, and its rules decide which tiles are skipped.
"""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from ..masks import Mask
from .library import library
from .translate import Place, dense

#: The class, once it is made; kept by hand, since torch.compile looks through caching decorators.
_MADE: list[Any] = []


def _tensor_class() -> Any:
    torch = library().torch

    class RuleMask(torch.Tensor):  # type: ignore[misc, name-defined]
        """Booleans (B, 1, L, S), True = this query may read this key, kept as rules."""

        rules: Mask | None
        place: Place

        @staticmethod
        def __new__(cls: Any, rules: Mask | None, place: Place) -> Any:
            shape = (place.batches, 1, place.queries, place.keys)
            out = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool)
            out.rules, out.place = rules, place
            return out

        def __repr__(self) -> str:
            rules = "every pair" if self.rules is None else repr(self.rules)
            return f"<RuleMask {tuple(self.shape)} {rules}>"

        def written_out(self) -> Any:
            """The same as a plain tensor; a new one each time."""
            return torch.from_numpy(dense(self.rules, self.place))

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            same = _unchanged(torch, func, args, kwargs or {})
            if same is not None:
                return cls(same.rules, same.place)
            written = [name for name, info in zip(func._schema.arguments, args, strict=False) if isinstance(info, cls)]
            if any(argument.alias_info is not None and argument.alias_info.is_write for argument in written):
                raise UnsupportedError(
                    f"this attention mask is kept as rules, and {func} would write to it; clone it as a tensor with mask & True first"
                )
            return func(*(_plain(cls, a) for a in args), **{k: _plain(cls, a) for k, a in (kwargs or {}).items()})

    return RuleMask


def _plain(cls: Any, argument: Any) -> Any:
    if isinstance(argument, cls):
        return argument.written_out()
    if isinstance(argument, (list, tuple)):
        return type(argument)(_plain(cls, a) for a in argument)
    return argument


def _unchanged(torch: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The mask of an operation that changes nothing of it (a copy, an alias, the same type and device), else None."""
    aten = torch.ops.aten
    if func in (aten.alias.default, aten.detach.default, aten.clone.default):
        return args[0]
    if func is aten._to_copy.default:
        return args[0] if all(x in (None, torch.bool, torch.device("cpu")) for x in kwargs.values()) else None
    return None


def described(rules: Mask | None, place: Place) -> Any:
    """Rules as the mask of a forward pass."""
    if not _MADE:
        _MADE.append(_tensor_class())
    return _MADE[0](rules, place)


def rules_of(mask: Any) -> Any:
    """The mask if it is one of ours, else None."""
    return mask if _MADE and isinstance(mask, _MADE[0]) else None
