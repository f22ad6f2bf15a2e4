"""Hostile cases: whatever comes is answered or refused in a sentence, nothing is written to, nothing crashes (A4, D, G2)."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import native_calls as calls
import qkv
from qkv import Cache, alibi
from qkv.engines import native
from qkv.gradient import attention_gradient
from qkv.maskparse import parse_mask
from support.arrays import DTYPES, cast
from support.hostile import ODD, PARTS, arguments_of, exotic_masks, refused_in_a_sentence
from support.liars import LIARS, Raised

from . import levels
from .facts import Facts
from .problems import LIES, lying

#: Anything, for any argument.
ANYTHING = (*ODD, *LIARS)
#: Numbers that query, key and value are made of.
NUMBERS = np.array([0.0, 1.0, -2.0, 1e-30, 3e38, -3e38, np.inf, np.nan])


def anything(facts: Facts, name: str) -> Any:
    return facts.item(name, ANYTHING)


def tried(call: Callable[[], Any]) -> Any:
    """What a call gives, or None where it is refused in a sentence, for want of memory, or by the caller's own object."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except qkv.QkvError as error:
        refused_in_a_sentence(error)
    except (Raised, MemoryError):
        pass
    return None


def operands(facts: Facts) -> tuple[dict[str, Any], tuple[int, int, int], int]:
    """(query, key and value), (H, L, S), sequences."""
    batch = facts.item("batch", ((), (), (1,), (2,), (0,), (2, 1)))
    groups, sharing = facts.pick("groups", (1, 1, 2)), facts.pick("sharing", (1, 2))
    L, S, D, E = (facts.pick(name, (2, 0, 1, 3, 17)) for name in ("queries", "keys", "width", "value width"))
    dtype, rng = facts.pick("dtype", DTYPES), facts.rng("operands")
    share = [0.3, 0.3, 0.3, 0.1] if facts.chance("calm", 0.5) else [0.3, 0.3, 0.2, 0.1, 0.025, 0.025, 0.025, 0.025]
    found: dict[str, Any] = {}
    for name, shape in (
        ("query", (*batch, groups * sharing, L, D)),
        ("key", (*batch, groups, S, D)),
        ("value", (*batch, groups, S, E)),
    ):
        array = cast(rng.choice(NUMBERS[: len(share)], shape, p=share), dtype)
        found[name] = lying(array, facts.pick(f"{name} lies", LIES))
    return found, (groups * sharing, L, S), batch[0] if batch else 0


def call_of(facts: Facts) -> dict[str, Any]:
    """The arguments of a call, right but for a few."""
    arguments, shape, sequences = operands(facts)
    options = {"mask": exotic_masks(shape[1], shape[2], sequences), **arguments_of(shape)}
    for name, values in options.items():
        if facts.chance(f"{name} too", 0.2):
            arguments[name] = facts.item(name, values)
    for i in range(facts.pick("spoilt", (0, 0, 1, 1, 2, 3))):
        arguments[facts.item(f"which {i}", [*arguments, *options, "attn_mask", "maks", "keep"])] = anything(
            facts, f"spoilt {i}"
        )
    return arguments


def calls_of_the_front_door(facts: Facts) -> int:
    arguments = call_of(facts)
    given = {
        name: (array, array.tobytes())
        for name, array in arguments.items()
        if isinstance(array, np.ndarray) and array.dtype != object and 0 < array.nbytes < 1 << 20
    }
    function = facts.item("function", (qkv.attend, qkv.attention, qkv.explain, qkv.partial))
    again = facts.whole("times", 1, 2)
    for _ in range(again):
        found = tried(lambda: function(**{"value": None, **arguments}))
        if found is None or function is qkv.explain:
            continue
        if function is qkv.partial:
            found = tried(lambda state=found: state.finish(sink=anything(facts, "sink of the end")))
            found = None if found is None else found.output
        elif function is qkv.attention:
            _asked(facts, found)
            found = found.output
        if isinstance(found, np.ndarray):
            assert found.flags.writeable
            if arguments.get("nonfinite") != "propagate":
                assert np.isfinite(found.astype(np.float64)).all(), "D2: a NaN or infinity came out"
        else:
            assert found is None, f"{type(found)} came out"
    for name, (array, before) in given.items():
        assert array.tobytes() == before, f"A4: {name} was written to"
    return again


def _asked(facts: Facts, found: qkv.Attention) -> None:
    """An odd question."""
    name = facts.pick(
        "question", ("none", "weights", "scores", "top", "pooled", "survey", "contributions", "influence")
    )
    if name == "none":
        return
    ask, odd = getattr(found, name), anything(facts, "asked")
    other = anything(facts, "asked too")
    ways: tuple[Callable[[], Any], ...] = (
        lambda: ask(odd),
        lambda: ask(0, **{"heads" if name in ("weights", "scores") else "head": odd}),
    )
    if name in ("pooled", "survey"):
        ways = (lambda: ask(odd, other), lambda: ask(1, odd))
    elif name == "top":
        ways = (lambda: ask(odd),)
    tried(facts.item("way of asking", ways))


