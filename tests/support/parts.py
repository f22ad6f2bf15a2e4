"""A problem's keys in parts: the state over some of them, and what merged states come to (E1)."""

from __future__ import annotations

import numpy as np

import qkv

from .arrays import wide
from .problems import Problem


def state(problem: Problem, start: int, stop: int) -> qkv.State:
    """The state over keys start … stop of the problem."""
    axis = -3 if problem.layout == "blhd" and problem.key.ndim > 2 else -2
    cut = tuple(slice(start, stop) if a == axis % problem.key.ndim else slice(None) for a in range(problem.key.ndim))
    arguments = {name: x for name, x in problem.arguments.items() if name != "sink"}
    keys = problem.key.shape[axis]
    return qkv.partial(
        problem.query,
        problem.key[cut],
        problem.value[cut],
        first_key=start,
        total_keys=keys,
        nonfinite="propagate",
        **arguments,
    )


def finished(problem: Problem, merged: qkv.State) -> tuple[np.ndarray, np.ndarray]:
    found = merged.finish(sink=problem.arguments.get("sink"), empty="zero", nonfinite="propagate")
    return wide(problem.canonical(np.asarray(found.output))), wide(problem.rows(np.asarray(found.lse)))
