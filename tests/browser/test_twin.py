"""The page's JavaScript attention is held to Python's: numbers, names, formulas, sentences, and how numbers are written."""

from __future__ import annotations

import json
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.trace import _given, _number, trace

HERE = Path(__file__).parent
U = 2.0**-53
EXP = 2 * 2 * U  # two libraries' exponentials, each within one unit in the last place (2u) of the true one


def examples() -> list[dict[str, Any]]:
    dice = random.Random(20)
    drawn = []
    for _ in range(60):
        width, count, value_width = dice.randint(1, 5), dice.randint(1, 6), dice.randint(1, 4)
        size = dice.choice([1.0, 10.0, 1e-3, 300.0])
        mask = [dice.random() < 0.7 for _ in range(count)]
        mask[dice.randrange(count)] = True

        def vector(n: int, size: float = size) -> list[float]:
            return [dice.uniform(-size, size) for _ in range(n)]

        drawn.append(
            {
                "query": vector(width),
                "keys": [vector(width) for _ in range(count)],
                "values": [vector(value_width) for _ in range(count)],
                "mask": mask,
            }
        )
    return [
        {
            "query": [2**0.5, 0.0],
            "keys": [[1.0, 0.0], [0.0, 1.0]],
            "values": [[10.0, 0.0], [0.0, 20.0]],
            "mask": [True] * 2,
        },
        {"query": [1.0], "keys": [[1000.0], [999.0]], "values": [[1.0], [2.0]], "mask": [True, True]},
        {
            "query": [1e200],
            "keys": [[-1e200], [1.0], [1e200]],
            "values": [[1.0], [2.0], [3.0]],
            "mask": [True, True, False],
        },
        {"query": [1.0], "keys": [[5.0]], "values": [[1.7e308]], "mask": [True]},
        *drawn,
    ]


def sums() -> list[list[float]]:
    dice = random.Random(21)
    lists = [
        [dice.uniform(-1, 1) * 10.0 ** dice.randint(-20, 20) for _ in range(dice.randint(0, 12))] for _ in range(300)
    ]
    return [[1e16, 1.0, -1e16], [1.0, 2.0**-53, 2.0**-106], [1.0, 2.0**-53, -(2.0**-106)], [0.1] * 10, *lists]


NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    10.0,
    0.0625,
    0.1875,
    0.0005,
    0.001,
    0.00099999,
    9998.9996,
    9999.0,
    1e5,
    -1e5,
    123456.0,
]
NUMBERS += [1e-300, 1e300, 2.5, 0.5, 1 / 3, -2 / 3, 1e22, 5e-324, 99999.0, 0.3125, 7.0625, math.inf, -math.inf]


def heads() -> list[dict[str, Any]]:
    dice = random.Random(22)
    made = []
    for count in range(2, 8):
        mask = [True, True, *(dice.random() < 0.6 for _ in range(count - 2))]
        scores = [dice.uniform(-3, 3) for _ in range(count)]
        made.append(
            {"scores": scores, "values": [[dice.gauss(0, 1) for _ in range(3)] for _ in range(count)], "allowed": mask}
        )
    return made


LENGTHS = [(1, 0, 0), (5, 1, 0), (6, 2, 1), (4, 9, 9)]


