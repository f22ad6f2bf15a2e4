"""Attention over a part of the keys, as a state that merges with the states of the other parts (contract E)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import engines
from .contract import canonical, read_finish, refuse_foreign
from .diagnose import raise_empty, raise_faults, raise_overflow
from .errors import ArgumentError, NonFiniteError, ShapeError, UnsupportedError
from .floats import Array, narrow
from .problem import Problem
from .state import ALLOWED, NONFINITE, Rows, empty_rows, failed, finish_rows, merge_rows

__all__ = ["Finished", "State", "partial"]


class Finished(NamedTuple):
    """Output (B…, H, L, E) and log-sum-exp (B…, H, L), as from `attention`."""

    output: Any
    lse: Any


class State:
    """The running state of every query row over the keys seen so far: maximum, sum, mixture.

    It never holds the sink: `finish(sink=…)` adds it, once. States merge in any order and grouping within F2, and a
    state that has seen no key is the exact identity.

    >>> import numpy as np, qkv
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.normal(size=(3, 2, 6, 4))
    >>> left = qkv.partial(q, k[:, :2], v[:, :2], first_key=0, total_keys=6, mask=qkv.causal())
    >>> right = qkv.partial(q, k[:, 2:], v[:, 2:], first_key=2, total_keys=6, mask=qkv.causal())
    >>> whole = left.merge(right).finish()
    >>> bool(np.allclose(whole.output, qkv.attend(q, k, v, mask=qkv.causal())))
    True
    """

    def __init__(self, rows: Rows, problem: Problem) -> None:
        self._rows = rows
        self._problem = problem

    def __repr__(self) -> str:
        p = self._problem
        return f"<State of {p.dtype.name}: {p.batch} × {p.heads} heads × {p.queries} queries>"

    @property
    def max(self) -> Array:
        """Largest allowed score of each row, (B…, H, L); -inf where no key was seen."""
        return self._shaped(self._rows.max)

    @property
    def sum(self) -> Array:
        """Σ exp(score - max) of each row, (B…, H, L); 0 where no key was seen."""
        return self._shaped(self._rows.sum)

    @property
    def mix(self) -> Array:
        """The mixture of values so far, divided by `sum`, (B…, H, L, E)."""
        return self._shaped(self._rows.mix)

    def empty(self) -> State:
        """The state of the same rows with no key seen."""
        rows = self._rows
        return State(empty_rows(rows.max.shape, rows.mix.shape[-1], rows.max.dtype), self._problem)

    def merge(self, *others: State) -> State:
        """The state over the keys of all; the parts must not share a key."""
        rows = self._rows
        for other in others:
            if not isinstance(other, State):
                raise ArgumentError(
                    f"merge takes states from qkv.partial, but {type(other).__name__} came; pass the other State"
                )
            if other._rows.mix.shape != self._rows.mix.shape or other._problem.batch != self._problem.batch:
                raise ShapeError(
                    f"states must be of the same query rows, but their mixtures have shapes {self.mix.shape} and {other.mix.shape}; "
                    "call partial with the same query for every part"
                )
            if other._problem.dtype != self._problem.dtype:
                raise ArgumentError(
                    f"states must have one dtype, but are {self._problem.dtype.name} and {other._problem.dtype.name}; convert the parts first"
                )
            rows = merge_rows(rows, other._rows)
        return State(rows, self._problem)

    def finish(self, *, sink: Any = None, empty: str = "raise", nonfinite: str = "raise") -> Finished:
        """Output and log-sum-exp over all keys seen.

        Args:
            sink: one logit per query head, (H,), added here and only here. empty, nonfinite: as in `attend`.

        Raises:
            EmptyRowError, NonFiniteError, ScoreOverflowError: as in `attend`.
        """
        p, rows = self._problem, self._rows
        logits = read_finish(p, sink, empty, nonfinite)
        if empty == "raise" and logits is None:
            raise_empty(p, (rows.status & ALLOWED) == 0)
        wrong = failed(rows.status, rows.max)
        if nonfinite == "raise" and wrong.any():
            bad = (rows.status & NONFINITE) != 0
            if bad.any():
                n, h, i = (int(a) for a in np.unravel_index(int(bad.argmax()), bad.shape))
                index = (*p.at(n), h, i)
                raise NonFiniteError(
                    f"a part had a NaN or infinity that row (batch…, head, row) = {index} reads; clean it or pass nonfinite='propagate'",
                    "",
                    index,
                )
            raise_overflow(p, wrong)
        output, lse = finish_rows(rows, None if logits is None else logits[None, :, None])
        kind, layout = p.layout.kind, p.layout
        given = narrow(output, p.dtype.name).reshape(*p.batch, *output.shape[1:])
        return Finished(
            kind.wrap(np.ascontiguousarray(layout.restored(given, trailing=1)), p.dtype.name),
            kind.wrap(np.ascontiguousarray(self._shaped(lse))),
        )

    def _shaped(self, array: Array) -> Array:
        """(N, H, L, …) as (B…, H, L, …); two axes have no head axis here either (A1)."""
        p = self._problem
        return array[0, 0] if p.layout.axes == 2 else array.reshape(*p.batch, *array.shape[1:])


def partial(
    query: Any,
    key: Any,
    value: Any = None,
    *,
    first_key: int = 0,
    total_keys: int | None = None,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    nonfinite: str = "raise",
    layout: str = "bhld",
    **others: Any,
) -> State:
    """The state of query over a part of the keys: keys first_key … first_key + S - 1 of `total_keys`.

    Mask, bias and positions speak of the whole sequence (E1): a bias broadcasts to (B…, H, L, total_keys), `causal` aligns
    with `total_keys`. Rows that may read nothing of this part are empty, which is no error here.

    Args:
        first_key: index of the first key of this part. total_keys: keys of the whole, first_key + S if left out.
        query, key, value, mask, bias, scale, softcap, nonfinite, layout: as in `attend`.
    """
    for name in ("sink", "empty"):
        if name in others:
            raise UnsupportedError(f"{name} belongs to the whole, not to a part; pass it to finish({name}=…)")
    refuse_foreign(others, partial)
    problem = canonical(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        empty="zero",
        nonfinite=nonfinite,
        layout=layout,
        first_key=first_key,
        total_keys=total_keys,
    )
    rows = engines.run_state(problem, engines.choose(problem))
    bad = (rows.status & NONFINITE) != 0
    if bad.any():
        raise_faults(problem, rows.status, bad)
    return State(rows, problem)
