"""The lesson's server: pages, lessons and the notebook, for one learner on his own machine.

It never runs a learner's code, and nothing of it needs the network. The one file that knows Starlette and uvicorn; the
door is `guard.py`, the notebook `notebook.py`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mimetypes
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from qkv.errors import ArgumentError, QkvError
from qkv.version import __version__

from .assets import page, worker_files
from .guard import Application, Guard
from .head import chosen_rows
from .lessons import Lesson
from .notebook import Conflict, Notebook
from .notebook_document import to_markdown
from .notebook_file import BusyError, NotebookError, NotebookFullError
from .verdicts import table

__all__ = ["IMPORT_LIMIT", "SAVE_LIMIT", "create_app", "listen", "make_server", "serve"]

#: The most bytes that one save may have, and an import.
SAVE_LIMIT = 4 << 20
IMPORT_LIMIT = 64 << 20

#: The deepest that a body may be nested: what was taken in has to be written out again, within Python's recursion limit.
_DEPTH = 100

# What a browser is told with nosniff has to be right, whatever the machine's own table says.
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".py": "text/x-python",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


class _Json(Response):
    """JSON in ASCII: a report may quote any string that a program made, and half of a character pair has no UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


Answer = Callable[[Request], Awaitable[Response]]


# The application ------------------------------------------------------------------------------------------------------


def create_app(
    notebook: Notebook,
    lessons: tuple[Lesson, ...],
    assets: Path,
    *,
    token: str,
    port: int,
    allow_hosts: tuple[str, ...] = (),
    once: str = "",
) -> Application:
    """The whole application behind its door.

    Args:
        notebook: open.
        lessons: built.
        assets: the folder of the page.
        token, port, allow_hosts, once: as `Guard`.
    """
    for ending, kind in _TYPES.items():
        mimetypes.add_type(kind, ending)
    pages = _Pages(lessons, assets, notebook.path)
    book = _Book(notebook, lessons)
    both = [(f"/api/{name}{ending}", method) for ending in (".json", "") for name, method in pages.documents.items()]
    routes = [
        Route("/", pages.index),
        Route("/config.json", pages.config),
        *(Route(path, method) for path, method in both),
        Route("/py/{name}", pages.python),
        Route("/api/notebook", book.everything),
        Route("/api/search", book.search),
        Route("/api/notes/{lesson}/{section}", book.save_note, methods=["PUT"]),
        Route("/api/drafts/{lesson}", book.save_draft, methods=["PUT"]),
        Route("/api/bookmarks/{lesson}/{section}", book.set_bookmark, methods=["PUT"]),
        Route("/api/completed/{lesson}", book.set_completed, methods=["PUT"]),
        Route("/api/attempts", book.add_attempt, methods=["POST"]),
        Route("/api/cases", book.add_case, methods=["POST"]),
        Route("/api/cases/{identifier}", book.delete_case, methods=["DELETE"]),
        Route("/api/export", book.export),
        Route("/api/import/preview", book.preview, methods=["POST"]),
        Route("/api/import", book.take_in, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error, QkvError: _error, Exception: _fault}
    application = Starlette(routes=routes, exception_handlers=handlers)
    # Everything else is a file of the page. (As a mount it would also answer for addresses asked in a wrong way.)
    application.router.redirect_slashes = False
    application.router.default = StaticFiles(directory=assets)
    return Guard(application, token, port, allow_hosts, once)


class _Pages:
    """What is there to read: the page, the lessons, the head, the lab's Python."""

    def __init__(self, lessons: tuple[Lesson, ...], assets: Path, notebook_path: Path) -> None:
        self._lessons = {lesson.id: lesson for lesson in lessons}
        self._assets = assets
        self._notebook_path = notebook_path
        self._python = worker_files()
        self.documents: dict[str, Answer] = {
            "config": self.config,
            "head": self.head,
            "elsewhere": self.elsewhere,
            "lessons": self.list_lessons,
            "lessons/{lesson}/solution": self.solution,
            "lessons/{lesson}": self.lesson,
        }

    async def index(self, request: Request) -> Response:
        return HTMLResponse(page(self._assets, request.state.nonce))

    async def config(self, request: Request) -> Response:
        return _Json(config(notebook_path=str(self._notebook_path)))

    async def list_lessons(self, request: Request) -> Response:
        return _Json([lesson.summary() for lesson in self._lessons.values()])

    async def lesson(self, request: Request) -> Response:
        return _Json(self._find(request).to_dict())

    async def solution(self, request: Request) -> Response:
        lab = self._find(request).lab
        if lab is None or lab.solution is None:
            raise HTTPException(404, "this lesson has no solution")
        return _Json({"code": lab.solution})

    async def head(self, request: Request) -> Response:
        return _Json(await run_in_threadpool(chosen_rows))

    async def elsewhere(self, request: Request) -> Response:
        return _Json(table())

    async def python(self, request: Request) -> Response:
        found = self._python.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, f"there is no such file; there are {', '.join(self._python)}")
        return FileResponse(found, media_type="text/x-python")

    def _find(self, request: Request) -> Lesson:
        found = self._lessons.get(request.path_params["lesson"])
        if found is None:
            raise HTTPException(404, "there is no such lesson; take one from api/lessons.json")
        return found


