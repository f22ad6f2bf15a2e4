"""Plays cases one after the other in a process of its own, and makes one that failed smaller.

    python -m soak.work random 0 1000 build/soak.at      cases 0 to 999; the last line printed is what came of them
    python -m soak.work random 17 18 build/soak.at --smaller

Before each case its number is written to the file named last, so that whoever started this knows where it ended if it
does not end by itself. Smaller cases are tried in children, because one that crashes must not end the search.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import signal
import struct
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from qkv import recipes

from . import doors, hostile, levels
from .facts import Facts, smaller

STREAMS: dict[str, Callable[[Facts], int]] = {"random": doors.enter, "hostile": hostile.enter}

#: Facts whose values are counted, so that the record tells what was drawn.
COUNTED = (
    *("door", "kind", "engine", "dtype", "numbers", "bias", "lengths", "layout", "threads", "mask rule", "ranges"),
    *("planted", "masked", "scale", "softcap", "sink", "dense mask", "origin", "alibi", "widths", "query lies"),
)
#: No case is worth more memory, and one that asks for more is refused it.
ROOM = 12 << 30
#: Seconds a smaller case may take.
PATIENCE = 60


def play(stream: str, seed: int, changes: dict[str, Any] | None = None, listen: Any = None) -> tuple[Facts, int, str]:
    """One case: its facts, the calls it made, and what was wrong, "" if nothing was."""
    levels.use(seed)
    facts, made, text = Facts(seed, changes, listen), 0, ""
    try:
        made = STREAMS[stream](facts)
    except Exception:
        text = traceback.format_exc(limit=-6)
    return facts, made, text


def many(stream: str, begin: int, end: int, at: int) -> dict[str, Any]:
    """Cases begin … end - 1: how many calls they made, what they were, and those that failed."""
    made, seen, failures = 0, Counter[str](), []
    for seed in range(begin, end):
        os.pwrite(at, struct.pack("<q", seed), 0)
        facts, calls, text = play(stream, seed)
        made += calls
        seen[f"level {os.environ.get('QKV_ISA', '')}"] += 1
        for name in COUNTED:
            if name in facts.told:
                seen[f"{name} {facts.told[name]}"] += 1
        if text:
            failures.append({"seed": seed, "facts": facts.told, "printed": text})
        if len(failures) >= 5:
            end = seed + 1
            break
    return {"begin": begin, "end": end, "calls": made, "seen": dict(seen), "failures": failures}


def trial(stream: str, seed: int, changes: dict[str, Any]) -> tuple[dict[str, tuple[Any, list[Any]]], str]:
    """One case in a child: its facts as far as they were drawn, and what was wrong, "" if nothing was."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        # Libraries with threads warn of every fork (JAX does, where a test has loaded it); the child uses none of them.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:  # pragma: no cover - measured in the parent
        os.close(out)
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(PATIENCE)
        recipes.forget()
        pipe = os.fdopen(into, "w", encoding="utf-8")

        def listen(name: str, value: Any, plainer: list[Any]) -> None:
            print(json.dumps(["fact", name, value, plainer]), file=pipe, flush=True)

        text = play(stream, seed, changes, listen)[2]
        print(json.dumps(["end", text, None, None]), file=pipe, flush=True)
        os._exit(0)
    os.close(into)
    told: dict[str, tuple[Any, list[Any]]] = {}
    text: str | None = None
    with os.fdopen(out, encoding="utf-8") as pipe:
        for line in pipe:
            try:
                kind, name, value, plainer = json.loads(line)
            except ValueError:
                break
            if kind == "end":
                text = name
            else:
                told[name] = value, plainer
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text is None:
        text = f"ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
    return told, text


def shrunk(stream: str, seed: int) -> dict[str, Any]:
    """The plainest changes of a case that fail as it does, and what they say."""
    changes = smaller(lambda trying: trial(stream, seed, trying))
    told, text = trial(stream, seed, changes)
    return {
        "alone": bool(text),
        "changes": changes,
        "facts": {name: value for name, (value, _) in told.items()},
        "printed": text,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stream", choices=STREAMS)
    parser.add_argument("begin", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("at")
    parser.add_argument("--smaller", action="store_true", help="make case `begin` smaller")
    parser.add_argument("--changes", default="{}", help="facts of case `begin` that are told, as JSON")
    wanted = parser.parse_args(argv)
    faulthandler.enable()
    if not os.environ.get("QKV_SANITIZE"):  # AddressSanitizer's own shadow is larger than any limit
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
    changes = json.loads(wanted.changes)
    if wanted.smaller:
        found = shrunk(wanted.stream, wanted.begin)
    elif changes:
        facts, calls, text = play(wanted.stream, wanted.begin, changes)
        failures = [{"seed": facts.seed, "facts": facts.told, "printed": text}] if text else []
        found = {"begin": wanted.begin, "end": wanted.begin + 1, "calls": calls, "seen": {}, "failures": failures}
    else:
        at = os.open(wanted.at, os.O_WRONLY | os.O_CREAT, 0o644)
        found = many(wanted.stream, wanted.begin, wanted.end, at)
    print(json.dumps(found, default=str), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
