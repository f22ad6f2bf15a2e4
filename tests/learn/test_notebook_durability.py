"""What was confirmed stays: killed in the middle of a save, on a full disk, in a file that is read-only or damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from learner import HOME, make_assets, process

from qkv.learn.notebook import Notebook
from qkv.learn.notebook_file import DamagedError, NotebookError, NotebookFullError, set_aside

# Killed ---------------------------------------------------------------------------------------------------------------

#: Saves note after note and prints each revision once it is confirmed, until it is killed.
WRITER = """
import sys
from pathlib import Path
from qkv.learn.notebook import Notebook
book = Notebook(Path(sys.argv[1]))
base = int(sys.argv[2])
number = int(sys.argv[3])
while True:
    number += 1
    base = book.save_note("attention", "roles", f"note {number} " + "x" * (number * 37 % 9000), base).revision
    print(number, base, flush=True)
"""


def test_kill_at_random_moments_in_200_saves(tmp_path):
    """Whatever was confirmed is there afterwards, whole, and the next program goes on from it."""
    path = tmp_path / "notebook.db"
    chance = random.Random(20)
    number, base, rounds = 0, 0, 0
    while number < 200:
        rounds += 1
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(base), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": HOME},
        )
        assert child.stdout is not None
        with child.stdout:
            for _ in range(chance.randrange(10, 90)):
                number, base = map(int, child.stdout.readline().split())
            # Now and then while it writes to the file, in whatever call that is.
            child.kill()
            rest = child.stdout.read().splitlines()
        child.wait()
        for line in rest:
            if len(words := line.split()) == 2 and line.endswith(words[1]):
                number, base = map(int, words)
        with Notebook(path) as book:
            note = book.everything()["notes"][0]
        # One more may have been saved whose confirmation was never read.
        found = int(note["text"].split()[1])
        assert found in (number, number + 1)
        assert note["text"] == f"note {found} " + "x" * (found * 37 % 9000)
        assert note["revision"] == base or found == number + 1
        number, base = found, note["revision"]
    assert rounds >= 3


def test_lost_code_a_killed_server_has_lost_nothing(tmp_path):
    """lost-code (futurecoder#449, marimo#1013): the server dies right after an answer, and all it confirmed is there."""
    assets = make_assets(tmp_path / "page")
    path = tmp_path / "notebook.db"
    note = draft = count = 0
    for stop in (3, 40):
        with process(path, assets) as (child, browser):
            for _ in range(stop):
                count += 1
                body = {"text": f"note {count}", "base_revision": note}
                note = browser.ask("PUT", "/api/notes/attention/roles", body)["revision"]
                body = {"code": f"code = {count}", "base_revision": draft}
                draft = browser.ask("PUT", "/api/drafts/attention", body)["revision"]
            child.kill()
        with Notebook(path) as book:
            content = book.everything()
        assert [(n["text"], n["revision"]) for n in content["notes"]] == [(f"note {count}", note)]
        assert [(d["code"], d["revision"]) for d in content["drafts"]] == [(f"code = {count}", draft)]


# A full disk ----------------------------------------------------------------------------------------------------------

#: Runs with the file size limited, as the kernel says a full disk: writes fail from some moment on.
LIMITED = """
import json, resource, sys
from pathlib import Path
from qkv.learn.notebook import Notebook
from qkv.learn.notebook_file import NotebookFullError
book = Notebook(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
base, confirmed, sentence = 0, None, None
for number in range(100):
    text = f"note {number} " + "x" * 10_000
    try:
        base = book.save_note("attention", "roles", text, base).revision
    except NotebookFullError as error:
        sentence = str(error)
        break
    confirmed = text
try:
    book.add_attempt("attention", "y" * 100_000, report=None, passed=True, solution_shown=False)
    raise SystemExit("there was room")
except NotebookFullError:
    pass
read = book.everything()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = book.save_note("attention", "masks", "room again", 0)
print(json.dumps({"sentence": sentence, "held": read["notes"][0]["text"] == confirmed,
                  "passed": read["lab_passed"], "number": number}))
"""


def test_a_full_disk_loses_nothing_that_was_confirmed(tmp_path):
    path = tmp_path / "notebook.db"
    answer = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": HOME},
    )
    said = json.loads(answer.stdout)
    assert "what was saved before is safe" in said["sentence"]
    assert said["held"]
    assert said["number"] > 3
    # The attempt and that it passed were one transaction: neither is there.
    assert said["passed"] == {}
    with Notebook(path) as book:
        assert [n["section"] for n in book.everything()["notes"]] == ["masks", "roles"]


def test_sqlite_itself_says_full(tmp_path):
    with Notebook(tmp_path / "notebook.db") as book:
        saved = book.save_note("attention", "roles", "kept", 0)
        book._connection.execute("PRAGMA max_page_count = 16")
        with pytest.raises(NotebookFullError, match=r"the disk is full, .* free some space and save again"):
            book.save_note("attention", "roles", "x" * 100_000, saved.revision)
        assert book.everything()["notes"][0]["text"] == "kept"
        # An import is taken in whole or not at all.
        document = book.document()
        document["notes"] = [{**document["notes"][0], "section": f"s{i}", "text": "x" * 20_000} for i in range(9)]
        with pytest.raises(NotebookFullError):
            book.take_in(document)
        assert [n["section"] for n in book.everything()["notes"]] == ["roles"]


