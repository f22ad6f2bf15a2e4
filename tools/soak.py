"""Random and hostile calls by the hundred thousand, each asked of the definition, for as long as you like.

    python tools/soak.py                              go on where the last run stopped, for ten minutes
    python tools/soak.py --seconds 7200               for two hours, or until both goals are reached
    python tools/soak.py --stream random --seed 17    one case again: what a failure prints
    python tools/soak.py --report                     what was done so far

A case follows from its number, on a machine with the same instruction sets: what is called, how, with which numbers.
`tests/soak/` draws and checks it. Cases are played by a process of their own, so that a crash is a failure like any other;
one that fails is made smaller and printed with the command that repeats it. What was done is kept in build/soak.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: What each run goes for; when both are reached, the next run goes for as many more.
GOALS = {"random": 200_000, "hostile": 20_000}
#: Cases of one process, of which a run that is stopped loses at most as many.
IN_ONE = 1000
#: Seconds in which a case has to end.
PATIENCE = 300


@dataclass
class Stream:
    """What was done of one kind: the number of the next case, calls made, cases by what they were, processor seconds."""

    next: int = 0
    calls: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, found: dict[str, Any], seconds: float) -> None:
        self.next, self.calls, self.seconds = found["end"], self.calls + found["calls"], self.seconds + seconds
        for name, count in found["seen"].items():
            self.seen[name] = self.seen.get(name, 0) + count


@dataclass
class Record:
    """What was done, and the cases that failed."""

    streams: dict[str, Stream] = field(default_factory=lambda: {name: Stream() for name in GOALS})
    failures: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Record:
        if not path.exists():
            return cls()
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls({name: Stream(**held["streams"][name]) for name in GOALS}, held["failures"])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        fresh.replace(path)  # a run that is stopped while it writes loses nothing

    def line(self, goals: dict[str, int]) -> str:
        parts = [
            f"{name} {one.next:,} of {goals[name]:,} cases, {one.calls:,} calls" for name, one in self.streams.items()
        ]
        return f"{' · '.join(parts)} · {len(self.failures)} failed"

    def __str__(self) -> str:
        lines = []
        for name, one in self.streams.items():
            each = 1e3 * one.seconds / max(one.next, 1)
            lines.append(f"{name}: {one.next:,} cases, {one.calls:,} calls, {each:.1f} ms of a processor a case")
            lines += [f"{count:>12,} {what}" for what, count in sorted(one.seen.items())]
        return "\n".join([*lines, f"{len(self.failures)} cases failed"])


def worked(
    stream: str, begin: int, end: int, *more: str, patience: float = PATIENCE
) -> tuple[dict[str, Any] | None, int, str]:
    """Cases played by another process: what it says of them, or None, the case at which it ended and how."""
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+b") as errors:
        at = Path(folder) / "at"
        at.write_bytes(struct.pack("<q", begin))
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "soak.work",
            stream,
            str(begin),
            str(end),
            str(at),
            *more,
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )
        seen, since, how = begin, time.monotonic(), ""
        try:
            while True:
                try:
                    printed, _ = process.communicate(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    (case,) = struct.unpack("<q", at.read_bytes())
                    if case != seen:
                        seen, since = case, time.monotonic()
                    if time.monotonic() - since > patience and not how:
                        how = f"did not end in {patience:g} seconds"
                        process.kill()
        finally:
            process.kill()
            process.wait()
        (seen,) = struct.unpack("<q", at.read_bytes())
        errors.seek(0)
        text = errors.read().decode(errors="replace")
        text = text if len(text) < 6000 else f"{text[:4000]}\n…\n{text[-1500:]}"  # what happened, and its summary
    if process.returncode == 0:
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found, end, text
    how = how or (
        f"ended by signal {-process.returncode}"
        if process.returncode < 0
        else f"ended with exit status {process.returncode}"
    )
    return None, seen, f"{how}\n{text}"


def told(stream: str, failure: dict[str, Any]) -> str:
    """What a case that failed says: what it was, what was wrong, and how to see it again."""
    seed = failure["seed"]
    small, _, _ = worked(stream, seed, seed + 1, "--smaller")
    again = f"python tools/soak.py --stream {stream} --seed {seed}"
    text = [f"{stream} case {seed}: {json.dumps(failure.get('facts', {}))}", str(failure["printed"]).strip()]
    if small is not None and small["alone"]:
        failure["smaller"] = small
        text += [f"smaller: {json.dumps(small['facts'])}", str(small["printed"]).strip()]
        again += f" --changes '{json.dumps(small['changes'])}'" if small["changes"] else ""
    else:
        begin = seed - seed % IN_ONE
        again = f"python tools/soak.py --stream {stream} --seed {begin} --until {seed + 1}"
        text.append("by itself it passes or cannot be made smaller, so it takes the cases before it")
    failure["again"] = again
    return "\n".join([*text, f"again: {again}"])


def _processor() -> float:
    """Processor seconds of the processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def chunk(record: Record, stream: str, end: int) -> bool:
    """Plays the next cases of a stream and keeps what came of them; whether all were right."""
    one = record.streams[stream]
    begin, start = one.next, _processor()
    found, case, text = worked(stream, begin, end)
    if found is None:
        # Those before it once more, for their counts; then past it.
        before = worked(stream, begin, case)[0] if case > begin else None
        found = before or {"end": case, "calls": 0, "seen": {}, "failures": []}
        found = {**found, "end": case + 1, "failures": [*found["failures"], {"seed": case, "printed": text}]}
    one.add(found, _processor() - start)
    for failure in found["failures"]:
        print(told(stream, failure), flush=True)
        record.failures.append({"stream": stream, **failure})
    return not found["failures"]


