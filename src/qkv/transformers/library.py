"""The one file that imports transformers, and torch with it; and the oldest release that it takes."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from ..errors import UnsupportedError
from ..files.extras import how_to_install

#: The oldest release that the tests have passed with.
OLDEST = (5, 10)


class Library(NamedTuple):
    """The modules of transformers that the bridge speaks to, torch, and attention that torch can differentiate."""

    torch: Any
    masking: Any
    modeling: Any
    caches: Any
    differentiable: Any


#: Kept by hand, since torch.compile looks through caching decorators.
_FOUND: list[Library] = []


def library() -> Library:
    """transformers, torch and our operator in it, imported at the first call.

    Raises:
        UnsupportedError: transformers is not installed, or too old for its attention and mask interfaces.
    """
    if not _FOUND:
        _FOUND.append(_load())
    return _FOUND[0]


def _load() -> Library:
    try:
        transformers, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError(
            f"qkv.transformers needs torch and transformers, but {error.name} is not installed; {how_to_install('models')}"
        ) from None
    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if release < OLDEST:
        raise UnsupportedError(
            f"qkv.transformers needs transformers {OLDEST[0]}.{OLDEST[1]} or newer, but {transformers.__version__} is installed; upgrade it"
        )
    return Library(
        torch,
        importlib.import_module("transformers.masking_utils"),
        importlib.import_module("transformers.modeling_utils"),
        importlib.import_module("transformers.cache_utils"),
        importlib.import_module("qkv.torch").attend,
    )


def wanted_outputs() -> frozenset[str]:
    """What the forward pass that is running has been asked to record ("attentions", "hidden_states", …)."""
    try:
        capturing = importlib.import_module("transformers.utils.output_capturing")
    except ImportError:
        return frozenset()
    collected = capturing._active_collector.get()
    return frozenset(collected or ())
