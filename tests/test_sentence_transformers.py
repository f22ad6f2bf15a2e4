"""sentence-transformers on this engine, by the line that docs/transformers.md gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
if importlib.util.find_spec("sentence_transformers") is None:
    pytest.skip("sentence-transformers is not installed", allow_module_level=True)

import qkv  # noqa: E402
import qkv.transformers  # noqa: E402
from qkv import models  # noqa: E402
from support.tiny_models import right, tiny  # noqa: E402

#: Of different lengths, so that a batch is padded.
TEXTS = ["a b c d e f g", "c a", "e e d", "b"]


@pytest.fixture(autouse=True, scope="module")
def _enabled() -> Any:
    qkv.transformers.enable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with qkv.threads(1):
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny encoder as transformers saves one; sentence-transformers takes the mean of its rows."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]))
    hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    tiny("bert").bert.save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs=options)


class Embedded(torch.nn.Module):
    """Its embeddings where `right` looks for logits."""

    def __init__(self, sentences: Any) -> None:
        super().__init__()
        self.sentences = sentences

    def set_attn_implementation(self, name: str) -> None:
        self.sentences[0].auto_model.set_attn_implementation(name)

    def forward(self, **given: Any) -> Any:
        return SimpleNamespace(logits=self.sentences(given)["sentence_embedding"])


def check(sentences: Any, texts: list[str], columns: int | None) -> None:
    """What `encode` gives is as right as on eager."""
    assert sentences[0].auto_model.config._attn_implementation == "qkv"
    words = sentences.tokenize(texts) if not hasattr(sentences, "preprocess") else sentences.preprocess(texts)
    given = {name: words[name] for name in ("input_ids", "attention_mask")}
    assert not given["attention_mask"].all()
    found = torch.from_numpy(sentences.encode(texts))[:, :columns]
    right(Embedded(sentences), columns=columns, **given).holds(found)


def test_f2_embeddings_are_as_right_as_eager(folder: Path) -> None:
    check(load(folder, attn_implementation="qkv"), TEXTS, None)


def test_without_the_line_nothing_is_changed(folder: Path) -> None:
    plain = load(folder)
    assert plain[0].auto_model.config._attn_implementation != "qkv"
    given = plain.encode(TEXTS)
    np.testing.assert_array_equal(plain.encode(TEXTS), given)


def test_f2_a_trained_encoder_finds_the_nearest_sentence() -> None:
    """MiniLM, where its package is installed."""
    try:
        path = models.load("minilm").source
    except qkv.QkvError as missing:
        pytest.skip(str(missing))
    texts = ["A cat sat on a mat.", "Interest rates rose again this quarter.", "The kitten is lying on the rug."]
    sentences = load(path, attn_implementation="qkv")
    check(sentences, texts, 6)
    found = sentences.encode(texts)
    assert found[0] @ found[2] > found[0] @ found[1]
