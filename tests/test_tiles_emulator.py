"""The emulator of tile instructions (support/tiles.c) does what Intel's manual says; a processor that has them does too.

Where the processor has tiles, no emulation takes place, and the same expectations are held against the processor.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from support import tiles
from support.tiles import config, programs

F32, U16 = np.dtype(np.float32), np.dtype(np.uint16)


@pytest.fixture
def emulator() -> Iterator[tiles.Tiles]:
    with tiles.emulated() as t:
        yield t
        programs().release()


class Rows(ctypes.Structure):
    """Where rows begin, and bytes from one to the next."""

    _fields_ = (("at", ctypes.c_void_p), ("stride", ctypes.c_int64))

    @classmethod
    def of(cls, a: np.ndarray) -> Rows:
        return cls(a.ctypes.data, a.strides[0])


def configure(**shapes: tuple[int, int]) -> None:
    programs().configure(config(**shapes).ctypes.data_as(ctypes.c_void_p))


def load(a: np.ndarray) -> None:
    programs().load(ctypes.byref(Rows.of(a)))


def store(a: np.ndarray) -> None:
    programs().store(ctypes.byref(Rows.of(a)))


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The upper halves of float32 numbers, as bits."""
    return (np.ascontiguousarray(x, F32).view(np.uint32) >> 16).astype(U16)


def float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(F32)


def multiply(c: np.ndarray, a: np.ndarray, b: np.ndarray, name: str = "multiply") -> np.ndarray:
    """c + a b by one instruction: c (M, N) float32, a (M, 2K) and b (K, 2N) bits of bfloat16, b with pairs along K."""
    places = (7, 3, 5) if name == "multiply_others" else (0, 1, 2)
    operands = [np.ascontiguousarray(x) for x in (c, a, b)]
    configure(**{f"t{n}": (x.shape[0], x.strides[0]) for n, x in zip(places, operands, strict=True)})
    out = np.full(c.shape, 7, F32)
    getattr(programs(), name)(*(ctypes.byref(Rows.of(x)) for x in (*operands, out)))
    return out


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(F32).astype(np.float64)


def model(c: np.ndarray, a: np.ndarray, b: np.ndarray, order: int = tiles.MANUAL) -> np.ndarray:
    """The manual's operation. Exact where float64 holds product and sum, which `numbers` sees to."""
    a, b = (float32(x).astype(np.float64) for x in (a, b))
    a_even, a_odd, b_even, b_odd = a[:, ::2], a[:, 1::2], b[:, ::2], b[:, 1::2]
    even, odd, total = (np.zeros(c.shape), np.zeros(c.shape), c.astype(np.float64))
    steps = range(len(b))
    for k in reversed(steps) if order == tiles.BACKWARDS else steps:
        left, right = np.outer(a_even[:, k], b_even[k]), np.outer(a_odd[:, k], b_odd[k])
        even, odd = rounded(even + left), rounded(odd + right)
        total = rounded(rounded(total + left) + right)
    if order == tiles.MANUAL:
        total = rounded(c + rounded(even + odd))
    elif order == tiles.BACKWARDS:
        total = rounded(rounded(c + odd) + even)
    return total.astype(F32)


