"""torch's own modules that compute attention where nobody sees it: a fused fast path, and weights on demand.

`torch.nn.TransformerEncoderLayer` and `torch.nn.MultiheadAttention` take a fused operator in evaluation, unless something
is attached to them, as the lens is: watched, they would run another path than by themselves. So they run once by themselves
first; the watched run keeps off the fast path, and must give the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from qkv.errors import UnsupportedError

from .calls import Call

__all__ = ["Fused"]

_OPERATORS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")


class Fused:
    """What a model's own run does that a watched one would not; nothing for a model without such modules."""

    def __init__(self, model: Any) -> None:
        import torch

        kinds = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
        self.parts = [(name, part) for name, part in model.named_modules() if isinstance(part, kinds)]
        self.attentions = [(name, part) for name, part in self.parts if isinstance(part, torch.nn.MultiheadAttention)]
        self.alone: Any = None
        self.took: set[str] = set()
        self.seen: set[int] = set()
        self.unseen: list[str] = []

    def run_alone(self, run: Callable[[], Any]) -> None:
        """Let the model run by itself, where it may take the fast path."""
        if all(part.training for _, part in self.parts):
            return
        import torch

        def counted(name: str, real: Any) -> Any:
            def operator(*args: Any, **kwargs: Any) -> Any:
                self.took.add(name)
                return real(*args, **kwargs)

            return operator

        before = {name: getattr(torch, name) for name in _OPERATORS if hasattr(torch, name)}
        try:
            for name, real in before.items():
                setattr(torch, name, counted(name, real))
            self.alone = run()
        finally:
            for name, real in before.items():
                setattr(torch, name, real)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Off the fast path; and a note of every attention that ends without a call that was seen."""
        if not self.parts:
            yield
            return
        import torch

        def begin(module: Any, _: Any) -> None:
            self.seen.discard(id(module))

        def end(name: str) -> Any:
            def hook(module: Any, _: Any, __: Any) -> None:
                if id(module) not in self.seen:
                    self.unseen.append(name)

            return hook

        handles = [part.register_forward_pre_hook(begin) for _, part in self.attentions]
        handles += [part.register_forward_hook(end(name)) for name, part in self.attentions]
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
            for handle in handles:
                handle.remove()

    def told(self, call: Call) -> None:
        """A call was seen."""
        self.seen.add(id(call.module))

    def check(self, output: Any, every: bool) -> None:
        """Refuse a capture that is not of what the model does; `every`: whether all of its layers were asked for."""
        if self.unseen and every:
            raise UnsupportedError(
                f"attention of {self.unseen[0] or 'the model'} was computed beside every kernel, as torch.nn.MultiheadAttention does "
                "with need_weights=True; pass need_weights=False in the model, or name other layers with layers="
            )
        if self.alone is not None and not _same(self.alone, output):
            how = (
                "takes the fused fast path of torch.nn.TransformerEncoder, which shows no attention,"
                if self.took
                else "gives"
            )
            raise UnsupportedError(
                f"model {how} {'and gives ' if self.took else ''}other bits by itself than when it is watched; "
                "call torch.backends.mha.set_fastpath_enabled(False) first, and capture what it does then"
            )


def _same(a: Any, b: Any) -> bool:
    """Whether two outputs are bit for bit the same."""
    import torch

    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        return (
            torch.equal(a.detach().contiguous().view(torch.uint8), b.detach().contiguous().view(torch.uint8))
            if a.ndim
            else a.item() == b.item()
        )
    if hasattr(a, "items"):
        return all(name in b and _same(part, b[name]) for name, part in a.items())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return True  # no numbers: nothing that attention could have changed
