"""A capture on loopback: the page, and any exact row that it leaves out, as JSON.

Nothing but the standard library. The server listens on this machine alone, but every page in every browser here can send
requests there, and every user: so a request has to name this host (against DNS rebinding), come from no other origin,
and know the path, which is drawn by chance.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import json
import math
import re
import secrets
import threading
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from qkv.errors import ArgumentError, QkvError

from ..capture import Capture
from ..row import row
from .html import to_html
from .picture import Picture

__all__ = ["Server"]

_FIELDS = ("layer", "head", "query")

#: What every answer carries.
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: Seconds after which a browser that says nothing is let go.
_PATIENCE = 20


class Server(http.server.ThreadingHTTPServer):
    """Serves one capture.

    Args:
        seen: the capture. shown: the picture of it that the page opens with. port: 0 takes a free one.

    Attributes:
        link: the address of the page.

    Raises:
        ArgumentError: the port is taken, or may not be used.

    >>> server = Server(seen, views.picture(seen))  # doctest: +SKIP
    >>> print(server.link)  # doctest: +SKIP
    http://127.0.0.1:40121/3nQk…/
    >>> server.run()  # until Ctrl-C  # doctest: +SKIP
    """

    daemon_threads = True

    def __init__(self, seen: Capture, shown: Picture, *, port: int = 0) -> None:
        self._seen = seen
        self._one_at_a_time = threading.Lock()
        self._path = f"/{secrets.token_urlsafe(24)}/"
        self._page = to_html(shown, served=True).encode("utf-8", "backslashreplace")
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise ArgumentError(f"port {port} cannot be used ({reason}); pass 0 for a free one") from None
        here = self.server_address[1]
        self.hosts = frozenset({f"127.0.0.1:{here}", f"localhost:{here}"})
        self.link = f"http://127.0.0.1:{here}{self._path}"

    def run(self) -> None:
        """Answer until the process is interrupted, then close."""
        with self, contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()

    def server_bind(self) -> None:
        """Without asking a name service what this machine is called, which http.server does."""
        import socketserver

        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nobody's fault, and no traceback helps the reader of a terminal."""

    def answer(self, target: str) -> tuple[HTTPStatus, str, bytes]:
        """(status, type, content) of a path with its query."""
        try:
            parts = urlsplit(target)
        except ValueError:
            return _error(HTTPStatus.BAD_REQUEST, "the address cannot be read; ask row?layer=…&head=…&query=…")
        if not hmac.compare_digest(parts.path[: len(self._path)].encode(), self._path.encode()):
            return _error(HTTPStatus.FORBIDDEN, "this page opens with the link that qkv lens printed; open that link")
        name = parts.path[len(self._path) :]
        if name == "":
            return HTTPStatus.OK, "text/html; charset=utf-8", self._page
        if name != "row":
            return _error(HTTPStatus.NOT_FOUND, "there is nothing at this address; ask row?layer=…&head=…&query=…")
        try:
            return HTTPStatus.OK, "application/json", _json(self._row(**_numbers(parts.query)))
        except QkvError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except MemoryError:
            return _error(
                HTTPStatus.INSUFFICIENT_STORAGE, "there is not enough memory for this row; close other programs"
            )
        except Exception as error:
            said = f"this is a fault of qkv, please report it ({type(error).__name__})"
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, said)

    def _row(self, layer: int, head: int, query: int) -> dict[str, Any]:
        # Rows take all threads of the engine by themselves.
        with self._one_at_a_time:
            one = self._seen.layer(layer)
            return {"layer_index": one.index, **row(one, head, query).to_dict()}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._send(*(self._refusal() or self.server.answer(self.path)))

    do_HEAD = do_GET  # noqa: N815 (what http.server calls)

    def _refusal(self) -> tuple[HTTPStatus, str, bytes] | None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            said = "the host is not one of this server; open the link that qkv lens printed"
            return _error(HTTPStatus.FORBIDDEN, said)
        origins = self.headers.get_all("Origin") or []
        if any(origin.lower() not in {f"http://{host}" for host in self.server.hosts} for origin in origins):
            said = "the origin is not this server's page; open the link that qkv lens printed"
            return _error(HTTPStatus.FORBIDDEN, said)
        return None

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server finds wrong, as a sentence like all others; it quotes nothing that came."""
        status = HTTPStatus(code)
        known = {
            HTTPStatus.NOT_IMPLEMENTED: "this server answers GET and HEAD; ask row?layer=…&head=…&query=…",
            HTTPStatus.REQUEST_URI_TOO_LONG: "the address is too long; ask row?layer=…&head=…&query=…",
        }
        self.close_connection = True
        self._send(*_error(status, known.get(status, f"the request cannot be read ({status.phrase}); send HTTP/1.1")))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the addresses have the secret in them."""


def _numbers(query: str) -> dict[str, int]:
    """layer, head and query of a query string, each once."""
    wanted = "row takes layer=, head= and query= once each, as whole numbers"
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=8)
    except ValueError:
        raise ArgumentError(f"{wanted}, but the address cannot be read; write row?layer=0&head=0&query=0") from None
    if sorted(name for name, _ in pairs) != sorted(_FIELDS):
        came = ", ".join(ascii(name)[1:-1][:40] for name, _ in pairs) or "none"
        raise ArgumentError(f"{wanted}, but {came} came; write row?layer=0&head=0&query=0")
    for name, value in pairs:
        if not re.fullmatch(r"-?[0-9]{1,9}", value):
            raise ArgumentError(
                f"{wanted}, but {name}={ascii(value)[1:-1][:40]} came; write row?layer=0&head=0&query=0"
            )
    return {name: int(value) for name, value in pairs}


def _json(told: Any) -> bytes:
    return json.dumps(_finite(told), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def _finite(value: Any) -> Any:
    """NaN and infinities, for which JSON has no word, become null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _error(status: HTTPStatus, sentence: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", _json({"error": sentence})
