"""The lesson as a folder of files: the same page, for any web server and under any path, notes kept in the browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError
from qkv.version import __version__

from .assets import page, worker_files
from .guard import policy
from .head import chosen_rows
from .lessons import Lesson
from .verdicts import table

__all__ = ["export_site"]


def export_site(folder: Path, lessons: tuple[Lesson, ...], assets: Path, *, solutions: bool = True) -> list[Path]:
    """Write the site and give its files.

    All of it stands in a folder beside the target before it takes the target's place, so that a full disk leaves no
    half of a site.

    Args:
        folder: where it goes: new, empty, or an earlier export, which is replaced.
        lessons: built.
        assets: the folder of the page.
        solutions: whether the labs' solutions are among the files. If not, the definition that the lab judges by is
            there still, since the page computes with it, but as a file that is no solution as it stands.

    Raises:
        ArgumentError: the folder holds something else.
    """
    _check_target(folder)
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    try:
        _write(partial, lessons, assets, solutions)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _check_target(folder: Path) -> None:
    if not folder.exists():
        return
    if folder.is_dir():
        try:
            known = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = None
        if not any(folder.iterdir()) or (isinstance(known, dict) and known.get("site") == "qkv learn"):
            return
    raise ArgumentError(
        f"{folder} is there already and is no earlier export; name an empty folder, or one that is not there yet"
    )


def _write(folder: Path, lessons: tuple[Lesson, ...], assets: Path, solutions: bool) -> None:
    # Copied first: what is computed below goes over it.
    shutil.copytree(assets, folder, ignore=shutil.ignore_patterns("__pycache__", "*.py", "*.pyc"))
    (folder / "index.html").write_text(_page(assets), encoding="utf-8")
    # GitHub's pages would leave out what begins with an underscore.
    (folder / ".nojekyll").write_bytes(b"")
    python = worker_files()
    for name, file in python.items():
        target = folder / "py" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
        if name == "plain.py" and not solutions:
            target.write_text(_only_judging(file.read_text(encoding="utf-8")), encoding="utf-8")
    paths = {name: f"py/{name}" for name in python}
    _json(folder / "config.json", {"version": __version__, "static": True, "site": "qkv learn", "python": paths})
    _json(folder / "api" / "head.json", chosen_rows())
    _json(folder / "api" / "elsewhere.json", table())
    _json(folder / "api" / "lessons.json", [lesson.summary() for lesson in lessons])
    for lesson in lessons:
        _json(folder / "api" / "lessons" / f"{lesson.id}.json", lesson.to_dict(solutions=solutions))
        if solutions and lesson.lab is not None and lesson.lab.solution is not None:
            _json(folder / "api" / "lessons" / lesson.id / "solution.json", {"code": lesson.lab.solution})


def _only_judging(definition: str) -> str:
    """`plain.py` without a function `attend` of its own: who imports it finds one, who hands the file in does not."""
    head = "\ndef attend("
    if definition.count(head) != 1:
        raise RuntimeError("plain.py must define attend once")
    return definition.replace(head, "\ndef _defined(") + _FOUND


_FOUND = """

def __getattr__(name: str) -> object:
    if name == "attend":
        return _defined
    raise AttributeError(name)
"""


def _page(assets: Path) -> str:
    """The page with the policy that a server would send, less what only a header can say."""
    said = policy().replace("; frame-ancestors 'none'", "")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{said}">'
    return page(assets, "").replace('<meta charset="utf-8">', f'<meta charset="utf-8">{meta}', 1)


def _json(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, ensure_ascii=False, allow_nan=False), encoding="utf-8")
