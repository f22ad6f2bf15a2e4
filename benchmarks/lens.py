"""What it costs to reduce one captured layer: seconds of the wall clock and of processors, and the most memory held.

The layer is made of random numbers, causal; its text of words drawn as texts draw them, few of them often.

    python benchmarks/lens.py --tokens 8192 --heads 9 --groups 3          a layer of SmolLM2's size
    python benchmarks/lens.py --tokens 100000                             32 query heads on 8 key heads of 64
    python benchmarks/lens.py --tokens 8192 --heads 9 --groups 3 --maps   pooled maps alone, as a page asks for them
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time

import numpy as np

from qkv.lens.layer import Layer, Projection
from qkv.lens.reads import interval_reads
from qkv.lens.summary import reduce


def made(tokens: int, heads: int, groups: int, width: int) -> tuple[Layer, list[str]]:
    """A layer and the tokens of its text."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, h, tokens, width), dtype=np.float32) for h in (heads, groups, groups))
    at = np.arange(tokens)
    layer = Layer(
        name="made",
        index=0,
        query=q,
        key=k,
        value=v,
        heads=np.arange(heads),
        groups=np.arange(heads) // (heads // groups),
        rows=at,
        positions=at,
        reads=interval_reads(at[None], causal=True, left=None, exists=None, keys=tokens),
        bias=None,
        scale=width**-0.5,
        softcap=None,
        sink=None,
        projection=Projection(rng.standard_normal((heads, width, 256), dtype=np.float32), None, None),
    )
    return layer, [str(n) for n in np.minimum(rng.zipf(1.2, tokens), 50_000)]


def peak() -> float:
    """The most memory this process has ever held, in GiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 8192), ("heads", 32), ("groups", 8), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--maps", action="store_true", help="pooled maps of 66 × 66 cells alone")
    given = parser.parse_args()
    layer, tokens = made(given.tokens, given.heads, given.groups, given.width)
    print(
        f"{given.tokens:,} tokens, {given.heads} heads on {given.groups} of {given.width}; made: {peak():.2f} GiB",
        flush=True,
    )
    done = threading.Event()
    wall, processors = time.perf_counter(), time.process_time()

    def spent() -> str:
        return f"{time.perf_counter() - wall:.2f} s, {time.process_time() - processors:.2f} s of processors, at most {peak():.2f} GiB"

    def tell() -> None:
        while not done.wait(60):
            print(f"at work: {spent()}", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    if given.maps:
        layer.pooled(66, 66)
        print(f"maps: {spent()}")
    else:
        kept = reduce(layer, np.array([given.tokens - 1]), tokens)
        print(
            f"summary, maps of 96 × 96 and the last row of every head: {spent()}; {kept.nbytes / 2**20:.1f} MiB are kept"
        )
    done.set()


if __name__ == "__main__":
    main()
