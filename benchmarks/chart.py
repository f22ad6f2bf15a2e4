"""The ratios as bars with the middle half of their pairs, on a logarithmic axis: one SVG for light and dark pages."""

from __future__ import annotations

import math
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 330, 70, 17, 64
STYLE = """
svg{background:#fff}text{font:12px system-ui,sans-serif;fill:#1f2328}.quiet{fill:#59636e}.head{font-weight:600}
.ahead{fill:#1a7f64}.behind{fill:#b35900}.middle{stroke:#1f2328;stroke-width:1.5}.grid{stroke:#d1d9e0}.one{stroke:#1f2328}
@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}.quiet{fill:#9198a1}.ahead{fill:#3fb68b}
.behind{fill:#e3944a}.middle{stroke:#e6edf3}.grid{stroke:#30363d}.one{stroke:#e6edf3}}
"""


def chart(races: list[dict[str, Any]], title: str, description: str) -> str:
    """Shapes in their order, under each a bar for each peer: how many times longer it took than qkv."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for race in races:
        groups.setdefault((race["shape"], race["dtype"]), []).append(race)
    low = min(0.5, *(r["low"] for r in races))
    high = max(2.0, *(r["high"] for r in races))
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    span = WIDTH - LEFT - RIGHT

    def x(ratio: float) -> float:
        return round(LEFT + span * (math.log2(ratio) - first) / (last - first), 1)

    height = TOP + sum(ROW * (len(g) + 1) + 8 for g in groups.values()) + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title><desc id="d">{escape(description)}</desc><style>{STYLE.strip()}</style>',
        f'<text class="head" x="12" y="22">{escape(title)}</text>',
        '<text class="quiet" x="12" y="40">time of the peer over time of qkv; right of 1, qkv is faster; '
        "the line is the middle half of the pairs</text>",
    ]
    for power in range(first, last + 1):
        at, kind = x(2.0**power), "one" if power == 0 else "grid"
        label = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        out.append(f'<line class="{kind}" x1="{at}" x2="{at}" y1="{TOP - 6}" y2="{height - 10}"/>')
        out.append(f'<text class="quiet" text-anchor="middle" x="{at}" y="{TOP - 10}">{label}</text>')
    y = TOP + 8
    for (shape, dtype), group in groups.items():
        out.append(f'<text class="head" x="12" y="{y + 4}">{escape(shape)}, {escape(dtype)}</text>')
        for race in group:
            y += ROW
            start, end = sorted((x(1.0), x(race["ratio"])))
            kind = "ahead" if race["ratio"] >= 1 else "behind"
            out.append(f'<text x="24" y="{y + 4}">{escape(race["peer"])}</text>')
            out.append(f'<rect class="{kind}" x="{start}" y="{y - 6}" width="{max(end - start, 1):.1f}" height="11"/>')
            out.append(f'<line class="middle" x1="{x(race["low"])}" x2="{x(race["high"])}" y1="{y}" y2="{y}"/>')
            out.append(
                f'<text class="quiet" x="{max(end, x(race["high"])) + 6}" y="{y + 4}">{race["ratio"]:.2f}</text>'
            )
        y += ROW + 8
    out.append("</svg>")
    return "\n".join(out) + "\n"
