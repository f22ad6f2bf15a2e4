"""A kernel that is a command in any language: it is handed a folder with a call, and leaves its answer there.

`run:node kernel.mjs` runs `node kernel.mjs FOLDER` for each call; see `qkv.audit.export` for what is in the folder.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError, FileError

from .call import Call, Result
from .charge import Charge
from .domain import Domain
from .export import write_call
from .tensors import read_tensors

__all__ = ["Command", "domain_of_command"]

#: What a process is given beyond the time that its kernel may take.
_START_SECONDS = 10.0


class Command:
    """Where such a kernel runs: each call in a process of its own."""

    def __init__(self, words: str, domain: Domain) -> None:
        self._words = shlex.split(words)
        if not self._words:
            raise ArgumentError("run: takes a command, such as run:node kernel.mjs")
        if shutil.which(self._words[0]) is None:
            raise ArgumentError(f"run: names {self._words[0]}, which is no program that can be run here; give its path")
        self.domain = domain

    def ask(self, call: Call) -> Result:
        """One call; what the command prints is nothing, but the last line of an error is its words."""
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="qkv-audit-") as name:
            folder = Path(name)
            write_call(folder, call, {})
            for _ in range(max(call.repeat, 1)):
                result = self._once(folder)
        # What its processes used is not known here.
        result.seconds = result.busy = time.perf_counter() - start
        return result

    def _once(self, folder: Path) -> Result:
        limit = self.domain.seconds + _START_SECONDS
        try:
            process = subprocess.Popen(
                [*self._words, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as problem:
            return Result("crash", f"{self._words[0]} cannot be run: {problem.strerror}")
        stderr = _words_until(process, limit)
        if stderr is None:
            return Result("crash", f"no answer within {limit:g} s")
        answer, refusal = folder / "answer.safetensors", folder / "refusal.txt"
        if process.returncode < 0:
            return Result("crash", f"killed by {signal.Signals(-process.returncode).name}")
        if process.returncode:
            said = stderr.decode(errors="replace").strip().splitlines()
            return Result("crash", f"exit code {process.returncode}: {said[-1][:200] if said else 'without a word'}")
        if refusal.exists():
            return Result("refusal", " ".join(refusal.read_text(encoding="utf-8", errors="replace").split())[:300])
        if not answer.exists():
            return Result("crash", "left neither answer.safetensors nor refusal.txt")
        try:
            found = read_tensors(answer)
        except FileError as problem:
            return Result("crash", str(problem))
        if "output" not in found:
            return Result("crash", "there is no output in answer.safetensors")
        return Result(
            "answer", parts={n: x for n, (_, x) in found.items()}, dtypes={n: t for n, (t, _) in found.items()}
        )

    def close(self) -> None:
        """Nothing is left."""


def _words_until(process: subprocess.Popen[bytes], limit: float) -> bytes | None:
    """The last words of a process on its error stream; None where it takes too long, and then it is ended."""
    words = [b""]

    def swallow() -> None:
        assert process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(process.stderr.fileno(), 1 << 16):
                words[0] = (words[0] + chunk)[-2000:]

    charge = Charge(process.pid, limit)
    drain = threading.Thread(target=swallow, daemon=True)
    drain.start()
    try:
        while not charge.over:
            drain.join(0.1)
            # What it has started itself may hold the stream open.
            if drain.is_alive() and process.poll() is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                return words[0]
        return None
    finally:
        _end(process)
        drain.join(1)
        if not drain.is_alive() and process.stderr is not None:
            process.stderr.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it where it still runs, as when Ctrl-C ends the audit, and whatever it has started."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def domain_of_command(domain: Domain, **changes: Any) -> Domain:
    """The domain, if files can say it.

    Raises:
        ArgumentError: they cannot.
    """
    if domain.layout != "bhld" or domain.arrays != "numpy":
        raise ArgumentError("files hold arrays with axes (B, H, L, D); leave out layout and arrays for run:")
    return domain.but(strides=False, **changes)
