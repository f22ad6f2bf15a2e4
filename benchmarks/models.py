"""SmolLM2 inside transformers, on SDPA and on this engine in turns: prefill, decoding, ragged batches.

    python benchmarks/models.py --layers 3 --threads 1 --pairs 5

Only the first `--layers` layers are run, all of the model's width, and logits of the last token alone, so that a pass of
8,192 tokens takes seconds; a layer costs what it costs in the whole model. Figures are processor time, which other
programs of a busy machine do not add to, and ratios of neighbours in time: above 1, qkv is faster.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import qkv
import qkv.transformers
from qkv import models

LENGTHS = [2048, 1500, 1024, 700, 512, 300, 200, 100]


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cases", default="prefill,decode,ragged", help="which of them, and of the types, to run")
    parser.add_argument("--types", default="float32,bfloat16")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    qkv.transformers.enable()
    model = models.load("smollm2").module
    model.model.layers = model.model.layers[: given.layers]
    model.config.num_hidden_layers = given.layers
    print(f"qkv {qkv.__version__}, torch {torch.__version__}, {given.layers} layers, {given.threads} threads")
    with torch.no_grad(), qkv.threads(given.threads):
        for name in given.types.split(","):
            model = model.to(getattr(torch, name))
            for case in given.cases.split(","):
                CASES[case](model, name, given.pairs)


def prefill(model: Any, dtype: str, pairs: int) -> None:
    """A prompt alone."""
    for length in (2048, 8192):
        ids = torch.arange(length)[None] % 40000 + 100
        race(f"prefill {length} {dtype}", model, pairs, lambda ids=ids: forward(model, input_ids=ids))


def ragged(model: Any, dtype: str, pairs: int) -> None:
    """Eight prompts of unequal length in one batch, padded."""
    longest = max(LENGTHS)
    ids = torch.arange(len(LENGTHS) * longest).reshape(len(LENGTHS), longest) % 40000 + 100
    real = torch.arange(longest) < torch.tensor(LENGTHS)[:, None]
    for side, mask in (("right", real), ("left", real.flip(1))):
        words = {"input_ids": ids, "attention_mask": mask.long()}
        race(f"ragged 8 {side} {dtype}", model, pairs, lambda words=words: forward(model, **words))


def decode(model: Any, dtype: str, pairs: int) -> None:
    """Tokens behind 8,192, one at a time: each engine with the cache of transformers, and with pages."""
    from transformers import DynamicCache

    context, steps = 8192, 4
    caches = {}
    for kind, make in (("dynamic", DynamicCache), ("paged", None)):
        for engine in ("sdpa", "qkv"):
            cache = qkv.transformers.paged_cache(model.config) if make is None else make(config=model.config)
            for layer in cache.layers:
                shape = (1, model.config.num_key_value_heads, context, model.config.head_dim)
                layer.update(torch.randn(shape, dtype=model.dtype), torch.randn(shape, dtype=model.dtype), {})
            caches[kind, engine] = cache
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in caches}
    for turn in range(pairs + 1):
        for (kind, engine), cache in caches.items():
            model.set_attn_implementation(engine)
            start = time.process_time()
            for step in range(steps):
                forward(model, cache, input_ids=torch.tensor([[7 + step]]))
            if turn:  # the first warms up
                seconds[kind, engine].append((time.process_time() - start) / steps)
    base = seconds["dynamic", "sdpa"]
    for (kind, engine), taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(base, taken, strict=True))
        print(
            f"decode {context} {dtype}, {engine} with {kind}: {statistics.median(taken) * 1e3:.1f} ms, ratio {ratio:.2f}"
        )


def forward(model: Any, cache: Any = None, **words: Any) -> Any:
    """One pass, the logits of the last token."""
    if cache is not None:  # whose keyword has one name or the other, by the release
        words["cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"] = cache
    return model(**words, use_cache=cache is not None, logits_to_keep=1)


def race(name: str, model: Any, pairs: int, run: Callable[[], Any]) -> None:
    """Both engines in turns."""
    seconds: dict[str, list[float]] = {"sdpa": [], "qkv": []}
    for turn in range(pairs + 1):
        for engine, taken in seconds.items():
            model.set_attn_implementation(engine)
            start = time.process_time()
            run()
            if turn or pairs == 1:
                taken.append(time.process_time() - start)
    ratios = sorted(a / b for a, b in zip(seconds["sdpa"], seconds["qkv"], strict=True))
    middle = {engine: statistics.median(taken) for engine, taken in seconds.items()}
    print(
        f"{name}: sdpa {middle['sdpa']:.2f} s, qkv {middle['qkv']:.2f} s, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


CASES: dict[str, Callable[[Any, str, int], None]] = {"prefill": prefill, "decode": decode, "ragged": ragged}

if __name__ == "__main__":
    main()
