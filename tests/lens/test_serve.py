"""A capture on loopback: any exact row, to this server's page and nobody else."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import qkv
from qkv.errors import ArgumentError

pytest.importorskip("torch")

from qkv import lens
from qkv.lens import views

from .test_rows import layer

HOME = str(Path(qkv.__file__).parents[1])


class Browser:
    """Requests as the page sends them."""

    def __init__(self, server: views.Server) -> None:
        self.server, self.link = server, urlsplit(server.link)

    def call(
        self, path: str | None = None, method: str = "GET", **headers: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body); a path of None is the page's; a header of None is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.link.port or 0, timeout=60)
        try:
            connection.putrequest(
                method, self.link.path if path is None else path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in {"Host": self.link.netloc, **headers}.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def row(self, query: str) -> tuple[int, Any]:
        status, _, content = self.call(f"{self.link.path}row?{query}")
        return status, json.loads(content)

    def refused(self, status: int, path: str | None = None, method: str = "GET", **headers: str | None) -> str:
        got, sent, content = self.call(path, method, **headers)
        assert got == status, content
        assert sent["content-type"] == "application/json"
        error = json.loads(content)["error"]
        assert "; " in error
        assert "\n" not in error
        return str(error)


def seen() -> lens.Capture:
    one = layer(size=19)
    return lens.Capture((one, replace(one, index=1, name="next")), None, tuple(f" w{j}" for j in range(19)), {})


@contextlib.contextmanager
def running(capture: lens.Capture) -> Iterator[Browser]:
    """A server in a thread."""
    server = views.Server(capture, views.picture(capture))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Browser(server)
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running(seen()) as browser:
        yield browser


def test_any_row_is_answered_exactly(browser: Browser) -> None:
    for n, head, query in ((0, 0, 0), (1, 3, 18), (1, 2, -1), (-1, 1, 7)):
        status, told = browser.row(f"layer={n}&head={head}&query={query}")
        right = lens.row(seen().layer(n), head, query)
        assert status == 200
        assert told == {"layer_index": seen().layer(n).index, **right.to_dict()}
        np.testing.assert_array_equal(np.array(told["weight"], float), right.weight)


def test_the_page_is_the_self_contained_one_that_may_ask_this_server(browser: Browser) -> None:
    status, headers, content = browser.call()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = content.decode()
    assert page == views.to_html(views.picture(seen()), served=True)
    assert "default-src 'none'" in page
    assert "connect-src 'self'" in page
    assert "all other rows are computed when they are asked for" in page
    assert "connect-src" not in views.to_html(views.picture(seen()))
    assert browser.call(method="HEAD")[2] == b""


def test_several_at_once_get_what_each_asked(browser: Browser) -> None:
    asked = [(n, h, q) for n in (0, 1) for h in range(4) for q in range(0, 19, 3)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        told = list(pool.map(lambda a: browser.row("layer={}&head={}&query={}".format(*a))[1], asked))
    for (n, head, query), one in zip(asked, told, strict=True):
        assert one == {"layer_index": n, **lens.row(seen().layer(n), head, query).to_dict()}


def test_a_slow_browser_keeps_nobody_waiting(browser: Browser) -> None:
    with socket.create_connection(("127.0.0.1", browser.link.port or 0)) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\n")
        assert browser.row("layer=0&head=0&query=1")[0] == 200


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "but none came"),
        ("layer=0&head=0", "but layer, head came"),
        ("layer=0&head=0&query=1&more=2", "but layer, head, query, more came"),
        ("layer=0&head=0&query=1&query=2", "but layer, head, query, query came"),
        ("layer=0&head=0&query=", "but query= came"),
        ("layer=0&head=x&query=1", "but head=x came"),
        ("layer=0&head=1.5&query=1", "but head=1.5 came"),
        ("layer=0&head=%D9%A1&query=1", "but head=\\u0661 came"),
        ("layer=0&head=1_0&query=1", "but head=1_0 came"),
        ("layer=0&head=0&query=1e9", "but query=1e9 came"),
        ("layer=0&head=0&query=99999999999999999999", "but query=99999999999999999999 came"),
        ("layer=0&head=0&query=%0d%0aX:y", "but query=\\r\\nX:y came"),
        ("&&&&&&&&&&&", "the address cannot be read"),
        ("layer", "the address cannot be read"),
        ("layer=9&head=0&query=1", "layer must be one of those captured"),
        ("layer=0&head=9&query=1", "head must be one of the heads kept"),
        ("layer=0&head=0&query=99", "query must be one of the rows kept"),
    ],
)
def test_a_bad_question_is_answered_in_a_sentence(browser: Browser, query: str, said: str) -> None:
    status, told = browser.row(query)
    assert status == 400
    assert said in told["error"]
    assert "Traceback" not in told["error"]


def test_a_fault_of_ours_shows_no_traceback(capfd: Any) -> None:
    broken = replace(layer(), query=None)  # type: ignore[arg-type]
    capture = lens.Capture((layer(),), None, None, {})
    with running(capture) as browser:
        object.__setattr__(capture, "layers", (broken,))
        status, told = browser.row("layer=0&head=0&query=1")
    assert status == 500
    assert told["error"].startswith("this is a fault of qkv, please report it (")
    assert capfd.readouterr() == ("", "")


def until_the_end(connection: socket.socket) -> None:
    """Read until the server has closed, whatever way it does."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass


