"""Random calls for as long as you like: every property test again and again, each time from another seed.

    python tools/soak.py --seconds 600            go on where the last run stopped
    python tools/soak.py --file test_packed.py --seed 17     one round again: what a failure prints
    python tools/soak.py --report                 what was done so far

A round is the property tests of one file with one seed, in a process of its own, so that a crash is a failure like any
other. What failed is shrunk by Hypothesis and printed with the command that repeats it; what was done is kept in
build/soak.json. Hostile calls are a file like the others, tests/test_hostile.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"

#: The files whose property tests speak of the library's numbers, and of what it refuses.
FILES = (
    "test_definition.py",
    "test_hostile.py",
    "test_recipes.py",
    "test_packed.py",
    "test_mask_dense.py",
    "test_row_bits.py",
    "test_merge.py",
    "test_partial.py",
    "test_answers.py",
    "test_bounds.py",
    "test_plan.py",
    "test_cache_pages.py",
    "test_gradient.py",
)


@dataclass
class State:
    """What was done: the next seed, examples a file, and the rounds that failed with what they printed."""

    seed: int = 0
    place: int = 0
    examples: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, object]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> State:
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        fresh.replace(path)  # a run that is stopped while it writes loses nothing

    def rounds(self, files: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Rounds from where the last run stopped, without an end."""
        while True:
            if self.place >= len(files):
                self.seed, self.place = self.seed + 1, 0
            yield files[self.place], self.seed
            self.place += 1

    def __str__(self) -> str:
        lines = [f"{count:>9,} {name}" for name, count in sorted(self.examples.items())]
        lines.append(
            f"{sum(self.examples.values()):>9,} examples, {len(self.failures)} failed rounds, seed {self.seed}"
        )
        return "\n".join(lines)


def play(file: str, seed: int, examples: int) -> tuple[int, int, str]:
    """One round: (exit status, negative for a signal; examples that passed; what was printed)."""
    done = subprocess.run(
        [
            *(sys.executable, "-X", "faulthandler", "-m", "pytest", str(TESTS / file), "-m", "hypothesis"),
            *("-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", "--hypothesis-show-statistics"),
            f"--hypothesis-seed={seed}",
        ],
        cwd=ROOT,
        env={**os.environ, "QKV_HYPOTHESIS": "soak", "QKV_EXAMPLES": str(examples)},
        capture_output=True,
        text=True,
        check=False,
    )
    passed = sum(int(n) for n in re.findall(r"- (\d+) passing(?: examples)?,", done.stdout))
    return done.returncode, passed, done.stdout + done.stderr


def told(file: str, seed: int, examples: int, status: int, printed: str) -> str:
    """What a failed round says: the shrunk example, and how to see it again."""
    without_counts = printed.partition("Hypothesis Statistics")
    text = without_counts[0] + (without_counts[2][-4000:] if status < 0 else "")
    how = f"ended by signal {-status}" if status < 0 else "failed"
    again = f"python tools/soak.py --file {file} --seed {seed} --examples {examples}"
    return f"{text.strip()}\n\n{file} {how} with seed {seed}; again: {again}"


def main(argv: list[str] | None = None) -> int:
    """0 if nothing failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300, help="no round begins later than this")
    parser.add_argument("--examples", type=int, default=300, help="random calls a test and round")
    parser.add_argument("--file", choices=FILES, action="append", help="only this one")
    parser.add_argument("--seed", type=int, help="this seed alone, once; nothing is kept")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "soak.json", help="where to keep what was done")
    parser.add_argument("--report", action="store_true", help="say what was done so far")
    wanted = parser.parse_args(argv)
    files = tuple(wanted.file or FILES)
    if wanted.seed is not None:
        results = [(file, *play(file, wanted.seed, wanted.examples)) for file in files]
        for file, status, _, printed in results:
            print(told(file, wanted.seed, wanted.examples, status, printed) if status else f"{file} passed")
        return int(any(status for _, status, _, _ in results))
    state = State.read(wanted.state)
    if wanted.report:
        print(state)
        return int(bool(state.failures))
    begin, failed = time.monotonic(), 0
    for file, seed in state.rounds(files):
        if time.monotonic() - begin > wanted.seconds:
            break
        status, passed, printed = play(file, seed, wanted.examples)
        state.examples[file] = state.examples.get(file, 0) + passed
        if status not in (0, 5):  # 5: the file has no property test for this engine
            failed += 1
            text = told(file, seed, wanted.examples, status, printed)
            state.failures.append({"file": file, "seed": seed, "status": status, "printed": text})
            print(text, flush=True)
        print(f"{file} seed {seed}: {passed:,} examples", flush=True)
        state.place += 1
        state.write(wanted.state)
        state.place -= 1  # the loop counts on
    print(state)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
