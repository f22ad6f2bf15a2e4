"""How long gradients take, beside torch's scaled_dot_product_attention: pairs of backward passes, one after the other.

    python benchmarks/backward.py --pairs 5 [--only width64 float32]

Wall time says what a user waits; on a machine that others use as well, processor time says more. Printed are medians, and
of the ratios the middle half; above 1 qkv is faster. Every gradient of a pair is compared with the other's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import qkv.torch

SHAPES = {"width64": (1, 16, 16, 2048, 64), "width128": (1, 32, 8, 2048, 128)}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def timed(run: Callable[..., Any], operands: list[Any], seed: Any) -> tuple[float, float, list[Any]]:
    """(wall, processor time, gradients) of one backward pass; the forward pass is not counted."""
    out = run(*operands)
    wall, work = time.perf_counter(), time.process_time()
    found = torch.autograd.grad(out, operands, seed)
    return time.perf_counter() - wall, time.process_time() - work, list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {qkv.info()!s}".splitlines()[0])
    for shape, (B, H, G, L, D) in SHAPES.items():
        for name, dtype in TYPES.items():
            if not set(arguments.only) <= {shape, name}:
                continue
            torch.manual_seed(0)
            operands = [torch.randn(B, n, L, D, dtype=dtype, requires_grad=True) for n in (H, G, G)]
            seed = torch.randn(B, H, L, D, dtype=dtype)

            def theirs(q: Any, k: Any, v: Any) -> Any:
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            def ours(q: Any, k: Any, v: Any) -> Any:
                return qkv.torch.attend(q, k, v, mask=qkv.causal())

            pairs, apart = [], 0.0
            for _ in range(arguments.pairs):
                a, b = timed(ours, operands, seed), timed(theirs, operands, seed)
                pairs.append((a, b))
                apart = max(
                    apart, *(float((x - y).abs().max() / y.abs().max()) for x, y in zip(a[2], b[2], strict=True))
                )
            for which, unit in ((0, "wall"), (1, "processor")):
                mine, other = (statistics.median(pair[side][which] for pair in pairs) for side in (0, 1))
                ratios = sorted(pair[1][which] / pair[0][which] for pair in pairs)
                quarter = len(ratios) // 4
                print(
                    f"{shape} {name} {unit}: qkv {mine:.3f} s, torch {other:.3f} s, ratio {statistics.median(ratios):.2f} "
                    f"({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})"
                )
            print(f"{shape} {name}: largest difference {apart:.2g} of the largest gradient", flush=True)


if __name__ == "__main__":
    main()
