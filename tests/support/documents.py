"""One document in many surroundings: alone, in a batch, padded, packed, in a cache; its rows have the same bits in all (F3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import qkv

from .arrays import DTYPES, STRIDES, bits, cast, restride
from .problems import numbers
from .runs import Attend, front_door, loose, planned

#: Masks that speak of positions relative to each other, so that moving a document does not change them.
RULES: dict[str, Callable[[Any], Any]] = {
    "causal": lambda align: qkv.causal(align=align),
    "window": lambda align: qkv.causal(align=align) & qkv.window(37, 0, align=align),
    "both sides": lambda align: qkv.window(20, 9, align=align),
    "everything": lambda align: qkv.window(None, None, align=align),
    "strided": lambda align: qkv.causal(align=align) & qkv.where(lambda n, h, p, j: (p - j) % 3 != 1),
}

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Document:
    """The newest L rows of n keys: query (H, L, D), key (G, n, D), value (G, n, E), and what else the call says.

    Attributes:
        rule: a name in RULES. bias: (H, L, n) float32 or None. options: scale, softcap, sink, slopes.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    rule: str
    bias: np.ndarray | None
    options: dict[str, Any]

    @property
    def rows(self) -> int:
        return int(self.query.shape[-2])

    @property
    def keys(self) -> int:
        return int(self.key.shape[-2])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(
            f"<{self.query.dtype} q{self.query.shape} k{self.key.shape} v{self.value.shape} {self.rule}"
            f"{' bias' if self.bias is not None else ''} {self.options}>"
        )


