"""The door of the server: who may come in, and what every answer carries.

The server listens on the loopback interface only, but every page in every browser of this machine can send requests
there. So a request has to name this host (against DNS rebinding), come from this origin (against other sites), and hold
the token that only the opening link carries (against other users of the machine).
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Guard", "policy"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_SAFE = frozenset({"GET", "HEAD"})

#: The page that takes the token out of the address. A redirect would not do: a browser that came from another site (a
#: notebook hub, say) sends no SameSite=Strict cookie along a redirect, but does so with the next request of a page.
_WELCOME = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>qkv</title>
<meta http-equiv="refresh" content="0; url=./"></head><body><p><a href="./">Open the lesson</a></p></body></html>
"""

_CLOSED = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>qkv</title></head><body>
<h1>This page needs its link</h1><p>{}</p></body></html>
"""


def policy(nonce: str = "") -> str:
    """The Content-Security-Policy: this origin and nothing else; `wasm-unsafe-eval` compiles Pyodide.

    >>> "unsafe-inline" in policy("abc")
    False
    """
    styles = f"style-src 'self' 'nonce-{nonce}'" if nonce else "style-src 'self'"
    return (
        f"default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; {styles}; "
        "img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Guard:
    """Wraps the application.

    Args:
        application: what is behind the door.
        token: what the opening link carries.
        port: the port that the server listens on.
        allow_hosts: names besides the loopback ones by which a browser may come, through a proxy; `NAME` or `NAME:PORT`.
        once: a second token that opens once, for a link that passes through another program's command line.
    """

    def __init__(
        self, application: Application, token: str, port: int, allow_hosts: tuple[str, ...] = (), once: str = ""
    ) -> None:
        self._application = application
        self._token = token
        self._once = once
        # Cookies do not know ports, so that two servers need two names.
        self._cookie = f"qkv_learn_{port}"
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self._allowed = {name.lower() for name in allow_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no WebSockets here
            return
        nonce = scope.setdefault("state", {})["nonce"] = secrets.token_urlsafe(16)
        is_api = scope["path"].startswith("/api/") or scope["path"] == "/config.json"

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                carried = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *_headers(nonce, is_api, carried)]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        sentence = self._refusal(scope["method"], headers)
        if sentence is None and scope["path"] == "/" and scope["query_string"]:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if self._opens(given):
                await self._welcome(send_guarded)
                return
        if sentence is None and not self._knows(headers.get("cookie", "")):
            sentence = "this page opens with the link that qkv learn printed, token and all; open that link"
        if sentence is not None:
            await _refuse(send_guarded, sentence, as_page=scope["path"] == "/")
            return
        await self._application(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: dict[str, str]) -> str | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return (
                f"the host {host[:100]!r} is not one of this server; open the link that qkv learn printed, "
                "or start it with --allow-host NAME"
            )
        origin = headers.get("origin")
        if origin is None:
            # Browsers send it with everything that changes something.
            return None if method in _SAFE else "a request that changes something has to say its Origin; send it"
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not self._is_ours(parts.netloc):
            return f"the origin {origin[:100]!r} is not this server's page; open the link that qkv learn printed"
        return None

    def _is_ours(self, host: str) -> bool:
        host = host.lower()
        return host in self._hosts or host in self._allowed or _without_port(host) in self._allowed

    def _opens(self, given: str) -> bool:
        if self._once and _same(given, self._once):
            self._once = ""
            return True
        return _same(given, self._token)

    def _knows(self, cookies: str) -> bool:
        # By hand: a strict parser gives up on the whole line where another program of this machine set an odd cookie.
        pairs = (part.strip().partition("=") for part in cookies.split(";"))
        return any(name == self._cookie and _same(value, self._token) for name, _, value in pairs)

    async def _welcome(self, send: Send) -> None:
        cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        await _answer(send, 200, "text/html; charset=utf-8", _WELCOME, [(b"set-cookie", cookie.encode())])


def _headers(nonce: str, is_api: bool, carried: set[bytes]) -> list[tuple[bytes, bytes]]:
    every = [
        ("content-security-policy", policy(nonce)),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-embedder-policy", "require-corp"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store" if is_api else "no-cache"),
    ]
    return [(name.encode(), value.encode()) for name, value in every if name.encode() not in carried]


async def _refuse(send: Send, sentence: str, as_page: bool) -> None:
    if as_page:
        # The sentence may quote a header, but never one with markup in it.
        await _answer(send, 403, "text/html; charset=utf-8", _CLOSED.format(_escaped(sentence)))
    else:
        await _answer(send, 403, "application/json", json.dumps({"error": sentence}))


async def _answer(
    send: Send, status: int, kind: str, body: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    content = body.encode()
    start = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode()), *(headers or [])]
    # Nothing that a token stands in, or that a missing token changes, is kept.
    start.append((b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": content})


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
