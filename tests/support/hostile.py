"""What nobody should pass: values of every kind, masks that do not fit, parts of a native call that do not belong together."""

from __future__ import annotations

from typing import Any

import numpy as np

import qkv
from qkv import alibi, allow, causal, first, keys, segments, where, window

from .arrays import DTYPES

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


def arguments_of(shape: tuple[int, int, int]) -> dict[str, tuple[Any, ...]]:
    """Values for each option of a call of (heads, queries, keys), most of which fit."""
    heads, L, S = shape
    return {
        "bias": (
            np.zeros((L, S), np.float32),
            np.full(shape, -np.inf, np.float32),
            np.full((1, 1), np.nan, np.float32),
            alibi(np.ones(heads)),
            alibi([1.0, 2.0], align=3),
        ),
        "scale": (0.0, 1e38, -1e38, 1e-45, 1e300, 2),
        "softcap": (1e-45, 1e-30, 30, 1e300, -1.0),
        "sink": (
            np.zeros(heads),
            np.full(heads, 1e30),
            [0.0] * heads,
            np.zeros(3),
            np.full(heads, np.inf),
        ),
        "empty": ("raise", "zero"),
        "nonfinite": ("raise", "propagate"),
        "layout": ("bhld", "blhd", "bshd", "bhsd"),
    }


def refused_in_a_sentence(error: qkv.QkvError) -> None:
    """G2: what it is about, what was expected, and the way out."""
    first_line = str(error).partition("\n")[0]
    assert 20 < len(first_line) < 1000, first_line
    assert "Traceback" not in first_line
    assert "object at 0x" not in first_line, first_line


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
