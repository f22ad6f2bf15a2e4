"""The command line, as a person and as a program use it (G2: every error is one sentence, and is read here)."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.cli import attend as attend_command
from qkv.cli import draw
from qkv.cli.main import main
from qkv.files import read_tensors, write_tensors
from qkv.real import load_head
from qkv.reference import attend as definition

Run = Callable[..., tuple[int, str, str]]

EXAMPLE = ["trace", "--query", "1.4142135623730951,0", "--key", "1,0", "0,1", "--value", "10,0", "0,20"]
PROBLEM = {"query": [2**0.5, 0], "keys": [[1, 0], [0, 1]], "values": [[10, 0], [0, 20]]}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in this process and in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def process(*words: object, python: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own; `python` is a line to run before it."""
    start = f"import sys; {python}; from qkv.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", start] if python else [sys.executable, "-m", "qkv"]
    options = {"capture_output": True, "text": True, "timeout": 120, "encoding": "utf-8", **options}
    return subprocess.run([*command, *map(str, words)], check=False, **options)


def refused(run: Run, sentence: str, *words: object) -> None:
    """The command fails with exactly one line, which is the sentence, and with exit code 2."""
    code, out, err = run(*words)
    assert (code, out, err) == (2, "", f"qkv: {sentence}\n")


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    """2 sequences, 4 query heads on 2 key heads, 5 queries, 7 keys, and one tensor that nobody asks for."""
    rng = np.random.default_rng(0)
    path = tmp_path / "tensors.npz"
    shapes = {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8), "value": (2, 2, 7, 3), "extra": (2,)}
    np.savez(path, **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    return path


def right_answer(path: Path, **options: Any) -> Any:
    arrays = {name: tensor.array.astype(np.float64) for name, tensor in read_tensors(path).items()}
    return definition(arrays["query"], arrays["key"], arrays["value"], **options)


def bound(path: Path) -> float:
    """A few roundings of float32 on numbers as large as the largest value; F2 has tests of its own."""
    arrays = read_tensors(path)
    keys, width = arrays["key"].array.shape[-2:]
    return float(np.finfo(np.float32).eps * (keys + width) * np.abs(arrays["value"].array).max())


# The command itself ---------------------------------------------------------------------------------------------------


def test_version_and_help_and_nothing(run: Run) -> None:
    assert run("--version") == (0, f"qkv {qkv.__version__}\n", "")
    code, out, _ = run()
    assert code == 0
    assert out == run("--help")[1]
    for command in ("demo", "trace", "attend", "info"):
        assert command in out


@pytest.mark.parametrize("command", [(), ("demo",), ("trace",), ("attend",), ("info",)])
def test_help_fits_80_columns(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80


def test_wrong_words_are_one_sentence(run: Run) -> None:
    code, out, err = run("atend", "x.npz")
    assert (code, out) == (2, "")
    assert err.startswith("qkv: argument command: invalid choice: 'atend'")
    assert err.endswith("; see qkv --help\n")
    assert err.count("\n") == 1
    refused(run, "unrecognized arguments: --shout; see qkv --help", "info", "--shout")
    refused(run, "the following arguments are required: tensors; see qkv attend --help", "attend")
    refused(run, "argument --scale: invalid float value: 'x'; see qkv attend --help", "attend", "t.npz", "--scale", "x")


def test_a_fault_of_the_program_is_one_sentence_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(sys.modules["qkv.trace"], "trace", broken)
    code, out, err = run(*EXAMPLE)
    assert (code, out) == (1, "")
    assert err == (
        "qkv: this is a fault of qkv, please report it (RuntimeError: two lines); QKV_TRACEBACK=1 shows where\n"
    )
    monkeypatch.setenv("QKV_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run(*EXAMPLE)


def test_too_little_memory_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sys.modules["qkv.trace"], "trace", greedy)
    refused(run, "there is not enough memory for this call; pass fewer heads or rows, or a smaller file", *EXAMPLE)


def test_interrupted_in_the_middle(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["qkv.trace"], "trace", slow)
    assert run(*EXAMPLE) == (130, "", "")


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_while_waiting_for_stdin() -> None:
    start = "import sys, qkv; from qkv.cli.main import main; print('ready', flush=True); sys.exit(main())"
    waiting = subprocess.Popen(
        [sys.executable, "-c", start, "trace", "-", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"ready\n"
        # Nothing says that a process has begun to wait.
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=30)
    finally:
        waiting.kill()
    assert (waiting.returncode, out, err) == (130, b"", b"")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize("words", [EXAMPLE, [*EXAMPLE, "--json"]])
def test_a_reader_that_went_away_is_no_traceback(words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        gone = process(*words, capture_output=False, stdout=write_end, stderr=subprocess.PIPE)
    finally:
        os.close(write_end)
    assert (gone.returncode, gone.stderr) == (141, "")


def test_a_console_without_unicode_gets_question_marks() -> None:
    plain = process(*EXAMPLE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "0.731" in plain.stdout
    assert plain.stdout.isascii()


# Without rich ---------------------------------------------------------------------------------------------------------

WITHOUT_RICH = "sys.modules['rich'] = None"


@pytest.mark.parametrize("words", [EXAMPLE, ["info"], ["demo"], ["attend", "x.npz"]])
def test_without_rich_every_command_says_so(words: list[str], tmp_path: Path) -> None:
    done = process(*words, python=WITHOUT_RICH, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "qkv: drawing on the console needs the package rich, which is not installed; "
        'write pip install ".[cli]" in a clone of the repository, or pass --json for output that a machine reads\n'
    )


def test_nothing_optional_is_imported_before_it_is_used() -> None:
    look = "import sys, qkv.cli.main; print([m for m in ('rich', 'safetensors', 'ml_dtypes', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_rich_json_works(tmp_path: Path, tensors: Path) -> None:
    for words in (EXAMPLE, ["info"], ["demo", "--no-page"], ["attend", tensors]):
        done = process(*words, "--json", python=WITHOUT_RICH, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        json.loads(done.stdout)
    done = process("--version", python=WITHOUT_RICH)
    assert (done.returncode, done.stdout) == (0, f"qkv {qkv.__version__}\n")


# trace ----------------------------------------------------------------------------------------------------------------


def test_trace_of_the_worked_example(run: Run) -> None:
    code, out, err = run(*EXAMPLE)
    assert (code, err) == (0, "")
    assert out == str(qkv.trace(**PROBLEM)) + "\n"
    for number in ("0.731", "0.269", "7.311", "5.379"):
        assert number in out
    _, out, _ = run(*EXAMPLE, "--allowed", "1,0", "--json")
    masked = json.loads(out)
    assert (masked["weights"], masked["context"]) == ([1, 0], [10, 0])


@pytest.mark.parametrize(
    "words",
    [
        ["--query", "-1,0", "--key", "-1,2", "-.5,1", "--value", "-3", "4", "--allowed", "1,1"],
        ["--query=-1,0", "--key=-1,2", "--key", "-.5,1", "--value", "-3", "--value", "4", "--allowed", "true true"],
        ["--query", "-1e0 0", "--key", "-1, 2", "-5e-1 ,1", "--value", "-3.", "4", "--allowed", "Yes,t"],
    ],
)
def test_trace_takes_negative_numbers_spaces_and_repeated_options(run: Run, words: list[str]) -> None:
    _, out, _ = run("trace", *words, "--json")
    record = json.loads(out)
    assert record["query"] == [-1, 0]
    assert record["keys"] == [[-1, 2], [-0.5, 1]]
    assert record["values"] == [[-3], [4]]


def test_trace_of_json_from_a_file_and_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM), encoding="utf-8")
    expected = run(*EXAMPLE)
    assert run("trace", "problem.json") == expected
    other_names = {"query": PROBLEM["query"], "key": PROBLEM["keys"], "value": PROBLEM["values"], "mask": None}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(other_names).encode())))
    assert run("trace", "-") == expected
    from_pipe = process("trace", "-", input=json.dumps(PROBLEM))
    assert (from_pipe.returncode, from_pipe.stdout, from_pipe.stderr) == expected


def test_trace_saves_its_picture(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*EXAMPLE, "--svg", "steps.svg")
    assert code == 0
    assert out.endswith("picture: steps.svg\n")
    assert (tmp_path / "steps.svg").read_text(encoding="utf-8") == qkv.trace(**PROBLEM).to_svg()
    _, out, err = run(*EXAMPLE, "--svg", "again.svg", "--json")
    assert json.loads(out) == qkv.trace(**PROBLEM).to_dict()
    assert err == ""


WRITE_TRACE = "for example qkv trace --query 1,0 --key 1,0 0,1 --value 10,0 0,20"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], f"trace needs --query and --key and --value, or a JSON file; write {WRITE_TRACE}"),
        (["--query", "1"], f"trace needs --key and --value, or a JSON file; write {WRITE_TRACE}"),
        (
            ["p.json", "--query", "1", "--allowed", "1"],
            "trace takes numbers either from p.json or from --query, --allowed, but both came; leave one out",
        ),
        (
            ["--query", "1,x", "--key", "1", "--value", "1"],
            "--query must be numbers separated by commas, but 'x' came in '1,x'; write it like --query 1,0",
        ),
        (
            ["--query", "1", "--key", "1_0", "--value", "1"],
            "--key must be numbers separated by commas, but '1_0' came in '1_0'; write it like --key 1,0",
        ),
        (
            ["--query", "1", "--key", "1", "--value", "1,,2"],
            "--value must be numbers separated by commas, but '' came in '1,,2'; write it like --value 1,0",
        ),
        (
            ["--query", "1", "--key", "1", "--value", "1", "--allowed", "2"],
            "--allowed must be 1 (may read) or 0 for each key, but '2' came; write it like --allowed 1,0",
        ),
        (
            ["--query", "1,0", "--key", "1", "--value", "2"],
            "keys[0] must be as wide as the query, 2 numbers, got 1; give the query and every key the same width",
        ),
        (
            ["--query", "inf", "--key", "1", "--value", "2"],
            "query[0] must be a finite number within ±1.8e308, got inf; replace it or leave its vector out",
        ),
        (["none.json"], "none.json: no such file or directory; give the path of a file that can be used"),
        (["."], ".: is a directory; give the path of a file that can be used"),
        (
            ["--query", "1", "--key", "1", "--value", "2", "--svg", "no/where.svg"],
            "no/where.svg: no such file or directory; give the path of a file that can be used",
        ),
    ],
)
def test_trace_refuses_in_one_sentence(run: Run, words: list[str], sentence: str) -> None:
    refused(run, sentence, "trace", *words)


