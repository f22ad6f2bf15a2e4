"""`qkv.models.load`: real models are read as they are meant, and what is no model is one sentence (G1, G2)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv import models
from qkv.errors import ArgumentError, FileError
from qkv.models import build
from qkv.models.gguf import opened
from qkv.models.local import cache_folder
from qkv.models.packages import file_of
from qkv.models.rope import adjacent_to_halves
from support.libraries import library

from .made import ABOUT, TEXTS, TOKENS, gguf_file, shapes


def real(name: str) -> models.Model:
    """A model that comes inside a package; where that is not installed, a skip."""
    library("torch")
    library("transformers")
    if name.startswith("glassllm"):
        library("glassllm")
    try:
        return models.load(name)
    except ArgumentError as missing:
        pytest.skip(str(missing))


def logits(model: models.Model, text: str) -> Any:
    return model.module(**model.encode(text)).logits[0]


def own_logits(name: str, ids: list[int]) -> tuple[Any, Any]:
    """What the package's own model in NumPy answers, in float64 and in float16."""
    glassllm = library("glassllm")
    own = [glassllm.GlassLM.load(file_of(name), dtype=dtype) for dtype in (np.float64, np.float16)]
    exact, low = (model.forward(ids).data[0] for model in own)
    return exact, low


@pytest.mark.parametrize("name", ["glassllm", "glassllm-pt"])
def test_glassllm_gives_the_logits_of_its_own_code(name: str) -> None:
    """The package's NumPy model in float64 is the answer, and what it gives in float16 is how far off one may be."""
    model, glassllm = real(name), library("glassllm")
    ids = [model.encode(text)["input_ids"][0].tolist() for text in TEXTS]
    _, words = glassllm.load_pretrained(name.partition("-")[2] or "en")
    assert ids == [words.encode(text) for text in TEXTS]
    assert model.decode(ids[0]) == TEXTS[0]
    assert "".join(model.tokens(ids[0])) == TEXTS[0]
    exact, low = own_logits(name, ids[0])
    found = logits(model, TEXTS[0]).numpy()
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < np.abs(low - exact).max()


def test_the_other_pairing_of_dimensions_is_seen() -> None:
    """The planted fault: pairs taken for halves although they are adjacent. It looks plausible, and is another model."""
    model, torch = real("glassllm"), library("torch")
    ids = model.encode(TEXTS[0])["input_ids"][0].tolist()
    for layer in model.module.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            turned = part.weight.reshape(-1, 2, 16, part.in_features).swapaxes(1, 2).reshape(part.weight.shape)
            part.weight.copy_(turned)
    assert torch.isfinite(logits(model, TEXTS[0])).all()
    exact, low = own_logits("glassllm", ids)
    assert np.abs(logits(model, TEXTS[0]).numpy() - exact).max() > np.abs(low - exact).max()


@pytest.mark.long
def test_smollm2_knows_the_capital_of_france() -> None:
    """93 MB of weights in 4 bits, its tokenizer, and the answer design.md gives."""
    model = real("smollm2")
    assert (model.kind, model.module.config.num_hidden_layers) == ("decoder", 30)
    ids = model.encode("The capital of France is 1984")["input_ids"][0]
    assert model.tokens(ids) == ("The", " capital", " of", " France", " is", " ", "1", "9", "8", "4")
    assert model.tokens(logits(model, "The capital of France is").argmax(-1)[-1:]) == (" Paris",)


@pytest.mark.long
def test_minilm_tells_what_is_alike() -> None:
    """An encoder of a plain folder."""
    model = real("minilm")
    ids = model.encode("a small dog", "a little puppy", "the stock market fell")
    hidden = model.module(**ids).last_hidden_state * ids["attention_mask"][..., None]
    mean = hidden.sum(1) / hidden.sum(1).norm(dim=-1, keepdim=True)
    assert model.kind == "encoder"
    assert mean[0] @ mean[1] > mean[0] @ mean[2]


