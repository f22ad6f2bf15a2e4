"""Real models as torch modules with their tokenizers, from packages and files of this machine.

Nothing is downloaded, no code that comes with a model is run, and no pickle is read unless that is asked for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError

from . import build, gguf, glass
from .faults import fault
from .local import cached
from .packages import PACKAGES, file_of

__all__ = ["NAMES", "Model", "load"]

#: Models that are known by name, and what they are.
NAMES = {name: package.about for name, package in PACKAGES.items()}


@dataclass(frozen=True, eq=False)
class Model:
    """A model that can be called.

    Attributes:
        name: as it was asked for. kind: "decoder" (logits of the next token) or "encoder" (a hidden state a token).
        module: a model of transformers in float32, in evaluation mode, on the CPU.
        tokenizer: a fast tokenizer of transformers.
        source: the file or folder it was read from.
    """

    name: str
    kind: str
    module: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    source: Path

    def encode(self, *texts: str) -> dict[str, Any]:
        """Texts as `input_ids` and `attention_mask`, torch tensors (batch, positions) of int64; padded on the right."""
        if not texts:
            raise ArgumentError("encode takes one text at least, but none came")
        found = self.tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1)
        return {name: found[name] for name in ("input_ids", "attention_mask")}

    def tokens(self, ids: Any) -> tuple[str, ...]:
        """What each of some ids (positions,) stands for, as text; a part of a character is shown as �."""
        numbers = [int(i) for i in ids]
        return tuple(self.tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in numbers)

    def decode(self, ids: Any) -> str:
        """The text that ids (positions,) stand for."""
        return str(self.tokenizer.decode([int(i) for i in ids], clean_up_tokenization_spaces=False))


def load(model: str | os.PathLike[str], *, attention: str | None = None, pickles: bool = False) -> Model:
    """Load a model and its tokenizer.

    Args:
        model: "glassllm", "glassllm-pt", "smollm2" or "minilm", which come inside packages; or a path: a folder as
            transformers saves one (config.json, .safetensors, tokenizer.json), a `.gguf` file of a Llama (tensors in
            F32, F16, Q8_0 or Q4_1), or a `.npz` file of glassllm; or the ID of a model ("owner/model") that is in the
            cache of Hugging Face's library on this machine.
        attention: the implementation transformers shall call, such as "eager" or "sdpa"; default: its own choice.
        pickles: whether a folder without .safetensors may be read from .bin files, which are pickles.

    Raises:
        ArgumentError: there is no such model or attention, or a package it needs is not installed.
        FileError: the file is not what it says, or holds what is not read here.

    Example, where the packages `glassllm`, `torch` and `transformers` are installed::

        model = qkv.models.load("glassllm")
        ids = model.encode("Alice was beginning to get")
        model.tokens(model.module(**ids).logits[0].argmax(-1))
    """
    if isinstance(model, str) and model in PACKAGES:
        name, path = model, file_of(model)
    else:
        name, path = os.fspath(model), Path(model)
        if not path.exists():
            found = cached(name)
            if found is None:
                raise ArgumentError(
                    f"there is no model {name!r}; known are {', '.join(NAMES)}, else give the path of a folder, a .gguf or "
                    "an .npz file, or an ID that is in the cache of Hugging Face's library (nothing is downloaded)"
                )
            path = found
    build.require()
    if path.is_dir():
        module, tokenizer, kind = build.from_folder(path, attention, pickles)
    elif path.suffix == ".gguf":
        with gguf.opened(path) as file:
            config, weights, words = file.config(), file.weights(), file.words()
        module = build.llama(path, config, weights, attention)
        tokenizer, kind = build.tokenizer(words), "decoder"
    elif path.suffix == ".npz":
        config, weights = glass.read(path)
        module = build.llama(path, config, weights, attention)
        tokenizer, kind = build.tokenizer(glass.words(path)), "decoder"
    else:
        raise fault(path, f"ends in {path.suffix!r}; name a folder of transformers, a .gguf or an .npz file")
    return Model(name, kind, module, tokenizer, path)
