"""How fast qkv is beside its peers, measured so that the answer can be believed.

Results count only if they are right: sampled rows of everybody are held against the definition and its derived bound
(clause F2). Rates count the operations that the mask asks for, and stand beside what the machine did at best in the same
run: a large matrix product, or for decoding a plain read.

    python benchmarks/bench.py                       every shape and peer that is there; the table, and build/bench.json
    python benchmarks/bench.py --shape causal --peer SDPA --seconds 10
    python benchmarks/bench.py --level v3            qkv at that level, and torch held to the same instructions
    python benchmarks/page.py build/bench*.json      docs/performance.md and its chart, from what was written

To add a shape, add a line to `shapes.py`; to add a peer, write a function that gives a function, in `peers/`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ceilings
import machine
import qkv
from judge import Judge
from peers import OWN, PEERS
from race import extra_memory, race
from shapes import SHAPES, Shape, inputs


def held_to(level: str) -> None:
    """Start again with everybody held to a level: libraries look at the environment once."""
    wanted = {"QKV_ISA": level, **machine.HELD.get(level, {})}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def run_shape(shape: Shape, names: list[str], best: ceilings.Ceilings, seconds: float) -> list[dict[str, Any]]:
    """All races on one shape; prints a line for each."""
    x = inputs(shape)
    own = OWN(shape, x)
    assert own is not None
    judge = Judge(shape, x)
    own_memory, own_error = extra_memory(own), judge(own())
    ceiling = best.reading if shape.queries == 1 else best.product[shape.dtype]
    amount = shape.key_bytes if shape.queries == 1 else shape.work
    print(f"\n{shape.label}   (extra memory of qkv: {_megabytes(own_memory)})")
    found: list[dict[str, Any]] = []
    for name in names:
        peer = PEERS[name](shape, x)
        if peer is None:
            continue
        memory, error = extra_memory(peer), judge(peer())
        times = race(own, peer, seconds)
        row = {
            "shape": shape.name,
            "dtype": shape.dtype,
            "peer": name,
            **asdict(times),
            "useful": amount,
            "unit": "B/s" if shape.queries == 1 else "op/s",
            "ceiling": ceiling,
            "own_error": asdict(own_error),
            "error": asdict(error),
            "own_memory": own_memory,
            "memory": memory,
        }
        found.append(row)
        print(line(row), flush=True)
        del peer
        gc.collect()
    return found


def line(row: dict[str, Any]) -> str:
    """One race as text."""
    rates = [row["useful"] / row[who] / 1e9 for who in ("own_time", "peer_time")]
    share = 100 * row["useful"] / row["own_time"] / row["ceiling"]
    mean = row["own_error"]["mean"] / row["error"]["mean"] if row["error"]["mean"] else float("nan")
    largest = row["own_error"]["largest"] / row["error"]["largest"] if row["error"]["largest"] else float("nan")
    middle = f"{row['low']:.2f}…{row['high']:.2f}"
    return (
        f"  {row['peer']:<26} {row['ratio']:>7.2f}  {middle:<13} {1e3 * row['own_time']:>9.3f}"
        f" {1e3 * row['peer_time']:>9.3f} {rates[0]:>7.1f} {rates[1]:>7.1f} {share:>5.0f} % {mean:>6.2f} {largest:>6.2f}"
        f" {_megabytes(row['memory']):>9}"
    )


HEAD = (
    f"  {'peer':<26} {'ratio':>7}  {'middle half':<13} {'qkv ms':>9} {'peer ms':>9} {'G/s':>7} {'G/s':>7} {'share':>7}"
    f" {'mean':>6} {'max':>6} {'memory':>9}"
)


def _megabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**20:.1f} MB"


def _seconds(text: str) -> float:
    """A time that is one."""
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 was expected, not {text}")
    return seconds


def main() -> int:
    """Run the races, print a table, write the JSON; 1 if a result of qkv is wrong."""
    parser = argparse.ArgumentParser(description="Speed of qkv beside its peers, in interleaved pairs.")
    parser.add_argument("--shape", metavar="TEXT", default="", help="only shapes whose name and dtype hold this")
    parser.add_argument("--peer", metavar="TEXT", default="", help="only peers whose name holds this")
    parser.add_argument("--dtype", metavar="NAME", default="", help="only float32, bfloat16 or float16")
    parser.add_argument("--level", metavar="ISA", default="", help="hold qkv and torch to v3 (AVX2) or v4 (AVX-512)")
    parser.add_argument("--seconds", type=_seconds, default=3.0, help="time for each peer on each shape (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="the JSON file")
    options = parser.parse_args()
    shapes = [s for s in SHAPES if options.shape in s.label and options.dtype in ("", s.dtype)]
    names = [name for name in PEERS if options.peer.lower() in name.lower()]
    if not shapes or not names:
        what, known = ("shape", [s.label for s in SHAPES]) if not shapes else ("peer", list(PEERS))
        print(f"no {what} is called like that; there are: {'; '.join(known)}", file=sys.stderr)
        return 2
    known_levels = qkv.info().levels
    if options.level and options.level not in known_levels:
        print(
            f"--level must be one of {', '.join(known_levels)} on this machine, not {options.level!r}", file=sys.stderr
        )
        return 2
    if options.level:
        held_to(options.level)
    machine.threads_of_torch()
    facts, best = machine.facts(), ceilings.measure()
    print(f"{facts['processor']}, {facts['processors']} processors, load {facts['load'][0]}, {qkv.info()}")
    for dtype, rate in best.product.items():
        print(f"ceiling: a matrix product in {dtype} {rate / 1e9:.0f} G/s")
    print(f"ceiling: a plain read {best.reading / 1e9:.1f} GB/s")
    print("ratio: time of the peer over time of qkv, median of interleaved pairs; above 1, qkv is faster")
    print("G/s: useful operations of qkv and peer, for decoding bytes of keys and values; share: of the ceiling, qkv")
    print("mean, max: error of qkv over error of the peer, against float64; memory: of the peer, beyond its result\n")
    print(HEAD)
    races: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for shape in shapes:
            races += run_shape(shape, names, best, options.seconds)
            record = {"machine": facts, "ceilings": asdict(best), "races": races}
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    except KeyboardInterrupt:
        print("\ninterrupted; what was measured so far is kept", file=sys.stderr)
    print(f"\nwritten: {options.out}")
    wrong = {f"qkv is wrong on {r['shape']}, {r['dtype']}: {r['own_error']['share']:.2f} of the bound" for r in races
             if not r["own_error"]["share"] <= 1}  # fmt: skip
    for text in sorted(wrong):
        print(text, file=sys.stderr)
    for r in races:
        if not r["error"]["share"] <= 1:
            share = f"{r['error']['share']:.2f}"
            print(
                f"note: {r['peer']} lies outside the bound on {r['shape']}, {r['dtype']}: {share} of it",
                file=sys.stderr,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
