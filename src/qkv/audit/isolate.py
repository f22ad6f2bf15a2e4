"""Kernels run in a child process that is kept, watched, and replaced after a crash, a hang, or a device error.

Two pipes carry calls and results; what the kernel prints goes to a third, is counted, and thrown away. POSIX only:
elsewhere, and for functions that cannot be found again by name, `Here` runs them in this process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from . import wire
from .call import Call, Result
from .charge import Charge
from .deliver import deliver
from .domain import Domain
from .kernel import Kernel

__all__ = ["NOT_ASKED", "Bench", "Child", "Here", "StartError", "begin", "end_all"]

#: Printing more than this during one call ends it.
_FLOOD = 256 << 20

#: After so many hangs the kernel is asked no more, and this is what is said then.
_PATIENCE = 3
NOT_ASKED = "not asked any more"


#: Children that run, to be ended when the audit is.
_RUNNING: set[subprocess.Popen[bytes]] = set()


#: Set while no child may be started, since the audit is being ended.
_ENDING = threading.Event()


def begin() -> None:
    """Let children be started again, once an audit has been ended."""
    _ENDING.clear()


def end_all() -> None:
    """Kill every child, whatever it is doing, and let none be started. Who waits for one sees it die."""
    _ENDING.set()
    for process in list(_RUNNING):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


class StartError(Exception):
    """A kernel that could not be loaded; the text says why."""


class Bench(Protocol):
    """Where a kernel runs."""

    @property
    def domain(self) -> Domain: ...

    def ask(self, call: Call) -> Result:
        """One call; never raises for what the kernel does."""

    def close(self) -> None: ...


class Here:
    """In this process: quick, and a crash of the kernel is a crash of the audit."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @property
    def domain(self) -> Domain:
        """What the kernel can take."""
        return self.kernel.domain

    def ask(self, call: Call) -> Result:
        """One call."""
        return deliver(self.kernel, call)

    def close(self) -> None:
        """Nothing to end."""


class Child:
    """In a process of its own.

    Args:
        spec: what the child loads, see `qkv.audit.load`. domain: where it is known already; else the child tells.
        start_seconds: how long loading may take.
    """

    def __init__(self, spec: dict[str, Any], *, start_seconds: float = 300.0) -> None:
        self._spec = spec
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._hangs = 0
        self._calls = 0
        self._printed, self._tail = 0, b""
        self.started = 0
        self.about: dict[str, Any] = {}
        self._start()
        self._domain = Domain.from_dict(self.about["domain"])

    @property
    def domain(self) -> Domain:
        """What the kernel can take."""
        return self._domain

    def ask(self, call: Call) -> Result:
        """One call; what ends the child is a crash with its name."""
        if self._hangs >= _PATIENCE:
            return Result("crash", f"{NOT_ASKED} after {_PATIENCE} hangs")
        start = time.perf_counter()
        try:
            if self._process is None:
                self._start()
        except StartError as problem:
            return Result("crash", f"the kernel could not be started again: {problem}")
        # The first call after a start may compile, or load what is loaded lazily.
        allowed = self._domain.seconds * (call.repeat + (3 if self._calls == 0 else 0))
        self._calls += 1
        try:
            self._write(wire.pack(*wire.call_to(call)))
            head, arrays = self._read(allowed)
        except _OverError as over:
            self._end()
            self._hangs += over.hang
            spent = time.perf_counter() - start
            return Result("crash", str(over), seconds=spent, busy=spent)
        result = wire.result_from(head, arrays)
        if self._printed > _FLOOD // 256:
            result.facts["printed"] = self._printed
        self._printed = 0
        if result.facts.get("device error"):
            self._end()
        return result

    def close(self) -> None:
        """End the child."""
        self._end()

    def _start(self) -> None:
        if _ENDING.is_set():
            raise StartError("the audit is being ended")
        to_child, mine = os.pipe()
        theirs, from_child = os.pipe()[::-1]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONFAULTHANDLER": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qkv.audit.child", str(to_child), str(theirs)],
            pass_fds=(to_child, theirs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        _RUNNING.add(self._process)
        if _ENDING.is_set():
            # Begun in the moment in which all others were ended.
            self._process.kill()
        os.close(to_child)
        os.close(theirs)
        self._out, self._in = mine, from_child
        self._printed, self._tail, self._calls = 0, b"", 0
        self._drain = threading.Thread(target=self._swallow, args=(self._process,), daemon=True)
        self._drain.start()
        self.started += 1
        try:
            self._write(wire.pack({"spec": self._spec}, {}))
            head, _ = self._read(self._start_seconds, first=True)
        except _OverError as over:
            self._end()
            raise StartError(f"{over}{self._last_words()}") from None
        if "error" in head:
            self._end()
            raise StartError(str(head["error"]))
        self.about = head
        self._base = self._resident()

    def _last_words(self) -> str:
        said = self._tail.decode(errors="replace").strip().splitlines()
        return f" ({said[-1][:200]})" if said else ""

    def _swallow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(process.stdout.fileno(), 1 << 16):
                self._printed += len(chunk)
                self._tail = (self._tail + chunk)[-2000:]

    def _write(self, message: bytes) -> None:
        view = memoryview(message)
        try:
            while view:
                view = view[os.write(self._out, view[: 1 << 20]) :]
        except OSError:
            raise _OverError(self._death()) from None

    def _read(self, seconds: float, first: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        charge = Charge(self._process.pid if self._process else 0, seconds)

        def read(count: int) -> bytes:
            parts = []
            while count:
                ready, _, _ = select.select([self._in], [], [], 0.05)
                if ready:
                    part = os.read(self._in, min(count, 1 << 20))
                    if not part:
                        raise _OverError(self._death())
                    parts.append(part)
                    count -= len(part)
                    continue
                if charge.over:
                    raise _OverError(f"no answer within {seconds:g} s", hang=1)
                if self._printed > _FLOOD:
                    raise _OverError(f"printed more than {_FLOOD >> 20} MB")
                if not first and self._resident() - self._base > self._domain.memory:
                    raise _OverError(f"took more than {self._domain.memory / 2**30:.3g} GiB of memory")
            return b"".join(parts)

        try:
            return wire.unpack(read)
        except (ValueError, KeyError, TypeError) as problem:
            raise _OverError(f"the answer could not be read ({problem})") from None

    def _resident(self) -> int:
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) if self._process else 0
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _death(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        code = self._process.returncode
        if code is None:
            return "the child closed its pipe"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
            return f"killed by signal {-code}"
        return f"the process ended with exit code {code}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _RUNNING.discard(process)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        for fd in (self._out, self._in):
            with contextlib.suppress(OSError):
                os.close(fd)
        # Its last words, and then the pipe: grandchildren may hold the other end, so no waiting for its close.
        self._drain.join(1)
        if process.stdout is not None and not self._drain.is_alive():
            process.stdout.close()


class _OverError(Exception):
    """The child did not answer; the text says how it ended."""

    def __init__(self, words: str, hang: int = 0) -> None:
        super().__init__(words)
        self.hang = hang
