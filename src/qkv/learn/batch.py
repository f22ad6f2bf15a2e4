"""A class of submissions, graded whole: each file in processes of its own, whatever the others do."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import grader
from .grader import Report
from .runner import Limits, check_file

__all__ = ["CLASS_LIMITS", "Result", "grade_folder", "left_out", "submissions", "write_csv", "write_gradescope"]

#: A class of 200 takes 10 minutes on two cores at the very most, all of them hanging in every case: about 5 s each.
CLASS_LIMITS = Limits(seconds=1.0, total=4.0, memory=512)

COLUMNS = ["file", "passed", "score", "cases_passed", "cases", "first_failure", "clause", "cause", "seconds", "note"]


#: Groups of cases that have an answer.
_WITH_ANSWERS = ("mixture", "mask", "numbers", "hidden")


@dataclass(frozen=True)
class Result:
    """One submission: its report, or a note that says why there is none."""

    file: str
    report: Report | None
    note: str
    seconds: float

    @property
    def score(self) -> float:
        """The share of the cases that passed, 0 to 1; 0 until a case passes that has an answer."""
        if self.report is None or not self.answers:
            return 0.0
        return self.report.counts["passed"] / self.report.counts["cases"]

    @property
    def answers(self) -> bool:
        """Whether a case passed that has an answer: code that refuses everything is right about refusals."""
        cases = self.report.cases if self.report else []
        return any(case["group"] in _WITH_ANSWERS and case["status"] == "passed" for case in cases)

    @property
    def remark(self) -> str:
        """What a reader of the score has to know beside the first failure, or nothing."""
        if self.report is None:
            return self.note
        parts = [self.report.why_not_run]
        if self.report.counts["passed"] > 1 and not self.answers:
            parts.append("no case that has an answer passed, so the others count for nothing")
        return "; ".join(part for part in parts if part)


def submissions(folder: str | os.PathLike[str]) -> list[Path]:
    """The `.py` and `.json` files in a folder and the folders in it, in order; hidden ones are left out.

    Links and what is no plain file are among them, and graded as such: whoever handed one in is told.
    """
    return [path for path in _files(Path(folder)) if path.suffix.lower() in _SUFFIXES]


def left_out(folder: str | os.PathLike[str]) -> list[str]:
    """The names of the files that are no submissions by their suffix, in order, relative to the folder."""
    root = Path(folder)
    return [path.relative_to(root).as_posix() for path in _files(root) if path.suffix.lower() not in _SUFFIXES]


_SUFFIXES = (".py", ".json")


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts)
        if not hidden and (path.is_symlink() or not path.is_dir()):
            yield path


def grade_folder(
    folder: str | os.PathLike[str],
    *,
    seed: object,
    files: Sequence[Path] | None = None,
    limits: Limits = CLASS_LIMITS,
    jobs: int | None = None,
    on_file: Callable[[Result], object] | None = None,
) -> list[Result]:
    """Grade every submission of a folder, on the public cases and on hidden ones drawn from `seed`.

    Args:
        folder: where the files are.
        seed: of the hidden cases; the same seed gives the same reports.
        files: which of them, if not all that `submissions` finds.
        limits: for each file.
        jobs: how many at a time; by default one per core.
        on_file: called with each result as it comes.
    """
    root = Path(folder)
    paths = submissions(root) if files is None else list(files)
    jobs = jobs or os.cpu_count() or 1

    def one(path: Path) -> Result:
        start = time.monotonic()
        report, note = None, ""
        try:
            if path.is_symlink() or not path.is_file():
                # A link may lead out of the folder, and a pipe never ends.
                raise ValueError("it is a link or no plain file; put the file itself there")
            report = check_file(path, limits=limits, hidden=seed)
        except (OSError, ValueError) as error:
            note = f"not read: {error.strerror if isinstance(error, OSError) else error}"
        except Exception as error:
            # A fault of the grader costs one submission, not the class.
            note = f"not graded, please report it: {type(error).__name__}: {error}"
        return Result(path.relative_to(root).as_posix(), report, note, time.monotonic() - start)

    results: dict[Path, Result] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            waiting = {pool.submit(one, path): path for path in paths}
            for done in as_completed(waiting):
                results[waiting[done]] = done.result()
                if on_file:
                    on_file(done.result())
        except BaseException:  # Ctrl-C waits for those that have begun, not for the class
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[path] for path in paths]


def write_csv(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """One line per submission. No cell begins a formula, whatever a file is called."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([_cell(cell) for cell in _row(result)] for result in results)


def _row(result: Result) -> Iterator[str]:
    report = result.report
    first = report.first_failure if report else None
    failure: dict[str, Any] = (first or {}).get("failure") or {}
    # Where the time ran out before anything failed, the first case that was not run is the one to look at.
    stopped = next((case for case in report.cases if case["status"] != "passed"), None) if report else None
    yield result.file
    yield "yes" if report and report.passed else "no"
    yield f"{result.score:.4f}"
    yield str(report.counts["passed"] if report else 0)
    yield str(report.counts["cases"] if report else 0)
    yield first["id"] if first else stopped["id"] if stopped else ""
    yield failure["clause"]["number"] if failure.get("clause") else ""
    why = report.why_not_run if report and not first else ""
    yield (failure["cause"]["title"] if failure.get("cause") else failure.get("says", "")) if failure else why
    yield f"{result.seconds:.1f}"
    yield result.remark


def _cell(text: str) -> str:
    """The text, so that a spreadsheet takes it for text (OWASP, CSV injection)."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    return f"'{flat}" if flat.lstrip().startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠", "|", "%")) else flat


def write_gradescope(results: Sequence[Result], path: str | os.PathLike[str], points: float = 100.0) -> None:
    """Results in Gradescope's form: of a single submission its `results.json`; of several, an object with one each.

    Cases from the hidden seed are hidden from students there too.
    """
    records = {result.file: _gradescope(result, points) for result in results}
    record: Any = next(iter(records.values())) if len(records) == 1 else {"submissions": records}
    Path(path).write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _gradescope(result: Result, points: float) -> dict[str, Any]:
    report = result.report
    if report is None:
        return {"score": 0.0, "output": result.note, "execution_time": round(result.seconds, 1), "tests": []}
    each = points / report.counts["cases"]
    tests = [
        {
            "name": f"{case['id']}: {case['title']}",
            "score": round(each, 6) if case["status"] == "passed" and result.answers else 0.0,
            "max_score": round(each, 6),
            "status": "passed" if case["status"] == "passed" else "failed",
            "output": "" if case["status"] == "passed" else grader.explain(case, hints=1),
            "visibility": "hidden" if case["hidden"] else "visible",
        }
        for case in report.cases
    ]
    summary = f"{report.counts['passed']} of {report.counts['cases']} cases passed"
    if result.remark:
        summary += f"; {result.remark}"
    return {
        "score": round(points * result.score, 4),
        "output": summary,
        "execution_time": round(result.seconds, 1),
        "tests": tests,
    }
