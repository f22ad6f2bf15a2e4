"""Every address of the server, as the page asks it."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from learner import Browser, make_assets, make_lessons, running

import qkv
from qkv.learn import notebook_file, server
from qkv.learn.notebook import Notebook
from qkv.learn.notebook_file import MIGRATIONS


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learn")
    make_assets(folder / "page")
    make_lessons(folder / "content")
    return folder


@pytest.fixture(scope="module")
def shared(place: Path) -> Iterator[Browser]:
    with running(place / "notebook.db", place / "page", place / "content") as browser:
        yield browser


@pytest.fixture
def browser(shared: Browser, place: Path) -> Browser:
    """The running server, its notebook empty."""
    for file in place.glob("notebook.db*"):
        file.unlink()
    return shared


# Reading --------------------------------------------------------------------------------------------------------------


def test_the_page_carries_the_nonce_of_its_policy(browser):
    nonces = set()
    for _ in range(2):
        status, headers, content = browser.call("GET", "/")
        assert status == 200
        assert headers["content-type"] == "text/html; charset=utf-8"
        nonce = content.decode().split('name="csp-nonce" content="')[1].split('"')[0]
        assert f"'nonce-{nonce}'" in headers["content-security-policy"]
        nonces.add(nonce)
    assert len(nonces) == 2


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [
        ("/assets/main.js", "text/javascript", b"export {};"),
        ("/pyodide/pyodide.asm.wasm", "application/wasm", b"\0asm"),
        ("/py/plain.py", "text/x-python", Path(qkv.plain.__file__).read_bytes()),
    ],
)
def test_files(browser, path, kind, content):
    status, headers, got = browser.call("GET", path)
    assert (status, headers["content-type"].partition(";")[0], got) == (200, kind, content)
    assert browser.call("HEAD", path)[2] == b""


def test_every_python_file_that_config_names_is_there(browser):
    config = browser.ask("GET", "/config.json")
    assert config == browser.ask("GET", "/api/config")
    assert (config["version"], config["static"]) == (qkv.__version__, False)
    assert config["notebook_path"].endswith("notebook.db")
    assert {"plain.py", "grader.py", "alike.py"} <= set(config["python"])
    for path in config["python"].values():
        compile(browser.call("GET", f"/{path}")[2], path, "exec")


def test_lessons(browser):
    for ending in ("", ".json"):
        listed = browser.ask("GET", f"/api/lessons{ending}")
        assert [(lesson["id"], [s["id"] for s in lesson["sections"]]) for lesson in listed] == [
            ("sample", ["first", "rest"])
        ]
        lesson = browser.ask("GET", f"/api/lessons/sample{ending}")
        assert lesson["lab"]["solution"] == "api/lessons/sample/solution.json"
        assert "the_secret_solution" not in json.dumps(lesson)
        assert "the_secret_solution" in browser.ask("GET", f"/api/lessons/sample/solution{ending}")["code"]
    assert "no such lesson" in browser.refused(404, "GET", "/api/lessons/none.json")
    assert "no such lesson" in browser.refused(404, "GET", "/api/lessons/none/solution.json")


def test_the_head_can_be_reproduced(browser):
    """The definition, on the numbers as they travel, gives the model's own output within the derived bound."""
    head = browser.ask("GET", "/api/head.json")
    assert head == browser.ask("GET", "/api/head")
    assert len(head["tokens"]) == len(head["keys"]) == len(head["values"])
    assert "".join(head["tokens"]) == head["text"]
    for row in head["rows"]:
        allowed = [j < row["allowed_count"] for j in range(len(head["keys"]))]
        context = qkv.plain.attend(row["query"], head["keys"], head["values"], allowed)[1]
        for got, expected, bound in zip(context, row["output"], row["bound"], strict=True):
            assert abs(got - expected) <= bound
    # The bound is worth something: without the mask it is not met.
    row = head["rows"][0]
    context = qkv.plain.attend(row["query"], head["keys"], head["values"])[1]
    assert any(abs(c - e) > b for c, e, b in zip(context, row["output"], row["bound"], strict=True))


