"""The cache in pages: shared, copied on write, trimmed, forgotten, kept in 16 bits; and no bit depends on it (F3)."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import ArgumentError, Cache, DTypeError, ShapeError, attend, attention, causal, explain, first, window
from qkv.floats import narrow, widen
from qkv.pages import Pages
from support.arrays import DTYPES, cast, same_bits, wide

# Bits are what this is about, and the NumPy engine promises F4 alone; `test_cache.py` asks both.
pytestmark = pytest.mark.usefixtures("native_engine")

G, H, D, E = 2, 4, 4, 3


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return cast(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def tokens(batch: tuple[int, ...], count: int, seed: int = 0, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    return random(*batch, G, count, D, seed=seed, dtype=dtype), random(*batch, G, count, E, seed=seed + 1, dtype=dtype)


def same(a: Cache, b: Cache, **arguments) -> None:
    """The keys of every sequence, and what queries read, are the same bits; what lies behind a length is not looked at."""
    assert a.lengths.tolist() == b.lengths.tolist()
    if not len(a):
        return
    batch = a.lengths.shape
    q = random(*batch, H, 1, D, seed=9, dtype=a.dtype)
    options = {"mask": causal(), "empty": "zero", **arguments}
    assert same_bits(attend(q, a, **options), attend(q, b, **options))
    for ours, theirs in zip(a.view(), b.view(), strict=True):
        for at in np.ndindex(batch):
            seen = slice(0, int(a.lengths[at]))
            assert same_bits(np.asarray(ours[at][:, seen]), np.asarray(theirs[at][:, seen]))


# Laws. ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [1, 3, 64])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_f3_pages_are_the_same_bits_as_one_block(batch, page, dtype):
    paged, whole = Cache(page=page), Cache()
    for step, count in enumerate((5, 1, 1, 0, 7, 1)):
        k, v = tokens(batch, count, seed=step, dtype=dtype)
        for cache in (paged, whole):
            cache.append(k, v)
        same(paged, whole)
        same(paged, whole, mask=causal() & window(3, 0) | first(1))


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "trim", "fork", "drop"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(1, 4))
def test_f3_any_history_is_that_of_one_block(steps, page):
    """Random appends of unequal counts, trims, forks and drops of several caches beside their unpaged twins."""
    pairs = [(Cache(page=page), Cache())]
    for seed, (kind, a, b) in enumerate(steps):
        paged, whole = pairs[a % len(pairs)]
        if kind == "append" or not whole.lengths.ndim:
            counts = [b % 5, (a + b) % 6]
            k, v = tokens((2,), 5, seed=seed)
            for cache in (paged, whole):
                cache.append(k, v, lengths=counts)
        elif kind == "trim":
            keep = [min(int(n), b) for n in whole.lengths]
            paged.trim(keep)
            whole.trim(keep)
        elif kind == "fork" and len(pairs) < 4:
            order = [[0, 1], [1, 0], [1, 1], [0, 0]][b % 4]
            pairs.append((paged.fork(order), whole.fork(order)))
        elif kind == "drop" and len(pairs) > 1:
            del pairs[a % len(pairs)], paged, whole
            gc.collect()
        for one, other in pairs:
            same(one, other)
    held = pairs[0][0]._held
    if held is not None:
        assert isinstance(held, Pages)
        counted = np.zeros_like(held.pool.holders)
        for one, _ in pairs:
            if isinstance(one._held, Pages) and one._held.pool is held.pool:
                for table in one._held.tables:
                    np.add.at(counted, table, 1)
        assert counted.tolist() == held.pool.holders.tolist()  # no page is lost, none is held by nobody


def test_append_after_a_fork_never_changes_the_sibling():
    parent = Cache(page=4).append(*tokens((1,), 6))
    before = [x.copy() for x in parent.view()]
    child = parent.fork()
    child.append(*tokens((1,), 3, seed=5))
    for old, now in zip(before, parent.view(), strict=True):
        assert same_bits(old, now)
    parent.append(*tokens((1,), 1, seed=6))
    whole = Cache().append(*tokens((1,), 6)).append(*tokens((1,), 3, seed=5))
    same(child, whole)
    same(parent, Cache().append(*tokens((1,), 6)).append(*tokens((1,), 1, seed=6)))


def test_trim_then_append_is_never_appended():
    k, v = tokens((2,), 9)
    cache = Cache(page=4).append(k, v).append(*tokens((2,), 5, seed=3)).trim(9)
    same(cache, Cache().append(k, v))
    more = tokens((2,), 6, seed=4)
    same(cache.append(*more), Cache().append(k, v).append(*more))


def test_decoding_in_pages_equals_the_whole():
    """B6: queries of as many rows as were appended last stand where those stand."""
    k, v = tokens((2,), 20)
    q = random(2, H, 20, D, seed=7)
    cache, at = Cache(page=4), 0
    for count in (7, 1, 5, 7):
        part = slice(at, at + count)
        cache.append(k[:, :, part], v[:, :, part])
        at += count
        out = attend(q[:, :, part], cache, mask=causal())
        assert same_bits(out, attend(q[:, :, part], k[:, :, :at], v[:, :, :at], mask=causal(align="end")))


# Memory. -----------------------------------------------------------------------------------------------------------


def bytes_of(count: int) -> int:
    return count * G * (D + E) * 4


def test_a_shared_prefix_is_held_once():
    prompt = Cache(page=16).append(*tokens((1,), 160))
    size = prompt.nbytes
    answers = prompt.fork([0] * 10)
    assert answers.nbytes == size  # nothing was copied
    answers.append(*tokens((10,), 1, seed=3))
    same(answers.fork([4]), Cache().append(*tokens((1,), 160)).append(*(x[4:5] for x in tokens((10,), 1, seed=3))))
    assert answers.nbytes <= 2 * bytes_of(160 + 10 * 16) + 4 * bytes_of(16) * 11  # as documented; ten copies are 1,600


def test_a_page_that_is_half_full_is_copied_by_who_writes_first():
    parent = Cache(page=4).append(*tokens((1,), 6))
    child = parent.fork()
    assert isinstance(child._held, Pages)
    child.append(*tokens((1,), 1, seed=2))
    assert child._held.tables[0][0] == parent._held.tables[0][0]
    assert child._held.tables[0][1] != parent._held.tables[0][1]
    whole = parent._held.tables[0][1]
    parent.append(*tokens((1,), 1, seed=3))  # now the only holder: no copy
    assert parent._held.tables[0][1] == whole


def test_freed_pages_are_used_again():
    cache = Cache(page=4).append(*tokens((1,), 40))
    size = cache.nbytes
    for _ in range(5):
        cache.trim(0).append(*tokens((1,), 40))
        child = cache.fork()
        child.append(*tokens((1,), 1))
        del child
        assert cache.nbytes <= 2 * size
    assert isinstance(cache._held, Pages)
    assert (cache._held.pool.holders > 0).sum() == 10


@pytest.mark.parametrize("batch", [(1,), (3,)], ids=str)
def test_memory_is_as_documented(batch):
    cache = Cache(page=8)
    for count in (30, *[1] * 90):
        cache.append(*tokens(batch, count))
        needed = batch[0] * -(-len(cache) // 8)
        assert cache.nbytes <= 2 * bytes_of(8 * needed) + batch[0] * 4 * bytes_of(8)


def test_each_sequence_has_the_pages_it_needs():
    """Without pages every sequence has the room of the longest."""
    k, v = tokens((4,), 256)
    paged = Cache(page=16).append(k, v, lengths=[256, 16, 16, 16])
    whole = Cache().append(k, v, lengths=[256, 16, 16, 16])
    same(paged, whole)
    used = (paged._held.pool.holders > 0).sum()
    assert used == (256 + 3 * 16) // 16
    assert whole.nbytes == 4 * bytes_of(256)


def test_runs_that_begin_at_unequal_distances_are_read_right():
    k, v = tokens((3,), 12)
    paged, whole = (cache.append(k, v, lengths=[2, 5, 12]) for cache in (Cache(page=2), Cache()))
    for step in range(4):
        same(paged, whole)
        for cache in (paged, whole):
            cache.append(*tokens((3,), 1, seed=step))


@pytest.mark.parametrize("batch", [(1,), (3,)], ids=str)
def test_equal_sequences_are_read_where_they_lie(batch):
    """No copy while a batch decodes together: the pages of each sequence stay one run, equally far apart."""
    cache = Cache(page=8).append(*tokens(batch, 20))
    for step in range(60):
        cache.append(*tokens(batch, 1, seed=step))
        assert np.shares_memory(cache.view()[0], cache._held.pool.key)


def test_pages_move_seldom():
    cache, moves, memory = Cache(page=4), 0, None
    for step in range(400):
        cache.append(*tokens((2,), 1, seed=step))
        moves += cache._held.pool.key is not memory
        memory = cache._held.pool.key
    assert moves <= 2 + int(np.log2(400))


# Windows that forget. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 3, 16])
def test_f3_a_window_that_forgets_gives_the_same_bits(page):
    """A window does not move the count of keys: block and split of a key are those of its index in the sequence."""
    forgetting, whole = Cache(page=page, window=5), Cache()
    for step, count in enumerate((9, 1, 4, 1, 1, 130, 1, 1)):
        k, v = tokens((2,), count, seed=step)
        q = random(2, H, count, D, seed=step)
        answers = [attend(q, cache.append(k, v), mask=causal() & window(5, 0)) for cache in (forgetting, whole)]
        assert same_bits(*answers)
    assert forgetting.lengths.tolist() == whole.lengths.tolist()
    assert forgetting.first == len(whole) - 1 - 5
    assert forgetting.view()[0].shape == (2, G, 6, D)


def test_a_window_holds_no_more_than_it_needs():
    cache = Cache(page=4, window=12)
    for step in range(300):
        cache.append(*tokens((1,), 1, seed=step))
    pages = -(-13 // 4) + 1
    assert (cache._held.pool.holders > 0).sum() <= pages
    assert cache.nbytes <= 2 * bytes_of(4 * pages) + 4 * bytes_of(4)
    assert repr(cache) == "<Cache float32 (1, 2) × 300 keys × 4, pages of 4, window 12>"


def test_sequences_forget_each_at_its_own_length():
    forgetting, whole = Cache(page=2, window=3), Cache()
    for step, counts in enumerate(([6, 1], [1, 1], [1, 6], [1, 1])):
        k, v = tokens((2,), 6, seed=step)
        for cache in (forgetting, whole):
            cache.append(k, v, lengths=counts)
        q = random(2, H, 1, D, seed=step)
        mask = causal() & window(3, 0)
        assert same_bits(attend(q, forgetting, mask=mask), attend(q, whole, mask=mask))


@pytest.mark.parametrize(
    "mask", [None, causal(), causal() & window(6, 0), causal() & (window(5, 0) | first(1))], ids=repr
)
def test_b7_no_mask_reaches_what_is_forgotten(mask):
    cache = Cache(window=5).append(*tokens((2,), 9)).append(*tokens((2,), 1))
    with pytest.raises(ArgumentError, match="but the cache has forgotten all before 4; add & window"):
        attend(random(2, H, 1, D), cache, mask=mask)
    assert attend(random(2, H, 1, D), cache, mask=causal() & window(5, 0)).shape == (2, H, 1, E)


def test_a_window_may_be_trimmed_as_far_as_it_is_whole():
    cache = Cache(page=2, window=3)
    k, v = tokens((1,), 12)
    for i in range(12):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
    assert cache.first == 8
    with pytest.raises(ArgumentError, match="must leave a window whole, at least 11 keys, but 10 came"):
        cache.trim(10)
    q, mask = random(1, H, 1, D), causal() & window(3, 0)
    cache.trim(11).append(k[:, :, :1], v[:, :, :1])
    whole = Cache().append(k, v).trim(11).append(k[:, :, :1], v[:, :, :1])
    assert same_bits(attend(q, cache, mask=mask), attend(q, whole, mask=mask))


def test_questions_about_a_window_begin_at_its_first_key():
    cache = Cache(window=2).append(*tokens((1,), 5)).append(*tokens((1,), 1))
    a = attention(random(1, H, 1, D), cache, mask=causal() & window(2, 0))
    assert cache.first == 3
    assert a.weights(0).shape == (1, H, 1, 3)
    assert a.top(1).keys.max() <= 2
    assert "3" in str(explain(random(1, H, 1, D), cache, mask=causal() & window(2, 0)))


# Half precision. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_storage_is_rounding_and_nothing_else(storage, dtype, page):
    """Bit for bit the cache of the rounded numbers, in half or a quarter of the memory."""
    half, whole = Cache(page=page, storage=storage), Cache(page=page)
    for step, count in enumerate((70, 1, 3)):
        k, v = tokens((2,), count, seed=step, dtype=dtype)
        half.append(k, v)
        whole.append(*(widen(narrow(wide(x), storage), storage).astype(x.dtype) for x in (k, v)))
    same(half, whole)
    assert half.dtype == dtype
    assert half.nbytes * k.dtype.itemsize == whole.nbytes * 2
    assert repr(half).endswith(f"kept in {storage}>")


def test_d3_the_largest_float16_is_no_infinity_when_it_is_kept_as_bfloat16():
    k, v = tokens((1,), 2, dtype="float16")
    v[0, 0, 1, 0] = 65504  # its neighbours in bfloat16 are 65280 and 65536
    assert Cache(storage="bfloat16").append(k, v).view()[1][0, 0, 1, 0] == 65504


def test_a_cache_of_half_precision_keeps_it_as_it_is():
    k, v = tokens((2,), 5, dtype="float16")
    assert same_bits(Cache(storage="float16").append(k, v).view()[0], k)


def test_numbers_that_would_become_infinite_are_refused():
    k, v = tokens((1,), 2)
    k[0, 0, 1, 0] = 1e5
    with pytest.raises(ArgumentError, match="key must fit the cache's storage float16, but holds 1e"):
        Cache(storage="float16").append(k, v)
    assert len(Cache(storage="bfloat16").append(k, v)) == 2


# Arguments. --------------------------------------------------------------------------------------------------------


def test_a_fork_without_pages_is_a_copy():
    parent = Cache().append(*tokens((2,), 5))
    child = parent.fork([1])
    child.append(*tokens((1,), 1))
    assert parent.lengths.tolist() == [5, 5]
    assert child.lengths.tolist() == [6]
    assert not np.shares_memory(parent.view()[0], child.view()[0])


def test_an_empty_cache_forks():
    child = Cache(page=4, window=7, storage="float16").fork()
    assert len(child.append(*tokens((1,), 3))) == 3
    assert "pages of 4, window 7, kept in float16" in repr(child)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"page": 0}, ArgumentError, "page must be at least 1, but 0 came"),
        ({"page": 2.5}, DTypeError, "page must be a whole number, but 2.5 came"),
        ({"window": -1}, ArgumentError, "window must be at least 0, but -1 came"),
        ({"window": True}, DTypeError, "window must be a whole number, but True came"),
        ({"storage": "int8"}, ArgumentError, "storage must be 'float16' or 'bfloat16', but 'int8' came"),
    ],
)
def test_arguments_are_checked(arguments, error, match):
    with pytest.raises(error, match=match):
        Cache(**arguments)


def test_sequences_to_fork_are_checked():
    cache = Cache(page=4).append(*tokens((2,), 3))
    with pytest.raises(ArgumentError, match=r"sequences must be within 0…1, but \[0, 2\] came"):
        cache.fork([0, 2])
    with pytest.raises(DTypeError, match="sequences must be a list of indices"):
        cache.fork(0.5)
    with pytest.raises(ShapeError, match=r"one batch axis, but this one has batch axes \(2, 2\)"):
        Cache().append(*tokens((2, 2), 3)).fork([0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page", [None, 4])
def test_what_torch_is_shown_is_no_copy(dtype: str, page: int | None) -> None:
    """A view of the held numbers, whose strides leave room for more tokens."""
    torch = pytest.importorskip("torch")
    cache = Cache(page=page)
    tokens = torch.randn(2, 3, 6, 8).to(getattr(torch, dtype))
    cache.append(tokens, tokens + 1)
    for one, again, right in zip(cache.view(), cache.view(), (tokens, tokens + 1), strict=True):
        assert one.data_ptr() == again.data_ptr()
        assert torch.equal(one, right)