def test_a_gguf_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every kind of block, to the bit; names; words; and the order of rotary pairs."""
    answers = gguf_file(tmp_path / "small.gguf")
    with opened(tmp_path / "small.gguf") as file:
        for name, answer in answers.items():
            assert np.array_equal(file.tensor(name), answer), name
        weights = file.weights()
        assert len(weights) == len(answers)
        assert np.array_equal(weights["model.layers.1.self_attn.v_proj.weight"], answers["blk.1.attn_v.weight"])
        # Head 1 begins at row 16; its dimension 1 of halves apart is dimension 2 of the adjacent ones.
        turned = weights["model.layers.1.self_attn.q_proj.weight"]
        assert np.array_equal(turned[16 + 1], answers["blk.1.attn_q.weight"][16 + 2])
        assert np.array_equal(turned[16 + 8], answers["blk.1.attn_q.weight"][16 + 1])
        assert (file.config()["num_hidden_layers"], file.config()["tie_word_embeddings"]) == (2, True)
        assert file.words().special == ["<end>", "<start>"]


def test_a_gguf_runs(tmp_path: Path) -> None:
    """The weights of the file are the weights of the module, all of them; the tokenizer merges."""
    library("transformers")
    tensors = {**shapes(), "output.weight": (len(TOKENS), 32)}
    answers = gguf_file(tmp_path / "small.gguf", tensors=tensors)
    model = models.load(tmp_path / "small.gguf", attention="eager")
    assert model.tokens(model.encode("the thea")["input_ids"][0]) == ("the", " ", "the", "a")
    assert np.array_equal(model.module.lm_head.weight.numpy(), answers["output.weight"])
    assert np.array_equal(model.module.model.embed_tokens.weight.numpy(), answers["token_embd.weight"])
    assert model.module.config._attn_implementation == "eager"
    assert not any(x.is_meta for x in (*model.module.parameters(), *model.module.buffers()))
    assert logits(model, "the thea").shape == (4, len(TOKENS))
    assert model.encode("the thea", "the")["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"about": {**ABOUT, "general.architecture": "mamba"}}, "'mamba', and 'llama' is read"),
    ({"about": {**ABOUT, "llama.rope.scaling.type": "yarn"}}, "scales its rotary positions"),
    ({"about": {**ABOUT, "llama.attention.head_count": [2, 2]}}, "one whole number is read"),
    ({"about": {k: v for k, v in ABOUT.items() if "block_count" not in k}}, "does not say llama.block_count"),
    ({"about": {**ABOUT, "tokenizer.ggml.pre": "llama-bpe"}}, "'gpt2', 'llama-bpe', and"),
    ({"numbered": 12}, "in the type number 12, and F32, F16, Q4_1, Q8_0 are read"),
    ({"tensors": {**shapes(), "blk.0.attn_q.bias": (32,)}}, "'blk.0.attn_q.bias', which no Llama has"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_a_gguf_that_is_not_read_says_why(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """G2: one sentence that names the file, and the way out."""
    gguf_file(tmp_path / "other.gguf", **change)
    with pytest.raises(FileError, match=said) as told, opened(tmp_path / "other.gguf") as file:
        file.config(), file.weights(), file.words()
    assert str(told.value).startswith("other.gguf ")
    assert "; " in str(told.value)


def test_weights_that_are_no_llama_are_told(tmp_path: Path) -> None:
    """G2: one of another shape, one that is missing, and an attention that there is not."""
    library("transformers")
    gguf_file(tmp_path / "wide.gguf", tensors={**shapes(), "blk.1.ffn_up.weight": (64, 32)})
    few = {name: shape for name, shape in shapes().items() if name != "blk.1.ffn_up.weight"}
    gguf_file(tmp_path / "few.gguf", tensors=few)
    for name, said in (("wide", "size mismatch for model.layers.1.mlp.up_proj"), ("few", "Missing key")):
        with pytest.raises(FileError, match=f"{name}.gguf does not hold the weights of a Llama .*{said}"):
            models.load(tmp_path / f"{name}.gguf")
    gguf_file(tmp_path / "small.gguf")
    with pytest.raises(ArgumentError, match=r"attention must be one that .* but 'quick' came"):
        models.load(tmp_path / "small.gguf", attention="quick")


def test_a_damaged_gguf_is_one_sentence(tmp_path: Path) -> None:
    """Cut anywhere, or with a lie in any byte of its header: an error of this package, or the same weights."""
    path = tmp_path / "cut.gguf"
    gguf_file(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    changed = [whole[:n] for n in (0, 3, 8, 40, 900, len(whole) // 2, len(whole) - 1)]
    for place in rng.integers(4, 3000, 150):
        lie = bytearray(whole)
        lie[place] ^= int(rng.integers(1, 256))
        changed.append(bytes(lie))
    told = []
    for data in changed:
        path.write_bytes(data)
        try:
            with opened(path) as file:
                file.config(), file.weights(), file.words()
        except FileError as error:
            told.append(str(error))
    assert len(told) > 7
    assert all(sentence.startswith("cut.gguf ") for sentence in told)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A tiny Llama as transformers saves one."""
    library("transformers")
    gguf_file(tmp_path / "small.gguf")
    model = models.load(tmp_path / "small.gguf")
    model.module.save_pretrained(tmp_path / "small")
    model.tokenizer.save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def test_a_folder_is_the_same_model(folder: Path) -> None:
    """Saved and loaded: the same numbers and words; and by pickle only when told to."""
    torch = library("torch")
    before, after = models.load(folder.with_suffix(".gguf")), models.load(str(folder))
    assert (after.kind, after.name, after.source) == ("decoder", str(folder), folder)
    assert after.encode("the thea")["input_ids"].tolist() == before.encode("the thea")["input_ids"].tolist()
    assert torch.equal(logits(before, "the thea"), logits(after, "the thea"))
    torch.save(before.module.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileError, match="pickles, which may run code; pass pickles=True"):
        models.load(folder)
    assert torch.equal(logits(before, "the thea"), logits(models.load(folder, pickles=True), "the thea"))