def test_addresses_that_are_not_there(browser):
    for path in ("/api/none", "/none.html", "/py/none.py", "/py/__init__.py", "/assets/", "/assets"):
        assert browser.refused(404, "GET", path)
    assert "does not take PUT" in browser.refused(405, "PUT", "/api/notebook", {})
    assert "does not take GET" in browser.refused(405, "GET", "/api/attempts")


# The notebook ---------------------------------------------------------------------------------------------------------


def test_an_empty_notebook(browser):
    content = browser.ask("GET", "/api/notebook")
    assert content.pop("id")
    assert content == {
        "schema": len(MIGRATIONS),
        "notes": [],
        "bookmarks": [],
        "drafts": [],
        "attempts": [],
        "lab_passed": {},
        "completed": {},
        "cases": [],
    }


def test_notes_and_drafts_with_two_tabs(browser):
    for path, key in (("/api/notes/sample/first", "text"), ("/api/drafts/sample", "code")):
        saved = browser.ask("PUT", path, {key: "mine", "base_revision": 0})
        assert set(saved) == {"revision", "updated"}
        status, _, content = browser.call("PUT", path, {key: "yours", "base_revision": 0})
        conflict = json.loads(content)
        assert (status, conflict[key], conflict["revision"]) == (409, "mine", saved["revision"])
        assert "keep what you need of both" in conflict["error"]
        both = browser.ask("PUT", path, {key: "mine\nyours", "base_revision": conflict["revision"]})
        assert both["revision"] > saved["revision"]
    content = browser.ask("GET", "/api/notebook")
    assert [note["text"] for note in content["notes"]] == ["mine\nyours"]
    assert [draft["code"] for draft in content["drafts"]] == ["mine\nyours"]


def test_marks(browser):
    assert browser.ask("PUT", "/api/bookmarks/sample/rest", {"on": True}) == {"on": True}
    assert browser.ask("PUT", "/api/completed/sample", {"on": True})["time"].endswith("Z")
    content = browser.ask("GET", "/api/notebook")
    assert content["bookmarks"] == [{"lesson": "sample", "section": "rest"}]
    assert (list(content["completed"]), content["lab_passed"]) == (["sample"], {})
    browser.ask("PUT", "/api/bookmarks/sample/rest", {"on": False})
    browser.ask("PUT", "/api/completed/sample", {"on": False})
    content = browser.ask("GET", "/api/notebook")
    assert (content["bookmarks"], content["completed"]) == ([], {})


def test_attempts_are_kept_and_never_run(browser, place):
    """The server takes a learner's code as text."""
    witness = place / "it ran"
    code = f"open({str(witness)!r}, 'w')"
    body = {"lesson": "sample", "code": code, "report": {"said": ["\ud800", 1.5]}, "passed": False}
    first = browser.ask("POST", "/api/attempts", {**body, "solution_shown": False})
    assert first["lab_passed"] is None
    second = browser.ask("POST", "/api/attempts", {**body, "passed": True, "solution_shown": True})
    assert second["lab_passed"] == second["time"]
    content = browser.ask("GET", "/api/notebook")
    assert [attempt["id"] for attempt in content["attempts"]] == [first["id"], second["id"]]
    assert content["attempts"][0]["report"] == body["report"]
    assert (list(content["lab_passed"]), content["completed"]) == (["sample"], {})
    assert not witness.exists()


def test_cases(browser):
    body = {"lesson": "sample", "form": "json", "text": "{}", "note": "why", "verdict": {"clause": "A3"}}
    case = browser.ask("POST", "/api/cases", body)
    assert [{**kept, "time": ""} for kept in browser.ask("GET", "/api/notebook")["cases"]] == [
        {**body, "id": case["id"], "time": ""}
    ]
    assert "numbers, json, python" in browser.refused(400, "POST", "/api/cases", {**body, "form": "yaml"})
    browser.ask("DELETE", f"/api/cases/{case['id']}")
    assert "deleted already" in browser.refused(404, "DELETE", f"/api/cases/{case['id']}")


