"""Lessons: one Markdown file each in `content/`, with front matter, and the files of its lab beside it.

The format is `content/README.md`. Building takes a fraction of a second and is done once a process; what is wrong in a
lesson stops the build with file and line.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import FileError

from .expressions import FUNCTIONS, compute
from .lesson_text import IDENTIFIER, LessonText, Section

__all__ = ["CONTENT", "Lab", "Lesson", "build", "lessons"]

#: The folder that holds the lessons.
CONTENT = Path(__file__).parent / "content"


# What is built --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lab:
    """What the editor holds at first, the hints in order (HTML), and a solution."""

    starter: str
    hints: list[str]
    solution: str | None


@dataclass(frozen=True)
class Lesson:
    """A lesson, built."""

    id: str
    title: str
    minutes: int
    order: int
    outcomes: list[str]
    intro: str
    sections: list[Section]
    lab: Lab | None

    def summary(self) -> dict[str, Any]:
        """Its line in the list of lessons; a section's title is HTML, its name the same as text."""
        sections = [{"id": section.id, "title": section.title, "name": section.name} for section in self.sections]
        return {"id": self.id, "title": self.title, "minutes": self.minutes, "sections": sections}

    def to_dict(self, *, solutions: bool = True) -> dict[str, Any]:
        """All of it, the solution as the address of a request of its own."""
        lab = None
        if self.lab is not None:
            shown = solutions and self.lab.solution is not None
            address = f"api/lessons/{self.id}/solution.json" if shown else None
            lab = {"starter": self.lab.starter, "hints": self.lab.hints, "solution": address}
        return {
            "id": self.id,
            "title": self.title,
            "minutes": self.minutes,
            "order": self.order,
            "outcomes": self.outcomes,
            "intro": self.intro,
            "sections": [section.to_dict() for section in self.sections],
            "lab": lab,
        }


@functools.cache
def lessons(folder: Path = CONTENT) -> tuple[Lesson, ...]:
    """Every lesson of a folder, in order, built once.

    Raises:
        FileError: a lesson does not follow the format; the sentence names file and line.
    """
    files = sorted(file for file in folder.glob("*.md") if re.fullmatch(IDENTIFIER, file.stem))
    built = [build(file) for file in files]
    return tuple(sorted(built, key=lambda lesson: (lesson.order, lesson.id)))


def build(file: Path) -> Lesson:
    """One lesson from its file and the files of its lab beside it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    about, names, start = _front_matter(file, lines)
    builder = LessonText(file, names)
    builder.read(lines, start)
    return Lesson(
        id=file.stem,
        title=about["title"],
        minutes=int(about["minutes"]),
        order=int(about["order"]),
        outcomes=[builder.inline(outcome, 1) for outcome in about.get("outcomes", [])],
        intro=builder.intro,
        sections=builder.sections,
        lab=_lab(file, builder),
    )


def _lab(file: Path, builder: LessonText) -> Lab | None:
    starter, hints, solution = (file.with_suffix(end) for end in (".starter.py", ".hints.md", ".solution.py"))
    if not starter.exists():
        return None
    parts = re.split(r"^---\s*$", hints.read_text(encoding="utf-8"), flags=re.M) if hints.exists() else []
    return Lab(
        starter=starter.read_text(encoding="utf-8"),
        hints=[builder.markdown(part.strip().splitlines(), 0) for part in parts if part.strip()],
        solution=solution.read_text(encoding="utf-8") if solution.exists() else None,
    )


# Front matter ---------------------------------------------------------------------------------------------------------

_FIELDS = {"title": str, "minutes": int, "order": int, "outcomes": list, "let": list}


def _front_matter(file: Path, lines: list[str]) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The fields, the names that `let` computed, and the line after the front matter."""
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        raise FileError(f"{file.name}:1: a lesson begins with front matter between two lines of ---; write it")
    end = lines.index("---", 1)
    about: dict[str, Any] = {}
    names: dict[str, Any] = {}
    key = ""
    for number, line in enumerate(lines[1:end], start=2):
        if not line.strip():
            continue
        if line.startswith("  - ") and _FIELDS.get(key) is list:
            about[key].append(line[4:].strip())
            if key == "let":
                _let(line[4:], names, f"{file.name}:{number}")
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or key not in _FIELDS or key in about:
            raise FileError(f"{file.name}:{number}: {line!r} is no field of a lesson; there are {', '.join(_FIELDS)}")
        if _FIELDS[key] is int and not value.isdecimal():
            raise FileError(f"{file.name}:{number}: {key} must be a whole number, but {value!r} came; write one")
        about[key] = [] if _FIELDS[key] is list else value
    for required in ("title", "minutes", "order"):
        if not about.get(required):
            raise FileError(f"{file.name}:1: the front matter has no {required}; add it")
    return about, names, end + 1


def _let(text: str, names: dict[str, Any], place: str) -> None:
    name, equals, expression = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier() or name in FUNCTIONS or name in names:
        raise FileError(f"{place}: {text.strip()!r} must be a new name, = and an expression; write it so")
    try:
        names[name] = compute(expression, names)
    except FileError as error:
        raise FileError(f"{place}: {error}") from error