def packs(facts: Facts) -> int:
    total, keys = facts.pick("queries", (5, 0, 1, 40)), facts.pick("keys", (5, 0, 1, 40))

    def cuts(name: str, end: int) -> Any:
        kind, rng = facts.pick(name, ("right", "right", "wrong", "anything")), facts.rng(name)
        if kind == "anything":
            return anything(facts, f"{name} are")
        inner = rng.integers(0, end + 1, int(rng.integers(0, 6)))
        inner = np.sort(inner) if kind == "right" else rng.integers(-3, end + 4, inner.size)
        found = [0, *inner.tolist(), end]
        return facts.item(
            f"{name} as",
            (
                found,
                np.array(found),
                np.array(found, np.int32),
                tuple(found),
                np.abs(np.array(found)).astype(np.uint64),
            ),
        )

    q, k = np.ones((total, 2, 4), np.float32), np.ones((keys, 1, 4), np.float32)
    arguments: dict[str, Any] = {"query": q, "key": k, "value": k, "query_offsets": cuts("query offsets", total)}
    arguments["key_offsets"] = cuts("key offsets", keys) if facts.chance("own keys", 0.5) else None
    if facts.chance("masked", 0.5):
        arguments["mask"] = facts.item("mask", (*exotic_masks(3, 3, 1), *ANYTHING))
    if facts.chance("biased", 0.3):
        arguments["bias"] = facts.item("bias", (alibi([1.0, 2.0]), alibi([1.0, 2.0], align="end"), *ANYTHING))
    if facts.chance("spoilt", 0.3):
        arguments[facts.item("which", list(arguments))] = anything(facts, "spoilt by")
    arguments["empty"] = facts.pick("empty", ("raise", "zero"))
    found = tried(lambda: qkv.attend_packed(**arguments))
    if found is not None:
        assert found.shape == arguments["query"].shape[:2] + arguments["value"].shape[2:]
        assert np.isfinite(found.astype(np.float64)).all()
    return 1


def caches(facts: Facts) -> int:
    """A cache that is built, filled, trimmed and forked with anything, and asked between."""
    page = facts.item("page", (None, 1, 3, *ANYTHING))
    built = tried(
        lambda: Cache(
            page=page,
            window=facts.item("window", (None, None, 3, 0, *ANYTHING)) if facts.chance("forgets", 0.3) else None,
            storage=facts.item("storage", (None, None, "float16", "bfloat16", *ANYTHING))
            if facts.chance("stored", 0.3)
            else None,
        )
    )
    cache = built if isinstance(built, Cache) else Cache()
    if isinstance(page, int) and page > 1 << 20:
        cache = Cache()  # a page of 2**63 tokens is no fault, but there is no memory for it
    steps = facts.whole("steps", 1, 5)
    for step in range(steps):
        cache = _step(facts, f"step {step}", cache)
    return 1 + steps


def _step(facts: Facts, name: str, cache: Cache) -> Cache:
    """One thing done to a cache, with anything; the cache that goes on."""
    kind = facts.pick(name, ("append", "append", "attend", "trim", "fork", "look"))
    before, odd = cache.lengths.copy(), anything(facts, f"{name} with")
    if kind == "append":
        rng = facts.rng(name)
        k, v = (cast(rng.standard_normal((2, 1, 3, 4)), facts.pick("dtype", DTYPES)) for _ in range(2))
        shape = facts.pick(f"{name} shape", ("right", "right", "key", "value", "lengths", "one axis", "more"))
        arguments = {"key": k, "value": v}
        if shape in ("key", "value"):
            arguments[shape] = odd
        elif shape == "lengths":
            arguments["lengths"] = facts.item(f"{name} lengths", ([1, 2], np.array([3, 0]), [4, 0], [-1, 2], odd))
        elif shape == "one axis":
            arguments = {"key": k[0, 0], "value": v[0]}
        elif shape == "more":
            arguments = {"key": k[None], "value": v[None]}
        if tried(lambda: cache.append(**arguments)) is None:
            assert np.array_equal(cache.lengths, before), "an append that was refused changed the cache"
    elif kind == "trim":
        wanted = facts.item(f"{name} to", (0, 1, [1, 2], odd))
        if tried(lambda: cache.trim(wanted)) is None:
            assert np.array_equal(cache.lengths, before), "a trim that was refused changed the cache"
    elif kind == "fork":
        wanted = facts.item(f"{name} of", (None, [0, 0, 1], [], odd))
        other = tried(lambda: cache.fork(wanted))
        return other if isinstance(other, Cache) and facts.chance(f"{name} goes on", 0.5) else cache
    elif kind == "look":
        tried(cache.view)
        tried(lambda: repr(cache))
    else:
        query = np.ones((*cache.lengths.shape, 2, facts.pick(f"{name} rows", (1, 3, 0, 5)), 4), np.float32)
        mask = facts.item(f"{name} mask", (None, *exotic_masks(1, 3, 2), *ANYTHING))
        key: Any = facts.item(f"{name} key", (cache, cache, cache.key, odd))
        value: Any = facts.item(f"{name} value", (None, None, cache.value, cache.key, odd))
        tried(lambda: qkv.attend(query, key, value, mask=mask, empty="zero"))
    return cache


