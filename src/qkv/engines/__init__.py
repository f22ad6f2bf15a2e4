"""Which engine carries out a problem, and the one call that does."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, EngineError
from ..floats import Array, narrow
from ..plan import Plan, make_plan
from ..problem import Problem
from ..state import Rows, failed, finish_rows, lost_as_nan
from . import native, native_call, numpy_tiles
from .threads import threads_in_use

__all__ = ["Result", "choose", "engine_in_use", "run", "run_state", "threads_in_use"]


@dataclass(frozen=True, eq=False)
class Result:
    """What an engine gives back.

    Attributes:
        lse: (N, H, L) in the compute type.
        status: (N, H, L) status bits. wrong: rows without a right finite answer, None when there is none.
        all_allowed: whether every row has an allowed key.
        touched: key blocks touched per query head group.
        sums: maximum and sum of the rows' states, (N, H, L) each, where they were asked for and the engine has them.
    """

    lse: Array
    status: npt.NDArray[np.uint8]
    wrong: npt.NDArray[np.bool_] | None
    all_allowed: bool
    touched: int
    sums: tuple[Array, Array] | None = None


def choose(problem: Problem, engine: str | None = None, threads: int | None = None) -> Plan:
    """The plan a problem gets: the native engine where it is there, unless `QKV_ENGINE` or `engine` says otherwise."""
    if engine_in_use(engine) == "numpy":
        return make_plan(problem, "numpy", "", 1)
    return make_plan(problem, "native", native.level(), threads or threads_in_use())


def engine_in_use(engine: str | None = None) -> str:
    """ "native" or "numpy": the native engine where it is there, unless `QKV_ENGINE` or `engine` says otherwise."""
    asked = engine or os.environ.get("QKV_ENGINE") or None
    if asked not in (None, "native", "numpy"):
        raise ArgumentError(f"QKV_ENGINE must be 'native' or 'numpy', but is {asked!r}; unset it to let qkv choose")
    if asked == "native" and not native.available():
        raise EngineError(
            f"the native engine was asked for, but is not there: {native.why_not()}; unset QKV_ENGINE to use NumPy"
        )
    return "native" if asked != "numpy" and native.available() else "numpy"


def run(problem: Problem, plan: Plan, output: Array, *, sums: bool = False) -> Result:
    """Attention of a problem into `output`, (B…, H, L, E) in storage form, heads or length first in memory.

    Args:
        sums: whether the rows' states are wanted as well, for questions about the weights.
    """
    flat = output.reshape(problem.batches, problem.heads, problem.queries, problem.value_width)
    if plan.engine == "native":
        shape, dtype = flat.shape[:-1], problem.dtype.compute
        kept = (np.empty(shape, dtype), np.empty(shape, dtype)) if sums else None
        lse, status, all_allowed, fault, touched = native_call.run_output(problem, plan, flat, kept)
        # The kernel writes NaN into exactly the rows that have no right finite answer.
        wrong = np.isnan(lse) if fault else None
        return Result(lse, status, wrong if wrong is not None and wrong.any() else None, all_allowed, touched, kept)
    rows, touched = numpy_tiles.run(problem, plan)
    sink = None if problem.sink is None else problem.sink[None, :, None]
    mixed, lse = finish_rows(rows, sink)
    flat[...] = narrow(mixed, problem.dtype.name)
    wrong = failed(rows.status, rows.max)
    return Result(lse, rows.status, wrong if wrong.any() else None, bool((rows.status & 1).all()), touched)


def run_state(problem: Problem, plan: Plan) -> Rows:
    """The states of all rows, (N, H, L), before any sink."""
    if plan.engine == "native":
        return native_call.run_state(problem, plan)
    return lost_as_nan(numpy_tiles.run(problem, plan)[0])
