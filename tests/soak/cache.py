"""A cache that is filled, trimmed and forked at random, asked between, and a list of tokens that says what is in it (B6, B7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qkv
from qkv import Cache
from qkv.floats import narrow, widen
from support.arrays import cast, wide
from support.checks import holds, within
from support.meanings import Sizes, dense_of
from support.problems import numbers
from support.runs import Attend, front_door

from . import levels
from .facts import Facts
from .problems import LIES, dtype_of, expression, lying, options_of

#: Rules that need no number of keys, which every step changes.
LEAVES = ("causal", "window", "prefix", "first")
CALM = ("tame", "small", "peaked", "values at the edge")


@dataclass
class Twin:
    """A cache beside what it should hold: for each sequence its keys (n, G, D) and values (n, G, E), widened."""

    cache: Cache
    keys: list[list[np.ndarray]]
    values: list[list[np.ndarray]]
    before: np.ndarray
    appended: int = 0
    firsts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(one) for one in self.keys], np.int64)


def cache(facts: Facts, attend: Attend = front_door) -> int:
    levels.engine_of(facts)
    dtype, rng = dtype_of(facts), facts.rng("cache")
    batch = facts.item("batch", ((1,), (), (2,), (3,), (2, 2)))
    count = int(np.prod(batch, dtype=np.int64))
    groups, sharing = facts.pick("groups", (1, 1, 2)), facts.pick("sharing", (1, 2, 3))
    width, value_width = (
        facts.number(name, int(rng.choice(options)), 1)
        for name, options in (("width", (1, 2, 4, 8, 17, 64)), ("value width", (1, 2, 3, 8)))
    )
    page = facts.pick("page", (0, 0, 1, 3, 16))
    storage = facts.pick("storage", ("", "", "", "float16", "bfloat16"))
    window = int(rng.integers(0, 12)) if facts.chance("forgets", 0.25) else None
    magnitude = "tame" if storage else facts.pick("numbers", CALM)
    made = Cache(page=page or None, window=window, storage=storage or None)
    empty = np.zeros(count, np.int64)
    twins = [Twin(made, [[] for _ in range(count)], [[] for _ in range(count)], empty, 0, empty)]
    asked = 0
    for step in range(facts.whole("steps", 1, 6)):
        at = int(rng.integers(len(twins)))
        kind = facts.pick(f"step {step}", ("append", "append", "append", "append", "trim", "fork"))
        if kind == "fork" and len(batch) == 1 and count and twins[at].appended >= 0 and twins[at].lengths.any():
            twins.append(_fork(twins[at], rng.integers(0, count, count)))
        elif kind == "trim" and twins[at].lengths.any():
            _trim(twins[at], rng, window)
        else:
            tokens = facts.number(f"tokens {step}", int(rng.choice([1, 1, 1, 1, 2, 3, 7, 17, 33, 64, 65])), 1)
            ragged = facts.chance(f"ragged {step}", 0.3)
            _append(
                twins[at], rng, dtype, storage, magnitude, batch, (groups, tokens, width, value_width), ragged, window
            )
        twin = twins[int(rng.integers(len(twins)))]
        if twin.lengths.any():
            asked += _ask(facts, f"step {step}", twin, rng, dtype, batch, groups * sharing, window, magnitude)
    return asked


def _append(
    twin: Twin,
    rng: np.random.Generator,
    dtype: str,
    storage: str,
    magnitude: str,
    batch: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    ragged: bool,
    window: int | None,
) -> None:
    groups, tokens, width, value_width = sizes
    k, v = (
        cast(numbers(rng, (*batch, groups, tokens, w), dtype, magnitude, role), dtype)
        for w, role in ((width, "key"), (value_width, "value"))
    )
    counts = rng.integers(0, tokens + 1, batch) if ragged else np.full(batch, tokens)
    if ragged:
        # What is no token may be anything.
        gone = np.arange(tokens) >= counts[..., None]
        for array in (k, v):
            array[np.broadcast_to(gone[..., None, :, None], array.shape)] = np.nan
    k, v = (lying(x, str(rng.choice(LIES))) for x in (k, v))
    twin.cache.append(k, v, lengths=counts if ragged else None)
    twin.before, twin.appended = twin.lengths, tokens
    if window is not None:
        twin.firsts = np.maximum(twin.firsts, twin.lengths - window)
    for array, held in ((k, twin.keys), (v, twin.values)):
        exact = wide(array) if not storage else widen(narrow(wide(array).astype(np.float32), storage), storage)
        flat = exact.reshape(-1, *exact.shape[-3:])
        for n, count in enumerate(counts.reshape(-1)):
            held[n].extend(flat[n, :, t] for t in range(count))


def _trim(twin: Twin, rng: np.random.Generator, window: int | None) -> None:
    least = np.where(twin.firsts > 0, twin.firsts + (window or 0), 0)
    wanted = np.array([int(rng.integers(min(low, n), n + 1)) for low, n in zip(least, twin.lengths, strict=True)])
    twin.cache.trim(wanted.reshape(twin.cache.lengths.shape))
    for held in (twin.keys, twin.values):
        for n, keep in enumerate(wanted):
            del held[n][keep:]
    twin.before, twin.appended = twin.lengths, 0


def _fork(twin: Twin, chosen: np.ndarray) -> Twin:
    return Twin(
        twin.cache.fork(chosen),
        *([list(held[n]) for n in chosen] for held in (twin.keys, twin.values)),
        twin.before[chosen],
        twin.appended,
        twin.firsts[chosen],
    )


def _ask(
    facts: Facts,
    name: str,
    twin: Twin,
    rng: np.random.Generator,
    dtype: str,
    batch: tuple[int, ...],
    heads: int,
    window: int | None,
    magnitude: str,
) -> int:
    lengths, S = twin.lengths, int(twin.lengths.max())
    rows = twin.appended if twin.appended and rng.random() < 0.6 else int(rng.choice([1, 1, 2, 5]))
    width = twin_width(twin.keys)
    query = cast(numbers(rng, (*batch, heads, rows, width), dtype, magnitude, "query"), dtype)
    start = twin.before if rows == twin.appended else lengths - rows
    whole = Sizes(batch, heads, rows, S, start[:, None] + np.arange(rows))
    pair = expression(facts, whole, None, LEAVES, f"{name} mask", 1) if rng.random() < 0.8 else None
    mask = None if pair is None else pair.mask
    dense = dense_of(pair, whole) & (np.arange(S) < lengths[:, None, None, None])
    if window is not None:
        narrow_to = qkv.window(window, 0)
        mask = narrow_to if mask is None else mask & narrow_to
        _, _, p, j = whole.axes()
        dense = dense & (p - window <= j) & (j <= p)
        # Rows that stand before what was kept would read keys that are gone; they are not asked.
        if (start - window < twin.firsts).any() and (twin.firsts > 0).any():
            return 0
    slopes = rng.choice([0.0, 0.5, -0.25], heads) if rng.random() < 0.3 else None
    _, _, p, j = whole.axes()
    arguments: dict[str, Any] = options_of(facts, heads) | {"empty": "zero", "nonfinite": "propagate"}
    if slopes is not None:
        arguments["bias"] = qkv.alibi(slopes)
    k, v = (_filled(held, S) for held in (twin.keys, twin.values))
    compute = np.float64 if dtype == "float64" else np.float32
    q = wide(query).reshape(-1, *query.shape[-3:]).astype(compute)
    limits = qkv.bounds.bound(
        q,
        *(x.astype(compute) for x in (k, v)),
        np.dtype(compute).name,
        allowed=dense,
        bias=None if slopes is None else -slopes[None, :, None, None] * abs(p - j),
        bias_roundings=3,
        **{name: arguments[name] for name in ("scale", "softcap", "sink") if name in arguments},
    )
    found = qkv.attention(query, twin.cache, mask=mask, **arguments)
    assert found.output.dtype == query.dtype
    kind = qkv.bounds.FLOATS[dtype]
    off = limits.output
    if kind.storage != kind.compute:
        off = off + kind.unit * (abs(limits.answer.output) + off) + kind.smallest / 2
    output = wide(found.output).reshape(limits.answer.output.shape)
    holds(output, wide(found.lse).reshape(limits.lse.shape), limits._replace(output=off))
    once = qkv.attend(query, twin.cache, mask=mask, **arguments)
    within(wide(once).reshape(output.shape), output, 0, "F4: the output of a cache asked again")
    return 2


def twin_width(held: list[list[np.ndarray]]) -> int:
    return next(one[0].shape[-1] for one in held if one)


def twin_heads(held: list[list[np.ndarray]]) -> int:
    return next(one[0].shape[0] for one in held if one)


def _filled(held: list[list[np.ndarray]], S: int) -> np.ndarray:
    """(N, G, S, width), 0 where a sequence is shorter."""
    groups, width = twin_heads(held), twin_width(held)
    out = np.zeros((len(held), groups, S, width), np.longdouble)
    for n, one in enumerate(held):
        if one:
            out[n, :, : len(one)] = np.stack(one, axis=1)
    return out
