"""Watch the attention calls of a model while it runs, without changing one bit of what it computes.

Two doors lead to attention in torch models. transformers' models fetch their kernel from an `AttentionInterface`; other
models call `torch.nn.functional.scaled_dot_product_attention`. Both are watched only inside `watch(...)`: the kernel the
model asked for is called with the very arguments the model passed, and what it returns is returned.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "Watcher", "watch"]


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call as the model made it.

    Attributes:
        module: the module that asked. name: its name in the model, "" if it has none. index: number of the call, from 0.
        kernel: what answered: "eager", "sdpa", "flex_attention", … or "scaled_dot_product_attention" of torch itself.
        query (B, H, L, D), key (B, G, S, D), value (B, G, S, E): the model's tensors.
        mask: whatever the model passed as attention mask. options: all other keyword arguments.
    """

    module: Any
    name: str
    index: int
    kernel: str
    query: Any
    key: Any
    value: Any
    mask: Any
    options: dict[str, Any] = field(default_factory=dict)


#: Told of each call and what the kernel answered, (B, L, H, E) for transformers; returns the answer to use instead, or None.
Watcher = Callable[[Call, Any], Any]


class _Watch:
    def __init__(self, model: Any, told: Watcher) -> None:
        self.told = told
        self.names = {id(module): name for name, module in model.named_modules()}
        self.index = 0
        self.inside = 0
        self.modules: list[Any] = []

    def run(self, make: Callable[[], Call], answer: Callable[[], Any]) -> Any:
        """The model's own kernel; calls that it makes itself are not calls of the model."""
        if self.inside:
            return answer()
        self.inside += 1
        try:
            given = answer()
        finally:
            self.inside -= 1
        call = make()
        self.index += 1
        self.inside += 1  # whoever is told may use attention himself
        try:
            instead = self.told(call, given)
        finally:
            self.inside -= 1
        return given if instead is None else instead


@contextlib.contextmanager
def watch(model: Any, told: Watcher) -> Iterator[None]:
    """Tell `told` of each attention call that `model` makes inside the `with` block."""
    state = _Watch(model, told)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_watch_interface(state))
        stack.enter_context(_watch_torch(model, state))
        yield


@contextlib.contextmanager
def _watch_interface(state: _Watch) -> Iterator[None]:
    """transformers: the interface gives its kernel wrapped. A model that never imported transformers needs none of it."""
    utils = sys.modules.get("transformers.modeling_utils")
    if utils is None:
        yield
        return
    interface = utils.AttentionInterface
    real = interface.get_interface

    def get_interface(self: Any, implementation: Any, default: Any) -> Any:
        kernel = real(self, implementation, default)

        def watched(
            module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *rest: Any, **options: Any
        ) -> Any:
            def make() -> Call:
                name = state.names.get(id(module), "")
                return Call(module, name, state.index, str(implementation), query, key, value, attention_mask, options)

            return state.run(make, lambda: kernel(module, query, key, value, attention_mask, *rest, **options))

        return watched

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = real


@contextlib.contextmanager
def _watch_torch(model: Any, state: _Watch) -> Iterator[None]:
    """torch itself: `scaled_dot_product_attention`, and which module was running when it was called.

    The name is exchanged wherever a module holds it, and put back; a mode that sees every function of torch would make
    compiled kernels compile again.
    """
    import torch

    sdpa = torch.nn.functional.scaled_dot_product_attention
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

    @functools.wraps(sdpa)
    def watched(*args: Any, **kwargs: Any) -> Any:
        def make() -> Call:
            given = dict(zip(names, args, strict=False)) | kwargs
            module = state.modules[-1] if state.modules else model
            q, k, v, mask = (given.pop(name, None) for name in names[:4])
            name = state.names.get(id(module), "")
            return Call(module, name, state.index, "scaled_dot_product_attention", q, k, v, mask, given)

        return state.run(make, lambda: sdpa(*args, **kwargs))

    def enter(module: Any, _: Any) -> None:
        state.modules.append(module)

    def leave(module: Any, _: Any, __: Any) -> None:
        state.modules.pop()

    holders = [
        (space, name)
        for space in (vars(module) for module in [*sys.modules.values()] if hasattr(module, "__dict__"))
        for name, thing in [*space.items()]
        if thing is sdpa
    ]
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    for space, name in holders:
        space[name] = watched
    try:
        yield
    finally:
        for space, name in holders:
            space[name] = sdpa
        for handle in handles:
            handle.remove()
