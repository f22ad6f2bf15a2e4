"""Documents packed one behind the other, each held to the definition of itself and to the bits it has alone (A5, F2, F3)."""

from __future__ import annotations

from typing import Any

import numpy as np

import qkv
from support.arrays import cast, same_bits, stored, wide
from support.checks import within
from support.meanings import Sizes, dense_of, placed
from support.problems import SHORT, WIDTHS, numbers, plant
from support.runs import Attend, front_door

from . import levels
from .facts import Facts
from .problems import LIES, ROOM, dtype_of, expression, lying, options_of

LEAVES = ("causal", "window", "prefix", "first")
LENGTHS = (*SHORT, *SHORT, *SHORT, 63, 64, 65, 127, 128, 129, 200)
CALM = ("tame", "small", "peaked", "values at the edge", "subnormal")


def packed(facts: Facts, attend: Attend = front_door) -> int:
    engine, dtype = levels.engine_of(facts), dtype_of(facts)
    rng = facts.rng("documents")
    count, square = facts.whole("documents", 0, 6), facts.chance("as many keys", 0.5)
    rows = rng.choice(LENGTHS, count).astype(int)
    sizes = rows if square else rng.choice(LENGTHS, count).astype(int)
    groups, sharing = facts.pick("groups", (1, 2, 3)), facts.pick("sharing", (1, 2, 4))
    heads = groups * sharing
    width = facts.number("width", int(rng.choice(WIDTHS)), 1)
    value_width = facts.number("value width", int(rng.choice((1, 2, 3, 5))), 1)
    told = None if square else facts.pick("align", ("end", "start", "a number", "one per document"))
    align: Any = {"a number": int(rng.integers(-3, 9)), "one per document": rng.integers(-3, 9, count)}.get(
        told or "", told
    )
    room = facts.pick("room", ROOM)
    while 16 * heads * int((rows * sizes).sum()) > room:
        rows, sizes = rows - rows // 2, sizes - sizes // 2
    longest = int(sizes.max(initial=0))
    whole = Sizes((), heads, int(rows.max(initial=0)), longest)
    pair = expression(facts, whole, align, LEAVES) if facts.chance("masked", 0.7) else None
    arguments: dict[str, Any] = options_of(facts, heads) | {"empty": "zero", "nonfinite": "propagate"}
    if pair is not None:
        arguments["mask"] = pair.mask
    slopes = rng.choice([0.0, 0.5, 0.125, -0.25, 1.0], heads) if facts.chance("alibi", 0.3) else None
    if slopes is not None:
        arguments["bias"] = qkv.alibi(slopes, align=align)
    magnitude = facts.pick("numbers", CALM)
    qo, ko = (np.concatenate([[0], np.cumsum(n)]).astype(np.int64) for n in (rows, sizes))
    operands = facts.rng("operands")
    q, k, v = (
        cast(numbers(operands, shape, dtype, magnitude, role), dtype)
        for shape, role in (
            ((int(qo[-1]), heads, width), "query"),
            ((int(ko[-1]), groups, width), "key"),
            ((int(ko[-1]), groups, value_width), "value"),
        )
    )
    if facts.chance("planted", 0.25):
        for array in (q, k, v):
            plant(operands, array, int(operands.choice([0, 1, 3])))
    q, k, v = (lying(x, facts.pick(f"{name} lies", LIES)) for x, name in ((q, "query"), (k, "key"), (v, "value")))
    positional = slopes is not None or (pair is not None and pair.positional)
    with qkv.threads(facts.pick("threads", levels.THREADS)):
        found = qkv.attend_packed(q, k, v, qo, ko, **arguments)
    assert found.shape == (q.shape[0], heads, value_width)
    assert found.dtype == q.dtype
    for d in range(count):
        here = slice(qo[d], qo[d + 1]), slice(ko[d], ko[d + 1])
        own = int(align[d]) if isinstance(align, np.ndarray) else align
        size = Sizes((), heads, int(rows[d]), int(sizes[d]))
        size = placed(size, own if positional else None, pair)
        bias = None
        if slopes is not None:
            _, _, p, j = size.axes()
            bias = (-slopes[:, None, None] * abs(p - j))[0]
        limits = qkv.bounds.bound(
            *(stored(x).swapaxes(0, 1) for x in (q[here[0]], k[here[1]], v[here[1]])),
            dtype,
            allowed=dense_of(pair, size)[0],
            bias=bias,
            bias_roundings=3,
            **{name: arguments[name] for name in ("scale", "softcap", "sink") if name in arguments},
        )
        within(
            wide(found[here[0]]).swapaxes(0, 1),
            limits.answer.output,
            limits.output,
            f"F2: document {d} of {rows} × {sizes}: ",
        )
        if engine == "native" and rows[d]:
            single = _alone(facts, whole, arguments, own)
            alone = qkv.attend(q[here[0]], k[here[1]], v[here[1]], layout="blhd", **single)
            assert same_bits(alone, found[here[0]]), f"F3: document {d} of {rows} × {sizes} has other bits alone"
    return 1 + count


def _alone(facts: Facts, whole: Sizes, arguments: dict[str, Any], own: Any) -> dict[str, Any]:
    """The arguments for one document: where positions are one per document, its own."""
    out = dict(arguments)
    if "mask" in out:  # the same facts once more, with another alignment
        out["mask"] = expression(Facts(facts.seed, facts.told), whole, own, LEAVES).mask
    if "bias" in out:
        out["bias"] = qkv.alibi(out["bias"].slopes, align=own)
    return out