LIKE = '; write it like {"query": [1, 0], "keys": [[1, 0]], "values": [[10, 0]]}'
DEEP = 50_000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "p.json must be JSON, but line 1 column 1 is not (expecting value)" + LIKE),
        (b'{"query": [1,}', None),
        (b"\xfe\xff", "p.json must be JSON in UTF-8, but byte 0 is not UTF-8; save it as UTF-8"),
        (b"[1]", "p.json must be a JSON object with query, keys, values and allowed, but is a list" + LIKE),
        (b"7", "p.json must be a JSON object with query, keys, values and allowed, but is a number" + LIKE),
        (b"null", "p.json must be a JSON object with query, keys, values and allowed, but is null" + LIKE),
        (b'{"query": [1]}', "p.json must have the fields query, keys and values, but has no 'keys'; add it"),
        (
            b'{"query": [1], "keys": [[1]], "values": [[1]], "scale": 2}',
            "p.json must have the fields query, keys, values and allowed, but has the field 'scale'; take it out",
        ),
        (
            b'{"query": [1], "keys": [[1]], "key": [[1]]}',
            "p.json must have the fields query, keys, values and allowed, but has twice, as 'key'; take it out",
        ),
        (b'{"query": [1], "query": [2]}', "JSON must have every field once, but 'query' came twice; take one out"),
        (
            b'{"query": [NaN]}',
            "JSON has no number NaN, and a trace takes finite numbers only; take it out",
        ),
        (
            b'{"query": [true], "keys": [[1]], "values": [[1]]}',
            "query[0] must be an int or a float, got bool; write 1.0 for True and 0.0 for False",
        ),
        (
            b'{"query": [1], "keys": [[1]], "values": [[1]], "allowed": [1]}',
            "allowed[0] must be True or False, got int; convert it with bool() if true means that the key may be read",
        ),
        (
            b'{"query": [1], "keys": [[1], [1]], "values": [[1]]}',
            "values must hold one vector per key, 2, got 1; give every key exactly one value",
        ),
        (b"[" * DEEP + b"]" * DEEP, "p.json must be lists of numbers, but is nested too deeply to be read; flatten it"),
        (
            b'{"query": [1' + b"0" * 400 + b'], "keys": [[1]], "values": [[1]]}',
            "query[0] must be a finite number within ±1.8e308, got an int of 1329 bits; "
            "replace it or leave its vector out",
        ),
        (
            b" " * (16 * 2**20 + 1),
            "p.json must have at most 16,777,216 bytes to be traced, but has more; for large arrays use qkv attend",
        ),
    ],
    ids=lambda part: part[:24] if isinstance(part, bytes) else "",
)
def test_trace_reads_only_honest_json(run: Run, tmp_path: Path, text: bytes, sentence: str | None) -> None:
    (tmp_path / "p.json").write_bytes(text)
    if sentence is not None:
        refused(run, sentence, "trace", "p.json")
        return
    code, out, err = run("trace", "p.json")
    assert (code, out) == (2, "")
    assert err.startswith("qkv: p.json must be JSON, but line 1 column ")
    assert err.count("\n") == 1


