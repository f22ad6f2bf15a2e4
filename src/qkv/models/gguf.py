"""`.gguf` files: a header of key and value, then tensors in blocks, mapped into memory and widened when asked for.

The layout is the one that ggml documents (docs/gguf.md of ggml-org/ggml). A stranger's file is never trusted: what it
declares is held against what it has.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.errors import FileError

from .faults import DAMAGED, fault
from .rope import adjacent_to_halves
from .words import Words

__all__ = ["Gguf", "opened"]

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

Floats = npt.NDArray[np.float32]


def _plain(dtype: str) -> Any:
    return lambda raw: raw.view(dtype).astype(np.float32)


def _q8_0(raw: npt.NDArray[np.uint8]) -> Floats:
    """Blocks of 32: a scale in float16, then 32 whole numbers of 8 bits."""
    blocks = raw.reshape(-1, 34)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return np.asarray(blocks[:, 2:].view(np.int8) * scale, np.float32)


def _q4_1(raw: npt.NDArray[np.uint8]) -> Floats:
    """Blocks of 32: a scale and a lowest value in float16, then the low halves of 16 bytes and the high ones."""
    blocks = raw.reshape(-1, 20)
    scale, lowest = np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32).T[..., None]
    out = np.empty((len(blocks), 32), np.float32)
    out[:, :16] = blocks[:, 4:] & 15
    out[:, 16:] = blocks[:, 4:] >> 4
    out *= scale
    out += lowest
    return out


#: Number of the type -> (its name, elements a block, bytes a block, how it is widened).
_TYPES = {
    0: ("F32", 1, 4, _plain("<f4")),
    1: ("F16", 1, 2, _plain("<f2")),
    3: ("Q4_1", 32, 20, _q4_1),
    8: ("Q8_0", 32, 34, _q8_0),
}


class Gguf:
    """A mapped file.

    Attributes:
        about: its key and value pairs. tensors: name -> (shape as in NumPy, number of its type, offset in the file).
    """

    def __init__(self, path: Path, held: mmap.mmap) -> None:
        self.path, self._held, self._at = path, held, 0
        try:
            self._header()
        except (struct.error, UnicodeDecodeError, KeyError, RecursionError) as error:
            raise fault(path, f"is not a sound .gguf file ({type(error).__name__}); {DAMAGED}") from None

    def _header(self) -> None:
        if self._held[:4] != b"GGUF":
            raise fault(self.path, f"does not begin as a .gguf file does; {DAMAGED}")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise fault(self.path, f"is a .gguf file of version {version}, and 2 and 3 are read; convert it again")
        tensors, pairs = self._number("Q"), self._number("Q")
        self.about: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._text()
            self.about[key] = self._value(self._number("I"))
        declared = [self._declared() for _ in range(tensors)]
        step = int(self.about.get("general.alignment", 32))
        start = -(-self._at // step) * step if step > 0 else self._at
        self.tensors = {name: (shape, kind, start + offset) for name, shape, kind, offset in declared}

    def _declared(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        sizes = [self._number("Q") for _ in range(self._number("I"))]
        # The fastest axis comes first in the file.
        return name, tuple(reversed(sizes)), self._number("I"), self._number("Q")

    def _number(self, code: str) -> Any:
        (found,) = struct.unpack_from("<" + code, self._held, self._at)
        self._at += struct.calcsize("<" + code)
        return found

    def _text(self) -> str:
        size = self._number("Q")
        if size > len(self._held) - self._at:
            raise fault(self.path, f"declares a text of {size} bytes, more than it has; {DAMAGED}")
        self._at += size
        return self._held[self._at - size : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            inner = self._number("I")
            return [self._value(inner) for _ in range(self._number("Q"))]
        return self._number(_NUMBERS[kind])

    def tensor(self, name: str) -> Floats:
        """A tensor in float32."""
        if name not in self.tensors:
            raise fault(self.path, f"has no tensor {name!r}, which a Llama needs; {DAMAGED}")
        shape, kind, offset = self.tensors[name]
        if kind not in _TYPES:
            known = ", ".join(t[0] for t in _TYPES.values())
            raise fault(
                self.path, f"holds {name!r} in the type number {kind}, and {known} are read; quantise it as one of them"
            )
        _, elements, size, widen = _TYPES[kind]
        count = math.prod(shape)
        nbytes = count // elements * size
        if count % elements or offset + nbytes > len(self._held):
            raise fault(self.path, f"declares {name!r} as {shape}, more than it has; {DAMAGED}")
        raw = np.frombuffer(self._held, np.uint8, nbytes, offset)
        return np.asarray(widen(raw), np.float32).reshape(shape)

    def _told(self, key: str, default: Any = None) -> Any:
        found = self.about.get(key, default)
        if found is None:
            raise fault(self.path, f"does not say {key}, which a Llama needs; {DAMAGED}")
        return found

    def _count(self, key: str, default: int | None = None) -> int:
        found = self._told(f"llama.{key}", default)
        if not isinstance(found, int) or found < 1:
            raise fault(self.path, f"says {found!r} for llama.{key}, and one whole number is read; load it as a folder")
        return found

    def config(self) -> dict[str, Any]:
        """Its configuration in the names of transformers' Llama."""
        kind = self.about.get("general.architecture")
        if kind != "llama":
            raise fault(self.path, f"holds a model of the kind {kind!r}, and 'llama' is read; load it as a folder")
        scaled = [key for key in self.about if key.startswith("llama.rope.scaling")]
        if scaled or "rope_freqs.weight" in self.tensors:
            raise fault(self.path, "scales its rotary positions, which is not read here; load it as a folder")
        heads, width = self._count("attention.head_count"), self._count("embedding_length")
        return {
            "vocab_size": len(self._told("tokenizer.ggml.tokens")),
            "hidden_size": width,
            "intermediate_size": self._count("feed_forward_length"),
            "num_hidden_layers": self._count("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._count("attention.head_count_kv", heads),
            "head_dim": self._count("attention.key_length", width // heads),
            "max_position_embeddings": self._count("context_length"),
            "rms_norm_eps": self._told("llama.attention.layer_norm_rms_epsilon"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self._told("llama.rope.freq_base", 10000.0),
            },
            "tie_word_embeddings": "output.weight" not in self.tensors,
            **{f"{name}_token_id": self.about.get(f"tokenizer.ggml.{key}_token_id") for name, key in _ENDS.items()},
        }

    def weights(self) -> dict[str, Floats]:
        """Its weights in the names, and the order of rotary pairs, of transformers' Llama."""
        heads = {"attn_q": self._count("attention.head_count")}
        heads["attn_k"] = self._count("attention.head_count_kv", heads["attn_q"])
        out = {}
        for name in self.tensors:
            parts = name.split(".")
            if len(parts) == 2 and parts[0] in _OUTER and parts[1] == "weight":
                out[f"{_OUTER[parts[0]]}.weight"] = self.tensor(name)
            elif len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER and parts[3] == "weight":
                weight = self.tensor(name)
                if parts[2] in heads:
                    weight = adjacent_to_halves(weight, heads[parts[2]])
                out[f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"] = weight
            else:
                raise fault(self.path, f"holds a tensor {name!r}, which no Llama has; load it as a folder")
        return out

    def words(self) -> Words:
        """Its tokenizer."""
        kind, cut = self.about.get("tokenizer.ggml.model"), self.about.get("tokenizer.ggml.pre")
        if (kind, cut) != ("gpt2", "smollm"):
            raise fault(
                self.path,
                f"has a tokenizer of the kind {kind!r}, {cut!r}, and 'gpt2', 'smollm' is read; load it as a folder",
            )
        tokens = self._told("tokenizer.ggml.tokens")
        merges = [(a, b) for a, _, b in (m.partition(" ") for m in self._told("tokenizer.ggml.merges"))]
        kinds = self.about.get("tokenizer.ggml.token_type") or [1] * len(tokens)
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        ends = {name: self._token(tokens, key) for name, key in {**_ENDS, "unknown": "unknown"}.items()}
        return Words({token: i for i, token in enumerate(tokens)}, merges, "bytes", special, **ends)

    def _token(self, tokens: list[str], key: str) -> str | None:
        number = self.about.get(f"tokenizer.ggml.{key}_token_id")
        return None if number is None else tokens[number]


_ENDS = {"bos": "bos", "eos": "eos", "pad": "padding"}
_CONTROL = 3


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Gguf]:
    """The file, mapped for as long as it is needed."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as held:
            yield Gguf(path, held)
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise fault(path, f"cannot be read ({error}); {DAMAGED}") from None
