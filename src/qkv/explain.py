"""What a call would do, before it does it: engine, plan, what the mask skips, memory, and whether it reads the future."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from . import engines
from .contract import canonical, refuse_foreign
from .future import Pair, first_future
from .plan import Plan
from .problem import Problem
from .rules import Causal

__all__ = ["Explanation", "explain", "explained"]


@dataclass(frozen=True)
class Explanation:
    """Answer of `explain`; `str()` of it is a short text.

    Attributes:
        engine, level, threads: who carries the call out.
        batch, heads, key_heads, queries, keys, width, value_width, dtype: the problem's sizes.
        pairs: share of all query-key pairs that the mask allows; None when its rule would have to be asked pair by pair.
        tiles_touched, tiles: query tile × key block steps the plan touches, per head, and all there are.
        tile, block, split: rows of a tile, keys of a softmax step, keys of an independent state (F3).
        scratch: upper estimate in bytes of memory held besides inputs and result.
        row_invariant: whether the bits of a row depend on nothing but the row (F3).
        future: the first (batch, head, row, key) in which a mask with causal in it lets a query read the future, or None.
        mask: the expression.
    """

    engine: str
    level: str
    threads: int
    batch: tuple[int, ...]
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    dtype: str
    pairs: float | None
    tiles_touched: int
    tiles: int
    tile: int
    block: int
    split: int
    scratch: int
    row_invariant: bool
    future: Pair | None
    mask: str

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        engine = f"{self.engine} ({self.level})" if self.level else self.engine
        batch = "".join(f"{b} × " for b in self.batch)
        one = "head" if self.heads == 1 else "heads"
        heads = f"{self.heads} {one}" if self.heads == self.key_heads else f"{self.heads}/{self.key_heads} heads"
        touched = f"{_percent(self.tiles_touched, self.tiles)} of {self.tiles:,} tiles"
        pairs = "pairs decided by a rule" if self.pairs is None else f"{self.pairs:.1%} of the pairs".replace("%", " %")
        lines = [
            f"{engine} · {batch}{heads} × {self.queries:,} × {self.keys:,} · {pairs}, {touched} · "
            f"{self.threads} {'thread' if self.threads == 1 else 'threads'} · {_bytes(self.scratch)} scratch",
            f"{self.dtype} · width {self.width}, values {self.value_width} · tiles of {self.tile} rows × {self.block} keys, "
            f"a state every {self.split:,} keys · "
            + (
                "a row's bits depend on that row alone"
                if self.row_invariant
                else "bits depend on shapes (BLAS), the same call gives the same bits"
            ),
        ]
        if self.future is not None:
            n, h, i, j = self.future
            lines.append(
                f"warning: {self.mask} lets a query read the future: batch {n}, head {h}, row {i} may read key {j}"
                + ("; & binds closer than |, so put brackets around the alternatives" if "|" in self.mask else "")
            )
        return "\n".join(lines)


def explain(
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
) -> Explanation:
    """Which engine and plan a call of `attend` with these arguments would use; nothing is computed.

    Takes the arguments of `attend` and raises what `attend` would raise for them (but does not look at the numbers).

    >>> import numpy as np, qkv
    >>> x = np.zeros((16, 8192, 64), np.float32)
    >>> e = qkv.explain(x, x, x, mask=qkv.causal() & qkv.window(255, 0))
    >>> f"{e.pairs:.1%}", e.tiles_touched < 0.065 * e.tiles
    ('3.1%', True)
    """
    refuse_foreign(others, explain)
    problem = canonical(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sink=sink,
        empty=empty,
        nonfinite=nonfinite,
        layout=layout,
    )
    return explained(problem, engines.choose(problem))


def explained(problem: Problem, plan: Plan) -> Explanation:
    """The explanation of a problem and its plan."""
    counts = plan.count(problem)
    exact = problem.rule is None
    return Explanation(
        engine=plan.engine,
        level=plan.level,
        threads=plan.threads,
        batch=problem.batch,
        heads=problem.heads,
        key_heads=problem.groups,
        queries=problem.queries,
        keys=problem.keys,
        width=problem.width,
        value_width=problem.value_width,
        dtype=problem.dtype.name,
        pairs=(counts.pairs / counts.all_pairs if counts.all_pairs else 0.0) if exact else None,
        tiles_touched=counts.touched,
        tiles=counts.blocks,
        tile=plan.tile,
        block=plan.block,
        split=plan.split,
        scratch=plan.scratch(problem),
        row_invariant=plan.engine == "native",
        future=_future(problem),
        mask="" if problem.mask is None else repr(problem.mask),
    )


def _future(problem: Problem) -> Pair | None:
    """Only an expression with causal in it promises not to read the future (B5)."""
    if problem.mask is None or not any(isinstance(leaf, Causal) for leaf in problem.mask.leaves()):
        return None
    may, must = problem.mask.bounds(problem.frame)
    return first_future(problem.mask, problem.frame, may.clip(problem.frame.keys), may is must)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:.1f} %"


def _bytes(size: int) -> str:
    return f"{size / 2**20:.1f} MB" if size >= 2**20 else f"{max(size, 1) / 2**10:.0f} kB"
