"""A learner for the tests: a running server, a browser's requests to it, and a lesson to read."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qkv

HOME = str(Path(qkv.__file__).parents[1])

PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="csp-nonce" content="NONCE">'
    '<script type="module" src="assets/main.js"></script></head><body></body></html>'
)

LESSON = """\
---
title: A lesson & its sample
minutes: 5
order: 2
outcomes:
  - say what {{ worked.weights[0] }} is
let:
  - worked = trace([sqrt(2), 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]])
---

What this is about.

## First <b>things</b> {#first}

The weights are {{ worked.weights }} and the output {{ worked.context }}.

:::note
In your own words?
:::

:::figure vectors query=worked.query
Turn it.
:::

## Then the rest {#rest}

```python run
print(1 + 1)
```

:::pause sum
What is the sum of {{ worked.weights }}?
:::answer
{{ total(worked.weights) }}.
:::
"""


def make_assets(folder: Path) -> Path:
    """A page as small as one can be, with a file of each kind."""
    (folder / "assets").mkdir(parents=True)
    (folder / "pyodide").mkdir()
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    (folder / "assets" / "main.js").write_text("export {};", encoding="utf-8")
    (folder / "pyodide" / "pyodide.asm.wasm").write_bytes(b"\0asm")
    return folder


def make_lessons(folder: Path) -> Path:
    """One lesson with a lab."""
    folder.mkdir(parents=True)
    (folder / "sample.md").write_text(LESSON, encoding="utf-8")
    (folder / "sample.starter.py").write_text("def attend(): ...\n", encoding="utf-8")
    (folder / "sample.hints.md").write_text("First *hint*.\n\n---\n\nSecond.\n", encoding="utf-8")
    (folder / "sample.solution.py").write_text("SOLUTION = 'the_secret_solution'\n", encoding="utf-8")
    return folder


class Browser:
    """Requests as a browser sends them from the page that the server itself gave it."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token
        self.host = f"127.0.0.1:{port}"
        self.cookie = f"qkv_learn_{port}={token}"

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str | None] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body); `body` is sent as JSON, bytes as they are; a header of None is left out."""
        sent: dict[str, str | None] = {"Host": self.host, "Cookie": self.cookie}
        if method not in ("GET", "HEAD"):
            sent["Origin"] = f"http://{self.host}"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if content is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
        sent |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(content)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a request that has to succeed."""
        status, _, content = self.call(method, path, body)
        assert status in (200, 204), (status, content)
        return json.loads(content) if content else None

    def refused(self, status: int, method: str, path: str, body: Any = None, **headers: str | None) -> str:
        """The sentence of a request that has to fail so."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        got, _, content = self.call(method, path, body, named)
        assert got == status, (got, content)
        error = json.loads(content)["error"]
        assert isinstance(error, str)
        assert " " in error
        return error


@contextlib.contextmanager
def running(notebook: Path, assets: Path, lessons: Path, **options: Any) -> Iterator[Browser]:
    """A server in a thread of this process."""
    from qkv.learn.lessons import lessons as build
    from qkv.learn.notebook import Notebook
    from qkv.learn.server import create_app, listen, make_server

    listener = listen(0)
    port = listener.getsockname()[1]
    with listener, Notebook(notebook) as book:
        application = create_app(book, build(lessons), assets, token="the-token", port=port, **options)
        server = make_server(application)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Browser(port, "the-token")
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def process(
    notebook: Path, assets: Path, *words: str, before: str = ""
) -> Iterator[tuple[subprocess.Popen[str], Browser]]:
    """`qkv learn` as a process of its own, killed at the end if it still runs; `before` is Python run first."""
    start = f"import sys; {before or 'pass'}; from qkv.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "learn", "--json", "--no-browser", "--data", str(notebook)]
    words = words if "--port" in words else (*words, "--port", "0")
    environment = {**os.environ, "PYTHONPATH": HOME, "QKV_LEARN_ASSETS": str(assets)}
    child = subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, bufsize=1
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        try:
            said = "".join(child.stdout.readline() for _ in range(4))
            if not said:
                raise AssertionError(child.stderr.read())
            link = json.loads(said)["link"]
            port, token = link.removeprefix("http://127.0.0.1:").split("/?token=")
            yield child, Browser(int(port), token)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.wait()


def until(condition: Any, seconds: float = 10) -> None:
    """Wait for something another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