def config(**more: object) -> dict[str, Any]:
    """What the page has to know first: the version, whether it is a static site, and where the lab's Python is."""
    python = {name: f"py/{name}" for name in worker_files()}
    return {"version": __version__, "static": False, "python": python, **more}


class _Book:
    """The notebook's part: every answer is sent after the file system confirmed it."""

    def __init__(self, notebook: Notebook, lessons: tuple[Lesson, ...]) -> None:
        self._notebook = notebook
        self._sections = {lesson.id: {section.id for section in lesson.sections} for lesson in lessons}
        self._titles = {
            lesson.id: (lesson.title, {section.id: section.name for section in lesson.sections}) for lesson in lessons
        }

    async def everything(self, request: Request) -> Response:
        return _Json(await run_in_threadpool(self._notebook.everything))

    async def search(self, request: Request) -> Response:
        return _Json(await run_in_threadpool(self._notebook.search, request.query_params.get("q", "")))

    async def save_note(self, request: Request) -> Response:
        lesson, section = await self._place(request)
        body = await _body(request, text=str, base_revision=int)
        save = functools.partial(self._notebook.save_note, lesson, section, **body)
        return await _saved(save, "text")

    async def save_draft(self, request: Request) -> Response:
        lesson, _ = await self._place(request)
        body = await _body(request, code=str, base_revision=int)
        return await _saved(functools.partial(self._notebook.save_draft, lesson, **body), "code")

    async def set_bookmark(self, request: Request) -> Response:
        lesson, section = await self._place(request)
        body = await _body(request, on=bool)
        await run_in_threadpool(self._notebook.set_bookmark, lesson, section, body["on"])
        return _Json(body)

    async def set_completed(self, request: Request) -> Response:
        lesson, _ = await self._place(request)
        body = await _body(request, on=bool)
        since = await run_in_threadpool(self._notebook.set_completed, lesson, body["on"])
        return _Json({**body, "time": since})

    async def add_attempt(self, request: Request) -> Response:
        body = await _body(request, lesson=str, code=str, report=object, passed=bool, solution_shown=bool)
        await self._check_place(body["lesson"])
        return _Json(await run_in_threadpool(functools.partial(self._notebook.add_attempt, **body)))

    async def add_case(self, request: Request) -> Response:
        body = await _body(request, lesson=str, form=str, text=str, note=str, verdict=object)
        await self._check_place(body["lesson"])
        return _Json(await run_in_threadpool(functools.partial(self._notebook.add_case, **body)))

    async def delete_case(self, request: Request) -> Response:
        if not await run_in_threadpool(self._notebook.delete_case, request.path_params["identifier"]):
            raise HTTPException(404, "there is no such case; it may be deleted already")
        return Response(status_code=204)

    async def export(self, request: Request) -> Response:
        document = await run_in_threadpool(self._notebook.document)
        form = request.query_params.get("format", "json")
        if form == "json":
            text, kind, name = json.dumps(document, indent=1), "application/json", "qkv-notebook.json"
        elif form == "markdown":
            text, kind, name = to_markdown(document, self._titles), "text/markdown", "qkv-notebook.md"
        else:
            raise HTTPException(400, "format must be json or markdown")
        return Response(text, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})

    async def preview(self, request: Request) -> Response:
        body = await _body(request, IMPORT_LIMIT, document=object)
        merged = await run_in_threadpool(self._notebook.preview, body["document"])
        return _Json(merged.to_dict())

    async def take_in(self, request: Request) -> Response:
        body = await _body(request, IMPORT_LIMIT, document=object)
        merged = await run_in_threadpool(self._notebook.take_in, body["document"])
        return _Json(merged.to_dict())

    async def _place(self, request: Request) -> tuple[str, str]:
        lesson, section = request.path_params["lesson"], request.path_params.get("section", "")
        await self._check_place(lesson, section or None)
        return lesson, section

    async def _check_place(self, lesson: str, section: str | None = None) -> None:
        sections = self._sections.get(lesson)
        if sections is not None and (section is None or section in sections):
            return
        # A note of a lesson that is no longer there can still be edited.
        if not await run_in_threadpool(self._notebook.knows, lesson, section):
            raise HTTPException(404, "there is no such lesson or section; take one from api/lessons.json")


