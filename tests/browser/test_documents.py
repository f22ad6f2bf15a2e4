"""A static site takes in what the server takes in, and refuses the rest in the same words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError
from qkv.learn.notebook_document import checked_document

HERE = Path(__file__).parent
TIME = "2026-01-31T12:34:56.789Z"
FAILED: dict[str, Any] = {"title": "a", "status": "failed", "failure": {}}
REPORT: dict[str, Any] = {"counts": {"passed": 0, "cases": 1}, "cases": [FAILED]}
ROWS: dict[str, dict[str, Any]] = {
    "notes": {"lesson": "attention", "section": "roles", "text": "a", "updated": TIME, "revision": 3},
    "bookmarks": {"lesson": "attention", "section": "roles"},
    "drafts": {"lesson": "attention", "code": "a", "updated": TIME},
    "attempts": {
        "id": "a1",
        "lesson": "attention",
        "time": TIME,
        "code": "a",
        "passed": False,
        "report": REPORT,
        "solution_shown": True,
    },
    "cases": {
        "id": "c1",
        "lesson": "attention",
        "form": "json",
        "text": "",
        "note": "",
        "verdict": {"sentence": "holds"},
        "time": TIME,
    },
}
BAD: list[Any] = [None, 0, 1.5, True, "", "../x", "2026-01-01", [], [{}], {}]
BAD += [{"counts": {}}, {"sentence": 1}, {"input": 5}]


def documents() -> list[Any]:
    """One that is right, and it with every field missing, of every wrong kind, twice, and under another name."""
    head = {"format": "qkv-notebook", "version": 1}
    full: dict[str, Any] = head | {name: [row] for name, row in ROWS.items()} | {"lab_passed": {"attention": TIME}}
    made = [full, head, *BAD, {**head, "version": 2}, {"version": 1}, {**head, "version": None}, {**full, "diary": []}]
    for name in (*ROWS, "lab_passed", "completed", "exported"):
        made += [{**full, name: bad} for bad in ("abc", *BAD, [None])]
    for name, row in ROWS.items():
        made += [{**full, name: [row, row]}, {**full, name: [{**row, "colour": 1}]}]
        for key in row:
            made += [{**full, name: [{**row, key: bad}]} for bad in BAD]
            made.append({**full, name: [{other: row[other] for other in row if other != key}]})
    reports = [{**REPORT, "counts": {"passed": "0", "cases": 1}}, {**REPORT, "counts": {"passed": True, "cases": 1}}]
    graded: list[Any] = ["abc", [None], [{}], [{**FAILED, "failure": None}]]
    reports += [{**REPORT, "cases": cases} for cases in graded]
    made += [{**full, "attempts": [{**ROWS["attempts"], "report": report}]} for report in reports]
    made += [{**full, name: {"attention": 5}} for name in ("completed", "lab_passed")]
    return made


def said(document: Any) -> dict[str, Any]:
    try:
        return {"document": checked_document(document)}
    except ArgumentError as error:
        return {"error": str(error)}


def test_a_static_site_refuses_what_the_server_refuses_in_the_same_words(node: str) -> None:
    given = documents()
    command = [node, str(HERE / "documents.mjs")]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs, ours = json.loads(done.stdout), [said(document) for document in given]
    assert "document" in ours[0]
    assert sum("error" in one for one in ours) > len(ours) // 2
    for document, there, here in zip(given, theirs, ours, strict=True):
        assert there == here, document
