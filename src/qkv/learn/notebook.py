"""The learner's notebook: notes, bookmarks, drafts, attempts, and what was completed and passed, in one file.

Every method that saves returns after the file system said that it is on the disk, and raises otherwise. A text carries
a revision: who saves says which one he began from, and where another tab was quicker he gets its text and loses
nothing (`Conflict`). A `Notebook` may be used by many threads, and a file by many programs.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from qkv.errors import ArgumentError

from .notebook_document import Document, Merge, checked_document, merge, readable
from .notebook_file import MIGRATIONS, NotebookError, as_notebook_error, open_file

__all__ = ["FORMS", "Conflict", "Notebook", "Saved", "clean"]

#: How a failure to test can be written down.
FORMS = ("numbers", "json", "python")

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")


class Saved(NamedTuple):
    """What a saved text is now called, and when it was saved."""

    revision: int
    updated: str


class Conflict(NotebookError):  # noqa: N818 (a case of its own, answered with both texts)
    """Another tab or program saved a newer text in the meantime; nothing was overwritten.

    Attributes:
        text: what is in the notebook.
        revision: to save over it, begin from this one.
        updated: when it was saved.
    """

    def __init__(self, text: str, revision: int, updated: str) -> None:
        super().__init__("another tab saved a newer text; keep what you need of both, and save again")
        self.text = text
        self.revision = revision
        self.updated = updated


class Notebook:
    """The notebook in `path`, made where there is none.

    Raises:
        DamagedError: the file is no whole notebook; it was left untouched.
        NotebookError: it cannot be made, read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection = open_file(path)
        self._file = self._identity()

    def close(self) -> None:
        """Close the file; what was saved is in it already."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading ----------------------------------------------------------------------------------------------------------

    def everything(self) -> dict[str, Any]:
        """All there is, with revisions, and the `id` of this file: what a page shows."""
        with self._transaction("DEFERRED") as c:
            (identity,) = c.execute("SELECT id FROM identity").fetchone()
            return {"schema": len(MIGRATIONS), "id": identity, **_rows(c)}

    def document(self) -> Document:
        """All there is, as it is exported: without revisions, which are facts of this one file."""
        content = readable(self.everything())
        del content["schema"], content["id"]
        for row in (*content["notes"], *content["drafts"]):
            del row["revision"]
        # An emptied note is kept for its revision only.
        content["notes"] = [note for note in content["notes"] if note["text"]]
        return checked_document({"format": "qkv-notebook", "version": 1, "exported": _now(), **content})

    def search(self, words: str) -> list[dict[str, Any]]:
        """Notes, attempts, drafts and cases that hold every one of the words, upper or lower case."""
        asked = words.casefold().split()
        if not asked:
            return []
        content = self.everything()
        found = []
        for kind, name, shown in (
            ("note", "notes", ("text",)),
            ("case", "cases", ("text", "note")),
            ("attempt", "attempts", ("code",)),
            ("draft", "drafts", ("code",)),
        ):
            for row in content[name]:
                text = "\n".join(row[field] for field in shown)
                if all(word in text.casefold() for word in asked):
                    about = {field: row[field] for field in ("lesson", "section", "id") if field in row}
                    found.append({"kind": kind, **about, "excerpt": _excerpt(text, asked[0])})
        return found

    def knows(self, lesson: str, section: str | None = None) -> bool:
        """Whether something is kept under this lesson (and section), whatever lessons there are today."""
        content = self.everything()
        if section is not None:
            rows = (*content["notes"], *content["bookmarks"])
            return any((row["lesson"], row["section"]) == (lesson, section) for row in rows)
        lists = ("notes", "bookmarks", "drafts", "attempts", "cases")
        rows = tuple(row["lesson"] for name in lists for row in content[name])
        return lesson in (*rows, *content["completed"], *content["lab_passed"])

    # Saving -----------------------------------------------------------------------------------------------------------

    def save_note(self, lesson: str, section: str, text: str, base_revision: int) -> Saved:
        """Save the note of a section, written on top of `base_revision` (0: of no text).

        Raises:
            Conflict: the notebook holds another text that is newer.
        """
        _check_identifiers(lesson, section)
        with self._transaction() as c:
            row = c.execute(
                "SELECT text, revision, updated FROM notes WHERE lesson = ? AND section = ?", (lesson, section)
            ).fetchone()
            saved = _advance(row, clean(text), base_revision)
            c.execute("REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", (lesson, section, clean(text), *saved))
        return saved

    def save_draft(self, lesson: str, code: str, base_revision: int) -> Saved:
        """Save what the editor of a lab holds; as `save_note`."""
        _check_identifiers(lesson)
        with self._transaction() as c:
            row = c.execute("SELECT code, revision, updated FROM drafts WHERE lesson = ?", (lesson,)).fetchone()
            saved = _advance(row, clean(code), base_revision)
            c.execute("REPLACE INTO drafts VALUES (?, ?, ?, ?)", (lesson, clean(code), *saved))
        return saved

    def set_bookmark(self, lesson: str, section: str, on: bool) -> None:
        """Set or take the bookmark of a section."""
        _check_identifiers(lesson, section)
        with self._transaction() as c:
            if on:
                c.execute("INSERT OR IGNORE INTO bookmarks VALUES (?, ?)", (lesson, section))
            else:
                c.execute("DELETE FROM bookmarks WHERE lesson = ? AND section = ?", (lesson, section))

    def set_completed(self, lesson: str, on: bool) -> str | None:
        """The learner's own word that he has completed a lesson; gives since when."""
        _check_identifiers(lesson)
        with self._transaction() as c:
            if not on:
                c.execute("DELETE FROM completed WHERE lesson = ?", (lesson,))
                return None
            c.execute("INSERT OR IGNORE INTO completed VALUES (?, ?)", (lesson, _now()))
            return str(c.execute("SELECT time FROM completed WHERE lesson = ?", (lesson,)).fetchone()[0])

    def add_attempt(
        self, lesson: str, code: str, *, report: object, passed: bool, solution_shown: bool
    ) -> dict[str, Any]:
        """Keep an attempt at a lab, and that the lab is passed if it is; gives its `id`, `time` and `lab_passed`."""
        _check_identifiers(lesson)
        attempt = {"id": _new_id(), "lesson": lesson, "time": _now(), "code": code, "passed": passed}
        attempt |= {"report": report, "solution_shown": solution_shown}
        with self._transaction() as c:
            c.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?)", _attempt_row(attempt))
            if passed:
                c.execute("INSERT OR IGNORE INTO lab_passed VALUES (?, ?)", (lesson, attempt["time"]))
            since = c.execute("SELECT time FROM lab_passed WHERE lesson = ?", (lesson,)).fetchone()
        return {"id": attempt["id"], "time": attempt["time"], "lab_passed": since[0] if since else None}

    def add_case(self, lesson: str, form: str, text: str, *, note: str, verdict: object) -> dict[str, Any]:
        """Keep a failure to test; gives its `id` and `time`."""
        _check_identifiers(lesson)
        if form not in FORMS:
            raise ArgumentError(f"form must be one of {', '.join(FORMS)}, but {form!r} came; choose one of them")
        case = {"id": _new_id(), "lesson": lesson, "form": form, "text": text, "note": note, "verdict": verdict}
        case["time"] = _now()
        with self._transaction() as c:
            c.execute("INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?, ?)", _case_row(case))
        return {"id": case["id"], "time": case["time"]}

    def delete_case(self, identifier: str) -> bool:
        """Take a failure to test out; gives whether there was one."""
        with self._transaction() as c:
            return c.execute("DELETE FROM cases WHERE id = ?", (identifier,)).rowcount > 0

    # From other notebooks ---------------------------------------------------------------------------------------------

    def preview(self, document: object) -> Merge:
        """What `take_in` would do with an exported document; changes nothing.

        Raises:
            ArgumentError: it is no exported notebook.
        """
        return merge(self.document(), checked_document(document), _now())

    def take_in(self, document: object) -> Merge:
        """Merge an exported document into this notebook, all of it or, where that fails, nothing.

        Nothing is lost: where both have a text, both texts are kept.
        """
        incoming = checked_document(document)
        with self._transaction() as c:
            here = readable(_rows(c))
            of_notes = {(note["lesson"], note["section"]): note["revision"] for note in here["notes"]}
            of_drafts = {draft["lesson"]: draft["revision"] for draft in here["drafts"]}
            for row in (*here["notes"], *here["drafts"]):
                del row["revision"]
            merged = merge({"format": "qkv-notebook", "version": 1, "exported": _now(), **here}, incoming, _now())
            for note in merged.rows["notes"]:
                revision = _next_revision(of_notes.get((note["lesson"], note["section"]), 0))
                c.execute(
                    "REPLACE INTO notes VALUES (?, ?, ?, ?, ?)",
                    (note["lesson"], note["section"], clean(note["text"]), revision, note["updated"]),
                )
            for draft in merged.rows["drafts"]:
                revision = _next_revision(of_drafts.get(draft["lesson"], 0))
                c.execute(
                    "REPLACE INTO drafts VALUES (?, ?, ?, ?)",
                    (draft["lesson"], clean(draft["code"]), revision, draft["updated"]),
                )
            for mark in merged.rows["bookmarks"]:
                c.execute("INSERT OR IGNORE INTO bookmarks VALUES (?, ?)", (mark["lesson"], mark["section"]))
            for table in ("completed", "lab_passed"):
                for fact in merged.rows[table]:
                    c.execute(f"REPLACE INTO {table} VALUES (?, ?)", (fact["lesson"], fact["time"]))
            for attempt in merged.rows["attempts"]:
                c.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?)", _attempt_row(attempt))
            for case in merged.rows["cases"]:
                c.execute("INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?, ?)", _case_row(case))
        return merged

    # The file ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and on the disk when the block is left without an error."""
        with self._lock:
            try:
                self._follow_file()
                self._connection.execute(f"BEGIN {kind}")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                finally:
                    # Left after an error, be it of the block or of the commit.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise as_notebook_error(error, self.path) from error

    def _follow_file(self) -> None:
        """Open the file again if another one lies under its name: deleted, or replaced by a backup, while this ran.

        What is written to a file without a name is gone when the program ends, confirmed or not.
        """
        if self._identity() == self._file:
            return
        self._connection.close()
        self._connection = open_file(self.path)
        self._file = self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def clean(text: str) -> str:
    """The text as a file can hold it: half of a character pair, which UTF-8 has no bytes for, becomes U+FFFD.

    This is what browsers do when they send text, so that nothing typed is ever refused.

    >>> clean("a\\ud800b")
    'a\\ufffdb'
    """
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _rows(c: sqlite3.Connection) -> dict[str, Any]:
    def table(name: str, order: str) -> list[dict[str, Any]]:
        cursor = c.execute(f"SELECT * FROM {name} ORDER BY {order}")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    attempts = [
        {
            **row,
            "passed": bool(row["passed"]),
            "report": json.loads(row["report"]),
            "solution_shown": bool(row["solution_shown"]),
        }
        for row in table("attempts", "time, rowid")
    ]
    return {
        "notes": table("notes", "lesson, section"),
        "bookmarks": table("bookmarks", "lesson, section"),
        "drafts": table("drafts", "lesson"),
        "attempts": attempts,
        "lab_passed": {row["lesson"]: row["time"] for row in table("lab_passed", "lesson")},
        "completed": {row["lesson"]: row["time"] for row in table("completed", "lesson")},
        "cases": [{**row, "verdict": json.loads(row["verdict"])} for row in table("cases", "time, rowid")],
    }