def repeat(wanted: argparse.Namespace) -> int:
    """One case, or those up to another, once."""
    stream, seed = wanted.stream or "random", wanted.seed
    if seed < 0:
        print(f"--seed must be the number of a case, 0 or more, not {seed}", file=sys.stderr)
        return 2
    more = ["--changes", wanted.changes] if wanted.changes else []
    found, case, text = worked(stream, seed, wanted.until or seed + 1, *more)
    if found is None:
        print(f"{stream} case {case}: {text}")
        return 1
    for failure in found["failures"]:
        print(f"{stream} case {failure['seed']}: {json.dumps(failure['facts'])}\n{failure['printed']}")
    if not found["failures"]:
        print(f"{stream} case {seed} passed, {found['calls']} calls")
    return int(bool(found["failures"]))


def main(argv: list[str] | None = None) -> int:
    """0 if nothing failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="no cases begin later than this")
    for name, goal in GOALS.items():
        parser.add_argument(f"--{name}", type=int, default=goal, help=f"{name} cases to go for ({goal:,})")
    parser.add_argument("--stream", choices=GOALS, help="only these")
    parser.add_argument("--seed", type=int, help="this case alone, once; nothing is kept")
    parser.add_argument("--until", type=int, help="with --seed: the cases up to this one as well")
    parser.add_argument("--changes", help="with --seed: facts that are told, as JSON")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "soak.json", help="where to keep what was done")
    parser.add_argument("--report", action="store_true", help="say what was done so far")
    wanted = parser.parse_args(argv)
    if wanted.seed is not None:
        return repeat(wanted)
    record = Record.read(wanted.state)
    if wanted.report:
        print(record)
        return int(bool(record.failures))
    streams = {name: one for name, one in record.streams.items() if wanted.stream in (None, name)}
    goals = {name: getattr(wanted, name) for name in GOALS}
    rounds = 1 + min(one.next // max(goals[name], 1) for name, one in streams.items())
    goals = {name: goal * rounds for name, goal in goals.items()}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way the process at work is ended as well
    try:
        right = run(record, streams, goals, wanted)
    except KeyboardInterrupt:
        print(f"stopped; {record.line(goals)}")
        return 130
    return int(not right)


def run(record: Record, streams: dict[str, Stream], goals: dict[str, int], wanted: argparse.Namespace) -> bool:
    """Cases until the goals are reached or the time is over; whether all were right."""
    start, right = time.monotonic(), True
    while time.monotonic() - start < wanted.seconds:
        # Whichever is furthest behind.
        name = min(streams, key=lambda name: streams[name].next / max(goals[name], 1))
        if streams[name].next >= goals[name]:
            break
        begin = streams[name].next
        right &= chunk(record, name, min(begin - begin % IN_ONE + IN_ONE, goals[name]))
        record.write(wanted.state)
        print(record.line(goals), flush=True)
    return right


if __name__ == "__main__":
    sys.exit(main())
