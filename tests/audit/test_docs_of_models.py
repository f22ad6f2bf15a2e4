"""docs/audit-models.md: the blocks that need a model are run, and print what stands below them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.libraries import library

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python models\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the tests of leaks; and the model that is shown has to be there."""
    library("transformers")
    library("glassllm")
    torch = library("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(page: str) -> int:
    """Run the blocks of a page in order with one set of names; how many there are."""
    names: dict[str, object] = {}
    found = BLOCK.findall(page)
    for code, shown in found:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, names)
        assert said.getvalue() == shown
    return len(found)


@pytest.mark.parametrize("name", ["docs/audit-models.md", "README.md"])
def test_what_the_page_shows_is_so(name: str) -> None:
    """Every block that is marked as needing a model."""
    page = (ROOT / name).read_text(encoding="utf-8")
    assert run(page) == page.count("```python models") > 0


def test_a_wrong_page_is_seen() -> None:
    """The planted fault."""
    run("```python models\nprint(1)\n```\n\n```text\n1\n```")
    with pytest.raises(AssertionError):
        run("```python models\nprint(1)\n```\n\n```text\n2\n```")
