"""Random mask expressions for property tests; what each means is written in `meanings.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from . import meanings
from .meanings import Pair, Sizes, both, either, negated


def causals(sizes: Sizes, align: Any) -> st.SearchStrategy[Pair]:
    return st.builds(lambda: meanings.causal(align))


@st.composite
def windows(draw: Any, sizes: Sizes, align: Any) -> Pair:
    left, right = (draw(st.none() | st.integers(0, sizes.keys + 2)) for _ in range(2))
    return meanings.window(left, right, align)


@st.composite
def prefixes(draw: Any, sizes: Sizes, align: Any) -> Pair:
    return meanings.prefix(draw(st.integers(0, sizes.keys + 1)), align)


@st.composite
def firsts(draw: Any, sizes: Sizes, align: Any) -> Pair:
    return meanings.first(draw(st.integers(0, sizes.keys + 1)))


@st.composite
def lengths(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """keys(lengths) and keys(start, stop), one number or one per sequence."""
    per_batch = bool(sizes.batch) and draw(st.booleans())
    count = sizes.batches if per_batch else 1
    stop = np.array([draw(st.integers(0, sizes.keys)) for _ in range(count)], np.int64)
    start = np.array([draw(st.integers(0, int(n))) for n in stop], np.int64) * draw(st.integers(0, 1))
    left_padded = bool(start.any()) or draw(st.booleans())
    return meanings.lengths(sizes, start if left_padded else None, stop, per_batch)


@st.composite
def existing(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """keys(booleans): one run of True or several."""
    per_batch = bool(sizes.batch) and draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = sizes.batches if per_batch else 1
    if draw(st.booleans()):
        edges = np.sort(rng.integers(0, sizes.keys + 1, (count, 2)), axis=-1)
        j = np.arange(sizes.keys)
        flat = (edges[:, :1] <= j) & (j < edges[:, 1:])
    else:
        flat = rng.random((count, sizes.keys)) < draw(st.sampled_from([0.2, 0.7, 1.0]))
    return meanings.existing(sizes, flat, per_batch)


@st.composite
def documents(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """segments: ascending runs of one id, or ids in any order, or ids that no key carries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = draw(st.integers(1, 4))
    ordered = draw(st.booleans())

    def ids(length: int) -> np.ndarray:
        shape = (sizes.batches, length) if draw(st.booleans()) and sizes.batch else (1, length)
        found = rng.integers(0, kinds, shape) - 1
        return np.sort(found, axis=-1) if ordered else found

    q = ids(sizes.queries)
    same = sizes.queries == sizes.keys and draw(st.booleans())
    return meanings.documents(sizes, q, None if same else ids(sizes.keys), ordered)


@st.composite
def arrays(draw: Any, sizes: Sizes, align: Any) -> Pair:
    """allow(array) of every shape that broadcasts from the right."""
    full = (*sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    axes = draw(st.integers(2, len(full)))
    shape = tuple(n if draw(st.integers(0, 3)) else 1 for n in full[-axes:])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return meanings.array(sizes, rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 0.9])))


@st.composite
def rules(draw: Any, sizes: Sizes, align: Any) -> Pair:
    return meanings.rule(draw(st.sampled_from(sorted(meanings.RULES))), align)


LEAVES = (causals, windows, prefixes, firsts, lengths, existing, documents, arrays, rules)


@st.composite
def expressions(draw: Any, sizes: Sizes, align: Any, depth: int = 2, leaves: Any = LEAVES) -> Pair:
    """A leaf, or two expressions joined, or one negated."""
    joint = draw(st.sampled_from(["leaf", "and", "and", "or", "not"])) if depth else "leaf"
    if joint == "leaf":
        return draw(draw(st.sampled_from(leaves))(sizes, align))
    a = draw(expressions(sizes, align, depth - 1, leaves))
    if joint == "not":
        return negated(a)
    b = draw(expressions(sizes, align, depth - 1, leaves))
    return both(a, b) if joint == "and" else either(a, b)


@st.composite
def alignments(draw: Any, sizes: Sizes) -> Any:
    """What `align=` may say; None only where nothing has to be said."""
    choices: list[Any] = ["end", "start", draw(st.integers(-sizes.queries - 1, sizes.keys + 1))]
    if sizes.batch:
        choices.append(
            np.array([draw(st.integers(-3, sizes.keys)) for _ in range(sizes.batches)], np.int64).reshape(sizes.batch)
        )
    if sizes.queries == sizes.keys or not sizes.queries or not sizes.keys:
        choices += [None, None, None]
    return draw(st.sampled_from(choices))
