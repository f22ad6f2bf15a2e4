"""`qkv audit --model` at the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import audit_model
from qkv.cli.main import main
from support.libraries import library


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the tests of leaks; and the model that is audited has to be there."""
    library("transformers")
    library("glassllm")
    torch = library("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bare() -> str:
    """The name of an attention function whose mask function is not registered."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("house_bare", sdpa_attention_forward)
    return "house_bare"


def test_a_clean_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D1, E1: a line a kind, in 80 columns, and exit code 0."""
    (tmp_path / "text.txt").write_text("Alice was beginning to get very tired of sitting")
    code = main(["audit", "--model", "glassllm", "--text", str(tmp_path / "text.txt"), "--tokens", "8"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.count("none found") == 6
    assert out.startswith("glassllm: LlamaForCausalLM, sdpa attention, 8 tokens, ")
    assert max(map(len, out.splitlines())) <= 80


def test_a_model_that_leaks(capsys: pytest.CaptureFixture[str]) -> None:
    """D1, E1: what leaks, at which token and from which, and in which module; exit code 1."""
    words = ["audit", "--model", "glassllm", "--attention", bare(), "--tokens", "10", "--ask", "future, packing,cache"]
    assert main(words) == 1
    out = capsys.readouterr().out
    future, packing, cache = (
        next(x for x in out.splitlines() if x.startswith(f"  {k}  ")) for k in ("future", "packing", "cache")
    )
    assert "none found" in future
    assert "leaks" in packing
    assert "5 '" in packing
    assert "how it is read" in cache
    assert "the text is read 5 at once, then 5 at once, DynamicCache" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From stdin, as a machine reads it."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("Alice was beginning to get very tired"))
    code = main(
        ["audit", "--model", "glassllm", "--attention", bare(), "--text", "-", "--ask", "left padding", "--json"]
    )
    told = json.loads(capsys.readouterr().out)
    assert code == 1
    assert (told["class"], told["attention"], told["asked"]) == ("LlamaForCausalLM", "house_bare", ["left padding"])
    assert "".join(told["tokens"]) == "Alice was beginning to get very tired"
    assert (told["leaks"][0]["kind"], told["leaks"][0]["layer"]) == ("left padding", 0)


def test_this_engine_in_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """D1: --attention qkv needs nothing else."""
    words = ["--attention", "qkv", "--tokens", "6", "--ask", "left padding,packing"]
    assert main(["audit", "--model", "glassllm", *words]) == 0
    assert "LlamaForCausalLM, qkv attention, 6 tokens" in capsys.readouterr().out


def test_what_is_known_when_it_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the second kind leaves the first."""
    import qkv.audit.model

    real = qkv.audit.model.leaks

    def interrupted(*arguments: Any, ask: list[str], **words: Any) -> Any:
        if ask == ["batch"]:
            raise KeyboardInterrupt
        return real(*arguments, ask=ask, **words)

    monkeypatch.setattr(qkv.audit.model, "leaks", interrupted)
    assert main(["audit", "--model", "glassllm", "--tokens", "4", "--ask", "left padding,batch"]) == 130
    out = capsys.readouterr().out
    assert "left padding  none found" in out
    assert "interrupted: this is what was known so far" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt5"], "there is no model 'gpt5'; known are glassllm"),
        (["--model", "glassllm", "--text", "nowhere.txt"], "nowhere.txt cannot be read (No such file or directory)"),
        (["--model", "glassllm", "--tokens", "1"], "--tokens must be at least 2, but 1 came"),
        (["--model", "glassllm", "--tokens", "129"], "--tokens must be at most 128, which are the positions of this"),
        (["--model", "glassllm", "--ask", "past"], "ask must be among future, left padding"),
        (["--model", "glassllm", "--attention", "quick"], "but 'quick' came"),
        (["--model", "glassllm", "torch-sdpa"], "--model audits a whole model, and no kernel; leave out a kernel"),
        (["--model", "glassllm", "--html", "a.html"], "leave out --html"),
        (["torch-sdpa", "--text", "-"], "--text is for a whole model; name one with --model"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: exit code 2, no traceback."""
    assert main(["audit", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_texts_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: empty, one token, not text."""
    for data, said in ((b" \n", "but it is empty"), (b"a", "two tokens at least"), (b"\xff\xfe", "it is not UTF-8")):
        (tmp_path / "text").write_bytes(data)
        assert main(["audit", "--model", "glassllm", "--text", str(tmp_path / "text")]) == 2
        assert said in capsys.readouterr().err


def test_a_model_that_fails_is_not_a_fault_of_this_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """G2: the error of an attention function, in one sentence."""
    from transformers import AttentionInterface

    def fails(*arguments: Any, **words: Any) -> Any:
        raise RuntimeError("no kernel\nfor this")

    AttentionInterface.register("house_fails", fails)
    assert main(["audit", "--model", "glassllm", "--attention", "house_fails"]) == 2
    assert "cannot be run on this text (RuntimeError: no kernel for this)" in capsys.readouterr().err


def test_options_are_named_once() -> None:
    """Every option of a model is refused without one."""
    import argparse

    parser = argparse.ArgumentParser()
    audit_model.add_options(parser)
    found = {action.dest for action in parser._actions} - {"help", "model"}
    assert found == set(audit_model.OPTIONS)
