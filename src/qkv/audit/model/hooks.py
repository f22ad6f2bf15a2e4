"""Which torch module a leak enters in: the same run twice, every module's inputs and outputs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .search import Spot
from .subject import Subject
from .values import differ, numpy_of

__all__ = ["Entry", "Hooks", "enters", "head_of", "is_module"]


class Entry(NamedTuple):
    """Where a leak enters; fields as in `Leak`."""

    module: str = ""
    tensor: str = ""
    features: tuple[int, int] | None = None
    head: int | None = None


def is_module(model: Any) -> bool:
    """Whether hooks can be put on it."""
    import sys

    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def enters(subject: Subject, spot: Spot) -> Entry:
    """Run the example and then the input of the spot, and compare what passes between the modules."""
    recorded: list[tuple[str, str, list[Any]]] = []
    with Hooks(subject.model, lambda *event: recorded.append(event)):
        subject.answer()
    compared = _Comparison(recorded, spot.kept, subject.part)
    with Hooks(subject.model, compared.event):
        subject.answer(spot.varied)
    owner = dict(subject.model.named_modules()).get(compared.module)
    head = head_of(owner, compared.module, compared.tensor, compared.features)
    return Entry(compared.module, compared.tensor, compared.features, head)


def head_of(owner: Any, module: str, tensor: str, features: tuple[int, int] | None) -> int | None:
    """The head that some features are of: of what an attention module, which tells its `head_dim`, mixes again."""
    width = getattr(owner, "head_dim", None)
    if not isinstance(width, int) or features is None or not tensor.startswith(f"the input of {module}."):
        return None
    first, last = (feature // width for feature in features)
    return first if first == last else None


class Hooks:
    """Hooks on all modules for a while: `told(name, "input" or "output", tensors)` in the order of the run."""

    def __init__(self, model: Any, told: Any) -> None:
        self.model, self.told, self.handles = model, told, []  # type: Any, Any, list[Any]

    def __enter__(self) -> None:
        for name, module in self.model.named_modules():
            called = name or type(module).__name__

            def before(_: Any, args: Any, kwargs: Any, called: str = called) -> None:
                self.told(called, "input", [x.detach().clone() for x in _tensors((args, kwargs))])

            def after(_: Any, args: Any, kwargs: Any, out: Any, called: str = called) -> None:
                self.told(called, "output", [x.detach().clone() for x in _tensors(out)])

            self.handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self.handles.append(module.register_forward_hook(after, with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def _tensors(held: Any) -> Iterator[Any]:
    """The tensors in arguments or an answer; caches and other objects are left alone."""
    import torch

    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Mapping):
        for item in held.values():
            yield from _tensors(item)
    elif isinstance(held, (tuple, list)):
        for item in held:
            yield from _tensors(item)


class _Comparison:
    """The second run, event by event against the first.

    A module is where a leak enters if nothing that went in had changed at positions that may not change, and what came
    out had. The innermost such module ends first, so the first one found is it. Where a tensor shows no positions, it
    has to be the same altogether to count as unchanged.
    """

    def __init__(self, recorded: list[tuple[str, str, list[Any]]], kept: Any, part: float) -> None:
        self.recorded, self.kept, self.part, self.at = recorded, kept, part, 0
        self.open: list[bool] = []
        self.module = self.tensor = ""
        self.features: tuple[int, int] | None = None

    def event(self, name: str, side: str, tensors: list[Any]) -> None:
        """One module begins or ends."""
        before = self.recorded[self.at] if self.at < len(self.recorded) else ("", "", [])
        self.at += 1
        shapes = [x.shape for x in tensors]
        same_way = before[:2] == (name, side) and [x.shape for x in before[2]] == shapes
        changes = [self._change(a, b) for a, b in zip(before[2], tensors, strict=True)] if same_way else [None]
        seen = [c for c in changes if isinstance(c, tuple)]
        if side == "input":
            self.open.append(all(c is False for c in changes))
        if seen and not self.tensor:
            self.tensor, self.features = f"the {side} of {name}", seen[0]
        if side == "output" and self.open.pop() and seen and not self.module:
            self.module = name

    def _change(self, a: Any, b: Any) -> tuple[int, int] | bool | None:
        """False: unchanged where it may not change; (first, last feature): changed there; None: cannot be said."""
        changed = differ(numpy_of(a), numpy_of(b), self.part if a.is_floating_point() else 0.0)
        if not changed.any():
            return False
        placed = _placed(changed, self.kept)
        if placed is None:
            return None
        last = np.flatnonzero(placed.reshape(-1, placed.shape[-1]).any(0))
        return (int(last[0]), int(last[-1])) if len(last) else False


def _placed(changed: Any, kept: Any) -> Any:
    """The differences at kept positions, axes (sequences, positions, …, features); None where it has no positions."""
    B, L = kept.shape
    if changed.ndim < 2:
        return None
    # (B, L, …) as most; (B, H, L, D) within attention; (B·H, L, D) where heads were folded into the batch.
    axis = next((n for n in (1, 2, *range(3, changed.ndim)) if n < changed.ndim and changed.shape[n] == L), None)
    if axis is None or changed.shape[0] % B:
        return None
    moved = np.moveaxis(changed, axis, 1)
    moved = moved[..., None] if moved.ndim == 2 else moved
    where = np.repeat(kept, changed.shape[0] // B, axis=0)
    return moved & where.reshape(*where.shape, *[1] * (moved.ndim - 2))
