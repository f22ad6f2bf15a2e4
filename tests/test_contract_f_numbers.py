"""Contract F: types, accuracy, row invariance, repeatability. The property tests look for more of the same."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import qkv
from qkv import Cache, DTypeError, attend, attention, bounds, causal, engines, explain, info, keys, segments, window
from qkv.contract import canonical
from support.arrays import DTYPES, cast, numpy_dtype, restride, same_bits, stored
from support.tiny import counting, zeros


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


# F1: types.


@pytest.mark.parametrize("dtype", DTYPES)
def test_f1_the_output_has_the_querys_dtype(dtype, engine):
    x = np.ones((2, 3), numpy_dtype(dtype))
    out = attend(x, x, x)
    assert out.dtype == x.dtype
    assert out.tolist() == x.tolist()


@pytest.mark.parametrize("other", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["key", "value"])
def test_f1_mixed_types_are_refused_with_the_cast(dtype, other, name, engine):
    arrays = {n: np.zeros((2, 2), numpy_dtype(dtype)) for n in ("query", "key", "value")}
    if dtype == other:
        assert attend(**arrays).dtype == numpy_dtype(dtype)
        return
    arrays[name] = np.zeros((2, 2), numpy_dtype(other))
    with pytest.raises(DTypeError, match=f"query is {dtype} and {name} is {other}") as caught:
        attend(**arrays)
    way = str(caught.value).partition("write ")[2]
    assert way == f"{name}.astype(query.dtype)"
    arrays[name] = eval(way, {}, arrays)  # the message is code that works
    assert attend(**arrays).dtype == numpy_dtype(dtype)


@pytest.mark.parametrize(
    "dtype", [np.int64, np.int8, np.uint16, np.bool_, np.complex64, np.longdouble, "U1", object, "M8[s]"]
)
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_f1_other_types_are_refused_with_the_cast(dtype, name, engine):
    arrays = {n: zeros(2, 2) for n in ("query", "key", "value")}
    arrays[name] = np.zeros((2, 2), dtype)
    with pytest.raises(
        DTypeError, match=rf"{name} must be float16, bfloat16, float32 or float64.*{name}\.astype\(np\.float32\)"
    ):
        attend(**arrays)


# F2: accuracy.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("peak", [1.0, 8.0], ids=["flat", "peaked"])
def test_f2_every_row_is_within_the_derived_bound(dtype, peak, engine):
    q, k, v = (random(2, h, n, d, dtype=dtype) for h, n, d in ((4, 33, 16), (2, 65, 16), (2, 65, 5)))
    q = (q * peak).astype(q.dtype)
    limit = bounds.bound(stored(q), stored(k), stored(v), dtype)
    a = attention(q, k, v)
    wide = np.longdouble
    assert (abs(a.output.astype(wide) - limit.answer.output) <= limit.output).all()
    assert (abs(a.lse.astype(wide) - limit.answer.lse) <= limit.lse).all()


# F3: row invariance of the native engines.


def rows_of(q, k, v, **arguments):
    a = attention(q, k, v, **arguments)
    return a.output, a.lse


DOCUMENT = 37  # keys of the document that is looked at


@pytest.fixture
def document():
    """Query, key and value of one document: (4 and 2 heads, 37, 16)."""
    return random(4, DOCUMENT, 16), random(2, DOCUMENT, 16, seed=1), random(2, DOCUMENT, 8, seed=2)


def other(shape, seed=9):
    return random(*shape, seed=seed) * np.float32(5)


def test_f3_a_document_packed_behind_others_has_the_bits_it_has_alone(native_engine, document):
    alone = rows_of(*document, mask=causal())
    for before in (1, 50, 129, 300):
        ids = np.repeat([0, 1, 2], [before, DOCUMENT, 20])
        packed = [
            np.concatenate([other((x.shape[0], before, x.shape[2])), x, other((x.shape[0], 20, x.shape[2]))], 1)
            for x in document
        ]
        output, lse = rows_of(*packed, mask=segments(ids) & causal())
        at = slice(before, before + DOCUMENT)
        assert same_bits(output[:, at], alone[0])
        assert same_bits(lse[:, at], alone[1])


def test_f3_left_padding_changes_no_bit(native_engine, document):
    alone = rows_of(*document, mask=causal())
    for pad in (1, 31, 128, 200):
        padded = [np.concatenate([other((x.shape[0], pad, x.shape[2])), x], 1)[None] for x in document]
        output, lse = rows_of(*padded, mask=causal() & keys([pad], pad + DOCUMENT), empty="zero")
        assert same_bits(output[0][:, pad:], alone[0])
        assert same_bits(lse[0][:, pad:], alone[1])
        exists = np.arange(pad + DOCUMENT) >= pad
        output, lse = rows_of(*padded, mask=causal() & keys(exists[None]), empty="zero")
        assert same_bits(output[0][:, pad:], alone[0])


def test_f3_padding_behind_a_length_changes_no_bit(native_engine, document):
    alone = rows_of(*document, mask=causal())
    for pad in (1, 100):
        padded = [np.concatenate([x, other((x.shape[0], pad, x.shape[2]))], 1) for x in document]
        output, lse = rows_of(document[0], *padded[1:], mask=causal(align="start") & keys(DOCUMENT))
        assert same_bits(output, alone[0])
        assert same_bits(lse, alone[1])


def test_f3_the_batch_changes_no_bit(native_engine, document):
    alone = rows_of(*document, mask=causal())
    batched = [np.stack([other(x.shape, 1), x, other(x.shape, 2)]) for x in document]
    output, lse = rows_of(*batched, mask=causal())
    assert same_bits(output[1], alone[0])
    assert same_bits(lse[1], alone[1])


def test_f3_the_other_rows_change_no_bit(native_engine, document):
    q, k, v = document
    output, lse = rows_of(q, k, v, mask=causal())
    for i in (0, 1, 17, DOCUMENT - 1):
        one = rows_of(q[:, i : i + 1], k, v, mask=causal(align=i))
        assert same_bits(one[0], output[:, i : i + 1])
        assert same_bits(one[1], lse[:, i : i + 1])


def test_f3_the_other_heads_change_no_bit(native_engine, document):
    q, k, v = document
    output, _ = rows_of(q, k, v, mask=causal())
    for h in range(4):
        assert same_bits(rows_of(q[h], k[h // 2], v[h // 2], mask=causal())[0], output[h])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_f3_the_number_of_threads_changes_no_bit(native_engine, threads):
    q, k, v = random(2, 2, 16), random(2, 4500, 16), random(2, 4500, 4)
    problem = canonical(q, k, v)
    out = np.empty((2, 2, 4), np.float32)
    result = engines.run(problem, engines.choose(problem, "native", threads), out)
    expected = attention(q, k, v)
    assert same_bits(out, expected.output)
    assert same_bits(result.lse[0], expected.lse)


def test_f3_work_that_a_mask_skips_changes_no_bit(native_engine):
    """The same pairs, said by ranges that skip tiles, and by an array that skips nothing."""
    S = 700
    q, k, v = random(2, S, 8), random(2, S, 8), random(2, S, 4)
    i = np.arange(S)
    expected = rows_of(q, k, v, mask=causal() & window(40, 0))
    dense = (i <= i[:, None]) & (i >= i[:, None] - 40)
    seen = rows_of(q, k, v, mask=dense)
    assert same_bits(seen[0], expected[0])
    assert same_bits(seen[1], expected[1])
    biased = rows_of(q, k, v, bias=np.where(dense, np.float32(0), np.float32(-np.inf)))
    assert same_bits(biased[0], expected[0])


@pytest.mark.parametrize("how", ["transposed", "sliced", "negative", "fortran"])
def test_f3_strides_change_no_bit(native_engine, document, how):
    alone = rows_of(*document)
    assert same_bits(rows_of(*(restride(x, how) for x in document))[0], alone[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_f3_decoding_against_a_cache_has_the_bits_of_the_full_pass(native_engine, dtype):
    S = 140
    q, k, v = (random(1, h, S, 8, dtype=dtype) for h in (4, 2, 2))
    full = rows_of(q, k, v, mask=causal() & window(50, 0))
    cache = Cache()
    for i in range(S):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        if i % 20 == 0 or i == S - 1:
            a = attention(q[:, :, i : i + 1], cache, mask=causal() & window(50, 0))
            assert same_bits(a.output, full[0][:, :, i : i + 1])
            assert same_bits(a.lse, full[1][:, :, i : i + 1])


def test_f3_a_window_does_not_move_the_count(native_engine):
    """Keys stay counted from the first of the sequence: cutting off what the window hides is another sequence."""
    S = 300
    q, k, v = random(1, S, 8), random(1, S, 8), random(1, S, 4)
    full, _ = rows_of(q, k, v, mask=causal() & window(99, 0))
    row = rows_of(q[:, -1:], k, v, mask=causal(align="end") & window(99, 0))
    assert same_bits(row[0], full[:, -1:])


def test_f3_the_arithmetic_is_chosen_from_type_and_width_alone():
    from qkv.plan import make_plan

    for dtype in DTYPES:
        for D in (1, 64, 128, 576):
            chosen = set()
            for L, S, B, threads in ((1, 1, 1, 1), (1, 9000, 1, 8), (700, 300, 3, 2), (64, 64, 40, 1)):
                shape = (
                    np.lib.stride_tricks.as_strided(np.zeros(1, numpy_dtype(dtype)), (B, 2, n, D), (0,) * 4)
                    for n in (L, S, S)
                )
                plan = make_plan(canonical(*shape), "native", "v3", threads)
                chosen.add((plan.block, plan.split))
            assert len(chosen) == 1, (dtype, D)


def test_f3_the_numpy_engine_promises_less_and_says_so(engine):
    x = zeros(2, 2)
    said = explain(x, x, x)
    assert said.row_invariant == (engine == "native")
    assert ("bits depend on that row alone" in str(said)) == (engine == "native")
    assert ("bits depend on shapes (BLAS)" in str(said)) == (engine == "numpy")
    assert info().row_invariant == (info().engine == "native")


# F4: repeatability.


def test_f4_the_same_call_gives_the_same_bits_twice(engine):
    q, k, v = random(3, 4, 130, 16), random(3, 2, 130, 16), random(3, 2, 130, 8)
    a, b = (attention(q, k, v, mask=causal()) for _ in range(2))
    assert same_bits(a.output, b.output)
    assert same_bits(a.lse, b.lse)
    for ask in (
        lambda x: x.received(),
        lambda x: x.entropy(),
        lambda x: x.weights(range(130)),
        lambda x: x.top(5).weights,
        lambda x: x.influence(100).relative,
    ):
        assert same_bits(ask(a), ask(b))
        assert same_bits(ask(a), ask(a))


SUBNORMAL = """
import sys
import numpy as np
half = np.float32(0.5)
before = (np.array([6e-45, 1e-40], np.float32) * half).tolist()
import qkv
x = np.random.default_rng(0).standard_normal((8, 200, 16)).astype(np.float32)
qkv.attend(x, x, x, mask=qkv.causal())
after = (np.array([6e-45, 1e-40], np.float32) * half).tolist()
assert before == after and all(after), (before, after)
assert sys.float_info.min * 0.5 > 0
"""


def test_f4_loading_the_library_leaves_subnormal_numbers_alone(engine):
    subprocess.run([sys.executable, "-c", SUBNORMAL], check=True, env={**os.environ, "QKV_ENGINE": engine})


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("float16", 2.0**-24), ("bfloat16", 2.0**-133), ("float32", 2.0**-149), ("float64", 2.0**-1074)],
)
def test_f4_subnormal_values_come_out_as_they_went_in(name, smallest, engine):
    """Also in the threads of the pool, which have a floating-point mode of their own."""
    dtype = numpy_dtype(name)
    value = np.full((1, 1), smallest).astype(dtype)
    q = np.zeros((8, 300, 1), dtype)
    out = attend(q, np.zeros((8, 1, 1), dtype), np.broadcast_to(value, (8, 1, 1)))
    assert (out == value).all()
    assert float(out[0, 0, 0]) == smallest


def test_f4_a_questions_answer_does_not_depend_on_those_before_it(engine):
    a = qkv.attention(zeros(1, 2), zeros(4, 2), counting(4))
    first = a.received()
    a.top(1), a.weights(0), a.entropy()
    assert same_bits(a.received(), first)
