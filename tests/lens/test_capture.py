"""What a capture keeps is what the model computed with, and the model does not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv
from qkv.errors import ArgumentError, UnsupportedError
from qkv.lens.calls import Call
from qkv.lens.record import record

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402
from qkv.lens.weights import _output_layer, neighbours  # noqa: E402

#: What issue and docs promise of rows against a model's own weights.
PROMISED = 1e-6


def tiny_models() -> Any:
    pytest.importorskip("transformers")
    from support import tiny_models as found

    return found


NAMES = (
    "llama",
    "gpt2",
    "gpt-neox",
    "mistral",
    "qwen3",
    "olmo2",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "bert",
    "whisper",
    "vit",
)
WITHOUT_SDPA = ("gemma2", "gpt-oss")


def first(output: Any) -> Any:
    return output[0] if not hasattr(output, "logits") else output.logits


def padded(name: str, given: dict[str, Any]) -> dict[str, Any]:
    if name in ("vit", "whisper"):
        return given
    mask = torch.ones_like(given["input_ids"])
    mask[1, :3] = 0
    return {**given, "attention_mask": mask}


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_the_model_does_not_notice(name: str, kernel: str) -> None:
    if kernel == "sdpa" and name in WITHOUT_SDPA:
        pytest.skip(f"{name} has no sdpa kernel")
    models = tiny_models()
    model = models.tiny(name)
    model.set_attn_implementation(kernel)
    given = padded(name, models.inputs(name))
    with torch.no_grad():
        plain = first(model(**given))
    assert torch.equal(first(lens.capture(model, given).output), plain)


@pytest.mark.parametrize("name", NAMES)
def test_the_projections_rebuild_each_layer(name: str) -> None:
    """Heads through their projection are the very output of the layer; so q, k, v, mask, scale, sink and W are all right."""
    models = tiny_models()
    model = models.tiny(name).double()
    eager = name in WITHOUT_SDPA
    model.set_attn_implementation("eager" if eager else "sdpa")
    given = models.inputs(name) if eager else padded(name, models.inputs(name))
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    seen = lens.capture(model, given)
    outputs: dict[int, Any] = {}
    hooks = []
    beside = neighbours(model)
    for layer in seen.layers:
        module = model.get_submodule(layer.name)
        place = _output_layer(module, beside.get(id(module)), len(layer.heads) * layer.value.shape[-1])

        def keep(_: Any, __: Any, out: Any, index: int = layer.index) -> None:
            outputs[index] = out.detach().numpy()

        hooks.append(place.register_forward_hook(keep))
    with torch.no_grad():
        model(**given)
    for layer in seen.layers:
        assert layer.projection.weight is not None
        mixed = np.asarray(layer.attention().output)  # (B, H, L, E)
        rebuilt = np.einsum("bhle,hem->blm", mixed, layer.projection.weight.astype(np.float64))
        if layer.projection.bias is not None:
            rebuilt += layer.projection.bias
        theirs = outputs[layer.index].reshape(rebuilt.shape)
        reads = np.broadcast_to(layer.reads.ranges.clip(layer.keys).sizes() > 0, theirs.shape[:2])
        assert reads.sum() > 0
        # All is float64 but the softmax of the two eager ones, whose rounded weights meet values and projection.
        sizes = np.einsum("bhse,hem->bm", np.abs(layer.value[:, layer.groups]), np.abs(layer.projection.weight))
        limit = layer.keys * np.finfo(np.float32 if eager else np.float64).eps * sizes[:, None]
        assert (np.abs(rebuilt - theirs) <= limit)[reads].all()
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", NAMES)
def test_rows_equal_the_models_own_weights(name: str) -> None:
    """gqa-view: as many rows as query heads, after RoPE; no-weights: whatever kernel the model uses."""
    models = tiny_models()
    model = models.tiny(name)
    given = padded(name, models.inputs(name))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**given, output_attentions=True)
    theirs = (
        [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
        if name == "whisper"
        else [*output.attentions]
    )
    if name not in WITHOUT_SDPA:
        model.set_attn_implementation("sdpa")
    seen = lens.capture(model, given)
    layers = sorted(seen.layers, key=lambda one: "cross" in one.name or "encoder_attn" in one.name)
    assert len(layers) == len(theirs)
    for layer, weights in zip(layers, theirs, strict=True):
        mine = layer.attention().weights(range(len(layer.rows)))
        assert mine.shape == tuple(weights.shape)
        reads = np.broadcast_to(layer.reads.ranges.clip(layer.keys).sizes() > 0, (mine.shape[0], mine.shape[2]))
        off = np.abs(mine - weights.numpy()).max(axis=(1, 3))
        assert off[reads].max() < PROMISED


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "bert", "whisper"])
def test_the_value_bias_is_what_all_values_share(name: str) -> None:
    """value-bias: with the weights of the value projection at zero, every value is the bias."""
    models = tiny_models()
    model = models.tiny(name)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if any(part in path for part in ("c_attn", "query_key_value", "self.value", "v_proj")):
                weight.copy_(torch.randn(weight.shape) if path.endswith("bias") else torch.zeros(weight.shape))
    for layer in lens.capture(model, models.inputs(name)).layers:
        assert layer.projection.value_bias is not None
        every = np.broadcast_to(layer.projection.value_bias[None, :, None], layer.value.shape)
        np.testing.assert_array_equal(layer.value, every)


class Plain(torch.nn.Module):
    """A model that calls torch's own attention with whatever it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.inner = torch.nn.Identity()

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return self.inner(torch.nn.functional.scaled_dot_product_attention(q, k, v, **self.options))


