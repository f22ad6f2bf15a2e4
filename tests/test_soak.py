"""The soak can fail: planted faults are found and told with the number that repeats them; and it counts, and goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.engines import native
from soak import doors, hostile, levels, work
from soak.facts import Facts, gist, smaller
from support.faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
_SPEC = importlib.util.spec_from_file_location("soak_tool", ROOT / "tools" / "soak.py")
assert _SPEC is not None
assert _SPEC.loader is not None
tool: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["soak_tool"] = tool
_SPEC.loader.exec_module(tool)

Run = Callable[..., native.Result]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Cases set engine and instruction set for their process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QKV_ISA", "QKV_ENGINE"):
            patch.setenv(name, os.environ.get(name, ""))
            if not os.environ[name]:
                del os.environ[name]
        yield
    native.level.cache_clear()


# A case. -----------------------------------------------------------------------------------------------------------


def test_a_case_follows_from_its_number() -> None:
    for stream in ("random", "hostile"):
        first, second = (work.play(stream, 7)[0].told for _ in range(2))
        assert first == second
        assert first != work.play(stream, 8)[0].told


def test_facts_that_are_told_leave_the_others() -> None:
    def drawn(changes: dict[str, Any]) -> tuple[Any, ...]:
        facts = Facts(3, changes)
        return (
            facts.pick("word", ("a", "b", "c")),
            facts.whole("number", 2, 90),
            facts.chance("perhaps", 0.5),
            facts.kind("kind", ("x", "y")),
            facts.item("thing", ((), (1,), (2, 3))),
            facts.rng("numbers").random(),
        )

    plain = drawn({})
    told = drawn({"number": 5, "thing": 2})
    assert told == (plain[0], 5, *plain[2:4], (2, 3), plain[5])


def test_every_kind_comes_and_so_does_every_feature() -> None:
    names = [Facts(seed).kind("door", doors.NAMES) for seed in range(2000)]
    assert set(names) == set(doors.DOORS)
    assert {Facts(seed).kind("kind", hostile.NAMES) for seed in range(2000)} == set(hostile.KINDS)
    assert len(doors.NAMES) == len(hostile.NAMES) == 100
    seen: Counter[str] = Counter()
    for seed in range(400):
        facts = Facts(seed)
        doors.problem_of(facts)
        seen.update(f"{name} {value}" for name, value in facts.told.items())
    for what in (
        "dtype float16",
        "dtype bfloat16",
        "dtype float64",
        "bias alibi",
        "bias array",
        "sink True",
        "softcap True",
    ):
        assert seen[what] > 20, what
    for what in ("queries 0", "keys 0", "keys 1", "keys 2049", "layout blhd", "planted True", "query lies negative"):
        assert seen[what], what


# Faults. -----------------------------------------------------------------------------------------------------------


def _first_failure(door: str, cases: int, **changes: Any) -> str:
    for seed in range(cases):
        text = work.play("random", seed, {"door": door, **changes})[2]
        if text:
            return text
    return ""


def _edge(run: Run, call: native.Call, *rest: Any) -> native.Result:
    """Each range ends a key later."""
    return run(replace(call, hi=np.minimum(call.hi + (call.lo < call.hi), call.key.shape[-2]).astype(np.int32)), *rest)


def _block_end(run: Run, call: native.Call, *rest: Any) -> native.Result:
    """The last key of the first block is dropped."""
    full = (*call.query.shape[:-1], call.key.shape[-2])
    allow = np.ones(full, bool) if call.allow is None else np.array(call.allow, bool)
    allow[..., call.block - 1 : call.block] = False
    return run(replace(call, allow=allow), *rest)


def _no_merge(run: Run, call: native.Call, *rest: Any) -> native.Result:
    """What comes after the first split is forgotten."""
    hi = np.minimum(call.hi, call.split).astype(np.int32)
    return run(replace(call, hi=hi, lo=np.minimum(call.lo, hi)), *rest)


def _other_head(run: Run, call: native.Call, *rest: Any) -> native.Result:
    """Query heads read the key heads in the wrong order."""
    return run(replace(call, key=call.key[..., ::-1, :, :]), *rest)


def _leak(run: Run, call: native.Call, *rest: Any) -> native.Result:
    """A value of no weight is multiplied by it all the same."""
    found = run(call, *rest)
    if call.dtype == "float32" and found.output is not None and np.isnan(call.value).any():
        found.output[...] = np.nan
    return found


def _unscaled(run: Run, call: native.Call, *rest: Any) -> native.Result:
    return run(replace(call, scale=1.0), *rest)


def _by_threads(run: Run, call: native.Call, *rest: Any) -> native.Result:
    """The last bit depends on the number of threads."""
    found = run(call, *rest)
    if found.lse is not None and call.threads > 4:
        found.lse[...] = np.nextafter(found.lse, np.float32(0))
    return found


PLANTED: dict[str, tuple[Any, str]] = {
    "a mask's edge": (_edge, "F2"),
    "a key at a block's end": (_block_end, "F2"),
    "a merge": (_no_merge, "F2"),
    "the head of a group": (_other_head, "F2"),
    "a NaN that leaks": (_leak, "F2"),
    "the scale": (_unscaled, "F2"),
    "threads": (_by_threads, "F3"),
}


@pytest.mark.native
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_of_the_engine_is_found(fault: str, native_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, says = PLANTED[fault]
    run = native.run
    monkeypatch.setattr(native, "run", lambda call, *rest, **words: plant(run, call, *rest, **words))
    text = _first_failure("native", 150)
    assert f"AssertionError: on {native.levels()[0]}: {says}" in text or f"AssertionError: {says} on" in text, text


@pytest.mark.parametrize(
    "fault",
    [
        "top-left causal",
        "off-by-one window",
        "dropped last tile",
        "interleaved head order",
        "NaN through a zero weight",
    ],
)
def test_a_fault_of_the_front_door_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = FAULTS[fault](monkeypatch)

    def search() -> None:
        for seed in range(600):
            doors.DOORS["attend"][0](Facts(seed, {"engine": "numpy"}), attend)

    with pytest.raises(AssertionError, match=r"^(F2|D[123]|C2)"):
        search()


def test_no_fault_is_found_where_there_is_none() -> None:
    for stream in ("random", "hostile"):
        found = work.many(stream, 0, 60, os.open(os.devnull, os.O_WRONLY))
        assert found["failures"] == []
        assert found["calls"] >= 60


# Smaller. ----------------------------------------------------------------------------------------------------------


def test_a_case_that_fails_is_made_as_plain_as_it_can() -> None:
    def trial(changes: dict[str, Any]) -> tuple[dict[str, tuple[Any, list[Any]]], str]:
        told: dict[str, tuple[Any, list[Any]]] = {}
        facts = Facts(5, changes, lambda name, value, plainer: told.__setitem__(name, (value, plainer)))
        rows, _, sink = facts.whole("rows", 40, 90), facts.pick("word", ("plain", "odd")), facts.chance("sink", 1.0)
        if rows >= 47 and sink:
            return told, f"AssertionError: row {rows} is wrong"
        return told, "" if sink else "ValueError: another thing"

    changes = smaller(trial)
    told, text = trial(changes)
    assert {name: value for name, (value, _) in told.items()} == {"rows": 47, "word": "plain", "sink": True}
    assert gist(text) == gist("AssertionError: row 3 is wrong")


@pytest.mark.native
def test_a_crash_is_made_smaller_too(native_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are children, so the search outlives them."""

    def crashes(call: native.Call, *rest: Any, **words: Any) -> native.Result:
        if call.query.shape[-2] >= 2:
            os.kill(os.getpid(), 11)
        return run(call, *rest, **words)

    run = native.run
    monkeypatch.setattr(native, "run", crashes)
    seed = next(s for s in range(99) if "signal" in work.trial("random", s, {"door": "native"})[1])
    monkeypatch.setattr(doors, "NAMES", ("native",))
    found = work.shrunk("random", seed)
    assert found["alone"]
    assert found["printed"] == "ended by signal 11"
    facts = found["facts"]
    assert facts["queries"] == 2
    assert (facts["width"], facts["value width"], facts["sharing"], facts["bias"]) == (1, 1, 1, "none")


