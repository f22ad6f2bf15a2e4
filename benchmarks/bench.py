"""How fast qkv is beside its peers, measured so that the answer can be believed.

Machines are shared and drift by tens of percent within minutes, so a time alone says little. Every peer is timed in
pairs with qkv, one right after the other in one process and in alternating order; what is reported is the median of
the pairs' ratios and the middle half of them. Results count only if they are right: sampled rows of everybody are held
against the definition and its derived bound (clause F2).

    python benchmarks/bench.py                      the table, and build/bench.json
    python benchmarks/bench.py --only causal --seconds 10
    QKV_NUM_THREADS=1 python benchmarks/bench.py    one thread, torch as well

To add a shape, add a line to SHAPES; to add a peer, write a function that gives a function, and add it to PEERS.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.bounds import bound

Array = Any
Run = Callable[[], Array]

GAP = 0.1  # seconds after a library whose threads spin on for a while
FEWEST, MOST = 3, 200  # pairs
PATIENCE = 4  # times the seconds asked for, after which fewer pairs have to do
LARGEST = 2**29  # bytes of a dense score matrix; above, the plain formula goes head by head


@dataclass(frozen=True)
class Shape:
    """One problem: query (1, heads, queries, width), key and value (1, key_heads, keys, width)."""

    name: str
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    window: int | None = None
    dtype: str = "float32"

    def allowed(self, rows: Array) -> Array:
        """The dense mask of some rows, (rows, keys)."""
        place, key = rows[:, None] + self.keys - self.queries, np.arange(self.keys)
        seen = np.ones((len(rows), self.keys), bool)
        if self.causal:
            seen &= key <= place
        if self.window is not None:
            seen &= key > place - self.window
        return seen

    @property
    def pairs(self) -> int:
        """Query-key pairs of one head that the mask allows."""
        return sum(
            int(self.allowed(rows).sum()) for rows in np.array_split(np.arange(self.queries), 1 + self.queries // 512)
        )

    @property
    def work(self) -> int:
        """Useful floating-point operations: a multiplication and an addition for score and mixture of each pair."""
        return 4 * self.width * self.pairs * self.heads

    def mask(self) -> qkv.Mask | None:
        """The mask as qkv spells it."""
        masks = [qkv.causal()] if self.causal else []
        if self.window is not None:
            masks.append(qkv.window(self.window - 1, 0))
        return masks[0] & masks[1] if len(masks) == 2 else masks[0] if masks else None


SHAPES = (
    Shape("full 16 × 1024²", 16, 16, 1024, 1024, 64),
    Shape("causal 16 × 1024²", 16, 16, 1024, 1024, 64, causal=True),
    Shape("window 256 of 16 × 8192²", 16, 16, 8192, 8192, 64, causal=True, window=256),
    Shape("decode 32/8 × 8192", 32, 8, 1, 8192, 128),
)


@dataclass(frozen=True)
class Inputs:
    """The same random numbers for everybody."""

    query: Array
    key: Array
    value: Array


def inputs(shape: Shape) -> Inputs:
    """Standard normal, as layers with normalisation roughly have them."""
    rng = np.random.default_rng(0)

    def draw(heads: int, length: int) -> Array:
        return rng.standard_normal((1, heads, length, shape.width)).astype(shape.dtype)

    return Inputs(
        draw(shape.heads, shape.queries), draw(shape.key_heads, shape.keys), draw(shape.key_heads, shape.keys)
    )


# The peers. Each gets a shape and its inputs, prepares what its users would prepare once, and gives a function that
# computes the output; or None where it has nothing of its own to say about that shape.


def qkv_native(shape: Shape, x: Inputs) -> Run | None:
    mask = shape.mask()
    return lambda: qkv.attend(x.query, x.key, x.value, mask=mask)


def qkv_numpy(shape: Shape, x: Inputs) -> Run | None:
    def run() -> Array:
        with _engine("numpy"):
            return qkv.attend(x.query, x.key, x.value, mask=mask)

    mask = shape.mask()
    return run


def numpy_formula(shape: Shape, x: Inputs) -> Run | None:
    """softmax(q·kᵀ/√D)·v as one writes it down, head by head where the matrix would be huge."""
    share = shape.heads // shape.key_heads
    query = x.query.reshape(shape.key_heads, share, shape.queries, shape.width)
    key, value = x.key[0][:, None].swapaxes(-1, -2), x.value[0][:, None]
    plain = not shape.causal and shape.window is None
    seen = None if plain else shape.allowed(np.arange(shape.queries))
    scale = query.dtype.type(shape.width**-0.5)
    size = shape.heads * shape.queries * shape.keys * query.itemsize
    steps = [slice(g, g + 1) for g in range(shape.key_heads)] if size > LARGEST else [slice(None)]

    def run() -> Array:
        parts = []
        for at in steps:
            score = (query[at] * scale) @ key[at]
            if seen is not None:
                score = np.where(seen, score, -np.inf)
            score -= score.max(-1, keepdims=True)
            weight = np.exp(score, out=score)
            weight /= weight.sum(-1, keepdims=True)
            parts.append(weight @ value[at])
        return np.concatenate(parts).reshape(x.query.shape)

    return run


def torch_sdpa(shape: Shape, x: Inputs) -> Run | None:
    """The call its users make: is_causal where that says it, else a boolean mask."""
    torch = _torch()
    if torch is None:
        return None
    q, k, v = (torch.from_numpy(a) for a in (x.query, x.key, x.value))
    options: dict[str, Any] = {"enable_gqa": shape.heads != shape.key_heads}
    if shape.window is not None:
        options["attn_mask"] = torch.from_numpy(shape.allowed(np.arange(shape.queries)))
    else:
        options["is_causal"] = shape.causal and shape.queries == shape.keys
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).numpy()


def torch_slices(shape: Shape, x: Inputs) -> Run | None:
    """A window by hand: slices of as many rows as the window, each with the keys that it can reach."""
    torch = _torch()
    if torch is None or shape.window is None or shape.queries != shape.keys:
        return None
    q, k, v = (torch.from_numpy(a) for a in (x.query, x.key, x.value))
    cuts = []
    for start in range(0, shape.queries, shape.window):
        stop, first = min(start + shape.window, shape.queries), max(start - shape.window + 1, 0)
        seen = torch.from_numpy(shape.allowed(np.arange(start, stop))[:, first:stop].copy())
        cuts.append((slice(start, stop), slice(first, stop), seen))
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def run() -> Array:
        parts = [sdpa(q[:, :, rows], k[:, :, cols], v[:, :, cols], attn_mask=seen) for rows, cols, seen in cuts]
        return torch.cat(parts, dim=2).numpy()

    return run


def torch_fold(shape: Shape, x: Inputs) -> Run | None:
    """Decoding with grouped heads by hand: the heads of a group as rows of one query, so that keys are read once."""
    torch = _torch()
    if torch is None or shape.queries != 1 or shape.heads == shape.key_heads:
        return None
    q, k, v = (torch.from_numpy(a) for a in (x.query, x.key, x.value))
    folded = q.reshape(1, shape.key_heads, shape.heads // shape.key_heads, shape.width)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return lambda: sdpa(folded, k, v).reshape(q.shape).numpy()


PEERS: dict[str, Callable[[Shape, Inputs], Run | None]] = {
    "qkv, NumPy engine": qkv_numpy,
    "NumPy formula": numpy_formula,
    "torch SDPA": torch_sdpa,
    "torch SDPA, sliced": torch_slices,
    "torch SDPA, folded": torch_fold,
}


@contextlib.contextmanager
def _engine(name: str) -> Iterator[None]:
    before = os.environ.get("QKV_ENGINE")
    os.environ["QKV_ENGINE"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["QKV_ENGINE"]
        else:
            os.environ["QKV_ENGINE"] = before


def _torch() -> Any:
    """torch with as many threads as qkv, or None."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(qkv.info().threads)
    return torch