def tensors(*shapes: tuple[int, ...], dtype: Any = None) -> tuple[Any, ...]:
    chance = torch.Generator().manual_seed(3)
    return tuple(
        torch.randn(shape, generator=chance, dtype=torch.float64).to(dtype or torch.float32) for shape in shapes
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.4},
        {"attn_mask": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(2)) > 0.4},
        {"attn_mask": torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.4},
        {"attn_mask": torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(4))},
        {"attn_mask": torch.where(torch.ones(5, 7).tril(1) > 0, 0.0, -torch.inf)},
        {"attn_mask": torch.randn(1, 7, generator=torch.Generator().manual_seed(5))},
    ],
    ids=[
        "full",
        "causal",
        "scale",
        "bool",
        "bool-batch",
        "bool-head",
        "numbers",
        "minus-infinity",
        "numbers-broadcast",
    ],
)
@pytest.mark.parametrize("heads", [None, [0, 3], [1, 2, 3]])
def test_torchs_own_attention_is_read_with_all_its_arguments(options: dict[str, Any], heads: list[int] | None) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3))
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        mask[..., 2, :] = False  # an empty row
    seen = lens.capture(Plain(**options), (q, k, v), heads=heads)
    theirs = seen.output.numpy()[:, range(4) if heads is None else heads]
    mine = seen.layers[0].attention().output
    limit = 4 * 7 * np.finfo(np.float32).eps * np.abs(v.numpy()).max()
    np.testing.assert_allclose(mine, np.nan_to_num(theirs), rtol=0, atol=limit)


def test_a_grouped_layer_keeps_its_groups_and_uneven_heads_find_theirs() -> None:
    """A2: heads 0, 3 and 4 of six on two key heads read key heads 0, 1 and 1."""
    q, k, v = tensors((1, 6, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    whole = lens.capture(Plain(is_causal=True, enable_gqa=True), (q, k, v))
    part = lens.capture(Plain(is_causal=True, enable_gqa=True), (q, k, v), heads=[0, 3, 4])
    assert part.layers[0].groups.tolist() == [0, 1, 1]
    every = whole.layers[0].attention().weights(range(5))[:, [0, 3, 4]]
    limit = 5 * np.finfo(np.float32).eps
    np.testing.assert_allclose(part.layers[0].attention().weights(range(5)), every, rtol=0, atol=limit)


def test_half_types_are_kept_exactly() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), dtype=dtype)
        layer = lens.capture(Plain(), (q, k, v)).layers[0]
        np.testing.assert_array_equal(layer.key, k.float().numpy())


def test_queries_keep_their_positions_and_their_masks() -> None:
    """rectangular: the last three queries against all keys."""
    q, k, v = tensors((1, 2, 9, 4), (1, 2, 9, 4), (1, 2, 9, 4))
    whole = lens.capture(Plain(is_causal=True), (q, k, v)).layers[0]
    for queries, kept in ((slice(-3, None), [6, 7, 8]), ([4, -1], [4, 8]), (3, [3]), ("last", [8])):
        part = lens.capture(Plain(is_causal=True), (q, k, v), queries=queries).layers[0]
        assert part.positions.tolist() == kept
        every = whole.attention().weights(range(9))[:, :, kept]
        limit = 9 * np.finfo(np.float32).eps  # the questions lean on BLAS, whose bits depend on shapes (F3)
        np.testing.assert_allclose(part.attention().weights(range(len(kept))), every, rtol=0, atol=limit)


def test_a_mask_is_kept_in_memory_linear_in_the_tokens() -> None:
    """long-view: 2,048 × 2,048 booleans become two numbers a row."""
    size = 2048
    q, k, v = tensors((1, 1, size, 2), (1, 1, size, 2), (1, 1, size, 2))
    mask = torch.ones(size, size, dtype=torch.bool).tril().triu(-255)
    layer = lens.capture(Plain(attn_mask=mask), (q, k, v)).layers[0]
    assert layer.reads.nbytes == 16 * size
    assert layer.causal


def test_layers_are_chosen_by_number_and_by_name() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Plain(), Plain(is_causal=True)

        def forward(self, x: Any) -> Any:
            return self.second(*[self.first(x, x, x)] * 3)

    (x,) = tensors((1, 2, 5, 4))
    model = Two()
    assert [layer.name for layer in lens.capture(model, x).layers] == ["first", "second"]
    for layers in (1, -1, "second", [1], ["second"]):
        seen = lens.capture(model, x, layers=layers)
        assert [layer.index for layer in seen.layers] == [1]
        assert seen.layer(layers if not isinstance(layers, list) else layers[0]).causal
    with pytest.raises(ArgumentError, match=r"layer must be one of those captured, 1 \(second\), but 0 came"):
        seen.layer(0)


