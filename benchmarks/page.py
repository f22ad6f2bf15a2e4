"""docs/performance.md and its charts, from the files that bench.py wrote. Nothing is measured here.

python benchmarks/page.py build/bench-v4.json build/bench-v3.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from chart import chart

DOCS = Path(__file__).parents[1] / "docs"
MAIN = ("torch SDPA", "torch SDPA, sliced", "torch SDPA, loop", "torch SDPA, folded", "torch Flex, compiled", "vLLM")

HEAD = """# Performance

Written by `benchmarks/page.py` from what `make bench` measured; how it measures stands in
[bench.py](../benchmarks/bench.py) and [race.py](../benchmarks/race.py). Ratios are the time of the peer over the time of
qkv, medians of interleaved pairs in one process with the middle half of them in brackets: above 1, qkv is faster. The two
times are medians by themselves, so where they scatter they need not divide to the ratio. *Share* is qkv's rate as a part of
a large matrix product's by torch in the same run, for decoding of a plain read by all threads; neither is the most
that the processor could do, so a row may pass it. *Error* is
qkv's mean and largest error over the peer's, against float64 on sampled rows: below 1, qkv is nearer. *Memory* is what a
first call takes beyond its result, qkv's and the peer's. What bounds the rows that fall short, and what was tried, stands in
[log.md](log.md).
"""


def section(record: dict[str, Any], picture: str) -> str:
    """One machine at one level."""
    m, best = record["machine"], record["ceilings"]
    level = m["qkv"]["level"] or "no native engine"
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    products = ", ".join(f"{name} {rate / 1e9:.0f} G/s" for name, rate in best["product"].items() if name != "float16")
    held = " torch and its libraries were held to the same instructions." if m["held"] else ""
    lines = [
        f"## {m['processor']}, instruction set {level}",
        "",
        f"{m['processors']} processors with {', '.join(m['instructions'])}; {m['qkv']['threads']} threads each; {versions}; "
        f"load {m['load'][0]} at the start.{held} At best: a matrix product {products}; a plain read "
        f"{best['reading'] / 1e9:.1f} GB/s.",
        "",
        f"![Ratios of the peers' times to qkv's at {level}]({picture})",
        "",
        "| shape | peer | ratio | qkv | peer | share | error | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in record["races"]:
        own, peer = r["own_error"], r["error"]
        error = " / ".join(f"{own[k] / peer[k]:.2f}" if peer[k] else "" for k in ("mean", "largest"))
        wrong = "" if peer["share"] <= 1 else " †"
        memory = " / ".join("?" if x is None else f"{x / 2**20:.0f}" for x in (r["own_memory"], r["memory"]))
        lines.append(
            f"| {r['shape']}, {r['dtype']} | {r['peer']}{wrong} | **{r['ratio']:.2f}** ({r['low']:.2f}…{r['high']:.2f}) | "
            f"{_time(r['own_time'])} | {_time(r['peer_time'])} | {100 * r['useful'] / r['own_time'] / r['ceiling']:.0f} % | "
            f"{error} | {memory} MB |"
        )
    if any(not r["error"]["share"] <= 1 for r in record["races"]):
        lines += ["", "† beyond the bound of F2, which asks for weights that are not rounded to 16 bits."]
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


def main() -> int:
    parser = argparse.ArgumentParser(description="docs/performance.md from what bench.py wrote.")
    parser.add_argument("files", nargs="+", type=Path, help="what bench.py wrote")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where performance.md and images/ are")
    options = parser.parse_args()
    parts = [HEAD]
    for path in options.files:
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            print(f"{path} is not what bench.py writes: {error}", file=sys.stderr)
            return 2
        level = record["machine"]["qkv"]["level"] or "none"
        races = [r for r in record["races"] if r["peer"] in MAIN]
        name = f"images/performance-{level}.svg"
        title = f"{record['machine']['processor']}, {level}"
        about = f"Bars for {len(races)} pairs of shape and peer; the table below holds the same numbers."
        (options.docs / name).write_text(chart(races, title, about))
        parts.append(section(record, name))
    (options.docs / "performance.md").write_text("\n".join(parts))
    print(f"written: {options.docs / 'performance.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