def test_an_id_in_the_local_cache_is_that_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laid out as Hugging Face's library lays it out: blobs, and snapshots of links to them."""
    torch = library("torch")
    kept = tmp_path / "hub" / "models--somebody--small-1.0"
    snapshot = kept / "snapshots" / "0123abcd"
    (kept / "blobs").mkdir(parents=True)
    (kept / "refs").mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = kept / "blobs" / str(number)
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../..") / "blobs" / blob.name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(
        ArgumentError, match=r"no model 'somebody/small-1\.0'.*an ID that is in the cache of Hugging Face"
    ):
        models.load("somebody/small-1.0")
    (kept / "refs" / "main").write_text("0123abcd")
    found = models.load("somebody/small-1.0")
    assert (found.name, found.source) == ("somebody/small-1.0", snapshot)
    assert torch.equal(logits(found, "the thea"), logits(models.load(folder), "the thea"))
    (kept / "refs" / "main").write_text("../blobs")
    for name in ("somebody/small-1.0", "../models--somebody--small-1.0", "somebody/../small-1.0", "a/b/c", ""):
        with pytest.raises(ArgumentError, match="there is no model"):
            models.load(name or "somebody/")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_the_cache_is_where_that_library_looks(
    environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder()) == folder


def test_code_of_a_folder_is_never_run(folder: Path) -> None:
    """The planted fault: a model that brings its own code."""
    (folder / "own.py").write_text("raise SystemExit('it ran')")
    told = json.loads((folder / "config.json").read_text())
    told |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(told))
    with pytest.raises(FileError, match="small cannot be loaded"):
        models.load(folder)


def test_what_is_no_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2: names, endings, folders, files of others, packages that are missing."""
    with pytest.raises(ArgumentError, match=r"there is no model 'gpt5'; known are glassllm.*nothing is downloaded"):
        models.load("gpt5")
    library("transformers")
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(FileError, match=r"model\.bin ends in '\.bin'; name a folder"):
        models.load(tmp_path / "model.bin")
    with pytest.raises(FileError, match=r"has no config\.json"):
        models.load(tmp_path)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(FileError, match=r"is not an \.npz file of glassllm"):
        models.load(tmp_path / "other.npz")
    np.savez(tmp_path / "half.npz", __config__=np.array(json.dumps({"n_heads": 1})), E=np.zeros((3, 4)))
    with pytest.raises(FileError, match=r"does not hold a model of glassllm \(KeyError"):
        models.load(tmp_path / "half.npz")
    monkeypatch.setitem(sys.modules, "glassllm", None)
    with pytest.raises(ArgumentError, match=r"write pip install --no-deps glassllm==0\.1\.0"):
        models.load("glassllm")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ArgumentError, match="a model needs transformers, which is not installed; write pip install"):
        build.require()


def test_nothing_is_imported_before_a_model_is_loaded() -> None:
    """Optional means lazy: torch and transformers are not there until they are needed."""
    code = "import qkv.models, sys; assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_adjacent_pairs_become_halves() -> None:
    """Scores do not change when both sides are reordered, and every dimension keeps its partner."""
    rows = adjacent_to_halves(np.arange(12)[:, None], heads=2)[:, 0]
    assert sorted(rows) == list(range(12))
    for head in (rows[:6], rows[6:]):
        assert (head[3:] == head[:3] + 1).all()
        assert (head[:3] % 2 == 0).all()