def masks(facts: Facts) -> int:
    """Rules and their combinations from anything, and what can be asked of them."""
    rng = facts.rng("masks")

    def rule(name: str) -> Any:
        makers: tuple[Callable[..., Any], ...] = (
            *(qkv.causal, qkv.window, qkv.first, qkv.prefix, qkv.keys, qkv.segments, qkv.allow, qkv.where, alibi),
            parse_mask,
        )
        maker = facts.item(name, makers)
        count = int(rng.integers(0, 3))
        plain: tuple[Any, ...] = (1, 2, "end", np.array([1, 2]), np.ones((2, 3), bool), None, lambda *a: a[3] <= a[2])
        values = [facts.item(f"{name} {i}", (*plain, *ANYTHING)) for i in range(count)]
        words = {"align": anything(facts, f"{name} align")} if facts.chance(f"{name} aligned", 0.3) else {}
        return tried_or_type_error(lambda: maker(*values, **words))

    a, b = rule("rule"), rule("other rule")
    b = anything(facts, "joined with") if facts.chance("joined with anything", 0.3) else b
    joined = a
    if isinstance(a, qkv.Mask):
        join = facts.item("join", (operator.and_, operator.or_, lambda x, y: y & x, lambda x, y: ~x))
        joined = tried_or_type_error(lambda: join(a, b))
    x = np.ones((2, 1, 2, 3), np.float32)
    if isinstance(joined, qkv.Mask):
        tried(lambda: repr(joined))
        tried(lambda: qkv.attend(x, np.ones((2, 1, 3, 3), np.float32), np.ones((2, 1, 3, 3), np.float32), mask=joined))
    return 3


def tried_or_type_error(call: Callable[[], Any]) -> Any:
    """As `tried`; a wrong number of arguments, and operators that Python itself refuses, are TypeErrors of Python's."""
    try:
        return tried(call)
    except TypeError:
        return None


def states(facts: Facts) -> int:
    """States and gradients of anything."""
    arguments, _, _ = operands(facts)
    with contextlib.suppress(qkv.QkvError):
        state = qkv.partial(**arguments, nonfinite="propagate", mask=None)
        tried(lambda: state.merge(anything(facts, "merged with")))
        tried(lambda: state.finish(sink=anything(facts, "sink")))
        tried(lambda: state.finish(empty=anything(facts, "empty"), nonfinite=anything(facts, "nonfinite")))
        tried(
            lambda: qkv.partial(
                **arguments, first_key=anything(facts, "first key"), total_keys=anything(facts, "total")
            )
        )
    q, k, v = arguments.values()
    output = np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
    parts = {"output": output, "lse": np.zeros(q.shape[:-1], np.float32), "doutput": output}
    parts[facts.item("part", list(parts))] = anything(facts, "part is")
    tried(lambda: attention_gradient(q, k, v, **parts))
    return 5


@lru_cache(maxsize=1)
def _plain() -> native.Call:
    q, k, v = calls.operands(np.random.default_rng(0), (2,), 4, 2, 70, 300, 16, 16)
    return calls.build(q, k, v, causal=True, offset=230, tile_rows=8)


def parts(facts: Facts) -> int:
    """A call of the extension whose parts do not belong together."""
    if not native.available():
        return 0
    changed: dict[str, Any] = {"threads": facts.whole("threads", 1, 3)}
    names = sorted(PARTS)
    for i in range(facts.whole("changes", 1, 4)):
        name = facts.item(f"part {i}", names)
        changed[name] = (
            anything(facts, f"{name} is") if facts.chance(f"any {i}", 0.2) else facts.item(name, PARTS[name])
        )
    call = replace(_plain(), **changed)
    level = facts.pick("level", native.levels())
    with contextlib.suppress(
        ValueError, TypeError, MemoryError, RuntimeError, KeyError, AttributeError, IndexError, OverflowError, Raised
    ):
        native.run(call, level)
    return 1


#: How often each kind comes, in a hundred.
KINDS: dict[str, tuple[Callable[[Facts], int], int]] = {
    "call": (calls_of_the_front_door, 45),
    "packed": (packs, 12),
    "cache": (caches, 12),
    "mask": (masks, 8),
    "state": (states, 8),
    "parts": (parts, 15),
}
NAMES = tuple(name for name, (_, share) in KINDS.items() for _ in range(share))


def enter(facts: Facts) -> int:
    """One hostile case; how many calls were made."""
    levels.engine_of(facts)
    kind, _ = KINDS[facts.kind("kind", NAMES)]
    with np.errstate(all="ignore"):
        return kind(facts)
