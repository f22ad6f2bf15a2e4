"""The data form: cases as files, read by other languages, and kernels that are any command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.audit import Choice, audit
from qkv.audit.export import export, schema
from qkv.audit.targets import target_of
from qkv.audit.tensors import read_tensors, write_tensors
from qkv.cli.main import main
from qkv.errors import FileError

READER = Path(__file__).parents[2] / "docs" / "audit-data" / "reader.mjs"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "cases"
    export(folder, Choice(profile="edges", clauses=("A1", "A2", "B4", "B6", "C2")))
    return folder


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def test_the_same_cases_are_the_same_bytes(cases: Path, tmp_path: Path) -> None:
    """F4: nothing of the machine or the day is in the files."""
    export(tmp_path / "again", Choice(profile="edges", clauses=("B6",)))
    files = [p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*.*") if p.name != "index.json"]
    assert len(files) > 10
    assert all((cases / p).read_bytes() == (tmp_path / "again" / p).read_bytes() for p in files)


def test_what_is_written_is_what_the_schema_says(cases: Path) -> None:
    """G1: every field is in the schema, every required one is there, the types fit."""
    from qkv.audit.cases import CLAUSES

    plan = schema()
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "null": type(None),
    }
    calls = sorted(cases.rglob("call.json"))
    assert json.loads((cases / "schema.json").read_text()) == plan
    for path in calls:
        call = json.loads(path.read_text(encoding="utf-8"))
        assert set(plan["required"]) <= set(call) <= set(plan["properties"]), path
        assert set(call["clauses"]) <= set(CLAUSES)
        assert set(read_tensors(path.with_name("call.safetensors"))) == set(call["tensors"])
        for name, value in call.items():
            said = plan["properties"][name]
            if "enum" in said:
                assert value in said["enum"], name
            if "type" in said:
                allowed = [said["type"]] if isinstance(said["type"], str) else said["type"]
                assert any(isinstance(value, kinds[kind]) for kind in allowed), name


def test_numbers_survive_a_file(tmp_path: Path) -> None:
    """F1: every type, empty arrays, NaN, infinities; what is no such file is refused."""
    given = {
        "double": ("float64", np.array([1 / 3, np.inf])),
        "single": ("float32", np.array([[0.1, -0.0]], np.float32)),
        "half": ("float16", np.array([0.1, np.nan], np.float16)),
        "brain": ("bfloat16", np.array([0x3F80, 0x4049], np.uint16)),
        "mask": ("bool", np.array([True, False])),
        "nothing": ("int64", np.zeros((0, 3), np.int64)),
    }
    write_tensors(tmp_path / "a.safetensors", given)
    back = read_tensors(tmp_path / "a.safetensors")
    assert {n: t for n, (t, _) in back.items()} == {n: t for n, (t, _) in given.items()}
    assert back["brain"][1].tolist() == [1.0, 3.140625]
    assert back["nothing"][1].shape == (0, 3)
    np.testing.assert_array_equal(back["half"][1], given["half"][1].astype(np.float64))
    from safetensors.numpy import load_file

    # Whose NumPy knows no bfloat16.
    write_tensors(tmp_path / "b.safetensors", {n: x for n, x in given.items() if n != "brain"})
    np.testing.assert_array_equal(load_file(tmp_path / "b.safetensors")["single"], given["single"][1])
    (tmp_path / "a.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(FileError, match=r"a\.safetensors is no safetensors file"):
        read_tensors(tmp_path / "a.safetensors")


def test_a_kernel_in_javascript_is_tested_without_python(cases: Path, tmp_path: Path) -> None:
    """A2, B6, C2: the reader of the documentation keeps what it can say; faults planted in it are found and named."""
    command = node()
    text = READER.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100

    def told(source: str) -> dict[str, str]:
        (tmp_path / "reader.mjs").write_text(source, encoding="utf-8")
        done = subprocess.run(
            [command, tmp_path / "reader.mjs", cases], capture_output=True, text=True, timeout=1200, check=True
        )
        return dict(line.split("  ", 1) for line in done.stdout.splitlines())

    right = told(text)
    assert set(right.values()) == {"keeps", "cannot express"}
    assert Counter(right.values())["keeps"] >= 25
    for old, new, case, said in (
        ("Math.floor((h * G) / H)", "h % G", "A2-grouped", "differs: query head h reads key head h mod G"),
        ("j > position", "j > position + 1", "B5-causal", "wrong"),
        (
            'throw new Error("say align',
            '(call.align = "start"); if (0) throw new Error("say align',
            "B6-long",
            "differs: the queries stand at the start of the keys",
        ),
    ):
        assert text.count(old) == 1
        broken = told(text.replace(old, new))
        assert [said for place, said in broken.items() if place.startswith(f"{case}/")] == [said]


def test_a_command_is_a_kernel(tmp_path: Path) -> None:
    """A1, G2: an answer, a refusal, a crash and silence of a process in any language are told apart."""
    command = f"{node()} {READER}"
    told = {
        case: audit(target_of(f"run:{command}", "mask,causal,lse,gqa,scale"), Choice(case=case, seed=0)).rows[0].told
        for case in ("A2-grouped", "B5-causal-mask", "B6-decode", "C5-lse", "B2-softcap")
    }
    assert told == dict.fromkeys(told, "keeps") | {"B2-softcap": "cannot express"}
    for body, said in (
        ("import os; os.abort()", "killed by SIGABRT"),
        ("raise SystemExit('no')", "exit code 1: no"),
        ("pass", "left neither answer.safetensors nor refusal.txt"),
        ("import pathlib; pathlib.Path(sys.argv[1], 'answer.safetensors').write_text('x')", "is no safetensors file"),
    ):
        (tmp_path / "kernel.py").write_text(f"import sys\n{body}\n")
        target = target_of(f"run:{sys.executable} {tmp_path / 'kernel.py'}")
        (row,) = audit(target, Choice(case="A1-values", seed=0, shrinking=False)).rows
        assert row.verdict == "crashes"
        assert said in row.name


def test_export_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: a folder that holds something is not written into."""
    folder = tmp_path / "cases"
    assert main(["audit", "export", str(folder), "--case", "B6-decode", "--dtype", "bfloat16"]) == 0
    assert "1 calls of 1 cases" in capsys.readouterr().out
    (place,) = (p.parent for p in folder.rglob("call.json"))
    assert json.loads((place / "call.json").read_text())["expect"] == "refusal"
    assert read_tensors(place / "call.safetensors")["query"][0] == "bfloat16"
    assert main(["audit", "export", str(folder)]) == 2
    assert "name a new folder" in capsys.readouterr().err
    assert main(["audit", "export"]) == 2
    assert "takes one folder" in capsys.readouterr().err
