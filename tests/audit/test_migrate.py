"""From one library to another: what changes meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv.audit import Report, Row
from qkv.audit.migrate import changes, counts, tell_changes, verdicts
from qkv.audit.pages import made_now, record, to_html, to_markdown
from qkv.cli.main import main


def report(name: str, **rows: tuple[str, str, str]) -> Report:
    """Case (with _ for -) -> verdict, name, what was said."""
    made = [
        Row(case.replace("_", "-"), (case[:2],), f"about {case}", "edges", verdict, word, says)
        for case, (verdict, word, says) in rows.items()
    ]
    return Report(name, "edges", version="1", short=name, rows=made, finished=True)


A = report(
    "a",
    B6_long=("differs", "the queries stand at the start of the keys", ""),
    C2_mask=("keeps", "", ""),
    C4_sink=("cannot express", "", "no sink"),
    B1_given=("keeps", "", ""),
    G1_unknown=("keeps", "", "refused: TypeError"),
    F1_mixed=("keeps", "", ""),
)
B = report(
    "b",
    B6_long=("differs", "the queries stand at the end of the keys", ""),
    C2_mask=("differs", "a row without keys is NaN", ""),
    C4_sink=("keeps", "", ""),
    B1_given=("refuses", "", "no such scale"),
    G1_unknown=("differs", "swallows arguments it does not know", ""),
    F1_mixed=("keeps", "", ""),
)


def test_changes_are_told_by_kind_the_most_dangerous_first() -> None:
    """B6, C2: another answer to the same call comes first; what is the same is left out."""
    found = {c.case: (c.kind, c.before, c.after) for c in changes(A, B)}
    assert list(found) == ["B6-long", "C2-mask", "B1-given", "G1-unknown", "C4-sink"]
    assert found["C2-mask"] == ("meaning", "as the contract says", "a row without keys is NaN")
    assert [kind for kind, *_ in found.values()] == ["meaning", "meaning", "refused", "answered", "gained"]
    assert {c.case: c.kind for c in changes(B, A)}["C4-sink"] == "lost"
    assert changes(A, A) == []
    assert counts([A, B]) == [[0, 2], [2, 0]]
    text = "\n".join(tell_changes(A, B))
    assert "the queries stand at the start of the keys → the queries stand at the end of the keys: B6-long" in text
    assert "Nothing changes meaning" in "\n".join(tell_changes(A, A))


def test_the_pages_tell_any_two() -> None:
    """The Markdown page counts, the HTML page lists."""
    page = to_markdown([A, B], made_now("qkv audit"))
    assert "| `a` |  | 2 |" in page
    html = to_html([A, B], made_now("qkv audit"))
    assert '"changes":{"a":{"b":[["Another answer to the same call","B6-long"' in html
    assert '<select id="from">' in html


def test_migrate_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a file, and by an audit; G2: what is not there is one sentence."""
    file = tmp_path / "reports.json"
    file.write_text(json.dumps(record([A, B], made_now("qkv audit"))), encoding="utf-8")
    assert main(["audit", "migrate", "a", "b", "--read", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [c["kind"] for c in told["changes"]][:2] == ["meaning", "meaning"]
    assert main(["audit", "migrate", "a", "c", "--read", str(file)]) == 2
    assert "has no report of c; it has a, b" in capsys.readouterr().err
    assert main(["audit", "migrate", "a"]) == 2
    assert "takes two kernels" in capsys.readouterr().err
    assert main(["audit", "migrate", "qkv-numpy", "qkv-numpy", "--case", "B6-long", "--in-process"]) == 0
    assert "Nothing changes meaning" in capsys.readouterr().out


def test_verdicts_are_found_by_clause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C2: what a learner's input does elsewhere, without what cannot be said."""
    table = verdicts([A, B])
    assert table["C2-mask"]["does"] == {"as the contract says": ["a"], "a row without keys is NaN": ["b"]}
    assert table["C4-sink"]["does"] == {"as the contract says": ["b"]}
    assert table["C4-sink"]["clauses"] == ["C4"]
    out = tmp_path / "verdicts.json"
    assert main(["audit", "qkv-numpy", "--case", "B6-long", "--in-process", "--verdicts", str(out)]) == 0
    capsys.readouterr()
    told = json.loads(out.read_text(encoding="utf-8"))
    assert told["cases"]["B6-long"]["does"] == {"refused, with an error": ["qkv-numpy"]}
