"""G2: on the command line the way out of an error is an option, a file, or nothing that only Python has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.cli import ways
from qkv.cli.main import main
from qkv.errors import FileError, NonFiniteError
from qkv.files import read_tensors

SHAPES: dict[str, tuple[int, ...]] = {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8), "value": (2, 2, 7, 3)}


def arrays(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (SHAPES | shapes).items()}


def with_nan() -> dict[str, Any]:
    made = arrays()
    made["query"][0, 0, 0, 0] = np.nan
    return made


def overflowing() -> dict[str, Any]:
    return {name: np.full_like(x, 1e30) for name, x in arrays().items()}


#: (tensors, words, how the sentence has to end or a part of it, words to add that have to help)
CASES: dict[str, tuple[Callable[[], dict[str, Any]], str, str, str | None]] = {
    "empty": (
        arrays,
        "--mask keys([0,7])",
        "; allow it a key, or pass --empty zero for a zero output\n",
        "--empty zero",
    ),
    "nonfinite": (
        with_nan,
        "",
        "; clean it, forbid the pair with --mask, or pass --nonfinite propagate for NaN rows\n",
        "--nonfinite propagate",
    ),
    "layout": (
        lambda: arrays(query=(2, 5, 4, 8), key=(2, 7, 2, 8), value=(2, 7, 2, 3)),
        "",
        "; if your arrays are (B, L, H, D), pass --layout blhd, otherwise repeat or drop heads\n",
        "--layout blhd",
    ),
    "no layout": (
        arrays,
        "--layout bshd",
        "; if your arrays are (B, H, L, D), leave --layout out, otherwise repeat or drop heads\n",
        "--layout bhld",
    ),
    "align end": (
        arrays,
        "--mask causal",
        "so say which: --align end, --align start, or --align N, the position of the first query (drawn small):\n"
        "   --align end  x x x . . .            --align start  x . . . . .\n"
        "                x x x x . .                           x x . . . .\n",
        "--align end",
    ),
    "align start": (arrays, "--mask causal", "--align start", "--align start"),
    "align N": (arrays, "--mask causal", "--align N, the position of the first query", "--align 2"),
    "scale overflow": (overflowing, "", "lower --scale, or compute in float64\n", "--scale 1e-30"),
    "scale": (arrays, "--scale nan", "; leave --scale out for 1/sqrt(D)\n", None),
    "softcap": (arrays, "--softcap 0", "; leave --softcap out for none\n", None),
    "integers": (lambda: {n: x.astype(int) for n, x in arrays().items()}, "", "; save query as float32\n", None),
    "two dtypes": (
        lambda: arrays() | {"key": arrays()["key"].astype(float)},
        "",
        "; save key with the dtype of query\n",
        None,
    ),
    "batch axes": (
        lambda: arrays(key=(1, 2, 7, 8), value=(1, 2, 7, 3)),
        "",
        ", so save key with the batch axes of query\n",
        None,
    ),
    "one vector": (
        lambda: arrays(query=(8,)),
        "",
        "; save a single vector with an axis of length 1 before it\n",
        None,
    ),
    "complex": (
        lambda: arrays() | {"extra": np.ones(3, complex)},
        "",
        "; name all three with --query, --key and --value to leave it unread, "
        "or save it as one of those (bfloat16: in .safetensors)\n",
        "--query query --key key --value value",
    ),
}

#: What only Python understands.
PYTHON = re.compile(r"\b\w+=|\bnp\.|\.astype\b|\[None\]")


@pytest.mark.parametrize("name", CASES)
def test_the_way_out_is_one_on_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words, way, helps = CASES[name]
    monkeypatch.chdir(tmp_path)
    np.savez("t.npz", **make())
    command = ["attend", "t.npz", *words.split(" ")] if words else ["attend", "t.npz"]
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert way in said.err
    assert PYTHON.search(said.err) is None
    if helps is not None:
        assert main([*command, *helps.split(" ")]) == 0, capsys.readouterr().err


def test_every_line_of_the_table_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that matches nothing the library says is one that the library has left behind."""
    monkeypatch.chdir(tmp_path)
    unused = {pattern.pattern for pattern, _ in ways._PATTERNS}
    whole = ways.in_options

    def watched(sentence: str) -> str:
        for pattern, option in ways._PATTERNS:
            if pattern.search(sentence):
                unused.discard(pattern.pattern)
            sentence = pattern.sub(option, sentence)
        return sentence

    monkeypatch.setattr(ways, "in_options", watched)
    for make, words, _, _ in CASES.values():
        np.savez("t.npz", **make())
        main(["attend", "t.npz", *words.split(" ")] if words else ["attend", "t.npz"])
    capsys.readouterr()
    with pytest.raises(FileError) as told:
        read_tensors("t.npz", max_bytes=1)
    assert whole(str(told.value)).endswith(
        "; name all three with --query, --key and --value to read no others, "
        "or read it in Python with a larger max_bytes"
    )
    watched(str(told.value))
    assert unused == set()


def test_an_error_keeps_its_kind_and_its_attributes() -> None:
    with pytest.raises(NonFiniteError, match=r"^pass --nonfinite propagate$") as told, ways.with_options():
        raise NonFiniteError("pass nonfinite='propagate'", "key", (1, 2))
    assert (told.value.argument, told.value.index) == ("key", (1, 2))


def test_what_was_typed_is_shown_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mask's own text stands over its caret, and is no sentence of the library's."""
    monkeypatch.chdir(tmp_path)
    np.savez("t.npz", **arrays())
    assert main(["attend", "t.npz", "--mask", 'causal(align="end") causal']) == 2
    assert '\n  causal(align="end") causal\n' in capsys.readouterr().err
