"""Reports as JSON, Markdown and HTML: complete, escaped, asking nobody for anything."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from qkv.audit import CLAUSES, Report, Row
from qkv.audit.pages import Made, made_now, read_reports, record, to_html, to_markdown
from qkv.cli.main import main
from qkv.errors import FileError

MADE = Made("qkv audit --all", "2026-01-02", "0.1", "3.12", "2.0", "Linux x86_64")
DOCS = Path(__file__).parents[2] / "docs"
HOSTILE = '</script><script>alert(1)</script> & "b" | c'


def reports() -> list[Report]:
    wrong = Row(
        "C2-mask", ("C2",), HOSTILE, "edges", "wrong", "the name | of it", "output[0, 0, 0, 0] is 1, should be 0 ± 1e-06",
        ["B=1 H=1", "mask 1×2: [F F]", "right output[0, 0, 0] = [0]", "found output[0, 0, 0] = [1]"], 2, "float32", 3,
        "qkv audit one --case C2-mask --seed 3",
    )  # fmt: skip
    keeps = Row("A1-values", ("A1", "B1"), "values", "core", "keeps")
    differs = Row("C2-mask", ("C2",), HOSTILE, "edges", "differs", "a row | is NaN")
    return [
        Report("one", "strict", "1.0", rows=[keeps, wrong], finished=True, notes=["a note"]),
        Report("two", "strict", "2.0", rows=[keeps, differs]),
        Report("three", "strict", absent="three is not installed"),
    ]


def test_json_there_and_back() -> None:
    """Every row, every field, and the circumstances."""
    data = json.loads(json.dumps(record(reports(), MADE)))
    again, made = read_reports(data)
    assert again == reports()
    assert made == MADE
    assert MADE.date in str(MADE)


@pytest.mark.parametrize("data", [[], {}, {"made": {}, "reports": []}, {**record([], MADE), "reports": [{"rows": 1}]}])
def test_what_is_no_report_is_refused(data: object) -> None:
    """G2: one sentence."""
    with pytest.raises(FileError, match="qkv audit --json"):
        read_reports(data)


def test_an_unknown_verdict_is_refused() -> None:
    """G2: it would have no mark."""
    data = record(reports(), MADE)
    data["reports"][0]["rows"][0]["verdict"] = "perhaps"
    with pytest.raises(FileError, match="unknown verdict"):
        read_reports(data)


def test_a_clause_of_another_making_is_refused_and_never_written_as_it_came() -> None:
    """G2: a file of reports may come from anybody, and its page is opened in a browser."""
    data = record(reports(), MADE)
    data["reports"][0]["rows"][0]["clauses"] = ["A1", HOSTILE]
    with pytest.raises(FileError, match="unknown clause"):
        read_reports(data)
    row = Row("A1-values", ("A1", HOSTILE), "values", HOSTILE, "keeps")
    assert "<script>alert" not in to_html([Report("one", "strict", rows=[row])], MADE)


def test_markdown_has_the_table_the_conventions_and_what_is_wrong() -> None:
    """Cells stay cells, whatever a name holds."""
    page = to_markdown(reports(), MADE)
    table = [line for line in page.splitlines() if line.startswith("| [")]
    assert table == [
        "| [A1](contract.md#A1) | ✓ | ✓ |",
        "| [B1](contract.md#B1) | ✓ | ✓ |",
        "| [C2](contract.md#C2) | ✗ | ≠ |",
    ]
    assert "| a row \\| is NaN | `two` | `C2-mask` |" in page
    assert "`three` is left out: three is not installed" in page
    assert "`two` 2.0: 2 cases of the profile strict, not finished" in page
    assert "found output[0, 0, 0] = [1]" in page
    assert str(MADE) in page


class Reader(HTMLParser):
    """What stands in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)


def test_html_holds_every_cell_and_asks_nobody() -> None:
    """One file: no link, no source, a policy that forbids both; text from reports is text."""
    page = to_html(reports(), MADE)
    reader = Reader()
    reader.feed(page)
    marks = [a["aria-label"] for t, a in reader.tags if t == "button" and a.get("class") == "mark"]
    assert marks == [
        "one, A1-values: keeps",
        "two, A1-values: keeps",
        "one, C2-mask: wrong: the name | of it",
        "two, C2-mask: differs: a row | is NaN",
    ]
    asked = [a[n] for _, a in reader.tags for n in ("src", "href", "srcset", "action") if n in a]
    assert asked == ["data:,"]
    assert not re.search(r"url\(|@import|fetch\(|https?://", page)
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert sum(t == "script" for t, _ in reader.tags) == 2
    data = json.loads(next(s for s in reader.scripts if s.startswith("{")))
    assert data["rows"]["C2-mask"][0] == {
        "title": HOSTILE,
        "told": "wrong: the name | of it",
        "says": "output[0, 0, 0, 0] is 1, should be 0 ± 1e-06",
        "input": ["B=1 H=1", "mask 1×2: [F F]"],
        "right": ["output[0, 0, 0] = [0]"],
        "found": ["output[0, 0, 0] = [1]"],
        "promised": [],
        "reproduce": "qkv audit one --case C2-mask --seed 3",
    }


def test_the_page_in_docs_is_whole() -> None:
    """Every clause, every kernel finished, and when it was made; qkv itself keeps what it says."""
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\w\d)\]", page, re.MULTILINE) == list(CLAUSES)
    assert re.search(r"Made by `qkv audit --all`, not by hand: \d{4}-\d\d-\d\d, qkv .*, Python .*, NumPy ", page)
    assert "not finished" not in page
    assert "### qkv-" not in page
    for name in ("torch-sdpa", "torch-mha-weights", "jax", "qkv-native", "qkv-numpy"):
        assert re.search(rf"^- `{name}` \d.*: \d+ cases of the profile strict", page, re.MULTILINE)


def test_the_command_writes_and_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pages of a run, and again from what --json wrote, without another run."""
    html, markdown, kept = (str(tmp_path / n) for n in ("a.html", "a.md", "a.json"))
    words = ["audit", "qkv-numpy", "--in-process", "--case", "A1-values"]
    assert main([*words, "--json", "--html", html, "--markdown", markdown]) == 0
    Path(kept).write_text(capsys.readouterr().out, encoding="utf-8")
    first = [Path(n).read_text(encoding="utf-8") for n in (html, markdown)]
    assert "qkv-numpy, A1-values: keeps" in first[0]
    assert main(["audit", "--read", kept, "--html", html, "--markdown", markdown]) == 0
    assert [Path(n).read_text(encoding="utf-8") for n in (html, markdown)] == first
    assert made_now("").numpy in first[1]


def test_where_files_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G2: exit code 2 and one sentence, nothing in silence."""
    there = tmp_path / "a.json"
    there.write_text("{")
    for words, said in (
        (["--read", str(there)], "cannot be read"),
        (["--read", str(tmp_path / "none")], "cannot be read"),
        (["--read", str(there), "--all"], "leave out --all"),
        (["--read", str(there), "--seed", "0"], "leave out --seed"),
        (["--read", str(there), "--profile", "core"], "leave out --profile"),
        (["qkv-numpy", "--read", str(there)], "leave out a kernel"),
        (["--list", "--html", "a.html"], "leave out --html"),
    ):
        assert main(["audit", *words]) == 2
        assert said in capsys.readouterr().err
    there.write_text(json.dumps(record(reports(), MADE)))
    assert main(["audit", "--read", str(there), "--html", str(tmp_path / "no" / "a.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    # Reports that hold something wrong fail like the run that made them.
    assert main(["audit", "--read", str(there)]) == 1
