"""`check(fn, …)`: audit a function; `audit(name, …)`: audit an adapter; both give a `Report`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError, QkvError

from . import adapters
from .command import Command, domain_of_command
from .domain import FEATURES, Domain
from .isolate import Bench, Child, Here, StartError
from .kernel import FunctionKernel, Kernel, function_name, parse_accepts
from .load import check_device, load
from .report import Report
from .run import Choice, run
from .verdict import Row

__all__ = ["Target", "audit", "check", "domain_of", "target_of"]


class Target:
    """A kernel that can be started: as often as it takes, and where it should run.

    Args:
        name: for reports. spec: what a child loads; None: only in this process. kernel: for this process.
        command: the words that audit it again.
    """

    def __init__(
        self, name: str, spec: dict[str, Any] | None, kernel: Callable[[], Kernel], command: str, short: str = ""
    ) -> None:
        self.name, self.spec, self.kernel, self.command, self.short = name, spec, kernel, command, short or name[:7]

    def start(self, isolate: bool) -> tuple[Bench, str, list[str]]:
        """(where it runs, version, notes).

        Raises:
            StartError: it cannot be loaded.
        """
        if isolate and self.spec is not None and sys.platform != "win32":
            child = Child(self.spec)
            return child, str(child.about["version"]), list(child.about["notes"])
        kernel = self.kernel()
        check_device(kernel.domain)
        notes = list(kernel.notes)
        if isolate:
            notes.append("ran in this process, since a child cannot find it by name: a crash would end the audit")
        return Here(kernel), kernel.version, notes


class _Ready(Target):
    """A kernel that needs no start, since each call starts it."""

    def __init__(self, name: str, bench: Bench, command: str) -> None:
        super().__init__(name, None, lambda: Kernel(name, bench.domain), command, "run")
        self._bench = bench

    def start(self, isolate: bool) -> tuple[Bench, str, list[str]]:
        """(where it runs, version, notes)."""
        return self._bench, "", []


def domain_of(accepts: Any = "", domain: Domain | None = None, **fields: Any) -> tuple[Domain, dict[str, str]]:
    """(domain, keywords by feature) of somebody's function.

    Args:
        accepts: features, `"mask=attn_mask,causal"` where the keyword is another one. domain: to start from.
    """
    keywords = parse_accepts(accepts)
    for feature in keywords:
        if feature not in FEATURES:
            raise ArgumentError(f"accepts must be among {', '.join(FEATURES)}, but {feature!r} came")
    features = set(keywords)
    if {"mask", "bias"} <= features and (keywords["mask"] != keywords["bias"]):
        features.add("mask+bias")
    start = Domain() if domain is None else domain
    # What has no argument of its own is taken for granted unless a domain says otherwise.
    granted = start.accepts if domain is not None else frozenset({"cross", "value-width"})
    return start.but(accepts=granted | features, **fields), keywords


def target_of(
    fn: Any, accepts: Any = "", domain: Domain | None = None, *, name: str = "", command: str = "", **fields: Any
) -> Target:
    """A function, a `Kernel`, the name of an adapter, `module:function`, or `run:command …`, as a target."""
    if isinstance(fn, Kernel):
        return Target(name or fn.name, None, lambda: fn, command or f"qkv audit {fn.name}")
    if isinstance(fn, str) and (known := adapters.canonical(fn)):
        return Target(
            known,
            {"adapter": known},
            lambda: adapters.make(known),
            f"qkv audit {known}",
            adapters.ADAPTERS[known].short,
        )
    made, keywords = domain_of(accepts, domain, **fields)
    if isinstance(fn, str) and fn.startswith("run:"):
        bench = Command(fn.removeprefix("run:"), domain_of_command(made))
        return _Ready(name or fn, bench, command or f"qkv audit '{fn}'{_accepted(keywords)}")
    if isinstance(fn, str):
        spec = {"target": fn, "keywords": keywords, "domain": made.to_dict()}

        def load_it() -> Kernel:
            return load(spec)

        return Target(
            name or fn, spec, load_it, command or f"qkv audit {fn}{_accepted(keywords)}", fn.rpartition(":")[2][:7]
        )
    if not callable(fn):
        raise ArgumentError(
            f"check takes a function, an adapter's name or module:function, but {type(fn).__name__} came"
        )
    called = name or function_name(fn)
    place = _place(fn)
    kernel = FunctionKernel(called, made, function=fn, keywords=keywords)
    found = {"target": place, "keywords": keywords, "domain": made.to_dict()} if place else None
    return Target(called, found, lambda: kernel, command or f"qkv audit {place or called}{_accepted(keywords)}")


def _accepted(keywords: dict[str, str]) -> str:
    return f" --accepts {','.join(keywords)}" if keywords else ""


def _place(fn: Any) -> str:
    """How a child finds a function again, "" where it cannot."""
    name, module = getattr(fn, "__qualname__", ""), getattr(fn, "__module__", "")
    if not name or "<" in name:
        return ""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if module == "__main__":
        # Loading it again must not audit it again.
        return f"{file}:{name}" if file and "__name__" in Path(file).read_text(errors="replace") else ""
    return f"{module}:{name}" if loaded is not None else ""


def audit(
    target: Target,
    choice: Choice | None = None,
    *,
    isolate: bool = True,
    told: Callable[[Row], None] = lambda row: None,
    into: Report | None = None,
) -> Report:
    """Audit one target. What is known is in the report all along, also when a KeyboardInterrupt ends the audit."""
    choice = choice or Choice()
    report = into if into is not None else Report(target.name, choice.profile)
    report.name, report.profile, report.short = target.name, choice.profile, target.short
    try:
        bench, report.version, notes = target.start(isolate)
    except (StartError, ImportError, QkvError) as problem:
        report.absent = str(problem)
        return report
    report.notes += notes
    try:
        for row in run(bench, choice, target.command, told):
            report.rows.append(row)
    finally:
        bench.close()
    report.finished = True
    return report


def check(
    fn: Any,
    accepts: Any = "",
    domain: Domain | None = None,
    *,
    profile: str = "strict",
    clauses: Iterable[str] = (),
    case: str = "",
    seed: int | None = None,
    deep: bool = False,
    isolate: bool = True,
    **fields: Any,
) -> Report:
    """Hold an attention function to the contract.

    Args:
        fn: `f(query, key, value, **keywords)` on (B, H, L, D) arrays; or the name of an adapter, or "module:function".
        accepts: what it takes besides, `"mask,causal,gqa"`, `"mask=attn_mask"` for another keyword.
        domain, fields: what its arrays may be, as in `Domain`: `dtypes=("bfloat16",)`, `arrays="torch"`, …
        profile: core, edges, strict or generated. clauses, case, seed: only these. deep: many lengths.
        isolate: in a child process, where the function can be found by its name.

    >>> import numpy as np
    >>> def average(query, key, value):
    ...     return np.broadcast_to(value.mean(2, keepdims=True), (*query.shape[:3], value.shape[3])).copy()
    >>> check(average, case="A1-values", isolate=False).rows[0].verdict
    'wrong'
    """
    choice = Choice(profile=profile, clauses=tuple(clauses), case=case, seed=seed, deep=deep)
    return audit(target_of(fn, accepts, domain, **fields), choice, isolate=isolate)
