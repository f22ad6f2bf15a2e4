"""torch's own modules: no capture that is empty, or of something else than the model does, without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qkv.errors import UnsupportedError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402


def encoder(layers: int = 2) -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers).eval().requires_grad_(False)


@pytest.fixture
def slow() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fused_fast_path_is_refused_with_the_way_out() -> None:
    """fast-path: what the lens would watch is not what the model does by itself."""
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with pytest.raises(
        UnsupportedError,
        match=r"takes the fused fast path of torch.nn.TransformerEncoder.*set_fastpath_enabled.False. first",
    ):
        lens.capture(encoder(), {"src": X, "src_key_padding_mask": padding})
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch._transformer_encoder_layer_fwd.__module__ != "qkv.lens.fused"


@pytest.mark.usefixtures("slow")
def test_the_way_out_leads_out() -> None:
    model = encoder()
    plain = model(X)
    seen = lens.capture(model, X)
    assert torch.equal(seen.output, plain)
    assert [one.name for one in seen.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert not torch.backends.mha.get_fastpath_enabled()


def test_where_the_fast_path_gives_the_same_bits_it_is_left_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture is of the model's numbers then, whatever way it took to them."""
    model = encoder(1)
    torch.backends.mha.set_fastpath_enabled(False)
    bits = model(X)
    torch.backends.mha.set_fastpath_enabled(True)
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args, **kwargs: bits.clone())
    seen = lens.capture(model, X)
    assert torch.equal(seen.output, bits)
    assert len(seen.layers) == 1


def test_weights_and_projection_are_the_modules_own() -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        torch.manual_seed(0)
        inner = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Any) -> Any:
                return self.inner(x, x, x, need_weights=False)[0]

        one = lens.capture(Model(), X).layer("inner")
        theirs = inner(X, X, X, need_weights=True, average_attn_weights=False)[1].numpy()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    np.testing.assert_allclose(one.attention().weights(range(5)), theirs, rtol=0, atol=1e-6)


def test_weights_on_demand_are_not_passed_over() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = (torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

        def forward(self, x: Any) -> Any:
            x = self.one(x, x, x, need_weights=False)[0]
            return self.two(x, x, x)[0]

    model = Mixed().train()
    with pytest.raises(
        UnsupportedError, match=r"attention of two was computed beside every kernel.*need_weights=False"
    ):
        lens.capture(model, X)
    assert [one.name for one in lens.capture(model, X, layers="one").layers] == ["one"]
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
