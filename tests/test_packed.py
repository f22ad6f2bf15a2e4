"""Packed documents: each is attended alone, bit for bit, and nothing else is (A5, B6, D1, F3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import alibi, attend, attend_packed, causal, first, packed, prefix, window
from qkv.frame import Frame
from qkv.problem import Problem
from support.arrays import DTYPES, STRIDES, cast, restride, same_bits
from support.checks import within
from support.libraries import library

Lengths = list[tuple[int, int]]


def offsets(lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """Query and key offsets of documents of so many queries and keys."""
    counts = np.array([(0, 0), *lengths])
    return tuple(np.cumsum(counts, axis=0).T)  # type: ignore[return-value]


def arrays(
    lengths: Lengths,
    H: int = 4,
    G: int = 2,
    D: int = 8,
    E: int = 5,
    dtype: str = "float32",
    seed: int = 0,
    align: Any = None,
) -> Any:
    rng = np.random.default_rng(seed)
    rows, keys = (sum(x) for x in zip(*lengths, strict=True)) if lengths else (0, 0)
    return tuple(cast(rng.standard_normal(s), dtype) for s in ((rows, H, D), (keys, G, D), (keys, G, E)))


def alone(q: Any, k: Any, v: Any, lengths: Lengths, arguments: dict[str, Any], d: int) -> Any:
    """Document d by itself."""
    qo, ko = offsets(lengths)
    rows, keys = slice(qo[d], qo[d + 1]), slice(ko[d], ko[d + 1])
    return attend(q[rows], k[keys], v[keys], layout="blhd", **arguments)


def together(q: Any, k: Any, v: Any, lengths: Lengths, arguments: dict[str, Any]) -> Any:
    qo, ko = offsets(lengths)
    out = [alone(q, k, v, lengths, arguments, d) for d in range(len(lengths))]
    found = attend_packed(q, k, v, qo, ko, **arguments)
    assert found.shape == (q.shape[0], q.shape[1], v.shape[2])
    assert found.dtype == q.dtype
    return found, out, qo


@st.composite
def batches(draw: Any) -> tuple[Lengths, dict[str, Any], dict[str, Any]]:
    square = draw(st.booleans())
    size = st.sampled_from([0, 1, 2, 3, 7, 16, 33, 64, 130, 200])
    lengths = [(n, n if square else draw(size)) for n in draw(st.lists(size, max_size=6))]
    align = None if square else draw(st.sampled_from(["start", "end", 3]))
    rule = st.sampled_from(
        [
            None,
            causal(align=align),
            window(5, 0, align=align),
            causal(align=align) & (window(20, None, align=align) | first(2)),
            ~window(0, 0, align=align),
            prefix(4, align=align),
        ]
    )
    arguments = {"mask": draw(rule), "empty": "zero"}
    if draw(st.booleans()):
        arguments["bias"] = alibi([0.5, 0.25, 0.0, -0.125], align=align)
    if draw(st.booleans()):
        arguments |= {"scale": 0.5, "softcap": 3.0, "sink": np.array([0.0, 1.0, -2.0, 3.0])}
    shape = {
        "dtype": draw(st.sampled_from(DTYPES)),
        "G": draw(st.sampled_from([1, 2, 4])),
        "seed": draw(st.integers(0, 99)),
    }
    shape["align"] = align
    return lengths, arguments, shape


@given(batch=batches(), how=st.sampled_from(STRIDES))
def test_f3_every_document_has_the_bits_it_has_alone(native_engine, batch, how):
    lengths, arguments, shape = batch
    q, k, v = (restride(x, how) for x in arrays(lengths, **shape))
    found, right, at = together(q, k, v, lengths, arguments)
    for d, one in enumerate(right):
        assert same_bits(found[at[d] : at[d + 1]], one), d


@given(batch=batches())
def test_f2_every_document_is_within_its_bound(engine, batch):
    lengths, arguments, shape = batch
    q, k, v = arrays(lengths, **{**shape, "dtype": "float32"})
    qo, ko = offsets(lengths)
    found = attend_packed(q, k, v, qo, ko, **arguments)
    for d, (L, S) in enumerate(lengths):
        if not L or not S:
            assert not found[qo[d] : qo[d + 1]].any()
            continue
        rows, keys = slice(qo[d], qo[d + 1]), slice(ko[d], ko[d + 1])
        offset = {None: 0, "start": 0, "end": S - L}.get(shape["align"], shape["align"])
        p, j = np.arange(L)[:, None] + offset, np.arange(S)[None, :]
        mask, seen = arguments["mask"], np.ones((L, S), bool)
        if mask is not None:
            seen = mask.bounds(Frame((), 4, L, S, np.array([offset])))[0].clip(S).dense(S)[0]
        bias = None
        if "bias" in arguments:
            bias = -arguments["bias"].slopes[:, None, None] * abs(p - j)
        limits = qkv.bounds.bound(
            *(x.swapaxes(0, 1) for x in (q[rows], k[keys], v[keys])),
            "float32",
            allowed=np.broadcast_to(seen, (4, L, S)),
            bias=bias,
            bias_roundings=3,
            **{name: arguments[name] for name in ("scale", "softcap", "sink") if name in arguments},
        )
        within(found[rows].swapaxes(0, 1), limits.answer.output, limits.output, "output")


def test_a5_documents_by_hand(engine):
    x = np.zeros((5, 1, 2), np.float32)
    v = np.array([1, 3, 10, 20, 60], np.float32).reshape(5, 1, 1)
    assert attend_packed(x, x, v, [0, 2, 5]).ravel().tolist() == [2, 2, 30, 30, 30]
    assert attend_packed(x, x, v, [0, 2, 5], mask=causal()).ravel().tolist() == [1, 2, 10, 15, 30]
    assert attend_packed(x, x, v, [0, 0, 5, 5], mask=window(1, 0)).ravel().tolist() == [1, 2, 6.5, 15, 40]
    # Two new tokens of the first document and one of the second, against what is kept of both (B6).
    assert attend_packed(x[:3], x, v, [0, 2, 3], [0, 3, 5], mask=causal(align="end")).ravel().tolist() == [
        2,
        float(np.float32(14) / np.float32(3)),
        40,
    ]
    assert attend_packed(x[:3], x, v, [0, 2, 3], [0, 3, 5], mask=causal(align=np.array([1, 0]))).ravel()[2] == 20


def test_a5_no_documents_and_documents_without_rows(engine):
    x = np.zeros((0, 2, 4), np.float32)
    assert attend_packed(x, x, x, [0]).shape == (0, 2, 4)
    assert attend_packed(x, x, x, [0, 0, 0]).shape == (0, 2, 4)
    some = np.ones((3, 2, 4), np.float32)
    assert attend_packed(x, some, some, [0, 0], [0, 3]).shape == (0, 2, 4)
    assert not attend_packed(some, x, x, [0, 3], [0, 0], empty="zero").any()
    with pytest.raises(qkv.EmptyRowError, match=r"\(-, 0, 2\) has none \(there are 2 such rows\)"):
        attend_packed(some, some[:2], some[:2], [0, 2, 3], [0, 2, 2])


def test_a4_nothing_is_copied_and_nothing_is_written(engine, monkeypatch):
    lengths = [(3, 3), (5, 5)]
    taken: list[Problem] = []
    carry = packed._carry_out
    monkeypatch.setattr(packed, "_carry_out", lambda problem, plan: (taken.append(problem), carry(problem, plan))[1])
    q, k, v = arrays(lengths)
    for x in (q, k, v):
        x.flags.writeable = False
    out = attend_packed(q, k, v, offsets(lengths)[0], mask=causal())
    (problem,) = taken
    assert all(np.shares_memory(a, b) for a, b in ((problem.query, q), (problem.key, k), (problem.value, v)))
    assert out.flags.owndata
    assert out.flags.c_contiguous


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38])
def test_d1_no_document_sees_another(engine, number):
    lengths = [(3, 3), (140, 140), (5, 5)]
    q, k, v = arrays(lengths)
    at, _ = offsets(lengths)
    right = attend_packed(q, k, v, at, mask=causal())
    k[at[1] : at[2]], v[at[1] : at[2]], q[at[1] : at[2]] = number, number, number
    found = attend_packed(q, k, v, at, mask=causal(), nonfinite="propagate")
    for d in (0, 2):
        assert same_bits(found[at[d] : at[d + 1]], right[at[d] : at[d + 1]])
    if not np.isfinite(number):
        with pytest.raises(qkv.NonFiniteError, match=r"query\[3, 0, 0\]"):
            attend_packed(q, k, v, at, mask=causal())


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_f3_threads_change_no_bit_of_packed_documents(native_engine, threads):
    """Long documents of few queries too, whose splits are shared among threads."""
    lengths = [(1, 4500), (2, 30), (1, 2049), (3, 1)]
    q, k, v = arrays(lengths)
    found, right, at = None, None, None
    with qkv.threads(threads):
        found, right, at = together(q, k, v, lengths, {"mask": causal(align="end"), "empty": "zero"})
    with qkv.threads(1):
        assert same_bits(found, attend_packed(q, k, v, *offsets(lengths), mask=causal(align="end"), empty="zero"))
    for d, one in enumerate(right):
        assert same_bits(found[at[d] : at[d + 1]], one)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a5_tensors(dtype, engine):
    torch = library("torch")
    lengths = [(3, 3), (7, 7), (1, 1)]
    q, k, v = arrays(lengths, dtype="float64")
    tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k, v)]
    at = torch.tensor(offsets(lengths)[0], dtype=torch.int32)
    found = attend_packed(*tensors, at, at, mask=causal())
    assert found.dtype is getattr(torch, dtype)
    plain = attend_packed(*(cast(x, dtype) for x in (q, k, v)), offsets(lengths)[0], mask=causal())
    assert same_bits(found.to(torch.float64).numpy(), plain.astype(np.float64))


def test_b6_alignment_is_asked_only_where_a_document_needs_it(engine):
    q, k, v = arrays([(2, 3), (4, 4)])
    with pytest.raises(qkv.AlignmentError, match="causal\\(\\) with 2 queries and 3 keys"):
        attend_packed(q, k, v, [0, 2, 6], [0, 3, 7], mask=causal())
    attend_packed(q, k, v, [0, 2, 6], [0, 3, 7], mask=first(1))
    attend_packed(q, k[:6], v[:6], [0, 2, 6], mask=causal())
    with pytest.raises(qkv.AlignmentError, match="one offset or one per sequence"):
        attend_packed(q, k, v, [0, 2, 6], [0, 3, 7], mask=causal(align=np.array([0, 0, 0])))


#: Faults that a packed batch invites, and what has to notice them.
def _counted_from_the_first_document(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = packed._cut
    monkeypatch.setattr(packed, "_cut", lambda *a: (p := cut(*a)) and packed.replace(p, origin=np.zeros_like(p.origin)))


def _reads_the_next_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "interval", lambda lo, hi: qkv.ranges.interval(lo, hi + 1))


def _stands_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    places = packed._places
    monkeypatch.setattr(packed, "_places", lambda rows, sizes, rules: places(rows, sizes, rules) + np.arange(rows.size))


@pytest.mark.parametrize(
    "fault",
    [_counted_from_the_first_document, _reads_the_next_document, _stands_in_the_whole],
    ids=lambda f: f.__name__,
)
def test_planted_faults_are_caught(native_engine, fault, monkeypatch):
    fault(monkeypatch)
    lengths = [(130, 130), (200, 200), (3, 3)]
    found, right, at = together(*arrays(lengths), lengths, {"mask": window(150, 2)})
    assert not all(same_bits(found[at[d] : at[d + 1]], one) for d, one in enumerate(right))
