"""A captured layer whose tensors stay where they are: the same answers as `qkv.attention`, by `engines/torch_tiles.py`."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from qkv import questions
from qkv.attention import Contributions, Influence, Survey, Top
from qkv.contract import canonical
from qkv.engines.torch_tiles import Tiles
from qkv.errors import ArgumentError
from qkv.floats import FLOATS, Array
from qkv.plan import device_plan
from qkv.pooled import edges

from .held import host, is_tensor

__all__ = ["DeviceAttention", "stays"]


def stays(array: Any) -> bool:
    """Whether a tensor is asked where it is: off the CPU, or anywhere with QKV_LENS=torch in the environment."""
    asked = os.environ.get("QKV_LENS") or ""
    if asked not in ("", "torch"):
        raise ArgumentError(f"QKV_LENS must be 'torch' or unset, but is {asked!r}; unset it to ask arrays on the host")
    return is_tensor(array) and (array.device.type != "cpu" or asked == "torch")


class DeviceAttention:
    """Answers about attention over tensors of torch; takes what `qkv.attention` takes, and answers in NumPy arrays.

    query (B, H, L, D), key (B, G, S, D), value (B, G, S, E) on one device; empty rows give 0, NaN rows NaN.
    """

    def __init__(self, query: Any, key: Any, value: Any, **options: Any) -> None:
        import torch

        # The record is made from tensors of those sizes without memory: it is asked for shapes, type and masks alone.
        nothing = torch.zeros((), dtype=query.dtype)
        sizes = (nothing.expand(tensor.shape) for tensor in (query, key, value))
        self._problem = canonical(*sizes, **options, empty="zero", nonfinite="propagate")
        self._tiles = Tiles(self._problem, device_plan(self._problem), query, key, value)

    @cached_property
    def _answer(self) -> tuple[Array, Array]:
        return self._tiles.answer()

    @property
    def output(self) -> Array:
        """(B, H, L, E)."""
        return self._answer[0]

    @property
    def lse(self) -> Array:
        """(B, H, L)."""
        return self._answer[1]

    def weights(self, queries: Any, *, heads: Any = None, keys: Any = None) -> Array:
        """(B, heads, queries, keys), as `Attention.weights`."""
        return self._chosen(queries, heads, keys, scores=False)

    def scores(self, queries: Any, *, heads: Any = None, keys: Any = None) -> Array:
        """(B, heads, queries, keys), as `Attention.scores`."""
        return self._chosen(queries, heads, keys, scores=True)

    def _chosen(self, queries: Any, heads: Any, keys: Any, *, scores: bool) -> Array:
        p = self._problem
        rows, picked = (
            np.arange(p.queries)[np.atleast_1d(list(queries) if isinstance(queries, range) else queries)],
            np.arange(p.heads),
        )
        picked = picked if heads is None else picked[np.atleast_1d(heads)]
        cols = None if keys is None else np.arange(p.keys)[np.atleast_1d(keys)]
        return self._tiles.chosen(rows, picked, cols, scores=scores)

    def top(self, k: int) -> Top:
        """As `Attention.top`."""
        return Top(*self._tiles.top(k))

    def received(self) -> Array:
        """(B, H, S)."""
        return self._tiles.received()

    def entropy(self) -> Array:
        """(B, H, L) in nats."""
        return self._tiles.entropy()

    def effective_keys(self) -> Array:
        """exp(entropy), and 0 for a row that reads no key."""
        entropy, distance, _, _ = self._tiles.survey(self._problem.positions)
        out: Array = np.where(np.isnan(distance) & ~np.isnan(entropy), 0, np.exp(entropy))
        return out

    def sink_share(self) -> Array:
        """(B, H, L)."""
        return self._tiles.sink_share()

    def pooled(self, queries: int, keys: int) -> Array:
        """(B, H, queries, keys)."""
        out: Array = self.survey(queries, keys).pooled
        return out

    def survey(self, queries: int | None = None, keys: int | None = None, *, positions: Any = None) -> Survey:
        """As `Attention.survey`."""
        p = self._problem
        at = p.positions if positions is None else np.asarray(positions, np.int64).reshape(-1, p.queries)
        grid = None if queries is None or keys is None else (edges(p.queries, queries), edges(p.keys, keys))
        return Survey(*self._tiles.survey(at, grid))

    def contributions(self, query: int, *, head: int) -> Contributions:
        """As `Attention.contributions`, of one head: that row's scores and that head's values come to the host."""
        problem, one = self._one(query, head)
        norm, share = questions.contributions(problem, one)
        return Contributions(one.weight[:, 0], norm[:, 0], share[:, 0])

    def influence(self, query: int, *, head: int, vectors: bool = False) -> Influence:
        """As `Attention.influence`, of one head."""
        problem, one = self._one(query, head)
        relative, sole, change = questions.influence(problem, one)
        moved = np.stack([change(n)[0] for n in range(problem.batches)]) if vectors else None
        return Influence(relative[:, 0], sole[:, 0], moved)

    def _one(self, query: int, head: int) -> tuple[Any, questions.OneQuery]:
        p, group = self._problem, head // self._problem.sharing
        row = range(p.queries)[query]
        score, reach, wrong = (part[:, head : head + 1] for part in self._tiles.row(row))
        values = host(self._tiles.value[:, group : group + 1])
        kind = FLOATS["float64" if values.dtype == np.float64 else "float32"]
        mine = replace(questions.of_head(p, head), value=values, dtype=kind)
        return mine, questions.mixed_query(mine, score, reach, wrong)
