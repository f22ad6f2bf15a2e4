"""A capture that keeps summaries says what one that keeps tensors says, without keeping them."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402
from qkv.lens import views  # noqa: E402

from .test_capture import NAMES, padded, tiny_models  # noqa: E402
from .test_rows import CLOSE  # noqa: E402


def same(a: Any, b: Any) -> None:
    """Equal whatever they hold, NaN = NaN; NumPy's sums depend in the last bits on where in memory an array begins."""
    if isinstance(a, Mapping):
        assert set(a) == set(b)
        for key in a:
            same(a[key], b[key])
    elif hasattr(a, "__dict__") and not isinstance(a, np.ndarray):
        same(vars(a), vars(b))
    elif isinstance(a, (np.ndarray, float)):
        np.testing.assert_allclose(a, b, rtol=CLOSE, atol=0)
    else:
        assert a == b


@pytest.mark.parametrize("name", NAMES)
def test_summaries_say_what_the_tensors_say(name: str) -> None:
    models = tiny_models()
    model = models.tiny(name)
    given = padded(name, models.inputs(name))
    full, brief = lens.capture(model, given), lens.capture(model, given, keep="summaries", queries=[2, -1])
    assert len(full.layers) == len(brief.layers)
    for whole, kept in zip(full.layers, brief.layers, strict=True):
        assert isinstance(kept, lens.Reduced)
        assert (kept.name, kept.index, kept.causal, kept.keys) == (whole.name, whole.index, whole.causal, whole.keys)
        same(lens.summary(kept), lens.summary(whole, cells=96))
        for sequence in range(whole.batches):
            for head in whole.heads:
                for query in (whole.positions[2], whole.positions[-1]):
                    at = int(head), int(query)
                    same(lens.row(kept, *at, sequence=sequence), lens.row(whole, *at, sequence=sequence))
            np.testing.assert_array_equal(
                kept.pooled(96, 96, sequence=sequence), whole.pooled(96, 96, sequence=sequence)
            )


def test_the_scores_of_a_text_are_made_while_its_tokens_are_known() -> None:
    models = tiny_models()
    model, given = models.tiny("llama"), models.inputs("llama", batch=1)
    tokens = [str(t) for t in given["input_ids"][0].tolist()]
    full = lens.capture(model, given, tokens=tokens)
    brief = lens.capture(model, given, keep="summaries", tokens=tokens)
    same(lens.summary(brief.layer(1), tokens).scores, lens.summary(full.layer(1), tokens).scores)
    assert "induction" in lens.summary(brief.layer(1)).scores
    without = lens.capture(model, given, keep="summaries")
    with pytest.raises(
        ArgumentError, match=r"tokens came too late for model.layers.1.self_attn.* pass tokens= to capture"
    ):
        lens.summary(without.layer(1), tokens)


class Deep(torch.nn.Module):
    """Layers of wide heads that read one another's output."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any) -> Any:
        for _ in range(self.layers):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return x


def test_memory_does_not_grow_with_layers_times_tokens_times_width() -> None:
    """long-view: six layers more cost six summaries more, and of the tensors only one layer's at a time."""
    x = torch.randn(1, 1, 300, 1024, generator=torch.Generator().manual_seed(0))
    tensors = 3 * x.numel() * 4
    peaks = {}
    for keep in ("tensors", "summaries"):
        lens.capture(Deep(1), x, keep=keep)
        for layers in (2, 8):
            tracemalloc.start()
            seen = lens.capture(Deep(layers), x, keep=keep)
            peaks[keep, layers] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert (sum(one.nbytes for one in seen.layers) >= layers * tensors) == (keep == "tensors")
    assert peaks["tensors", 8] - peaks["tensors", 2] >= 6 * tensors
    assert peaks["summaries", 8] - peaks["summaries", 2] < tensors


def test_layers_from_the_end_are_the_only_ones_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    module, reduced = sys.modules["qkv.lens.capture"], []
    real = module.reduce
    monkeypatch.setattr(module, "reduce", lambda layer, *rest: reduced.append(layer.index) or real(layer, *rest))
    x = torch.randn(1, 1, 9, 4, generator=torch.Generator().manual_seed(0))
    seen = lens.capture(Deep(5), x, keep="summaries", layers=[-2, 0])
    assert [one.index for one in seen.layers] == reduced == [0, 3]


def test_kept_maps_become_coarser_by_whole_cells() -> None:
    x = torch.randn(1, 2, 200, 8, generator=torch.Generator().manual_seed(0))
    kept = lens.capture(Deep(1), x, keep="summaries").layers[0]
    whole = lens.capture(Deep(1), x).layers[0]
    assert kept.pooled(96, 96).shape == (2, 96, 96)
    for most, cells in ((95, 48), (48, 48), (31, 24), (1, 1)):
        np.testing.assert_array_equal(kept.pooled(most, most), whole.pooled(cells, cells))
    shown = views.picture(lens.Capture((kept,), None, None))
    assert shown.maps[1].cells.shape == (96, 96)
    assert shown.rows[0].row.query == 199


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (
            lambda one: lens.row(one, 0, 3),
            ArgumentError,
            r"query must be one of the rows kept of .*, 6, but 3 came; .*keep=.tensors.",
        ),
        (lambda one: lens.row(one, 5, 6), ArgumentError, "head must be one of the heads kept of .*, 0, 1, but 5 came"),
        (
            lambda one: one.attention(),
            UnsupportedError,
            "attention.. needs the tensors of .*, and this capture keeps summaries",
        ),
        (
            lambda one: lens.between(one, 0, [lens.Span("", 0, 2)], [lens.Span("", 0, 2)]),
            UnsupportedError,
            'capture with keep="tensors"',
        ),
        (
            lambda one: lens.capture(Deep(1), torch.zeros(1, 1, 2, 2), keep="all"),
            ArgumentError,
            'keep must be "tensors" or "summaries"',
        ),
    ],
)
def test_what_needs_the_tensors_is_refused(ask: Any, error: Any, said: str) -> None:
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(error, match=said):
        ask(lens.capture(Deep(1), x, keep="summaries").layers[0])
