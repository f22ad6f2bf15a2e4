"""The plan in torch operations, for tensors that are not on the CPU: output, log-sum-exp and questions, tile by tile.

The record and its masks are those of every engine; only the operands are tensors, wherever they are, and what is asked of
them comes back as NumPy arrays. Memory is linear in L + S beside one tile. It promises what the NumPy engine promises: every
row within the bounds derived from the definition (F2), and no bits across shapes (F3). Half types are computed in float32.
`attend` does not come here; the lens does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..floats import Array, widen
from ..plan import Block, Plan, Tile
from ..problem import Problem
from ..ranges import Ints
from ..state import NONFINITE, OVERFLOW

__all__ = ["Seen", "Tiles"]


class Seen(NamedTuple):
    """Scores of one tile's rows over the keys that its blocks hold, tensors where the operands are; C keys, ascending.

    Attributes:
        tile: the rows. keys: (C,) int64 on the host.
        score: (H, R, C), -inf where a pair is not allowed. reach: (H, R, C) allowed pairs. wrong: (H, R) rows without a
            right finite answer.
    """

    tile: Tile
    keys: Ints
    score: Any
    reach: Any
    wrong: Any


@dataclass(frozen=True, eq=False)
class Tiles:
    """A problem over tensors.

    Attributes:
        problem: the record; of its operands only shapes and float type are looked at. plan: from `plan.device_plan`.
        query, key, value: (N, H, L, D), (N, G, S, D), (N, G, S, E) floating tensors on one device.
    """

    problem: Problem
    plan: Plan
    query: Any
    key: Any
    value: Any

    @property
    def compute(self) -> Any:
        """The type it is computed in."""
        import torch

        return torch.float64 if self.problem.dtype.name == "float64" else torch.float32

    def tiles(self, rows: Sequence[int] | None = None) -> Iterator[Seen]:
        """All rows in order, or the rows asked (in every batch), a tile at a time."""
        for tile in self.plan.tiles(self.problem):
            if rows is None:
                yield self._seen(tile)
                continue
            for at in sorted({i for i in rows if tile.start <= i < tile.stop}):
                yield self._seen(Tile(tile.batch, at, at + 1, tile.origin))

    def _seen(self, tile: Tile) -> Seen:
        import torch

        p, device = self.problem, self.query.device
        blocks = self.plan.blocks(p, tile)
        keys = np.concatenate([np.arange(block.lo, block.hi) for block in blocks] or [np.zeros(0, np.int64)])
        raw = self.query[tile.batch, :, tile.start : tile.stop].to(self.compute)
        scaled = raw * p.scale
        fine = torch.isfinite(scaled).all(dim=-1)
        status = torch.zeros(fine.shape, dtype=torch.uint8, device=device)
        scores, reaches = [], []
        for block in blocks:
            score, reach, met = self._block(tile, block, torch.where(fine[..., None], scaled, 0))
            status |= met
            scores.append(score)
            reaches.append(reach)
        if not blocks:
            none = torch.zeros((*fine.shape, 0), dtype=self.compute, device=device)
            return Seen(tile, keys, none, none > 0, status > 0)
        score, reach = torch.cat(scores, dim=-1), torch.cat(reaches, dim=-1)
        some = reach.any(dim=-1)
        wrong = (status > 0) | (some & ~fine) | (some & torch.isneginf(score).all(dim=-1))
        return Seen(tile, keys, score, reach, wrong)

    def _block(self, tile: Tile, block: Block, query: Any) -> tuple[Any, Any, Any]:
        """Scores (H, R, C) with the mask applied, allowed pairs, and status bits (H, R)."""
        import torch

        p, device = self.problem, self.query.device
        heads, rows, cols = p.heads, tile.stop - tile.start, block.hi - block.lo
        at = np.arange(tile.start, tile.stop, dtype=np.int64)
        seen = (
            np.ones((1, 1, 1), np.bool_)
            if block.full
            else p.allowed(tile.batch, slice(0, heads), at, block.lo, block.hi)
        )
        bias = None
        if p.bias is not None:
            part = p.bias[p.at(tile.batch)][:, tile.start : tile.stop, block.lo : block.hi]
            bias = widen(part, p.bias_dtype).astype(p.dtype.compute, copy=False)
            seen = seen & ~np.isneginf(bias)
        reach = self._tensor(seen).expand(heads, rows, cols)
        key, odd = self._finite(self.key[tile.batch, :, block.lo : block.hi])
        odd = odd | self._finite(self.value[tile.batch, :, block.lo : block.hi])[1]
        with _exact_products():
            score = torch.matmul(query.reshape(p.groups, p.sharing * rows, -1), key.transpose(-1, -2))
            if not bool(torch.isfinite(score).all()):
                # Only a partial sum may have left the range: once more in the wider type (D3).
                wide = query.reshape(p.groups, p.sharing * rows, -1).double()
                score = torch.matmul(wide, key.double().transpose(-1, -2)).to(self.compute)
        score = score.reshape(heads, rows, cols)
        status = torch.zeros((heads, rows), dtype=torch.uint8, device=device)

        def mark(bit: int, pairs: Any) -> None:
            status.bitwise_or_((pairs & reach).any(dim=-1).to(torch.uint8) * bit)

        mark(NONFINITE, odd.repeat_interleave(p.sharing, dim=0)[:, None, :])
        mark(OVERFLOW, ~(score < torch.inf))
        if p.softcap is not None:
            score = p.softcap * torch.tanh(score / p.softcap)
        if p.slopes is not None:
            where = p.positions[tile.batch if p.positions.shape[0] > 1 else 0, tile.start : tile.stop]
            far = np.abs(where[:, None] - np.arange(block.lo, block.hi)).astype(p.dtype.compute)
            score = score - self._tensor(p.slopes.astype(p.dtype.compute))[:, None, None] * self._tensor(far)
        if bias is not None:
            finite = np.isfinite(bias)
            mark(NONFINITE, self._tensor(~finite & ~np.isneginf(bias)))
            score = score + self._tensor(np.where(finite, bias, 0))
        mark(OVERFLOW, ~(score < torch.inf))
        return torch.where(reach, score, -torch.inf), reach, status

    def _finite(self, part: Any) -> tuple[Any, Any]:
        """(G, C, width) in the compute type with non-finite numbers as 0, and which vectors held one, (G, C)."""
        import torch

        wide = part.to(self.compute)
        fine = torch.isfinite(wide)
        return torch.where(fine, wide, 0), ~fine.all(dim=-1)

    def _tensor(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(np.array(array, order="C")).to(self.query.device)  # its own memory, whatever was given

    def _sink(self) -> Any:
        """(H, 1) in the compute type, -inf without a sink."""
        p = self.problem
        limit = float(np.finfo(p.dtype.compute).max)
        sink = np.full(p.heads, -np.inf) if p.sink is None else np.clip(p.sink, -limit, limit)
        return self._tensor(sink.astype(p.dtype.compute)[:, None])

    def mass(self, seen: Seen, *, alone: bool = False) -> tuple[Any, Any, Any]:
        """(exp(score - top), its sum and the sink's, top): top over the keys and, unless `alone`, the sink; NaN where wrong."""
        import torch

        sink = self._sink()
        if alone:
            sink = torch.full_like(sink, -torch.inf)
        top = seen.score.amax(dim=-1) if seen.keys.size else torch.full_like(sink, -torch.inf).expand(seen.wrong.shape)
        top = torch.maximum(top, sink)
        shift = torch.where(torch.isfinite(top), top, 0)
        mass = torch.exp(seen.score - shift[..., None])
        mass = torch.where(seen.wrong[..., None] & seen.reach, torch.nan, mass)
        return mass, mass.sum(dim=-1) + torch.exp(sink - shift), top

    def weight(self, seen: Seen, *, alone: bool = False) -> Any:
        """(H, R, C), exactly 0 where a pair is not allowed; `alone`: renormalised over the keys, the sink left out (C4)."""
        import torch

        mass, whole, _ = self.mass(seen, alone=alone)
        return torch.where(seen.reach, mass / torch.where(whole == 0, 1, whole)[..., None], 0)

    def answer(self) -> tuple[Array, Array]:
        """Output (N, H, L, E) and log-sum-exp (N, H, L), in the compute type; NaN rows where there is no right answer."""
        import torch

        p = self.problem
        shape = (p.batches, p.heads, p.queries)
        output, lse = (np.zeros((*shape, *more), p.dtype.compute) for more in ((int(self.value.shape[-1]),), ()))
        for seen in self.tiles():
            n, rows = seen.tile.batch, slice(seen.tile.start, seen.tile.stop)
            mass, whole, top = self.mass(seen)
            total = torch.where(top == -torch.inf, -torch.inf, top + torch.log(whole))
            lse[n, :, rows] = torch.where(seen.wrong, torch.nan, total).cpu().numpy()
            mixed = (
                self._mix(seen, torch.where(seen.wrong[..., None], 0, mass))
                / torch.where(whole > 0, whole, 1)[..., None]
            )
            output[n, :, rows] = torch.where(seen.wrong[..., None], torch.nan, mixed).cpu().numpy()
        return output, lse

    def _mix(self, seen: Seen, mass: Any) -> Any:
        """Σ mass_j v_j, (H, R, E). Values are halved as often as keeps the sum of the largest numbers finite, and doubled again."""
        import torch

        p = self.problem
        heads, rows, many = mass.shape
        keys = self._tensor(seen.keys)
        value = self._finite(self.value[seen.tile.batch].index_select(1, keys))[0]
        with _exact_products():
            out = torch.matmul(mass.reshape(p.groups, p.sharing * rows, many), value)
            if not bool(torch.isfinite(out).all()):
                whole = mass.sum(dim=-1).reshape(p.groups, p.sharing * rows, 1)
                share = mass.reshape(p.groups, p.sharing * rows, many) / torch.where(whole > 0, whole, 1)
                mean = torch.matmul(share, value * 2.0**-64)
                limit = torch.finfo(self.compute).max
                # As a mean it is finite; the caller divides by the sum once more.
                safe = torch.clamp(mean.double() * 2.0**64, -limit, limit)
                return (safe * whole.double()).reshape(heads, rows, -1)
        return out.reshape(heads, rows, -1)

    def entropy(self) -> Array:
        """(N, H, L) in nats, of the weights renormalised over the keys; 0 for a row without keys."""
        return self.survey(self.problem.positions)[0]

    def received(self) -> Array:
        """(N, H, S): the sum of each key's weight over the rows."""
        return self.survey(self.problem.positions)[2]

    def survey(
        self, position: Ints, edges: tuple[Ints, Ints] | None = None
    ) -> tuple[Array, Array, Array, Array | None]:
        """(entropy, distance, received, pooled) as `qkv.pooled.survey` has them."""
        import torch

        p = self.problem
        shape, device = (p.batches, p.heads, p.queries), self.query.device
        entropy, distance = np.zeros(shape, p.dtype.compute), np.full(shape, np.nan, p.dtype.compute)
        received = torch.zeros((*shape[:2], p.keys), dtype=self.compute, device=device)
        pooled = (
            None if edges is None else np.zeros((*shape[:2], edges[0].size - 1, edges[1].size - 1), p.dtype.compute)
        )
        for seen in self.tiles():
            if not seen.keys.size:
                continue
            n, rows = seen.tile.batch, slice(seen.tile.start, seen.tile.stop)
            share, weight = self.weight(seen, alone=True), self.weight(seen)
            terms = torch.where(
                share > 0, share * torch.log(torch.where(share > 0, share, 1)), torch.where(share.isnan(), share, 0)
            )
            entropy[n, :, rows] = torch.clamp(-terms.sum(dim=-1), min=0).cpu().numpy()
            far = position[n if position.shape[0] > 1 else 0, rows][:, None] - seen.keys
            mean = torch.where(seen.reach, share * self._tensor(far).to(self.compute), 0).sum(dim=-1)
            distance[n, :, rows] = torch.where(seen.reach.any(dim=-1), mean, torch.nan).cpu().numpy()
            received[n].index_add_(1, self._tensor(seen.keys), weight.sum(dim=1))
            if pooled is not None and edges is not None:
                self._pool(pooled[n], seen, weight, edges)
        return entropy, distance, received.cpu().numpy(), pooled

    def _pool(self, out: Array, seen: Seen, weight: Any, edges: tuple[Ints, Ints]) -> None:
        import torch

        at = np.arange(seen.tile.start, seen.tile.stop)
        band, cell = (
            np.searchsorted(edge, x, side="right") - 1 for edge, x in zip(edges, (at, seen.keys), strict=True)
        )
        bands, cells = (np.unique(x, return_inverse=True) for x in (band, cell))
        columns = self._tensor(cells[1]).expand(weight.shape)
        narrow = torch.zeros((*weight.shape[:2], cells[0].size), dtype=weight.dtype, device=weight.device)
        narrow = narrow.scatter_reduce(2, columns, weight, "amax")
        lines = self._tensor(bands[1])[None, :, None].expand(narrow.shape)
        small = torch.zeros((weight.shape[0], bands[0].size, cells[0].size), dtype=weight.dtype, device=weight.device)
        small = small.scatter_reduce(1, lines, narrow, "amax")
        where = np.ix_(np.arange(out.shape[0]), bands[0], cells[0])
        out[where] = np.maximum(out[where], small.cpu().numpy())

    def sink_share(self) -> Array:
        """(N, H, L): the sink's part of the whole; 0 without a sink."""
        import torch

        p = self.problem
        out = np.zeros((p.batches, p.heads, p.queries), p.dtype.compute)
        for seen in self.tiles() if p.sink is not None else ():
            _, whole, top = self.mass(seen)
            part = torch.exp(self._sink() - top) / torch.where(whole == 0, 1, whole)
            at = (seen.tile.batch, slice(None), slice(seen.tile.start, seen.tile.stop))
            out[at] = torch.where(seen.wrong, torch.nan, part).cpu().numpy()
        return out

    def chosen(self, rows: Ints, heads: Ints, keys: Ints | None, *, scores: bool = False) -> Array:
        """(N, heads, rows, keys): weights, or scores with -inf where a pair is not allowed."""
        p = self.problem
        out = np.full((p.batches, heads.size, rows.size, p.keys), -np.inf if scores else 0, p.dtype.compute)
        for seen in self.tiles(rows.tolist()):
            found = (seen.score if scores else self.weight(seen)).cpu().numpy()[heads]
            for slot in np.flatnonzero(rows == seen.tile.start):
                out[seen.tile.batch, :, slot][:, seen.keys] = found[:, 0]
        return out if keys is None else out[..., keys]

    def row(self, row: int) -> tuple[Array, Array, Array]:
        """(N, H, S) scores and allowed pairs of one row, and whether it has no right answer, (N, H); scores in float64."""
        p = self.problem
        shape = (p.batches, p.heads, p.keys)
        score, reach, wrong = np.full(shape, -np.inf), np.zeros(shape, np.bool_), np.zeros(shape[:2], np.bool_)
        for seen in self.tiles([row]):
            n = seen.tile.batch
            score[n][:, seen.keys], reach[n][:, seen.keys] = (
                seen.score[:, 0].cpu().numpy(),
                seen.reach[:, 0].cpu().numpy(),
            )
            wrong[n] = seen.wrong[:, 0].cpu().numpy()
        return score, reach, wrong

    def top(self, count: int) -> tuple[Ints, Array]:
        """Keys and weights of the `count` largest weights a row, (N, H, L, count); ties by the lower key; padded with -1 and 0."""
        import torch

        p = self.problem
        shape = (p.batches, p.heads, p.queries, count)
        index, weight = np.full(shape, -1, np.int64), np.zeros(shape, p.dtype.compute)
        for seen in self.tiles():
            many = min(count, seen.keys.size)
            if not many:
                continue
            ranked = torch.where(seen.reach, torch.nan_to_num(self.weight(seen), nan=0.0), -1)
            found, order = torch.sort(ranked, dim=-1, descending=True, stable=True)
            values, keys = found[..., :many].cpu().numpy(), seen.keys[order[..., :many].cpu().numpy()]
            at = (seen.tile.batch, slice(None), slice(seen.tile.start, seen.tile.stop), slice(0, many))
            index[at], weight[at] = np.where(values < 0, -1, keys), np.where(values < 0, 0, values)
            weight[at[:3]][seen.wrong.cpu().numpy()] = np.nan
        return index, weight


@contextmanager
def _exact_products() -> Iterator[None]:
    """Matrix products in the type they say, whatever shorter one the process allows; its setting comes back afterwards."""
    import torch

    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = False
    try:
        yield
    finally:
        products.allow_tf32 = before
