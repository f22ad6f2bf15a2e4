"""Numbers that no array can be long, arrays where one number belongs, and objects that lie: each is refused in a sentence (G2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import Cache, QkvError, attend, attention, causal, window
from support.hostile import refused_in_a_sentence
from support.liars import LIARS, Capsule, Endless, Raised

X = np.ones((2, 3, 4), np.float32)
#: As int64 this is -1: read so it would be the last row, the last key, the row before the first.
LARGEST = np.uint64(2**64 - 1)


def asked() -> qkv.Attention:
    return attention(X, X, X)


def filled() -> Cache:
    return Cache().append(X[None], X[None])


REFUSED: dict[str, Callable[[], Any]] = {
    "keep is an array of several": lambda: attention(X, X, X, keep=np.zeros((2, 2))),
    "keep is an array without axes": lambda: attention(X, X, X, keep=np.array(2.0)),
    "a head is an array": lambda: asked().influence(0, head=np.array([0, 1])),
    "a row is a class": lambda: asked().contributions(int),
    "a row is the largest number": lambda: asked().contributions(LARGEST),
    "rows are the largest number": lambda: asked().weights(np.array([LARGEST])),
    "heads are the largest number": lambda: asked().weights(0, heads=LARGEST),
    "a list of 2**63 keys": lambda: asked().top(2**63),
    "positions are the largest number": lambda: asked().survey(positions=np.full(3, LARGEST)),
    "align is the least number": lambda: attend(X, X, X, mask=causal(align=-(2**63))),
    "align is the largest number": lambda: attend(X, X, X, mask=causal(align=LARGEST)),
    "align is one per sequence": lambda: attend(
        X[None], X[None], X[None], mask=window(1, 0, align=np.array([LARGEST]))
    ),
    "a map of an object": lambda: asked().pooled(LIARS[18], 1),
    "a map of a long word": lambda: asked().survey("x" * 100_000, 1),
    "rows are lengths of time": lambda: asked().weights(np.zeros(2, "m8[s]")),
    "align is a length of time": lambda: attend(X, X, X, mask=causal(align=np.zeros((), "m8[s]"))),
    "lengths are lengths of time": lambda: attend(X[None], X[None], X[None], mask=qkv.keys(np.zeros(1, "m8[s]"))),
    "a cache's lengths are lengths of time": lambda: filled().trim(np.zeros(1, "m8[s]")),
    "a fork of lengths of time": lambda: filled().fork(np.zeros(1, "m8[s]")),
    "positions are lengths of time": lambda: asked().survey(positions=np.zeros(3, "m8[s]")),
    "a sink is a length of time": lambda: attend(X, X, X, sink=np.zeros(2, "m8[s]")),
    "slopes are lengths of time": lambda: attend(X, X, X, bias=qkv.alibi(np.zeros(2, "m8[s]"))),
    "offsets are lengths of time": lambda: qkv.attend_packed(X, X, X, np.array([0, 2], "m8[s]")),
    "a page is an array": lambda: Cache(page=np.array([1, 2])),  # type: ignore[arg-type]
    "a page is an array of none": lambda: Cache(page=np.zeros(0, int)),  # type: ignore[arg-type]
    "a page is a large array": lambda: Cache(page=np.broadcast_to(True, (1 << 20, 1 << 20))),  # type: ignore[arg-type]
    "a page is an object": lambda: Cache(page=object()),  # type: ignore[arg-type]
    "a page of 2**63 tokens": lambda: Cache(page=2**63),
    "a window is a word": lambda: Cache(window=np.array("a")),  # type: ignore[arg-type]
    "storage is an array": lambda: Cache(storage=np.zeros((2, 2))),  # type: ignore[arg-type]
    "trimmed to the largest number": lambda: filled().trim(LARGEST),
    "lengths of the largest number": lambda: filled().append(X[None], X[None], lengths=np.array([LARGEST])),
    "a fork of the largest number": lambda: filled().fork(np.array([LARGEST])),
    "threads are an array": lambda: qkv.threads(np.ones(2, int)),  # type: ignore[arg-type]
    "threads are a class": lambda: qkv.threads(int),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_g2_a_number_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(QkvError) as caught:
        REFUSED[case]()
    refused_in_a_sentence(caught.value)


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: type(liar).__name__)
@pytest.mark.parametrize(
    "name", ["query", "key", "value", "mask", "bias", "scale", "softcap", "sink", "empty", "layout"]
)
def test_g2_whoever_lies_is_refused(name: str, liar: Any) -> None:
    """Or answered, where it happens to fit; or the object's own error comes back, or there is no memory for what it says."""
    try:
        attend(**{"query": X, "key": X, "value": X, name: liar})
    except QkvError as error:
        refused_in_a_sentence(error)
    except (Raised, MemoryError):
        pass


@pytest.mark.parametrize("device", [(), "cpu", None, ("x",)], ids=repr)
def test_g2_a_device_that_is_none(device: Any) -> None:
    with pytest.raises(qkv.UnsupportedError, match="query cannot be read through DLPack"):
        attend(Capsule(object(), device), X, X)


@pytest.mark.parametrize("capsule", [None, object(), ValueError(""), BufferError("no")], ids=repr)
def test_g2_a_capsule_that_is_none(capsule: Any) -> None:
    with pytest.raises(qkv.UnsupportedError, match=r"key cannot be read through DLPack \(.+\); pass np.asarray\(key\)"):
        attend(X, Capsule(capsule), X)


def test_an_object_without_an_end_is_not_read() -> None:
    with pytest.raises(QkvError):
        attention(X, X, X, keep=Endless())  # type: ignore[arg-type]


def test_whole_numbers_of_other_kinds_are_numbers() -> None:
    """What was refused above are not these."""
    assert attention(X, X, X, keep=np.zeros(0)).output.shape == X.shape  # no question
    assert asked().top(np.int8(2)).keys.shape == (2, 3, 2)
    assert asked().contributions(np.uint64(2), head=np.array(1)).weight.shape == (3,)
    assert Cache(page=np.uint16(4), window=np.array(3))._page == 4  # type: ignore[arg-type]
    assert filled().trim(np.uint64(2)).lengths.tolist() == [2]
    with qkv.threads(np.int64(1)):  # type: ignore[arg-type]
        assert attend(X, X, X).shape == X.shape
