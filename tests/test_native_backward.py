"""The native engine's backward pass as its caller in C++ sees it: wrong arrays are refused and never read past their end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from native_calls import build, operands
from qkv.engines import native

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def _native(native_engine: str) -> None:
    pass


def given(**sizes: Any) -> tuple[native.Call, dict[str, Any]]:
    """A call and the arrays of its backward pass, all of them right."""
    query, key, value = operands(np.random.default_rng(0), **sizes)
    call = build(query, key, value, causal=True, bias=np.zeros((*query.shape[:-1], key.shape[-2]), np.float32))
    wide = (*query.shape[:-1], value.shape[-1])
    rows = (query.shape[0], *query.shape[1:3])
    return call, {
        "output": np.ones(wide, np.float32),
        "doutput": np.ones(wide, np.float32),
        "lse": np.zeros(rows, np.float32),
        "dlse": np.zeros(rows, np.float32),
        "dquery": np.zeros(query.shape, np.float32),
        "dkey": np.zeros(key.shape, np.float32),
        "dvalue": np.zeros(value.shape, np.float32),
        "dbias": np.zeros((*query.shape[:-1], key.shape[-2]), np.float32),
        "delta": np.zeros(rows, np.float32),
    }


def test_right_arrays_are_taken():
    call, arrays = given()
    native.backward(call, **arrays)
    assert arrays["dvalue"].any()
    assert arrays["dquery"].any()


@pytest.mark.parametrize("name", ["output", "doutput", "lse", "dlse", "dquery", "dkey", "dvalue", "dbias", "delta"])
def test_wrong_arrays_are_refused(name):
    """Short by one along each axis, of another type, and, where it is written to, read-only."""
    call, arrays = given()
    right = arrays[name]
    wrong = [right[:, :, :-1], right[:, :-1] if name not in ("output", "doutput", "dquery") else right[..., :-1]]
    wrong += [right.astype(np.float64), right[0]]
    for array in wrong:
        with pytest.raises(ValueError, match=r" must be "):
            native.backward(call, **{**arrays, name: array})
    if name in ("dquery", "dkey", "dvalue", "dbias", "delta"):
        locked = right.copy()
        locked.flags.writeable = False
        with pytest.raises((ValueError, BufferError), match=r"not writable|read-only"):
            native.backward(call, **{**arrays, name: locked})


def test_rows_that_share_a_bias_are_not_shared_out():
    """Two threads would add to one place: refused where it is asked for, and never planned."""
    call, arrays = given()
    one = np.zeros((2, 2, 1, 7), np.float32)
    strides = (*one.strides[:2], 0, one.strides[3])
    place = np.lib.stride_tricks.as_strided(one, arrays["dbias"].shape, strides, writeable=True)
    with pytest.raises(ValueError, match="spread must be off where rows share"):
        native.backward(replace(call, spread=True), **{**arrays, "dbias": place})


@pytest.mark.parametrize("level", native.levels() if native.available() else [])
def test_every_level_computes_the_same_gradient(level):
    """Within what two orders of 7 keys or 10 rows can differ by: every level against the portable one."""
    call, arrays = given(L=10, S=7)
    found = {}
    for name in ("portable", level):
        mine = {key: array.copy() for key, array in arrays.items()}
        native.backward(call, **mine, level_name=name)
        found[name] = mine
    # Chains of so many roundings at most, two ways, whose terms are of the size of the largest.
    count = 2 * (call.query.shape[-1] + call.value.shape[-1] + call.query.shape[-2] + call.key.shape[-2])
    unit = np.finfo(np.float32).eps
    for key in ("dquery", "dkey", "dvalue", "dbias", "delta"):
        a, b = found["portable"][key], found[level][key]
        assert abs(a - b).max() <= count * unit * max(abs(a).max(), 1)