@pytest.fixture(scope="module")
def twin(node: str) -> dict[str, Any]:
    def ready(x: Any) -> Any:
        if isinstance(x, float) and math.isinf(x):
            return "Infinity" if x > 0 else "-Infinity"
        if isinstance(x, dict):
            return {key: ready(item) for key, item in x.items()}
        return [ready(item) for item in x] if isinstance(x, list) else x

    given = {"examples": examples(), "sums": sums(), "numbers": NUMBERS, "heads": heads(), "lengths": LENGTHS}
    run = subprocess.run(
        [node, str(HERE / "twin.mjs")], input=json.dumps(ready(given)), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def floats(numbers: Any) -> Any:
    """Words back to infinities, and JavaScript's whole numbers to floats."""
    if isinstance(numbers, list):
        return [floats(item) for item in numbers]
    return numbers if numbers is None else float(numbers)


def close(ours: Any, theirs: Any, relative: float, size: float = 0.0) -> None:
    """Equal but for a relative error, and one in units of `size`; and None where None stands."""
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            close(mine, other, relative, size)
    elif theirs is None or (isinstance(theirs, float) and not math.isfinite(theirs)):
        assert ours == theirs
    else:
        assert abs(ours - theirs) <= relative * max(abs(theirs), size) + 2.0**-1074


def test_words_of_the_trace(twin: dict[str, Any]) -> None:
    """B1, C1: the page's steps are those of qkv.trace by name, formula, code and sentence."""
    for example, steps in zip(examples(), twin["traces"], strict=True):
        python = trace(example["query"], example["keys"], example["values"], example["mask"]).steps()
        for ours, theirs in zip(steps, python, strict=True):
            for word in ("name", "formula", "code", "explanation"):
                assert ours[word] == getattr(theirs, word)


def test_numbers_of_the_trace(twin: dict[str, Any]) -> None:
    """B1, C1, F2: exact up to the exponential; after it within what two libraries' exponentials can differ by."""
    for example, steps in zip(examples(), twin["traces"], strict=True):
        python = trace(example["query"], example["keys"], example["values"], example["mask"])
        largest = max(abs(x) for value in python.values for x in value)
        # A weight has an exponential above and a sum of exponentials below the line, and two roundings of its own.
        weight = 2 * EXP + 4 * U
        allowed = {"exponentials": EXP, "sum": EXP + 2 * U, "weights": weight, "contributions": weight + 2 * U}
        for ours, theirs in zip(steps, python.steps(), strict=True):
            if theirs.name == "context":
                # Weights add up to 1, so an error of each is one of the whole in units of the largest value.
                close(floats(ours["numbers"]), theirs.numbers, weight + 4 * U, largest)
            else:
                close(floats(ours["numbers"]), theirs.numbers, allowed.get(theirs.name, 0.0))


def test_sums_are_rounded_once(twin: dict[str, Any]) -> None:
    """F2: the page's sum is math.fsum bit for bit."""
    assert floats(twin["sums"]) == [math.fsum(numbers) for numbers in sums()]


def test_numbers_are_written_alike(twin: dict[str, Any]) -> None:
    """The page writes a number as qkv.trace does, ties to even included."""
    for x, (number, given) in zip(NUMBERS, twin["written"], strict=True):
        if math.isfinite(x):
            assert (number, given) == (_number(x), _given(x)), x


def test_shares_and_influences(twin: dict[str, Any]) -> None:
    """The figure of weight, contribution and influence says what qkv.attention's questions say."""
    for example, ours in zip(heads(), twin["heads"], strict=True):
        count = len(example["scores"])
        # A query of width 1 that is 1, and keys that are the scores.
        reading = qkv.attention(
            np.ones((1, 1)),
            np.array(example["scores"])[:, None],
            np.array(example["values"]),
            mask=np.array([example["allowed"]]),
            scale=1.0,
        )
        weights = np.asarray(reading.weights([0])).reshape(count)
        share = np.asarray(reading.contributions(0).share).reshape(count)
        influence = np.asarray(reading.influence(0).relative).reshape(count)
        # Sums of a few products on both sides; a share and an influence divide by the output's size.
        size = float(np.abs(np.array(example["values"])).max() / np.linalg.norm(ours["output"]))
        bound = (2 * EXP + 64 * count * U) * max(1.0, size) ** 2 / (1 - float(weights.max())) ** 2
        close(ours["weights"], weights.tolist(), 2 * EXP + 16 * U)
        close(ours["shares"], share.tolist(), bound, 1.0)
        close(ours["influences"], influence.tolist(), bound, 1.0)


def test_masks(twin: dict[str, Any]) -> None:
    """B5 [diagonal] [window-count] [sentinel-sum]: causal reads the diagonal; windows count keys; rows 0 to 2 are empty."""
    for (n, before, after), ours in zip(LENGTHS, twin["masks"], strict=True):
        assert ours["causal"] == [[j <= i for j in range(n)] for i in range(n)]
        assert all(row[i] for i, row in enumerate(ours["causal"]))
        assert ours["window"] == [[i - before <= j <= i + after for j in range(n)] for i in range(n)]
    assert twin["empty"] == 0
