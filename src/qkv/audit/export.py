"""The data form: cases as files, so that a kernel in any language can be tested, and asked, without Python.

A folder is one call: `call.json` says what is asked (`schema.json` says how it says it), `call.safetensors` holds the
arrays, and of an exported case `right.safetensors` holds the right answer, how far an answer may be from it, and what
other conventions would answer. Who answers writes `answer.safetensors` (output, and lse, weights, dq, dk, dv where
they are asked for), or `refusal.txt` with one sentence.
"""

from __future__ import annotations

import json
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qkv.version import __version__

from . import readings
from .call import Call, stored
from .case import Case
from .domain import FEATURES, Domain, lift
from .run import Choice, chosen
from .tensors import write_tensors
from .tolerance import right
from .wire import call_to

__all__ = ["FORM", "export", "schema", "write_call"]

FORM = "qkv-audit-call/1"

#: Numbers are told in the types a kernel gets them in.
_FIXED = {"mask": "bool", "lengths": "int64", "sink": "float32", "slopes": "float32"}
_LEFT_OUT = ("strides", "repeat", "watch", "odd")


def schema() -> dict[str, Any]:
    """The JSON schema of `call.json`."""
    text = resources.files(__package__).joinpath("call.schema.json").read_text(encoding="utf-8")
    plain: dict[str, Any] = json.loads(text)
    return plain


def write_call(folder: Path, call: Call, about: dict[str, Any]) -> None:
    """One call as files."""
    folder.mkdir(parents=True, exist_ok=True)
    head, arrays = call_to(call)
    plain = {name: value for name, value in head.items() if name not in _LEFT_OUT}
    rows = None if call.rows is None else list(call.rows)
    said = {"form": FORM, **about, **plain, "rows": rows, "tensors": sorted(arrays)}
    (folder / "call.json").write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    tensors = {}
    for name, array in arrays.items():
        dtype = call.key_dtype or call.dtype if name in ("key", "value") else call.dtype
        dtype = _FIXED.get(
            name, "int64" if name.startswith("segments") else "int32" if name.startswith("offsets") else dtype
        )
        is_float = dtype not in ("bool", "int64", "int32")
        tensors[name] = (dtype, stored(np.asarray(array), dtype) if is_float else np.asarray(array))
    write_tensors(folder / "call.safetensors", tensors)


def export(
    folder: Path | str,
    choice: Choice | None = None,
    *,
    dtypes: tuple[str, ...] = ("float32",),
    arithmetic: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Write the cases of a choice; the same version writes the same bytes.

    Args:
        choice: profile, clauses, case; and the seed, 0 unless said. dtypes: of the arrays.
        arithmetic: what the right answer's tolerance allows for, as in `Domain`.

    Returns:
        What `index.json` holds: one record a call.
    """
    choice = choice or Choice(profile="strict")
    top = Path(folder)
    top.mkdir(parents=True, exist_ok=True)
    index = []
    for case in chosen(choice):
        for dtype in dtypes:
            if case.dtypes and dtype not in case.dtypes:
                continue
            for size in case.sizes:
                seed = choice.seed or 0
                rng = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
                everything = Domain(accepts=frozenset(FEATURES), dtypes=(dtype,))
                calls = case.calls(lift(case.make(rng, size), everything, dtype, case.about))
                for at, call in enumerate(calls):
                    if not _sayable(case, call):
                        continue
                    place = f"{case.id}/{dtype}-{size.L}x{size.S}-{seed}-{at}"
                    index.append(_write(top, place, case, call, seed, arithmetic))
    record = {"form": "qkv-audit-cases/1", "qkv": __version__, "calls": index}
    (top / "index.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (top / "schema.json").write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return index


def _sayable(case: Case, call: Call) -> bool:
    """Whether files can say it: how arrays lie, wrong spellings, and what is watched are about a process."""
    about_memory = case.profile == "generated" or case.id in ("A4-inputs", "A4-own-memory")
    return not about_memory and call.strides == "plain" and not call.odd - {"raw mask", "zero padded query"}


def _write(top: Path, place: str, case: Case, call: Call, seed: int, arithmetic: frozenset[str]) -> dict[str, Any]:
    refused = case.only_refusal or call.unsaid
    expect = "refusal" if refused else "answer or refusal" if case.refusal else "answer"
    answers: dict[str, tuple[str, Any]] = {}
    if not refused:
        for name, (number, tolerance) in right(call, arithmetic).parts.items():
            number = np.asarray(number, np.float64)
            answers[name] = ("float64", number)
            answers[f"{name}.tolerance"] = ("float64", np.broadcast_to(tolerance, number.shape))
    others: list[str] = []
    # A probe compares calls of its own; the conventions are about the case's first one.
    for reading in case.alternatives if case.relation is None else ():
        found = readings.answer(call, reading, arithmetic)
        if found is None:
            continue
        number, tolerance = found.parts["output"]
        answers[f"other.{len(others)}.output"] = ("float64", np.asarray(number, np.float64))
        answers[f"other.{len(others)}.output.tolerance"] = ("float64", np.broadcast_to(tolerance, np.shape(number)))
        others.append(reading.name)
    about = {
        "case": case.id,
        "clauses": list(case.clauses),
        "title": case.title,
        "profile": case.profile,
        "seed": seed,
        "expect": expect,
        "other": others,
    }
    write_call(top / place, call, about)
    write_tensors(top / place / "right.safetensors", answers)
    return {"folder": place, "case": case.id, "clauses": list(case.clauses), "profile": case.profile, "expect": expect}
