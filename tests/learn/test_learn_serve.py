"""`qkv learn` and `qkv learn export` as a person starts and stops them."""

from __future__ import annotations

import json
import signal
import socket
import stat
from pathlib import Path

import pytest
from learner import make_assets, process, until

from qkv.cli.main import main
from qkv.learn.notebook import Notebook


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_assets(tmp_path / "page")
    monkeypatch.setenv("QKV_LEARN_ASSETS", str(folder))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence of a command that has to fail with exit code 2."""
    assert main(["learn", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("qkv: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("qkv: ").strip()


def test_ctrl_c_stops_it_quietly_and_keeps_everything(tmp_path, assets):
    path = tmp_path / "deep" / "notebook.db"
    with process(path, assets) as (child, browser):
        browser.ask("PUT", "/api/notes/attention/roles", {"text": "kept", "base_revision": 0})
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
        assert child.stderr is not None
        assert child.stderr.read() == ""
    with Notebook(path) as book:
        assert book.everything()["notes"][0]["text"] == "kept"
    # Closed in order, there is one file.
    assert [file.name for file in path.parent.iterdir() if file.stat().st_size] == ["notebook.db"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_browser_gets_a_link_that_opens_once(tmp_path, assets):
    """Its command line can be read by every user of the machine."""
    opened = tmp_path / "opened"
    before = f"import webbrowser; webbrowser.open = lambda link: open({str(opened)!r}, 'w').write(link)"
    start = "import sys; sys.argv.remove('--no-browser')"
    with process(tmp_path / "n.db", assets, before=f"{before}; {start}") as (_, browser):
        until(lambda: opened.exists() and opened.read_text())
        link = opened.read_text()
        assert browser.token not in link
        path = link.removeprefix(f"http://{browser.host}")
        assert browser.call("GET", path, headers={"Cookie": None})[0] == 200
        assert browser.call("GET", path, headers={"Cookie": None})[0] == 403
        assert browser.call("GET", f"/?token={browser.token}", headers={"Cookie": None})[0] == 200


def test_two_servers_on_one_notebook_lose_nothing(tmp_path, assets):
    path = tmp_path / "n.db"
    address = "/api/notes/attention/roles"
    with process(path, assets) as (_, one), process(path, assets) as (_, two):
        assert one.port != two.port
        assert one.token != two.token
        saved = one.ask("PUT", address, {"text": "one", "base_revision": 0})
        status, _, content = two.call("PUT", address, {"text": "two", "base_revision": 0})
        assert (status, json.loads(content)["text"]) == (409, "one")
        two.ask("PUT", address, {"text": "one and two", "base_revision": saved["revision"]})
        assert one.ask("GET", "/api/notebook")["notes"][0]["text"] == "one and two"


def test_a_busy_port_is_one_sentence(capsys, tmp_path, assets):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refused(capsys, "--port", port, "--data", tmp_path / "n.db")
    assert said == (
        f"--port {port} cannot be used (address already in use); is qkv learn running already? "
        "write --port 0 for a free one"
    )
    assert not (tmp_path / "n.db").exists()


@pytest.mark.parametrize("port", ["x", "-1", "65536", "1.5", ""])
def test_a_port_is_a_number(capsys, assets, port):
    assert "a port is a whole number from 0 to 65535" in refused(capsys, f"--port={port}")


@pytest.mark.parametrize("host", ["https://hub.example.org", "hub/x", "", "*"])
def test_a_host_is_a_name(capsys, assets, host):
    assert "a host is a name such as hub.example.org" in refused(capsys, f"--allow-host={host}")


@pytest.mark.parametrize(
    ("module", "package"), [("starlette", "starlette"), ("uvicorn", "uvicorn"), ("markdown_it", "markdown-it")]
)
def test_a_missing_extra_is_one_sentence(capsys, monkeypatch, assets, module, package):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    assert refused(capsys) == (
        f"the lesson needs the package {package}, which is not installed; write make learn in a clone of the repository"
    )


def test_a_missing_page_is_one_sentence(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("QKV_LEARN_ASSETS", str(tmp_path))
    said = refused(capsys, "--data", tmp_path / "n.db")
    assert said == f"the lesson's page is not in {tmp_path}, there is no index.html; write make learn"
    monkeypatch.delenv("QKV_LEARN_ASSETS")
    monkeypatch.setitem(__import__("sys").modules, "qkv_learn_assets", None)
    assert "the package qkv-learn, which is not installed" in refused(capsys, "export", tmp_path / "site")


def test_a_damaged_notebook_is_one_sentence_and_can_be_set_aside(capsys, tmp_path, assets):
    path = tmp_path / "notebook.db"
    path.write_bytes(b"scratched" * 1000)
    said = refused(capsys, "--data", path, "--port", 0)
    assert "is damaged (file is not a database) and was left untouched" in said
    assert path.read_bytes() == b"scratched" * 1000
    with process(path, assets, "--set-aside") as (_, browser):
        assert browser.ask("GET", "/api/notebook")["notes"] == []
    assert (tmp_path / "notebook.damaged-1.db").read_bytes() == b"scratched" * 1000


def test_a_whole_notebook_is_not_set_aside(capsys, tmp_path, assets):
    path = tmp_path / "notebook.db"
    with Notebook(path) as book:
        book.save_note("attention", "roles", "kept", 0)
    assert "--set-aside is for a damaged notebook" in refused(capsys, "--data", path, "--set-aside")
    with Notebook(path) as book:
        assert book.everything()["notes"][0]["text"] == "kept"


def test_what_it_prints(tmp_path, assets, monkeypatch, capsys):
    """For people: link, notebook by its short name, how to stop."""
    import qkv.learn.server

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    links: list[str | None] = []
    monkeypatch.setattr(qkv.learn.server, "serve", lambda application, listener, link: links.append(link))
    assert main(["learn", "--no-browser", "--port", "0"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("The lesson is at http://127.0.0.1:")
    assert len(said[0].split("/?token=")[1]) >= 32
    assert said[1] == "Your notebook is ~/data/qkv/notebook.db"
    assert said[2] == "Ctrl-C stops it."
    assert said[-1] == "Stopped. Everything you wrote is in ~/data/qkv/notebook.db"
    assert links == [None]


def test_export(tmp_path, assets, capsys):
    assert main(["learn", "export", str(tmp_path / "site"), "--no-solutions"]) == 0
    said = capsys.readouterr().out
    assert "files, " in said
    assert "the labs' solutions are not among them" in said
    assert main(["learn", "export", str(tmp_path / "site"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["files"] == len([file for file in (tmp_path / "site").rglob("*") if file.is_file()])
    assert "is no earlier export" in refused(capsys, "export", tmp_path)
