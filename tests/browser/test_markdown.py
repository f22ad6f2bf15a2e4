"""A static site writes a notebook as the server does: with the titles of lessons and sections, not their ids."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from qkv.learn.lessons import lessons
from qkv.learn.notebook_document import to_markdown

HERE = Path(__file__).parent
TIME = "2026-01-31T12:34:56.789Z"


def documents() -> list[dict[str, Any]]:
    lesson = lessons()[0]
    first, second = (section.id for section in lesson.sections[:2])
    empty: dict[str, Any] = {"format": "qkv-notebook", "version": 1, "exported": TIME}
    empty |= {name: [] for name in ("notes", "bookmarks", "drafts", "attempts", "cases")}
    empty |= {"lab_passed": {}, "completed": {}}
    attempt = {"id": "a", "lesson": lesson.id, "time": TIME, "report": None, "solution_shown": False}
    case = {"id": "c", "lesson": lesson.id, "form": "numbers", "note": "", "time": TIME, "text": "query: 1"}
    full = empty | {
        "notes": [
            {"lesson": lesson.id, "section": section, "text": text, "updated": TIME}
            for section, text in (
                ("zebra", "old"),
                (second, "later"),
                ("apple", "old"),
                (first, "a\n\nb"),
                ("none", ""),
            )
        ],
        "bookmarks": [{"lesson": lesson.id, "section": second}, {"lesson": lesson.id, "section": "gone"}],
        "drafts": [
            {"lesson": lesson.id, "code": "def attend(): ...\n", "updated": TIME},
            {"lesson": "other", "code": "x = '````'", "updated": TIME},
        ],
        "attempts": [
            attempt | {"passed": False, "code": "pass"},
            attempt | {"passed": True, "code": "", "solution_shown": True},
        ],
        "cases": [
            case | {"verdict": {"sentence": "Your function holds.", "status": "passed"}, "note": "why"},
            case | {"verdict": "a word", "form": "python"},
            case | {"verdict": {"other": [1, None, "ä"]}},
            case | {"verdict": None},
        ],
        "lab_passed": {lesson.id: TIME},
        "completed": {"another": TIME},
    }
    return [empty, full]


def test_a_static_site_writes_the_markdown_that_the_server_writes(node: str) -> None:
    given = {"documents": documents(), "lessons": [lesson.summary() for lesson in lessons()]}
    done = subprocess.run(
        [node, str(HERE / "markdown.mjs")], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    titles = {
        lesson.id: (lesson.title, {section.id: section.name for section in lesson.sections}) for lesson in lessons()
    }
    assert json.loads(done.stdout) == [to_markdown(document, titles) for document in documents()]
    first = lessons()[0]
    assert f"## {first.title}\n" in json.loads(done.stdout)[1]
    assert f"### Note: {first.sections[0].name}\n" in json.loads(done.stdout)[1]
