"""The front door: `attend(...)` gives the output, `attention(...)` an `Attention` that can be asked about its weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from . import engines, questions, recipes
from .answers import Contributions, Influence, Survey, Top, indices, one_index, some_indices
from .contract import canonical, refuse_foreign
from .diagnose import raise_faults
from .errors import ArgumentError, DTypeError, ShapeError, shown
from .floats import Array
from .interop import to_numpy, whole_number
from .plan import Plan
from .pooled import pooled, survey
from .problem import Problem
from .ranges import END, MOST

__all__ = ["Attention", "Contributions", "Influence", "Survey", "Top", "attend", "attention"]


def attend(
    query: Any,
    key: Any,
    value: Any = None,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    empty: str = "raise",
    nonfinite: str = "raise",
    layout: str = "bhld",
    **others: Any,
) -> Any:
    """Attention: softmax(scale · query · keyᵀ) · value over the allowed keys.

    Args:
        query: (B…, H, L, D); three axes are (H, L, D), two are one head. NumPy, torch on the CPU, JAX on the CPU, or
            anything with DLPack on the CPU; float16, bfloat16, float32 or float64.
        key: (B…, G, S, D), H a multiple of G: query head h reads key head h // (H // G). Or a `Cache`, without value.
        value: (B…, G, S, E).
        mask: which pairs are allowed: an expression of `causal`, `window`, `keys`, …, or booleans that broadcast to
            (B…, H, L, S), True = this query may read this key.
        bias: numbers added to the scores after the softcap, broadcasting to (B…, H, L, S), -inf forbids; or `alibi(…)`.
        scale: factor of the scores, 1/sqrt(D) if left out.
        softcap: c > 0 replaces a score s by c · tanh(s / c).
        sink: one logit per query head, (H,), that takes part in the denominator only.
        empty: a row with no allowed key is refused ("raise") or answered with 0 ("zero").
        nonfinite: a NaN or infinity that an allowed pair reads is refused ("raise") or makes its row NaN ("propagate").
        layout: "bhld" (also "bhsd"), or "blhd" ("bshd") for length before heads, in and out.

    Returns:
        (B…, H, L, E) in the caller's layout, kind and dtype; it owns its memory.

    Raises:
        ShapeError, DTypeError, ArgumentError, AlignmentError, UnsupportedError: an argument, see the message.
        EmptyRowError, NonFiniteError, ScoreOverflowError: the numbers, see `empty` and `nonfinite`.

    Formula: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.

    >>> import numpy as np, qkv
    >>> query, key = np.array([[2**0.5, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> value = np.array([[10.0, 0.0], [0.0, 20.0]])
    >>> qkv.attend(query, key, value).round(3).tolist()
    [[7.311, 5.379]]
    """
    at = None
    if not others:
        out, at = recipes.known(query, key, value, mask, bias, scale, softcap, sink, empty, nonfinite, layout)
        if out is not None:
            return out
    refuse_foreign(others)
    arguments = {
        "mask": mask,
        "bias": bias,
        "scale": scale,
        "softcap": softcap,
        "empty": empty,
        "nonfinite": nonfinite,
        "layout": layout,
    }
    problem, plan = _stated(at, recipes.Given(query, key, value, mask, bias, sink), arguments)
    return _carry_out(problem, plan)[0]


def attention(
    query: Any,
    key: Any,
    value: Any = None,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    empty: str = "raise",
    nonfinite: str = "raise",
    layout: str = "bhld",
    keep: str | Iterable[str] = (),
    **others: Any,
) -> Attention:
    """The same as `attend`, with the log-sum-exp and answers about the weights.

    Args:
        keep: questions that will be asked, of "entropy", "received" and "top" (up to 8 keys a row): the native engine works
            the answers out in the same pass over the keys, where asking afterwards costs one more. Any question may be
            asked without; its answer then is within the same bounds, not always the same in the last bit. It pays from a
            dozen rows on; with fewer, as in decoding, asking afterwards is faster.
        The others are those of `attend`.

    Raises:
        ArgumentError: `keep` names anything else; and what `attend` raises.

    >>> import numpy as np, qkv
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.normal(size=(3, 2, 5, 8))
    >>> a = qkv.attention(q, k, v, mask=qkv.causal())
    >>> a.output.shape, a.lse.shape, a.top(2).keys.shape
    ((2, 5, 8), (2, 5), (2, 5, 2))
    """
    at = None
    wanted = () if type(keep) is tuple and not keep else _keep(keep)
    if not others and not wanted:
        out, at = recipes.known(query, key, value, mask, bias, scale, softcap, sink, empty, nonfinite, layout, True)
        if out is not None:
            return Attention(out.output, out.lse, _Asked(out.state))
    refuse_foreign(others, attention)
    arguments = {
        "mask": mask,
        "bias": bias,
        "scale": scale,
        "softcap": softcap,
        "empty": empty,
        "nonfinite": nonfinite,
        "layout": layout,
    }
    problem, plan = _stated(at, recipes.Given(query, key, value, mask, bias, sink), arguments)
    output, lse, result = _carry_out(problem, plan, sums=True, keep=wanted)
    asked = replace(problem, lost=result.wrong, sums=result.sums, kept=result.kept), plan
    return Attention(output, lse, _Asked(lambda: asked))


def _stated(at: Hashable, given: recipes.Given, arguments: dict[str, Any]) -> tuple[Problem, Plan]:
    """The long way: a call's problem and plan, remembered under `at` where there is one."""
    problem = canonical(given.query, given.key, given.value, sink=given.sink, **arguments)
    plan = engines.choose(problem)
    if at is not None:
        recipes.remember(at, problem, plan, given, arguments)
    return problem, plan


def _keep(keep: Any) -> tuple[str, ...]:
    """The questions named by `keep=`, checked."""
    try:
        names = (keep,) if isinstance(keep, str) or not isinstance(keep, Iterable) else tuple(keep)
    except TypeError:  # not a sequence, or one that is not what it says
        names = (keep,)
    for name in names:
        if not isinstance(name, str) or name not in ("entropy", "received", "top"):
            raise ArgumentError(
                f"keep must name questions out of 'entropy', 'received' and 'top', but {shown(name)} came; every other question is asked afterwards"
            )
    return names


def _carry_out(
    problem: Problem, plan: Plan, *, sums: bool = False, keep: tuple[str, ...] = ()
) -> tuple[Any, Any, engines.Result]:
    """(output, log-sum-exp) as the caller's kind, and what the engine gave; or the contract's error."""
    layout = problem.layout
    shape = (*problem.batch, problem.heads, problem.queries, problem.value_width)
    # Allocated in the caller's axes and written through a view, so that the result owns its memory and is not moved.
    given, stored = layout.kind.empty(layout.spelled(shape), problem.dtype.name)
    result = engines.run(problem, plan, layout.canonical(stored), sums=sums, keep=keep)
    if result.wrong is not None or not result.all_allowed:
        raise_faults(problem, result.status, result.wrong)
    lse = layout.restored(result.lse.reshape(shape[:-1]), trailing=0)
    wrapped = layout.kind.wrap(given, problem.dtype.name), layout.kind.wrap(lse)
    return *wrapped, result


class _Asked:
    """The problem behind an `Attention` and its plan, stated when the first question comes."""

    def __init__(self, state: Callable[[], tuple[Problem, Plan]]) -> None:
        self._state = state

    @cached_property
    def problem(self) -> Problem:
        """The problem, with what the engine found out about its rows."""
        return self._both[0]

    @cached_property
    def plan(self) -> Plan:
        """How it was carried out."""
        return self._both[1]

    @cached_property
    def _both(self) -> tuple[Problem, Plan]:
        return self._state()


@dataclass(frozen=True, eq=False, repr=False)
class Attention:
    """The result of `attention(...)`: output, log-sum-exp, and questions answered in memory linear in L + S.

    Weights are those of the contract: exactly 0 where a pair is not allowed, adding up to 1 over the allowed keys (to 1
    minus its share with a sink). The answers are computed when asked, from the arrays that were passed: do not change those
    in between (nor append to a trimmed `Cache`). Arrays come in the caller's kind, with axes (B…, H, L, …) in every layout; two-axis input has no
    head axis.

    Attributes:
        output: as from `attend`.
        lse: natural log-sum-exp of a row's allowed scores and sink, (B…, H, L), float32 (float64 for float64 input);
            -inf for a row without keys.
    """

    output: Any
    lse: Any
    _asked: _Asked

    @property
    def _problem(self) -> Problem:
        return self._asked.problem

    @property
    def _plan(self) -> Plan:
        return self._asked.plan

    def __repr__(self) -> str:
        p = self._problem
        return f"<Attention of {p.dtype.name}: {p.batch} × {p.heads} heads × {p.queries} queries × {p.keys} keys, by the {self._plan.engine} engine>"

    def weights(self, queries: Any, *, heads: Any = None, keys: Any = None) -> Any:
        """The weights of the rows asked, (B…, heads, queries, keys).

        Args:
            queries: row indices, an int or a sequence (negative ones count from the end); `range(L)` is the whole matrix.
            heads, keys: indices; all of them if left out.

        >>> import numpy as np, qkv
        >>> x = np.zeros((1, 4, 2))
        >>> qkv.attention(x, x, x, mask=qkv.causal()).weights([2]).round(3).tolist()
        [[[0.333, 0.333, 0.333, 0.0]]]
        """
        return self._chosen(queries, heads, keys, scores=False)

    def scores(self, queries: Any, *, heads: Any = None, keys: Any = None) -> Any:
        """The scores of the rows asked, after scale, softcap and bias (B1 to B3), -inf where a pair is not allowed; as `weights`.

        >>> import numpy as np, qkv
        >>> x = np.eye(2)[None]
        >>> qkv.attention(x, x, x, mask=qkv.causal(), scale=2).scores([0, 1]).tolist()
        [[[2.0, -inf], [0.0, 2.0]]]
        """
        return self._chosen(queries, heads, keys, scores=True)

    def _chosen(self, queries: Any, heads: Any, keys: Any, *, scores: bool) -> Any:
        p = self._problem
        rows = indices("queries", queries, p.queries)
        picked = np.arange(p.heads) if heads is None else indices("heads", heads, p.heads)
        cols = None if keys is None else indices("keys", keys, p.keys)
        return self._give(questions.chosen_weights(p, self._plan, rows, picked, cols, scores=scores))

    def top(self, k: int) -> Top:
        """The k largest weights of every row and their keys, (B…, H, L, k); ties take the lower index (C6).

        Rows with fewer than k allowed keys are padded with key -1 and weight 0.
        """
        count = whole_number(k)
        if count is None or not 1 <= count < MOST:
            raise ArgumentError(
                f"k must be a whole number of at least 1{' and below 2**31' if (count or 0) >= MOST else ''}, but {shown(k)} came; "
                "say how many keys to list for each row"
            )
        keys, weights = questions.top(self._problem, self._plan, count)
        return Top(self._give(keys), self._give(weights))

    def received(self) -> Any:
        """Mass each key receives: the sum of its weights over all query rows, (B…, H, S)."""
        return self._give(questions.received(self._problem, self._plan))

    def entropy(self) -> Any:
        """Entropy of each row in nats, -Σ p ln p of the weights renormalised over the allowed keys, (B…, H, L) (C4)."""
        return self._give(questions.entropy(self._problem, self._plan))

    def effective_keys(self) -> Any:
        """exp(entropy): over how many keys a row spreads, (B…, H, L); 0 for a row that reads none (C2, C4)."""
        p = self._problem
        return self._give(questions.effective_keys(p, self._plan, questions.entropy(p, self._plan)))

    def sink_share(self) -> Any:
        """The share of a row that goes to the sink, (B…, H, L); 0 without a sink, 1 for a row with nothing else (C4)."""
        return self._give(questions.sink_share(self._problem, self._plan))

    def pooled(self, queries: int, keys: int) -> Any:
        """The largest weight in each rectangle of a grid over the weight matrix, (B…, H, queries, keys).

        A map of any length in memory of the picture; by maximum, because a mean would hide the one key that is read.

        Args:
            queries, keys: rows and columns of the grid, at most L and S; cell r holds the rows r·L // queries up to the
                next cell's.

        >>> import numpy as np, qkv
        >>> x = np.zeros((1, 4, 2))
        >>> qkv.attention(x, x, x, mask=qkv.causal()).pooled(2, 2).round(2).tolist()
        [[[1.0, 0.0], [0.33, 0.33]]]
        """
        return self._give(pooled(self._problem, self._plan, *self._cells(queries, keys)))

    def _cells(self, queries: int, keys: int) -> tuple[int, int]:
        p = self._problem
        for name, cells, size, axis in (("queries", queries, p.queries, "L"), ("keys", keys, p.keys, "S")):
            if not 1 <= (whole_number(cells) or 0) <= size:
                raise ArgumentError(
                    f"{name} must be a number of cells within 1…{axis} = {size}, but {shown(cells)} came; pass min({axis}, what fits the picture)"
                )
        return int(queries), int(keys)

    def survey(self, queries: int | None = None, keys: int | None = None, *, positions: Any = None) -> Survey:
        """Entropy, mean distance, received mass and a pooled map, all from one pass over the pairs.

        Args:
            queries, keys: rows and columns of the map as in `pooled`, both or neither.
            positions: where each row stands among the keys, (L,) or (B…, L) whole numbers; as the mask has it if left out.

        >>> import numpy as np, qkv
        >>> x = np.zeros((1, 4, 2))
        >>> seen = qkv.attention(x, x, x, mask=qkv.causal()).survey(2, 2)
        >>> seen.distance.tolist(), seen.pooled.round(2).tolist()
        ([[0.0, 0.5, 1.0, 1.5]], [[[1.0, 0.0], [0.33, 0.33]]])
        """
        p = self._problem
        if (queries is None) != (keys is None):
            raise ArgumentError(
                "queries and keys must be given both or neither, but one came; a map has rows and columns"
            )
        cells = None if queries is None or keys is None else self._cells(queries, keys)
        at = p.positions
        if positions is not None:
            at = to_numpy(positions, "positions")
            if at.dtype.kind not in "iu":
                raise DTypeError(f"positions must be whole numbers, but has dtype {at.dtype}; count from the first key")
            if at.shape not in ((p.queries,), (*p.batch, p.queries)):
                raise ShapeError(
                    f"positions must be of shape (L,) or (B…, L) with L = {p.queries}, but {at.shape} came; one place a row"
                )
            furthest = max(-int(at.min()), int(at.max())) if at.size else 0
            if furthest >= END:
                raise ArgumentError(
                    f"positions must be below 2**40 in size, but {furthest} came; count from the first key"
                )
            at = at.reshape(-1, p.queries).astype(np.int64)
        return Survey(*(None if x is None else self._give(x) for x in survey(p, self._plan, at, cells)))

    def contributions(self, query: Any, *, head: int | None = None) -> Contributions:
        """What each key put into the output of a query row: α_j v_j, its norm and its share along the output.

        Args:
            query: the row, negative ones count from the end; or a sequence of rows, and then the arrays have an axis of
                rows before the keys. head: one query head; all if left out.

        >>> import numpy as np, qkv
        >>> q, k = np.array([[2**0.5, 0.0]]), np.eye(2)
        >>> c = qkv.attention(q, k, np.array([[10.0, 0], [0, 20]])).contributions(0)
        >>> c.weight.round(2).tolist(), (c.norm / c.norm.sum()).round(2).tolist(), c.share.round(2).tolist()
        ([0.73, 0.27], [0.58, 0.42], [0.65, 0.35])
        """
        p, (rows, one) = self._of_one(head), some_indices("query", query, self._problem.queries)
        return Contributions(*(self._of_rows(x, one, head) for x in questions.contributed(p, self._plan, rows)))

    def influence(self, query: Any, *, head: int | None = None, vectors: bool = False) -> Influence:
        """How the output of a query row would change if one key were forbidden, for every key.

        In closed form o₋ⱼ − o = −α_j/(1−α_j) · (v_j − o), with 1 − α_j from the other keys and the sink; where a key has more
        than half of the row, the others are mixed anew. It is local to the head: other heads and later layers may make up
        for it.

        Args:
            query, head: as in `contributions`. vectors: whether to give the vectors o₋ⱼ − o as well.

        >>> import numpy as np, qkv
        >>> q, k = np.array([[2**0.5, 0.0]]), np.eye(2)
        >>> a = qkv.attention(q, k, np.array([[10.0, 0], [0, 20]]))
        >>> a.influence(0).relative.round(2).tolist(), a.influence([0]).relative.shape
        ([1.8, 0.66], (1, 2))
        """
        p, (rows, one) = self._of_one(head), some_indices("query", query, self._problem.queries)
        relative, sole, moved = questions.influenced(p, self._plan, rows, vectors=vectors)
        return Influence(*(None if x is None else self._of_rows(x, one, head) for x in (relative, sole, moved)))

    def _of_one(self, head: Any) -> Problem:
        """The problem of the one head asked, or of all."""
        p = self._problem
        return p if head is None else questions.of_head(p, one_index("head", head, p.heads))

    def _of_rows(self, array: Array, one: bool, head: Any) -> Any:
        """(N, H, rows, …) to the caller, without the axis of the one row or head that was asked by its number."""
        array = array[:, :, 0] if one else array
        return self._give(array) if head is None else self._give(array[:, 0], headless=True)

    def _give(self, array: Array, *, headless: bool = False) -> Any:
        """(N, H, …) as (B…, H, …) in the caller's kind; (…) for two-axis input, which has no head axis either."""
        p = self._problem
        if array.dtype == np.float64 and p.dtype.compute != np.float64:
            with np.errstate(over="ignore"):  # a length may be infinite where no component is
                array = array.astype(np.float32)
        array = array.reshape(*p.batch, *array.shape[1:])
        if p.layout.axes == 2 and not headless:
            array = array[0]
        return p.layout.kind.wrap(np.ascontiguousarray(array))