def test_a_browser_that_goes_away_prints_nothing(browser: Browser, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    def gone(_: str) -> Any:
        raise ConnectionResetError

    monkeypatch.setattr(browser.server, "answer", gone)
    with socket.create_connection(("127.0.0.1", browser.link.port or 0), timeout=60) as one:
        one.sendall(f"GET / HTTP/1.1\r\nHost: {browser.link.netloc}\r\n\r\n".encode())
        until_the_end(one)
    assert capfd.readouterr() == ("", "")


def test_a_browser_that_says_nothing_is_let_go(browser: Browser, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(browser.server.RequestHandlerClass, "timeout", 0.01)
    with socket.create_connection(("127.0.0.1", browser.link.port or 0), timeout=60) as one:
        until_the_end(one)
    assert capfd.readouterr() == ("", "")


# Who may ask ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/row?layer=0&head=0&query=1", "/x/", "/{0}", "/{1}x/", "/..{1}/", "/%2f"])
def test_nothing_without_the_link(browser: Browser, path: str) -> None:
    secret = browser.link.path.strip("/")
    asked = path.format(secret[:-1], secret)
    assert "open that link" in browser.refused(403, asked)


def test_nothing_else_is_there(browser: Browser) -> None:
    for name in ("rows", "row/", "../etc/passwd", "row%2f", "%00", "a" * 5000):
        assert "there is nothing at this address" in browser.refused(404, browser.link.path + name)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org",  # DNS rebinding: a name of the attacker's that points to 127.0.0.1
        "evil.example.org:{}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.evil.example.org:{}",
        "localhost:{}.evil.example.org",
        "0.0.0.0:{}",
        "",
        None,
    ],
)
def test_other_names_are_refused(browser: Browser, host: str | None) -> None:
    sent = None if host is None else host.format(browser.link.port)
    assert "host is not one of this server" in browser.refused(403, None, Host=sent)


def test_names_of_this_server(browser: Browser) -> None:
    for host in (f"127.0.0.1:{browser.link.port}", f"LOCALHOST:{browser.link.port}"):
        assert browser.call(Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example.org", "http://127.0.0.1:1", "https://{}", "null", ""])
def test_other_origins_are_refused(browser: Browser, origin: str) -> None:
    said = browser.refused(403, None, Origin=origin.format(browser.link.netloc))
    assert "origin is not this server's page" in said


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_refused(browser: Browser, method: str) -> None:
    assert "answers GET and HEAD" in browser.refused(501, None, method)


def test_every_answer_carries_the_rules(browser: Browser) -> None:
    for path, method in ((None, "GET"), ("/", "GET"), (browser.link.path + "row", "GET"), (None, "POST")):
        headers = browser.call(path, method)[1]
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "sent", [b"\x00\xff\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"/" * 70000]
)
def test_noise_is_no_trouble(browser: Browser, sent: bytes, capfd: Any) -> None:
    with socket.create_connection(("127.0.0.1", browser.link.port or 0), timeout=60) as noisy:
        noisy.sendall(sent + b"\r\n\r\n")
        until_the_end(noisy)
    assert browser.row("layer=0&head=0&query=1")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_only_this_machine_is_listened_to(browser: Browser) -> None:
    assert browser.server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_said(browser: Browser) -> None:
    capture = seen()
    taken = browser.link.port or 0
    with pytest.raises(ArgumentError, match=rf"port {taken} cannot be used \(.*\); pass 0 for a free one"):
        views.Server(capture, views.picture(capture), port=taken)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("glassllm")
    (tmp_path / "text.txt").write_text("The cat sat on the mat, and the cat slept.", encoding="utf-8")
    running = subprocess.Popen(
        [sys.executable, "-m", "qkv", "lens", "--text", "text.txt", "--serve"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HOME, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if "Ctrl-C stops it." in line:
            break
    link = urlsplit(next(line for line in said if "http://" in line).split()[-1])
    connection = http.client.HTTPConnection(link.hostname or "", link.port, timeout=60)
    connection.request("GET", f"{link.path}row?layer=1&head=2&query=-1")
    told = json.loads(connection.getresponse().read())
    connection.close()
    assert (told["layer_index"], told["head"]) == (1, 2)
    assert sum(told["weight"]) == pytest.approx(1, rel=64 * float(np.finfo(np.float32).eps))
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "\nStopped.\n", "")
