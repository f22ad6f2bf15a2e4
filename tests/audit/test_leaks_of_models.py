"""`qkv.audit.leaks` on models of transformers: a clean one has none, its broken copies are told apart (D1, E1, F3)."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qkv import models
from qkv.audit import leaks
from qkv.errors import ArgumentError, ShapeError
from support.libraries import library

TEXT = "Alice was beginning to get very tired of sitting by her sister on"
KINDS = ("future", "left padding", "right padding", "batch", "packing", "cache")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on so small a model cost a hundred times what they give."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def real(name: str = "glassllm") -> models.Model:
    """A trained model that comes inside a package."""
    library("transformers")
    if name == "glassllm":
        library(name)
    try:
        return models.load(name)
    except ArgumentError as missing:
        pytest.skip(str(missing))


def broken(name: str, *arguments: Any, model: Any = None, with_mask: bool = True) -> Any:
    """The real decoder, or another, with an attention function that has a mistake."""
    model = model or real()
    from . import broken as made

    function = getattr(made, name)
    made.use(getattr(model, "module", model), function(*arguments) if arguments else function, with_mask)
    return model


def deep(layers: int = 30) -> tuple[Any, Any]:
    """A decoder of thirty layers, untrained, and its input."""
    transformers, torch = library("transformers"), library("torch")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    return model, {"input_ids": torch.from_numpy(np.random.default_rng(1).integers(0, 50, (1, 12)))}


def test_the_real_decoder_has_no_leak() -> None:
    """D1, E1, F3: no false alarm, of no kind, from a text in one line."""
    found = leaks(real(), TEXT, trials=1)
    assert found.asked == KINDS
    assert found.ok
    assert not found.left_out
    assert json.loads(json.dumps(found.to_dict()))["leaks"] == []


def test_qkv_in_the_real_decoder_has_no_leak() -> None:
    """D1, E1, F3: this engine in the place of the model's attention, and its paged cache."""
    model = real()
    import qkv.transformers

    qkv.transformers.enable()
    model.module.set_attn_implementation("qkv")
    assert leaks(model, TEXT, trials=1).ok
    named = "cache" if "cache" in inspect.signature(model.module.forward).parameters else "past_key_values"

    def decode(module: Any, cache: Any, **words: Any) -> tuple[Any, Any]:
        cache = qkv.transformers.paged_cache(module.config) if cache is None else cache
        return module(**words, **{named: cache}, use_cache=True), cache

    assert leaks(model, TEXT, ask=["cache"], decode=decode).ok


def test_one_part_in_a_million_in_one_head_of_one_layer_of_thirty() -> None:
    """D1: layer, head, position, source; and none in the same model without it."""
    model, ids = deep()
    assert leaks(model, ids, ask=["future"], trials=1).ok
    (leak,) = leaks(broken("Planted", 17, 2, 5, 1e-6, model=model), ids, ask=["future"]).leaks
    assert (leak.kind, leak.position, leak.source) == ("future", 5, 7)
    assert (leak.layer, leak.head, leak.module) == (17, 2, "model.layers.17.self_attn")
    assert leak.tensor == "the input of model.layers.17.self_attn.o_proj"
    assert "(head 2)" in str(leak)


def test_one_part_in_a_million_in_the_real_decoder() -> None:
    """D1: the same in trained weights, in the last head of the last layer."""
    (leak,) = leaks(broken("Planted", 3, 3, 11, 1e-6), TEXT, ask=["future"]).leaks
    assert (leak.position, leak.source, leak.layer, leak.head) == (11, 13, 3, 3)


@pytest.mark.long
def test_one_part_in_a_million_in_smollm2() -> None:
    """D1: thirty trained layers; clean without it."""
    model = real("smollm2")
    assert leaks(model, TEXT, trials=1).ok
    (leak,) = leaks(broken("Planted", 17, 4, 5, 1e-6, model=model), TEXT, ask=["future"]).leaks
    assert (leak.position, leak.source, leak.layer, leak.head) == (5, 7, 17, 4)


def test_a_mask_that_is_dropped_reads_the_future() -> None:
    """D1: every kind that a mask is for."""
    found = leaks(broken("mask_dropped"), TEXT, trials=1)
    kinds = {leak.kind: leak for leak in found.leaks}
    assert set(kinds) == set(KINDS) - {"batch"}
    assert (kinds["future"].position, kinds["future"].layer) == (0, 0)
    assert kinds["packing"].module == "model.layers.0.self_attn"