async def _saved(save: Callable[[], Any], key: str) -> Response:
    try:
        saved = await run_in_threadpool(save)
    except Conflict as newer:
        about = {key: newer.text, "revision": newer.revision, "updated": newer.updated}
        return _Json({"error": str(newer), **about}, status_code=409)
    return _Json({"revision": saved.revision, "updated": saved.updated})


# What comes in --------------------------------------------------------------------------------------------------------


async def _body(request: Request, limit: int = SAVE_LIMIT, /, **fields: type) -> dict[str, Any]:
    """The JSON object of a request, with exactly these fields, of these types (`object`: anything)."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body must be JSON; send it with Content-Type: application/json")
    too_large = HTTPException(413, f"a request may have {limit >> 20} MB; send less")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise too_large
    try:
        body = json.loads(content.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise HTTPException(
            400, f"the body must be JSON in UTF-8 with finite numbers, nested at most {_DEPTH} deep"
        ) from None
    if _is_deeper(body, _DEPTH):
        raise HTTPException(400, f"the body may be nested {_DEPTH} deep; flatten it")
    if not isinstance(body, dict):
        raise HTTPException(400, f"the body must be an object with {', '.join(fields)}")
    for name in body:
        if name not in fields:
            raise HTTPException(400, f"the body has a field {name[:80]!r}; it takes {', '.join(fields)}")
    for name, kind in fields.items():
        if name not in body:
            raise HTTPException(400, f"the body has no {name}; it takes {', '.join(fields)}")
        if not _fits(body[name], kind):
            wanted = {str: "text", int: "a whole number", bool: "true or false"}[kind]
            raise HTTPException(400, f"{name} must be {wanted}")
    return body


def _is_deeper(value: Any, depth: int) -> bool:
    layer = [value]
    for _ in range(depth + 1):
        layer = [
            part
            for whole in layer
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
        if not layer:
            return False
    return True


def _fits(value: Any, kind: type) -> bool:
    if kind is int:  # a bool is one to Python
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return isinstance(value, kind)


def _no_constant(word: str) -> float:
    raise ValueError(word)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(digits)
    return number


# What goes wrong ------------------------------------------------------------------------------------------------------


async def _http_error(request: Request, error: HTTPException) -> Response:
    # Starlette's own errors have two words, ours a sentence.
    words = {
        "Not Found": "there is nothing at this address",
        "Method Not Allowed": f"this address does not take {request.method}",
    }
    said = words.get(error.detail, error.detail)
    return _Json({"error": said}, status_code=error.status_code, headers=error.headers)


async def _error(request: Request, error: QkvError) -> Response:
    kinds = ((NotebookFullError, 507), (BusyError, 503), (NotebookError, 500), (ArgumentError, 400))
    status = next((status for kind, status in kinds if isinstance(error, kind)), 500)
    return _Json({"error": str(error)}, status_code=status)


async def _fault(request: Request, error: Exception) -> Response:
    return _Json({"error": f"this is a fault of qkv, please report it ({type(error).__name__})"}, status_code=500)


# Serving --------------------------------------------------------------------------------------------------------------


def listen(port: int) -> socket.socket:
    """A socket that listens on the loopback interface; port 0 takes a free one.

    Raises:
        ArgumentError: the port is taken, or may not be used.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # So that a server can follow the last one at once. (On Windows it would let two servers share a port.)
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise ArgumentError(
            f"--port {port} cannot be used ({reason}); is qkv learn running already? write --port 0 for a free one"
        ) from error
    return listener


def make_server(application: Application) -> uvicorn.Server:
    """uvicorn, set up for one learner."""
    options = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,  # the opening link has the token in it
        server_header=False,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(options)


def serve(application: Application, listener: socket.socket, open_link: str | None) -> None:
    """Answer requests until the process is interrupted.

    Args:
        application: from `create_app`.
        listener: from `listen`; closed at the end.
        open_link: what to open in the learner's browser, if anything.
    """
    with listener, _opened(open_link), contextlib.suppress(KeyboardInterrupt):
        make_server(application).run(sockets=[listener])


@contextlib.contextmanager
def _opened(link: str | None) -> Iterator[None]:
    """Open the browser beside the server; the socket listens already, so that the first request waits for it."""
    if link is not None:
        # In a thread of its own, because some browsers keep `open` until they are closed.
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    yield
