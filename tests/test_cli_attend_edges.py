"""`qkv attend` at its edges: what is refused before the work, what is said of the mask, and the engine that is named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.cli import draw
from qkv.cli.main import main
from qkv.errors import FileError
from qkv.files import write_tensors

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in a folder with tensors: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    shapes = {"query": (5, 8), "key": (7, 8), "value": (7, 3)}
    np.savez("t.npz", **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*_: object, **__: object) -> None:
        pytest.fail("the work was done before the place of its result was looked at")

    monkeypatch.setattr(sys.modules["qkv.attention"], "attention", work)


@pytest.mark.usefixtures("no_work")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_out_never_replaces_a_pipe(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    assert run("attend", "t.npz", "--out", "pipe.npz") == (
        2,
        "",
        "qkv: --out must be a file, but 'pipe.npz' is a pipe or a device; give another name\n",
    )
    assert (tmp_path / "pipe.npz").is_fifo()


@pytest.mark.usefixtures("no_work")
def test_a_folder_as_out_is_known_before_the_work(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dir.npz").mkdir()
    assert run("attend", "t.npz", "--out", "dir.npz") == (
        2,
        "",
        "qkv: --out must be a file, but 'dir.npz' is a folder; give another name\n",
    )


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_tensors_are_written_over_files_only(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    if kind == "pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("needs pipes with names")
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(FileError, match=r"exists and is not a regular file; give another name$"):
        write_tensors(path, {"a": np.ones(1)})
    assert not path.is_file()
    assert [each.name for each in tmp_path.iterdir()] == ["o.npz"]


@pytest.mark.parametrize("align", [str(2**40), str(-(2**40)), "9" * 20, "9" * 5000])
def test_an_align_beyond_all_positions_is_one_sentence(run: Run, align: str) -> None:  # B6
    assert run("attend", "t.npz", "--mask", "causal", f"--align={align}") == (
        2,
        "",
        f"qkv: --align must be below 2**40 in size, but a number of {len(align.lstrip('-'))} digits came; "
        "write the position of the first query, or --align end\n",
    )


@pytest.mark.parametrize("align", ["1_0", "٣", "", "x" * 500, "1.5"])
def test_an_align_that_is_no_position_is_one_sentence(run: Run, align: str) -> None:  # B6
    code, out, err = run("attend", "t.npz", "--mask", "causal", f"--align={align}")
    assert (code, out) == (2, "")
    assert err.startswith("qkv: --align must be end, start or the position of the first query, a whole number, but '")
    assert err.endswith("came; write --align end\n")
    assert len(err) < 200


def test_one_alignment_is_said_once(run: Run) -> None:  # B6
    assert run("attend", "t.npz", "--mask", "causal(align='start')", "--align", "end") == (
        2,
        "",
        "qkv: one alignment must be said once, but --align and causal(align='start') both say one; leave one out\n",
    )


@pytest.mark.parametrize("align", ["end", "start", "2"])
def test_the_mask_is_shown_as_it_was_typed(run: Run, align: str) -> None:
    text = "causal  &  window(2,0)|first(7)"
    words = ("attend", "t.npz", "--mask", text, "--align", align)
    code, out, _ = run(*words)
    assert code == 0
    assert f"mask    causal & window(2,0)|first(7) (--align {align})\n" in out
    assert f"warning: causal & window(2,0)|first(7) (--align {align}) lets a query" in " ".join(out.split())
    assert "None" not in out
    assert "None" not in run(*words, "--explain")[1]
    record = json.loads(run(*words, "--json")[1])
    assert (record["mask"], record["align"]) == (text, align)
    assert record["plan"]["mask"] == f"causal & window(2,0)|first(7) (--align {align})"
    assert run("attend", "t.npz", "--mask", "first(3)")[1].count("mask    first(3)\n") == 1


def test_one_head_is_one_head(run: Run) -> None:
    out = run("attend", "t.npz", "--explain")[1]
    assert "· 1 head × 5 × 7 ·" in out


def test_progress_without_colour_is_told_in_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def shown() -> str:
        with draw.progress("attending", 4, show=True) as advance:
            advance()
        return capsys.readouterr().err

    assert "━" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "1 of 4" in shown()


@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["demo"], ["demo", "--json"], ["attend", "t.npz"]])
def test_an_engine_that_is_none_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:  # G1
    monkeypatch.setenv("QKV_ENGINE", "bogus")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("qkv: QKV_ENGINE must be 'native' or 'numpy', but is 'bogus'; ")
    assert err.count("\n") == 1


def test_the_engine_that_is_named_is_the_one_that_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_ENGINE", "numpy")
    assert run("demo", "--no-page")[1].startswith(f"qkv {qkv.__version__} · NumPy engine (1 thread) · ")
    assert json.loads(run("demo", "--json", "--no-page")[1])["info"]["engine"] == "numpy"
    assert "engine    NumPy engine (1 thread)\n" in run("info")[1]
    assert json.loads(run("attend", "t.npz", "--json")[1])["plan"]["engine"] == "numpy"
