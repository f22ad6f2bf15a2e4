"""Masks are their dense form: whatever an expression is built from, ranges, tiles and the rule that is left agree with B5."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qkv.align import known_lengths, resolve_offset
from qkv.contract import canonical
from qkv.frame import Frame
from support.masks import alignments, expressions
from support.meanings import Pair, Sizes, dense_of, placed
from support.problems import sizes


@st.composite
def masked(draw: Any) -> tuple[Pair, Sizes, Frame]:
    """A mask with its dense form, placed by this file and by the package."""
    size, _ = draw(sizes())
    align = draw(alignments(size))
    pair = draw(expressions(size, align, depth=3))
    rules = [(repr(leaf), leaf.align) for leaf in pair.mask.leaves() if leaf.positional]
    lengths = known_lengths(pair.mask, size.batches)
    offset = resolve_offset(size.batch, size.queries, size.keys, rules, lengths)
    frame = Frame(size.batch, size.heads, size.queries, size.keys, offset)
    return pair, placed(size, align if pair.positional else None, pair), frame


@given(case=masked())
def test_b6_rows_stand_where_the_alignment_says(case: tuple[Pair, Sizes, Frame]) -> None:
    pair, size, frame = case
    if pair.positional:
        assert np.array_equal(np.broadcast_to(frame.positions(), size.position.shape), size.position)


@given(case=masked())
def test_b5_ranges_hold_every_allowed_pair_and_promise_no_other(case: tuple[Pair, Sizes, Frame]) -> None:
    pair, size, frame = case
    dense = dense_of(pair, size)
    may, must = (r.clip(size.keys).dense(size.keys)[:, None] for r in pair.mask.bounds(frame))
    assert not (dense & ~may).any(), "an allowed pair lies outside the ranges"
    assert not (must & ~dense).any(), "a promised pair is not allowed"
    if pair.mask.bounds(frame)[0] is pair.mask.bounds(frame)[1]:
        assert (may == dense).all(), "ranges that call themselves exact are not"


@given(case=masked())
def test_b5_intervals_stay_exact_under_every_operator(case: tuple[Pair, Sizes, Frame]) -> None:
    pair, _, frame = case
    may, must = pair.mask.bounds(frame)
    if pair.interval:
        assert may is must, f"{pair} is a set of intervals and would be asked pair by pair"


@given(case=masked())
def test_b5_ranges_are_disjoint_and_ascending(case: tuple[Pair, Sizes, Frame]) -> None:
    pair, size, frame = case
    may = pair.mask.bounds(frame)[0].clip(size.keys)
    some = may.lo < may.hi
    assert (may.lo[~some] == may.hi[~some]).all(), "an empty interval has one spelling"
    assert not (some[..., 1:] & ~some[..., :-1]).any(), "empty intervals stand last"
    assert (may.hi[..., :-1] < may.lo[..., 1:])[some[..., 1:]].all(), "intervals that touch are one"


@given(case=masked(), seed=st.integers(0, 2**32 - 1))
def test_b5_a_tile_is_a_cut_of_the_dense_form(case: tuple[Pair, Sizes, Frame], seed: int) -> None:
    pair, size, frame = case
    if 0 in (size.batches, size.queries, size.keys):
        return
    rng = np.random.default_rng(seed)
    n, h = int(rng.integers(size.batches)), int(rng.integers(size.heads))
    rows = np.arange(*sorted(rng.integers(0, size.queries + 1, 2)))
    cols = np.arange(*sorted(rng.integers(0, size.keys + 1, 2)))
    found = pair.mask.tile(frame, n, slice(h, size.heads), rows, cols)
    right = dense_of(pair, size)[n, h:][:, rows][:, :, cols]
    assert (np.broadcast_to(found, right.shape) == right).all()


@given(case=masked(), seed=st.integers(0, 2**32 - 1))
def test_b5_ranges_and_the_rule_that_is_left_are_the_mask(case: tuple[Pair, Sizes, Frame], seed: int) -> None:
    pair, size, _ = case
    rng = np.random.default_rng(seed)
    first, stop = sorted(int(x) for x in rng.integers(0, size.keys + 1, 2))
    operands = (
        np.zeros((*size.batch, size.heads, n, 1), np.float32) for n in (size.queries, stop - first, stop - first)
    )
    problem = canonical(*operands, mask=pair.mask, first_key=first, total_keys=size.keys)
    dense = dense_of(pair, size)
    for n in range(size.batches):
        found = problem.allowed(n, slice(0, size.heads), np.arange(size.queries), 0, stop - first)
        assert (np.broadcast_to(found, dense[n][..., first:stop].shape) == dense[n][..., first:stop]).all()
    if pair.interval:
        assert problem.rule is None


@given(case=masked())
def test_b5_reads_future_is_exact(case: tuple[Pair, Sizes, Frame]) -> None:
    pair, size, frame = case
    from qkv.future import first_future

    may, must = pair.mask.bounds(frame)
    found = first_future(pair.mask, frame, may.clip(size.keys), may is must)
    late = dense_of(pair, size) & (np.arange(size.keys) > frame.positions()[:, None, :, None])
    right = np.argwhere(late)
    assert (tuple(found) if found else None) == (tuple(right[0].tolist()) if right.size else None)
