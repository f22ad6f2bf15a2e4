"""`.npz` files of glassllm 0.1.0 (MIT): a decoder whose weights fit a Llama once they are renamed.

Its matrices are (in, out) and its rotary pairs adjacent; the head is the embedding again.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.files import read_tensors

from .faults import DAMAGED, fault
from .rope import adjacent_to_halves
from .words import Words

__all__ = ["read", "words"]

_CONFIG = "__config__"
_LAYER = {
    "norm1.gamma": "input_layernorm",
    "norm2.gamma": "post_attention_layernorm",
    "attn.W_Q": "self_attn.q_proj",
    "attn.W_K": "self_attn.k_proj",
    "attn.W_V": "self_attn.v_proj",
    "attn.W_O": "self_attn.o_proj",
    "ffn.W1": "mlp.gate_proj",
    "ffn.W3": "mlp.up_proj",
    "ffn.W2": "mlp.down_proj",
}
_SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>"]


def read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
    """(the configuration, the weights), both in the names of transformers' Llama."""
    names, told = _told(path)
    tensors = read_tensors(path, names=names)
    try:
        heads, groups = int(told["n_heads"]), int(told["n_kv_heads"])
        config = {
            "vocab_size": told["vocab_size"],
            "hidden_size": told["d_model"],
            "intermediate_size": int(8 * told["d_model"] / 3),
            "num_hidden_layers": told["n_layers"],
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "max_position_embeddings": told["max_len"],
            "rms_norm_eps": told["eps"],
            "rope_parameters": {"rope_type": "default", "rope_theta": told["rope_base"]},
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 3,
        }
        weights = {_name(name): np.asarray(tensors[name].array, np.float32) for name in names}
        for name in list(weights):
            if weights[name].ndim == 2 and "embed" not in name:
                weights[name] = np.ascontiguousarray(weights[name].T)
            if "q_proj" in name or "k_proj" in name:
                weights[name] = adjacent_to_halves(weights[name], heads if "q_proj" in name else groups)
    except (KeyError, TypeError, ValueError) as error:
        raise fault(path, f"does not hold a model of glassllm ({type(error).__name__}: {error}); {DAMAGED}") from None
    return config, weights


def _told(path: Path) -> tuple[list[str], dict[str, Any]]:
    """(the names of its tensors, its configuration)."""
    try:
        with zipfile.ZipFile(path) as parts:
            sizes = {part.filename.removesuffix(".npy"): part.file_size for part in parts.infolist()}
        # A page of JSON; more than that is no configuration.
        if sizes.get(_CONFIG, 1 << 16) >= 1 << 16:
            raise ValueError(f"it has no {_CONFIG}")
        with np.load(path, allow_pickle=False) as file:
            told = json.loads(str(file[_CONFIG]))
        if not isinstance(told, dict):
            raise ValueError("its configuration is no table")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise fault(path, f"is not an .npz file of glassllm ({error}); {DAMAGED}") from None
    return [name for name in sizes if name != _CONFIG], told


def _name(name: str) -> str:
    if name == "E":
        return "model.embed_tokens.weight"
    if name == "norm_f.gamma":
        return "model.norm.weight"
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{int(layer)}.{_LAYER[rest]}.weight"


def words(path: Path) -> Words:
    """The tokenizer beside the weights: characters, then pairs of them."""
    beside = path.with_suffix(".tokenizer.json")
    try:
        told = json.loads(beside.read_text(encoding="utf-8"))
        merges = [(str(a), str(b)) for a, b in told["merges"]]
        tokens = [*_SPECIAL, *map(str, told["alphabet"]), *(a + b for a, b in merges)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fault(beside, f"is not a tokenizer of glassllm ({type(error).__name__}: {error}); {DAMAGED}") from None
    # Of two tokens of one text the later has the number, as in glassllm.
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return Words(vocabulary, merges, "marked", _SPECIAL, "<unk>", "<bos>", "<eos>", "<pad>")
