"""The other side of `runner`: a bare Python that runs one solution and says what its calls came to.

Started as `python -I -S child.py GRADER LIMITS`: no site packages, so a solution has what it has in the page, the
standard library. It takes one line of JSON per request, `{"load": source}` (null: the same again) or `{"call": input}`,
with an `id`, and answers with an outcome each that has the same `id`. It judges nothing and does not know the
definition.

The limits are those of the operating system where it has them, and an audit hook that refuses processes, signals,
sockets, foreign code and writing. That holds off accidents and pranks. It is no sandbox: to grade strangers, use a
container.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import contextlib
import importlib.util
import json
import os
import signal
import sys
from types import ModuleType
from typing import Any

# Beginnings of the names of audit events.
REFUSED = (
    *("os.exec", "os.fork", "os.kill", "os.posix_spawn", "os.spawn", "os.startfile", "os.system"),
    *("os.chdir", "os.chflags", "os.chmod", "os.chown", "os.link", "os.mkdir", "os.putenv", "os.remove", "os.rename"),
    *("os.rmdir", "os.setxattr", "os.symlink", "os.truncate", "os.utime", "shutil."),
    *("pty.", "subprocess.", "signal.", "socket.", "syslog.", "urllib.", "webbrowser.", "ftplib.", "smtplib."),
    *("ctypes.", "mmap.", "resource.prlimit", "resource.setrlimit", "sys.addaudithook", "winreg."),
)
# Modules that start processes or reach the C level without an audit event.
REFUSED_MODULES = {"_posixsubprocess", "_ctypes", "_winapi", "_multiprocessing"}


def main() -> None:
    """Serve requests until the other side goes away."""
    grader_path, limits = sys.argv[1], json.loads(sys.argv[2])
    sys.dont_write_bytecode = True
    grader = _load("grader", grader_path)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.argv[:] = [""]
    # What `site` adds, since learners use it; the page's Python has it as well.
    builtins.exit, builtins.quit = (_sitebuiltins.Quitter(name, "") for name in ("exit", "quit"))
    _limit(limits)
    _refuse(os.path.dirname(os.path.dirname(os.path.abspath(grader_path))))  # noqa: PTH120, PTH100
    serve(grader, requests, replies)


def serve(grader: ModuleType, requests: Any, replies: Any) -> None:
    """Answer each line with a line."""
    loads, dumps, read, write, flush = json.loads, json.dumps, requests.readline, replies.write, replies.flush
    solution: Any = None
    told = ""
    write(b'{"kind": "ready"}\n')
    flush()
    while line := read():
        request = loads(line)
        if not request:  # an echo
            write(line)
            flush()
            continue
        if "load" in request:
            if solution is None:
                solution = grader.Local(request["load"], request["name"])
            outcome = solution.load()
        else:
            outcome = solution.call(tuple(grader.decode(part) for part in request["call"]))
        outcome["id"] = request["id"]
        printed, cut = solution.printed()
        if printed != told:
            told = printed
            outcome["printed"] = [printed, cut]
        write(dumps(outcome).encode() + b"\n")
        flush()


def _load(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _limit(limits: dict[str, Any]) -> None:
    if hasattr(signal, "setitimer"):
        # The other side ends this process; if it is gone itself, the clock does.
        signal.setitimer(signal.ITIMER_REAL, 10 * limits["total"] + 60)
    try:
        import resource
    except ImportError:
        return
    memory, seconds = limits["memory"] * 2**20, int(limits["total"]) + 30
    wanted = {"RLIMIT_AS": memory, "RLIMIT_CPU": seconds, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NPROC": 0}
    for name, most in wanted.items():
        which = getattr(resource, name, None)
        if which is not None:
            with contextlib.suppress(OSError, ValueError):  # a system that has the name and not the limit
                resource.setrlimit(which, (most, most))


def _refuse(package: str) -> None:
    """From here on, refuse what no `attend` needs."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    separator, text, number, refused, modules = os.sep, str, int, REFUSED, REFUSED_MODULES

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if type(flags) is number and flags & writes:
                raise PermissionError("a solution may not write files")
            if type(path) is text and path.startswith(package + separator):
                raise PermissionError("a solution may not read the grader")
        elif event == "import":
            if arguments[0] in modules:
                raise PermissionError(f"a solution may not use {arguments[0]}")
        elif event.startswith(refused):
            raise PermissionError(f"a solution may not use {event}")

    sys.addaudithook(hook)


if __name__ == "__main__":
    main()
