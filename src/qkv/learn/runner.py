"""Solutions in processes of their own, with limits of time and memory: what `qkv learn check` and `grade` stand on.

The child only runs the learner's function (`child.py`); inputs, judgement and report stay on this side, so that nothing
a solution does to its own interpreter reaches them. A call that does not answer is ended with its process, and the next
one gets a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import grader
from .grader import Outcome, Problem, Report

__all__ = ["MAX_SOURCE", "Child", "Limits", "check_file", "check_solution", "check_source", "read_solution"]

MAX_SOURCE = 1_000_000  # characters of a solution
_MAX_REPLY = 4_000_000  # bytes of an answer
# A busy machine is not the solution's fault. What a call costs on the way there and back is free: as much as an echo has
# taken lately, thrice, within these bounds in seconds; and of a process started again so much at most is charged.
_ON_THE_WAY = (0.005, 0.05)
_ECHO = b"{}\n"
_ECHO_EVERY = 16  # calls
_RESTART = 0.15
_START = 30.0  # seconds that Python may take to start
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Limits:
    """What one solution may take.

    Attributes:
        seconds: for one call. After a first call that hung the next may take half as long, and so on to a tenth: what
            hangs once is believed sooner.
        total: for all calls together, of the solution's own time, and that of the processes started again after it
            ended or hung one; cases that are left then are not run.
        memory: in MiB, of address space, where the system can limit it.
    """

    seconds: float = 2.0
    total: float = 60.0
    memory: int = 512


class Child:
    """Runs one solution in another process; see `grader.Runs`. A context manager that ends the process."""

    def __init__(self, source: str, name: str = "solution.py", limits: Limits | None = None) -> None:
        self.source = source
        self.name = name
        self.limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._asked = 0
        self._free = _ON_THE_WAY[0]
        self._sent = False
        self._started = False
        self._spent = 0.0
        self._hangs = 0
        self._printed = ("", False)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self) -> Outcome:
        if self._process is None and not self._start():
            return self._spent_all()
        source, self._sent = (None if self._sent else self.source), True
        return self._ask({"load": source, "name": self.name}, "loaded")

    def call(self, problem: Problem) -> Outcome:
        if self._process is None:
            loaded = self.load()
            if loaded["kind"] != "loaded":
                return loaded
        return self._ask({"call": [grader.encode(part) for part in problem]}, "returned")

    def printed(self) -> tuple[str, bool]:
        return self._printed

    def close(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        self._requests.put(None)
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _spent_all(self) -> Outcome:
        return {"kind": "spent", "seconds": self.limits.total}

    def _start(self) -> bool:
        """Start a process; False where there is no time left for one."""
        began = time.monotonic()
        if self._spent >= self.limits.total:
            return False
        limits = {"memory": self.limits.memory, "total": self.limits.total}
        # -I: nothing of the user's or of this folder; -S: no packages, as in the page.
        command = [sys.executable, "-I", "-S", str(_FOLDER / "child.py"), str(_FOLDER / "grader.py")]
        process = subprocess.Popen(
            [*command, json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LANG", "LC_ALL")},
            start_new_session=True,
        )
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process, self._requests, self._replies, self._sent = process, requests, replies, False

        def listen() -> None:
            stream = process.stdout
            with contextlib.suppress(OSError, ValueError):  # closed from the other thread
                while stream and (line := stream.readline(_MAX_REPLY)):
                    replies.put(line)
            replies.put(None)

        def talk() -> None:
            # A thread as well: a process that does not read would hold up who writes to it.
            stream = process.stdin
            with contextlib.suppress(OSError, ValueError):
                while stream and (line := requests.get()) is not None:
                    stream.write(line)
                    stream.flush()

        for work in (listen, talk):
            threading.Thread(target=work, daemon=True).start()
        with contextlib.suppress(queue.Empty):
            replies.get(timeout=_START)
        # That a process has to be started is this machine's affair once, and then the solution's.
        if self._started:
            self._spent += min(_RESTART, time.monotonic() - began)
        self._started = True
        return True

    def _ask(self, request: dict[str, Any], wanted: str) -> Outcome:
        if self._process is None:
            return {"kind": "died", "message": "it could not be started"}
        left = self.limits.total - self._spent
        if left <= 0:
            return self._spent_all()
        patience = self.limits.seconds * max(0.1, 0.5**self._hangs)
        if self._asked % _ECHO_EVERY == 0:
            self._listen_to_an_echo(patience)
        start, waited = time.monotonic(), self._waited()
        self._asked += 1
        try:
            self._requests.put(json.dumps(request | {"id": self._asked}).encode() + b"\n")
            line = self._reply(min(patience, left))
        except queue.Empty:
            self._charge(start, waited)
            self.close()
            if left < patience:
                return self._spent_all()
            self._hangs += 1
            return {"kind": "hang", "seconds": round(patience, 2)}
        self._charge(start, waited)
        outcome = _outcome(line, self._asked, wanted)
        if outcome is None:
            return self._died(line)
        printed = outcome.pop("printed", None)
        if printed:
            self._printed = printed
        return outcome

    def _charge(self, start: float, waited: float) -> None:
        """Take what a call took from what is left, but for the way there and back and for waiting."""
        self._spent += max(0.0, time.monotonic() - start - self._free - max(0.0, self._waited() - waited))

    def _reply(self, patience: float) -> bytes | None:
        """The next line that is no echo, or None at the end.

        Raises:
            queue.Empty: the process has had so many seconds, or slept through them. That it waited for a processor,
                and that its answer waits to be read here, does not count; but nothing takes ten times as long.
        """
        start, waited = time.monotonic(), self._waited()
        while True:
            took = time.monotonic() - start
            left = patience - took + self._waited() - waited
            if took > 10 * patience or (left <= 0 and not self._has_answered()):
                raise queue.Empty
            with contextlib.suppress(queue.Empty):
                line = self._replies.get(timeout=max(left, 0.01))
                if line != _ECHO:
                    return line

    def _waited(self) -> float:
        """Seconds that the process has waited for a processor so far, where the system says so."""
        if self._process is None:
            return 0.0
        try:
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def _has_answered(self) -> bool:
        """Whether there is something to read that a thread of this process has not read yet."""
        stream = self._process.stdout if self._process else None
        try:
            return stream is not None and bool(select.select([stream], [], [], 0)[0])
        except (OSError, ValueError):
            return False

    def _listen_to_an_echo(self, patience: float) -> None:
        """Find out how long the way there and back takes just now."""
        start = time.monotonic()
        self._requests.put(_ECHO)
        try:
            line = self._replies.get(timeout=patience)
        except queue.Empty:
            return
        if line != _ECHO:
            self._replies.put(line)  # an end, or rubbish: it is looked at with the next answer
        took = time.monotonic() - start
        self._free = min(max(_ON_THE_WAY[0], 3 * took), _ON_THE_WAY[1])

    def _died(self, line: bytes | None) -> Outcome:
        process = self._process
        if line is not None or process is None:
            self.close()
            return {"kind": "died", "message": "it wrote something that is no answer where its answers go"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        code = process.returncode
        self.close()
        if code is None:
            return {"kind": "died", "message": "it closed its end of the line"}
        if code < 0:
            with contextlib.suppress(ValueError):
                return {"kind": "died", "message": f"signal {signal.Signals(-code).name}"}
        return {"kind": "died", "message": f"exit code {code}"}


def _outcome(line: bytes | None, asked: int, wanted: str) -> Outcome | None:
    """The outcome in a line of the child, or None: what a solution may have forged is taken apart, not believed."""
    try:
        said = json.loads(line or b"")
        kind = said["kind"]
        if said["id"] != asked or kind not in (wanted, "raised"):
            return None
        if kind == "loaded":
            outcome: Outcome = {"kind": kind}
        elif kind == "returned":
            value = _value(said["value"])
            changed = [name for name in ("query", "keys", "values", "allowed") if name in said["changed"]]
            outcome = {"kind": kind, "value": value, "changed": changed, "shared": said["shared"] is True}
        elif kind == "raised":
            line_number = said["line"] if type(said["line"]) is int else None
            refusal = said["refusal"] if said["refusal"] in ("ValueError", "TypeError") else None
            outcome = {"kind": kind, "type": str(said["type"])[:80], "message": str(said["message"])[:300]}
            outcome |= {"refusal": refusal, "line": line_number, "own": said.get("own") is True}
            outcome["stated"] = said.get("stated") is True
            outcome |= {part: str(said[part])[:80] for part in ("start", "module") if part in said}
            outcome["changed"] = [name for name in ("query", "keys", "values") if name in said.get("changed", [])]
        else:
            return None
        if "printed" in said:
            text, cut = said["printed"]
            outcome["printed"] = (str(text)[: grader.PRINTED], cut is True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return outcome


def _value(value: Any) -> Any:
    if type(value) is list:
        return [_value(item) for item in value]
    if type(value) in (int, float):
        return float(value)
    return {"other": str(value["other"])[:80]}


# Front doors ----------------------------------------------------------------------------------------------------------


def check_source(source: str, *, name: str = "solution.py", limits: Limits | None = None, **options: Any) -> Report:
    """`grader.grade` in a child process; the options are those of `grade`."""
    with Child(source, name, limits) as child:
        return grader.grade(child, **options)


def read_solution(path: str | os.PathLike[str]) -> str:
    """The code of a `.py` file, or of a downloaded submission: which of the two it is, the suffix `.json` says.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no plain file, no text in UTF-8, too long, or a submission without code.
    """
    if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        raise ValueError("a solution must be a plain file, but this is a pipe or a device; save the code to a file")
    with Path(path).open("rb") as file:
        raw = file.read(4 * MAX_SOURCE + 1)
    if len(raw) > 4 * MAX_SOURCE:
        raise ValueError(f"a solution must have at most {MAX_SOURCE:,} characters; this is something else")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"a solution must be text in UTF-8, but byte {error.start} is not; save it as UTF-8") from None
    code = text
    if Path(path).suffix.lower() == ".json":
        if not text.lstrip().startswith("{"):
            raise ValueError("a submission in JSON must be an object with the text `code`; download it again")
        code = grader.submitted_code(text)
    if len(code) > MAX_SOURCE:
        raise ValueError(f"a solution must have at most {MAX_SOURCE:,} characters; this is something else")
    return code


def check_file(path: str | os.PathLike[str], *, limits: Limits | None = None, **options: Any) -> Report:
    """Grade a file in a child process: `.py`, or a submission downloaded from the page.

    Raises:
        OSError, ValueError: as `read_solution`.
    """
    return check_source(read_solution(path), name=Path(path).name, limits=limits, **options)


def check_solution(
    solution: str | os.PathLike[str] | Callable[..., Any], *, limits: Limits | None = None, **options: Any
) -> Report:
    """Assert that a solution passes: one line in a pytest file.

        from qkv.learn import check_solution

        def test_attend():
            check_solution("solution.py")

    Args:
        solution: the path of a file, or the function itself (which then runs in this process, without limits).
        limits: of time and memory.
        options: seed, hidden, extra_cases, skip, on_case, as for `grader.grade`.

    Raises:
        AssertionError: it does not pass; the message is the report.
    """
    report = (
        check_file(solution, limits=limits, **options)
        if isinstance(solution, (str, os.PathLike))
        else grader.grade(solution, **options)
    )
    if not report.passed:
        raise AssertionError(report.text())
    return report
