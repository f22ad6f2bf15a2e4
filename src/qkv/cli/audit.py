"""`qkv audit`: hold attention kernels against the contract."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import ArgumentError, FileError

from . import audit_data, audit_model, audit_own, audit_show, draw

if TYPE_CHECKING:
    from qkv.audit.pages import Made
    from qkv.audit.report import Report
    from qkv.audit.targets import Target

__all__ = ["add_command"]

_EPILOG = """\
examples:
  qkv audit torch-sdpa
  qkv audit --all --profile edges
  qkv audit mypkg.kernels:attention --accepts mask=attn_mask,causal,gqa
  qkv audit kernel.py:attention --arrays torch --dtype bfloat16 --head-dims 64
  qkv audit "run:node kernel.mjs" --accepts mask,causal,lse
  qkv audit torch-sdpa --case B6-long --seed 3
  qkv audit migrate torch-sdpa mlx
  qkv audit export cases/ --dtype float32,bfloat16
  qkv audit --all --markdown docs/audit.md --html audit.html
  qkv audit --model glassllm --text chapter.txt

A kernel is a function of (query, key, value) with axes (B, H, L, D), and of
what it accepts. Exit code 1: a clause of the profile is broken, a kernel
crashes or refuses plain attention, or a model leaks.
"""


def add_command(commands: Any) -> None:
    """Add `audit` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "audit",
        help="hold attention kernels against the contract",
        description="Say of an attention kernel which clauses it keeps, which other convention it\n"
        "follows, and where it is wrong.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        nargs="*",
        help="a kernel known by name, module:function, file.py:function, run:command; or export DIR, or migrate A B",
    )
    parser.add_argument("--all", action="store_true", help="every kernel known by name whose library is installed")
    parser.add_argument("--slow", action="store_true", help="with --all: those that compile for minutes, too")
    parser.add_argument("--list", action="store_true", help="list kernels known by name, cases, and features")
    own = parser.add_argument_group("your own kernel")
    own.add_argument("--accepts", metavar="WORDS", default="", help="what it takes: mask,causal,gqa=enable_gqa, …")
    own.add_argument("--arrays", choices=("numpy", "torch", "jax"), default="numpy", help="arrays it takes")
    own.add_argument("--layout", choices=("bhld", "blhd"), default="bhld", help="order of its axes")
    own.add_argument(
        "--dtype", metavar="TYPES", help="float types, such as bfloat16,float32; of known kernels: only these"
    )
    own.add_argument("--device", default="cpu", help="where its arrays are (torch)")
    own.add_argument("--head-dims", metavar="N,…", help="head widths it is made for (default: any)")
    own.add_argument(
        "--lengths", metavar="multiple:N", help="what lengths must divide by; multiple:N,M for queries, keys"
    )
    own.add_argument("--longest", metavar="N", type=int, help="most keys of a case")
    own.add_argument(
        "--arithmetic", metavar="WORDS", help="p-rounded, stepwise, tf32, stale-max: what bounds allow for"
    )
    own.add_argument("--true-drops", action="store_true", help="its masks are documented to mean: True is dropped")
    own.add_argument("--contiguous", action="store_true", help="its arrays must be contiguous")
    own.add_argument("--seconds", metavar="N", type=float, help="limit of one call (default: 20)")
    own.add_argument("--memory", metavar="GIB", type=float, help="limit of one call (default: 4)")
    audit_model.add_options(parser)
    what = parser.add_argument_group("what is asked")
    what.add_argument(
        "--profile", choices=("core", "edges", "strict", "generated"), default="strict", help="what counts"
    )
    what.add_argument("--clause", metavar="B6,…", default="", help="only cases of these clauses")
    what.add_argument("--case", metavar="ID", default="", help="only this case")
    what.add_argument("--seed", metavar="N", type=int, help="only this seed")
    what.add_argument("--deep", action="store_true", help="every length 1…70 and around powers of two")
    what.add_argument("--in-process", action="store_true", help="without a child process: quicker, a crash ends all")
    out = parser.add_argument_group("what is shown")
    out.add_argument("--json", action="store_true", help="print the reports as JSON")
    out.add_argument("--html", metavar="FILE", help="write one page that sorts, filters, and opens each case")
    out.add_argument("--markdown", metavar="FILE", help="write the table and what is wrong as Markdown")
    out.add_argument("--verdicts", metavar="FILE", help="write what each library does as a small JSON table")
    out.add_argument("--read", metavar="FILE", help="run nothing: show the reports that --json wrote")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Audit, and show what was found; also what was found when it is interrupted."""
    from qkv.audit.pages import made_now, record, to_html, to_markdown

    if _is_of_a_model(arguments):
        return audit_model.run(arguments)
    if arguments.list:
        if arguments.html or arguments.markdown or arguments.read:
            raise ArgumentError("--list runs nothing and writes no page; leave out --html, --markdown and --read")
        return _list(arguments.json)
    if arguments.target and arguments.target[0] in audit_data.WORDS:
        if arguments.target[0] == "export":
            return audit_data.export(arguments, _choice(arguments))
        return audit_data.migrate(arguments, lambda names: _named(names, arguments))
    interrupted = False
    if arguments.read:
        _refuse(arguments, "--read shows the reports of a file as they are")
        reports, made = _read(arguments.read)
    else:
        made = made_now(_called())
        reports, interrupted = _audit(arguments)
    if arguments.markdown:
        _write(arguments.markdown, to_markdown(reports, made))
    if arguments.html:
        _write(arguments.html, to_html(reports, made))
    if arguments.verdicts:
        audit_data.write_verdicts(arguments.verdicts, reports, made)
    if arguments.json:
        draw.write_json(record(reports, made, interrupted))
    else:
        audit_show.show(reports, interrupted, one_case=bool(arguments.case))
    if interrupted:
        return 130
    alone = len(reports) == 1
    # Of many, an absent library is one line; alone, it is all there is.
    if alone and reports[0].absent:
        raise ArgumentError(f"{reports[0].name} cannot be audited: {reports[0].absent}")
    return 0 if all(r.ok or r.absent for r in reports) else 1


def _named(names: list[str], arguments: argparse.Namespace) -> list[Report]:
    """The reports of kernels by their names: read, or made now."""
    from qkv.audit import adapters

    if not arguments.read:
        arguments.target = names
        reports, interrupted = _audit(arguments)
        if interrupted:
            raise KeyboardInterrupt
        return reports
    found = {report.name: report for report in _read(arguments.read)[0]}
    for name in names:
        if (adapters.canonical(name) or name) not in found:
            raise ArgumentError(f"{arguments.read} has no report of {name}; it has {', '.join(found)}")
    return [found[adapters.canonical(name) or name] for name in names]


def _choice(arguments: argparse.Namespace) -> Any:
    """Which cases are asked, and how."""
    from qkv.audit.run import Choice

    dtypes = tuple(w.strip() for w in (arguments.dtype or "").split(",") if w.strip())
    clauses = tuple(w.strip().upper() for w in arguments.clause.split(",") if w.strip())
    _check_clauses(clauses)
    if arguments.seed is not None and arguments.seed < 0:
        raise ArgumentError(f"--seed takes a whole number of at least 0, but {arguments.seed} came")
    return Choice(arguments.profile, clauses, arguments.case, arguments.seed, dtypes=dtypes, deep=arguments.deep)


def _audit(arguments: argparse.Namespace) -> tuple[list[Report], bool]:
    """(reports so far, whether it was interrupted)."""
    from qkv.audit.run import chosen
    from qkv.audit.together import audit_together

    targets, choice = _targets(arguments), _choice(arguments)
    count = len(chosen(choice))
    reports: list[Report] = []
    with draw.progress("audit", count * len(targets), show=not arguments.json) as step:
        try:
            audit_together(targets, choice, isolate=not arguments.in_process, told=_then(step), into=reports)
        except KeyboardInterrupt:
            return reports, True
    return reports, False


def _called() -> str:
    """The command without where its reports go."""
    words, skip = ["qkv"], False
    for word in sys.argv[1:]:
        if skip or word == "--json":
            skip = False
        elif word in ("--html", "--markdown", "--verdicts"):
            skip = True
        elif not word.startswith(("--html=", "--markdown=", "--verdicts=")):
            words.append(word)
    return " ".join(words)


#: Options that say which kernels and which cases, and their defaults: with --read they would have no effect.
_CHOOSING: dict[str, Any] = {
    **dict.fromkeys(("dtype", "head_dims", "lengths", "longest", "arithmetic", "seconds", "memory", "seed")),
    **dict.fromkeys(("all", "slow", "true_drops", "contiguous", "deep", "in_process"), False),
    **dict.fromkeys(("accepts", "clause", "case"), ""),
    "target": [],
    "arrays": "numpy",
    "layout": "bhld",
    "device": "cpu",
    "profile": "strict",
}


def _refuse(arguments: argparse.Namespace, why: str, but: tuple[str, ...] = ()) -> None:
    """Refuse what would have no effect."""
    for name, default in _CHOOSING.items():
        if name not in but and getattr(arguments, name) != default:
            said = "a kernel" if name == "target" else f"--{name.replace('_', '-')}"
            raise ArgumentError(f"{why}; leave out {said}")


def _is_of_a_model(arguments: argparse.Namespace) -> bool:
    """Whether a model is audited; options of the other audit are refused."""
    if arguments.model is None:
        for name in audit_model.OPTIONS:
            if getattr(arguments, name):
                raise ArgumentError(f"--{name} is for a whole model; name one with --model, or leave it out")
        return False
    _refuse(arguments, "--model audits a whole model, and no kernel", but=("seed",))
    for name in ("list", "read", "html", "markdown"):
        if getattr(arguments, name):
            raise ArgumentError(f"--model shows a table, or JSON with --json; leave out --{name}")
    return True


def _read(name: str) -> tuple[list[Report], Made]:
    from qkv.audit.pages import read_reports

    try:
        data = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileError(f"{name} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise FileError(f"{name} cannot be read: {problem}") from None
    return read_reports(data)


def _write(name: str, page: str) -> None:
    try:
        Path(name).write_text(page, encoding="utf-8", newline="\n")
    except OSError as problem:
        raise FileError(f"{name} cannot be written: {problem.strerror}") from None


def _then(step: Callable[[], None]) -> Callable[[Any], None]:
    return lambda row: step()


def _check_clauses(clauses: tuple[str, ...]) -> None:
    from qkv.audit.cases import CLAUSES

    for clause in clauses:
        if clause not in CLAUSES:
            raise ArgumentError(f"--clause must be among {', '.join(CLAUSES)}, but {clause!r} came")


def _targets(arguments: argparse.Namespace) -> list[Target]:
    from qkv.audit import adapters
    from qkv.audit.targets import target_of

    if arguments.all and arguments.target:
        raise ArgumentError(
            f"--all audits every kernel known by name; leave it out, or leave out {arguments.target[0]}"
        )
    if not arguments.all and not arguments.target:
        raise ArgumentError("name a kernel, or pass --all; qkv audit --list shows those known by name")
    if arguments.all:
        audit_own.refuse(arguments, "--all")
        names = [n for n, a in adapters.ADAPTERS.items() if arguments.slow or not a.slow]
        return [target_of(name) for name in names]
    return [audit_own.target(name, arguments) for name in arguments.target]


def _list(as_json: bool) -> int:
    from qkv.audit import FEATURES, adapters, all_cases

    kernels = {n: adapters.missing(n) for n in adapters.ADAPTERS}
    if as_json:
        draw.write_json(
            {
                "kernels": {n: {"missing": m} for n, m in kernels.items()},
                "features": FEATURES,
                "cases": [
                    {"id": c.id, "clauses": c.clauses, "title": c.title, "profile": c.profile} for c in all_cases()
                ],
            }
        )
        return 0
    draw.heading("Kernels known by name")
    draw.table(("name", "missing"), [(n, ", ".join(m) or "nothing") for n, m in kernels.items()], left=(0, 1))
    draw.heading("What --accepts may name")
    draw.table(("feature", "meaning"), list(FEATURES.items()), left=(0, 1))
    draw.heading("Cases")
    draw.table(("case", "profile", "about"), [(c.id, c.profile, c.title) for c in all_cases()], left=(0, 1, 2))
    return 0
