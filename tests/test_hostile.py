"""Hostile calls: whatever comes, it is answered or refused in a sentence (D, G2); nothing else is raised, nothing crashes.

`attend` and its kin get arguments that are right but for a few, which are anything; the extension gets calls whose parts
do not belong together. Soaked in greater number by `make soak`, under sanitizers too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import native_calls as calls
import qkv
from qkv import (
    alibi,
    allow,
    attend,
    attend_packed,
    attention,
    causal,
    explain,
    first,
    keys,
    partial,
    segments,
    where,
    window,
)
from qkv.engines import native
from support.arrays import DTYPES, STRIDES, cast, restride

FUNCTIONS = (attend, attention, explain, partial)

#: Values that are wrong for most arguments, and right for some.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**70, 0.0, -0.0, 1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), 1j),
    *("", "raise", "zero", "propagate", "blhd", "bhsd", "causal", b"x", (), [], [[]], {}, object(), type, len, ...),
    *(
        np.float32(1),
        np.float64("nan"),
        np.int64(-3),
        np.bool_(True),
        np.array(2.0),
        np.array([1.0]),
        np.zeros(0),
        np.zeros((0, 3)),
    ),
    *(
        np.zeros((2, 2), object),
        np.array(["a"]),
        np.array([None]),
        np.zeros(3, "M8[s]"),
        np.zeros((2, 2), ">f4"),
        np.ma.ones((2, 2)),
    ),
    *(
        np.ones((2, 3), bool),
        np.ones((3, 3), np.int8),
        np.full((2, 2), np.nan),
        np.zeros((2, 2), [("a", "f4")]),
        np.ones((1, 1)).view(np.matrix),
    ),
)


def exotic_masks(L: int, S: int, B: int) -> tuple[Any, ...]:
    """Masks of any kind, most of which do not fit."""
    return (
        *(
            causal(),
            causal(align="end"),
            causal(align=-(2**39)),
            window(0, 0),
            window(None, None),
            ~causal(),
            first(2**39),
        ),
        *(
            keys(S),
            keys(S + 1),
            keys(0),
            keys(np.full(max(B, 1), S)),
            keys(np.ones(S, bool)),
            keys(np.zeros((1, S), bool)),
        ),
        *(segments(np.zeros(max(L, 1), int)), segments(np.arange(L + 1), np.arange(S)), allow(np.ones((L, S), bool))),
        *(
            allow(np.zeros((1, 1), bool)),
            allow(np.ones((2, 2, 2, 2, 2, 2), bool)),
            np.ones((S, L), bool),
            np.tri(L, S) > 0,
        ),
        *(
            where(lambda n, h, p, j: j <= p),
            where(lambda n, h, p, j: 1),
            where(lambda n, h, p, j: np.ones((3, 5, 7), bool)),
        ),
        *(causal(align="start") & window(1, 0, align="end"), alibi([1.0]), lambda n, h, p, j: j <= p),
    )


@st.composite
def hostile(draw: Any) -> tuple[Any, dict[str, Any], str]:
    """(function, arguments, what they were made of)."""
    batch = draw(st.sampled_from([(), (), (1,), (2,), (0,), (2, 1)]))
    G, share = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))
    L, S, D, E = (draw(st.sampled_from([0, 1, 2, 3, 17])) for _ in range(4))
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = {"query": (*batch, G * share, L, D), "key": (*batch, G, S, D), "value": (*batch, G, S, E)}
    spoilt = draw(st.sampled_from([0, 0, 1, 2]))
    arguments: dict[str, Any] = {}
    for name, shape in shapes.items():
        numbers = rng.choice(
            [0.0, 1.0, -2.0, 1e-30, 3e38, -3e38, np.inf, np.nan],
            shape,
            p=[0.3, 0.3, 0.2, 0.1, 0.025, 0.025, 0.025, 0.025],
        )
        arguments[name] = restride(cast(numbers, dtype), draw(st.sampled_from(STRIDES)))
    pairs = (G * share, L, S)
    extra = {
        "mask": exotic_masks(L, S, batch[0] if batch else 0),
        "bias": (
            np.zeros((L, S), np.float32),
            np.full(pairs, -np.inf, np.float32),
            np.full((1, 1), np.nan, np.float32),
            alibi(np.ones(G * share)),
            alibi([1.0, 2.0], align=3),
        ),
        "scale": (0.0, 1e38, -1e38, 1e-45, 1e300, 2),
        "softcap": (1e-45, 1e-30, 30, 1e300, -1.0),
        "sink": (
            np.zeros(G * share),
            np.full(G * share, 1e30),
            [0.0] * (G * share),
            np.zeros(3),
            np.full(G * share, np.inf),
        ),
        "empty": ("raise", "zero"),
        "nonfinite": ("raise", "propagate"),
        "layout": ("bhld", "blhd", "bshd", "bhsd"),
    }
    for name in draw(st.lists(st.sampled_from(sorted(extra)), max_size=4, unique=True)):
        arguments[name] = draw(st.sampled_from(extra[name]))
    for _ in range(spoilt):
        name = draw(st.sampled_from([*shapes, *extra, "attn_mask", "maks"]))
        arguments[name] = draw(st.sampled_from(ODD))
    function = draw(st.sampled_from(FUNCTIONS))
    return (
        function,
        arguments,
        f"{function.__name__}: {shapes} {dtype} " + str({n: a for n, a in arguments.items() if n not in shapes}),
    )


def refused_in_a_sentence(error: qkv.QkvError) -> None:
    """G2: what it is about, what was expected, and the way out."""
    first_line = str(error).partition("\n")[0]
    assert 20 < len(first_line) < 1000, first_line
    assert "Traceback" not in first_line
    assert "object at 0x" not in first_line, first_line


@given(case=hostile())
def test_g2_whatever_comes_is_answered_or_refused(engine: str, case: tuple[Any, dict[str, Any], str]) -> None:
    function, arguments, _ = case
    given = {
        name: array.copy()
        for name, array in arguments.items()
        if isinstance(array, np.ndarray) and array.dtype != object
    }
    try:
        with np.errstate(all="ignore"):
            found = function(**{"value": None, **arguments})
    except qkv.QkvError as error:
        refused_in_a_sentence(error)
    else:
        output = (
            found.output
            if function is attention
            else found.finish(empty="zero", nonfinite="propagate").output
            if function is partial
            else found
        )
        if function is not explain:
            assert isinstance(output, np.ndarray)
            assert output.flags.writeable
            if arguments.get("nonfinite") != "propagate" and function is not partial:
                assert np.isfinite(output.astype(np.float64)).all()
    for name, before in given.items():
        assert before.tobytes() == arguments[name].tobytes(), f"{name} was written to"


@st.composite
def hostile_packs(draw: Any) -> dict[str, Any]:
    total, keys_in_all = draw(st.sampled_from([0, 1, 5, 40])), draw(st.sampled_from([0, 1, 5, 40]))

    def cuts(end: int) -> Any:
        kind = draw(st.sampled_from(["right", "right", "wrong", "odd"]))
        if kind == "odd":
            return draw(st.sampled_from(ODD))
        inner = sorted(draw(st.lists(st.integers(0, end), max_size=5)))
        if kind == "wrong":
            inner = draw(st.lists(st.integers(-3, end + 3), max_size=5))
        found: Any = [0, *inner, end]
        return draw(
            st.sampled_from(
                [
                    found,
                    np.array(found),
                    np.array(found, np.int32),
                    tuple(found),
                    np.abs(np.array(found)).astype(np.uint64),
                ]
            )
        )

    q, k = np.ones((total, 2, 4), np.float32), np.ones((keys_in_all, 1, 4), np.float32)
    arguments = {
        "query": q,
        "key": k,
        "value": k,
        "query_offsets": cuts(total),
        "key_offsets": draw(st.sampled_from([None, cuts(keys_in_all)])),
    }
    if draw(st.booleans()):
        arguments["mask"] = draw(st.sampled_from([*exotic_masks(3, 3, 1), *ODD]))
    if draw(st.booleans()):
        arguments["bias"] = draw(st.sampled_from([alibi([1.0, 2.0]), alibi([1.0, 2.0], align="end"), *ODD]))
    return arguments | {"empty": draw(st.sampled_from(["raise", "zero"]))}


@given(arguments=hostile_packs())
def test_g2_packed_or_refused(engine: str, arguments: dict[str, Any]) -> None:
    try:
        out = attend_packed(**arguments)
    except qkv.QkvError as error:
        refused_in_a_sentence(error)
    else:
        assert out.shape == arguments["query"].shape
        assert np.isfinite(out).all()


#: What may stand in each part of a native call, whatever the others are.
PARTS: dict[str, tuple[Any, ...]] = {
    "query": (
        np.zeros((2, 4, 70, 16), np.float32),
        np.zeros((1, 4, 70, 16), np.float32),
        np.zeros((2, 4, 0, 16), np.float32),
    ),
    "key": (
        np.zeros((2, 2, 0, 16), np.float32),
        np.zeros((2, 2, 5, 16), np.float32),
        np.zeros((2, 3, 300, 16), np.float32),
    ),
    "value": (
        np.zeros((2, 2, 0, 16), np.float32),
        np.zeros((2, 2, 5, 3), np.float32),
        np.zeros((2, 2, 300, 1), np.float32),
    ),
    "dtype": DTYPES,
    "scale": (0.0, np.nan, -1e300, 1e38),
    "softcap": (None, 0.0, 1e-300, 1e300, -1.0, np.inf),
    "offset": (np.zeros(2, np.int64), np.full(2, 2**60), np.full(2, -(2**60)), np.zeros(1, np.int64)),
    "lo": (
        np.full((1, 70, 1), -(2**31), np.int32),
        np.full((1, 70, 1), 2**31 - 1, np.int32),
        np.zeros((2, 70, 0), np.int32),
        np.zeros((1, 70, 3), np.int32),
    ),
    "hi": (
        np.full((1, 70, 1), 2**31 - 1, np.int32),
        np.full((1, 70, 1), -5, np.int32),
        np.zeros((2, 70, 0), np.int32),
        np.zeros((1, 70, 3), np.int32),
    ),
    "origin": (
        None,
        np.full((1, 70), -(2**31), np.int32),
        np.full((1, 70), 2**31 - 1, np.int32),
        np.arange(140, dtype=np.int32).reshape(2, 70),
    ),
    "tile_rows": (1, 0, 3, 2**62),
    "block": (1, 0, 3, 64, 2**31 - 1, 2**40),
    "split": (1, 3, 192, 2**31 - 1, 2**40),
    "spread": (True, False),
    "threads": (0, 1, 2, 2**40),
    "slopes": (None, np.full(4, np.inf), np.full(4, np.nan), np.ones(2)),
    "sink": (None, np.full(4, np.inf), np.full(4, -np.inf), np.full(4, np.nan)),
    "bias": (
        None,
        np.full((2, 4, 70, 300), -np.inf, np.float32),
        np.zeros((2, 4, 70, 300)),
        np.broadcast_to(np.float32(np.nan), (2, 4, 70, 300)),
    ),
    "allow": (
        None,
        np.zeros((2, 4, 70, 300), bool),
        np.broadcast_to(np.uint8(255), (2, 4, 70, 300)),
        np.zeros((2, 4, 70, 5), bool),
    ),
    "want": ("output", "state"),
}


@pytest.mark.native
@given(data=st.data())
def test_a_native_call_of_any_parts_is_answered_or_refused(native_engine: str, data: Any) -> None:
    q, k, v = calls.operands(np.random.default_rng(0), (2,), 4, 2, 70, 300, 16, 16)
    call = calls.build(q, k, v, causal=True, offset=230, tile_rows=8, threads=data.draw(st.sampled_from([1, 2])))
    names = data.draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4, unique=True))
    changed = dataclasses.replace(call, **{name: data.draw(st.sampled_from(PARTS[name])) for name in names})
    with contextlib.suppress(ValueError, MemoryError):
        native.run(changed, data.draw(st.sampled_from(native.levels())))