# Not writable ---------------------------------------------------------------------------------------------------------

#: Opens the notebook as a user who owns nothing, for root may write to everything. What it needs is loaded before, since
#: the stranger may not be allowed to read this Python.
STRANGER = """
import os, sys, urllib.parse
from pathlib import Path
from qkv.learn.notebook import Notebook
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    Notebook(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


def as_stranger(path: Path) -> str:
    command = [sys.executable, "-c", STRANGER, str(path)]
    environment = {**os.environ, "PYTHONPATH": HOME}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


@pytest.fixture
def lent() -> Iterator[Path]:
    """A notebook in a folder that others may come to, which is not so of pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "notebook.db"
        with Notebook(path) as book:
            book.save_note("attention", "roles", "kept", 0)
        yield path
        folder.chmod(0o755)


def test_a_read_only_file_is_said_at_the_start(lent):
    lent.chmod(0o444)
    lent.parent.chmod(0o777)
    before = lent.read_bytes()
    said = as_stranger(lent)
    assert said == (
        f"NotebookFullError the notebook {lent} can only be read, so nothing can be saved in it; "
        "make the file and its folder writable, or give another one with --data FILE"
    )
    assert lent.read_bytes() == before


def test_a_read_only_folder_is_said_at_the_start(lent):
    lent.chmod(0o666)
    lent.parent.chmod(0o555)
    said = as_stranger(lent)
    assert f"the notebook {lent} can" in said
    assert "writable" in said
    assert said.count("\n") == 0


def test_a_folder_that_cannot_be_made_is_said_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotebookError, match=r"cannot be made \(.*\); give another file with --data FILE"):
        Notebook(tmp_path / "file" / "notebook.db")
    with pytest.raises(NotebookError, match="is not a file"):
        Notebook(tmp_path)


# Damaged --------------------------------------------------------------------------------------------------------------


def _no_header(path: Path) -> None:
    path.write_bytes(b"my thesis, " * 1000)


def _half(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 // 4096 * 4096)


def _pages_of_noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 8] = random.Random(3).randbytes(4096 * 7)
    path.write_bytes(content)


def _schema_of_noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[200:4096] = random.Random(4).randbytes(4096 - 200)
    path.write_bytes(content)


def _empty_beside_its_log(path: Path) -> None:
    path.write_bytes(b"")
    path.with_name(path.name + "-wal").write_bytes(b"the only copy")


def _contents(folder: Path) -> dict[str, bytes]:
    """What is in the files; to look at one, SQLite may put empty ones beside it, and its shared memory."""
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    return {name: content for name, content in contents.items() if content or not name.endswith("-wal")}


@pytest.mark.parametrize("damage", [_no_header, _half, _pages_of_noise, _schema_of_noise, _empty_beside_its_log])
def test_a_damaged_file_is_left_untouched(tmp_path, damage):
    path = tmp_path / "notebook.db"
    with Notebook(path) as book:
        for number in range(20):
            book.save_note("attention", f"s{number}", "text " * 1000, 0)
    damage(path)
    before = _contents(tmp_path)
    with pytest.raises(DamagedError) as error:
        Notebook(path)
    sentence = str(error.value)
    assert f"{path} is damaged (" in sentence
    assert "was left untouched" in sentence
    assert "qkv learn --set-aside" in sentence
    assert "\n" not in sentence
    assert _contents(tmp_path) == before
    # The way out: it gets a name of its own, is still there byte for byte, and a new notebook begins.
    aside = set_aside(path)
    assert aside == tmp_path / "notebook.damaged-1.db"
    assert aside.read_bytes() == before["notebook.db"]
    with Notebook(path) as book:
        assert book.everything()["notes"] == []


def test_what_was_set_aside_is_never_written_over(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / "notebook.db").write_text(f"damage {number}")
        assert set_aside(tmp_path / "notebook.db").name == f"notebook.damaged-{number}.db"
    assert (tmp_path / "notebook.damaged-1.db").read_text() == "damage 1"


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "bank.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE money (amount)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(NotebookError, match="is a database of another program"):
        Notebook(path)
    assert path.read_bytes() == before


# Deleted or replaced while it is open ---------------------------------------------------------------------------------


def test_a_file_deleted_under_an_open_notebook_is_made_again(tmp_path):
    """A file without a name would take every save and keep none."""
    path = tmp_path / "notebook.db"
    with Notebook(path) as book:
        saved = book.save_note("attention", "roles", "before", 0)
        for file in tmp_path.iterdir():
            file.unlink()
        assert book.everything()["notes"] == []
        again = book.save_note("attention", "roles", "after", saved.revision)
        # No tab that still shows the text of the old file can take the new one for it.
        assert again.revision > saved.revision
        with Notebook(path) as other:
            assert other.everything()["notes"][0]["text"] == "after"


def test_a_backup_copied_over_an_open_notebook_is_seen(tmp_path):
    path, backup = tmp_path / "notebook.db", tmp_path / "backup.db"
    with Notebook(backup) as book:
        book.save_note("attention", "roles", "from the backup", 0)
    with Notebook(path) as book:
        book.save_note("attention", "roles", "newer", 0)
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink()
        shutil.move(backup, path)
        assert book.everything()["notes"][0]["text"] == "from the backup"
