"""The bits of a row depend on that row alone (F3): native engine, one machine, one instruction set."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import documents
from support.documents import Document
from support.runs import front_door

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_engine")]

#: Documents over the edge of a split, where states are merged.
LONG = (2047, 2048, 2049, 4100)


@given(data=st.data())
def test_f3_a_document_has_the_bits_it_has_alone(data: Any) -> None:
    doc = data.draw(documents.documents())
    documents.row_invariance(front_door, doc, data.draw(documents.surroundings(doc)))


@settings(max_examples=15)
@given(data=st.data())
def test_f3_so_has_a_long_document(data: Any) -> None:
    doc = data.draw(documents.documents(LONG))
    documents.row_invariance(front_door, doc, data.draw(documents.surroundings(doc)))


@given(doc=documents.documents((1, 2, 5, 17, 33, 65)), chunk=st.sampled_from([1, 1, 2, 7]))
def test_f3_decoding_gives_the_bits_of_the_full_pass(doc: Document, chunk: int) -> None:
    documents.decoding(front_door, doc, chunk)


@given(
    data=st.data(),
    threads=st.integers(1, 4),
    tile=st.sampled_from([1, 2, 5, 16, 64, 200]),
    spread=st.booleans(),
)
def test_f3_threads_tiles_and_spread_change_no_bit(data: Any, threads: int, tile: int, spread: bool) -> None:
    doc = data.draw(documents.documents((1, 5, 33, 65, 129, 2049)))
    around = data.draw(documents.surroundings(doc))
    documents.plan_independence(doc, around, {"threads": threads, "tile": tile, "spread": spread})


@given(doc=documents.documents((1, 5, 33, 65, 129)), seed=st.integers(0, 9))
def test_f3_where_a_mask_skips_work_changes_no_bit(doc: Document, seed: int) -> None:
    skipping = documents.placed(front_door, doc, after=300, rows_before=9, by="keys", seed=seed)
    asking = documents.placed(front_door, doc, after=300, rows_before=9, by="array", seed=seed)
    documents.same(skipping, asking, "forbidden pair by pair instead of skipped")
