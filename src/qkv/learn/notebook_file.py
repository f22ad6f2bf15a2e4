"""The notebook's file: where it lies, whether it can be used, and its tables from the first version to this one.

One SQLite file that the learner owns. It is looked at without being touched before it is opened for writing, so that a
damaged file, or one of something else, stays exactly as it was found.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

from qkv.errors import QkvError

__all__ = [
    "MIGRATIONS",
    "BusyError",
    "DamagedError",
    "NotebookError",
    "NotebookFullError",
    "as_notebook_error",
    "default_path",
    "open_file",
    "set_aside",
]

#: How long a save waits for another program that writes, in seconds.
PATIENCE = 5.0

#: In the header of every notebook, so that no other program's database is taken for one ("qkvn").
APPLICATION_ID = 0x716B766E

#: Each brings the tables from one `user_version` to the next. Only ever added to: files of every version are out there.
MIGRATIONS = (
    """
    CREATE TABLE notes (
        lesson TEXT NOT NULL, section TEXT NOT NULL, text TEXT NOT NULL, revision INTEGER NOT NULL,
        updated TEXT NOT NULL, PRIMARY KEY (lesson, section));
    CREATE TABLE bookmarks (lesson TEXT NOT NULL, section TEXT NOT NULL, PRIMARY KEY (lesson, section));
    CREATE TABLE drafts (
        lesson TEXT NOT NULL PRIMARY KEY, code TEXT NOT NULL, revision INTEGER NOT NULL, updated TEXT NOT NULL);
    CREATE TABLE attempts (
        id TEXT NOT NULL PRIMARY KEY, lesson TEXT NOT NULL, time TEXT NOT NULL, code TEXT NOT NULL,
        passed INTEGER NOT NULL, report TEXT NOT NULL, solution_shown INTEGER NOT NULL);
    -- Two facts: what the learner says of himself, and what the lab found. Neither is ever made from the other.
    CREATE TABLE completed (lesson TEXT NOT NULL PRIMARY KEY, time TEXT NOT NULL);
    CREATE TABLE lab_passed (lesson TEXT NOT NULL PRIMARY KEY, time TEXT NOT NULL);
    """,
    """
    CREATE TABLE cases (
        id TEXT NOT NULL PRIMARY KEY, lesson TEXT NOT NULL, form TEXT NOT NULL, text TEXT NOT NULL,
        note TEXT NOT NULL, verdict TEXT NOT NULL, time TEXT NOT NULL);
    """,
    # Which notebook this is, whatever it is called and wherever it lies: a page keeps unsaved texts under this name.
    """
    CREATE TABLE identity (id TEXT NOT NULL);
    INSERT INTO identity VALUES (lower(hex(randomblob(8))));
    """,
)


class NotebookError(QkvError):
    """The notebook cannot do what was asked; the message is one sentence with the way out."""


class DamagedError(NotebookError):
    """The file is not a whole notebook. It has not been written to."""


class NotebookFullError(NotebookError):
    """There was no room, or no permission any more, to write; what was confirmed before is safe."""


class BusyError(NotebookError):
    """Another program held the file for too long."""


def default_path() -> Path:
    """Where the notebook lies unless told otherwise: where the platform keeps a user's data."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
        usual = Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base, usual = "", Path.home() / "Library" / "Application Support"
    else:
        base = os.environ.get("XDG_DATA_HOME", "")
        usual = Path.home() / ".local" / "share"
    # The XDG specification: a relative path is invalid and is ignored.
    return (Path(base) if base and Path(base).is_absolute() else usual) / "qkv" / "notebook.db"


def open_file(path: Path) -> sqlite3.Connection:
    """Open the notebook for reading and writing, its tables at this version; make it if it is not there.

    Raises:
        DamagedError: it is not a whole notebook; nothing was written to it.
        NotebookFullError: no room for it.
        NotebookError: it cannot be made, opened or written, or is of a newer version.
    """
    _make(path)
    _look_at(path)
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=PATIENCE)
    except sqlite3.Error as error:
        raise as_notebook_error(error, path) from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise as_notebook_error(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def set_aside(path: Path) -> Path:
    """Move a damaged notebook, with the log beside it, to a name that nothing has yet; gives the new name."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    for ending in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
    return aside


def as_notebook_error(error: sqlite3.Error, path: Path) -> NotebookError:
    """What SQLite said, as a sentence for the person whose notebook it is."""
    said = str(error)  # SQLite's codes reach Python only from 3.11
    if "full" in said:
        return NotebookFullError(
            f"the disk is full, so the notebook {path} could not be saved; what was saved before is safe: "
            "free some space and save again"
        )
    if "disk I/O error" in said:
        return NotebookFullError(
            f"the disk refused to write, so the notebook {path} could not be saved; what was saved before is safe: "
            "see that the disk has room and works, and save again"
        )
    if "readonly" in said or "read-only" in said:
        return NotebookFullError(
            f"the notebook {path} can only be read, so nothing can be saved in it; "
            "make the file and its folder writable, or give another one with --data FILE"
        )
    if "malformed" in said or "not a database" in said:
        return _damaged(path, said)
    if "unable to open" in said:
        return NotebookError(
            f"the notebook {path} cannot be opened; see that its folder is writable and the disk has room, "
            "or give another file with --data FILE"
        )
    if "locked" in said or "busy" in said:
        return BusyError(f"another program is writing to the notebook {path}; close it there, or save again")
    return NotebookError(f"the notebook {path} cannot be used ({said}); give another one with --data FILE")


def _damaged(path: Path, reason: str) -> DamagedError:
    return DamagedError(
        f"the notebook {path} is damaged ({reason}) and was left untouched; copy a backup over it, or start "
        "qkv learn --set-aside, which moves it to another name and begins a new one, and import your last export there"
    )


def _make(path: Path) -> None:
    """An empty file where there is none, readable by its owner only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise NotebookError(
            f"the notebook {path} cannot be made ({reason}); give another file with --data FILE"
        ) from error


def _look_at(path: Path) -> None:
    """Refuse what is not a whole notebook, by a connection that cannot write."""
    if not path.is_file():
        raise NotebookError(f"the notebook {path} is not a file; give a file with --data FILE")
    log = path.with_name(path.name + "-wal")
    if path.stat().st_size == 0:
        # SQLite would throw away a log whose database is empty, and with it what may be the only copy.
        if log.exists() and log.stat().st_size > 0:
            raise _damaged(path, "the file is empty, but the log beside it is not")
        return
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
    except sqlite3.Error as error:
        raise as_notebook_error(error, path) from error
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damaged(path, " ".join(found.replace("*", " ").split()))
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise as_notebook_error(error, path) from error
    finally:
        connection.close()
    if owner != APPLICATION_ID and (owner or tables or version):
        raise NotebookError(
            f"{path} is a database of another program, not a notebook; give another file with --data FILE"
        )
    if version > len(MIGRATIONS):
        raise NotebookError(
            f"the notebook {path} is of version {version} and this qkv knows versions up to {len(MIGRATIONS)}; "
            'write git pull and pip install --upgrade ".[learn]" in a clone of the repository'
        )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # A commit is on the disk before it is confirmed; on macOS that takes a special fsync.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        for script in MIGRATIONS[version:]:
            for statement in script.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        # Written each time, to find out now whether the file can be: SQLite opens one that cannot, and says nothing.
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
