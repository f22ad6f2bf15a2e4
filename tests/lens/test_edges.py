"""What is not there is refused and not left out; rows of another text stand at their own numbers; a packed value bias is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402

from .test_text import llama  # noqa: E402


def whisper() -> Any:
    pytest.importorskip("transformers")
    from support.tiny_models import inputs, tiny

    model = tiny("whisper")
    model.set_attn_implementation("eager")
    return model, inputs("whisper")


@pytest.mark.parametrize("options", [{}, {"to": "device"}, {"keep": "summaries", "queries": slice(None)}])
def test_more_queries_than_keys_stand_at_their_own_numbers(options: dict[str, Any]) -> None:
    """gqa-view, rectangular: nine rows of a decoder over six keys of the encoder are rows 0 to 8, in what is reduced too."""
    model, given = whisper()
    with torch.no_grad():
        theirs = model(**given, output_attentions=True).cross_attentions[0].numpy()
    layer = lens.capture(model, given, **options).layer("model.decoder.layers.0.encoder_attn")
    assert theirs.shape[2] > theirs.shape[3]
    for query in range(-9, 9):
        row = lens.row(layer, 1, query, sequence=1)
        assert row.query == query % 9
        np.testing.assert_allclose(row.weight, theirs[1, 1, query], atol=1e-6)


def test_the_value_bias_of_a_packed_projection_is_left_out() -> None:
    """value-bias: of torch's own layer, too, contributions leave out what all values share, and it is shown by itself."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            torch.nn.init.normal_(self.inner.in_proj_bias)
            torch.nn.init.zeros_(self.inner.in_proj_weight[16:])

        def forward(self, x: Any) -> Any:
            return self.inner(x, x, x, need_weights=False)[0]

    torch.manual_seed(0)
    with torch.no_grad():
        model = Model().eval()
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        layer = lens.capture(model, torch.randn(1, 5, 8)).layer(0)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    np.testing.assert_array_equal(
        layer.value, np.broadcast_to(layer.projection.value_bias[None, :, None], layer.value.shape)
    )
    row = lens.row(layer, 1, -1)
    assert row.bias_norm > 0.1
    assert not row.norm.any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": [0, 99]}, "layers must be within 0…1"),
        ({"layers": [-3, 0]}, "layers must be within 0…1"),
        ({"layers": ["elsewhere", 0]}, "'elsewhere' came"),
        ({"layers": []}, "layers must be numbers or names"),
        ({"layers": 0.5}, "layers must be numbers or names"),
        ({"heads": []}, "heads must be numbers"),
        ({"heads": ["a"]}, "heads must be numbers"),
        ({"heads": "a"}, "heads must be numbers"),
        ({"queries": []}, "queries must be"),
    ],
)
def test_nothing_asked_for_is_left_out_in_silence(options: dict[str, Any], said: str) -> None:
    model, given = llama()
    with pytest.raises(ArgumentError, match=said):
        lens.capture(model, given, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    model, given = llama()
    seen = lens.capture(model, given, layers=np.int64(1), heads=np.array([0, 2]))
    assert [one.index for one in seen.layers] == [1]
    assert seen.layers[0].heads.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queries": 99}, "queries must be positions"),
        ({"queries": [0, 99]}, "but 99 came"),
        ({"heads": []}, "heads must be numbers"),
        ({"queries": []}, "queries must be numbers"),
        ({"position": 99}, "position must be within -9…8, but 99 came"),
        ({"sequence": 5}, "sequence must be within -1…0, but 5 came"),
    ],
)
def test_forbidding_where_nothing_is_is_refused(options: dict[str, Any], said: str) -> None:
    model, given = llama()
    with pytest.raises(ArgumentError, match=said):
        lens.forbid(model, given, 0, **options)


def test_forbidding_counts_sequences_from_the_end() -> None:
    from support.tiny_models import inputs

    model, _ = llama()
    given = inputs("llama", batch=2)
    assert lens.forbid(model, given, 1, sequence=-1) == lens.forbid(model, given, 1, sequence=1)
