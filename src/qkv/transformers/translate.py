"""From the mask functions that transformers composes to qkv's rules, so that tiles are skipped.

transformers describes a mask as a function of four indices, built from a few named parts: causal, a window on one side
or both, chunks, blocks, packed sequences, their intersections and unions. A part is known by the name of the function
that made it, and its numbers by what it closes over. What is not known is not guessed: the answer is then None, and
the caller evaluates the function pair by pair. Which names still mean what they meant is looked up once, on a small
grid (`names_that_hold`).

Indices in these functions are absolute: query i of the call is `q_offset + i`, key j is `kv_offset + j`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..algebra import Bools
from ..frame import Frame
from ..masks import Mask, causal, keys, segments, window
from ..ranges import Ints
from .library import library

_HOME = "transformers.masking_utils"


class _UnknownError(Exception):
    """A part of the mask function that is not known by name."""


@dataclass(frozen=True)
class Place:
    """Where the rows and keys of a call stand.

    Attributes:
        batches, queries, keys: B, L, S. query, key: the absolute index of row 0 and of key 0.
    """

    batches: int
    queries: int
    keys: int
    query: int
    key: int

    @property
    def align(self) -> int:
        """Position of row 0 counted from key 0, for `align=` (B6)."""
        return self.query - self.key

    def rows_and_keys(self, ids: Any) -> tuple[Ints, Ints]:
        """A table (B, index) of torch as the ids of the call's rows (B, L) and keys (B, S)."""
        table = ids.detach().cpu().numpy().astype(np.int64)
        last = max(self.query + self.queries, self.key + self.keys)
        if table.ndim != 2 or table.shape[0] not in (1, self.batches) or table.shape[1] < last:
            raise _UnknownError
        table = np.broadcast_to(table, (self.batches, table.shape[1]))
        return table[:, self.query : self.query + self.queries], table[:, self.key : self.key + self.keys]


def expression(function: Callable[..., Any], place: Place) -> tuple[bool, Mask | None]:
    """(whether the function is known, its rules; None allows every pair)."""
    try:
        if not _makers(function) <= names_that_hold():
            return False, None
        return True, _read(function, place, packed=False)
    except _UnknownError:
        return False, None


def existing(padding: Any, place: Place) -> Mask | None:
    """The rule of a padding mask (B, length) of booleans, absolute; None where every key of the call exists."""
    held = np.asarray(padding.detach().cpu().numpy(), np.bool_)[:, place.key : place.key + place.keys]
    if held.shape[1] < place.keys:  # keys that the mask does not reach yet are not there
        held = np.pad(held, ((0, 0), (0, place.keys - held.shape[1])))
    if held.all():
        return None
    return keys(np.broadcast_to(held, (place.batches, place.keys)))


def _read(function: Callable[..., Any], place: Place, packed: bool) -> Mask | None:
    maker, held = _made_by(function)
    if maker == "causal_mask_function":
        return causal(align=place.align)
    if maker == "bidirectional_mask_function":
        return None
    if maker in ("and_masks", "or_masks"):
        parts = held["mask_functions"]
        inside = packed or (maker == "and_masks" and any(_made_by(f)[0] == _PACKED for f in parts))
        read = [_read(f, place, inside and _made_by(f)[0] != _PACKED) for f in parts]
        return _both(read) if maker == "and_masks" else _either(read)
    if maker == "sliding_window_overlay":
        return window(_width(held["sliding_window"]) - 1, None, align=place.align)
    if maker == "sliding_window_bidirectional_overlay":
        return window(_width(held["sliding_window"]), _width(held["sliding_window"]), align=place.align)
    if maker == "chunked_overlay":
        return _chunks(held["chunk_size"], held["left_padding"], place)
    if maker == "blockwise_overlay":
        rows, cols = place.rows_and_keys(held["block_sequence_ids"])
        return segments(np.where(rows < 0, -1, rows), np.where(cols < 0, -2, cols))
    if maker == _PACKED:
        return segments(*place.rows_and_keys(held["packed_sequence_mask"]))
    if maker == "remap_positions_for_packed_sequence" and packed:
        # Inside one packed sequence positions are indices less a constant, so rules about distances stay as they are;
        # pairs of different sequences are forbidden by the packing that this stands beside.
        inner = held["mask_function"]
        if _distances_only(inner):
            return _read(inner, place, packed)
    raise _UnknownError


_PACKED = "packed_sequence_mask_function"


