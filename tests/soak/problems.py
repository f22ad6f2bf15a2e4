"""Any call of the front door, drawn from facts: sizes, numbers, masks, biases, strides, and what the definition is asked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import qkv
from support import meanings
from support.arrays import DTYPES, STRIDES, cast, restride, wide
from support.liars import unaligned
from support.meanings import Pair, Sizes, both, dense_of, either, negated, placed
from support.problems import EDGES, MAGNITUDES, SHORT, WIDTHS, Problem, numbers, plant

from .facts import Facts

#: Head widths where the order of additions changes, and their neighbours.
WIDE = (127, 128, 129, 255, 256, 257, 512, 1024, 1025)
LONG = (2047, 2048, 2049, 4095, 4097)
#: What a case may come to in numbers that are added up, so that most are a matter of a few milliseconds.
ROOM = (10_000,) * 60 + (30_000,) * 30 + (100_000,) * 9 + (400_000,)

#: What the numbers are like, and as no property test has them.
NUMBERS = (*MAGNITUDES, "opposed")
#: Positions beyond which distances are no longer exact in float32.
FAR = tuple(sign * (2**power + by) for sign in (1, -1) for power in (22, 24, 33) for by in (-9, 3))
SLOPES = (0.0, 0.5, 0.125, -0.25, 1.0, 2.0**-30)

#: How operands lie in memory.
LIES = (*STRIDES, "unaligned")

LEAVES = ("causal", "window", "prefix", "first", "lengths", "existing", "documents", "array", "rule")


def lying(array: np.ndarray, how: str) -> np.ndarray:
    return unaligned(array) if how == "unaligned" else restride(array, how)


def dtype_of(facts: Facts) -> str:
    return facts.pick("dtype", ("float32", *(name for name in DTYPES if name != "float32")))


def lengths_of(facts: Facts) -> tuple[int, int]:
    """Queries and keys: 0, 1, primes, edges of tiles, blocks and splits ±1, and anything between."""
    kind = facts.pick("lengths", ("short", "short", "short", "any", "any", "few rows", "edges", "edge rows", "split"))
    options: dict[str, tuple[Any, Any]] = {
        "short": (SHORT, SHORT),
        "any": (range(1, 71), range(1, 71)),
        "few rows": ((1, 2, 3, 4), EDGES),
        "edges": (EDGES, EDGES),
        "edge rows": (EDGES, SHORT),
        "split": ((1, 1, 2, 3), LONG),
    }
    rows, columns = options[kind]
    queries = facts.number("queries", int(facts.rng("queries").choice(rows)))
    keys = facts.number("keys", int(facts.rng("keys").choice(columns)))
    if kind in ("short", "any", "edges") and facts.chance("as many keys", 0.4):
        keys = queries
    return queries, keys


class Shape(NamedTuple):
    """Sizes of one call, and the heads of its keys."""

    size: Sizes
    groups: int
    width: int
    value_width: int


def shape_of(facts: Facts, dtype: str, keys_are_columns: bool = False) -> Shape:
    """Any sizes, cut where there is no room for them. `keys_are_columns`: the check mixes a column for each key."""
    dear = 3 if dtype == "float64" else 1  # it is checked in extended precision
    options = WIDTHS if facts.pick("widths", ("usual",) * 11 + ("wide",)) == "usual" else WIDE
    width = facts.number("width", int(facts.rng("width").choice(options)), 1)
    value_width = facts.number("value width", int(facts.rng("value width").choice(options)), 1)
    queries, keys = lengths_of(facts)
    batch = facts.item("batch", ((), (), (1,), (2,), (3,), (2, 2), (0,), (1, 3)))
    groups = facts.pick("groups", (1, 1, 2, 3))
    sharing = facts.pick("sharing", (1, 1, 2, 3, 5))
    room = facts.pick("room", ROOM)

    def cost() -> int:
        columns = keys if keys_are_columns else value_width
        operands = 2 * (queries + keys) * (width + value_width)
        pairs = queries * keys * (16 + columns + width // 4)
        return dear * int(np.prod(batch, dtype=np.int64)) * groups * sharing * (pairs + operands)

    while cost() > room:
        if value_width > 3:
            value_width //= 2
        elif batch not in ((), (1,), (2,)):
            batch = (2,)
        elif groups * sharing > 2:
            groups, sharing = (2, 1) if groups > 1 else (1, 2)
        elif width > 8 and (options is WIDTHS or keys > 1000):
            width //= 2
        elif queries > 3:
            queries //= 2
        elif keys > 17 and keys_are_columns:
            keys //= 2
        elif batch == (2,):
            batch = ()
        elif groups * sharing > 1:
            groups = sharing = 1
        else:
            break
    return Shape(Sizes(batch, groups * sharing, queries, keys), groups, width, value_width)


def alignment(facts: Facts, size: Sizes) -> Any:
    """What `align=` says; None only where nothing has to be said."""
    told = facts.pick("align", ("end", "start", "a number", "numbers", "untold", "untold", "far"))
    rng = facts.rng("align")
    if told == "untold":
        return None if size.queries == size.keys or not size.queries or not size.keys else "end"
    if told == "a number":
        return int(rng.integers(-size.queries - 1, size.keys + 2))
    if told == "far":
        return int(rng.choice(FAR))
    if told == "numbers":
        return rng.integers(-3, size.keys + 1, size.batches).reshape(size.batch) if size.batch else "start"
    return told


def leaf(facts: Facts, name: str, size: Sizes, align: Any, leaves: tuple[str, ...]) -> Pair:
    kind, rng = facts.pick(f"{name} rule", leaves), facts.rng(name)
    most = size.keys
    if kind == "causal":
        return meanings.causal(align)
    if kind == "window":
        sides = [None if rng.random() < 0.25 else int(rng.integers(0, most + 3)) for _ in range(2)]
        return meanings.window(*sides, align)
    if kind == "prefix":
        return meanings.prefix(int(rng.integers(0, most + 2)), align)
    if kind == "first":
        return meanings.first(int(rng.integers(0, most + 2)))
    per_batch = bool(size.batch) and rng.random() < 0.6
    count = size.batches if per_batch else 1
    if kind == "lengths":
        stop = rng.integers(0, most + 1, count)
        start = rng.integers(0, stop + 1) if rng.random() < 0.5 else None
        return meanings.lengths(size, start, stop, per_batch)
    if kind == "existing":
        if rng.random() < 0.5:
            edges = np.sort(rng.integers(0, most + 1, (count, 2)), axis=-1)
            flat = (edges[:, :1] <= np.arange(most)) & (np.arange(most) < edges[:, 1:])
        else:
            flat = rng.random((count, most)) < rng.choice([0.2, 0.7, 1.0])
        return meanings.existing(size, flat, per_batch)
    if kind == "documents":
        return _documents(rng, size)
    if kind == "array":
        full = (*size.batch, size.heads, size.queries, size.keys)
        shape = tuple(n if rng.random() < 0.75 else 1 for n in full[-int(rng.integers(2, len(full) + 1)) :])
        return meanings.array(size, rng.random(shape) < rng.choice([0.1, 0.5, 0.9]))
    return meanings.rule(str(rng.choice(sorted(meanings.RULES))), align)


def _documents(rng: np.random.Generator, size: Sizes) -> Pair:
    kinds, ordered = int(rng.integers(1, 5)), bool(rng.random() < 0.5)

    def ids(length: int) -> np.ndarray:
        shape = (size.batches, length) if size.batch and rng.random() < 0.5 else (1, length)
        found = rng.integers(0, kinds, shape) - 1
        return np.sort(found, axis=-1) if ordered else found

    q = ids(size.queries)
    same = size.queries == size.keys and rng.random() < 0.5
    return meanings.documents(size, q, None if same else ids(size.keys), ordered)


def expression(
    facts: Facts, size: Sizes, align: Any, leaves: tuple[str, ...] = LEAVES, name: str = "mask", depth: int = 2
) -> Pair:
    """A leaf, or two expressions joined, or one negated."""
    joint = facts.pick(name, ("leaf", "leaf", "and", "and", "or", "not")) if depth else "leaf"
    if joint == "leaf":
        return leaf(facts, name, size, align, leaves)
    a = expression(facts, size, align, leaves, name + "0", depth - 1)
    if joint == "not":
        return negated(a)
    b = expression(facts, size, align, leaves, name + "1", depth - 1)
    return both(a, b) if joint == "and" else either(a, b)


def options_of(facts: Facts, heads: int) -> dict[str, Any]:
    """Scale, softcap and sink."""
    out: dict[str, Any] = {}
    if facts.chance("scale", 0.33):
        out["scale"] = float(facts.rng("scale").choice([0.0, 1.0, -0.5, 3.0, 2.0**-20]))
    if facts.chance("softcap", 0.25):
        out["softcap"] = float(facts.rng("softcap").choice([0.5, 5.0, 50.0, 2.0**-100, 2.0**100]))
    if facts.chance("sink", 0.25):
        out["sink"] = facts.rng("sink").choice([-30.0, -1.0, 0.0, 2.5, 40.0], heads)
    return out


def problem_of(
    facts: Facts,
    *,
    magnitudes: tuple[str, ...] = NUMBERS,
    planted: bool = True,
    biases: tuple[str, ...] = ("none", "none", "array", "alibi"),
    keys_are_columns: bool = False,
    layouts: bool = True,
) -> Problem:
    """Any call the contract covers, of the kinds named."""
    dtype = dtype_of(facts)
    size, groups, width, value_width = shape_of(facts, dtype, keys_are_columns)
    batch, heads, queries, keys = size.batch, size.heads, size.queries, size.keys
    magnitude = facts.pick("numbers", magnitudes)
    align = alignment(facts, size)
    pair = expression(facts, size, align) if facts.chance("masked", 0.7) else None
    kind = facts.pick("bias", biases)
    size = placed(size, align, pair)
    dense = dense_of(pair, size).reshape(*batch, heads, queries, keys)
    arguments: dict[str, Any] = {} if pair is None else {"mask": pair.mask}
    bias, roundings = None, 0
    if kind in ("array", "finite"):
        arguments["bias"], bias = _bias_array(facts.rng("bias"), dtype, dense, kind == "finite")
    elif kind == "alibi":
        slopes = facts.rng("bias").choice(SLOPES, heads)
        arguments["bias"], roundings = qkv.alibi(slopes, align=align), 3
        _, _, p, j = size.axes()
        bias = (-slopes[None, :, None, None] * abs(p - j)).reshape(*batch, heads, queries, keys)
    elif pair is None or not pair.positional:
        size = placed(size, None, None)  # nothing speaks of positions, so nothing said where rows stand
    arguments |= options_of(facts, heads)
    rng = facts.rng("operands")
    shapes = ((heads, queries, width), (groups, keys, width), (groups, keys, value_width))
    q, k, v = (
        cast(numbers(rng, (*batch, *shape), dtype, magnitude, role), dtype)
        for shape, role in zip(shapes, ("query", "key", "value"), strict=True)
    )
    if planted and facts.chance("planted", 0.33):
        for array in (q, k, v):
            plant(rng, array, int(rng.choice([0, 1, 3])))
    if layouts:
        layout = facts.pick("layout", ("bhld", "bhld", "blhd", "one head"))
        if layout == "one head" and not batch and heads == groups == 1:
            q, k, v = q[0], k[0], v[0]
        elif layout == "blhd":
            arguments["layout"] = "blhd"
            q, k, v = (np.ascontiguousarray(x.swapaxes(-2, -3)) for x in (q, k, v))
    q, k, v = (lying(x, facts.pick(f"{name} lies", LIES)) for x, name in ((q, "query"), (k, "key"), (v, "value")))
    return Problem(q, k, v, dtype, arguments, dense, bias, roundings, pair, size)


def _bias_array(rng: np.random.Generator, dtype: str, dense: np.ndarray, finite: bool) -> tuple[np.ndarray, np.ndarray]:
    """(as passed, exact numbers broadcast to (B…, H, L, S)). -inf forbids; NaN stands only where nothing reads it (B3)."""
    full = dense.shape
    shape = tuple(n if rng.random() < 0.67 else 1 for n in full[-int(rng.integers(2, len(full) + 1)) :])
    if len(shape) == 2:
        # Two axes that could be (B, S) as well are refused (B4); four cannot be misread.
        shape = (1,) * (len(full) - 2) + shape
    found = rng.standard_normal(shape) * rng.choice([1.0, 10.0])
    if not finite:
        found[rng.random(shape) < rng.choice([0.0, 0.2])] = -np.inf
    array = cast(found, "float32" if rng.random() < 0.5 and not finite else dtype)
    if shape == full and not finite and rng.random() < 0.5:
        array[~dense] = rng.choice([np.nan, np.inf, -np.inf, 0.0], int((~dense).sum())).astype(array.dtype)
    return array, np.broadcast_to(wide(array), full)
