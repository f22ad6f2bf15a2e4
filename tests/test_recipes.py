"""The short way through a call that came before: the long way's bits and the long way's errors, or nothing (F3, G1).

Every call here is made three times: the long way, then so that it is remembered, then again. All three must agree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import qkv
from qkv import alibi, attend, attention, causal, first, keys, prefix, recipes, segments, where, window
from qkv.algebra import And, Or
from qkv.alibi import Alibi
from qkv.rules import Causal, KeyMask, KeyRange, Segments, Window
from support.arrays import bits, cast
from support.libraries import library
from support.problems import Problem, problems
from support.tiny import zeros
from support.twice import agree, long_way, outcome

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_engine")]


@pytest.fixture(autouse=True)
def _nothing_remembered():
    recipes.forget()
    yield
    recipes.forget()


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


@given(problem=problems())
def test_f3_any_call_twice_is_the_long_way_twice(problem: Problem):
    for arguments in ({}, {"empty": "zero"}, {"nonfinite": "propagate"}, {"empty": "zero", "nonfinite": "propagate"}):
        agree(lambda a=arguments: attend(problem.query, problem.key, problem.value, **problem.arguments, **a))


@given(problem=problems())
def test_f3_so_is_any_call_that_is_asked_afterwards(problem: Problem):
    for arguments in ({}, {"empty": "zero", "nonfinite": "propagate"}):
        agree(lambda a=arguments: attention(problem.query, problem.key, problem.value, **problem.arguments, **a))


def shortened(**arguments: Any) -> bool:
    """Whether a second such call takes the short way."""
    x = random(2, 3, 4, 8)
    attend(x, x, x, **arguments)
    return (
        recipes.known(
            x,
            x,
            x,
            *(arguments.get(name) for name in ("mask", "bias", "scale", "softcap", "sink")),
            *(arguments.get(name, "raise") for name in ("empty", "nonfinite")),
            arguments.get("layout", "bhld"),
        )[0]
        is not None
    )


#: By value: each is another mask object every time.
SHORT: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "causal": lambda: {"mask": causal()},
    "window": lambda: {"mask": causal() & window(2, 0)},
    "not": lambda: {"mask": ~window(0, 0)},
    "or": lambda: {"mask": first(1) | prefix(2)},
    "lengths": lambda: {"mask": keys(np.array([2, 4]))},
    "left padding": lambda: {"mask": causal() & keys(np.array([1, 2]), 4), "empty": "zero"},
    "one run": lambda: {"mask": keys(np.array([[True, True, False, False], [True] * 4]))},
    "segments": lambda: {"mask": segments(np.array([0, 0, 1, 1])) & causal()},
    "offsets": lambda: {"mask": causal(align=np.array([0, 1]))},
    "alibi": lambda: {"bias": alibi([0.5, 0.25, 0.125])},
    "scale": lambda: {"scale": 0.5, "softcap": 3.0},
    "bias": lambda: {"bias": random(2, 1, 4, 4)},
    "bias and mask": lambda: {"bias": random(3, 1, 4), "mask": causal(), "sink": zeros(3)},
    "sink": lambda: {"sink": np.zeros(3)},
    "an array": lambda: {"mask": np.tri(4, dtype=bool)},
    "layout": lambda: {"layout": "blhd"},
}


@pytest.mark.parametrize("name", SHORT)
def test_what_is_remembered(name):
    if name == "layout":
        x = random(2, 3, 4, 8)
        agree(lambda: attend(x, x, x, layout="blhd"))
        assert len(recipes._recipes) == 1
        return
    assert shortened(**SHORT[name]())


LONG: dict[str, Callable[[], dict[str, Any]]] = {
    "allow": lambda: {"mask": qkv.allow(np.ones((4, 4), bool))},
    "a rule": lambda: {"mask": where(lambda n, h, p, j: j <= p)},
    "in a term": lambda: {"mask": causal() | qkv.allow(np.ones((4, 4), bool))},
    "a bias that is torch's": lambda: {"bias": library("torch").zeros(4, 4)},
    "a sink in a list": lambda: {"sink": [0.0, 0.0, 0.0]},
    "a sink in halves": lambda: {"sink": np.zeros(3, np.float16)},
    "long": lambda: {"mask": segments(np.zeros(2000, int)) & causal()},
}


@pytest.mark.parametrize("name", LONG)
def test_what_is_not_remembered(name):
    arguments = LONG[name]()
    x = random(3, 2000 if name == "long" else 4, 8)
    attend(x, x, x, **arguments)
    assert not recipes._recipes


#: Pairs of calls that look alike and are not: the second must never get what the first left behind.
x4 = np.random.default_rng(4).standard_normal((1, 4, 2)).astype(np.float32)
LOOKALIKES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "1 and True as scale": (lambda: attend(x4, x4, x4, scale=1.0), lambda: attend(x4, x4, x4, scale=True)),
    "a string as scale": (lambda: attend(x4, x4, x4, scale=1.0), lambda: attend(x4, x4, x4, scale="1.0")),
    "an array as softcap": (
        lambda: attend(x4, x4, x4, softcap=2.0),
        lambda: attend(x4, x4, x4, softcap=np.array([2.0])),
    ),
    "causal without brackets": (lambda: attend(x4, x4, x4, mask=causal()), lambda: attend(x4, x4, x4, mask=causal)),
    "other words": (lambda: attend(x4, x4, x4), lambda: attend(x4, x4, x4, empty="Raise")),
    "a list": (lambda: attend(x4, x4, x4), lambda: attend(x4.tolist(), x4, x4)),
    "another keyword": (lambda: attend(x4, x4, x4), lambda: attend(x4, x4, x4, is_causal=True)),
    "byte order": (lambda: attend(x4, x4, x4), lambda: attend(*[x4.astype(x4.dtype.newbyteorder())] * 3)),
    "a matrix": (
        lambda: attend(x4[0], x4[0], x4[0]),
        lambda: attend(x4[0].view(type("Other", (np.ndarray,), {})), x4[0], x4[0]),
    ),
    "mixed types": (lambda: attend(x4, x4, x4), lambda: attend(x4, x4.astype(np.float64), x4)),
    "no value": (lambda: attend(x4, x4, x4), lambda: attend(x4, x4)),
    "a window further": (
        lambda: attend(x4, x4, x4, mask=window(1, 0)),
        lambda: attend(x4, x4, x4, mask=window(0, 1)),
    ),
    "a window wider": (
        lambda: attend(x4, x4, x4, mask=window(1, 0)),
        lambda: attend(x4, x4, x4, mask=window(2, 0)),
    ),
    "another start": (lambda: attend(x4, x4, x4, mask=keys(0, 4)), lambda: attend(x4, x4, x4, mask=keys(3, 4))),
    "a key fewer": (lambda: attend(x4, x4, x4, mask=keys(4)), lambda: attend(x4, x4, x4, mask=keys(3))),
    "lengths and a start": (lambda: attend(x4, x4, x4, mask=keys(3)), lambda: attend(x4, x4, x4, mask=keys(3, 4))),
    "and, or": (
        lambda: attend(x4, x4, x4, mask=first(1) & causal()),
        lambda: attend(x4, x4, x4, mask=first(1) | causal()),
    ),
    "booleans of another length": (
        lambda: attend(x4, x4, x4, mask=keys(np.array([True, True, False, False]))),
        lambda: attend(x4, x4, x4, mask=keys(np.array([True, True, False]))),
    ),
    "lengths per sequence": (
        lambda: attend(x4[None], x4[None], x4[None], mask=keys(np.array([2]))),
        lambda: attend(x4[None], x4[None], x4[None], mask=keys(np.array([[2]]))),
    ),
    "start, end": (
        lambda: attend(x4[:, :2], x4, x4, mask=causal(align="start")),
        lambda: attend(x4[:, :2], x4, x4, mask=causal(align="end")),
    ),
    "not aligned": (
        lambda: attend(x4[:, :2], x4, x4, mask=causal(align="start")),
        lambda: attend(x4[:, :2], x4, x4, mask=causal()),
    ),
    "ids": (
        lambda: attend(x4, x4, x4, mask=segments(np.array([0, 0, 1, 1]))),
        lambda: attend(x4, x4, x4, mask=segments(np.array([0, 1, 1, 1]))),
    ),
    "slopes": (
        lambda: attend(x4, x4, x4, bias=alibi([1.0])),
        lambda: attend(x4, x4, x4, bias=alibi([2.0])),
    ),
    "alibi as mask": (
        lambda: attend(x4, x4, x4, bias=alibi([1.0])),
        lambda: attend(x4, x4, x4, mask=alibi([1.0])),
    ),
    "empty rows": (
        lambda: attend(x4, x4, x4, mask=keys(0), empty="zero"),
        lambda: attend(x4, x4, x4, mask=keys(0)),
    ),
    "NaN rows": (
        lambda: attend(x4 * np.float32(np.nan), x4, x4, nonfinite="propagate"),
        lambda: attend(x4 * np.float32(np.nan), x4, x4),
    ),
    "a bias along the other axis": (
        lambda: attend(x4, x4, x4, bias=x4[0, :, :1]),
        lambda: attend(x4, x4, x4, bias=x4[0, :, 0][None]),
    ),
    "a bias of doubles": (
        lambda: attend(x4, x4, x4, bias=zeros(4, 4)),
        lambda: attend(x4, x4, x4, bias=np.zeros((4, 4))),
    ),
    "a bias that is no number": (
        lambda: attend(x4, x4, x4, bias=zeros(4, 4)),
        lambda: attend(x4, x4, x4, bias=zeros(4, 4) * np.float32(np.nan)),
    ),
    "a bias and a mask": (
        lambda: attend(x4, x4, x4, bias=np.eye(4, dtype=np.float32)),
        lambda: attend(x4, x4, x4, mask=np.eye(4, dtype=bool)),
    ),
    "a mask of integers": (
        lambda: attend(x4, x4, x4, mask=np.eye(4, dtype=bool)),
        lambda: attend(x4, x4, x4, mask=np.eye(4, dtype=np.uint8)),
    ),
    "no sink": (lambda: attend(x4, x4, x4), lambda: attend(x4, x4, x4, sink=np.zeros(1))),
    "a sink beyond": (
        lambda: attend(x4, x4, x4, sink=np.zeros(1)),
        lambda: attend(x4, x4, x4, sink=np.array([1e39])),
    ),
    "a sink that is no number": (
        lambda: attend(x4, x4, x4, sink=np.zeros(1)),
        lambda: attend(x4, x4, x4, sink=np.array([np.nan])),
    ),
    "sinks for two heads": (
        lambda: attend(x4, x4, x4, sink=np.zeros(1)),
        lambda: attend(x4, x4, x4, sink=np.zeros(2)),
    ),
    "integers for a sink": (
        lambda: attend(x4, x4, x4, sink=np.zeros(1)),
        lambda: attend(x4, x4, x4, sink=np.ones(1, int)),
    ),
    "width of the values": (lambda: attend(x4, x4, x4), lambda: attend(x4, x4, x4[..., :1])),
    "which axes": (lambda: attend(x4[0], x4[0], x4[0]), lambda: attend(x4, x4, x4)),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_g1_no_call_gets_another_ones_answer(name):
    one, other = LOOKALIKES[name]
    wanted = long_way(one), long_way(other)
    assert wanted[0] != wanted[1] or name == "lengths per sequence"
    for _ in range(2):
        assert (outcome(one), outcome(other)) == wanted
    recipes.forget()
    for _ in range(2):
        assert (outcome(other), outcome(one)) == wanted[::-1]


#: What a token could forget, and the pair of calls that shows it.
FORGETFUL = {
    "alignment": (Causal, lambda self: (Causal,), "start, end"),
    "left side": (Window, lambda self: (Window, self.right), "a window wider"),
    "start": (KeyRange, lambda self: self.stop.tobytes(), "another start"),
    "size of the booleans": (KeyMask, lambda self: KeyRange.token(self), "booleans of another length"),
    "shape": (KeyRange, lambda self: (self.start.tobytes(), self.stop.tobytes()), "lengths per sequence"),
    "ids": (Segments, lambda self: (Segments, self.query_ids.shape), "ids"),
    "sign": (Or, lambda self: And.token(self), "and, or"),
    "numbers": (Alibi, lambda self: (self.slopes.shape,), "slopes"),
}


@pytest.mark.parametrize("fault", FORGETFUL)
def test_a_forgetful_token_is_caught(fault, monkeypatch):
    kind, token, name = FORGETFUL[fault]
    monkeypatch.setattr(kind, "token", token)
    with pytest.raises(AssertionError):
        test_g1_no_call_gets_another_ones_answer(name)


def test_numbers_are_read_anew_every_time():
    """Arrays that change between two calls, and arrays a mask was made of."""
    q, k, v = random(2, 4, 8), random(2, 4, 8, seed=1), random(2, 4, 8, seed=2)
    seen, lengths, slopes, place = np.ones((4, 4), bool), np.array(4), np.array([0.5, 1.0]), np.array(0)
    bias, sink = zeros(4, 4), zeros(2)

    def call() -> list[Any]:
        return [
            attend(q, k, v, mask=seen),
            attend(q, k, v, mask=qkv.allow(seen) & causal()),
            attend(q, k, v, mask=keys(lengths)),
            attend(q, k, v, bias=alibi(slopes)),
            attend(q, k, v, mask=causal(align=place)),
            attend(q, k, v, bias=bias),
            attend(q, k, v, sink=sink),
        ]

    def right() -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipes, "known", lambda *_: (None, None))
            return call()

    for change in (
        lambda: None,
        lambda: seen.__setitem__((slice(None), 2), False),
        lambda: lengths.__setitem__((), 2),
        lambda: slopes.__setitem__(0, -3.0),
        lambda: place.__setitem__((), 2),
        lambda: bias.__setitem__((1, 0), 3.0),
        lambda: sink.__setitem__(1, 2.0),
        lambda: k.__setitem__((0, 1), 9.0),
        lambda: v.__setitem__((1, 3), -9.0),
        lambda: q.__imul__(np.float32(0.5)),
    ):
        change()
        for _ in range(2):
            for found, wanted in zip(call(), right(), strict=True):
                np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("fault", ["query", "key", "value"])
def test_d2_a_remembered_call_still_sees_what_is_wrong(fault):
    arrays = {"query": random(2, 4, 8), "key": random(2, 4, 8), "value": random(2, 4, 8)}
    attend(**arrays)
    attend(**arrays)
    for number in (np.nan, np.inf, -np.inf):
        arrays[fault][1, 2, 3] = number
        agree(lambda: attend(**arrays))
    arrays[fault][1, 2, 3] = 0
    big = {name: np.full((1, 2, 4), 3e38, np.float32) for name in arrays}
    small = {name: np.zeros((1, 2, 4), np.float32) for name in arrays}
    attend(**small)
    kind, _ = agree(lambda: attend(**big))
    assert kind is qkv.ScoreOverflowError


def test_another_engine_is_another_way(monkeypatch):
    x = random(2, 4, 8)
    attend(x, x, x)
    monkeypatch.setenv("QKV_ENGINE", "numpy")
    assert recipes.known(x, x, x, *[None] * 5, "raise", "raise", "bhld")[0] is None
    monkeypatch.setenv("QKV_ENGINE", "none")
    with pytest.raises(qkv.ArgumentError, match="QKV_ENGINE"):
        attend(x, x, x)


def test_few_calls_are_remembered_and_the_oldest_goes_first():
    for width in range(1, recipes._MOST + 20):
        x = np.zeros((1, 1, width), np.float32)
        attend(x, x, x)
    assert len(recipes._recipes) == recipes._MOST
    widths = {at[1][-1] for at in recipes._recipes}
    assert min(widths) == 20


def test_many_threads_of_python_remember_at_once():
    arrays = [random(1, 2, width) for width in range(1, 2 * recipes._MOST, 7)]
    right = [long_way(lambda x=x: attend(x, x, x)) for x in arrays]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(3):
            wrong.extend(i for i, x in enumerate(arrays) if outcome(lambda x=x: attend(x, x, x)) != right[i])
            recipes.forget()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
