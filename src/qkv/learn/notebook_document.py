"""A notebook as one document: checked when it comes from outside, merged without loss, and written as Markdown.

A document is what *Export* writes and *Import* takes, by this server and by the page in a browser's store alike:

    {"format": "qkv-notebook", "version": 1, "exported": time,
     "notes": [{lesson, section, text, updated}], "bookmarks": [{lesson, section}],
     "drafts": [{lesson, code, updated}],
     "attempts": [{id, lesson, time, code, passed, report, solution_shown}],
     "lab_passed": {lesson: time}, "completed": {lesson: time},
     "cases": [{id, lesson, form, text, note, verdict, time}]}

Times are ISO 8601 in UTC. A `revision` in a note or draft is taken and left behind: it belongs to one file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qkv.errors import ArgumentError

__all__ = ["Document", "Merge", "checked_document", "merge", "readable", "to_markdown"]

Document = dict[str, Any]
Row = dict[str, Any]

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)


def _is_report(value: Any) -> bool:
    """Whether a page can show it: what the grader makes has counts, and cases of which a failed one says how."""
    if value is None:
        return True
    if not isinstance(value, dict) or not isinstance(value.get("counts"), dict):
        return False
    numbers = (value["counts"].get(name) for name in ("passed", "cases"))
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        return False
    return isinstance(value.get("cases"), list) and all(map(_is_graded, value["cases"]))


def _is_graded(case: Any) -> bool:
    if not isinstance(case, dict) or not all(isinstance(case.get(name), str) for name in ("title", "status")):
        return False
    return case["status"] != "failed" or isinstance(case.get("failure"), dict)


def _is_verdict(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return True
    if not isinstance(value, dict) or not isinstance(value.get("sentence"), str | None):
        return False
    return isinstance(value.get("input"), dict | None)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "id": ("small letters, digits and -", lambda x: isinstance(x, str) and bool(_IDENTIFIER.fullmatch(x))),
    "text": ("text", lambda x: isinstance(x, str)),
    "time": ("a time such as 2026-01-31T12:00:00Z", lambda x: isinstance(x, str) and bool(_TIME.fullmatch(x))),
    "flag": ("true or false", lambda x: isinstance(x, bool)),
    "form": ("numbers, json or python", lambda x: x in ("numbers", "json", "python")),
    "report": ("null or a report of the grader", _is_report),
    "verdict": ("null, text or a verdict of the grader", _is_verdict),
}

_LISTS = {
    "notes": {"lesson": "id", "section": "id", "text": "text", "updated": "time"},
    "bookmarks": {"lesson": "id", "section": "id"},
    "drafts": {"lesson": "id", "code": "text", "updated": "time"},
    "attempts": {
        "id": "id",
        "lesson": "id",
        "time": "time",
        "code": "text",
        "passed": "flag",
        "report": "report",
        "solution_shown": "flag",
    },
    "cases": {
        "id": "id",
        "lesson": "id",
        "form": "form",
        "text": "text",
        "note": "text",
        "verdict": "verdict",
        "time": "time",
    },
}
_FACTS = ("lab_passed", "completed")
_WITH_REVISION = ("notes", "drafts")


@dataclass
class Merge:
    """What an import does.

    Attributes:
        new: what was not here.
        changed: what is here and gains: a text of which this one is a part, an earlier time.
        conflicts: texts that differ; both are kept, one below the other.
        equal: how many are here already.
        rows: by kind, what is written.
    """

    new: list[Row] = field(default_factory=list)
    changed: list[Row] = field(default_factory=list)
    conflicts: list[Row] = field(default_factory=list)
    equal: int = 0
    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in (*_LISTS, *_FACTS)})

    def to_dict(self) -> dict[str, Any]:
        """What a person is shown before he says yes."""
        return {"new": self.new, "changed": self.changed, "conflicts": self.conflicts, "equal": self.equal}


# Checking -------------------------------------------------------------------------------------------------------------


def checked_document(document: object) -> Document:
    """The document, every field of the kind it has to be.

    Raises:
        ArgumentError: it is no notebook, or of a version that is not known; the sentence names the first such field.
    """
    if not isinstance(document, dict) or document.get("format") != "qkv-notebook":
        raise ArgumentError(
            'document must be an exported notebook with "format": "qkv-notebook", but another file came; '
            "choose the JSON file that Export saved"
        )
    if document.get("version") != 1:
        raise ArgumentError(
            f"document must be of version 1, but version {str(document.get('version'))[:20]} came; "
            "import it with the qkv that exported it, or a newer one"
        )
    for name in document:
        if name not in ("format", "version", "exported", *_LISTS, *_FACTS):
            raise _wrong(str(name)[:80], "no field of a notebook")
    content = {name: _rows(name, document.get(name, [])) for name in _LISTS}
    facts = {name: _facts(name, document.get(name, {})) for name in _FACTS}
    exported = document.get("exported")
    if exported is not None:
        _check(exported, "exported", "time")
    return {"format": "qkv-notebook", "version": 1, "exported": exported, **content, **facts}


def readable(content: Document) -> Document:
    """The content of a notebook with null for what no page can show, so that all else of an older file gets out of it."""
    out = dict(content)
    for name, key, holds in (("attempts", "report", _is_report), ("cases", "verdict", _is_verdict)):
        out[name] = [row if holds(row[key]) else {**row, key: None} for row in content[name]]
    return out


def _rows(name: str, rows: Any) -> list[Row]:
    if not isinstance(rows, list):
        raise _wrong(name, "not a list")
    kinds = _LISTS[name]
    checked, seen = [], set()
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise _wrong(f"{name}[{at}]", "not an object")
        for key in row:
            if key not in kinds and not (key == "revision" and name in _WITH_REVISION):
                raise _wrong(f"{name}[{at}].{str(key)[:80]}", f"no field of {name}")
        for key, kind in kinds.items():
            if key not in row:
                raise _wrong(f"{name}[{at}].{key}", "missing")
            _check(row[key], f"{name}[{at}].{key}", kind)
        identity = _identity(name, row)
        if identity in seen:
            raise _wrong(f"{name}[{at}]", "there twice")
        seen.add(identity)
        checked.append({key: row[key] for key in kinds})
    return checked


def _facts(name: str, facts: Any) -> dict[str, str]:
    if not isinstance(facts, dict):
        raise _wrong(name, "not an object")
    for lesson, time in facts.items():
        _check(lesson, f"a lesson of {name}", "id")
        _check(time, f"{name}.{lesson}", "time")
    return dict(facts)


def _check(value: Any, name: str, kind: str) -> None:
    said, holds = _KINDS[kind]
    if not holds(value):
        raise _wrong(name, f"not {said}")


def _wrong(name: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"document must be an exported notebook, but {name} is {what}; choose the JSON file that Export saved, unchanged"
    )


def _identity(name: str, row: Row) -> tuple[str, ...]:
    if "id" in _LISTS[name]:
        return (row["id"],)
    return tuple(row[key] for key in ("lesson", "section") if key in _LISTS[name])


# Merging --------------------------------------------------------------------------------------------------------------


def merge(here: Document, incoming: Document, now: str) -> Merge:
    """What it takes to bring `incoming` into `here` so that no word of either is lost.

    Done twice, the second time finds everything equal; done both ways, both notebooks end with the same texts.
    """
    result = Merge()
    for name in _LISTS:
        mine = {_identity(name, row): row for row in here[name]}
        for row in incoming[name]:
            _MERGERS[name](result, name, mine, row, now)
    for name in _FACTS:
        for lesson, time in incoming[name].items():
            since = here[name].get(lesson)
            if since is not None and since <= time:
                result.equal += 1
                continue
            entry = {"kind": name, "lesson": lesson, "time": time}
            (result.new if since is None else result.changed).append(entry)
            result.rows[name].append({"lesson": lesson, "time": time})
    return result


def _merge_mark(result: Merge, name: str, mine: dict[tuple[str, ...], Row], row: Row, now: str) -> None:
    if _identity(name, row) in mine:
        result.equal += 1
        return
    result.new.append({"kind": "bookmark", **row})
    result.rows[name].append(row)


def _merge_text(result: Merge, name: str, mine: dict[tuple[str, ...], Row], row: Row, now: str) -> None:
    key, join = ("text", _both_texts) if name == "notes" else ("code", _both_codes)
    found = mine.get(_identity(name, row))
    here: str = found[key] if found is not None else ""
    there: str = row[key]
    # What this one holds already, word for word or as an earlier merge left it, is no news.
    if _holds(here, there):
        result.equal += 1
        return
    about: Row = {"kind": name[:-1], **{part: row[part] for part in ("lesson", "section") if part in row}}
    if not here:
        result.new.append({**about, key: there})
        result.rows[name].append(row)
    elif _holds(there, here):
        result.changed.append({**about, "here": here, "there": there, "merged": there})
        result.rows[name].append(row)
    else:
        merged = join(here, there, row["updated"])
        result.conflicts.append({**about, "here": here, "there": there, "merged": merged})
        result.rows[name].append({**row, key: merged, "updated": now})


def _merge_entry(result: Merge, name: str, mine: dict[tuple[str, ...], Row], row: Row, now: str) -> None:
    about = {"kind": name[:-1], "id": row["id"], "lesson": row["lesson"], "time": row["time"]}
    here = mine.get((row["id"],))
    if here is None:
        result.new.append(about)
        result.rows[name].append(row)
    elif here == row:
        result.equal += 1
    else:
        # Two entries under one name: the other gets a name made of what it holds, the same whenever it comes again.
        renamed = {**row, "id": hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]}
        if (renamed["id"],) in mine:
            result.equal += 1
            return
        result.conflicts.append({**about, "kept_as": renamed["id"]})
        result.rows[name].append(renamed)


def _holds(text: str, part: str) -> bool:
    """Whether `text` begins with `part`, or has its lines one after the other, also as comments."""
    lines = f"\n{text}\n"
    return text.startswith(part) or f"\n{part}\n" in lines or f"\n{_as_comment(part)}\n" in lines


_MERGERS: dict[str, Callable[[Merge, str, dict[tuple[str, ...], Row], Row, str], None]] = {
    "notes": _merge_text,
    "bookmarks": _merge_mark,
    "drafts": _merge_text,
    "attempts": _merge_entry,
    "cases": _merge_entry,
}


def _both_texts(here: str, there: str, updated: str) -> str:
    return f"{here}\n\n--- imported, written {updated} ---\n\n{there}"


def _both_codes(here: str, there: str, updated: str) -> str:
    # As comments, so that what is here still runs.
    return f"{here}\n\n# --- imported, written {updated} ---\n{_as_comment(there)}"


def _as_comment(code: str) -> str:
    return "\n".join(f"# {line}" for line in code.split("\n"))


# Markdown -------------------------------------------------------------------------------------------------------------


def to_markdown(document: Document, titles: Mapping[str, tuple[str, Mapping[str, str]]]) -> str:
    """The notebook to read and print, lesson by lesson.

    Args:
        document: an exported notebook.
        titles: by lesson its title, and by section the section's; what is not in it goes by its id.
    """
    parts = ["# My notebook"]
    if document["exported"]:
        parts.append(f"Exported {_moment(document['exported'])}.")
    for lesson in _lessons(document, titles):
        title, sections = titles.get(lesson, (lesson, {}))
        parts.append(f"## {title}")
        completed, passed = document["completed"].get(lesson), document["lab_passed"].get(lesson)
        parts.append(
            f"- Completed, as I judge it myself: {_moment(completed) if completed else 'not yet'}\n"
            f"- Lab passed: {_moment(passed) if passed else 'not yet'}"
        )
        marked = [mark["section"] for mark in document["bookmarks"] if mark["lesson"] == lesson]
        if marked:
            parts.append("Bookmarks:\n\n" + "\n".join(f"- {sections.get(mark, mark)}" for mark in marked))
        order = {section: at for at, section in enumerate(sections)}
        notes = [note for note in document["notes"] if note["lesson"] == lesson and note["text"]]
        for note in sorted(notes, key=lambda note: (order.get(note["section"], len(order)), note["section"])):
            parts += [f"### Note: {sections.get(note['section'], note['section'])}", note["text"]]
        for draft in document["drafts"]:
            if draft["lesson"] == lesson and draft["code"]:
                parts += [f"### In the editor, {_moment(draft['updated'])}", _fenced(draft["code"], "python")]
        for case in document["cases"]:
            if case["lesson"] == lesson:
                parts.append(f"### A failure to test, {_moment(case['time'])}")
                parts += [case["note"]] if case["note"] else []
                parts.append(_fenced(case["text"], "python" if case["form"] == "python" else "json"))
                parts.append(f"Verdict: {_plain(case['verdict'])}")
        for attempt in document["attempts"]:
            if attempt["lesson"] == lesson:
                outcome = "passed" if attempt["passed"] else "not passed"
                shown = ", after the solution was shown" if attempt["solution_shown"] else ""
                parts.append(f"### Attempt, {_moment(attempt['time'])}: {outcome}{shown}")
                parts.append(_fenced(attempt["code"], "python"))
    if len(parts) <= 2:
        parts.append("Nothing is in it yet.")
    return "\n\n".join(parts) + "\n"


def _lessons(document: Document, titles: Mapping[str, Any]) -> list[str]:
    """The lessons of which something is kept, in the order of the titles, those without a title last."""
    kept = {row["lesson"] for name in _LISTS for row in document[name]} | {x for name in _FACTS for x in document[name]}
    return [lesson for lesson in titles if lesson in kept] + sorted(kept - set(titles))


def _moment(time: str) -> str:
    return f"{time[:10]} {time[11:16]} UTC"


def _fenced(code: str, language: str) -> str:
    """A fence longer than any run of back quotes inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code)), default=0))
    return f"{fence}{language}\n{code.removesuffix(chr(10))}\n{fence}"


def _plain(verdict: Any) -> str:
    if isinstance(verdict, str):
        return verdict
    if isinstance(verdict, dict):
        for key in ("message", "sentence", "text", "summary"):
            if isinstance(verdict.get(key), str):
                return str(verdict[key])
    return json.dumps(verdict, ensure_ascii=False, separators=(",", ":"))
