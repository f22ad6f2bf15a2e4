"""The command line where stdin, stdout and stderr are not what a program expects (G2: one sentence, or silence)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import streams
from qkv.cli.main import main

TRACE = ["trace", "--query", "1", "--key", "1", "--value", "1"]
posix = pytest.mark.skipif(os.name == "nt", reason="the shell's redirections")


def shell(redirection: str, *words: str, given: str = "") -> tuple[int, str, str]:
    """Run a command under a redirection of the shell: (exit code, stdout, stderr)."""
    line = f'exec "$0" -m qkv "$@" {redirection}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, *words],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@posix
@pytest.mark.parametrize("words", [TRACE, [*TRACE, "--json"], ["info"], ["--version"], []], ids=" ".join)
def test_a_closed_stdout_is_no_fault(words: list[str]) -> None:
    assert shell(">&-", *words) == (0, "", "")


@posix
def test_a_closed_stdin_and_a_closed_stderr_are_no_faults() -> None:
    code, out, err = shell("<&-", "trace", "-")
    assert (code, out) == (2, "")
    assert err.startswith("qkv: stdin must be JSON")
    assert err.count("\n") == 1
    assert shell("2>&-", "trace", "--query", "x", "--key", "1", "--value", "1") == (2, "", "")
    assert shell(">&- 2>&- <&-", "trace", "-") == (2, "", "")


@posix
def test_what_is_printed_to_a_closed_stdout_lands_in_no_file(tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    assert shell(">&-", *TRACE, "--svg", str(picture)) == (0, "", "")
    assert picture.read_text(encoding="utf-8").rstrip().endswith("</svg>")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [TRACE, [*TRACE, "--json"], ["info"]], ids=" ".join)
def test_a_full_disk_is_one_sentence_with_a_way_out(words: list[str]) -> None:
    assert shell(">/dev/full", *words) == (
        2,
        "",
        "qkv: the output cannot be written (no space left on device); send it to another place, or make room there\n",
    )


@pytest.mark.parametrize("digits", [1001, 4301, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_too_long_to_be_read_is_one_sentence(
    digits: int, sign: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f'{{"query": [{sign}{"9" * digits}], "keys": [[1]], "values": [[1]]}}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = main(["trace", "-"])
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (
        2,
        "",
        f"qkv: stdin must have integers of at most 1,000 digits to be traced, but has one of {digits:,}; "
        "write a smaller number\n",
    )


@pytest.mark.parametrize("digits", [400, 1000])
def test_an_integer_that_no_float_holds_is_the_traces_own_sentence(
    digits: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"query": [int("9" * digits)], "keys": [[1]], "values": [[1]]})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["trace", "-"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("qkv: query[0] must be a finite number")
    assert said.count("\n") == 1


def test_streams_that_are_open_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    before = (sys.stdin, sys.stdout, sys.stderr)
    streams.open_closed()
    assert (sys.stdin, sys.stdout, sys.stderr) == before
    monkeypatch.setattr(sys, "stdout", None)
    streams.open_closed()
    assert sys.stdout.name == os.devnull
    sys.stdout.close()
