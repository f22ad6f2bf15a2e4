"""A picture as one HTML file that asks nobody for anything.

Maps are drawn on canvases from numbers in the file; the numbers of every exact row stand in a table beside; the program
that does both is in the file, and a Content-Security-Policy forbids every request. The same picture gives the same bytes.
"""

from __future__ import annotations

import base64
import json
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from .picture import BASELINES, COLUMNS, Picture

__all__ = ["to_html"]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_ASKING = "; connect-src 'self'"
_ENTER = "Enter asks for the exact row of the first query in it."
_QUERY = '<label>Query <input type="number" id="query" min="{}" max="{}" step="1"></label>\n'


def to_html(shown: Picture, *, served: bool = False) -> str:
    """The page; `served` by a `Server`, it asks that for rows that are not in it, and nobody else for anything."""
    facts = shown.facts
    title = f"What {facts.get('model', 'the model')} reads, head by head"
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    command = f"<div><dt>drawn by</dt><dd><code>{escape(shown.command)}</code></dd></div>" if shown.command else ""
    columns = "".join(
        f"<li><b>{escape({**_NAMES, **_BESIDE}[name])}</b>: {escape(words)}</li>"
        for name, words in {**COLUMNS, **BASELINES}.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}{_ASKING if served else ""}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_file("page.css")}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="axes">{escape(shown.axes())}</p>
<div class="controls">
<label>Layer <select id="layer"></select></label>
<label>Head <select id="head"></select></label>
{_QUERY.format(shown.first, shown.last) if served else ""}<label>Exact row <select id="row"></select></label>
<label>Quantity <select id="quantity">{_options(_NAMES)}</select></label>
<label>Colours <select id="scale">{_options(_SCALES)}</select></label>
</div>
<p id="status" role="status"></p>
<div class="columns">
<section aria-labelledby="maps-title">
<h2 id="maps-title">Every head</h2>
<p class="hint">Arrow keys move from head to head, left and right along a layer, up and down from layer to layer.</p>
<canvas id="grid" tabindex="0" role="application" aria-label="Maps of all heads" aria-describedby="status"></canvas>
</section>
<div>
<section aria-labelledby="map-title">
<h2 id="map-title">One head</h2>
<p class="hint">Arrow keys move from cell to cell; what it holds is said above. {_ENTER if served else ""}</p>
<canvas id="map" tabindex="0" role="application" aria-labelledby="map-title" aria-describedby="status"></canvas>
<p class="hint">Keys 0 to {len(shown.tokens) - 1} from left to right, queries {shown.first} to {shown.last} downwards;
<span id="map-scale"></span></p>
</section>
<section aria-labelledby="row-title">
<h2 id="row-title">One row, every number</h2>
<p id="row-facts"></p>
<div id="text" tabindex="0" role="application" aria-label="The text; arrow keys move from token to token" aria-describedby="status"></div>
{_pages("text", "Earlier text", "Later text")}
<label>Sorted by <select id="sort">{_options({"key": "position", **_NAMES})}</select></label>
<div class="scroll" role="region" aria-label="The keys of this row" tabindex="0"><table>
<thead><tr>{_heads("key", "token", "weight", _BESIDE["recency"], *list(_NAMES.values())[1:])}</tr></thead>
<tbody id="keys"></tbody></table></div>
{_pages("keys", "Before", "After")}
</section>
</div>
</div>
<section aria-labelledby="about-title">
<h2 id="about-title">What this is, and what it cannot show</h2>
<p>{escape(shown.left_out(served=served))}</p>
<ul>{columns}</ul>
<dl>{rows}{command}</dl>
</section>
</main>
<script type="application/json" id="data">{_json({**_data(shown), "served": served})}</script>
<script>
{_file("page.js")}</script>
</body>
</html>
"""


_NAMES = {"weight": "weight", "norm_share": "contribution", "share": "share of output", "influence": "influence"}
_BESIDE = {"recency": "by distance", "uniform": "even weights"}
_STORED = ("weight", "recency", "norm_share", "share", "influence")
_SCALES = {
    "row": "each row to its own largest",
    "all": "one scale for the head",
    "log": "logarithmic, from 0.0001",
    "rank": "by rank",
}


def _options(names: dict[str, str]) -> str:
    return "".join(f'<option value="{escape(value)}">{escape(words)}</option>' for value, words in names.items())


def _heads(*names: str) -> str:
    return "".join(f'<th scope="col">{escape(name)}</th>' for name in names)


def _pages(name: str, before: str, after: str) -> str:
    buttons = [
        f'<button type="button" id="{name}-{way}">{words}</button>'
        for way, words in (("before", before), ("after", after))
    ]
    return f'<p class="pages">{buttons[0]} <span id="{name}-where"></span> {buttons[1]}</p>'


def _data(shown: Picture) -> dict[str, Any]:
    return {
        "tokens": list(shown.tokens),
        "layers": [[index, name, list(heads)] for index, name, heads in shown.layers],
        "maps": [[m.layer, m.head, *m.cells.shape, _packed(m.cells.astype("<f2"))] for m in shown.maps],
        "rows": [
            {
                "layer": one.layer,
                "head": one.row.head,
                "query": one.row.query,
                "columns": {name: _packed(getattr(one.row, name).astype("<f4")) for name in _STORED},
                "allowed": _packed(np.packbits(one.row.allowed)),
                "entropy": _number(one.row.entropy),
                "effective": _number(one.row.effective_keys),
                "distance": _number(one.row.mean_distance),
                "cancellation": _number(one.row.cancellation),
                "sink": _number(one.row.sink_share),
                "space": one.row.space,
                "bias": _number(one.row.bias_norm),
            }
            for one in shown.rows
        ],
        "sink": shown.sink,
        "first": shown.first,
        "last": shown.last,
        "causal": shown.causal,
        "quantity": shown.quantity,
    }


def _packed(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _number(x: float) -> float | None:
    return None if x != x else float(f"{x:.6g}")


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that cannot end the element it stands in; a lone surrogate of a broken tokenizer survives as its code."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)
