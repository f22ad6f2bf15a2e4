"""The lesson's page is a second distribution: the extra asks for it, and nothing that the tests install does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import qkv

ROOT = Path(__file__).parents[2]


def read(path: str) -> Any:
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_extra_brings_the_page_of_this_very_version() -> None:
    """The page and the server that it talks to are built from one commit."""
    extras = read("pyproject.toml")["project"]["optional-dependencies"]
    page = read("learn/pyproject.toml")["project"]
    assert f"{page['name']}=={page['version']}" in extras["learn"]
    assert page["version"] == qkv.__version__
    assert [name for name, wants in extras.items() if any("qkv-learn" in want for want in wants)] == ["learn"]


def test_what_the_tests_install_asks_no_index_for_the_page() -> None:
    """It is in none: `make test` would fail, or take whatever has its name."""
    groups = read("pyproject.toml")["dependency-groups"]
    assert not [want for wants in groups.values() for want in wants if "qkv" in str(want)]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([^\s#:=][^:=\n]*):(?!=)[^\n]*\n((?:\t[^\n]*\n)*)", makefile, re.MULTILINE)
    installing = {name: recipe for name, recipe in rules if re.search(r"PIP\) install .*\b(learn|all)\b", recipe)}
    assert list(installing) == ["learn"]
    own, others = installing["learn"].splitlines()[:2]
    assert "--no-index" in own
    assert "--find-links dist" in own
    assert "--find-links dist" in others
