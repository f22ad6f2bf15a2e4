"""Solutions in processes of their own: limits, hostile programs, the two commands, and a class graded whole."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.cli.main import main
from qkv.learn import batch, check_solution, grade, grader
from qkv.learn.grader import CASE_IDS, Report, essence, submission, submitted_code
from qkv.learn.runner import Child, Limits, check_file, check_source, read_solution

HERE = Path(__file__).parent
RIGHT = HERE / "right" / "comprehensions.py"
WRONG = HERE / "wrong" / "forgot_scale.py"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def first(report: Report) -> dict[str, Any]:
    found = report.first_failure
    assert found is not None
    return found


# One solution -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [RIGHT, WRONG, HERE / "wrong" / "remembers.py", HERE / "wrong" / "own_exception.py"])
def test_the_child_gives_the_report_that_this_interpreter_gives(path: Path) -> None:
    assert essence(check_file(path, seed=3)) == essence(grade(path.read_text(encoding="utf-8"), seed=3))


#: What each hostile program is, and what the report says of it.
HOSTILE = {
    "allocates": ("crashed", "MemoryError|did not answer"),
    "closes_everything": ("died", "ended"),
    "deletes_files": ("crashed", "PermissionError"),
    "edits_the_grader": ("malformed", "context must hold"),
    "endless_lists": ("malformed", "weights"),
    "exits_hard": ("died", "exit code 0"),
    "exits_softly": ("crashed", "SystemExit"),
    "forges": ("died", "no answer"),
    "forks": ("crashed", "PermissionError"),
    "interrupts": ("crashed", "KeyboardInterrupt"),
    "keeps_its_arguments": ("malformed", "weights must hold"),
    "kills": ("crashed", "PermissionError"),
    "lies": ("wrong", "must be"),
    "loops": ("hang", "did not answer within"),
    "loops_at_load": ("hang", "did not load within"),
    "prints": ("hang", "did not answer within"),
    "reads_the_definition": ("not started", "PermissionError"),
    "recurses": ("crashed", "RecursionError|ended|did not answer"),
    "sleeps": ("hang", "did not answer within"),
    "starts_threads": ("crashed", "RuntimeError|did not answer|MemoryError"),
    "strange_errors": ("crashed", "raised"),
    "swallows_interrupts": ("hang", "did not answer within"),
}


def test_the_zoo_is_all_here() -> None:
    assert {path.stem for path in (HERE / "hostile").glob("*.py")} == set(HOSTILE)
    assert len(HOSTILE) >= 12


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_program_costs_its_time_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the limits there is a report that says what happened in which case, and nothing is left behind."""
    import re

    (tmp_path / "keep").write_text("mine", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    limits = Limits(seconds=0.5, total=1.5, memory=256)
    start = time.monotonic()
    with Child((HERE / "hostile" / f"{name}.py").read_text(encoding="utf-8"), limits=limits) as child:
        report = grade(child)
        process = child._process
    took = time.monotonic() - start
    assert not report.passed
    found = first(report)
    kind, says = HOSTILE[name]
    assert re.search(says, found["failure"]["says"]), found["failure"]
    assert found["failure"]["kind"] == kind or "|" in says
    assert found["id"] == CASE_IDS[0 if "load" in says or name == "reads_the_definition" else 1]
    # Room for starting processes on a machine that others use too.
    assert took < limits.total + 20
    assert json.dumps(report.to_dict(), allow_nan=False)
    assert process is None or process.poll() is not None
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


#: What a program writes where its answers go, and may: lines, half a line, what looks like an answer.
RUBBISH = {
    "lines": r"b'rubbish\n' * 3",
    "half a line": "b'rubbish'",
    "much": "b'x' * 5_000_000",
    "what looks loaded": r"""b'{"kind": "loaded", "id": 2}\n' * 99""",
    "what looks right": r"""b'{"kind": "returned", "value": [[1], [1]], "changed": [], "shared": false}\n'""",
    "no object": r"b'[[]]\n'",
}


@pytest.mark.parametrize("when", ["at its start", "in a call"])
@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_among_the_answers_is_called_that(what: str, when: str) -> None:
    write = f"for at in range(3, 16):\n        try: os.write(at, {RUBBISH[what]})\n        except OSError: pass\n"
    right = RIGHT.read_text(encoding="utf-8")
    if when == "at its start":
        source = "import os\nif True:\n    " + write + right
    else:
        source = "import os\n" + right.replace("    numbers = [", f"    {write}    numbers = [")
    report = check_source(source, limits=Limits(seconds=10, total=20), skip=CASE_IDS[2:])
    found = first(report)
    assert found["id"] == CASE_IDS[0 if when == "at its start" else 1]
    assert "it wrote something that is no answer where its answers go" in found["failure"]["says"]
    assert found["failure"]["kind"] == "died"


def test_a_program_that_reads_no_request_is_a_hang_and_holds_nobody_up() -> None:
    """Its line is full then; whoever writes to it would wait for ever."""
    source = "import os\nkept, ends = os.dup(3), os.pipe()\nos.dup2(ends[0], 3)\ndef attend(*_): return 1\n"
    with Child(source, limits=Limits(0.3, 5)) as child:
        assert child.load() == {"kind": "loaded"}
        outcome = child.call(([1.0] * 50_000, [[1.0]], [[1.0]], [True]))
        assert outcome == {"kind": "hang", "seconds": 0.3}


@pytest.mark.parametrize("name", ["exits_hard", "sleeps"])
def test_starting_again_costs_the_program_that_made_it_necessary(name: str) -> None:
    """So a class takes no longer than its limits say, whatever is in it."""
    source = (HERE / "hostile" / f"{name}.py").read_text(encoding="utf-8")
    starts = 0

    class Counted(Child):
        def _start(self) -> bool:
            nonlocal starts
            if began := super()._start():
                starts += 1
                # A start that takes very long, by the clock of the limits.
                self._spent += 0.5 if starts > 1 else 0.0
            return began

    with Counted(source, limits=Limits(0.05, 2)) as child:
        report = grade(child)
    assert 2 <= starts <= 5
    assert report.counts["not run"] >= len(CASE_IDS) - 7
    assert report.why_not_run.endswith("cases were not run: the time was used up")

    class Unasked(Child):
        def _ask(self, request: Any, wanted: str) -> Any:
            return {"kind": wanted}

    with Unasked(source) as child:
        child.load()
        assert child._spent == 0, "the first start is free"
        child.close()
        child.load()
        assert child._spent > 0, "the second is not"


def test_a_busy_machine_is_not_the_program_s_fault() -> None:
    """What an echo takes is free; a program that takes longer than that pays."""

    class Busy(Child):
        def _start(self) -> bool:
            began = super()._start()
            replies = self._replies

            class Late:
                put = staticmethod(replies.put)

                @staticmethod
                def get(timeout: float) -> bytes | None:
                    time.sleep(0.03)
                    return replies.get(timeout=timeout)

            self._replies = Late()  # type: ignore[assignment]
            return began

    problem = ([1.0], [[1.0]], [[1.0]], [True])
    with Busy(RIGHT.read_text(encoding="utf-8"), limits=Limits(5, 2)) as child:
        assert [child.call(problem)["kind"] for _ in range(100)] == ["returned"] * 100
    slow = "import time\n" + RIGHT.read_text(encoding="utf-8").replace(
        "    numbers = [", "    time.sleep(0.2)\n    numbers = ["
    )
    with Child(slow, limits=Limits(5, 1)) as child:
        kinds = [child.call(problem)["kind"] for _ in range(8)]
    assert (kinds[0], kinds[-1]) == ("returned", "spent")


def test_a_program_that_gets_no_processor_does_not_hang() -> None:
    """What it waited for one is not its own time, where the system tells; asleep it has its time and lets it pass."""

    class Starved(Child):
        def _waited(self) -> float:
            return time.monotonic() * 0.95

    source = "import time\ndef attend(*_):\n    time.sleep(0.6)\n    return 1\n"
    problem = ([1.0], [[1.0]], [[1.0]], [True])
    limits = Limits(seconds=0.2, total=0.4)
    with Starved(source, limits=limits) as child:
        assert [child.call(problem)["kind"] for _ in range(3)] == ["returned"] * 3
    with Child(source, limits=limits) as child:
        assert child.call(problem) == {"kind": "hang", "seconds": 0.2}


def test_after_a_hang_the_rest_is_graded() -> None:
    """A loop in one case costs that case."""
    source = RIGHT.read_text(encoding="utf-8")
    loops = "    if allowed == [False, False]:\n        while True:\n            pass\n"
    source = source.replace("    numbers = [", loops + "    numbers = [")
    report = check_source(source, limits=Limits(seconds=0.5))
    failed = [case["id"] for case in report.cases if case["status"] != "passed"]
    assert failed == ["empty-row", "unchanged"]
    assert first(report)["failure"]["says"] == "It did not answer within 0.5 s."
    assert first(report)["failure"]["code"] == "attend([1.0], [[1.0], [2.0]], [[3.0], [5.0]], [False, False])"


def test_a_solution_has_the_standard_library_and_nothing_else() -> None:
    """As in the page: no packages, no neighbours, no definition."""
    for module in ("numpy", "qkv", "plain", "rich"):
        report = check_source(f"import {module}\n" + RIGHT.read_text(encoding="utf-8"))
        assert first(report)["id"] == "load"
        assert f"line 1 imports {module}, which the lab does not have" in first(report)["failure"]["says"]
    imports = "import collections, decimal, fractions, functools, heapq, itertools, random, re, statistics, typing\n"
    assert check_source(imports + RIGHT.read_text(encoding="utf-8")).passed


def test_what_it_prints_is_kept_short() -> None:
    report = check_source("print('hello')\ndef attend(*_):\n    print('x' * 3000)\n", limits=Limits(total=3))
    assert report.printed.startswith("hello\nxxx")
    assert report.printed_cut


def test_one_line_in_pytest() -> None:
    assert check_solution(RIGHT).passed
    with pytest.raises(AssertionError, match="likely cause: The scores are not divided by √d"):
        check_solution(str(WRONG))
    with pytest.raises(AssertionError, match="not passed"):
        check_solution(lambda *_: ([1.0], [1.0]))


def test_a_file_that_is_no_solution_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.py"
    latin.write_bytes("# \xe9".encode("latin-1"))
    long = tmp_path / "long.py"
    long.write_text("#" * 1_000_001, encoding="utf-8")
    for path, message in ((latin, "byte 2 is not"), (long, "at most 1,000,000 characters")):
        with pytest.raises(ValueError, match=message):
            read_solution(path)
    marked = tmp_path / "marked.py"
    marked.write_text("\ufeffx = 1", encoding="utf-8")
    assert read_solution(marked) == "x = 1"


# qkv learn check --------------------------------------------------------------------------------------------------------


def test_check_says_what_breaks_and_why(run: Run) -> None:
    code, out, err = run("learn", "check", WRONG)
    assert (code, err) == (1, "")
    assert out.startswith("forgot_scale.py: not passed, 38 of 42 cases passed\n")
    for part in ("attend([", "yours  (", "right  (", "clause B1:", "likely cause: The scores are not divided by √d."):
        assert part in out
    assert "hint" not in out
    assert "hint 2:" in run("learn", "check", WRONG, "--hints", 2)[1]
    assert "\x1b" not in out


def test_check_of_a_right_one(run: Run) -> None:
    assert run("learn", "check", RIGHT) == (0, "comprehensions.py: passed, 42 of 42 cases passed\n", "")


def test_check_as_json(run: Run) -> None:
    code, out, err = run("learn", "check", WRONG, "--json", "--seed", 5)
    assert (code, err) == (1, "")
    record = json.loads(out)
    assert (record["schema"], record["seed"], record["causes"]) == ("qkv-lab-report/1", 5, ["no-scale"])


def test_check_of_what_is_no_solution(run: Run, tmp_path: Path) -> None:
    assert run("learn", "check", "nowhere.py")[::2] == (
        2,
        "qkv: nowhere.py: no such file or directory; give the path of a file that can be used\n",
    )
    (tmp_path / "empty.json").write_text("{}", encoding="utf-8")
    code, out, err = run("learn", "check", "empty.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "must be an object with the text `code`" in err
    assert run("learn", "check")[0] == 2
    assert run("learn", "check", RIGHT, "--seconds", 0)[0] == 2


def test_check_of_a_loop_ends(run: Run) -> None:
    code, out, _ = run("learn", "check", HERE / "hostile" / "sleeps.py", "--seconds", 0.2, "--total", 1)
    assert code == 1
    assert "It did not answer within 0.2 s." in out
    # What is left of the time is shared out: the last cases get next to nothing, or are not run at all.
    assert re.search(r"not run|within 0\.[01]\d* s", out)


def test_check_takes_a_downloaded_submission_and_never_its_report(run: Run, tmp_path: Path) -> None:
    lie = submission(WRONG.read_text(encoding="utf-8"), grade(RIGHT.read_text(encoding="utf-8")))
    (tmp_path / "submission.json").write_text(json.dumps(lie), encoding="utf-8")
    assert run("learn", "check", "submission.json")[0] == 1


# qkv learn grade --------------------------------------------------------------------------------------------------------


def some(folder: Path) -> None:
    shutil.copy(RIGHT, folder / "a.py")
    (folder / "b").mkdir()
    shutil.copy(WRONG, folder / "b" / "solution.py")
    shutil.copy(HERE / "hostile" / "loops.py", folder / "loops.py")
    shutil.copy(HERE / "hostile" / "exits_hard.py", folder / "exits.py")
    (folder / "broken.py").write_text("def attend(", encoding="utf-8")
    (folder / "=cmd|calc.py").write_text("raise ValueError('=1+1')", encoding="utf-8")
    (folder / "no.json").write_text("[]", encoding="utf-8")
    lie = submission(RIGHT.read_text(encoding="utf-8"), {"passed": False})
    (folder / "page.json").write_text(json.dumps(lie), encoding="utf-8")
    (folder / "notes.txt").write_text("no submission", encoding="utf-8")


def test_grade_a_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    some(folder)
    words = ["learn", "grade", folder, "--csv", "grades.csv", "--gradescope", "results.json", "--seed", 7]
    code, out, err = run(*words, "--seconds", 0.5, "--total", 4)
    assert (code, err) == (0, "")
    assert "2 of 8 passed" in out
    with Path("grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert {name: row["passed"] for name, row in rows.items()} == {
        "'=cmd|calc.py": "no",
        "a.py": "yes",
        "b/solution.py": "no",
        "broken.py": "no",
        "exits.py": "no",
        "loops.py": "no",
        "no.json": "no",
        "page.json": "yes",
    }
    assert rows["a.py"]["score"] == "1.0000"
    assert rows["a.py"]["cases"] == str(len(CASE_IDS) + 12)
    assert rows["b/solution.py"]["cause"] == "The scores are not divided by √d"
    assert rows["broken.py"]["first_failure"] == "load"
    assert rows["no.json"]["note"].startswith("not read:")
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows.values() for cell in row.values())
    record = json.loads(Path("results.json").read_text(encoding="utf-8"))
    tests = record["submissions"]["a.py"]["tests"]
    assert record["submissions"]["a.py"]["score"] == pytest.approx(100)
    assert {test["visibility"] for test in tests} == {"visible", "hidden"}
    assert record["submissions"]["loops.py"]["score"] < 50


def test_the_same_seed_gives_the_same_grades(run: Run, tmp_path: Path) -> None:
    """F4; and another seed other hidden inputs."""
    folder = tmp_path / "class"
    folder.mkdir()
    shutil.copy(WRONG, folder)

    def graded(seed: int) -> Any:
        out = run("learn", "grade", folder, "--json", "--seed", seed, "--gradescope", "results.json")[1]
        (result,) = json.loads(out)["results"]
        # A single submission is Gradescope's own form.
        assert "tests" in json.loads(Path("results.json").read_text(encoding="utf-8"))
        return result["report"]

    assert essence(graded(1)) == essence(graded(1))
    hidden = [[case.problems for case in grader._cases(0, seed) if case.hidden] for seed in (1, 2)]
    assert len(hidden[0]) == len(hidden[1]) == 12
    assert not any(one == two for one, two in zip(*hidden, strict=True))


def test_grade_without_a_seed_says_which_it_drew(run: Run, tmp_path: Path) -> None:
    shutil.copy(RIGHT, tmp_path)
    code, _, err = run("learn", "grade", tmp_path)
    assert code == 0
    assert err.startswith("seed ")
    assert err.strip().split()[1].isdigit()


def test_grade_refuses_what_is_no_class(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words in (["empty"], ["nowhere"], ["."], [".", "--jobs", 0], [".", "--csv", "no/such/folder.csv"]):
        code, out, err = run("learn", "grade", *words)
        assert (code, out, err.count("\n")) == (2, "", 1), words
        shutil.copy(RIGHT, tmp_path / "a.py") if words == ["."] else None


def test_grade_writes_over_no_submission(run: Run, tmp_path: Path) -> None:
    """Also through a link, and not over its own other output; results of an earlier run are written again."""
    code = RIGHT.read_text(encoding="utf-8")
    (tmp_path / "a.py").write_text(code, encoding="utf-8")
    page = json.dumps(submission(code))
    (tmp_path / "b.json").write_text(page, encoding="utf-8")
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.py")
    for words, says in (
        (["--csv", "a.py"], "--csv must not be a submission, but a.py is one"),
        (["--csv", "link.csv"], "--csv must not be a submission, but link.csv is one"),
        (["--gradescope", "b.json"], "--gradescope must not be a submission, but b.json is one"),
        (["--csv", "x.csv", "--gradescope", "./x.csv"], "--gradescope and --csv must be two files, but both are x.csv"),
    ):
        code_, out, err = run("learn", "grade", ".", "--seed", 1, *words)
        assert (code_, out, err.count("\n")) == (2, "", 1), (words, err)
        assert says in err
    assert (tmp_path / "a.py").read_text(encoding="utf-8") == code
    assert (tmp_path / "b.json").read_text(encoding="utf-8") == page
    for _ in range(2):
        code_, out, _ = run("learn", "grade", ".", "--seed", 1, "--csv", "grades.csv", "--gradescope", "results.json")
        assert (code_, "2 of 2 passed" in out) == (0, True)


def test_links_and_pipes_are_said_not_followed(run: Run, tmp_path: Path) -> None:
    shutil.copy(RIGHT, tmp_path / "right.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "right.py")
    (tmp_path / "round.py").symlink_to(tmp_path / "round.py")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    code, out, _ = run("learn", "grade", ".", "--seed", 1, "--json")
    assert code == 0
    notes = {result["file"]: result["note"] for result in json.loads(out)["results"]}
    assert notes.pop("right.py") == ""
    assert set(notes) == {"link.py", "round.py", "pipe.py"}
    assert set(notes.values()) == {"not read: it is a link or no plain file; put the file itself there"}


def test_a_grade_without_time_is_not_called_passed(run: Run, tmp_path: Path) -> None:
    """Neither in the table nor in CSV nor in Gradescope's form, though no case that was run failed."""
    (tmp_path / "class").mkdir()
    slow = "import time\n" + RIGHT.read_text(encoding="utf-8").replace("):\n", "):\n    time.sleep(0.2)\n", 1)
    (tmp_path / "class" / "sleepy.py").write_text(slow, encoding="utf-8")
    words = ["--csv", "grades.csv", "--gradescope", "results.json", "--seed", 1, "--total", 0.5]
    out = run("learn", "grade", "class", *words)[1]
    (row,) = [line.strip() for line in out.splitlines() if "sleepy.py" in line]
    assert "not run" in row
    assert not row.endswith("passed")
    with Path("grades.csv").open(encoding="utf-8", newline="") as file:
        (cells,) = csv.DictReader(file)
    assert cells["first_failure"] in CASE_IDS
    assert cells["cause"].endswith("the time was used up")
    assert "the time was used up" in json.loads(Path("results.json").read_text(encoding="utf-8"))["output"]


def test_refusing_everything_scores_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "always.py").write_text("def attend(*a): raise ValueError", encoding="utf-8")
    run("learn", "grade", "class", "--csv", "grades.csv", "--gradescope", "results.json", "--seed", 1)
    with Path("grades.csv").open(encoding="utf-8", newline="") as file:
        (cells,) = csv.DictReader(file)
    assert cells["score"] == "0.0000"
    assert "count for nothing" in cells["note"]
    record = json.loads(Path("results.json").read_text(encoding="utf-8"))
    assert record["score"] == 0
    assert {test["score"] for test in record["tests"]} == {0}
    assert "count for nothing" in record["output"]


def test_a_refused_grade_leaves_no_file(run: Run, tmp_path: Path) -> None:
    shutil.copy(RIGHT, tmp_path / "a.py")
    code, _, err = run("learn", "grade", ".", "--csv", "results.json", "--gradescope", "results.json")
    assert (code, err.count("\n")) == (2, 1)
    assert run("learn", "grade", ".", "--csv", "new.csv", "--gradescope", "no/such/results.json")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_what_is_left_out_is_named(run: Run, tmp_path: Path) -> None:
    shutil.copy(RIGHT, tmp_path / "a.py")
    for name in ("student.txt", "nb.ipynb", "solution", ".hidden"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    out = run("learn", "grade", ".", "--seed", 1, "--csv", "grades.csv")[1]
    assert "left out, since only .py and .json are graded: nb.ipynb, solution, student.txt\n" in out


def test_check_of_a_pipe_is_refused(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    code, out, err = run("learn", "check", "pipe.py")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "must be a plain file" in err


def test_python_that_begins_with_a_brace_is_python(run: Run, tmp_path: Path) -> None:
    (tmp_path / "braced.py").write_text("{}\n" + RIGHT.read_text(encoding="utf-8"), encoding="utf-8")
    assert run("learn", "check", "braced.py")[0] == 0


def test_an_interrupted_class_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not begun is not begun."""
    for at in range(20):
        shutil.copy(HERE / "hostile" / "exits_hard.py", tmp_path / f"{at:02}.py")
    graded = []

    def stop(result: Any) -> None:
        graded.append(result)
        raise KeyboardInterrupt

    begun = []
    real = check_file

    def counted(path: Path, **options: Any) -> Report:
        begun.append(path)
        return real(path, **options)

    monkeypatch.setattr(batch, "check_file", counted)
    with pytest.raises(KeyboardInterrupt):
        batch.grade_folder(tmp_path, seed=1, jobs=2, limits=Limits(0.1, 0.3), on_file=stop)
    assert len(graded) == 1
    assert len(begun) <= 4


@pytest.mark.parametrize(
    "words", [["--hints", -1], ["--seconds", "nan"], ["--seconds", "1e9"], ["--memory", 1], ["--total", -5]]
)
def test_check_refuses_numbers_out_of_range(run: Run, words: list[object]) -> None:
    code, out, err = run("learn", "check", RIGHT, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{words[0]} must be" in err


def test_the_limits_of_a_class_are_those_that_the_help_names(run: Run) -> None:
    said = " ".join(run("learn", "grade", "--help")[1].split())
    limits = batch.CLASS_LIMITS
    for line in (
        f"one call (default: {limits.seconds:g})",
        f"one solution (default: {limits.total:g})",
        "(default: 512)",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "' =1"),
        ("\r\n=1", "'  =1"),
        ("plain", "plain"),
        ("a=1", "a=1"),
        ("＝1", "'＝1"),
    ],
)
def test_no_cell_begins_a_formula(text: str, cell: str) -> None:
    assert batch._cell(text) == cell


def test_the_grader_fails_one_submission_not_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(RIGHT, tmp_path / "a.py")
    shutil.copy(RIGHT, tmp_path / "b.py")
    real = check_file

    def sometimes(path: Path, **options: Any) -> Report:
        if path.name == "a.py":
            raise KeyError("planted")
        return real(path, **options)

    monkeypatch.setattr(batch, "check_file", sometimes)
    one, two = batch.grade_folder(tmp_path, seed=1)
    assert (one.report, one.score) == (None, 0.0)
    assert one.note.startswith("not graded, please report it: KeyError")
    assert two.report is not None
    assert two.report.passed


#: The hostile programs that a small class has: each takes its time, its memory or its process in another way.
WORST = [
    "loops",
    "allocates",
    "exits_hard",
    "sleeps",
    "recurses",
    "forges",
    "loops_at_load",
    "prints",
    "starts_threads",
]


def a_class(folder: Path, count: int) -> list[str]:
    """So many generated submissions: right ones, wrong ones, loops, crashes, memory hogs."""
    names = []
    kinds = [sorted((HERE / kind).glob("*.py")) for kind in ("right", "wrong", "wrong", "hostile")]
    kinds[3].sort(key=lambda path: WORST.index(path.stem) if path.stem in WORST else len(WORST))
    for at in range(count):
        files = kinds[at % len(kinds)]
        path = files[(at // len(kinds)) % len(files)]
        code = f"# student {at}\n" + path.read_text(encoding="utf-8")
        name = f"student_{at:03}.{'json' if at % 5 == 0 else 'py'}"
        text = json.dumps(submission(code)) if name.endswith("json") else code
        (folder / name).write_text(text, encoding="utf-8")
        names.append(path.parent.name)
    return names


def graded_class(folder: Path, count: int, limits: Limits) -> None:
    kinds = a_class(folder, count)
    results = batch.grade_folder(folder, seed="hidden", limits=limits)
    assert len(results) == count
    for kind, result in zip(kinds, results, strict=True):
        assert result.report is not None, result
        assert result.report.passed == (kind == "right"), result.file
        assert "student" in submitted_code((folder / result.file).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_class_is_graded_whole(tmp_path: Path) -> None:
    graded_class(tmp_path, 40, Limits(seconds=0.5, total=2, memory=256))


@pytest.mark.long
def test_a_class_of_200_is_graded_whole(tmp_path: Path) -> None:
    graded_class(tmp_path, 200, batch.CLASS_LIMITS)


def test_a_class_of_200_hangs_takes_ten_minutes_on_two_cores_at_most() -> None:
    """By its limits: of each submission's share of the time a third is left to start, judge and write."""
    share = 2 * 600 / 200
    assert batch.CLASS_LIMITS.total <= share * 2 / 3


def test_nothing_is_left_running(tmp_path: Path) -> None:
    """A program that holds the line and sleeps is gone when its report is there."""
    with Child((HERE / "hostile" / "sleeps.py").read_text(encoding="utf-8"), limits=Limits(0.3, 1)) as child:
        child.load()
        process = child._process
        assert process is not None
        child.call(([1.0], [[1.0]], [[1.0]], [True]))
    assert process.poll() is not None


def test_when_the_grader_is_gone_the_child_goes_too() -> None:
    """End of its input is the end of it."""
    program = (
        "import os, sys; from qkv.learn.runner import Child; "
        "child = Child('def attend(*_): pass'); child.load(); print(child._process.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    pid = int(done.stdout)
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the child is still there")