def _made_by(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """The function of transformers that made this one (or is it), and what it closes over."""
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__module__", "") != _HOME:
        raise _UnknownError
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__qualname__.split(".")[0], dict(zip(code.co_freevars, cells, strict=True))


def _distances_only(function: Callable[..., Any]) -> bool:
    """Whether a rule speaks of the distance of key and query alone."""
    maker, held = _made_by(function)
    if maker in ("and_masks", "or_masks"):
        return all(_distances_only(f) for f in held["mask_functions"])
    return maker in (
        "causal_mask_function",
        "bidirectional_mask_function",
        "sliding_window_overlay",
        "sliding_window_bidirectional_overlay",
    )


def _both(parts: list[Mask | None]) -> Mask | None:
    """The intersection; None allows everything."""
    out: Mask | None = None
    for part in parts:
        if part is not None:
            out = part if out is None else out & part
    return out


def _either(parts: list[Mask | None]) -> Mask | None:
    """The union; None allows everything."""
    out: Mask | None = None
    for part in parts:
        if part is None:
            return None
        out = part if out is None else out | part
    return out


def _width(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _UnknownError
    return value


def _chunks(size: Any, padding: Any, place: Place) -> Mask:
    """Equal chunk numbers, counted from each sequence's first token that is no padding."""
    pad = padding.detach().cpu().numpy().astype(np.int64).reshape(-1, 1)
    if pad.shape[0] not in (1, place.batches):
        raise _UnknownError
    rows = place.query + np.arange(place.queries) - pad
    cols = place.key + np.arange(place.keys) - pad
    width = _width(size)
    return segments(
        np.broadcast_to(rows // width, (place.batches, place.queries)),
        np.broadcast_to(cols // width, (place.batches, place.keys)),
    )


def _makers(function: Callable[..., Any]) -> set[str]:
    """The names of all parts."""
    maker, held = _made_by(function)
    inner = held.get("mask_functions", ()) if "mask_functions" in held else (held.get("mask_function"),)
    return {maker}.union(*(_makers(f) for f in inner if f is not None))


@lru_cache(maxsize=1)
def names_that_hold() -> frozenset[str]:
    """The names whose functions mean in this release what they meant: each on a grid of pairs, against our rules.

    A mask with another part is evaluated pair by pair: slower, and right.
    """
    lib = library()
    make, torch = lib.masking, lib.torch
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, -1, -1, 2], [0, 1, 1, 1, 1, -1, 2, 2, 2]])
    packs, positions = torch.tensor([[0, 0, 0, 1, 1, 2]]), torch.tensor([[0, 1, 2, 0, 1, 0]])
    decoding, whole = Place(2, 4, 7, 5, 2), Place(1, 6, 6, 0, 0)
    samples: list[tuple[Callable[[], Any], Place]] = [
        (lambda: make.causal_mask_function, decoding),
        (lambda: make.bidirectional_mask_function, decoding),
        (lambda: make.sliding_window_causal_mask_function(3), decoding),
        (lambda: make.sliding_window_bidirectional_mask_function(2), decoding),
        (lambda: make.chunked_causal_mask_function(3, torch.tensor([0, 2])), decoding),
        (lambda: make.or_masks(make.causal_mask_function, make.blockwise_overlay(ids)), decoding),
        (lambda: make.and_masks(make.causal_mask_function, make.packed_sequence_mask_function(packs)), whole),
        (
            lambda: make.and_masks(
                make.remap_positions_for_packed_sequence(make.sliding_window_causal_mask_function(2), positions),
                make.packed_sequence_mask_function(packs),
            ),
            whole,
        ),
    ]
    held: set[str] = set()
    for sample, place in samples:
        try:
            function = sample()
            if _agrees(function, place):
                held |= _makers(function)
        except (AttributeError, KeyError, TypeError, _UnknownError):
            continue
    return frozenset(held)


def _agrees(function: Callable[..., Any], place: Place) -> bool:
    torch = library().torch
    sizes = ((place.batches, 0), (1, 0), (place.queries, place.query), (place.keys, place.key))
    grid = [
        (torch.arange(size) + begin).reshape([-1 if at == axis else 1 for at in range(4)])
        for axis, (size, begin) in enumerate(sizes)
    ]
    theirs = function(*grid).expand(place.batches, 1, place.queries, place.keys).numpy()
    return bool((dense(_read(function, place, packed=False), place) == theirs).all())


def dense(rules: Mask | None, place: Place) -> Bools:
    """Rules as booleans (B, 1, L, S): what the engine is spared."""
    frame = Frame((place.batches,), 1, place.queries, place.keys, np.full(place.batches, place.align, np.int64))
    out = np.ones((place.batches, 1, place.queries, place.keys), np.bool_)
    rows, cols = np.arange(place.queries), np.arange(place.keys)
    if rules is not None:
        for n in range(place.batches):
            out[n] = rules.tile(frame, n, slice(0, 1), rows, cols)
    return out
