"""The static site: every file the page asks for, nothing of a solution where it was left out, no folder harmed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from learner import make_assets, make_lessons, running

from qkv import plain
from qkv.errors import ArgumentError
from qkv.learn import site
from qkv.learn.lessons import lessons
from qkv.learn.site import export_site


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_assets(tmp_path / "page")
    make_lessons(tmp_path / "content")
    return tmp_path


def export(place: Path, **options: bool) -> Path:
    export_site(place / "site", lessons(place / "content"), place / "page", **options)
    return place / "site"


def test_a_site_answers_as_the_server_does(place):
    """What the page reads is the same under the same relative address; only that it is static is another fact."""
    folder = export(place)
    paths = ["api/lessons.json", "api/lessons/sample.json", "api/lessons/sample/solution.json", "api/head.json"]
    paths.append("api/elsewhere.json")
    with running(place / "n.db", place / "page", place / "content") as browser:
        for path in paths:
            assert json.loads((folder / path).read_text()) == browser.ask("GET", f"/{path}")
        config, served = json.loads((folder / "config.json").read_text()), browser.ask("GET", "/config.json")
        for path in [*config["python"].values(), "assets/main.js", "pyodide/pyodide.asm.wasm"]:
            assert (folder / path).read_bytes() == browser.call("GET", f"/{path}")[2]
    assert config["python"] == served["python"]
    assert (config["static"], served["static"]) == (True, False)
    assert "notebook_path" not in config


def test_nothing_in_a_site_depends_on_where_it_stands(place):
    """Under a sub-path an address that begins with / leads out of the site."""
    folder = export(place)
    for path in json.loads((folder / "config.json").read_text())["python"].values():
        assert not path.startswith(("/", "http"))
    lesson = json.loads((folder / "api/lessons/sample.json").read_text())
    assert not lesson["lab"]["solution"].startswith("/")
    assert (folder / ".nojekyll").exists()


def test_a_site_has_the_policy_in_its_page(place):
    text = (export(place) / "index.html").read_text()
    assert "script-src 'self' 'wasm-unsafe-eval'" in text
    # Only a header can say this, and a browser complains of it elsewhere.
    assert "frame-ancestors" not in text
    assert text.index("Content-Security-Policy") < text.index("<script")
    assert 'content="NONCE"' not in text


def test_solutions_can_be_left_out_of_all_files(place):
    with_them = [
        file for file in export(place).rglob("*") if file.is_file() and b"the_secret_solution" in file.read_bytes()
    ]
    assert [file.name for file in with_them] == ["solution.json"]
    folder = export(place, solutions=False)
    assert not [file for file in folder.rglob("*") if file.is_file() and b"the_secret_solution" in file.read_bytes()]
    assert json.loads((folder / "api/lessons/sample.json").read_text())["lab"]["solution"] is None


def test_without_solutions_the_definition_is_none_as_it_stands(place):
    """It judges as before; handed in, it is told that it defines no attend."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import grader, plain; "
        "report = grader.grade(open(plain.__file__, encoding='utf-8').read()); "
        "print(grader.grade(plain.attend).passed, report.counts['passed'], report.first_failure['failure']['says'])"
    )
    folder = export(place, solutions=False) / "py"
    command = [sys.executable, "-I", "-S", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("True 0 ")
    assert "defines no function attend" in done.stdout
    assert (export(place) / "py" / "plain.py").read_bytes() == Path(plain.__file__).read_bytes()


def test_an_earlier_export_is_replaced_whole(place):
    folder = export(place)
    (folder / "assets" / "old.js").write_text("old")
    export(place)
    assert not (folder / "assets" / "old.js").exists()
    assert not (place / "site.partial").exists()


def test_a_folder_with_anything_else_in_it_is_left_alone(place):
    folder = place / "site"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    for other in (None, "config.json"):
        if other:
            (folder / other).write_text('{"static": true}')
        with pytest.raises(ArgumentError, match="is no earlier export; name an empty folder"):
            export(place)
        assert (folder / "thesis.txt").read_text() == "years of work"
    (place / "file").write_text("x")
    with pytest.raises(ArgumentError, match="is no earlier export"):
        export_site(place / "file", (), place / "page")


def test_an_export_that_fails_leaves_the_earlier_one(place, monkeypatch):
    folder = export(place)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site, "chosen_rows", full)
    with pytest.raises(OSError, match="No space left"):
        export(place)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert not (place / "site.partial").exists()
