"""qkv inside transformers: one line, and models that use the attention interface run on this engine.

>>> import qkv.transformers
>>> qkv.transformers.enable()  # doctest: +SKIP
>>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="qkv")  # doctest: +SKIP

The page docs/transformers.md says what is honoured and what is refused.
"""

from __future__ import annotations

from . import library
from .attend import attend_in_model, make_mask
from .cache import paged_cache

__all__ = ["NAME", "attend_in_model", "enable", "make_mask", "paged_cache"]

#: What to pass as `attn_implementation`.
NAME = "qkv"


def enable() -> None:
    """Register attention and its mask function with transformers, both under the name "qkv"; again is harmless.

    Afterwards `attn_implementation="qkv"` (or `model.set_attn_implementation("qkv")`) runs any model that uses the
    attention interface on this engine. Rows without a key give 0 and numbers that are not finite propagate, since
    left-padded rows are empty.

    Raises:
        UnsupportedError: transformers is not installed, or too old.
    """
    lib = library.library()
    # Both, or the attention would be given no mask, without a word.
    lib.modeling.AttentionInterface.register(NAME, attend_in_model)
    lib.masking.AttentionMaskInterface.register(NAME, make_mask)
