"""C6, C1: the map of a weight matrix is its largest weight in each cell, for any grid."""

from __future__ import annotations

import numpy as np
import pytest

import qkv
from qkv.bounds import bound
from qkv.pooled import edges
from support.checks import within

pytestmark = pytest.mark.usefixtures("engine")


def by_hand(weights: np.ndarray, rows: int, cols: int) -> np.ndarray:
    r, c = edges(weights.shape[-2], rows), edges(weights.shape[-1], cols)
    return np.stack(
        [
            np.stack([weights[..., r[i] : r[i + 1], c[j] : c[j + 1]].max(axis=(-2, -1)) for j in range(cols)], axis=-1)
            for i in range(rows)
        ],
        axis=-2,
    )


@pytest.mark.parametrize("sizes", [(7, 11, 3, 5), (70, 131, 70, 131), (70, 131, 1, 1), (130, 260, 17, 4)])
@pytest.mark.parametrize("mask", [None, qkv.causal(align="end"), qkv.window(3, 0, align="end"), qkv.keys([2, 0])])
def test_a_cell_is_the_largest_weight_in_it(sizes, mask):
    L, S, rows, cols = sizes
    rng = np.random.default_rng(L + S)
    q, k, v = (rng.normal(size=(2, h, n, 4)) for h, n in ((4, L), (2, S), (2, S)))
    a = qkv.attention(q, k, v, mask=mask, empty="zero")
    weights = a.weights(range(L))
    # Sums of values that are unit vectors are weights, so the bounds of an output are theirs.
    unit = np.broadcast_to(np.eye(S), (2, 2, S, S))
    off = bound(q, k, unit, "float64", allowed=weights > 0).output
    within(a.pooled(rows, cols), by_hand(weights, rows, cols), 2 * by_hand(off, rows, cols), "a cell")


def test_every_row_and_key_lies_in_one_cell():
    for size in range(1, 30):
        for cells in range(1, size + 1):
            assert np.diff(edges(size, cells)).min() >= 1
            assert edges(size, cells)[-1] == size
