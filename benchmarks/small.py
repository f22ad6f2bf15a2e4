"""What a small call costs beside torch's: the layer of Python, not the kernel.

    python benchmarks/small.py            1×1×2×2 of width 2, and 1×8×32² of width 64
    python benchmarks/small.py --rounds 1000

Everybody is timed in short bursts, one after the other, round by round; the share is the median over the rounds of a
burst's time over SDPA's in the same round. On a busy machine the best burst says more than the middle one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import qkv

SHAPES = (((1, 1, 2, 2), 40), ((1, 8, 32, 64), 8))  # (shape, calls in a burst)


def runs(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """The same numbers for everybody; SDPA on tensors, as its users call it."""
    import ml_dtypes
    import torch

    torch.set_num_threads(qkv.info().threads)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    tensors = tuple(torch.from_numpy(x) for x in (q, k, v))
    half = tuple(x.to(torch.bfloat16) for x in tensors)
    patterns = tuple(x.astype(ml_dtypes.bfloat16) for x in (q, k, v))
    bias, sink = np.zeros((shape[-2], shape[-2]), np.float32), np.zeros(shape[-3])
    cache = qkv.Cache().append(k, v)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "torch SDPA": lambda: sdpa(*tensors),
        "attend, NumPy": lambda: qkv.attend(q, k, v),
        "attend, torch": lambda: qkv.attend(*tensors),
        "attend, torch bfloat16": lambda: qkv.attend(*half),
        "attend, causal()": lambda: qkv.attend(q, k, v, mask=qkv.causal()),
        "attend, NumPy bfloat16": lambda: qkv.attend(*patterns),
        "attend, bias": lambda: qkv.attend(q, k, v, bias=bias),
        "attend, sink": lambda: qkv.attend(q, k, v, sink=sink),
        "attend, Cache": lambda: qkv.attend(q[..., :1, :], cache, mask=qkv.causal()),
        "attention, NumPy": lambda: qkv.attention(q, k, v),
        "attention, torch": lambda: qkv.attention(*tensors),
    }


def burst(run: Callable[[], Any], calls: int) -> float:
    """Seconds a call."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    for shape, calls in SHAPES:
        everybody = runs(shape)
        times: dict[str, list[float]] = {name: [] for name in everybody}
        for _ in range(rounds):
            for name, run in everybody.items():
                times[name].append(burst(run, calls))
        print("×".join(map(str, shape)))
        for name, found in times.items():
            share = statistics.median(a / b for a, b in zip(found, times["torch SDPA"], strict=True))
            best = min(found) / min(times["torch SDPA"])
            print(
                f"  {name:24} {statistics.median(found) * 1e6:8.1f} µs, best {min(found) * 1e6:7.1f}"
                f"   {share:6.2f} of SDPA's time, {best:5.2f} of its best"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
