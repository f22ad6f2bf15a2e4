"""Small model files, written here byte by byte, and what they have to be read as."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Texts for tokenizers: two spaces, a line, digits, letters that are no ASCII, and some that are two code points.
TEXTS = (
    "Alice was beginning to get very tired of sitting by her sister on the bank",
    "  two spaces,\n\na line; 1984 — “naïve” cafe\u0301 ☂ end ",
)

LAYERS, WIDTH, HEADS, GROUPS, INNER = 2, 32, 2, 1, 32
TOKENS = ["<end>", "<start>", *(chr(c) for c in range(97, 123)), "Ġ", "th", "the"]
MERGES = ["t h", "th e"]

ABOUT: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": GROUPS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e4,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 0,
}

Block = Callable[[np.random.Generator], tuple[bytes, list[float]]]


def half(rng: np.random.Generator) -> np.float16:
    return np.float16(rng.uniform(0.001, 0.01))


def f32(rng: np.random.Generator) -> tuple[bytes, list[float]]:
    x = np.float32(rng.standard_normal())
    return struct.pack("<f", x), [float(x)]


def f16(rng: np.random.Generator) -> tuple[bytes, list[float]]:
    x = np.float16(rng.standard_normal())
    return struct.pack("<e", x), [float(x)]


def q8_0(rng: np.random.Generator) -> tuple[bytes, list[float]]:
    scale, whole = half(rng), [int(n) for n in rng.integers(-128, 128, 32)]
    return struct.pack("<e32b", scale, *whole), [float(np.float32(scale) * n) for n in whole]


def q4_1(rng: np.random.Generator) -> tuple[bytes, list[float]]:
    """Element i of the first half is the low half of byte i, element i of the second half the high one."""
    scale, lowest, whole = half(rng), half(rng), [int(n) for n in rng.integers(0, 16, 32)]
    packed = [whole[i] | whole[i + 16] << 4 for i in range(16)]
    return struct.pack("<ee16B", scale, lowest, *packed), [
        float(np.float32(scale) * n + np.float32(lowest)) for n in whole
    ]


KINDS: dict[str, tuple[int, Block]] = {"F32": (0, f32), "F16": (1, f16), "Q4_1": (3, q4_1), "Q8_0": (8, q8_0)}


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama as a .gguf file names them."""
    out: dict[str, tuple[int, ...]] = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for n in range(LAYERS):
        each = {
            "attn_norm": (WIDTH,),
            "ffn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH // HEADS * GROUPS, WIDTH),
            "attn_v": (WIDTH // HEADS * GROUPS, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }
        out |= {f"blk.{n}.{name}": shape for name, shape in each.items()}
    return {f"{name}.weight": shape for name, shape in out.items()}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    kind = 8 if isinstance(value[0], str) else 4
    items = b"".join(_value(item)[4:] for item in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + items


def gguf_file(
    path: Path,
    about: dict[str, Any] | None = None,
    tensors: dict[str, tuple[int, ...]] | None = None,
    kinds: Sequence[str] = ("F32", "F16", "Q4_1", "Q8_0"),
    numbered: int | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Write a file whose tensors take the kinds in turn; what they have to be read as. `numbered`: a lie of the type."""
    rng = np.random.default_rng(0)
    tensors = shapes() if tensors is None else tensors
    about = ABOUT if about is None else about
    answers, body, table = {}, b"", b""
    for n, (name, shape) in enumerate(tensors.items()):
        number, block = KINDS["F32" if len(shape) == 1 else kinds[n % len(kinds)]]
        parts: list[bytes] = []
        numbers: list[float] = []
        while len(numbers) < np.prod(shape):
            raw, found = block(rng)
            parts.append(raw)
            numbers += found
        answers[name] = np.array(numbers, np.float32).reshape(shape)
        body += b"\0" * (-len(body) % 32)
        table += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        table += struct.pack("<IQ", number if numbered is None else numbered, len(body))
        body += b"".join(parts)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(about))
    head += b"".join(_text(key) + _value(value) for key, value in about.items()) + table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return answers
