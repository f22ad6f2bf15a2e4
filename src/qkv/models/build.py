"""What transformers, tokenizers and torch make of weights and words. They are imported here, when a model is loaded."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError
from qkv.files.extras import how_to_install

from .faults import DAMAGED, fault
from .words import Words

__all__ = ["from_folder", "llama", "require", "tokenizer"]


def require() -> None:
    """Say what is missing before anything is read."""
    try:
        importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as missing:
        raise ArgumentError(
            f"a model needs {missing.name}, which is not installed; {how_to_install('models')}"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without bars and notes on the terminal; what matters is raised."""
    logging = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def llama(
    path: Path, config: Mapping[str, Any], weights: Mapping[str, npt.NDArray[np.float32]], attention: str | None
) -> Any:
    """A `LlamaForCausalLM` with the weights of a file, every one of them and no other."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    state = {name: torch.from_numpy(weight) for name, weight in weights.items()}
    try:
        with _quiet(), torch.device("meta"):
            module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
        # Nothing is drawn by chance to be overwritten; the angles are in no file, and computed.
        module.model.rotary_emb = type(module.model.rotary_emb)(module.config)
        if config["tie_word_embeddings"]:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        module.load_state_dict(state, strict=True, assign=True)
    except _FAULTS as error:
        raise fault(path, f"does not hold the weights of a Llama ({_short(error)}); {DAMAGED}") from None
    module.tie_weights()
    return _called_with(module, attention)


def _called_with(module: Any, attention: str | None) -> Any:
    """The model as it is handed out: with an attention of the caller's choice, and nothing left to train."""
    if attention is not None:
        try:
            module.set_attn_implementation(attention)
        except _FAULTS as error:
            raise ArgumentError(
                f"attention must be one that transformers can call here, but {attention!r} came ({_short(error)}); "
                "pass 'eager' or 'sdpa'"
            ) from None
    return module.requires_grad_(False).eval()


#: What transformers raises where a file, or a wish, is not as it should be.
_FAULTS = (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def tokenizer(words: Words) -> Any:
    """A fast tokenizer."""
    tokenizers, transformers = importlib.import_module("tokenizers"), importlib.import_module("transformers")
    pre, normal, decoders = tokenizers.pre_tokenizers, tokenizers.normalizers, tokenizers.decoders
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=words.vocabulary, merges=words.merges, unk_token=words.unknown)
    )
    if words.spaces == "bytes":
        made.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
        made.decoder = decoders.ByteLevel()
    else:
        made.normalizer = normal.Sequence([normal.NFC(), normal.Replace(" ", "▁")])
        made.pre_tokenizer = pre.Split(tokenizers.Regex(r"\n|▁*[^▁\n]+|▁+"), "isolated")
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    made.add_special_tokens([tokenizers.AddedToken(s, special=True, normalized=False) for s in words.special])
    ends = {"unk_token": words.unknown, "bos_token": words.bos, "eos_token": words.eos, "pad_token": words.pad}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, padding_side="right", **{name: token for name, token in ends.items() if token}
    )


def from_folder(path: Path, attention: str | None, pickles: bool) -> tuple[Any, Any, str]:
    """(module, tokenizer, kind) of a folder as transformers saves one."""
    transformers = importlib.import_module("transformers")
    try:
        told = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise ValueError("it is no table")
    except (OSError, ValueError) as error:
        raise fault(path, f"has no config.json that can be read ({error}); name a folder of transformers") from None
    safe = any(path.glob("*.safetensors"))
    if not safe and not pickles:
        raise fault(
            path,
            "has no .safetensors, and .bin files are pickles, which may run code; pass pickles=True (--pickles) if you trust them",
        )
    decoder = any(str(name).endswith(("CausalLM", "LMHeadModel")) for name in told.get("architectures") or ())
    maker = transformers.AutoModelForCausalLM if decoder else transformers.AutoModel
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _quiet():
            # float32 whatever the file holds: an audit and a lens look at numbers.
            module = maker.from_pretrained(str(path), use_safetensors=True if safe else None, dtype="float32", **local)
            made = transformers.AutoTokenizer.from_pretrained(str(path), use_fast=True, **local)
    except _FAULTS as error:
        raise fault(
            path, f"cannot be loaded ({_short(error)}); {DAMAGED}, or save it again with transformers"
        ) from None
    return _called_with(module, attention), made, "decoder" if decoder else "encoder"
