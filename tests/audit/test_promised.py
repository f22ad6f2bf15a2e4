"""What libraries document of the conventions they follow: every one found was looked up, and the pages still say so."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path

import pytest

from qkv.audit import Report, Row
from qkv.audit.adapters import ADAPTERS
from qkv.audit.pages import Made, to_html, to_markdown
from qkv.audit.promised import AGAINST, FOLLOWS, NOTHING, PAGES, SAYS, page_of, promise
from support.libraries import library

MADE = Made("qkv audit --all", "2026-01-02", "0.1", "3.12", "2.0", "Linux x86_64")
DOCS = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


def found() -> set[tuple[str, str]]:
    """(kernel, convention) of the table in docs/audit.md."""
    table = DOCS.partition("## Conventions that differ")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    return {(kernel, row[0].removeprefix("| ")) for row in rows for kernel in re.findall(r"`([^`]+)`", row[1])}


def test_every_convention_that_was_found_was_looked_up() -> None:
    """And nothing is told of one that no audit found."""
    assert len(found()) > 100
    assert [pair for pair in sorted(found()) if promise(*pair) is None] == []
    used = {(page.title, name) for kernel, name in found() for page in PAGES if kernel in page.kernels}
    assert used == {(page.title, name) for page in PAGES for name in page.says}
    for page in PAGES:
        assert all((said.kind == NOTHING) == (said.words == "") for said in page.says.values())
        assert {said.kind for said in page.says.values()} <= {SAYS, FOLLOWS, AGAINST, NOTHING}


def test_every_known_kernel_has_one_page() -> None:
    """qkv's own is its contract; those that compile for minutes are in no table."""
    named = [kernel for page in PAGES for kernel in page.kernels]
    assert len(named) == len(set(named))
    assert set(named) == {name for name, adapter in ADAPTERS.items() if not adapter.slow and not name.startswith("qkv")}


def test_the_page_in_docs_tells_where() -> None:
    """Each page of documentation with the kernels it is about, and every convention once below it."""
    section = DOCS.partition("## Where they are documented")[2].partition("\n## ")[0]
    parts = dict(re.findall(r"^### (.*?)\n\n(.*?)(?=^### |\Z)", section, re.MULTILINE | re.DOTALL))
    assert list(parts) == [page.title for page in PAGES]
    for page in PAGES:
        told = re.findall(r"\*\*(.*?)\*\*", parts[page.title])
        assert sorted(told) == sorted({name for kernel, name in found() if kernel in page.kernels})
    assert "nobody has looked" not in section


#: Kernel -> the file of its library that holds the documentation (of MLX and ONNX, what says it), and words to find there.
CLUES = {
    "torch-sdpa": (
        "torch/nn/functional.py",
        "form of the upper left causal bias due to the alignment",
        "is added to the attention score",
        'logical_not(), float("-inf")',
        r"(N, ..., H, S, Ev)",
    ),
    "torch-mha": ("torch/nn/modules/activation.py", "not allowed to attend", "mask values will be added to", "W^O"),
    "torch-flex": ("torch/nn/attention/flex_attention.py", "q_idx (query index), and kv_idx (key/value index)"),
    "jax": ("jax/_src/nn/functions.py", r"\mathrm{softmax}\left( \frac{QK^T}"),
    "keras-torch": ("keras/src/ops/nn.py", "softmax(Q * K / sqrt(d)) * V", "with the same shape of `key`"),
    "keras-layer-torch": (
        "keras/src/layers/attention/multi_head_attention.py",
        "1 indicates attention and 0 indicates no attention",
    ),
    "transformers-eager": ("transformers/masking_utils.py", "4D float mask", "-inf (minimum value for the given"),
    "transformers-sdpa": (
        "transformers/integrations/sdpa_attention.py",
        "Not in decoding phase",
        "Attention mask is not to be provided",
        "is upper-left",
    ),
    "onnx": (
        "",
        "Q*sqrt(scale)",
        "`offset = nonpad_kv_seqlen - q_sequence_length`",
        "`offset = 0` when neither is provided",
        "contribute `-inf`",
    ),
    "mlx": ("", "lower-right alignment", "boolean or additive mask", "softmax(Q @ K.T", "promoted type of"),
    "openvino": ("openvino/opset13/ops.py", "attention_mask input is ignored"),
}


def documentation(kernel: str, file: str) -> str:
    """What comes with a library; Python files are read as text, since importing some of them chooses a backend."""
    for package in ADAPTERS[kernel].needs[:1]:
        if importlib.util.find_spec(package) is None:
            library(package)
    package = ADAPTERS[kernel].needs[0]
    version, page = importlib.metadata.version(package), page_of(kernel)
    assert page is not None
    if not version.startswith(page.version.split()[-1]):
        pytest.skip(f"the page was read as of {page.version}, and this is {version}")
    if kernel == "onnx":
        return str(library("onnx").defs.get_schema("Attention", 25, "").doc)
    if kernel == "mlx":
        return str(importlib.import_module("mlx.core").fast.scaled_dot_product_attention.__doc__)
    return Path(str(importlib.metadata.distribution(package).locate_file(file))).read_text(encoding="utf-8")


@pytest.mark.parametrize("kernel", CLUES)
def test_the_documentation_still_says_so(kernel: str) -> None:
    """In the version that was read, as far as it is installed with the library."""
    file, *clues = CLUES[kernel]
    said = " ".join(documentation(kernel, file).replace("\n    # ", " ").split())
    assert [clue for clue in clues if clue not in said] == []


def test_reports_tell_what_is_documented() -> None:
    """In Markdown and in an opened cell; of what nobody has looked up, that; of somebody's own kernel, nothing."""
    start = "the queries stand at the start of the keys"
    rows = [Row("B6-long", ("B6",), "title", "edges", "differs", name) for name in (start, "a new | one")] + [
        Row("C2-mask", ("C2",), "title", "edges", "differs", "the log-sum-exp is float16")
    ]
    reports = [Report(name, "strict", "0.10.3", rows=rows, finished=True) for name in ("jax", "torch-sdpa", "mine:own")]
    page = to_markdown(reports, MADE)
    assert "`jax`. The page was read as of 0.10.2; audited here: 0.10.3." in page
    assert f"- not documented: **{start}**; **the log-sum-exp is float16**\n" in page
    assert f"- documented: **{start}** (is_causal: a mask that is not square is aligned at its upper left)\n" in page
    assert "- nobody has looked: **a new | one**; **the log-sum-exp is float16**\n" in page
    assert page.count("### ") == 2
    data = json.loads(re.findall(r'id="data">(.*?)</script>', to_html(reports[1:2], MADE))[0])
    assert data["rows"]["C2-mask"][0]["promised"] == []
    told = {name: said for name, said in PAGES[0].says.items() if name == start}
    html = to_html([Report("torch-sdpa", "strict", "2.13.0", rows=rows[:1], finished=True)], MADE)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', html)[0])
    assert data["rows"]["B6-long"][0]["promised"] == [str(told[start]), f"{PAGES[0].title}, {PAGES[0].version}"]
