"""`qkv lens`, as a person and as a program use it (G2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("glassllm")

from qkv import lens, models
from qkv.cli.main import main

load = models.load  # before a test replaces it

Run = Callable[..., tuple[int, str, str]]

TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank."


@pytest.fixture(scope="module")
def glass() -> Any:
    return models.load("glassllm")


@pytest.fixture
def run(capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, glass: Any) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load", lambda name, **_: glass)
    Path("text.txt").write_text(TEXT, encoding="utf-8")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["lens", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_the_terminal_shows_the_text_and_the_heaviest_keys(run: Run, glass: Any) -> None:
    code, out, err = run("--text", "text.txt", "--layer", "2", "--head", "1", "--query", "5")
    assert (code, err) == (0, "")
    ids = glass.encode(TEXT)
    seen = lens.capture(glass.module, ids)
    row = lens.row(seen.layer(2), 1, 5)
    assert "Layer 2, head 1, query 5" in out
    best = row.top(1)[0]
    line = next(line for line in out.splitlines() if line.split()[:1] == [str(best)])
    assert f"{row.weight[best]:.3g}" in line
    assert max(map(len, out.splitlines())) <= 80


def test_the_terminal_shows_how_much_every_head_gives_the_first_key(run: Run, glass: Any) -> None:
    """The layer × head map, in tenths."""
    code, out, err = run(
        "--text", "text.txt", "--layer", "1", "--head", "0", "--query", "9", "--quantity", "contribution"
    )
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    eager = load("glassllm", attention="eager")
    weights = eager.module(**eager.encode(TEXT), output_attentions=True).attentions
    key = lens.row(lens.capture(glass.module, glass.encode(TEXT)).layer(1), 0, 9).top(1, "norm")[0]
    assert f"gives key {key} " in " ".join(out.split())
    drawn = [line.split()[-1] for line in out.splitlines() if line.startswith("  head ")]
    for head, cells in enumerate(drawn):
        for layer, cell in enumerate(cells):
            tenths = 10 * float(weights[layer][0, head, 9, key])
            assert abs({"·": 0, "X": 10}.get(cell, int(cell) if cell.isdigit() else -1) - tenths) <= 0.5 + 1e-3
    assert [len(cells) for cells in drawn] == [4] * 4


@pytest.mark.parametrize("quantity", ["weight", "contribution", "share", "influence"])
def test_every_quantity_is_drawn(run: Run, quantity: str) -> None:
    code, out, err = run("--text", "text.txt", "--quantity", quantity, "--out", "head.svg", "--out", "view.html")
    assert (code, err) == (0, "")
    assert "written: head.svg" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--serve", "--json"), "--serve shows a page, and --json prints one row; leave one of them out"),
        (("--port", "80"), "--port 80 is where --serve serves, and that is missing; write --serve too"),
        (("--serve", "--port", "70000"), "--port must be within 0…65535, but 70000 came; 0 takes a free one"),
    ],
)
def test_what_cannot_be_served(run: Run, words: tuple[str, ...], said: str) -> None:
    assert run(*words) == (2, "", f"qkv: {said}\n")


def test_files_hold_the_same_numbers(run: Run) -> None:
    names = ["view.html", "head.svg", "numbers.json"]
    words = [word for name in names for word in ("--out", name)]
    code, out, err = run("--text", "text.txt", "--quantity", "influence", *words)
    assert (code, err) == (0, "")
    assert all(f"written: {name}" in out for name in names)
    held = json.loads(Path("numbers.json").read_text(encoding="utf-8"))
    assert held["command"].startswith("qkv lens --model glassllm --text text.txt")
    assert held["quantity"] == "influence"
    code, out, _ = run("--text", "text.txt", "--json")
    assert code == 0
    assert json.loads(out)["weight"] == held["rows"][0]["weight"]
    first = Path("view.html").read_bytes()
    run("--text", "text.txt", "--quantity", "influence", *words)
    assert Path("view.html").read_bytes() == first


def test_the_text_comes_along_or_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    assert run("--tokens", "12", "--json")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    code, out, _ = run("--text", "-", "--json")
    assert code == 0
    held = json.loads(out)
    assert np.isclose(sum(held["weight"]), 1, rtol=64 * np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "view.pdf"), "--out view.pdf must end in .html, .svg, .png, .json"),
        (("--out", "no/view.html"), "--out no/view.html: there is no folder no"),
        (("--text", "nowhere.txt"), "nowhere.txt cannot be read (No such file or directory)"),
        (("--text", "text.txt", "--tokens", "0"), "--tokens must be within 1…"),
        (("--text", "text.txt", "--layer", "9"), "layer must be one of those captured, 0 (model.layers.0.self_attn)"),
        (("--text", "text.txt", "--head", "9"), "head must be one of the heads kept"),
        (("--text", "text.txt", "--query", "first"), "--query must be last or the number of a token, but 'first' came"),
        (("--text", "text.txt", "--query", "99"), "--query must be within -"),
    ],
)
def test_errors_are_one_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"qkv: {said}"), err
    assert err.count("\n") == 1


def test_a_text_that_was_cut_is_said_to_be(run: Run, glass: Any) -> None:
    """G1: the terminal, the page, the drawing and the numbers say how much of the text was read; a whole text is only counted."""
    many = glass.encode(TEXT)["input_ids"].shape[1]
    files = [f"view{end}" for end in (".html", ".svg", ".json")]
    code, out, err = run("--text", "text.txt", "--tokens", "6", *(word for name in files for word in ("--out", name)))
    assert (code, err) == (0, "")
    said = f"the first 6 of {many}"
    assert f"attention, 6 of {many} tokens" in out
    for name in files:
        assert said in Path(name).read_text(encoding="utf-8")
    assert f"attention, {many} tokens" in run("--text", "text.txt")[1]


@pytest.mark.parametrize("sink", ["99", "6"])
def test_a_sink_that_is_no_key_is_refused(run: Run, sink: str) -> None:
    code, out, err = run("--text", "text.txt", "--tokens", "6", "--sink", sink)
    assert (code, out) == (2, "")
    assert f"sink must be the number of a key, within 0…5, but {sink} came" in err