def test_search(browser):
    browser.ask("PUT", "/api/notes/sample/first", {"text": "Softmax of scores", "base_revision": 0})
    hits = browser.ask("GET", "/api/search?q=SCORES%20softmax")
    assert [(hit["kind"], hit["section"]) for hit in hits] == [("note", "first")]
    assert browser.ask("GET", "/api/search") == []


def test_lost_notes_export_wipe_import(browser, place):
    """lost-notes (mdn/content#8510): notes are in a file of the learner's, and come back from what was exported."""
    browser.ask("PUT", "/api/notes/sample/first", {"text": "mine 😀", "base_revision": 0})
    browser.ask("PUT", "/api/bookmarks/sample/rest", {"on": True})
    _, headers, text = browser.call("GET", "/api/export?format=json")
    assert headers["content-disposition"] == 'attachment; filename="qkv-notebook.json"'
    document = json.loads(text)
    for file in place.glob("notebook.db*"):
        file.unlink()
    preview = browser.ask("POST", "/api/import/preview", {"document": document})
    assert browser.ask("GET", "/api/notebook")["notes"] == []
    assert len(preview["new"]) == 2
    assert browser.ask("POST", "/api/import", {"document": document}) == preview
    again = browser.ask("GET", "/api/export")
    assert {**again, "exported": ""} == {**document, "exported": ""}
    assert browser.ask("POST", "/api/import/preview", {"document": document})["equal"] == 2
    assert "choose the JSON file" in browser.refused(400, "POST", "/api/import", {"document": {"format": "diary"}})


def test_markdown_uses_the_titles_of_the_lesson(browser):
    browser.ask("PUT", "/api/notes/sample/first", {"text": "mine 😀", "base_revision": 0})
    _, headers, text = browser.call("GET", "/api/export?format=markdown")
    assert headers["content-type"] == "text/markdown; charset=utf-8"
    assert "## A lesson & its sample\n" in text.decode()
    assert "### Note: First <b>things</b>\n\nmine 😀" in text.decode()
    assert "json or markdown" in browser.refused(400, "GET", "/api/export?format=pdf")


def test_notes_of_a_lesson_that_is_gone_can_still_be_edited(browser, place):
    assert "no such lesson" in browser.refused(404, "PUT", "/api/notes/gone/first", {"text": "", "base_revision": 0})
    assert "no such lesson" in browser.refused(404, "PUT", "/api/notes/sample/gone", {"text": "", "base_revision": 0})
    with Notebook(place / "notebook.db") as book:
        revision = book.save_note("gone", "first", "from an older version", 0).revision
    browser.ask("PUT", "/api/notes/gone/first", {"text": "edited", "base_revision": revision})


# What comes in wrong --------------------------------------------------------------------------------------------------

NOTE = "/api/notes/sample/first"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "must be JSON in UTF-8"),
        (b'{"text": "\xff", "base_revision": 0}', "must be JSON in UTF-8"),
        (b'{"text": "", "base_revision": NaN}', "with finite numbers"),
        (b'{"text": "", "base_revision": 1e999}', "with finite numbers"),
        (b"[]", "must be an object with text, base_revision"),
        (b'{"text": ""}', "has no base_revision"),
        (b'{"text": "", "base_revision": 0, "colour": 1}', "has a field 'colour'"),
        (b'{"text": 1, "base_revision": 0}', "text must be text"),
        (b'{"text": "", "base_revision": true}', "base_revision must be a whole number"),
        (b'{"text": "", "base_revision": -1}', "base_revision must be a whole number"),
        (b'{"text": "", "base_revision": 0.5}', "base_revision must be a whole number"),
        (b'{"text": "", "base_revision": ' + b"9" * 5000 + b"}", "must be JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "deep"),
        (b'{"text": ' + b"[" * 200 + b"]" * 200 + b', "base_revision": 0}', "may be nested 100 deep"),
    ],
)
def test_a_body_that_is_wrong_is_refused(browser, body, sentence):
    assert sentence in browser.refused(400, "PUT", NOTE, body)
    assert browser.ask("GET", "/api/notebook")["notes"] == []