def test_a_name_cannot_drive_the_terminal(run: Run) -> None:
    code, _, err = run("trace", "\x1b[31mred.json")
    assert code == 2
    assert "\x1b" not in err
    assert err.startswith("qkv: \\x1b[31mred.json: no such file")


# info -----------------------------------------------------------------------------------------------------------------


def test_info_says_what_runs_here(run: Run) -> None:
    code, out, err = run("info")
    assert (code, err) == (0, "")
    assert np.__version__ in out
    assert f"{qkv.info().engine} engine" in out.lower()
    assert max(len(line) for line in out.splitlines()) <= 80
    _, out, _ = run("info", "--json")
    assert json.loads(out) == json.loads(json.dumps(qkv.info().to_dict()))


# attend ---------------------------------------------------------------------------------------------------------------


def test_attend_writes_the_output_and_says_so(run: Run, tensors: Path) -> None:
    code, out, err = run("attend", "tensors.npz")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    for said in (
        "2×4×5×8",
        "2×2×7×8",
        "2×2×7×3",
        "float32",
        "every query reads every key",
        "tensors.output.npz",
        "extra",
    ):
        assert said in out
    written = read_tensors("tensors.output.npz")
    answer = right_answer(tensors)
    assert list(written) == ["output", "lse"]
    assert np.abs(written["output"].array - answer.output).max() <= bound(tensors)
    assert written["lse"].array.shape == (2, 4, 5)