@dataclass(frozen=True)
class Race:
    """One peer against qkv on one shape; times are medians in seconds.

    Attributes:
        ratio: time of the peer over time of qkv, median of the pairs: above 1, qkv is faster. low, high: the middle half.
        error, own_error: the largest error of the peer and of qkv on the sampled rows, as a part of the derived bound.
        interrupted: involuntary context switches meanwhile; many say that the machine was busy.
    """

    shape: str
    peer: str
    pairs: int
    own_time: float
    peer_time: float
    own_rate: float
    peer_rate: float
    ratio: float
    low: float
    high: float
    own_error: float
    error: float
    interrupted: int


class Judge:
    """The right answer of some rows, and how far from it a result may lie."""

    def __init__(self, shape: Shape, x: Inputs) -> None:
        rng = np.random.default_rng(1)
        last = shape.queries - 1
        self.rows = np.unique([0, last, *rng.integers(0, shape.queries, 6)])
        seen = shape.allowed(self.rows)
        self.truth = bound(x.query[:, :, self.rows], x.key, x.value, shape.dtype, allowed=seen)

    def error(self, result: Array) -> float:
        """The largest error as a part of its bound."""
        off = abs(np.asarray(result)[:, :, self.rows].astype(np.float64) - self.truth.answer.output)
        return float((off / self.truth.output).max())


