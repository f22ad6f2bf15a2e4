"""Which engine carries out a problem, and the one call that does."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, EngineError
from ..floats import Array, narrow
from ..plan import KEPT_KEYS, KEPT_TOP, Plan, keep_plan, make_plan
from ..problem import Kept, Problem
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
        kept: the answers that were asked for and that one pass gives.
    """

    lse: Array
    status: npt.NDArray[np.uint8]
    wrong: npt.NDArray[np.bool_] | None
    all_allowed: bool
    touched: int
    sums: tuple[Array, Array] | None = None
    kept: Kept | None = None


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


def run(problem: Problem, plan: Plan, output: Array, *, sums: bool = False, keep: Collection[str] = ()) -> Result:
    """Attention of a problem into `output`, (B…, H, L, E) in storage form, heads or length first in memory.

    Args:
        sums: whether the rows' states are wanted as well, for questions about the weights.
        keep: of "entropy", "received" and "top", the answers to work out meanwhile; the engine may leave them for later.
    """
    flat = output.reshape(problem.batches, problem.heads, problem.queries, problem.value_width)
    if plan.engine == "native":
        shape, dtype = flat.shape[:-1], problem.dtype.compute
        kept = (np.empty(shape, dtype), np.empty(shape, dtype)) if sums else None
        answers = _kept(problem, keep)
        if answers is not None:
            plan = keep_plan(problem, plan)
        lse, status, all_allowed, fault, touched = native_call.run_output(problem, plan, flat, kept, answers)
        # The kernel writes NaN into exactly the rows that have no right finite answer.
        wrong = np.isnan(lse) if fault else None
        wrong = wrong if wrong is not None and wrong.any() else None
        return Result(lse, status, wrong, all_allowed, touched, kept, answers)
    rows, touched = numpy_tiles.run(problem, plan)
    sink = None if problem.sink is None else problem.sink[None, :, None]
    mixed, lse = finish_rows(rows, sink)
    flat[...] = narrow(mixed, problem.dtype.name)
    wrong = failed(rows.status, rows.max)
    return Result(lse, rows.status, wrong if wrong.any() else None, bool((rows.status & 1).all()), touched)


def _kept(problem: Problem, keep: Collection[str]) -> Kept | None:
    """Room for the answers that one pass gives; None where there is nothing to gain (sizes alone decide, so threads do not)."""
    shape, dtype = (problem.batches, problem.heads, problem.queries), problem.dtype.compute
    received = "received" in keep and problem.keys <= KEPT_KEYS
    if not problem.queries or not problem.keys or not (received or "entropy" in keep or "top" in keep):
        return None
    listed = (*shape, KEPT_TOP)
    return Kept(
        np.zeros(shape, dtype) if "entropy" in keep else None,
        np.zeros((*shape[:-1], problem.keys), dtype) if received else None,
        (np.full(listed, -1, np.int64), np.zeros(listed, dtype)) if "top" in keep else None,
    )


def run_state(problem: Problem, plan: Plan) -> Rows:
    """The states of all rows, (N, H, L), before any sink."""
    if plan.engine == "native":
        return native_call.run_state(problem, plan)
    return lost_as_nan(numpy_tiles.run(problem, plan)[0])
