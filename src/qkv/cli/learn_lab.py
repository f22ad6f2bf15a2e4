"""`qkv learn check` and `qkv learn grade`: the lab without the page, for one learner and for a class."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import ArgumentError, FileError

from . import draw

if TYPE_CHECKING:
    from qkv.learn.batch import Result
    from qkv.learn.grader import Report

__all__ = ["add_check", "add_grade"]

_CHECK_EPILOG = """\
examples:
  qkv learn check solution.py
  qkv learn check solution.py --hints 2
  qkv learn check submission.json --seed 7 --json

The file defines attend(query, keys, values, allowed) -> (weights, context), in
plain Python. Exit codes: 0 passed, 1 not passed, 2 nothing to grade.

In pytest:
  from qkv.learn import check_solution
  def test_attend():
      check_solution("solution.py")
"""

_GRADE_EPILOG = """\
examples:
  qkv learn grade submissions --csv grades.csv
  qkv learn grade submissions --gradescope results.json --seed 2031

Submissions are .py files, or the .json that the page downloads, of which only
the code counts. The score is the share of the cases passed, and 0 until one
that has an answer is: refusing everything earns nothing. Each runs in a process of its own with limits of time and
memory. That holds off accidents and pranks; it is no sandbox for strangers.
"""


def add_check(verbs: Any) -> None:
    """Add `check` to the sub-commands of `qkv learn`."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "check",
        help="grade one solution and show the smallest input that breaks it",
        description="Grade one solution and show the smallest input that breaks it.",
        epilog=_CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("solution", type=Path, help="a .py file, or a submission downloaded from the page")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the inputs drawn (default: 0)")
    parser.add_argument("--hints", metavar="N", type=int, default=0, help="how many hints to show (default: 0)")
    _add_limits(parser, seconds=2.0, total=60.0)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=check)