def test_attend_honours_every_option(run: Run, tensors: Path) -> None:
    code, out, _ = run(
        *("attend", tensors, "--mask", "causal & window(2, 0)", "--align", "end", "--scale", "-0.5", "--softcap", "3"),
        *("--out", "o.safetensors", "--json"),
    )
    assert code == 0
    record = json.loads(out)
    assert (record["mask"], record["align"]) == ("causal & window(2, 0)", "end")
    assert record["written"] == {"output": [2, 4, 5, 3], "lse": [2, 4, 5]}
    assert record["unused"] == ["extra"]
    position = np.arange(5)[:, None] + 2
    allowed = (np.arange(7) <= position) & (np.arange(7) >= position - 2)
    answer = right_answer(tensors, allowed=allowed, scale=-0.5, softcap=3)
    output = read_tensors("o.safetensors")["output"].array
    assert np.abs(output - answer.output).max() <= bound(tensors)
    assert record["max_abs"] == np.abs(output).max()


def test_attend_takes_length_before_heads(run: Run, tensors: Path, tmp_path: Path) -> None:
    arrays = {name: t.array for name, t in read_tensors(tensors).items() if name != "extra"}
    write_tensors("swapped.npz", {name[0]: np.ascontiguousarray(a.swapaxes(1, 2)) for name, a in arrays.items()})
    code, _, _ = run("attend", "swapped.npz", "--layout", "blhd", "--out", "o.npy")
    assert code == 0
    output = np.load("o.npy").swapaxes(1, 2)
    assert np.abs(output - right_answer(tensors).output).max() <= bound(tensors)


