"""`qkv audit` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv.audit import CLAUSES, all_cases
from qkv.audit.isolate import Here
from qkv.cli.main import main
from support.libraries import library

KERNEL = """
import numpy as np

def attention(query, key, value, attn_mask=None, is_causal=False):
    score = np.einsum("bhld,bhsd->bhls", query, key) * query.shape[-1] ** -0.5
    if attn_mask is not None:
        score = score + np.where(attn_mask, 0, -1e4)
    if is_causal:
        score = np.where(np.tri(*score.shape[-2:], dtype=bool), score, -np.inf)
    mass = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("bhls,bhse->bhle", mass / mass.sum(-1, keepdims=True), value).astype(query.dtype)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    (tmp_path / "kernel.py").write_text(KERNEL)
    return f"{tmp_path / 'kernel.py'}:attention"


def test_from_a_file_to_a_verdict(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """C3: the sentinel is named, the input is small, and a line reproduces it."""
    code = main(
        ["audit", kernel, "--accepts", "mask=attn_mask,causal=is_causal", "--clause", "C3,B5", "--profile", "core"]
    )
    out = capsys.readouterr().out
    assert code == 1
    assert "wrong: forbidden pairs have -10000 added" in out
    assert "mask 1×2: [T F]" in out
    assert "--case C3-low-score" in out
    assert max(len(line) for line in out.splitlines() if "qkv audit" not in line) <= 80


def test_json_is_complete(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row of the profile, and which of them fail."""
    code = main(["audit", kernel, "--accepts", "mask=attn_mask", "--in-process", "--profile", "core", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert code == 1
    (report,) = record["reports"]
    assert {row["case"] for row in report["rows"]} == {c.id for c in all_cases() if c.profile == "core"}
    assert "C3-low-score" in report["failed"]
    assert report["clauses"]["C3"] == "wrong"
    assert report["clauses"]["A1"] == "keeps"
    assert 0.3 < report["reached"] < 1


def test_the_table_has_every_clause_and_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Clauses × kernels, one mark a cell."""
    assert main(["audit", "qkv-numpy", "--in-process", "--profile", "edges"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines if line.strip()[:2] in CLAUSES]
    assert [row[0] for row in table] == list(CLAUSES)
    assert {row[1] for row in table} == {"✓"}
    assert max(map(len, lines)) <= 80


def test_an_interrupt_shows_what_is_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C after a few cases."""
    ask, count = Here.ask, [0]

    def interrupted(self: Here, call: object) -> object:
        count[0] += 1
        if count[0] > 12:
            raise KeyboardInterrupt
        return ask(self, call)  # type: ignore[arg-type]

    monkeypatch.setattr(Here, "ask", interrupted)
    assert main(["audit", "qkv-numpy", "--in-process"]) == 130
    out = capsys.readouterr().out
    assert "A1" in out
    assert "not finished" in out
    assert "this is what was known so far" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-known"], "there is no kernel 'nothing-known'"),
        ([], "name a kernel, or pass --all"),
        (["qkv-numpy", "--clause", "Z9"], "--clause must be among"),
        (["qkv-numpy", "--case", "A1-nothing"], "there is no case 'A1-nothing'"),
        (["a.py:f", "--accepts", "masks"], "accepts must be among"),
        (["a.py:f", "--lengths", "16"], "--lengths must be multiple:N"),
        (["qkv-numpy", "--seed", "-1"], "--seed takes a whole number of at least 0"),
        (["qkv-numpy", "--accepts", "mask"], "--accepts is for your own kernel"),
        (["qkv-numpy", "--device", "cuda"], "--device is for your own kernel"),
        (["--all", "--head-dims", "64"], "leave out --head-dims"),
        (["--all", "qkv-numpy"], "leave it out, or leave out qkv-numpy"),
        (["qkv-nunpy"], "is it spelled qkv-numpy?"),
        (["a.py"], "write a.py:FUNCTION"),
        (["run:no-such-program of mine"], "run: names no-such-program, which is no program"),
        (["a.py:f", "--seconds", "0"], "--seconds takes a number above 0"),
        (["a.py:f", "--memory", "-2"], "--memory takes a number above 0"),
        (["a.py:f", "--longest", "0"], "--longest takes whole numbers of at least 1"),
        (["a.py:f", "--device", "cuda"], "say arrays torch as well"),
        (["not_there.py:f"], "cannot be audited"),
    ],
)
def test_wrong_calls_are_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: exit code 2 and the way out."""
    assert main(["audit", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


REFUSING = """
def narrow(query, key, value):
    if query.shape[-1] != 48:
        raise ValueError(f"only a head width of 48 is supported, and not {query.shape[-1]}")
    return value.mean(2, keepdims=True) + 0 * query

def careless(query, key, value):
    return undefined
"""


def test_why_a_kernel_refuses_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: each reason once, whatever numbers are in it; a kernel that refuses plain attention has not passed."""
    (tmp_path / "refusing.py").write_text(REFUSING)
    name = f"{tmp_path / 'refusing.py'}:narrow"
    assert main(["audit", name, "--in-process", "--profile", "core", "--clause", "A1,C1,F2"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("only a head width of 48 is supported") == 1
    assert "refused (A1-values, A1-cross, " in out
    assert "Plain attention was refused, so little is known" in out
    assert "1 count as failed" in out
    # Once it is said what it is made for, it is asked that.
    assert main(["audit", name, "--in-process", "--clause", "A1", "--profile", "core", "--head-dims", "48"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "refused" not in out
    assert "A1-values" in out


def test_a_fault_that_many_cases_show_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F1: by its smallest input, with the names of the other cases; of faults without a name the first ones."""
    (tmp_path / "refusing.py").write_text(REFUSING)
    words = ["--in-process", "--profile", "core"]
    assert main(["audit", f"{tmp_path / 'refusing.py'}:careless", *words]) == 1
    out = capsys.readouterr().out
    assert out.count("name 'undefined' is not defined") == 1
    assert "the same in A1-values, " in " ".join(out.split()) or "the same in A1-cross, " in " ".join(out.split())
    (tmp_path / "zero.py").write_text(
        "def f(query, key, value):\n    return value[:, :, :1].repeat(query.shape[2], 2) * 3 + 1\n"
    )
    assert main(["audit", f"{tmp_path / 'zero.py'}:f", *words]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "more, which --case, --json and --html show: " in out


def test_both_answers_are_shown_where_they_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C1: in the sixth column; a row in which both look alike would tell nothing."""
    (tmp_path / "late.py").write_text(
        KERNEL + "\ndef late(query, key, value):\n    out = attention(query, key, value)\n"
        "    if value.shape[3] > 6:\n        out[:, :, :, 6] += 1\n    return out\n"
    )
    assert main(["audit", f"{tmp_path / 'late.py'}:late", "--in-process", "--case", "A1-values"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (right,), (found,) = (
        [line.split(" = ")[1] for line in lines if f"    {w} output" in line] for w in ("right", "found")
    )
    numbers = [[float(x) for x in said.strip("[]…").split()] for said in (right, found)]
    assert right.startswith("[… ")
    assert f"{numbers[1][0] - numbers[0][0]:.3f}" == "1.000"
    assert len(numbers[0]) == len(numbers[1])


def test_a_device_that_is_not_there_is_one_sentence(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: before any case is asked, in a child and here."""
    library("torch")
    for way in ([], ["--in-process"]):
        assert main(["audit", kernel, "--arrays", "torch", "--device", "nowhere", *way]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "device 'nowhere' cannot be used here" in said.err
        assert "leave device out to audit on the CPU" in said.err
        assert said.err.count("\n") == 1


def test_help_has_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not wrapped by itself, too."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["audit", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_list_names_kernels_features_and_cases(capsys: pytest.CaptureFixture[str]) -> None:
    """What there is to name."""
    assert main(["audit", "--list"]) == 0
    out = capsys.readouterr().out
    for word in ("torch-sdpa", "qkv-native", "softcap", "B6-decode", "X-own-work"):
        assert word in out