# The tool. ---------------------------------------------------------------------------------------------------------


def _run(state: Path, *more: str) -> int:
    code: int = tool.main(["--state", str(state), "--seconds", "1000", *more])
    return code


@pytest.mark.slow
def test_a_run_goes_on_where_the_last_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    assert _run(whole, "--random", "30", "--hostile", "20") == 0
    assert _run(parts, "--random", "10", "--hostile", "20") == 0
    assert _run(parts, "--random", "30", "--hostile", "20", "--stream", "random") == 0
    one, other = (json.loads(path.read_text("utf-8"))["streams"] for path in (whole, parts))
    for name in one:
        assert one[name].pop("seconds") > 0
        del other[name]["seconds"]
    assert one == other
    assert one["random"]["next"] == 30
    assert one["random"]["calls"] >= 30
    assert sum(count for what, count in one["random"]["seen"].items() if what.startswith("door ")) == 30
    assert sum(count for what, count in one["hostile"]["seen"].items() if what.startswith("kind ")) == 20
    capsys.readouterr()
    assert tool.main(["--report", "--state", str(whole)]) == 0
    assert "random: 30 cases" in capsys.readouterr().out


@pytest.mark.slow
def test_goals_that_are_reached_are_set_anew(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for goal in (5, 10):
        assert _run(state, "--random", "5", "--hostile", "5") == 0
        streams = json.loads(state.read_text("utf-8"))["streams"]
        assert [one["next"] for one in streams.values()] == [goal, goal]


def _planted(folder: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python that runs first in every process begun from here."""
    (folder / "sitecustomize.py").write_text(lines, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))


#: A front door that forgets the first row of every output.
WRONG = """
import importlib, sys
class Wrong:
    def find_spec(self, name, path, target=None):
        if name == "soak.doors":
            sys.meta_path.remove(self)
            front = importlib.import_module("qkv.attention")
            right = front._carry_out
            def wrong(*a, **k):
                found = right(*a, **k)
                found[0][..., :1, :] = 7
                return found
            front._carry_out = wrong
sys.meta_path.insert(0, Wrong())
"""


@pytest.mark.slow
def test_a_wrong_engine_is_told_with_what_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _planted(tmp_path, WRONG, monkeypatch)
    state = tmp_path / "state.json"
    assert _run(state, "--random", "8", "--stream", "random") == 1
    printed = capsys.readouterr().out
    failures = json.loads(state.read_text("utf-8"))["failures"]
    assert failures
    first = failures[0]
    assert f"random case {first['seed']}: " in printed
    assert "F2: output" in printed
    again = first["again"].split("tools/soak.py ")[1]
    assert f"again: python tools/soak.py {again}" in printed
    seed, _, changes = again.removeprefix("--stream random --seed ").partition(" --changes ")
    assert tool.main(["--seed", seed, "--changes", changes.strip("'")]) == 1
    assert "F2: output" in capsys.readouterr().out
    assert tool.main(["--report", "--state", str(state)]) == 1


#: Dies in the seventh case.
CRASH = """
import sys
class Crash:
    def find_spec(self, name, path, target=None):
        if name == "soak.work" or "-m" in sys.orig_argv and name == "soak.facts":
            sys.meta_path.remove(self)
            import os
            from soak import facts
            before = facts.Facts.__init__
            def dies(self, seed, *a, **k):
                before(self, seed, *a, **k)
                if seed == 6:
                    os.kill(os.getpid(), 11)
            facts.Facts.__init__ = dies
sys.meta_path.insert(0, Crash())
"""


@pytest.mark.slow
def test_a_crash_is_a_failure_and_the_run_goes_on_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _planted(tmp_path, CRASH, monkeypatch)
    state = tmp_path / "state.json"
    assert _run(state, "--random", "12", "--stream", "random") == 1
    held = json.loads(state.read_text("utf-8"))
    assert [failure["seed"] for failure in held["failures"]] == [6]
    assert "ended by signal 11" in held["failures"][0]["printed"]
    assert held["streams"]["random"]["next"] == 12
    seen = held["streams"]["random"]["seen"]
    assert sum(count for what, count in seen.items() if what.startswith("door ")) == 11
    assert "random case 6" in capsys.readouterr().out


def test_a_case_without_an_end_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _planted(tmp_path, CRASH.replace("os.kill(os.getpid(), 11)", "__import__('time').sleep(1000)"), monkeypatch)
    found, case, text = tool.worked("random", 6, 7, patience=0)
    assert (found, case) == (None, 6)
    assert "did not end in 0 seconds" in text


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_what_it_began(tmp_path: Path) -> None:
    """Neither a traceback nor a process is left behind."""
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), "--state", str(tmp_path / "state.json")]
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        if not children.exists():
            run.kill()
            pytest.skip("this system does not say which processes belong to whom")
        while not (begun := children.read_text("utf-8").split()):
            time.sleep(0.01)
        at = Path()
        while not at.is_file() or not any(at.read_bytes()):  # the number of the case at hand, from the second case on
            time.sleep(0.01)
            words = Path(f"/proc/{begun[0]}/cmdline").read_text("utf-8").split("\0")
            at = Path(next((word for word in words if word.endswith("/at")), ""))
        run.send_signal(signal.SIGTERM)
        printed, errors = run.communicate()
    assert run.returncode == 130
    assert printed.startswith("stopped; random 0 of 200,000 cases")
    assert errors == ""
    assert not any(Path(f"/proc/{child}").exists() for child in begun)


def test_levels_are_taken_in_turn(native_engine: str) -> None:
    here = native.levels()
    assert [levels.use(i * levels.IN_TURN) for i in range(len(here) + 1)] == [*here, here[0]]
    assert levels.use(levels.IN_TURN - 1) == here[0]
