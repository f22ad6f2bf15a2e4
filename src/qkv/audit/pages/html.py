"""Reports as one HTML file that asks nobody for anything: a table of cases and kernels, each cell opens its case.

The table is in the file as text, so that it can be read and searched without a program; the program that sorts, filters
and opens cells stands beside it. A Content-Security-Policy forbids every request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from ..cases import CLAUSES
from ..migrate import KINDS, changes
from ..promised import page_of, promise
from ..report import Report
from ..verdict import CANNOT, CRASHES, DIFFERS, KEEPS, MARKS, NOT_PROMISED, REFUSES, VERDICTS, WRONG, Row
from .made import Made

__all__ = ["to_html"]

#: Verdicts in the order people read them in.
_ORDER = (KEEPS, DIFFERS, WRONG, REFUSES, CRASHES, NOT_PROMISED, CANNOT)

#: What the page may load: nothing, and an empty icon, so that none is asked for. What stands in it is its style and its program.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def to_html(reports: Sequence[Report], made: Made) -> str:
    """The page."""
    present = [r for r in reports if r.rows]
    cases: dict[str, Row] = {}
    for report in present:
        for row in report.rows:
            cases.setdefault(row.case, row)
    found = [{row.case: row for row in report.rows} for report in present]
    title = f"qkv audit: {', '.join(r.name for r in present) or 'nothing was run'}"
    body = "\n".join(_row(at, case, cases[case], present, found) for at, case in enumerate(cases))
    heads = "".join(_head(r.name, r.version, str(2 + n)) for n, r in enumerate(present))
    notes = [f"{r.name} is left out: {r.absent}" for r in reports if r.absent]
    notes += [f"{r.name}: not finished" for r in present if not r.finished]
    notes += [f"{r.name}: {note}" for r in present for note in r.notes]
    data = {
        "kernels": [f"{r.name} {r.version}".strip() for r in present],
        "rows": {case: [_data(r.name, one.get(case)) for r, one in zip(present, found, strict=True)] for case in cases},
        "changes": {
            a.name: {
                b.name: [(KINDS[c.kind], c.case, c.title, c.before, c.after) for c in changes(a, b)]
                for b in present
                if a is not b
            }
            for a in present
        },
    }
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_file("report.css")}</style>
</head>
<body>
<main>
<h1>Audit against the contract</h1>
<p>Made by <code>{escape(made.command)}</code>: {escape(str(made))}.</p>
{"".join(f"<p>{escape(note)}</p>" for note in notes)}
<div class="filters" role="search">
<label>Search <input id="search" type="search" autocomplete="off"></label>
{_choice("clause", "Clause", [c for c in CLAUSES if any(c in row.clauses for row in cases.values())])}
{_choice("profile", "Profile", sorted({row.profile for row in cases.values()}))}
{_choice("verdict", "Verdict", [v for v in _ORDER if any(row.verdict == v for r in present for row in r.rows)])}
<button type="button" id="clear">Show all</button>
<span id="count" role="status">{len(cases)} of {len(cases)} cases</span>
</div>
<p class="legend">{" ".join(f'<span><b class="mark" data-verdict="{v}">{MARKS[v]}</b> {v}</span>' for v in _ORDER)}</p>
<p class="keys">A cell opens its case. Arrow keys move between cells, a column’s name sorts by it.</p>
<div class="scroll" role="region" aria-label="Cases and kernels" tabindex="0">
<table>
<thead><tr>{_head("case", "", "0")}{_head("clauses", "", "1")}{heads}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
<h2 id="migrate">From one library to another</h2>
<p class="filters">{_choice("from", "From", [r.name for r in present])} {_choice("to", "To", [r.name for r in present])}</p>
<div id="changes" role="status" aria-labelledby="migrate"></div>
</main>
<dialog id="case" aria-labelledby="case-title">
<form method="dialog"><button aria-label="Close">Close</button></form>
<h2 id="case-title"></h2>
<div id="case-body"></div>
</dialog>
<script type="application/json" id="data">{_json(data)}</script>
<script>
{_file("report.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _choice(name: str, label: str, words: Sequence[str]) -> str:
    options = "".join(f"<option>{escape(w)}</option>" for w in words)
    return f'<label>{label} <select id="{name}"><option value="">all</option>{options}</select></label>'


def _head(name: str, version: str, column: str) -> str:
    small = f"<small>{escape(version)}</small>" if version else ""
    return f'<th scope="col"><button type="button" data-column="{column}">{escape(name)}{small}</button></th>'


def _row(at: int, case: str, about: Row, reports: Sequence[Report], found: Sequence[dict[str, Row]]) -> str:
    cells = "".join(_cell(report.name, case, one.get(case)) for report, one in zip(reports, found, strict=True))
    return (
        f'<tr data-at="{at}" data-profile="{escape(about.profile)}" data-clauses="{escape(" ".join(about.clauses))}">'
        f'<th scope="row"><code>{escape(case)}</code><span>{escape(about.title)}</span></th>'
        f"<td>{escape(' '.join(about.clauses))}</td>{cells}</tr>"
    )


def _cell(kernel: str, case: str, row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    said = f"{kernel}, {case}: {row.told}"
    return (
        f'<td data-rank="{VERDICTS.index(row.verdict)}" data-verdict="{row.verdict}" data-name="{escape(row.name)}">'
        f'<button type="button" class="mark" data-verdict="{row.verdict}" aria-label="{escape(said)}" title="{escape(row.told)}">'
        f"{MARKS[row.verdict]}</button></td>"
    )


def _promised(kernel: str, row: Row) -> list[str]:
    """What the documentation of a library says of a convention, and where; nothing where nobody has looked."""
    page, said = page_of(kernel), promise(kernel, row.name)
    if row.verdict != DIFFERS or page is None or said is None:
        return []
    return [str(said), f"{page.title}, {page.version}"]


def _data(kernel: str, row: Row | None) -> dict[str, object] | None:
    """What an opened cell shows."""
    if row is None:
        return None
    answers = ("right ", "found ")
    return {
        "title": row.title,
        "told": row.told,
        "says": row.says if row.says != row.name else "",
        "input": [line for line in row.example if not line.startswith(answers)],
        "right": [line.removeprefix("right ") for line in row.example if line.startswith("right ")],
        "found": [line.removeprefix("found ") for line in row.example if line.startswith("found ")],
        "promised": _promised(kernel, row),
        "reproduce": row.reproduce,
    }