def add_grade(verbs: Any) -> None:
    """Add `grade` to the sub-commands of `qkv learn`."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "grade",
        help="grade a folder of submissions",
        description="Grade every submission in a folder, also on hidden inputs.",
        epilog=_GRADE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, help="where the submissions are")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="save one line per submission")
    parser.add_argument("--gradescope", metavar="FILE", type=Path, help="save results in Gradescope's form")
    parser.add_argument(
        "--seed", metavar="N", type=int, help="seed of the hidden inputs (default: a new one, which is printed)"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="how many at a time (default: one per core)")
    _add_limits(parser, seconds=1.0, total=4.0)
    parser.add_argument("--json", action="store_true", help="print all reports as JSON")
    parser.set_defaults(run=grade)


def _add_limits(parser: argparse.ArgumentParser, seconds: float, total: float) -> None:
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=seconds, help=f"longest time of one call (default: {seconds:g})"
    )
    parser.add_argument(
        "--total", metavar="S", type=float, default=total, help=f"longest time of one solution (default: {total:g})"
    )
    parser.add_argument("--memory", metavar="MIB", type=int, default=512, help="most memory in MiB (default: 512)")


def _limits(arguments: argparse.Namespace) -> Any:
    from qkv.learn.runner import Limits

    for name, least in (("seconds", 0.05), ("total", 0.05), ("memory", 64)):
        given = getattr(arguments, name)
        if not least <= given <= 1e6:
            raise ArgumentError(f"--{name} must be a number from {least:g} to 1e6, got {given:g}; write one of these")
    return Limits(arguments.seconds, arguments.total, arguments.memory)


def check(arguments: argparse.Namespace) -> int:
    """Grade one solution; 0 if it passes, 1 if not."""
    from qkv.learn.grader import CASE_IDS
    from qkv.learn.runner import check_source, read_solution

    limits = _limits(arguments)
    if arguments.hints < 0:
        raise ArgumentError(f"--hints must be at least 0, got {arguments.hints}; leave it out for none")
    path: Path = arguments.solution
    source = _read(read_solution, path)
    with draw.progress(path.name, len(CASE_IDS), not arguments.json) as advance:
        report = check_source(
            source,
            name=path.name,
            limits=limits,
            seed=arguments.seed,
            on_case=lambda news: advance() if news["event"] == "done" else None,
        )
    if arguments.json:
        draw.write_json(report.to_dict())
    else:
        _show(report, path.name, arguments.hints)
    return 0 if report.passed else 1


def _read(read: Any, path: Path) -> str:
    try:
        source: str = read(path)
    except ValueError as error:
        raise FileError(f"{path}: {error}") from None
    return source


def _show(report: Report, name: str, hints: int) -> None:
    from qkv.learn.grader import explain

    counts = report.counts
    passed = f"{counts['passed']} of {counts['cases']} cases passed"
    draw.text(f"{name}: {'passed' if report.passed else 'not passed'}, {passed}", "bold")
    first = report.first_failure
    if first:
        draw.text()
        # Code and numbers are not wrapped, prose is.
        for line in explain(first, hints).splitlines():
            indent = len(line) - len(line.lstrip())
            if line.lstrip().startswith("attend("):
                draw.lines(line)
            else:
                draw.text(line.strip(), indent=indent)
    others = [case for case in report.cases if case["status"] == "failed" and case is not first]
    if others:
        draw.heading("also")
        draw.table(["case", "what happened"], [[case["id"], _short(case)] for case in others], left=[0, 1])
    if report.why_not_run:
        draw.text()
        draw.text(report.why_not_run)
    if report.printed:
        draw.heading("it printed")
        draw.lines(report.printed[:1000].rstrip("\n") + ("\n…" if len(report.printed) > 1000 else ""))


def _short(case: dict[str, Any]) -> str:
    failure = case["failure"]
    if failure is None:
        return str(case["status"])
    said = failure["cause"]["title"] if failure["cause"] else failure["says"]
    return str(said).rstrip(".")


def grade(arguments: argparse.Namespace) -> int:
    """Grade a class; 0 when all have been graded, whatever the grades."""
    from qkv.learn.batch import grade_folder, left_out, submissions, write_csv, write_gradescope

    limits = _limits(arguments)
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise ArgumentError(f"{folder} must be a folder of submissions, but is none; give the folder they are in")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, got {arguments.jobs}; leave it out for one per core")
    outputs = {"--csv": arguments.csv, "--gradescope": arguments.gradescope}
    files = _files(submissions(folder), outputs)
    written = {os.path.realpath(path) for path in outputs.values() if path is not None}
    others = [name for name in left_out(folder) if os.path.realpath(folder / name) not in written]
    if not files:
        raise ArgumentError(f"{folder} must hold .py or .json files to grade, but holds none; give another folder")
    seed = secrets.randbelow(10**9) if arguments.seed is None else arguments.seed
    if arguments.seed is None:
        print(f"seed {seed}", file=sys.stderr)
    with draw.progress(folder.name, len(files), not arguments.json) as advance:
        results = grade_folder(
            folder, seed=seed, files=files, limits=limits, jobs=arguments.jobs, on_file=lambda _: advance()
        )
    if arguments.csv:
        write_csv(results, arguments.csv)
    if arguments.gradescope:
        write_gradescope(results, arguments.gradescope)
    if arguments.json:
        draw.write_json({"seed": seed, "results": [_result(result) for result in results], "left_out": others})
        return 0
    draw.table(["file", "cases", "first to look at"], [_line(result) for result in results], left=[0, 2])
    passed = sum(result.report is not None and result.report.passed for result in results)
    draw.text(f"{passed} of {len(results)} passed")
    if others:
        more = f" and {len(others) - 20} more" if len(others) > 20 else ""
        draw.text(f"left out, since only .py and .json are graded: {', '.join(others[:20])}{more}")
    return 0


def _files(files: list[Path], outputs: dict[str, Path | None]) -> list[Path]:
    """The submissions, without results of an earlier run that will be written again; no submission is written over."""
    written: dict[Path, str] = {}
    for name, given in outputs.items():
        if given is None:
            continue
        path = Path(os.path.realpath(given))
        if path in written:
            raise ArgumentError(f"{name} and {written[path]} must be two files, but both are {given}; name another one")
        if path in [Path(os.path.realpath(file)) for file in files] and _is_submission(path):
            raise ArgumentError(f"{name} must not be a submission, but {given} is one; name another file")
        written[path] = name
    # A path that cannot be written is known before the work, not after it; and a run that ends early leaves no file.
    for path in written:
        new = not path.exists()
        with path.open("a"):
            pass
        if new:
            path.unlink()
    return [file for file in files if Path(os.path.realpath(file)) not in written]


def _is_submission(path: Path) -> bool:
    """Whether it is code, or JSON with code in it: results of an earlier run are not."""
    from qkv.learn.runner import read_solution

    try:
        return path.suffix.lower() == ".py" or bool(read_solution(path))
    except ValueError:
        return False


def _result(result: Result) -> dict[str, Any]:
    report = result.report.to_dict() if result.report else None
    return {"file": result.file, "score": result.score, "note": result.note, "report": report}


def _line(result: Result) -> list[str]:
    report = result.report
    if report is None:
        return [result.file, "", result.note]
    first = report.first_failure
    cases = f"{report.counts['passed']}/{report.counts['cases']}"
    look = f"{first['id']}: {_short(first)}" if first else "passed" if report.passed else report.why_not_run
    return [result.file, cases, look]
