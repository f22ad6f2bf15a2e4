"""Everything that README, the pages in docs/ and the docstrings show is run.

In a Markdown file, `python` blocks are executed and `pycon` blocks are doctests, in order and with one set of names a
file. `console` blocks whose commands are all `qkv …` are run; their output is compared in shape: numbers may differ,
`…` stands for any text or, on a line of its own, for any lines. A block after a line `<!-- needs: torch … -->` is run
where those packages are.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import qkv

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NUMBER = re.compile(r"[-−]?\d[\d.,]*(e[+-]\d+)?")


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, the line it begins on, and the packages it needs."""

    language: str
    text: str
    line: int
    needs: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether all it needs is here."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page in order."""
    found = re.finditer(r"(?:^<!-- needs: ([\w ]+) -->\n+)?^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[2], m[3], text[: m.start(3)].count("\n") + 1, tuple((m[1] or "").split())) for m in found]


def run_python(page: str, text: str) -> None:
    """Execute the `python` and `pycon` blocks of a page in order."""
    names: dict[str, object] = {"__name__": "page"}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for block in blocks(text):
        if not block.runs:
            continue
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
        elif block.language == "pycon":
            test = parser.get_doctest(block.text, names, page, page, block.line)
            for example in test.examples:
                # A line of an answer that begins with ... would be read as one of the question.
                example.want = example.want.replace("…", "...")
            said: list[str] = []
            runner.run(test, out=said.append, clear_globs=False)
            names.update(test.globs)
            assert not said, "".join(said)


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block, and the lines each prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:].split("  #")[0].strip(), []))
        elif found:
            found[-1][1].append(line)
    return found


def same_shape(expected: list[str], printed: str) -> bool:
    """Whether a printout looks as expected: numbers may differ, … stands for anything."""

    def plain(line: str) -> str:
        return " ".join(NUMBER.sub("0", line).split())

    pattern = "".join(
        "(?:.*\n)*" if line.strip() == "…" else re.escape(plain(line)).replace("…", ".*") + "\n" for line in expected
    )
    got = "".join(plain(line) + "\n" for line in printed.rstrip("\n").splitlines())
    return re.fullmatch(pattern, got) is not None


def run_qkv(words: list[str], folder: Path) -> str:
    """What `qkv` with these words prints, in a process of its own with the same package."""
    home = os.pathsep.join([str(Path(qkv.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "qkv", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_of_a_page_runs(page):
    run_python(page.name, page.read_text(encoding="utf-8"))


CONSOLE = [
    pytest.param(command, lines, id=f"{page.name}-{command[:40]}")
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"))
    if block.language == "console" and block.runs
    for command, lines in commands(block)
    if command.startswith("qkv ")
]


@pytest.mark.parametrize(("command", "lines"), CONSOLE)
def test_commands_of_a_page_print_what_it_shows(command, lines, tmp_path):
    printed = run_qkv(shlex.split(command)[1:], tmp_path)
    assert same_shape(lines, printed), printed


def _modules() -> list[str]:
    found = pkgutil.walk_packages(qkv.__path__, "qkv.")
    return ["qkv", *(module.name for module in found if module.name not in ("qkv._native", "qkv.__main__"))]


@pytest.mark.parametrize("name", _modules())
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "qkv").startswith("qkv."):
            raise
        pytest.skip(f"{name} needs {missing.name}, which an extra brings")
    wanted = set(
        re.findall(r"^\s*>>> import (\w+)", Path(str(module.__file__)).read_text(encoding="utf-8"), re.MULTILINE)
    )
    for package in sorted(wanted):
        pytest.importorskip(package)
    result = doctest.testmod(module, optionflags=FLAGS, verbose=False)
    assert result.failed == 0


def test_links_of_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if "://" in path:
                continue
            file = page.parent / path if path else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                there = file.read_text(encoding="utf-8")
                headings = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
                assert f'id="{anchor}"' in there or anchor in slugs, f"{page.name}: {target}"


def test_the_picture_is_the_one_the_demo_draws(tmp_path):
    """Except for last digits, in which engines may differ; `make docs` draws it again."""
    run_qkv(["demo", "--json", "--out", str(tmp_path)], tmp_path)
    drawn, kept = (path.read_text(encoding="utf-8") for path in (tmp_path / "head.svg", ROOT / "docs/images/head.svg"))
    assert NUMBER.sub("0", drawn) == NUMBER.sub("0", kept)


# The tester is tested.


def test_planted_faults_of_pages_are_seen():
    with pytest.raises(NameError):
        run_python("page", "```python\nx = missing\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        run_python("page", "```python\nx = 2\n```\n\n```pycon\n>>> x\n1\n\n```\n")
    run_python("page", "```python\nx = 2\n```\n\n```pycon\n>>> y = x\n>>> x\n2\n\n```\n\n```python\ny\n```\n")


def test_what_a_block_needs_is_looked_for():
    run_python("page", "<!-- needs: no_such_package -->\n\n```python\nmissing\n```\n")
    with pytest.raises(NameError):
        run_python("page", "<!-- needs: numpy -->\n```python\nmissing\n```\n")


def test_shapes_of_printouts():
    assert same_shape(["a  1.0", "…", "z …"], "a 2.5e-3\nb\nc\nz 3 4\n")
    assert not same_shape(["a  1.0"], "b 1.0\n")
    assert not same_shape(["a  1.0"], "a 1.0\na 1.0\n")