def test_a_report_as_deep_as_allowed_comes_back(browser):
    deep: object = 1
    for _ in range(97):
        deep = [deep]
    report = {"counts": {"passed": 0, "cases": 0}, "cases": [], "said": deep}
    body = {"lesson": "sample", "code": "", "report": report, "passed": False, "solution_shown": False}
    browser.ask("POST", "/api/attempts", body)
    assert browser.ask("GET", "/api/notebook")["attempts"][0]["report"] == report
    assert browser.ask("GET", "/api/export")["attempts"][0]["report"] == report


def test_a_body_has_to_be_json(browser):
    sentence = browser.refused(415, "PUT", NOTE, b"{}", Content_Type="text/plain")
    assert "Content-Type: application/json" in sentence
    browser.refused(415, "PUT", NOTE, b"{}", Content_Type=None)


def test_a_body_that_is_too_large_is_refused(browser, monkeypatch):
    large = b'{"text": "' + b"x" * server.SAVE_LIMIT + b'", "base_revision": 0}'
    assert "4 MB" in browser.refused(413, "PUT", NOTE, large)
    # Before any of it came, where the length is said; and where it is not.
    assert "4 MB" in browser.refused(413, "PUT", NOTE, Content_Type="application/json", Content_Length=str(10**12))
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large)
    browser.refused(413, "PUT", NOTE, chunks, Content_Length=None, Transfer_Encoding="chunked")
    assert browser.ask("GET", "/api/notebook")["notes"] == []


def test_a_full_disk_is_507(browser, place, monkeypatch):
    browser.ask("PUT", NOTE, {"text": "kept", "base_revision": 0})
    with monkeypatch.context() as full:
        real = sqlite3.Connection

        class Full:
            """A connection whose commits find no room."""

            def __init__(self, connection: sqlite3.Connection) -> None:
                self._connection = connection

            def __getattr__(self, name: str) -> object:
                return getattr(self._connection, name)

            def execute(self, statement: str, *rest: object) -> object:
                if statement == "COMMIT":
                    raise sqlite3.OperationalError("database or disk is full")
                return real.execute(self._connection, statement, *rest)

        follow = Notebook._follow_file
        kept = []

        def replaced(book: Notebook) -> None:
            follow(book)
            if not isinstance(book._connection, Full):
                kept.append((book, book._connection))
                book._connection = Full(book._connection)  # type: ignore[assignment]

        full.setattr(Notebook, "_follow_file", replaced)
        body = {"text": "lost", "base_revision": 0}
        assert "the disk is full" in browser.refused(507, "PUT", "/api/notes/sample/rest", body)
        for book, connection in kept:
            book._connection = connection
    assert [note["text"] for note in browser.ask("GET", "/api/notebook")["notes"]] == ["kept"]


def test_a_locked_file_is_503(browser, place, monkeypatch):
    monkeypatch.setattr(notebook_file, "PATIENCE", 0.3)
    browser.ask("PUT", NOTE, {"text": "kept", "base_revision": 0})
    other = sqlite3.connect(place / "notebook.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answers = []
    body = {"text": "later", "base_revision": 0}
    waiting = threading.Thread(target=lambda: answers.append(browser.call("PUT", "/api/notes/sample/rest", body)))
    waiting.start()
    # Others can read all the while.
    assert browser.ask("GET", "/api/lessons.json")
    waiting.join()
    other.execute("ROLLBACK")
    other.close()
    status, _, content = answers[0]
    assert (status, "another program is writing" in content.decode()) == (503, True)


def test_a_fault_of_ours_is_a_sentence_too(browser, monkeypatch):
    monkeypatch.setattr(Notebook, "everything", lambda self: 1 / 0)
    assert "please report it (ZeroDivisionError)" in browser.refused(500, "GET", "/api/notebook")
