"""The one call that carries out a backward pass."""

from __future__ import annotations

from ..plan import Plan, backward_plan
from ..problem import Problem
from . import native_backward, numpy_backward
from .gradients import Gradients, Seed


def run_backward(problem: Problem, plan: Plan, seed: Seed, *, bias: bool) -> Gradients:
    """The gradients of a problem by the plan's engine; `bias`: whether that of the bias array is wanted."""
    plan = backward_plan(problem, plan)
    if plan.engine == "native":
        return native_backward.run(problem, plan, seed, bias=bias)
    return numpy_backward.run(problem, plan, seed, bias=bias)
