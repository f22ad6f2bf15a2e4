"""Contract A: shapes, layouts, grouped heads, empty axes, memory."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from qkv import DTypeError, EmptyRowError, ShapeError, attend, attend_packed, attention, bounds, causal, keys, segments
from qkv.errors import ArgumentError
from support.arrays import DTYPES, numpy_dtype, restride, same_bits
from support.tiny import counting, zeros

pytestmark = pytest.mark.usefixtures("engine")


def random(*shape: int, seed: int = 0, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


# A1: axes and layouts.


@pytest.mark.parametrize(
    ("query", "key", "value", "output", "lse"),
    [
        ((3, 4), (5, 4), (5, 2), (3, 2), (3,)),
        ((6, 3, 4), (2, 5, 4), (2, 5, 7), (6, 3, 7), (6, 3)),
        ((8, 6, 3, 4), (8, 2, 5, 4), (8, 2, 5, 7), (8, 6, 3, 7), (8, 6, 3)),
        ((2, 3, 6, 3, 4), (2, 3, 2, 5, 4), (2, 3, 2, 5, 1), (2, 3, 6, 3, 1), (2, 3, 6, 3)),
        ((1, 2, 1, 1, 3, 4), (1, 2, 1, 1, 5, 4), (1, 2, 1, 1, 5, 4), (1, 2, 1, 1, 3, 4), (1, 2, 1, 1, 3)),
    ],
    ids=["A1-2-axes", "A1-3-axes", "A1-4-axes", "A1-5-axes", "A1-6-axes"],
)
def test_a1_the_output_has_the_axes_of_the_query_and_the_width_of_the_value(query, key, value, output, lse):
    a = attention(random(*query), random(*key), random(*value))
    assert a.output.shape == output
    assert a.lse.shape == lse


def test_a1_two_axes_are_one_head_and_three_are_heads():
    q, k, v = random(3, 4), random(5, 4), random(5, 2)
    assert same_bits(attend(q, k, v), attend(q[None], k[None], v[None])[0])
    assert same_bits(attend(q, k, v), attend(q[None, None], k[None, None], v[None, None])[0, 0])


@pytest.mark.parametrize("name", ["key", "value"])
def test_a1_batch_axes_are_never_broadcast(name):
    shapes = {"query": (8, 1, 2, 4), "key": (8, 1, 3, 4), "value": (8, 1, 3, 2), name: (1, 1, 3, 4)}
    with pytest.raises(ShapeError, match="batch axes must be equal"):
        attend(*(zeros(*shape) for shape in shapes.values()))


def test_a1_missing_axes_are_never_added():
    with pytest.raises(ShapeError, match="equally many axes"):
        attend(zeros(2, 1, 2, 4), zeros(1, 3, 4), zeros(1, 3, 4))
    with pytest.raises(ShapeError, match="at least two axes"):
        attend(zeros(4), zeros(3, 4), zeros(3, 4))


@pytest.mark.parametrize("layout", ["blhd", "bshd"])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=["A1-3-axes", "A1-4-axes", "A1-5-axes"])
def test_a1_length_before_heads_in_and_out(layout, batch):
    q, k, v = random(*batch, 6, 3, 4), random(*batch, 2, 5, 4), random(*batch, 2, 5, 7)
    expected = attention(q, k, v)
    swapped = attention(*(x.swapaxes(-2, -3) for x in (q, k, v)), layout=layout)
    assert same_bits(swapped.output, expected.output.swapaxes(-2, -3))
    assert same_bits(swapped.lse, expected.lse)  # (B…, H, L) in every layout


def test_a1_bhsd_is_another_name_of_the_default():
    q, k, v = random(2, 6, 3, 4), random(2, 2, 5, 4), random(2, 2, 5, 7)
    assert same_bits(attend(q, k, v, layout="bhsd"), attend(q, k, v, layout="bhld"))
    assert same_bits(attend(q, k, v, layout="bhsd"), attend(q, k, v))


def test_a1_two_axes_have_no_heads_to_move():
    q, k, v = random(3, 4), random(5, 4), random(5, 2)
    assert same_bits(attend(q, k, v, layout="blhd"), attend(q, k, v))


@pytest.mark.parametrize("layout", ["lbhd", "", None, "BHLD", 1])
def test_a1_other_layouts_do_not_exist(layout):
    with pytest.raises(ArgumentError, match="layout must be one of 'bhld', 'bhsd', 'blhd', 'bshd'"):
        attend(zeros(2, 2), zeros(2, 2), zeros(2, 2), layout=layout)


def test_a1_lengths_and_widths_must_agree():
    with pytest.raises(ShapeError, match="one width D"):
        attend(zeros(2, 4), zeros(3, 5), zeros(3, 4))
    with pytest.raises(ShapeError, match="agree in heads and length"):
        attend(zeros(2, 4), zeros(3, 4), zeros(2, 4))
    with pytest.raises(ShapeError, match="agree in heads and length"):
        attend(zeros(2, 2, 4), zeros(2, 3, 4), zeros(1, 3, 4))


# A2: grouped queries.


@pytest.mark.parametrize(
    ("H", "G", "reads"),
    [(6, 2, [0, 0, 0, 1, 1, 1]), (9, 3, [0, 0, 0, 1, 1, 1, 2, 2, 2]), (4, 1, [0] * 4), (3, 3, [0, 1, 2])],
    ids=["A2-grouped", "A2-9-and-3", "A2-one-for-all", "A2-ordinary"],
)
def test_a2_neighbouring_query_heads_share_a_key_head(H, G, reads):
    value = np.arange(G, dtype=np.float32)[:, None, None]  # head g holds the value g
    assert attend(zeros(H, 1, 2), zeros(G, 1, 2), value).ravel().tolist() == reads


def test_a2_the_key_head_is_chosen_the_same_way():
    key = np.arange(2, dtype=np.float32)[:, None, None]
    assert attention(np.ones((6, 1, 1), np.float32), key, zeros(2, 1, 1)).lse.ravel().tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("H", "G"), [(6, 2), (4, 1), (9, 3)])
def test_a2_grouped_heads_are_those_of_repeated_keys(H, G):
    q, k, v = random(2, H, 5, 8), random(2, G, 7, 8), random(2, G, 7, 3)
    a = attention(q, k, v, sink=np.arange(H, dtype=np.float32))
    repeated = attention(q, *(np.repeat(x, H // G, axis=1) for x in (k, v)), sink=np.arange(H, dtype=np.float32))
    limit = bounds.bound(q, k, v, "float32", sink=np.arange(H, dtype=np.float32))
    for one in (a, repeated):
        assert (abs(one.output - limit.answer.output) <= limit.output).all()
        assert (abs(one.lse - limit.answer.lse) <= limit.lse).all()


@pytest.mark.parametrize(("H", "G"), [(3, 2), (1, 2), (2, 4)])
def test_a2_query_heads_are_a_multiple_of_key_heads(H, G):
    with pytest.raises(ShapeError, match=f"multiple of key heads, but query has H = {H} and key G = {G}"):
        attend(zeros(H, 2, 4), zeros(G, 2, 4), zeros(G, 2, 4))


def test_a2_keys_are_not_copied_out_per_query_head():
    H, S, D = 64, 4096, 64
    query, key, value = zeros(H, 1, D), zeros(1, S, D), zeros(1, S, 1)
    attend(query, key[:, :8], value[:, :8])  # what a first call loads is not counted
    tracemalloc.start()
    attend(query, key, value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < H * S * D * key.itemsize


# A3: axes of length zero.


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a3_no_queries_is_an_empty_result(batch):
    a = attention(zeros(*batch, 4, 0, 3), zeros(*batch, 2, 5, 3), zeros(*batch, 2, 5, 7), mask=causal())
    assert a.output.shape == (*batch, 4, 0, 7)
    assert a.lse.shape == (*batch, 4, 0)


@pytest.mark.parametrize("batch", [(0,), (0, 3), (3, 0)])
def test_a3_no_batch_is_an_empty_result(batch):
    a = attention(zeros(*batch, 4, 2, 3), zeros(*batch, 2, 5, 3), zeros(*batch, 2, 5, 7))
    assert a.output.shape == (*batch, 4, 2, 7)
    assert a.lse.shape == (*batch, 4, 2)


def test_a3_no_queries_and_no_keys():
    assert attend(zeros(2, 0, 3), zeros(2, 0, 3), zeros(2, 0, 3)).shape == (2, 0, 3)


def test_a3_no_keys_makes_every_row_empty():
    q, k, v = zeros(2, 3, 4), zeros(1, 0, 4), zeros(1, 0, 5)
    with pytest.raises(EmptyRowError) as caught:
        attend(q, k, v)
    assert (caught.value.index, caught.value.count) == ((0, 0), 6)
    a = attention(q, k, v, empty="zero")
    assert same_bits(a.output, zeros(2, 3, 5))
    assert same_bits(a.lse, np.full((2, 3), -np.inf, np.float32))


@pytest.mark.parametrize(
    ("query", "key", "value", "axis"),
    [
        ((1, 2, 0), (1, 2, 0), (1, 2, 3), "D"),
        ((1, 2, 3), (1, 2, 3), (1, 2, 0), "E"),
        ((0, 2, 3), (1, 2, 3), (1, 2, 3), "H"),
        ((1, 2, 3), (0, 2, 3), (0, 2, 3), "G"),
    ],
    ids=["A3-D", "A3-E", "A3-H", "A3-G"],
)
def test_a3_no_width_and_no_heads_are_errors(query, key, value, axis):
    with pytest.raises(ShapeError, match=f"must not have {axis} = 0"):
        attend(zeros(*query), zeros(*key), zeros(*value))


# A4: memory.


def unaligned(x: np.ndarray) -> np.ndarray:
    """The same numbers at an address that is not a multiple of their size."""
    raw = np.zeros(x.nbytes + 1, np.uint8)
    odd = np.ndarray(x.shape, x.dtype, raw[1:].data)
    odd[...] = x
    return odd


@pytest.mark.parametrize("how", ["transposed", "sliced", "negative", "fortran", "readonly", "unaligned"])
def test_a4_results_do_not_depend_on_strides(how):
    q, k, v = random(2, 4, 5, 8), random(2, 2, 9, 8, seed=1), random(2, 2, 9, 3, seed=2)
    expected = attention(q, k, v)
    seen = attention(*(unaligned(x) if how == "unaligned" else restride(x, how) for x in (q, k, v)))
    assert same_bits(seen.output, expected.output)
    assert same_bits(seen.lse, expected.lse)


def test_a4_broadcast_arrays_are_read_as_they_are():
    k, v = random(1, 1, 9, 8), random(1, 1, 9, 3, seed=1)
    q = random(2, 4, 5, 8)
    wide = [np.broadcast_to(x, (2, 4, *x.shape[2:])) for x in (k, v)]
    assert same_bits(attend(q, *wide), attend(q, *(np.ascontiguousarray(x) for x in wide)))


def test_a4_strides_of_masks_and_biases_do_not_matter():
    q, k, v = random(2, 4, 5, 8), random(2, 2, 9, 8, seed=1), random(2, 2, 9, 3, seed=2)
    mask, bias = random(2, 4, 5, 9, seed=3) > -1, random(2, 4, 5, 9, seed=4)
    expected = attend(q, k, v, mask=mask, bias=bias)
    for how in ("transposed", "sliced", "negative"):
        assert same_bits(attend(q, k, v, mask=restride(mask, how), bias=restride(bias, how)), expected)


def test_a4_inputs_are_read_only_and_stay_as_they_were():
    arrays = {
        "query": random(2, 4, 5, 8),
        "key": random(2, 2, 5, 8),
        "value": random(2, 2, 5, 3),
        "mask": random(2, 4, 5, 5) > -2,
        "bias": random(2, 4, 5, 5),
        "sink": random(4),
    }
    arrays["value"][0, 0, 3] = np.nan  # what is read, and what is cleaned inside, are not the caller's
    before = {name: x.copy() for name, x in arrays.items()}
    for x in arrays.values():
        x.flags.writeable = False
    a = attention(**arrays, nonfinite="propagate", empty="zero")
    a.received(), a.entropy(), a.top(2), a.contributions(0), a.influence(0)
    for name, x in arrays.items():
        assert np.array_equal(x, before[name], equal_nan=True), name


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
@pytest.mark.parametrize("shape", [(3, 2), (1, 3, 2), (3, 1, 2), (2, 3, 4, 2), (2, 1, 4, 2)])
def test_a4_the_output_owns_its_memory(shape, layout):
    x = random(*shape)
    a = attention(x, x, x, layout=layout)
    for out in (a.output, a.lse):
        assert out.flags.writeable
        assert out.flags.c_contiguous
        root = out
        while isinstance(root.base, np.ndarray):
            root = root.base
        assert root.flags.owndata  # it is all of a block of its own, not a window into something larger
        assert root.size == out.size
        assert not np.shares_memory(out, x)


def test_a4_an_only_key_is_copied_out_not_aliased():
    value = counting(1)
    out = attend(zeros(1, 2), zeros(1, 2), value)
    out[...] = 9
    assert value.tolist() == [[1]]


@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias", "sink"])
def test_a4_foreign_byte_order_is_refused_with_the_cast(name):
    arrays = {"query": zeros(1, 2, 2), "key": zeros(1, 2, 2), "value": zeros(1, 2, 2), "bias": zeros(1, 2, 2)}
    arrays["sink"] = zeros(1)
    if name == "mask":
        with pytest.raises(DTypeError, match="byte order"):
            keys(np.array([2]).astype(np.dtype(np.int64).newbyteorder()))
        return
    foreign = arrays[name].astype(arrays[name].dtype.newbyteorder())
    with pytest.raises(DTypeError) as caught:
        attend(**{**arrays, name: foreign})
    way = str(caught.value).partition("write ")[2]
    assert way == f'{name}.astype({name}.dtype.newbyteorder("="))'
    mended = eval(way, {name: foreign})  # the message is code that works
    assert attend(**{**arrays, name: mended}).shape == (1, 2, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a4_every_type_travels_exactly(dtype):
    """bfloat16 travels as its 16-bit pattern."""
    kind = numpy_dtype(dtype)
    value = np.array([[1.5, -(2.0**-10), 240.0]]).astype(kind)
    out = attend(zeros(1, 2).astype(kind), zeros(1, 2).astype(kind), value)
    assert out.dtype == value.dtype
    assert out.tolist() == value.tolist()


def test_a4_results_of_a_strided_view_of_one_array():
    x = np.arange(1, 11, dtype=np.float32)
    assert attend(zeros(1, 2), zeros(5, 2), x[::-2, None]).item() == 6.0  # 10, 8, 6, 4, 2


def test_a3_no_sequences_with_ids_for_each(engine):
    x = zeros(0, 2, 3, 4)
    assert attend(x, x, x, mask=segments(np.zeros((0, 3), int))).shape == (0, 2, 3, 4)


# A5: packed documents; more in test_packed.py.


def test_a5_packed_documents_are_answered_alone(engine):
    """Means of a document's own values, whatever stands before and behind it."""
    for lengths in ([5], [2, 3], [0, 4, 0, 1], [1] * 5):
        v = np.arange(1.0, 6.0).reshape(5, 1, 1)
        offsets = np.cumsum([0, *lengths])
        out = attend_packed(np.zeros((5, 2, 3)), np.zeros((5, 1, 3)), v, offsets)
        means = [float(v[a:b].mean()) for a, b in itertools.pairwise(offsets) for _ in range(b - a)]
        assert out.tolist() == [[[mean]] * 2 for mean in means]
