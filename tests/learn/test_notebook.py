"""The notebook as a library: what is kept, what two tabs do to each other, what comes in and goes out."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest

from qkv.errors import ArgumentError
from qkv.learn import notebook_file
from qkv.learn.notebook import Conflict, Notebook
from qkv.learn.notebook_document import to_markdown

CASE = {"title": "causal", "status": "failed", "failure": {"numbers": [1.5, -2]}}
REPORT = {"counts": {"passed": 0, "cases": 1}, "cases": [CASE], "said": "half a pair: \ud800"}


@pytest.fixture
def book(tmp_path: Path):
    with Notebook(tmp_path / "notebook.db") as opened:
        yield opened


def fill(book: Notebook) -> None:
    """Something of every kind."""
    book.save_note("attention", "roles", "Queries ask.\r\n\tKeys `address`. Ärger 😀\n\0", 0)
    book.save_note("attention", "masks", "```\nfenced\n```", 0)
    book.save_draft("attention", "def attend():\n    return '`````'\n", 0)
    book.set_bookmark("attention", "roles", True)
    book.set_completed("cache", True)
    book.add_attempt("attention", "x = 1", report=REPORT, passed=False, solution_shown=False)
    book.add_attempt("attention", "x = 2", report=None, passed=True, solution_shown=True)
    book.add_case("attention", "json", '{"query": []}', note="empty", verdict={"sentence": "refused: A3", "n": 1})


def with_report(document: dict, report: object) -> dict:
    return {**document, "attempts": [{**document["attempts"][0], "report": report}]}


def bare(document: dict) -> dict:
    return {**document, "exported": None}


# What is kept ---------------------------------------------------------------------------------------------------------


def test_everything_is_there_after_closing_the_file(book):
    fill(book)
    before = book.everything()
    with Notebook(book.path) as again:
        assert again.everything() == before
    assert before["notes"][1]["text"] == "Queries ask.\r\n\tKeys `address`. Ärger 😀\n\0"
    assert [a["passed"] for a in before["attempts"]] == [False, True]
    assert before["attempts"][0]["report"] == REPORT
    assert before["schema"] == len(notebook_file.MIGRATIONS)


def test_a_notebook_is_known_wherever_it_lies(book, tmp_path):
    """A page keeps unsaved texts under its name, and must not offer them in another notebook, export and import aside."""
    name = book.everything()["id"]
    book.close()
    moved = book.path.rename(tmp_path / "moved.db")
    with Notebook(moved) as again, Notebook(tmp_path / "other.db") as other:
        assert again.everything()["id"] == name
        assert other.everything()["id"] != name
        other.take_in(again.document())
        assert other.everything()["id"] != name
        assert "id" not in again.document()


def test_what_no_file_can_hold_is_replaced_and_not_refused(book):
    book.save_note("attention", "roles", "half \ud800 pair", 0)
    assert book.everything()["notes"][0]["text"] == "half \ufffd pair"


def test_a_commit_waits_for_the_disk(book):
    """WAL with synchronous=FULL (2), so that a confirmed save survives a loss of power as well."""
    assert book._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert book._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_file_is_the_learners_own(book):
    assert book.path.stat().st_mode & 0o077 == 0


def test_bookmarks_go_on_and_off(book):
    for on in (True, True, False, False, True):
        book.set_bookmark("attention", "roles", on)
        assert bool(book.everything()["bookmarks"]) is on


def test_completed_and_lab_passed_are_two_facts(book):
    book.set_completed("attention", True)
    assert (list(book.everything()["completed"]), list(book.everything()["lab_passed"])) == (["attention"], [])
    book.set_completed("attention", False)
    book.add_attempt("attention", "x", report=None, passed=True, solution_shown=False)
    assert (list(book.everything()["completed"]), list(book.everything()["lab_passed"])) == ([], ["attention"])
    # A later attempt that fails, and a later word of the learner, change neither the one nor the other.
    since = book.everything()["lab_passed"]
    book.add_attempt("attention", "y", report=None, passed=False, solution_shown=False)
    book.set_completed("attention", True)
    book.set_completed("attention", False)
    assert book.everything()["lab_passed"] == since


def test_completed_keeps_its_first_time(book):
    first = book.set_completed("attention", True)
    assert book.set_completed("attention", True) == first


def test_cases_can_be_deleted_once(book):
    case = book.add_case("attention", "python", "attend()", note="", verdict=None)
    assert book.delete_case(case["id"])
    assert not book.delete_case(case["id"])


@pytest.mark.parametrize("name", ["", "Attention", "../x", "a b", "-a", "a" * 81])
def test_ids_are_ids(book, name):
    with pytest.raises(ArgumentError, match="small letters, digits and -"):
        book.save_note(name, "roles", "x", 0)
    with pytest.raises(ArgumentError, match="small letters, digits and -"):
        book.set_bookmark("attention", name, True)


def test_a_case_has_one_of_three_forms(book):
    with pytest.raises(ArgumentError, match="numbers, json, python"):
        book.add_case("attention", "yaml", "x", note="", verdict=None)


def test_search_finds_every_word_in_any_case(book):
    fill(book)
    assert [(hit["kind"], hit.get("section")) for hit in book.search("QUERIES ärger")] == [("note", "roles")]
    assert {hit["kind"] for hit in book.search("x =")} == {"attempt"}
    assert {hit["kind"] for hit in book.search("empty query")} == {"case"}
    assert book.search("queries nowhere") == []
    assert book.search("  ") == []


# Two tabs -------------------------------------------------------------------------------------------------------------


def test_a_text_is_never_written_over_one_that_was_not_seen(book):
    first = book.save_note("attention", "roles", "mine", 0)
    with pytest.raises(Conflict) as conflict:
        book.save_note("attention", "roles", "yours", 0)
    assert (conflict.value.text, conflict.value.revision) == ("mine", first.revision)
    assert book.everything()["notes"][0]["text"] == "mine"
    second = book.save_note("attention", "roles", "mine and yours", first.revision)
    assert second.revision > first.revision
    with pytest.raises(Conflict):
        book.save_note("attention", "roles", "late", first.revision)


def test_a_save_that_was_sent_twice_is_confirmed_twice(book):
    """The answer to the first one may have been lost."""
    saved = book.save_note("attention", "roles", "text", 0)
    assert book.save_note("attention", "roles", "text", 0) == saved


def test_an_emptied_note_takes_any_text(book):
    saved = book.save_note("attention", "roles", "text", 0)
    emptied = book.save_note("attention", "roles", "", saved.revision)
    assert book.document()["notes"] == []
    assert book.save_note("attention", "roles", "again", saved.revision).revision > emptied.revision


def test_drafts_conflict_as_notes_do(book):
    book.save_draft("attention", "a = 1", 0)
    with pytest.raises(Conflict, match="another tab"):
        book.save_draft("attention", "a = 2", 0)


def test_two_writers_lose_nothing(tmp_path):
    """Two programs append to one note a hundred times each; every line is there in the end."""
    path = tmp_path / "notebook.db"
    Notebook(path).close()

    def write(name: str) -> None:
        with Notebook(path) as mine:
            for number in range(50):
                text, revision = "", 0
                while True:
                    try:
                        mine.save_note("attention", "roles", f"{text}{name}{number}\n", revision)
                        break
                    except Conflict as newer:
                        text, revision = newer.text, newer.revision

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Notebook(path) as book:
        lines = book.everything()["notes"][0]["text"].split()
    assert sorted(lines) == sorted(f"{name}{number}" for name in "ab" for number in range(50))
    for name in "ab":
        assert [line for line in lines if line.startswith(name)] == [f"{name}{number}" for number in range(50)]


def test_two_programs_may_make_the_file_at_once(tmp_path):
    path = tmp_path / "notebook.db"
    errors = []

    def make() -> None:
        try:
            Notebook(path).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Export and import ----------------------------------------------------------------------------------------------------


def test_export_wipe_import_is_equal(book, tmp_path):
    fill(book)
    text = json.dumps(book.document())
    with Notebook(tmp_path / "new.db") as new:
        preview = new.preview(json.loads(text)).to_dict()
        assert new.document()["notes"] == []
        assert new.take_in(json.loads(text)).to_dict() == preview
        assert bare(new.document()) == bare(book.document())
        assert (len(preview["new"]), preview["changed"], preview["conflicts"]) == (9, [], [])
        # Once more finds nothing to do.
        again = new.take_in(json.loads(text)).to_dict()
        assert again == {"new": [], "changed": [], "conflicts": [], "equal": 9}


def test_a_conflicting_import_keeps_both_texts_and_ends(book, tmp_path):
    with Notebook(tmp_path / "other.db") as other:
        saved = book.save_note("attention", "roles", "here", 0)
        other.save_note("attention", "roles", "there", 0)
        book.save_draft("attention", "here = 1", 0)
        other.save_draft("attention", "there = 2\nmore = 3", 0)
        merged = book.take_in(other.document())
        assert [entry["kind"] for entry in merged.conflicts] == ["note", "draft"]
        note, draft = book.everything()["notes"][0], book.everything()["drafts"][0]
        assert note["text"].startswith("here\n\n--- imported")
        assert note["text"].endswith("\n\nthere")
        # An open tab that still shows the old text learns of it before it writes.
        assert note["revision"] > saved.revision
        names: dict = {}
        exec(draft["code"], names)
        assert names["here"] == 1
        assert "# there = 2\n# more = 3" in draft["code"]
        assert book.take_in(other.document()).to_dict() == {"new": [], "changed": [], "conflicts": [], "equal": 2}
        # The other way round both have the same.
        assert [entry["kind"] for entry in other.take_in(book.document()).changed] == ["note", "draft"]
        assert bare(other.document())["notes"] == bare(book.document())["notes"]


def test_an_earlier_state_of_a_text_is_no_conflict(book):
    saved = book.save_note("attention", "roles", "The que", 0)
    early = book.document()
    book.save_note("attention", "roles", "The query asks.", saved.revision)
    late = book.document()
    assert book.take_in(early).equal == 1
    assert book.everything()["notes"][0]["text"] == "The query asks."
    with Notebook(book.path.with_name("new.db")) as new:
        new.take_in(early)
        assert [entry["merged"] for entry in new.take_in(late).changed] == ["The query asks."]


def test_a_text_that_is_only_part_of_a_word_is_not_thrown_away(book):
    book.save_note("attention", "roles", "banana", 0)
    document = book.document()
    document["notes"][0]["text"] = "nan"
    assert len(book.take_in(document).conflicts) == 1
    assert book.everything()["notes"][0]["text"].endswith("nan")


def test_two_entries_with_one_id_are_both_kept(book):
    attempt = book.add_attempt("attention", "mine", report=None, passed=False, solution_shown=False)
    document = book.document()
    document["attempts"][0]["code"] = "yours"
    merged = book.take_in(document)
    assert [entry["id"] for entry in merged.conflicts] == [attempt["id"]]
    assert {row["code"] for row in book.everything()["attempts"]} == {"mine", "yours"}
    assert book.take_in(document).equal == 1
    assert len(book.everything()["attempts"]) == 2


def test_the_earlier_time_of_a_fact_is_kept(book):
    book.set_completed("attention", True)
    document = book.document()
    document["completed"]["attention"] = "2020-01-01T00:00:00Z"
    assert [entry["kind"] for entry in book.take_in(document).changed] == ["completed"]
    assert book.everything()["completed"] == {"attention": "2020-01-01T00:00:00Z"}
    document["completed"]["attention"] = "2030-01-01T00:00:00Z"
    assert book.take_in(document).equal == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: [], "choose the JSON file that Export saved"),
        (lambda d: {**d, "format": "diary"}, '"format": "qkv-notebook"'),
        (lambda d: {**d, "version": 2}, "version 2 came"),
        (lambda d: {**d, "diary": []}, "diary is no field of a notebook"),
        (lambda d: {**d, "notes": {}}, "notes is not a list"),
        (lambda d: {**d, "notes": [1]}, "notes[0] is not an object"),
        (lambda d: {**d, "notes": [{**d["notes"][0], "text": 1}]}, "notes[0].text is not text"),
        (lambda d: {**d, "notes": [{**d["notes"][0], "colour": 1}]}, "notes[0].colour is no field of notes"),
        (lambda d: {**d, "notes": d["notes"] * 2}, "is there twice"),
        (lambda d: {**d, "bookmarks": [{"lesson": "a"}]}, "bookmarks[0].section is missing"),
        (lambda d: {**d, "completed": {"a": "yesterday"}}, "completed.a is not a time"),
        (lambda d: {**d, "completed": {"../a": "2020-01-01T00:00:00Z"}}, "a lesson of completed is not small letters"),
        (lambda d: {**d, "cases": [{**d["cases"][0], "form": "yaml"}]}, "cases[0].form is not numbers, json or python"),
        (lambda d: {**d, "attempts": [{**d["attempts"][0], "passed": 1}]}, "attempts[0].passed is not true or false"),
        (lambda d: with_report(d, {}), "attempts[0].report is not null or a report of the grader"),
        (lambda d: with_report(d, "passed"), "attempts[0].report is not null or a report"),
        (lambda d: with_report(d, {**REPORT, "counts": {"passed": "1", "cases": 1}}), "attempts[0].report is not"),
        (lambda d: with_report(d, {**REPORT, "cases": [{**CASE, "failure": None}]}), "attempts[0].report is not"),
        (lambda d: with_report(d, {**REPORT, "cases": [{}]}), "attempts[0].report is not null or a report"),
        (
            lambda d: {**d, "cases": [{**d["cases"][0], "verdict": []}]},
            "cases[0].verdict is not null, text or a verdict",
        ),
        (lambda d: {**d, "cases": [{**d["cases"][0], "verdict": {"input": 5}}]}, "cases[0].verdict is not null, text"),
    ],
)
def test_what_is_no_notebook_is_refused_whole(book, change, sentence):
    fill(book)
    document = change(book.document())
    before = book.everything()
    for take in (book.preview, book.take_in):
        with pytest.raises(ArgumentError) as error:
            take(document)
        assert sentence in str(error.value)
    assert book.everything() == before


def test_a_file_with_a_report_that_cannot_be_read_still_gives_the_rest(book):
    """An older qkv took any report in; what it left behind may lock neither the export nor a later import."""
    fill(book)
    book.add_attempt("attention", "x = 3", report={}, passed=False, solution_shown=False)
    book.add_case("attention", "json", "{}", note="", verdict=[])
    document = book.document()
    assert [attempt["report"] for attempt in document["attempts"]] == [REPORT, None, None]
    assert [case["verdict"] for case in document["cases"]][1:] == [None]
    assert book.preview(document).to_dict() == book.take_in(document).to_dict()
    assert book.take_in(document).equal == 11


def test_markdown_has_all_of_it_and_fences_hold(book):
    fill(book)
    text = to_markdown(book.document(), {"attention": ("Attention!", {"masks": "Masks", "roles": "Roles"})})
    order = ["# My notebook", "## Attention!", "Lab passed: 2", "### Note: Masks", "### Note: Roles", "## cache"]
    assert sorted(order, key=text.index) == order
    assert "Completed, as I judge it myself: not yet" in text
    assert "``````python\ndef attend():\n    return '`````'\n``````" in text
    assert "Verdict: refused: A3" in text
    assert "passed, after the solution was shown" in text
    for row in book.document()["notes"]:
        assert row["text"] in text


def test_markdown_of_an_empty_notebook_says_so(book):
    assert "Nothing is in it yet." in to_markdown(book.document(), {})


# Older files, and others ----------------------------------------------------------------------------------------------


def test_a_notebook_of_the_first_version_is_brought_up(tmp_path):
    """The tables of version 1 as they were written then, not as the code of today remembers them."""
    path = tmp_path / "old.db"
    old = sqlite3.connect(path)
    old.executescript(
        f"""
        CREATE TABLE notes (lesson TEXT NOT NULL, section TEXT NOT NULL, text TEXT NOT NULL,
            revision INTEGER NOT NULL, updated TEXT NOT NULL, PRIMARY KEY (lesson, section));
        CREATE TABLE bookmarks (lesson TEXT NOT NULL, section TEXT NOT NULL, PRIMARY KEY (lesson, section));
        CREATE TABLE drafts (lesson TEXT NOT NULL PRIMARY KEY, code TEXT NOT NULL, revision INTEGER NOT NULL,
            updated TEXT NOT NULL);
        CREATE TABLE attempts (id TEXT NOT NULL PRIMARY KEY, lesson TEXT NOT NULL, time TEXT NOT NULL,
            code TEXT NOT NULL, passed INTEGER NOT NULL, report TEXT NOT NULL, solution_shown INTEGER NOT NULL);
        CREATE TABLE completed (lesson TEXT NOT NULL PRIMARY KEY, time TEXT NOT NULL);
        CREATE TABLE lab_passed (lesson TEXT NOT NULL PRIMARY KEY, time TEXT NOT NULL);
        INSERT INTO notes VALUES ('attention', 'roles', 'an old note', 7, '2025-01-01T00:00:00.000Z');
        INSERT INTO attempts VALUES ('a1', 'attention', '2025-01-01T00:00:00.000Z', 'code', 1, 'null', 0);
        PRAGMA user_version = 1;
        PRAGMA application_id = {notebook_file.APPLICATION_ID};
        """
    )
    old.close()
    with Notebook(path) as book:
        book.add_case("attention", "json", "{}", note="", verdict=None)
        content = book.everything()
        assert content["notes"][0]["text"] == "an old note"
        assert content["attempts"][0]["id"] == "a1"
        assert book._connection.execute("PRAGMA user_version").fetchone() == (len(notebook_file.MIGRATIONS),)
        assert book.save_note("attention", "roles", "newer", 7).revision > 7


def test_a_migration_that_fails_leaves_the_old_version(tmp_path, monkeypatch):
    path = tmp_path / "notebook.db"
    with Notebook(path) as book:
        fill(book)
        before = book.everything()
    monkeypatch.setattr(notebook_file, "MIGRATIONS", (*notebook_file.MIGRATIONS, "CREATE TABLE new (x); nonsense"))
    with pytest.raises(notebook_file.NotebookError):
        Notebook(path)
    monkeypatch.undo()
    with Notebook(path) as book:
        assert book.everything() == before


def test_a_notebook_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "notebook.db"
    Notebook(path).close()
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 99")
    later.close()
    before = path.read_bytes()
    with pytest.raises(notebook_file.NotebookError, match=r"is of version 99 .* pip install --upgrade"):
        Notebook(path)
    assert path.read_bytes() == before


def test_the_path_is_where_the_platform_keeps_data(monkeypatch, tmp_path):
    monkeypatch.setattr(notebook_file.sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert notebook_file.default_path() == tmp_path / "qkv" / "notebook.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # which the specification says to ignore
    assert notebook_file.default_path() == Path.home() / ".local" / "share" / "qkv" / "notebook.db"
    monkeypatch.setattr(notebook_file.sys, "platform", "darwin")
    assert notebook_file.default_path() == Path.home() / "Library" / "Application Support" / "qkv" / "notebook.db"
    monkeypatch.setattr(notebook_file.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert notebook_file.default_path() == tmp_path / "qkv" / "notebook.db"