def test_a_mask_function_that_is_not_registered() -> None:
    """D1, E1: still causal, so that nothing looks wrong; but padding and other documents are read, and a long prompt in
    pieces is aligned at the start."""
    library("transformers")
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from . import broken as made

    model = real()
    made.use(model.module, sdpa_attention_forward)
    assert leaks(model, TEXT, ask=["left padding", "packing"], trials=1).ok
    made.use(model.module, sdpa_attention_forward, with_mask=False)
    found = leaks(model, TEXT, trials=1)
    kinds = {leak.kind: leak for leak in found.leaks}
    assert set(kinds) == {"left padding", "packing", "cache"}
    half = len(model.encode(TEXT)["input_ids"][0]) // 2
    assert kinds["left padding"].position == kinds["packing"].position == half
    assert kinds["left padding"].layer == kinds["packing"].layer == 0
    assert kinds["packing"].source < half
    # Its first row may read one key of the past at once with it, and reads itself instead.
    assert (kinds["cache"].position, kinds["cache"].source) == (half, half)
    assert "at once, DynamicCache" in kinds["cache"].way
    assert kinds["cache"].module == "model.layers.0.self_attn"
    assert abs(kinds["cache"].before - kinds["cache"].after) > kinds["cache"].bound > 0


def test_packed_rows_with_the_default_cache() -> None:
    """D1: transformers tells documents apart only without a cache, and makes one unless told not to."""
    model = real()
    ids = model.encode(TEXT)
    assert leaks(model.module, ids, ask=["packing"]).ok
    (leak,) = leaks(model.module, {**ids, "use_cache": True}, ask=["packing"]).leaks
    half = ids["input_ids"].shape[1] // 2
    assert (leak.position, leak.layer) == (half, 0)
    assert "which is of another document" in str(leak)
    # Three documents of the caller's own; the mask, which hides them from transformers, left out.
    rows = library("torch").tensor([[0, 1, 2, 0, 1, *range(ids["input_ids"].shape[1] - 5)]])
    own = {"input_ids": ids["input_ids"], "position_ids": rows}
    assert leaks(model.module, own, ask=["packing"]).ok
    (leak,) = leaks(model.module, {**own, **ids}, ask=["packing"]).leaks
    assert (leak.position, leak.source) == (3, 2)


def test_a_cache_that_forgets_a_key() -> None:
    """E1: the first position that is off, the layer, the way of reading, the bound."""
    (leak,) = leaks(broken("one_key_short"), TEXT, trials=1).leaks
    assert (leak.kind, leak.layer, leak.module) == ("cache", 1, "model.layers.1.self_attn")
    assert leak.tensor == "the input of model.layers.1.self_attn.o_proj"
    half = len(real().encode(TEXT)["input_ids"][0]) // 2
    assert leak.position == max(half, 10)
    assert leak.way == f"{half} at once, then one by one, DynamicCache"
    assert "rounding gives" in str(leak)


def test_positions_that_go_on_wrongly() -> None:
    """E1: a step at the wrong angle enters before any layer."""
    model = real()
    inner = model.module.model.rotary_emb
    inner.register_forward_pre_hook(
        lambda module, args, words: (args, {**words, "position_ids": words["position_ids"] + (args[0].shape[1] == 1)}),
        with_kwargs=True,
    )
    (leak,) = leaks(model, TEXT, trials=1).leaks
    assert (leak.kind, leak.tensor) == ("cache", "the input of model.rotary_emb")


def test_an_encoder_is_not_asked_about_a_future() -> None:
    """D1: what has none; padding and batch of it are clean, and its documents are not kept apart."""
    transformers, torch = library("transformers"), library("torch")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    model = transformers.BertModel(config).eval()
    ids = deep(1)[1] | {"attention_mask": torch.ones(1, 12, dtype=torch.long)}
    found = leaks(model, ids)
    assert found.ok
    assert found.asked == ("left padding", "right padding", "batch")
    assert set(found.left_out) == {"future", "packing", "cache"}
    assert [leak.kind for leak in leaks(model, ids, ask=["future"]).leaks] == ["future"]


def running(fault: int | None = None) -> Any:
    """A sum so far in NumPy, and how it goes on: from a state, which is lost at one position."""

    def decode(model: Any, cache: Any, x: Any) -> tuple[Any, Any]:
        count, total = (0, np.zeros_like(x[:, :1])) if cache is None else cache
        out = model(x) + (0 if count == fault else total)
        return out, (count + x.shape[1], out[:, -1:])

    return decode


def test_the_cache_of_any_function() -> None:
    """E1: a decode of the caller's own, with and without a fault; what cannot be asked is told."""
    x = np.random.default_rng(0).standard_normal((2, 9, 3)).astype(np.float32)

    def summed(x: Any) -> Any:
        return np.cumsum(x, 1)

    assert leaks(summed, x, ask=["cache"], decode=running()).ok
    found = leaks(summed, x, ask=["cache"], decode=running(6))
    assert (found.leaks[0].position, found.leaks[0].source) == (6, 6)
    assert found.leaks[0].way == "4 at once, then one by one"
    assert found.leaks[0].module == ""
    ids = np.arange(9)[None]
    why = leaks(lambda x: np.cumsum(x, 1), ids, ask=["cache"], decode=running()).left_out["cache"]
    assert why.startswith("a function of whole numbers has no float type")
    assert leaks(summed, x, ask=["cache"]).left_out == {
        "cache": "how it goes on from what it has read is not known, pass decode="
    }
    square = leaks(lambda x, m: x, (x, np.ones((2, 1, 9, 9))), ask=["cache"], decode=running())
    assert square.left_out["cache"] == "the input 1 of shape (2, 1, 9, 9) cannot be cut into parts"
    with pytest.raises(ShapeError, match="decode must answer with the 4 positions of its part"):
        leaks(summed, x, ask=["cache"], decode=lambda model, cache, x: (model(x)[:, :1], cache))