def test_long_work_goes_head_by_head_with_the_same_result(
    run: Run, tensors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("attend", tensors, "--mask", "causal(align='end') & keys([7, 5])")
    run(*words, "--out", "whole.npz")
    monkeypatch.setattr(attend_command, "_LONG", 0)
    assert run(*words, "--out", "parts.npz")[0] == 0
    whole, parts = read_tensors("whole.npz"), read_tensors("parts.npz")
    for name, unit in (("output", bound(tensors)), ("lse", bound(tensors))):
        assert np.abs(whole[name].array - parts[name].array).max() <= unit


def test_long_work_names_the_callers_own_heads(run: Run, tensors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {name: t.array for name, t in read_tensors(tensors).items()}
    arrays["query"][1, 3, 2, 1] = np.nan
    write_tensors("nan.npz", arrays)
    short = run("attend", "nan.npz")
    monkeypatch.setattr(attend_command, "_LONG", 0)
    assert run("attend", "nan.npz") == short
    assert short[0] == 2
    assert "(1, 3, 2, 1)" in short[2] or "[1, 3, 2, 1]" in short[2]
    code, out, _ = run("attend", "nan.npz", "--nonfinite", "propagate")
    assert code == 0
    assert "rows that are NaN: 1" in out


def test_attend_explains_and_computes_nothing(run: Run, tensors: Path, tmp_path: Path) -> None:
    words = ("attend", tensors, "--mask", "causal & window(2, 0) | first(1)", "--align", "0", "--explain")
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    assert isinstance(json.loads(run(*words, "--json")[1]), dict)
    assert [path.name for path in tmp_path.iterdir()] == ["tensors.npz"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none.npz"], None),
        (["words.txt"], None),
        (["--query", "nope"], "tensors.npz has no tensor 'nope' for --query; it has 'query', 'key', 'value', 'extra'"),
        (
            ["--align", "end"],
            "--align says where the queries of a mask stand, but there is no --mask; add one or leave --align out",
        ),
        (
            ["--mask", "first(2)", "--align", "end"],
            "--align is for rules about positions, but the mask first(2) has none; leave --align out",
        ),
        (
            ["--mask", "causal", "--align", "middle"],
            "--align must be end, start or the position of the first query, a whole number, but 'middle' came; "
            "write --align end",
        ),
        (["--out", "o.bin"], "--out must end in .npz, .safetensors or .npy, but 'o.bin' came; write --out o.npz"),
        (["--out", "tensors.npz"], "--out must not be the file that is read, but 'tensors.npz' is; give another name"),
        (["--out", "no/o.npz"], "--out must be in a folder that exists, but 'no' is none; make it first"),
        (
            ["--mask", "causal and first(1)"],
            "mask has `and` where an operator is expected; masks combine with & (both), | (either) and ~ (not)\n"
            "  causal and first(1)\n"
            "         ^",
        ),
    ],
)
def test_attend_refuses_in_one_sentence(run: Run, tensors: Path, words: list[str], sentence: str | None) -> None:
    if sentence is None:
        code, out, err = run("attend", *words)
        assert (code, out) == (2, "")
        assert words[0] in err
        assert err.count("\n") == 1
    else:
        refused(run, sentence, "attend", "tensors.npz", *words)


def test_attend_passes_the_contracts_errors_on(run: Run, tensors: Path) -> None:
    code, out, err = run("attend", "tensors.npz", "--mask", "causal")
    assert (code, out) == (2, "")
    assert err.startswith("qkv: causal() with 5 queries and 7 keys can mean two things")  # B6
    for words in (["--scale", "nan"], ["--softcap", "0"], ["--mask", "keys([1])"], ["--mask", "keys([0, 1])"]):
        code, out, err = run("attend", "tensors.npz", *words)
        assert (code, out) == (2, "")
        assert err.startswith("qkv: ")
        assert "Traceback" not in err


def test_attend_asks_for_names_it_cannot_guess(run: Run, tensors: Path) -> None:
    arrays = {name: t.array for name, t in read_tensors(tensors).items()}
    write_tensors("a.npz", {"layer.q": arrays["query"], "k": arrays["key"], "v": arrays["value"]})
    refused(
        run,
        "a.npz has neither 'query' nor 'q'; say which tensor is the query with --query NAME: "
        "it has 'layer.q', 'k', 'v'",
        *("attend", "a.npz"),
    )
    assert run("attend", "a.npz", "--query", "layer.q")[0] == 0
    write_tensors("b.npz", {"q": arrays["query"], **arrays})
    refused(
        run,
        "b.npz has both 'query' and 'q'; say which tensor is the query with --query NAME: "
        "it has 'q', 'query', 'key', 'value', 'extra'",
        *("attend", "b.npz"),
    )


def test_attend_of_bfloat16(run: Run, tensors: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    pytest.importorskip("safetensors")
    arrays = {name: t.array.astype(ml_dtypes.bfloat16) for name, t in read_tensors(tensors).items()}
    write_tensors("half.safetensors", arrays)
    assert run("attend", "half.safetensors")[0] == 0
    assert read_tensors("half.output.safetensors")["output"].dtype == "bfloat16"
    refused(
        run,
        "--out must end in .safetensors for bfloat16, which .npz has no name for, but 'o.npz' came; "
        "write --out o.safetensors",
        *("attend", "half.safetensors", "--out", "o.npz"),
    )


def test_names_in_a_file_cannot_drive_the_terminal(run: Run, tensors: Path) -> None:
    arrays = {name: t.array for name, t in read_tensors(tensors).items()}
    write_tensors("evil.npz", {**arrays, "\x1b[2Jcleared [bold]": arrays["extra"]})
    code, out, _ = run("attend", "evil.npz")
    assert code == 0
    assert "\x1b" not in out
    assert "\\x1b[2Jcleared [bold]" in " ".join(out.split())


# demo -----------------------------------------------------------------------------------------------------------------


def test_demo_shows_computes_and_checks(run: Run, tmp_path: Path) -> None:
    code, out, err = run("demo", "--no-page")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    header = out.splitlines()[0]
    assert header.startswith(f"qkv {qkv.__version__} · ")
    assert "NumPy" in header
    for number in ("0.731", "0.269", "7.311", "5.379", "10.000"):
        assert number in out
    for words in ("SmolLM2", "against the definition: ", "against the model's own output: ", "is a sink", "causal()"):
        assert words in out
    assert "demo/head.svg" in out
    assert (tmp_path / "demo" / "head.svg").read_text(encoding="utf-8").startswith("<svg")


def test_demo_numbers_are_computed(run: Run) -> None:
    code, out, _ = run("demo", "--json", "--no-page", "--out", "elsewhere")
    assert code == 0
    record = json.loads(out)
    head = load_head()
    query, key, value = (x.astype(np.float64) for x in (head.query, head.key, head.value))
    causal = np.tri(len(head.tokens), dtype=bool)
    answer, leaky = definition(query, key, value, allowed=causal), definition(query, key, value)
    row = answer.weights[head.default_head, head.default_query]
    precision = float(np.finfo(np.float32).eps) * len(head.tokens)
    keys = record["head"]["keys"]
    assert [k["key"] for k in keys] == np.argsort(-row, kind="stable")[: len(keys)].tolist()
    assert [k["weight"] for k in keys] == pytest.approx([row[k["key"]] for k in keys], rel=precision)
    output = answer.output[head.default_head, head.default_query]
    for k in keys:
        without = causal.copy()
        without[head.default_query, k["key"]] = False
        removed = definition(query, key, value, allowed=without).output[head.default_head, head.default_query]
        assert k["influence"] == pytest.approx(
            np.linalg.norm(output - removed) / np.linalg.norm(output), rel=precision * 8
        )
        part = row[k["key"]] * value[0, k["key"]]
        assert k["share"] == pytest.approx(part @ output / (output @ output), rel=precision * 8, abs=precision)
    assert 0 <= record["check"]["definition"] <= record["check"]["largest"] * precision
    assert 0 <= record["check"]["model"] <= record["check"]["largest"] * precision
    future = leaky.weights[head.default_head, head.default_query][head.default_query + 1 :]
    assert record["leak"]["mass"] == pytest.approx(future.sum(), rel=precision)
    assert record["leak"]["top"][0]["key"] == head.default_query + 1 + int(future.argmax())
    assert [round(x, 3) for x in record["example"]["context"]] == [7.311, 5.379]
    assert record["example_masked"]["weights"] == [1, 0]
    assert Path(record["picture"]) == Path("elsewhere/head.svg")
    assert record["page"] is None


def test_demo_cannot_write(run: Run, tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("in the way", encoding="utf-8")
    refused(run, "demo: file exists; give the path of a file that can be used", "demo")


# Terminals ------------------------------------------------------------------------------------------------------------


def on_terminal(*words: str, **environment: str) -> str:
    """What a terminal of 80 columns is sent."""
    pty = pytest.importorskip("pty")
    termios = pytest.importorskip("termios")
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, 80)) if hasattr(termios, "tcsetwinsize") else None
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    running = subprocess.Popen(
        [sys.executable, "-m", "qkv", *words],
        stdout=terminal,
        stderr=terminal,
        stdin=subprocess.DEVNULL,
        env={**env, "TERM": "xterm-256color", **environment},
    )
    os.close(terminal)
    sent = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # Linux says that the last writer is gone
            break
        if not piece:
            break
        sent += piece
    os.close(controller)
    assert running.wait(timeout=60) == 0
    return sent.decode()


def test_colour_on_a_terminal_and_none_with_no_color(tmp_path: Path) -> None:
    words = ("demo", "--no-page", "--out", str(tmp_path))
    assert "\x1b[" in on_terminal(*words)
    assert "\x1b" not in on_terminal(*words, NO_COLOR="1")


def test_a_pipe_gets_no_escapes_and_80_columns(tmp_path: Path) -> None:
    piped = process("demo", "--no-page", "--out", tmp_path / "d", env={**os.environ, "COLUMNS": "200"})
    assert piped.returncode == 0
    assert "\x1b" not in piped.stdout
    assert max(len(line) for line in piped.stdout.splitlines() if str(tmp_path) not in line) <= 80


def test_words_of_a_drawing() -> None:
    assert draw.printable("a\x1bb\nc\u202ed\x9b") == "a\\x1bb\nc\\u202ed\\x9b"
    assert [draw.number(x) for x in (0.5, 12345.678, float("nan"))] == ["0.5", "1.235e+04", "nan"]
