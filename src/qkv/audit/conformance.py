"""The audit as tests: one test a case, with its id, and a ledger of accepted differences.

    from qkv.audit import conformance

    test_attention = conformance("mypkg.kernels:attention", accepts="mask,causal", ledger="tests/accepted.txt")

A line of the ledger is `CASE VERDICT[: NAME]  # reason`, and `#` alone begins a comment. A case listed there has to end
exactly so: other trouble fails, and so does keeping the clause after all, which takes the line out of the ledger.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.errors import FileError

from .cases import all_cases
from .domain import Domain
from .profiles import PROFILES
from .report import tell
from .run import Choice, chosen, run
from .targets import target_of
from .verdict import CANNOT, DIFFERS, KEEPS, REFUSES, VERDICTS, Row

__all__ = ["conformance", "judge", "read_ledger"]


def read_ledger(path: Path | str) -> dict[str, str]:
    """Case -> the verdict that is accepted, as `Row.told` spells it.

    Raises:
        FileError: the file cannot be read, a line is none, it has no reason, or its case does not exist.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise FileError(
            f"the ledger {path} cannot be read ({problem.strerror}); begin with an empty file, or leave ledger out"
        ) from None
    except ValueError:
        raise FileError(f"the ledger {path} cannot be read: it is no text in UTF-8") from None
    known = {case.id for case in all_cases()}
    out: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text, mark, reason = line.partition("#")
        words = text.split(None, 1)
        if not words:
            continue
        if len(words) < 2 or not any(words[1].startswith(v) for v in VERDICTS):
            raise FileError(
                f"{path}, line {number}: a line is CASE VERDICT[: NAME]  # reason, but {line.strip()!r} came"
            )
        if not mark or not reason.strip():
            raise FileError(f"{path}, line {number}: {words[0]} needs a reason after #")
        if words[0] not in known:
            raise FileError(f"{path}, line {number}: there is no case {words[0]!r}; qkv audit --list names them all")
        out[words[0]] = words[1].strip()
    return out


def judge(row: Row, ledger: dict[str, str], profile: str) -> str:
    """Why a row fails as a test, or "".

    Without a line in the ledger a case has to be kept, unless the kernel cannot be asked, or need not.
    """
    accepted = ledger.get(row.case)
    said = "\n".join(tell(row))
    if accepted is None:
        failed = PROFILES[profile].failed(row) or row.verdict in (DIFFERS, REFUSES)
        return said if failed else ""
    if row.told == accepted or row.verdict == accepted:
        return ""
    if row.verdict == KEEPS:
        return f"{row.case} is kept after all, though the ledger accepts {accepted!r}; take its line out"
    return f"{row.case}: the ledger accepts {accepted!r}, but it is {row.told!r}\n{said}"


def conformance(
    fn: Any,
    accepts: Any = "",
    domain: Domain | None = None,
    *,
    profile: str = "edges",
    ledger: Path | str | None = None,
    isolate: bool = True,
    **fields: Any,
) -> Callable[..., None]:
    """A parametrised pytest function, one test a case; cases that cannot be asked are skipped.

    Args:
        fn, accepts, domain, fields, isolate, profile: as in `check`. ledger: the file of accepted differences.
    """
    import pytest

    target = target_of(fn, accepts, domain, **fields)
    held: dict[str, Any] = {}

    def bench() -> Any:
        if "bench" not in held:
            held["bench"] = target.start(isolate)[0]
            atexit.register(held["bench"].close)
        return held["bench"]

    @pytest.mark.parametrize("case", [c.id for c in chosen(Choice(profile=profile))])
    def test_conformance(case: str) -> None:
        try:
            accepted = read_ledger(ledger) if ledger is not None else {}
        except FileError as problem:
            pytest.fail(str(problem), pytrace=False)
        row = next(run(bench(), Choice(profile=profile, case=case), target.command))
        if row.verdict == CANNOT and case not in accepted:
            pytest.skip(f"cannot be asked: {row.says}")
        trouble = judge(row, accepted, profile)
        if trouble:
            pytest.fail(trouble, pytrace=False)

    return test_conformance