@st.composite
def documents(draw: Any, lengths: tuple[int, ...] = (1, 2, 5, 17, 31, 32, 33, 64, 65, 127, 128, 129, 257)) -> Document:
    dtype = draw(st.sampled_from(DTYPES))
    n = draw(st.sampled_from(lengths))
    rows = n if n < 70 and draw(st.booleans()) else draw(st.integers(1, min(n, 9)))
    groups, sharing = draw(st.sampled_from([(1, 1), (1, 3), (2, 2)]))
    width, value_width = draw(st.sampled_from([1, 3, 8, 16, 17, 64])), draw(st.sampled_from([1, 3, 8, 17]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    magnitude = draw(st.sampled_from(["tame", "tame", "peaked", "values at the edge"]))
    query, key, value = (
        cast(numbers(rng, shape, dtype, magnitude, role), dtype)
        for shape, role in (
            ((groups * sharing, rows, width), "query"),
            ((groups, n, width), "key"),
            ((groups, n, value_width), "value"),
        )
    )
    options: dict[str, Any] = {}
    if draw(st.integers(0, 2)) == 0:
        options["scale"] = draw(st.sampled_from([0.0, 1.0, -0.3]))
    if draw(st.integers(0, 3)) == 0:
        options["softcap"] = 3.0
    if draw(st.integers(0, 3)) == 0:
        options["sink"] = rng.standard_normal(groups * sharing)
    bias = None
    if draw(st.integers(0, 3)) == 0:
        bias = rng.standard_normal((groups * sharing, rows, n)).astype(np.float32)
        bias[rng.random(bias.shape) < 0.1] = -np.inf
    elif draw(st.integers(0, 3)) == 0:
        options["slopes"] = rng.choice([0.5, 0.25, -0.125], groups * sharing)
    return Document(query, key, value, draw(st.sampled_from(sorted(RULES))), bias, options)


def placed(
    attend: Attend,
    doc: Document,
    *,
    before: int = 0,
    after: int = 0,
    rows_before: int = 0,
    rows_after: int = 0,
    batch: int = 1,
    at: int = 0,
    by: str = "keys",
    how: tuple[str, str, str] = ("plain", "plain", "plain"),
    picked: slice | None = None,
    seed: int = 0,
) -> Rows:
    """The document's rows, computed among others.

    Args:
        before, after: keys that are not the document's, on either side. rows_before, rows_after: query rows, likewise.
        batch, at: how many sequences, and which is the document.
        by: what keeps others' keys out: "keys" (padding, NaN), "segments" (other documents) "array" (booleans, no ranges),
            or "nothing".
        how: strides of query, key and value. picked: only these rows of the document are asked.
    """
    rng = np.random.default_rng(seed)
    picked = picked or slice(0, doc.rows)
    first, stop, _ = picked.indices(doc.rows)
    rows, keys = stop - first, doc.keys
    L, S = rows_before + rows + rows_after, before + keys + after
    heads = doc.query.shape[0]

    def among(part: np.ndarray, length: int, start: int, fill: Any) -> np.ndarray:
        out = np.full((batch, part.shape[0], length, part.shape[2]), fill).astype(part.dtype)
        if fill is not np.nan:
            out[...] = rng.standard_normal(out.shape).astype(part.dtype)
        out[at, :, start : start + part.shape[1]] = part
        return out

    fill = np.nan if by == "keys" else 0.0
    query = among(doc.query[:, first:stop], L, rows_before, 0.0)
    key, value = (among(x, S, before, fill) for x in (doc.key, doc.value))
    offset = np.full(batch, before + keys - doc.rows + first - rows_before, np.int64)
    mask = RULES[doc.rule](offset)
    if by == "keys":
        mask = mask & qkv.keys(np.full(batch, before), np.full(batch, before + keys))
    elif by == "segments":
        query_ids, key_ids = np.zeros((batch, L), int), np.zeros((batch, S), int)
        query_ids[:, rows_before + rows :], key_ids[:, before + keys :] = 2, 2
        query_ids[:, rows_before : rows_before + rows], key_ids[:, before : before + keys] = 1, 1
        mask = mask & qkv.segments(query_ids, key_ids)
    elif by == "array":
        mine = np.zeros((batch, 1, L, S), bool)
        mine[..., before : before + keys] = True
        mask = mask & qkv.allow(mine)
    arguments = {k: v for k, v in doc.options.items() if k != "slopes"}
    if doc.bias is not None:
        bias = np.full((batch, heads, L, S), 0.5, np.float32)
        bias[at, :, rows_before : rows_before + rows, before : before + keys] = doc.bias[:, first:stop]
        arguments["bias"] = bias
    elif "slopes" in doc.options:
        arguments["bias"] = qkv.alibi(doc.options["slopes"], align=offset)
    query, key, value = (restride(x, s) for x, s in zip((query, key, value), how, strict=True))
    output, lse = loose(attend, query, key, value, mask=mask, **arguments)
    mine = slice(rows_before, rows_before + rows)
    return output[at, :, mine], lse[at, :, mine]


def decoded(attend: Attend, doc: Document, chunk: int) -> Rows:
    """A document all of whose rows are asked, appended to a cache and asked `chunk` rows at a time."""
    cache, parts = qkv.Cache(), []
    arguments = {k: v for k, v in doc.options.items() if k != "slopes"}
    if "slopes" in doc.options:
        arguments["bias"] = qkv.alibi(doc.options["slopes"])
    for start in range(0, doc.rows, chunk):
        new = slice(start, start + chunk)
        cache.append(doc.key[:, new], doc.value[:, new])
        if doc.bias is not None:
            arguments["bias"] = np.ascontiguousarray(doc.bias[:, new, : len(cache)])
        parts.append(loose(attend, doc.query[:, new], cache, mask=RULES[doc.rule](None), **arguments))
    return tuple(np.concatenate(x, axis=a) for x, a in zip(zip(*parts, strict=True), (-2, -1), strict=True))  # type: ignore[return-value]


@st.composite
def surroundings(draw: Any, doc: Document) -> dict[str, Any]:
    """Arguments of `placed`."""
    by = draw(st.sampled_from(["keys", "segments"]))
    batch = draw(st.sampled_from([1, 1, 2, 3]))
    first = draw(st.integers(0, doc.rows - 1))
    return {
        "before": draw(st.sampled_from([0, 0, 1, 7, 31, 64, 130])),
        "after": draw(st.sampled_from([0, 1, 33, 128])),
        "rows_before": draw(st.sampled_from([0, 1, 63, 128])),
        "rows_after": draw(st.sampled_from([0, 0, 2, 65])),
        "batch": batch,
        "at": draw(st.integers(0, batch - 1)),
        "by": by,
        "how": tuple(draw(st.sampled_from(STRIDES)) for _ in range(3)),
        "picked": slice(first, draw(st.integers(first + 1, doc.rows))) if draw(st.booleans()) else None,
        "seed": draw(st.integers(0, 9)),
    }


def same(alone: Rows, other: Rows, what: str, picked: slice | None = None) -> None:
    """The rows have the same bits."""
    for name, a, b in zip(("output", "lse"), alone, other, strict=True):
        a = a[:, picked] if picked is not None else a
        assert a.shape == b.shape
        differ = bits(a) != bits(b)
        assert not differ.any(), (
            f"F3: {what}: {int(differ.sum())} of {differ.size} numbers of the {name} have other bits"
        )


def row_invariance(attend: Attend, doc: Document, around: dict[str, Any]) -> None:
    """F3: a document's rows have the bits they have alone, whatever surrounds them."""
    alone = placed(attend, doc, by="nothing")
    same(alone, placed(attend, doc, **around), f"among others ({around})", around.get("picked"))


def decoding(attend: Attend, doc: Document, chunk: int) -> None:
    """F3: rows decoded against a cache have the bits of the full pass."""
    whole = Document(doc.query, doc.key[:, : doc.rows], doc.value[:, : doc.rows], doc.rule, doc.bias, doc.options)
    if whole.bias is not None:
        whole = Document(whole.query, whole.key, whole.value, whole.rule, whole.bias[..., : doc.rows], whole.options)
    if "sides" in doc.rule or doc.rule == "everything":
        return  # rows that read the future cannot be decoded
    same(placed(attend, whole, by="nothing"), decoded(attend, whole, chunk), f"decoded {chunk} at a time")


def plan_independence(doc: Document, around: dict[str, Any], changes: dict[str, Any]) -> None:
    """F3: threads, tile and spread change no bit."""
    base = placed(front_door, doc, **around)
    same(base, placed(planned(**changes), doc, **around), f"planned with {changes}")
