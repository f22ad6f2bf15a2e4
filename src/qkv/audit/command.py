"""A kernel that is a command in any language: it is handed a folder with a call, and leaves its answer there.

`run:node kernel.mjs` runs `node kernel.mjs FOLDER` for each call; see `qkv.audit.export` for what is in the folder.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError, FileError

from .call import Call, Result
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
        self.domain = domain

    def ask(self, call: Call) -> Result:
        """One call; what the command prints is nothing, but the last line of an error is its words."""
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="qkv-audit-") as name:
            folder = Path(name)
            write_call(folder, call, {})
            for _ in range(max(call.repeat, 1)):
                result = self._once(folder)
        result.seconds = time.perf_counter() - start
        return result

    def _once(self, folder: Path) -> Result:
        limit = self.domain.seconds + _START_SECONDS
        try:
            done = subprocess.run(
                [*self._words, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result("crash", f"no answer within {limit:g} s")
        except OSError as problem:
            return Result("crash", f"{self._words[0]} cannot be run: {problem.strerror}")
        answer, refusal = folder / "answer.safetensors", folder / "refusal.txt"
        if done.returncode < 0:
            return Result("crash", f"killed by {signal.Signals(-done.returncode).name}")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            return Result("crash", f"exit code {done.returncode}: {said[-1][:200] if said else 'without a word'}")
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


def domain_of_command(domain: Domain, **changes: Any) -> Domain:
    """The domain, if files can say it.

    Raises:
        ArgumentError: they cannot.
    """
    if domain.layout != "bhld" or domain.arrays != "numpy":
        raise ArgumentError("files hold arrays with axes (B, H, L, D); leave out layout and arrays for run:")
    return domain.but(strides=False, **changes)
