"""A counterexample that was lifted into a narrow domain is still told in few numbers."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.audit.call import Call
from qkv.audit.describe import MOST, describe
from qkv.audit.domain import Domain, lift

ROWS = np.array([[0.25, 2, -3], [3, 4, 7]], np.float32)[None, None]


def test_repeated_rows_and_filled_up_columns_are_told_by_their_number():
    narrow = Domain(accepts=frozenset({"cross", "scale"}), widths=(64, 128), query_multiple=128, key_multiple=128)
    lines, count = describe(lift(Call(query=ROWS, key=ROWS * 2, value=ROWS + 9), narrow, "float32"))
    assert "L=128 S=128 D=64 E=64" in lines[0]
    told = "\n".join(lines)
    assert "numbers, made by the line" not in told
    assert (
        "query 1×1×128×64: [[0.25 2 -3 0], [3 4 7 0]] repeated along axis 2 [1 127] times, along axis 3 [1 1 1 61] times"
        in told
    )
    assert (
        "key 1×1×128×64: [[0.5 4 -6 0], [6 8 14 0]] repeated along axis 2 64 times each, along axis 3 [1 1 1 61] times"
        in told
    )
    assert count <= MOST


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_gives_the_array_again(seed):
    """The words hold the small array and how often its parts stand along each axis: repeated so, it is the array."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 3, rng.integers(1, 4, 3)).astype(np.float64)
    small[rng.random(small.shape) < 0.2] = np.nan
    whole = small
    for axis in range(3):
        whole = whole.repeat(rng.integers(1, 9, whole.shape[axis]), axis)
    from qkv.audit.describe import _alike

    for axis in range(3):
        starts, times = _alike(whole, axis)
        again = whole.take(starts, axis).repeat(times, axis)
        np.testing.assert_array_equal(again, whole)
        folded = whole.take(starts, axis)
        assert folded.shape[axis] == 1 or len(_alike(folded, axis)[0]) == folded.shape[axis]
