"""The ways in: each draws a call of one kind from its facts, makes it, and holds what comes to the definition.

A door says how many calls it made and raises AssertionError for a wrong one. `attend` is the front door, or one with a fault.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import qkv
from qkv.engines import native
from qkv.gradient import attention_gradient
from support import answers, checks
from support.answers import Right
from support.arrays import cast, same_bits, stored
from support.gradients import assert_close, gradient_bounds
from support.parts import finished, state
from support.runs import Attend, front_door, loose, planned

from . import levels
from .cache import cache
from .facts import Facts
from .native_calls import native_call
from .packed import packed
from .problems import problem_of

#: Numbers whose scores stay far from the edge of every type.
CALM = ("tame", "small", "peaked", "values at the edge")


def attend(facts: Facts, attend: Attend = front_door) -> int:
    """The front door: right rows, the right fault, the same bits again and by any plan."""
    engine = levels.engine_of(facts)
    problem = problem_of(facts)
    limits = problem.bounds()
    with qkv.threads(facts.pick("threads", levels.THREADS)):
        checks.definition(attend, problem, limits)
        checks.errors(attend, problem, limits)
        once = loose(attend, problem.query, problem.key, problem.value, **problem.arguments)
        # Now the call is remembered, and goes the short way.
        again = {"empty": "zero", "nonfinite": "propagate", **problem.arguments}
        short = qkv.attend(problem.query, problem.key, problem.value, **again)
        assert same_bits(short, once[0]), "F4: the call gave other bits when it was remembered"
    if engine != "native":
        return 4
    plan = {
        "threads": facts.pick("plan threads", levels.THREADS),
        "tile": facts.pick("plan tile", (128, 1, 2, 5, 16, 64, 200)),
        "spread": facts.chance("plan spread", 0.5),
    }
    other = loose(planned(**plan), problem.query, problem.key, problem.value, **problem.arguments)
    for a, b in zip(once, other, strict=True):
        assert same_bits(a, b), f"F3: {plan} changed bits"
    with levels.another(facts.pick("another level", native.levels())):
        checks.definition(planned(**plan), problem, limits)
    return 6


def isolation(facts: Facts, attend: Attend = front_door) -> int:
    """What no pair may read has no influence, a key touches the rows that read it, and inputs are left alone (D1, A4, F4)."""
    levels.engine_of(facts)
    problem = problem_of(facts)
    law = facts.pick("law", ("isolation", "row isolation", "repeatable", "memory"))
    if law == "isolation":
        checks.isolation(attend, problem, facts.rng("garbage"))
        return 2
    if law == "row isolation":
        checks.row_isolation(attend, problem, facts.rng("garbage"))
        return 4
    if law == "repeatable":
        checks.repeatable(attend, problem)
        return 2
    checks.memory(attend, problem)
    return 1


def partial(facts: Facts, attend: Attend = front_door) -> int:
    """Keys cut into parts, merged in any order and grouping (E1)."""
    levels.engine_of(facts)
    problem = problem_of(facts)
    keys, rng = problem.dense.shape[-1], facts.rng("parts")
    edges = np.sort(rng.integers(0, keys + 1, facts.whole("cuts", 0, 5))).tolist()
    parts = list(zip([0, *edges], [*edges, keys], strict=True))
    states = [state(problem, *parts[i]) for i in rng.permutation(len(parts))]
    one = states[0]
    for merged in (one.merge(one.empty()), one.empty().merge(one)):
        for name in ("max", "sum", "mix"):
            assert same_bits(getattr(merged, name), getattr(one, name)), f"E1: an empty state changed the {name}"
    while len(states) > 1:
        i = int(rng.integers(len(states) - 1))
        states[i : i + 2] = [states[i].merge(states[i + 1])]
    checks.holds(*finished(problem, states[0]), problem.bounds(merges=len(parts)))
    return len(parts) + 1


def questions(facts: Facts, attend: Attend = front_door) -> int:
    """What an `Attention` answers, kept from one pass or worked out afterwards (C1, C4, C6)."""
    levels.engine_of(facts)
    problem = problem_of(facts, magnitudes=CALM, planted=False, keys_are_columns=True)
    keep = tuple(name for name in ("entropy", "received", "top") if facts.chance(f"keep {name}", 0.4))
    found = qkv.attention(
        problem.query, problem.key, problem.value, **{"empty": "zero", **problem.arguments}, keep=keep
    )
    right = Right(problem)
    answers.weights(problem, found, right)
    answers.top(problem, found, right, facts.whole("top", 1, 20))
    answers.received(problem, found, right)
    sink = "sink" in problem.arguments
    answers.spread(problem, found, Right(problem, with_sink=False) if sink else right, right if sink else None)
    _, rows, keys = problem.dense.shape[-3:]
    if not rows or not keys or not problem.dense.size:
        return 7
    rng = facts.rng("questions")
    i = int(rng.integers(rows))
    if problem.dtype != "float16":
        answers.contributions(problem, found, right, i)
    if problem.dtype != "bfloat16":
        answers.influence(problem, found, right, i, rng.permutation(keys)[:1].tolist())
    return 9


def gradient(facts: Facts, attend: Attend = front_door) -> int:
    """The gradient of output and log-sum-exp by both engines, number by number."""
    levels.engine_of(facts)
    problem = problem_of(facts, magnitudes=("tame",), planted=False, biases=("none", "finite"), layouts=False)
    arguments = problem.arguments
    options = {name: arguments.get(name) for name in ("scale", "softcap", "sink")}
    found = qkv.attention(problem.query, problem.key, problem.value, **arguments, empty="zero", nonfinite="propagate")
    rng = facts.rng("gradient")
    doutput = cast(rng.standard_normal(found.output.shape), problem.dtype)
    dlse = rng.standard_normal(found.lse.shape).astype(found.lse.dtype) if facts.chance("dlse", 0.5) else None
    got = attention_gradient(
        problem.query, problem.key, problem.value, found.output, found.lse, doutput, dlse=dlse, **arguments
    )
    limits = gradient_bounds(
        *(stored(x) for x in (problem.query, problem.key, problem.value, doutput)),
        problem.dtype,
        dlse=0.0 if dlse is None else dlse,
        allowed=problem.dense,
        bias=arguments.get("bias"),
        **options,
    )
    assert_close({name: None if x is None else stored_wide(x) for name, x in got._asdict().items()}, limits)
    return 2


def stored_wide(array: np.ndarray) -> np.ndarray:
    """A gradient in a type that NumPy adds in."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


#: How often each way is taken, in a hundred.
DOORS: dict[str, tuple[Callable[..., int], int]] = {
    "attend": (attend, 36),
    "native": (native_call, 24),
    "packed": (packed, 8),
    "cache": (cache, 8),
    "partial": (partial, 8),
    "isolation": (isolation, 6),
    "questions": (questions, 6),
    "gradient": (gradient, 4),
}
NAMES = tuple(name for name, (_, share) in DOORS.items() for _ in range(share))


def enter(facts: Facts, attend: Attend = front_door) -> int:
    """One case: a door is drawn, and what it asks is asked. How many calls were made."""
    door, _ = DOORS[facts.kind("door", NAMES)]
    with np.errstate(all="ignore"):
        return door(facts, attend)