def numbers(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Normal numbers, bits of bfloat16, from 2^-4 to 8: their products are multiples of 2^-22 below 64."""
    rng = np.random.default_rng(seed)
    return bfloat16(rng.choice([-1, 1], shape) * rng.uniform(2.0**-4, 8, shape))


def case(M: int, N: int, K: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A destination, and two sources of K pairs; everything a multiple of 2^-22, so that sums in float64 are exact."""
    c = np.round(np.random.default_rng(seed).normal(0, 9, (M, N)) * 2.0**18) * 2.0**-18
    return c.astype(F32), numbers((M, 2 * K), seed + 1), numbers((K, 2 * N), seed + 2)


def bits_agree(t: tiles.Tiles, found: np.ndarray, expected: np.ndarray, terms: np.ndarray, count: int) -> None:
    """Bit for bit; a processor that adds otherwise than the manual tells must still be within any order's bound."""
    bound = 2 * count * np.finfo(F32).eps / 2 * terms  # `count` roundings in a chain, each half a unit, to first order
    assert (abs(found.astype(np.float64) - expected) <= bound).all()
    if t.hardware and (found != expected).any():
        pytest.skip(f"this processor adds in another order: {(found != expected).mean():.0%} of the sums differ")
    np.testing.assert_array_equal(found, expected)


# Configurations.


@pytest.mark.parametrize("way", ["configure", "configure_shelf", "configure_without_base"])
@pytest.mark.parametrize("back", ["configuration", "configuration_indexed", "configuration_on_stack"])
def test_a_configuration_comes_back(emulator, way, back):
    given, found = config(t0=(16, 64), t3=(5, 12), t7=(1, 4)), np.full(64, 9, np.uint8)
    for function, array in ((way, given), (back, found)):
        getattr(programs(), function)(array.ctypes.data_as(ctypes.c_void_p))
    np.testing.assert_array_equal(found, given)


def test_released_tiles_are_not_configured(emulator):
    configure(t0=(16, 64))
    programs().release()
    found = np.full(64, 9, np.uint8)
    programs().configuration(found.ctypes.data_as(ctypes.c_void_p))
    assert not found.any()


def test_palette_0_is_no_configuration_whatever_stands_behind_it(emulator):
    given, found = config(palette=0, t0=(99, 999)), np.full(64, 9, np.uint8)
    programs().configure(given.ctypes.data_as(ctypes.c_void_p))
    programs().configuration(found.ctypes.data_as(ctypes.c_void_p))
    assert not found.any()


def test_a_configuration_empties_the_tiles(emulator):
    full, out = np.ones((16, 64), np.uint8), np.ones((16, 64), np.uint8)
    configure(t0=(16, 64))
    load(full)
    configure(t0=(16, 64))
    store(out)
    assert not out.any()


# Loads and stores.


@pytest.mark.parametrize(("rows", "colsb"), [(16, 64), (1, 4), (7, 20), (16, 4), (1, 64), (13, 60)])
@pytest.mark.parametrize("step", [64, 67, 128, -64, -131])
def test_rows_come_back_and_nothing_else_is_written(emulator, rows, colsb, step):
    """Odd row counts, strides that are longer than a row, no multiple of four, or backwards."""
    given = np.random.default_rng(rows).integers(0, 256, (16, abs(step)), np.uint8)
    out, untouched = np.full((16, abs(step)), 99, np.uint8), np.full((16, abs(step)), 99, np.uint8)
    way = slice(None, None, -1) if step < 0 else slice(None)
    configure(t0=(rows, colsb))
    load(given[way])
    store(out[way])
    untouched[way][:rows, :colsb] = given[way][:rows, :colsb]
    np.testing.assert_array_equal(out, untouched)


@pytest.mark.parametrize("way", ["load_hint", "load_upper", "load_near", "load_far", "load_eighths", "load_first"])
def test_addresses_of_every_form(emulator, way):
    given = np.random.default_rng(1).integers(0, 256, (16, 80), np.uint8)
    out = np.zeros((16, 64), np.uint8)
    configure(t6=(16, 64))
    getattr(programs(), way)(ctypes.c_void_p(given.ctypes.data), ctypes.c_int64(80), ctypes.byref(Rows.of(out)))
    expected = np.broadcast_to(given[:1] if way == "load_first" else given, (16, 80))
    np.testing.assert_array_equal(out, expected[:, :64])


def test_a_load_leaves_nothing_of_what_was_there(emulator):
    out = np.ones((16, 64), np.uint8)
    configure(t0=(16, 64), t7=(16, 64))
    load(np.full((16, 64), 5, np.uint8))
    load(given := np.arange(1024, dtype=np.uint8).reshape(16, 64))
    programs().zero_7()
    store(out)
    np.testing.assert_array_equal(out, given)
    programs().zero_0()
    store(out)
    assert not out.any()


def test_the_interrupted_code_keeps_its_registers(emulator):
    configure(t0=(16, 64))
    assert programs().survivors() == 1


# Products.

SHAPES = [(16, 16, 16), (1, 1, 1), (5, 7, 3), (16, 3, 16), (7, 16, 9), (16, 16, 1), (1, 16, 16), (11, 1, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["multiply", "multiply_others"])
@pytest.mark.parametrize("order", [tiles.MANUAL, tiles.BACKWARDS, tiles.ONE_CHAIN])
def test_products_add_up_as_the_manual_says(emulator, shape, name, order):
    if emulator.hardware and order != tiles.MANUAL:
        pytest.skip("the processor has an order of its own")
    emulator.swap(order)
    for seed in range(3):
        c, a, b = case(*shape, seed)
        magnitude = model(abs(c), a & 0x7FFF, b & 0x7FFF)
        bits_agree(emulator, multiply(c, a, b, name), model(c, a, b, order), magnitude, 2 * shape[2] + 2)


def test_whole_numbers_are_exact_in_any_order(emulator):
    """No rounding, so nothing is the processor's choice."""
    rng = np.random.default_rng(5)
    c, a, b = (rng.integers(-99, 100, shape).astype(F32) for shape in ((16, 16), (16, 32), (16, 32)))
    pairs = b.reshape(16, 16, 2).transpose(0, 2, 1).reshape(32, 16)
    np.testing.assert_array_equal(multiply(c, bfloat16(a), bfloat16(b)), c + a @ pairs)


def test_the_orders_differ():
    """Else a test that goes through all of them would show nothing."""
    c, a, b = case(16, 16, 16)
    found = [model(c, a, b, order) for order in (tiles.MANUAL, tiles.BACKWARDS, tiles.ONE_CHAIN)]
    assert all((x != y).any() for x, y in ((found[0], found[1]), (found[0], found[2]), (found[1], found[2])))


@pytest.mark.parametrize("mode", [0x1F80, 0x3F80, 0x5F80, 0x7F80, 0x0000], ids=lambda m: f"{m:#06x}")
def test_the_threads_rounding_mode_is_neither_read_nor_changed(emulator, mode):
    """Upwards, downwards, towards 0, and with every exception unmasked."""
    c, a, b = case(16, 16, 16)
    expected, out = multiply(c, a, b), np.zeros_like(c)
    after = programs().multiply_under(mode, *(ctypes.byref(Rows.of(x)) for x in (c, a, b, out)))
    assert after == mode
    np.testing.assert_array_equal(out, expected)


def one_sum(c: float, *products: tuple[float, float]) -> np.float32:
    """A single sum: the products stand at even and odd places in turn."""
    a, b = np.zeros((1, 2 * len(products)), F32), np.zeros((len(products), 2), F32)
    for k, (left, right) in enumerate(products):
        a[0, 2 * k], b[k, 0] = left, right
    found: np.float32 = multiply(np.array([[c]], F32), bfloat16(a), bfloat16(b))[0, 0]
    return found


TINY = float(np.finfo(F32).tiny)  # 2^-126, the smallest normal number


@pytest.mark.parametrize(
    ("c", "products"),
    [
        (0.0, [(TINY / 2, 2.0**100)]),  # a subnormal factor
        (0.0, [(2.0**100, -TINY / 128)]),
        (TINY / 2, [(0.0, 1.0)]),  # a subnormal destination, though nothing is added to it
        (TINY / 2, [(TINY, 0.5)]),
        (0.0, [(2.0**-63, 2.0**-64)]),  # a subnormal product
        (0.0, [(2.0**-63, 1.5 * 2.0**-63), (2.0**-63, -(2.0**-63))]),  # a subnormal sum of normal products
        (1.5 * TINY, [(TINY, -1.0)]),  # and of a product with the destination
    ],
)
def test_subnormal_numbers_are_zeros(emulator, c, products):
    assert one_sum(c, *products) == 0


def test_the_smallest_normal_number_is_no_zero(emulator):
    assert one_sum(0.0, (TINY, 1.0)) == np.float32(TINY)
    assert one_sum(TINY, (0.0, 1.0)) == np.float32(TINY)


def test_nan_and_infinity_reach_their_row_and_column_alone(emulator):
    """Which NaN it is, is the processor's choice."""
    c, a, b = case(16, 16, 16)
    plain = multiply(c, a, b)
    (a[3, 5], b[2, 2 * 7 + 1]), c[12, 0] = bfloat16(np.array([np.nan, np.inf])), np.nan
    found = multiply(c, a, b)
    assert np.isnan(found[3]).all()
    assert np.isnan(found[12, 0])
    others = np.delete(np.arange(16), 3)
    with np.errstate(invalid="ignore"):
        assert (found[others, 7] == np.copysign(np.inf, float32(a)[others, 5])).all()
    touched = np.zeros((16, 16), bool)
    touched[3], touched[:, 7], touched[12, 0] = True, True, True
    np.testing.assert_array_equal(found[~touched], plain[~touched])


@pytest.mark.parametrize("c", [0.0, np.inf])
def test_infinity_times_zero_and_opposite_infinities_are_nan(emulator, c):
    assert np.isnan(one_sum(c, (np.inf, 0.0)))
    assert np.isnan(one_sum(np.inf, (-np.inf, 1.0)))
    assert one_sum(0.0, (3e38, 3e38)) == np.inf


# Threads and counts.


def test_each_thread_has_tiles_of_its_own(emulator):
    barrier, out = threading.Barrier(2, timeout=60), np.zeros((2, 16, 64), np.uint8)

    def work(n: int) -> None:
        configure(t0=(16 - 9 * n, 64 - 20 * n))
        barrier.wait()
        load(np.full((16, 64), n + 1, np.uint8))
        barrier.wait()
        store(out[n])
        programs().release()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.zeros_like(out)
    expected[0], expected[1, :7, :44] = 1, 2
    np.testing.assert_array_equal(out, expected)


def test_what_ran_is_counted(emulator):
    multiply(*case(16, 16, 16))
    programs().zero_0()
    expected = {"ldtilecfg": 1, "tileloadd": 3, "tilestored": 1, "tdpbf16ps": 1, "tilezero": 1}
    if not emulator.hardware:
        assert {kind: n for kind in tiles.KINDS if (n := emulator.count(kind))} == expected
        assert not emulator.ran("tileloaddt1")
    assert emulator.ran("tdpbf16ps")
    with tiles.emulated() as inner:
        assert inner.hardware or not inner.ran("tdpbf16ps")
        programs().zero_0()
    programs().zero_0()
    assert emulator.hardware or emulator.count("tilezero") == 3