def test_the_documents_of_any_function() -> None:
    """D1: documents by number, with and without a fault."""
    x = np.random.default_rng(0).standard_normal((2, 9, 1))
    documents = np.array([[0, 0, 0, 0, 5, 5, 5, 2, 2], [1, 1, 1, 1, 1, 1, 1, 1, 1]])

    def mean(x: Any, documents: Any, leaking: bool) -> Any:
        same = documents[:, :, None] == documents[:, None]
        same[0, 5, 8] |= leaking
        return (same @ x) / same.sum(-1, keepdims=True)

    for leaking in (False, True):
        words = {"x": x, "documents": documents, "leaking": leaking}
        found = leaks(mean, words, ask=["packing"], packing="documents")
        assert [(leak.position, leak.source, leak.sequence) for leak in found.leaks] == [(5, 8, 0)] * leaking
    one = leaks(mean, {**words, "documents": documents[1:]}, ask=["packing"], packing="documents")
    assert one.left_out["packing"] == "the input 'documents' holds one document"
    assert "tells documents apart" in leaks(mean, words, ask=["packing"]).left_out["packing"]


def test_what_is_rounding_alone_is_no_leak() -> None:
    """F3: bits that depend on the future and no number that does; and a leak of one part in a million behind them."""
    torch = library("torch")

    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        leak = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Identity()

        def forward(self, x: Any) -> Any:
            out = (x * x[:, -1:]) / x[:, -1:]
            seen = torch.zeros_like(out)
            seen[:, 3] = self.leak * x[:, 5]
            return self.inner(out + seen)

    model = Scaled()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 8, 4)).astype(np.float32))
    found = leaks(model, x, ask=["future"])
    assert found.ok
    assert [(leak.kind, leak.module) for leak in found.rounding] == [("future", "")]
    assert "in rounding alone, future: the output at position 0 depends on the input at position 7" in str(found)
    assert "none found" not in str(found)
    model.leak = 1e-6
    found = leaks(model, x, ask=["future"])
    assert [(leak.position, leak.source, leak.module) for leak in found.leaks] == [(3, 5, "Scaled")]
    assert json.loads(json.dumps(found.to_dict()))["rounding"][0]["position"] == 0


def test_experts_are_multiplied_in_groups_of_any_size() -> None:
    """D1, E1, F3: no kind of leak in a mixture of experts, whose bits the other tokens may decide."""
    transformers, torch = library("transformers"), library("torch")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        initializer_range=0.3,
    )
    model, ids = transformers.MixtralForCausalLM(config).eval(), deep(1)[1]
    found = leaks(model, ids | {"attention_mask": torch.ones_like(ids["input_ids"])}, trials=1)
    assert found.ok
    assert found.asked == KINDS
    (leak,) = leaks(broken("Planted", 1, 2, 5, 1e-6, model=model), ids, ask=["future"]).leaks
    assert (leak.position, leak.source, leak.layer, leak.head) == (5, 7, 1, 2)


def test_what_a_model_cannot_do_is_told() -> None:
    """G2: a cache it does not go on with, positions it does not take; the other cache is asked all the same."""
    transformers, torch = library("transformers"), library("torch")
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)
    model, ids = transformers.BloomForCausalLM(config).eval(), deep(1)[1]
    ids["attention_mask"] = torch.ones_like(ids["input_ids"])
    found = leaks(model, ids, ask=["packing", "cache"])
    assert found.ok
    assert found.asked == ("cache",)
    assert found.left_out["packing"].startswith("its forward takes no position_ids")
    assert "the model ends in an error (RuntimeError: " in found.left_out["cache (StaticCache)"]

    def fails(*arguments: Any, **words: Any) -> Any:
        raise RuntimeError("no such type")

    class Single(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return super().forward(x) if x.dtype == torch.float32 else fails()

    x = torch.ones(1, 4, 3)
    why = leaks(Single(3, 3), x, ask=["cache"], decode=lambda model, cache, x: (model(x), cache)).left_out["cache"]
    assert why == "it does not run in float64, from which the bound comes (RuntimeError: no such type)"
    with pytest.raises(RuntimeError, match="no such type"):
        leaks(torch.nn.Linear(3, 3), x, ask=["cache"], decode=fails)
