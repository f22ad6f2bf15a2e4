"""A capture under TransformerLens' names: its shapes, and numbers that are those of the model's own modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402

from .test_capture import tiny_models  # noqa: E402
from .test_rows import CLOSE, layer  # noqa: E402


def seen(name: str, **options: Any) -> Any:
    models = tiny_models()
    model = models.tiny(name).double()
    model.set_attn_implementation("eager")
    given = models.inputs(name)
    with torch.no_grad():
        theirs = model(**given, output_attentions=True).attentions
    return lens.capture(model, given, **options), theirs, model


@pytest.mark.parametrize(("name", "turned"), [("llama", "rot_"), ("gpt2", "")])
def test_shapes_and_numbers_are_those_of_the_names(name: str, turned: str) -> None:
    capture, theirs, _ = seen(name)
    hooks = capture.hooks()
    for index, one in enumerate(capture.layers):
        q, k, v, scores, pattern, z, result = (
            hooks[f"blocks.{index}.attn.hook_{hook}"]
            for hook in (f"{turned}q", f"{turned}k", "v", "attn_scores", "pattern", "z", "result")
        )
        batch, heads, size, width = one.query.shape
        groups = one.key.shape[1]
        assert q.shape == (batch, size, heads, width)
        assert k.shape == v.shape == (batch, size, groups, width)
        assert scores.shape == pattern.shape == (batch, heads, size, size)
        assert z.shape == (batch, size, heads, width)
        # Their softmax is float32, whatever the model is.
        np.testing.assert_allclose(pattern, theirs[index].numpy(), rtol=0, atol=1e-6)
        wide = np.repeat(k, heads // groups, axis=2)
        right = np.einsum("blhd,bshd->bhls", q, wide) * one.scale
        right[..., ~np.tril(np.ones((size, size), bool))] = -np.inf
        np.testing.assert_allclose(scores, right, rtol=CLOSE, atol=CLOSE)
        mixed = np.einsum("bhls,bshe->blhe", pattern, np.repeat(v, heads // groups, axis=2))
        np.testing.assert_allclose(z, mixed, rtol=CLOSE, atol=CLOSE)
        whole = np.einsum("blhe,hem->blm", z, one.projection.weight)
        np.testing.assert_allclose(result.sum(axis=2), whole, rtol=CLOSE, atol=CLOSE)
    assert len(hooks) == len(list(hooks)) == 7 * len(capture.layers)


def test_what_a_capture_lacks_is_not_there() -> None:
    turned, _, model = seen("llama", layers=1)
    hooks = turned.hooks()
    assert "blocks.1.attn.hook_rot_q" in hooks
    assert hooks.get("blocks.1.attn.hook_z").shape == hooks["blocks.1.attn.hook_rot_q"].shape
    for name in ("blocks.1.attn.hook_q", "blocks.0.attn.hook_z", "blocks.1.hook_z", "blocks.1.attn.z", "embed"):
        assert name not in hooks
        assert hooks.get(name) is None
    for name, said in (
        ("blocks.1.attn.hook_q", "captured after rotary embedding, so ask for hook_rot_q"),
        ("blocks.0.attn.hook_z", "blocks.1.attn.hook_rot_q the first"),
    ):
        with pytest.raises(ArgumentError, match=said):
            hooks[name]
    plain = lens.Capture((layer(projected=False),), None, None).hooks()
    assert "blocks.0.attn.hook_result" not in plain
    with pytest.raises(ArgumentError, match="no rotary embedding, so ask for hook_k"):
        plain["blocks.0.attn.hook_rot_k"]
    brief = lens.capture(model, tiny_models().inputs("llama"), keep="summaries").hooks()
    assert len(brief) == 0
    with pytest.raises(ArgumentError, match='keeps summaries; capture with keep="tensors"'):
        brief["blocks.0.attn.hook_z"]


def test_some_rows_and_heads_are_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    part, whole = layer().part(head=2, rows=np.array([3, 6])), layer()
    every = lens.Capture((whole,), None, None).hooks()
    for place in ("", "torch"):
        monkeypatch.setenv("QKV_LENS", place)
        if place:
            part = lens.Layer(
                **{**vars(part), **{n: torch.from_numpy(vars(part)[n]) for n in ("query", "key", "value")}}
            )
        hooks = lens.Capture((part,), None, None).hooks()
        for hook, at in (
            ("pattern", np.s_[:, 2:3, [3, 6]]),
            ("attn_scores", np.s_[:, 2:3, [3, 6]]),
            ("z", np.s_[:, [3, 6], 2:3]),
        ):
            name = f"blocks.0.attn.hook_{hook}"
            np.testing.assert_allclose(hooks[name], every[name][at], rtol=CLOSE, atol=CLOSE)
