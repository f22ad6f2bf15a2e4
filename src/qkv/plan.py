"""What an engine will do, as plain integers: tiles, key blocks, splits, threads.

Every tile size of the package is in this file. The order in which the numbers of a row are added is decided here as
well, and from nothing but dtype and head width (contract F3): keys are counted from the first key of the row's own
sequence, `block` of them share one softmax step, and every `split` of them a fresh state starts that is merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .problem import Problem
from .ranges import Ints

#: Rows and keys of a step that only searches (for the place of a fault), and pairs held at once where a rule is
#: evaluated beside the tiles. They bound memory and have no part in the order of additions.
SEARCH_ROWS, SEARCH_KEYS = 128, 2048
PAIRS_AT_ONCE = 1 << 22

#: Multiplications below which waking a second thread takes longer than what it could do meanwhile, some ten microseconds.
BRIEF = 1 << 18

#: Keys whose received mass is added up in one pass over the rows; the longest list of largest weights that the native
#: engine keeps sorted for every row of a tile; and keys of one task that answers for every pair by itself.
RECEIVED_KEYS, LISTED_KEYS, SHARED_KEYS = 512, 64, 1024

#: The same for tensors off the CPU, where a step has to be large to be worth its start; and keys of one block there.
DEVICE_PAIRS, DEVICE_KEYS = 1 << 26, 2048

#: What is worked out in one pass with the output: lists of so many largest weights, and what keys receive where there are no
#: more of them, since a tile's weights are held. Few rows would be faster in two passes, whose last bits are others: how
#: many rows there are may not show in a row (F3).
KEPT_TOP, KEPT_KEYS = 8, 16384


class Tile(NamedTuple):
    """Consecutive query rows of one sequence that count their keys from one origin."""

    batch: int
    start: int
    stop: int
    origin: int


class Block(NamedTuple):
    """Keys lo <= j < hi, one softmax step; `full` when every row of the tile may read each of them."""

    lo: int
    hi: int
    full: bool


@dataclass(frozen=True)
class Plan:
    """How a problem is carried out.

    Attributes:
        engine: "native" or "numpy". level: the instruction set, "" for NumPy.
        tile: query rows of one tile. block: keys of one softmax step. split: keys of one independent state.
        threads: threads that share the tiles. spread: whether the splits of one tile are shared among threads as well.
    """

    engine: str
    level: str
    tile: int
    block: int
    split: int
    threads: int
    spread: bool

    def tiles(self, problem: Problem) -> Iterator[Tile]:
        """The tiles of a problem in order. Rows of one tile have one origin, so their key blocks coincide."""
        origin = problem.origin
        for n in range(problem.batches if problem.queries else 0):
            row = origin[n if origin.shape[0] > 1 else 0]
            cuts = (
                [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), problem.queries]
                if row.size > 1
                else [0, problem.queries]
            )
            for begin, end in pairwise(cuts):
                first = int(row[begin if row.size > 1 else 0])
                for start in range(begin, end, self.tile):
                    yield Tile(n, start, min(start + self.tile, end), first)

    def blocks(self, problem: Problem, tile: Tile) -> list[Block]:
        """The key blocks that some row of the tile may read, ascending. All others are skipped."""
        ranges = problem.ranges
        at = tile.batch if ranges.lo.shape[0] > 1 else 0
        rows = slice(tile.start, tile.stop) if ranges.lo.shape[1] > 1 else slice(None)
        lo, hi = ranges.lo[at, rows], ranges.hi[at, rows]
        some = lo < hi
        touched: dict[int, bool] = {}
        for k in range(ranges.count):
            if not some[:, k].any():
                continue
            low, high = int(lo[some[:, k], k].min()), int(hi[some[:, k], k].max())
            # The part of this interval that is common to all rows: blocks inside it are full.
            common_lo = int(lo[:, k].max()) if some[:, k].all() else high
            common_hi = int(hi[:, k].min()) if some[:, k].all() else high
            for index in range((low - tile.origin) // self.block, (high - 1 - tile.origin) // self.block + 1):
                start, stop = self._edges(problem, tile, index)
                full = problem.rule is None and common_lo <= start and stop <= common_hi
                touched[index] = touched.get(index, False) or full
        return [Block(*self._edges(problem, tile, index), touched[index]) for index in sorted(touched)]

    def _edges(self, problem: Problem, tile: Tile, index: int) -> tuple[int, int]:
        start = tile.origin + index * self.block
        return max(start, 0), min(start + self.block, problem.keys)

    def count(self, problem: Problem) -> Counts:
        """How much of the problem the plan touches (per query head, all of which are alike)."""
        touched = total = 0
        for tile in self.tiles(problem):
            touched += len(self.blocks(problem, tile))
            total += -(-(problem.keys - min(tile.origin, 0)) // self.block)
        sizes = np.broadcast_to(problem.ranges.sizes(), (problem.batches, problem.queries))
        return Counts(touched, total, int(sizes.sum()), problem.batches * problem.queries * problem.keys)

    def scratch(self, problem: Problem) -> int:
        """Upper estimate in bytes of what carrying out the plan holds besides inputs and result."""
        size = problem.dtype.compute.itemsize
        share = problem.sharing if self.engine == "native" else problem.heads
        key_heads = 1 if self.engine == "native" else problem.groups
        rows = min(self.tile, max(problem.queries, 1)) * share
        width, value_width = problem.width, problem.value_width
        one = rows * (2 * self.block + width + 3 * value_width + 8) + key_heads * self.block * (width + value_width)
        parts = 0
        if self.spread:
            splits = -(-problem.keys // self.split)
            parts = problem.batches * problem.heads * problem.queries * splits * (value_width + 3)
        # A rule that is no array is answered a chunk of pairs at a time, a byte each.
        held = min(PAIRS_AT_ONCE, problem.heads * problem.queries * problem.keys) if problem.rule is not None else 0
        return held + size * (one * self.threads + parts) + 8 * int(problem.ranges.lo.size + problem.ranges.hi.size)


class Counts(NamedTuple):
    """Tiles (query tile × key block) touched and in all; pairs the ranges allow and in all."""

    touched: int
    blocks: int
    pairs: int
    all_pairs: int


def order(dtype: str, width: int) -> tuple[int, int]:
    """(block, split): the fixed order of additions of a row, from float type and head width alone (F3)."""
    # Wide heads take smaller blocks, so that a block of keys and values still fits the second-level cache.
    size = 8 if dtype == "float64" else 4
    block = 128 if width * size <= 1024 else 64 if width * size <= 4096 else 16
    return block, 2048


def _runs(origin: Ints) -> Ints:
    """How many rows in turn count their keys from one origin."""
    return np.diff(np.flatnonzero(np.diff(origin)) + 1, prepend=0, append=origin.size)


def make_plan(problem: Problem, engine: str, level: str, threads: int) -> Plan:
    """The plan of one problem for an engine ("native" or "numpy") with so many threads."""
    if engine == "numpy":
        # NumPy works on all heads at once, so fewer and wider steps; its bits depend on shapes anyway (F3).
        rows = max(1, min(128, (1 << 21) // max(256 * problem.heads, 1)))
        return Plan("numpy", "", rows, 256, 2048, 1, False)
    block, split = order(problem.dtype.name, problem.width)
    # Heads of a group share a tile's lanes, so that keys are read once for all of them. Matrix tiles want values turned,
    # which more lanes share.
    rows = max(1, (256 if level == "v4-amx" else 128) // problem.sharing)
    runs = np.full(1, problem.queries, np.int64)
    if problem.origin.size and problem.origin.shape[1] > 1:
        # Tiles end where documents do, and lanes of a tile that no document fills cost memory.
        runs = _runs(problem.origin[0])
        rows = min(rows, int(runs.max()))
    tasks = problem.batches * problem.groups * int((-(-runs // rows)).sum())
    threads, spread = _threads(problem, problem.keys, tasks, split, threads)
    return Plan("native", level, rows, block, split, threads, spread)


def _work(problem: Problem) -> int:
    """Multiplications that one key more costs."""
    return problem.batches * problem.heads * problem.queries * (problem.width + problem.value_width)


def _threads(problem: Problem, keys: int, tasks: int, split: int, threads: int) -> tuple[int, bool]:
    """(threads that are worth waking, whether they share the splits of a tile) for so many keys."""
    if _work(problem) * keys < BRIEF:
        threads = 1
    return threads, threads > 1 and tasks < 2 * threads and keys > split


def threads_by_length(problem: Problem, plan: Plan, threads: int) -> tuple[tuple[int, int, bool], ...]:
    """(keys from which on it holds, threads, spread), falling: what a native plan says for any other number of keys.

    Args:
        problem: whose rows count their keys from one origin.
        threads: as `make_plan` was given.
    """
    tasks = problem.batches * problem.groups * -(-problem.queries // plan.tile)
    edges = sorted({1, max(1, -(-BRIEF // _work(problem))), plan.split + 1}, reverse=True)
    return tuple((keys, *_threads(problem, keys, tasks, plan.split, threads)) for keys in edges)


def keep_plan(problem: Problem, plan: Plan) -> Plan:
    """The plan of the same problem where answers about the weights are worked out in the same pass: tiles of one head."""
    rows = 128
    if problem.origin.size and problem.origin.shape[1] > 1:
        rows = min(rows, int(_runs(problem.origin[0]).max()))
    return replace(plan, tile=rows, spread=False)


def rows_plan(problem: Problem, plan: Plan, rows: int) -> Plan:
    """The plan of so many rows of the same problem."""
    tasks = problem.batches * problem.groups * -(-rows // plan.tile)
    work = _work(problem) // max(problem.queries, 1) * rows * problem.keys
    threads = 1 if work < BRIEF else plan.threads
    return replace(plan, threads=threads, spread=threads > 1 and tasks < 2 * threads and problem.keys > plan.split)


def backward_plan(problem: Problem, plan: Plan) -> Plan:
    """The plan of the same problem's gradient. In the native engine no number of it is part of an order of additions.

    `split` is how many keys a task takes where `spread`: with too few groups to keep the threads busy, queries and keys
    are cut and the weights computed twice.
    """
    if plan.engine == "numpy":
        return plan
    size = problem.dtype.compute.itemsize * max(problem.width, problem.value_width)
    lanes, block = (64, 128) if size <= 256 else (128, 128) if size <= 1024 else (64, 32)
    groups = problem.batches * problem.groups
    spread = plan.threads > 1 and groups < 4 * plan.threads and groups % plan.threads != 0
    return replace(plan, tile=max(1, lanes // problem.sharing), block=block, split=512, spread=spread)


def survey_plan(problem: Problem, plan: Plan) -> Plan:
    """The plan of a survey of the same problem: its tiles are rows of one head, so they take as many as a group's did."""
    return replace(plan, tile=plan.tile * problem.sharing)


def device_plan(problem: Problem) -> Plan:
    """The plan of a problem whose tensors lie off the CPU: all keys of as many rows as memory allows at once."""
    rows = max(1, min(problem.queries, DEVICE_PAIRS // max(problem.heads * problem.keys, 1)))
    return Plan("torch", "", rows, DEVICE_KEYS, DEVICE_KEYS, 1, False)
