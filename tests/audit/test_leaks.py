"""`qkv.audit.leaks`: planted leaks of a model are found and located, and a clean one has none (D1)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qkv.audit import leaks
from qkv.errors import ArgumentError, ShapeError
from support.libraries import library


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


def decoder(layers: int, fault: str = "", layer: int = 0) -> Any:
    library("torch")
    from .leaking import Decoder

    model = Decoder(layers).eval()
    model.layers[layer].attention.fault = fault  # type: ignore[union-attr]
    return model


def ids(length: int = 16, batch: int = 1) -> dict[str, Any]:
    torch = library("torch")
    drawn = torch.from_numpy(np.random.default_rng(1).integers(0, 50, (batch, length)))
    return {"input_ids": drawn, "attention_mask": torch.ones_like(drawn)}


def test_one_part_in_a_million_in_one_head_of_one_of_thirty_layers() -> None:
    """D1: kind, position, source, module, layer and features."""
    found = leaks(decoder(30, "one part in a million", 17), ids(), ask=["future"])
    (leak,) = found.leaks
    assert (leak.kind, leak.position, leak.source) == ("future", 5, 7)
    assert (leak.module, leak.layer) == ("layers.17.attention", 17)
    assert leak.tensor == "the input of layers.17.attention.out"
    assert leak.features == (16, 23)
    assert leak.before != leak.after
    assert "position 5" in str(found)
    assert "layers.17.attention" in str(found)


def test_a_clean_model_has_none() -> None:
    """D1: no false alarm, of no kind."""
    found = leaks(decoder(30), ids(length=12))
    assert json.loads(json.dumps(found.to_dict()))["leaks"] == []
    assert found.ok
    assert found.asked == ("future", "left padding", "right padding", "batch")
    assert set(found.left_out) == {"packing", "cache"}
    assert str(found).count("none found") == 4


@pytest.mark.parametrize(
    ("fault", "kinds", "position"),
    [
        ("mask dropped", {"future"}, 0),
        ("one key too far at 9", {"future"}, 9),
        ("padding read", {"left padding"}, 8),
        ("batch mixed", {"batch"}, 0),
    ],
)
def test_each_kind_is_told_from_the_others(fault: str, kinds: set[str], position: int) -> None:
    """D1, F3: the kinds that leak, and only they; right padding is the future of a causal model."""
    found = leaks(decoder(3, fault, 1), ids(batch=2), trials=1)
    assert {leak.kind for leak in found.leaks} == kinds
    assert found.leaks[0].position == position
    assert {leak.module for leak in found.leaks} == {"layers.1.attention"}


def test_an_encoder_that_reads_its_padding() -> None:
    """D1: right padding, which no causal mask hides."""
    library("torch")

    class Encoder:
        def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
            x = input_ids.float()[..., None]
            return x + (x * attention_mask[..., None]).sum(1, keepdim=True) + self.leak * x[:, -1:]

        leak = 0.0

    model = Encoder()
    kinds = ["left padding", "right padding"]
    assert leaks(model, ids(), ask=kinds).ok
    model.leak = 1.0
    (leak,) = leaks(model, ids(), ask=kinds).leaks
    assert (leak.kind, leak.position, leak.source, leak.module) == ("right padding", 0, 15, "")


@pytest.mark.parametrize("kind", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("position", [0, 3, 6])
def test_any_function_of_arrays(kind: str, position: int) -> None:
    """D1: arrays of three libraries; one position that sees one input too far."""
    make = {
        "numpy": np.asarray,
        "jax": lambda x: library("jax").numpy.asarray(x),
        "torch": lambda x: library("torch").from_numpy(x),
    }
    example = make[kind](np.random.default_rng(0).standard_normal((2, 8, 3)).astype(np.float32))

    def leaking(x: Any) -> Any:
        towards = make[kind]((np.arange(8) == position).astype(np.float32)[:, None])
        along = x.cumsum(1)
        following = along[:, [1, 2, 3, 4, 5, 6, 7, 7]]
        return along + towards * following

    assert leaks(lambda x: x.cumsum(1), example, ask=["future", "batch"]).ok
    (leak,) = leaks(leaking, example, ask=["future", "batch"]).leaks
    assert (leak.kind, leak.position, leak.source) == ("future", position, position + 1)


def test_without_a_batch_and_with_an_output_of_its_own() -> None:
    """A series in, a pair out."""
    found = leaks(lambda x: ("state", {"y": x[::-1]}), np.arange(5.0), batched=False, output=lambda a: a[1]["y"])
    assert [leak.kind for leak in found.leaks] == ["future"]
    assert found.leaks[0].position == 0
    assert found.left_out["batch"] == "the example has no batch"


def test_what_cannot_be_asked_is_told() -> None:
    """G2: one sentence with the way out; nothing is left out in silence."""
    noise = np.random.default_rng(0)
    x = np.ones((1, 4, 2))
    with pytest.raises(ArgumentError, match=r"model\.eval\(\)"):
        leaks(lambda x: x + noise.standard_normal(x.shape), x)
    with pytest.raises(ArgumentError, match="NaN at position 2 of sequence 0"):
        leaks(lambda x: np.where(np.arange(4)[:, None] == 2, np.nan, x), x, ask=["future"])
    with pytest.raises(ArgumentError, match="trials must be"):
        leaks(lambda x: x, x, trials=0)
    with pytest.raises(ArgumentError, match="two different ids"):
        leaks(lambda x: x, np.zeros((1, 4), int))
    with pytest.raises(ArgumentError, match="ask must be among"):
        leaks(lambda x: x, x, ask=["past"])
    with pytest.raises(ArgumentError, match="vary must be among"):
        leaks(lambda x: x, x, vary="ids")
    with pytest.raises(ArgumentError, match="pass output="):
        leaks(lambda x: "text", x)
    with pytest.raises(ShapeError, match="pass output="):
        leaks(lambda x: x.sum(1), x)
    assert set(leaks(lambda x: x, x).left_out) == {"left padding", "right padding", "packing", "cache"}