def race(shape: Shape, name: str, own: Run, peer: Run, judge: Judge, seconds: float) -> Race:
    """Time two functions in pairs."""
    errors = judge.error(own()), judge.error(peer())
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while (
        not pairs
        or (spent := time.perf_counter() - start) < seconds
        or (len(pairs) < FEWEST and spent < PATIENCE * seconds)
    ):
        if len(pairs) == MOST:
            break
        # Whoever comes second finds warmer caches or a busier machine, so they take turns.
        order = (own, peer) if len(pairs) % 2 == 0 else (peer, own)
        first, second = (_timed(run) for run in order)
        pairs.append((first, second) if order[0] is own else (second, first))
    ratios = sorted(b / a for a, b in pairs)
    own_time, peer_time = (statistics.median(column) for column in zip(*pairs, strict=True))
    quarter = len(ratios) // 4
    return Race(
        shape=shape.name,
        peer=name,
        pairs=len(pairs),
        own_time=own_time,
        peer_time=peer_time,
        own_rate=shape.work / own_time,
        peer_rate=shape.work / peer_time,
        ratio=statistics.median(ratios),
        low=ratios[quarter],
        high=ratios[-1 - quarter],
        own_error=errors[0],
        error=errors[1],
        interrupted=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches,
    )


def _timed(run: Run) -> float:
    time.sleep(GAP)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    """What somebody needs to know to compare with the numbers of another machine."""
    facts = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "load": [round(number, 2) for number in os.getloadavg()],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"],
        "qkv": qkv.info().to_dict(),
    }
    torch = _torch()
    if torch is not None:
        facts["torch"] = {"version": torch.__version__, "threads": torch.get_num_threads()}
    return facts


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> int:
    """Run the races, print a table, write the JSON; 1 if a result of qkv is wrong."""
    parser = argparse.ArgumentParser(description="Speed of qkv beside its peers, in interleaved pairs.")
    parser.add_argument("--only", metavar="TEXT", default="", help="only shapes whose name holds this")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each peer on each shape (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="the JSON file")
    options = parser.parse_args()
    facts = machine()
    print(f"{facts['processor']}, {facts['processors']} processors, load {facts['load'][0]}")
    print(qkv.info())
    print(
        "ratio: time of the peer over time of qkv, median of interleaved pairs and their middle half; above 1, qkv is faster"
    )
    print("error: the largest on sampled rows, as a part of its derived bound (qkv's in brackets)\n")
    line = "{:<26} {:<20} {:>9} {:>9} {:>7} {:>7} {:>7}  {:<13} {:>12}"
    print(line.format("shape", "peer", "qkv", "peer", "GF/s", "GF/s", "ratio", "middle half", "error"))
    races = []
    for shape in (shape for shape in SHAPES if options.only in shape.name):
        x = inputs(shape)
        judge, own = Judge(shape, x), qkv_native(shape, x)
        for name, prepare in PEERS.items():
            peer = prepare(shape, x)
            if own is None or peer is None:
                continue
            r = race(shape, name, own, peer, judge, options.seconds)
            races.append(r)
            spread, error = f"{r.low:.2f}…{r.high:.2f}", f"{r.error:.3f} ({r.own_error:.3f})"
            times = (f"{1e3 * t:.2f} ms" for t in (r.own_time, r.peer_time))
            rates = (f"{rate / 1e9:.1f}" for rate in (r.own_rate, r.peer_rate))
            print(line.format(r.shape, r.peer, *times, *rates, f"{r.ratio:.2f}", spread, error), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts, "races": [asdict(r) for r in races]}, indent=1) + "\n")
    print(f"\nwritten: {options.out}")
    wrong = [r for r in races if not r.own_error <= 1]
    for r in wrong:
        print(f"qkv is wrong on {r.shape}: {r.own_error:.2f} of the bound", file=sys.stderr)
    for r in races:
        if not r.error <= 1:
            print(f"note: {r.peer} lies outside the bound on {r.shape}: {r.error:.2f} of it", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
