"""Reports as a page of the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from ..migrate import counts
from ..promised import AGAINST, FOLLOWS, NOTHING, PAGES, SAYS, Page, Promise
from ..report import Report, cells, legend, tell
from ..verdict import CRASHES, WRONG
from .made import Made

__all__ = ["to_markdown"]


def to_markdown(reports: Sequence[Report], made: Made) -> str:
    """The table of clauses and kernels, the conventions, and every counterexample of what is wrong."""
    present = [r for r in reports if r.rows]
    lines = [
        "# What attention kernels mean",
        "",
        f"Made by `{made.command}`, not by hand: {made}.",
        "Each clause of [the contract](contract.md) is asked by several cases; a mark is the most telling of their verdicts.",
        "",
        *_table(present),
        "",
        ", ".join(legend().split("  ")),
        "",
        "## Kernels",
        "",
    ]
    for report in reports:
        if report.absent:
            lines.append(f"- `{report.name}` is left out: {report.absent}")
        else:
            some = "" if report.finished else ", not finished"
            notes = "".join(f"; {note}" for note in report.notes)
            lines.append(
                f"- `{report.name}` {report.version}: {len(report.rows)} cases of the profile {report.profile}{some}{notes}"
            )
    lines += ["", "## Conventions that differ", "", *_conventions(present)]
    if promised := _promised(present):
        lines += ["", "## Where they are documented", "", *promised]
    lines += ["", "## From one library to another", "", *_migration(present)]
    lines += ["", "## Wrong, or crashed", ""]
    lines += ["[Findings](findings/README.md) shows what is wrong in public libraries by scripts without qkv.", ""]
    bad = [(r, row) for r in present for row in r.rows if row.verdict in (CRASHES, WRONG)]
    if not bad:
        lines.append("Nothing.")
    for report, row in bad:
        lines += [f"### {report.name}: {row.case}", "", "```text", *tell(row), "```", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(reports: Sequence[Report]) -> list[str]:
    names = [r.name for r in reports]
    body = [[f"[{clause}](contract.md#{clause})", *marks] for clause, marks in cells(list(reports))]
    body.append(["reached", *(f"{r.reached:.0%}" for r in reports)])
    rows = [["clause", *(f"`{n}`" for n in names)], ["---", *[":-:"] * len(names)], *body]
    return ["| " + " | ".join(_cell(c) for c in row) + " |" for row in rows]


def _migration(reports: Sequence[Report]) -> list[str]:
    """How much changes meaning between any two."""
    names = [f"`{r.name}`" for r in reports]
    body = [
        [f"`{report.name}`", *("" if a == b else str(n) for b, n in enumerate(row))]
        for a, (report, row) in enumerate(zip(reports, counts(reports), strict=True))
    ]
    return [
        "How many of the cases that both were asked, and both answered, get another answer on the way from a row to a",
        "column; `qkv audit migrate FROM TO` says which, and what can no longer be said.",
        "",
        *("| " + " | ".join(row) + " |" for row in [["from \\ to", *names], ["---", *["--:"] * len(names)], *body]),
    ]


def _conventions(reports: Sequence[Report]) -> list[str]:
    whose: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        for name, cases in report.conventions().items():
            whose.setdefault(name, {})[report.name] = cases
    rows = ["| convention | kernels | cases |", "| --- | --- | --- |"]
    for name, kernels in sorted(whose.items(), key=lambda item: min(min(c) for c in item[1].values())):
        cases = sorted({c for found in kernels.values() for c in found})
        rows.append(
            f"| {_cell(name)} | {', '.join(f'`{k}`' for k in kernels)} | {', '.join(f'`{c}`' for c in cases)} |"
        )
    return rows if whose else ["None."]


def _promised(reports: Sequence[Report]) -> list[str]:
    """For each page of documentation what it says of the conventions found, and of which it says nothing."""
    lines = [
        "Looked up by hand, page by page, and told in our own words. What *follows from its formula* a page does not say in",
        "words, but it shows a formula or code that does it.",
    ]
    for page in PAGES:
        some = [report for report in reports if report.name in page.kernels]
        names = {name for report in some for name in report.conventions()}
        if names:
            lines += ["", f"### {page.title}", "", _heading(page, some), "", *_said(page, names)]
    return lines if len(lines) > 2 else []


def _heading(page: Page, reports: Sequence[Report]) -> str:
    names = ", ".join(f"`{report.name}`" for report in reports)
    others = sorted({r.version for r in reports if not r.version.startswith(page.version.split()[-1])})
    audited = f"; audited here: {', '.join(others)}" if others and "onnx" not in page.kernels else ""
    return f"{names}. The page was read as of {page.version}{audited}."


def _said(page: Page, names: set[str]) -> list[str]:
    told: dict[Promise, list[str]] = {}
    for name, said in page.says.items():
        if name in names:
            told.setdefault(said, []).append(f"**{name}**")
    order = (SAYS, FOLLOWS, AGAINST, NOTHING)
    lines = [
        f"- {said.kind}: {'; '.join(some)}{f' ({said.words})' if said.words else ''}"
        for said, some in sorted(told.items(), key=lambda item: order.index(item[0].kind))
    ]
    unread = sorted(f"**{name}**" for name in names if name not in page.says)
    return lines + ([f"- nobody has looked: {'; '.join(unread)}"] if unread else [])


def _cell(said: str) -> str:
    """Text that is no other column."""
    return said.replace("|", "\\|")