def _attempt_row(a: dict[str, Any]) -> tuple[Any, ...]:
    flags = int(a["passed"]), int(a["solution_shown"])
    return a["id"], a["lesson"], a["time"], clean(a["code"]), flags[0], _to_json(a["report"]), flags[1]


def _case_row(case: dict[str, Any]) -> tuple[Any, ...]:
    texts = clean(case["text"]), clean(case["note"])
    return case["id"], case["lesson"], case["form"], *texts, _to_json(case["verdict"]), case["time"]


def _advance(row: tuple[str, int, str] | None, text: str, base_revision: int) -> Saved:
    """The revision that a text gets, or `Conflict`. Saving the same text again is confirmed as it was."""
    here, revision, updated = row if row is not None else ("", 0, "")
    if row is not None and here == text:
        return Saved(revision, updated)
    if revision != base_revision and here:
        raise Conflict(here, revision, updated)
    return Saved(_next_revision(revision), _now())


def _next_revision(revision: int) -> int:
    """Above the last one, and never one that this file, or one it replaces, has given out before."""
    return max(revision + 1, time.time_ns() // 1_000_000)


def _excerpt(text: str, word: str, around: int = 60) -> str:
    at = max(text.casefold().find(word), 0)
    cut = text[max(at - around, 0) : at + len(word) + around]
    before, after = "…" if at > around else "", "…" if at + len(word) + around < len(text) else ""
    return before + " ".join(cut.split()) + after


def _check_identifiers(*names: str) -> None:
    for name in names:
        if not _IDENTIFIER.fullmatch(name):
            raise ArgumentError(
                f"the id of a lesson or section must be small letters, digits and -, but {name[:80]!r} came; "
                "take it from the list of lessons"
            )


def _to_json(value: object) -> str:
    # ASCII, so that a report can quote any string a program made, halves of character pairs included.
    return json.dumps(value, allow_nan=False)


def _new_id() -> str:
    return secrets.token_hex(8)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
