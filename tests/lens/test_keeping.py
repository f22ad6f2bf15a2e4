"""Where the tensors of a capture lie makes no difference to what it says; a file may come from a stranger."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError, FileError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402
from qkv.lens.held import Stored  # noqa: E402

from .test_capture import padded, tiny_models  # noqa: E402
from .test_summaries import Deep, same  # noqa: E402

NAMES = ("llama", "gpt2", "gemma2", "gpt-oss", "bert", "whisper")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_same_capture_back(name: str, tmp_path: Path) -> None:
    models = tiny_models()
    model = models.tiny(name)
    given = padded(name, models.inputs(name))
    full = lens.capture(model, given, heads=[0, 1])
    kept = lens.capture(model, given, heads=[0, 1], to=tmp_path / "seen.npz")
    again = lens.open(tmp_path / "seen.npz")
    assert again.facts == full.facts
    assert [path.name for path in tmp_path.iterdir()] == ["seen.npz"]
    for seen in (kept, again):
        assert [(one.name, one.index, one.rotary) for one in seen.layers] == [
            (one.name, one.index, one.rotary) for one in full.layers
        ]
        assert all(isinstance(one.query, Stored) and one.nbytes < 2000 for one in seen.layers)
        for one, whole in zip(seen.layers, full.layers, strict=True):
            same(lens.summary(one), lens.summary(whole))
            for sequence in range(whole.batches):
                same(lens.row(one, 1, -1, sequence=sequence), lens.row(whole, 1, -1, sequence=sequence))


def test_a_file_carries_its_text_and_is_the_same_twice(tmp_path: Path) -> None:
    models = tiny_models()
    model, given = models.tiny("llama"), models.inputs("llama", batch=1)
    tokens = ["<s>", "\ud800", "é\n", *"abcdef"]
    for name in ("a.npz", "b.npz"):
        lens.capture(model, given, tokens=tokens, to=tmp_path / name)
    assert lens.open(tmp_path / "a.npz").tokens == tuple(tokens)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as arrays:
        whole = lens.capture(model, given)
        np.testing.assert_array_equal(arrays["1.key"], whole.layers[1].key)


def test_layers_from_the_end_are_kept_in_a_file_alone(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    for layers, kept in ((-1, [4]), ([-2, 0], [0, 3]), ([1, -5], [0, 1])):
        seen = lens.capture(Deep(5), x, layers=layers, to=tmp_path / "seen.npz")
        assert [one.index for one in seen.layers] == kept
        assert [one.index for one in lens.open(tmp_path / "seen.npz").layers] == kept
        assert len(zipfile.ZipFile(tmp_path / "seen.npz").namelist()) == 1 + 9 * len(kept)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_on_the_device_tensors_stay_what_they_are(dtype: str) -> None:
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    host, device = lens.capture(Deep(2), x), lens.capture(Deep(2), x, to="device")
    for one, whole in zip(device.layers, host.layers, strict=True):
        for name in ("query", "key", "value"):
            tensor = getattr(one, name)
            assert isinstance(tensor, torch.Tensor)
            assert (tensor.dtype, tensor.device) == (x.dtype, x.device)
            assert tensor.data_ptr() != x.data_ptr()
            np.testing.assert_array_equal(tensor.float().numpy(), getattr(whole, name))
        same(lens.row(one, 1, 5), lens.row(whole, 1, 5))
        same(lens.summary(one), lens.summary(whole))


def test_a_model_that_fails_leaves_no_file(tmp_path: Path) -> None:
    class Breaks(Deep):
        def forward(self, x: Any) -> Any:
            super().forward(x)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        lens.capture(Breaks(2), torch.zeros(1, 1, 3, 4), to=tmp_path / "seen.npz")
    assert list(tmp_path.iterdir()) == []


def written(folder: Path, change: Any) -> Path:
    """A capture whose record or arrays were changed by a stranger."""
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    lens.capture(Deep(1), x, to=folder / "good.npz")
    with np.load(folder / "good.npz") as arrays:
        found = {name: arrays[name] for name in arrays.files}
    record = json.loads(found["capture"].tobytes())
    change(record, found)
    if "capture" in found:
        found["capture"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
    np.savez(folder / "bad.npz", **found)
    return folder / "bad.npz"


def put(*path: Any, value: Any) -> Any:
    def change(record: Any, _: Any) -> None:
        for step in path[:-1]:
            record = record[step]
        record[path[-1]] = value

    return change


def swap(name: str, array: Any) -> Any:
    return lambda _, found: found.__setitem__(name, np.asarray(array))


def delete(name: str) -> Any:
    return lambda _, found: found.pop(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (delete("capture"), "has no tensor 'capture'"),
        (put("layers", value=3), "a record that no capture has"),
        (put("layers", 0, "scale", value="x"), "a record that no capture has"),
        (put("tokens", value=[1]), "tokens or facts that are not text"),
        (put("layers", 0, "arrays", "query", value=[[1, 2, 7], "float32"]), "query of layer 0 as .1, 2, 7. of float32"),
        (put("layers", 0, "arrays", "query", value=[[1, 2, 7, 8], "object"]), "query of layer 0 as"),
        (
            put("layers", 0, "arrays", "key", value=[[1, 2, 9, 8], "float32"]),
            "value of layer 0 as .1, 2, 7, 8. and not .1, 2, 9, 8.",
        ),
        (delete("0.lo"), "has no tensor '0.lo'"),
        (swap("0.groups", [0, 2]), "heads of layer 0 that read no key head of it"),
        (swap("0.groups", [0, -1]), "heads of layer 0 that read no key head of it"),
        (swap("0.lo", np.full((1, 7, 1), -5)), "runs of keys of layer 0 that are none"),
        (swap("0.lo", np.full((1, 7, 1), 50)), "runs of keys of layer 0 that are none"),
        (swap("0.hi", np.zeros((1, 6, 1), int)), "runs of keys of layer 0 that are none"),
        (swap("0.positions", np.full(7, 1 << 60)), "positions or sinks of layer 0"),
        (swap("0.rows", np.zeros(6, int)), "rows of layer 0 as"),
    ],
)
def test_a_file_that_is_no_capture_is_refused_when_it_is_opened(change: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=said):
        lens.open(written(tmp_path, change))


def test_an_array_that_is_not_what_the_record_says_is_refused_when_it_is_read(tmp_path: Path) -> None:
    seen = lens.open(written(tmp_path, swap("0.key", np.zeros((1, 2, 6, 8), np.float32))))
    with pytest.raises(FileError, match=r"has '0.key' as .1, 2, 6, 8. of float32, but its record says .1, 2, 7, 8."):
        lens.row(seen.layer(0), 0, 1)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"to": "disk"}, ArgumentError, 'to must be "host", "device" or a path that ends in .npz, but .disk. came'),
        ({"to": "no/such/folder/x.npz"}, FileError, "cannot be written .No such file or directory."),
        ({"to": "device", "keep": "summaries"}, ArgumentError, 'to must be "host" with keep="summaries"'),
    ],
)
def test_places_that_make_no_sense_are_refused(options: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        lens.capture(Deep(1), torch.zeros(1, 1, 3, 4), **options)
