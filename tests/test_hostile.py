"""Hostile calls: whatever comes, it is answered or refused in a sentence (D, G2); nothing else is raised, nothing crashes.

`attend` and its kin get arguments that are right but for a few, which are anything; the extension gets calls whose parts
do not belong together. `soak/hostile.py` makes more kinds of them, and by the ten thousand: `make soak`, under sanitizers too.
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
from qkv import alibi, attend, attend_packed, attention, explain, partial
from qkv.engines import native
from support.arrays import DTYPES, STRIDES, cast, restride
from support.hostile import ODD, PARTS, arguments_of, exotic_masks, refused_in_a_sentence

FUNCTIONS = (attend, attention, explain, partial)


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
    extra = {
        "mask": exotic_masks(L, S, batch[0] if batch else 0),
        **arguments_of((G * share, L, S)),
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


@pytest.mark.native
@given(data=st.data())
def test_a_native_call_of_any_parts_is_answered_or_refused(native_engine: str, data: Any) -> None:
    q, k, v = calls.operands(np.random.default_rng(0), (2,), 4, 2, 70, 300, 16, 16)
    call = calls.build(q, k, v, causal=True, offset=230, tile_rows=8, threads=data.draw(st.sampled_from([1, 2])))
    names = data.draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4, unique=True))
    changed = dataclasses.replace(call, **{name: data.draw(st.sampled_from(PARTS[name])) for name in names})
    with contextlib.suppress(ValueError, MemoryError):
        native.run(changed, data.draw(st.sampled_from(native.levels())))
