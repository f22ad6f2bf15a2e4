"""What need not be told about a model of transformers: whether it is a decoder, how rows are packed, how it is stepped.

transformers is looked up where Python keeps its modules: whoever holds one of its models has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Steps", "is_known", "opened", "packs", "reads_backwards", "steps_of", "with_plain_experts", "without_cache"]

#: (model, cache or None, *inputs, **inputs) -> (answer, cache)
Decode = Callable[..., tuple[Any, Any]]


class Steps(NamedTuple):
    """How a model goes on from what it has read.

    Attributes:
        decode: reads a part. caches: name -> what makes an empty cache for so many positions.
    """

    decode: Decode
    caches: Mapping[str, Callable[[Any, int], Any]]


def is_known(model: Any) -> bool:
    """Whether it is a model of transformers with one stack of layers."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not hasattr(model, "config"):
        return False
    return isinstance(model, transformers.PreTrainedModel) and not model.config.is_encoder_decoder


def opened(model: Any, example: Any) -> tuple[Any, Any]:
    """(module, inputs) of a model of `qkv.models` with texts; anything else as it came."""
    texts = (example,) if isinstance(example, str) else example
    if not isinstance(texts, (tuple, list)) or not texts or not all(isinstance(t, str) for t in texts):
        return model, example
    if not (hasattr(model, "encode") and hasattr(model, "module")):
        return model, example
    return model.module, model.encode(*texts)


def reads_backwards(model: Any) -> bool:
    """Whether a model of transformers is one whose positions read what stands before them only."""
    head = type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    return head or any(getattr(part, "is_causal", False) is True for part in model.modules())


def packs(model: Any) -> bool:
    """Whether a model of transformers takes what tells packed documents apart."""
    return "position_ids" in inspect.signature(model.forward).parameters


def without_cache(words: Mapping[str | int, Any]) -> dict[str | int, Any]:
    """The inputs of a packed row: transformers tells its documents apart only if there is neither mask nor cache."""
    return {"use_cache": False, **words}


def with_plain_experts(model: Any) -> Any:
    """The model with experts that are multiplied one after the other: torch groups them in float32 and below alone."""
    if is_known(model) and getattr(model, "_can_set_experts_implementation", lambda: False)():
        model.set_experts_implementation("eager")
    return model


def steps_of(model: Any) -> Steps:
    """Decoding with the caches of transformers."""
    transformers = sys.modules["transformers"]
    # Renamed in 5.x; both names are in use.
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def decode(module: Any, cache: Any, *args: Any, **words: Any) -> tuple[Any, Any]:
        return module(*args, **{**words, named: cache, "use_cache": True}), cache

    def dynamic(module: Any, length: int) -> Any:
        return transformers.DynamicCache(config=module.config)

    def static(module: Any, length: int) -> Any:
        # Longer than the text, so that there are slots nothing was written to.
        return transformers.StaticCache(config=module.config, max_cache_len=length + length // 2)

    return Steps(decode, {"DynamicCache": dynamic, "StaticCache": static})