def test_the_model_is_left_as_it_was() -> None:
    sdpa = torch.nn.functional.scaled_dot_product_attention

    class Breaks(Plain):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            super().forward(q, k, v)
            raise RuntimeError("mine")

    q, k, v = tensors((1, 1, 2, 2), (1, 1, 2, 2), (1, 1, 2, 2))
    model = Breaks()
    with pytest.raises(RuntimeError, match="mine"):
        lens.capture(model, (q, k, v))
    assert torch.nn.functional.scaled_dot_product_attention is sdpa
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def call(**changes: Any) -> Call:
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    given = {"module": torch.nn.Identity(), "name": "a", "index": 0, "kernel": "sdpa", "query": q, "key": k, "value": v}
    return Call(**{**given, "mask": None, "options": {}, **changes})


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        # transformers' sdpa: several queries without a mask and causal are aligned at the start, one reads everything.
        ({"options": {"is_causal": True}}, [[0, 1], [0, 2], [0, 3]]),
        ({"options": {"is_causal": False}}, [[0, 5]] * 3),
        # flash kernels: the newest rows; a padding row; a window that counts the query's own key.
        ({"kernel": "flash_attention_2", "options": {"is_causal": True}}, [[0, 3], [0, 4], [0, 5]]),
        (
            {"kernel": "flash_attention_2", "options": {"is_causal": True, "sliding_window": 2}},
            [[1, 3], [2, 4], [3, 5]],
        ),
        (
            {
                "kernel": "flash_attention_2",
                "options": {"is_causal": True},
                "mask": torch.tensor([[0, 1, 1, 1, 1]]),
            },
            [[1, 3], [1, 4], [1, 5]],
        ),
    ],
)
def test_conventions_of_kernels(changes: dict[str, Any], reads: list[list[int]]) -> None:
    layer = record(call(**changes), None, None)
    ranges = layer.reads.ranges
    assert np.stack([ranges.lo, ranges.hi], axis=-1)[0, :, 0].tolist() == reads


def test_flex_attention_rules_are_asked() -> None:
    class Rule:
        def mask_mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return (k <= q) & (k >= q - 1)

    layer = record(call(kernel="flex_attention", mask=Rule()), None, None)
    np.testing.assert_array_equal(layer.reads.ranges.dense(5)[0], np.tril(np.triu(np.ones((3, 5), bool), -1)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"position_bias": torch.zeros(1)}, "position_bias was passed to the attention of a"),
        ({"something_new": 3}, "something_new was passed to the attention of a"),
    ],
)
def test_what_is_not_understood_is_refused(options: dict[str, Any], said: str) -> None:
    """G1."""
    with pytest.raises(UnsupportedError, match=said):
        record(call(options=options), None, None)


def test_dropout_in_training_is_refused() -> None:
    q, k, v = tensors((1, 1, 2, 2), (1, 1, 2, 2), (1, 1, 2, 2))
    with pytest.raises(UnsupportedError, match=r"dropout is on .* call model.eval\(\)"):
        lens.capture(Plain(dropout_p=0.1).train(), (q, k, v))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("smollm2", {}), ArgumentError, "model must be a torch module, but str came"),
        (
            (torch.nn.Identity(), torch.zeros(1)),
            UnsupportedError,
            "model made no attention call to capture .it made none",
        ),
    ],
)
def test_a_model_without_attention_is_refused(arguments: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        lens.capture(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"layers": 5}, UnsupportedError, "it made 1, none of them in layers=5"),
        ({"heads": [2]}, UnsupportedError, "heads must be within 0…1"),
        ({"queries": [3]}, UnsupportedError, "queries must be within -3…2"),
        ({"queries": "newest"}, ArgumentError, 'queries must be "last"'),
        ({"attention": "fast"}, ArgumentError, 'attention must be "model" or "qkv"'),
        ({"attention": "qkv"}, UnsupportedError, "needs a transformers model"),
    ],
)
def test_wrong_arguments_are_refused(options: Any, error: Any, said: str) -> None:
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    with pytest.raises(error, match=said):
        lens.capture(Plain(), (q, k, v), **options)


def test_a_capture_says_what_it_is() -> None:
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    seen = lens.capture(Plain(), (q, k, v), tokens=["a", "b", "c"], name="tiny")
    assert seen.facts["model"] == "tiny"
    assert seen.facts["qkv"] == qkv.__version__
    assert seen.facts["text"].startswith("sha256:ba7816bf8f01cfea")
    assert "1 layers, [2] heads, [3] keys" in repr(seen)
    with pytest.raises(ArgumentError, match="head must be one of the heads kept"):
        seen.layer(0).part(head=2)
    with pytest.raises(ArgumentError, match="query must be one of the rows kept"):
        seen.layer(0).row(3)
    with pytest.raises(ArgumentError, match="batch must be within 0…0"):
        seen.layer(0).part(batch=1)
