"""How a lesson becomes HTML: numbers computed, snippets run, nothing of a file's own let through."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from learner import LESSON, make_lessons

import qkv
from qkv.errors import FileError
from qkv.learn.expressions import compute, show, written
from qkv.learn.formulas import FORMULAS, formula
from qkv.learn.head import facts
from qkv.learn.lessons import CONTENT, Lesson, build, lessons

HEAD = "---\ntitle: T\nminutes: 1\norder: 1\nlet:\n  - even = trace([1], [[1], [1]], [[2], [8]])\n---\n"


@pytest.fixture
def written_lesson(tmp_path: Path):
    """Build a lesson from its text; with a section unless there is one."""

    def make(text: str, head: str = HEAD, name: str = "made") -> Lesson:
        file = tmp_path / f"{name}.md"
        file.write_text(head + text, encoding="utf-8")
        return build(file)

    return make


class Shape(HTMLParser):
    """Tags, attributes and text of some HTML, in order; wrong nesting is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("input", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def first(self, tag: str, **attributes: str) -> dict[str, str | None]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return next(got for name, got in self.tags if name == tag and wanted.items() <= got.items())


# The sample, whole ----------------------------------------------------------------------------------------------------


def test_the_sample_lesson(tmp_path):
    lesson = lessons(make_lessons(tmp_path / "content"))[0]
    assert (lesson.id, lesson.title, lesson.minutes, lesson.order) == ("sample", "A lesson & its sample", 5, 2)
    assert Shape(lesson.outcomes[0]).text == "say what 0.731 is"
    assert lesson.intro == "<p>What this is about.</p>\n"
    first, rest = lesson.sections
    assert (first.title, first.name) == ("First &lt;b&gt;things&lt;/b&gt;", "First <b>things</b>")
    assert Shape(first.html).text.startswith("The weights are [0.731, 0.269] and the output [7.311, 5.379].")
    assert first.prompt == "<p>In your own words?</p>\n"
    assert "own words" not in first.html
    figure = Shape(first.html).first("figure", class_="interactive")
    assert figure["data-figure"] == "vectors"
    assert json.loads(figure["data-options"] or "") == {"query": [2**0.5, 0.0]}
    assert '<pre class="output"><samp>2</samp></pre>' in rest.html
    (ask,) = rest.checks
    assert (ask.id, ask.kind, Shape(ask.answer).text.strip()) == ("sum", "pause", "1.")
    assert ask.question in rest.html
    assert ask.answer in rest.html
    assert lesson.lab is not None
    assert lesson.lab.hints == ["<p>First <em>hint</em>.</p>\n", "<p>Second.</p>\n"]
    assert "the_secret_solution" in (lesson.lab.solution or "")
    assert lesson.to_dict(solutions=False)["lab"]["solution"] is None


def test_one_more_lesson_is_one_more_file(tmp_path):
    folder = make_lessons(tmp_path / "content")
    (folder / "another.md").write_text(LESSON.replace("order: 2", "order: 1"), encoding="utf-8")
    assert [(lesson.id, lesson.lab is None) for lesson in lessons(folder)] == [("another", True), ("sample", False)]


# The lessons of the package -------------------------------------------------------------------------------------------


def test_the_lessons_of_the_package_build_and_keep_the_policy():
    """HTML without scripts, styles, handlers and addresses elsewhere; ids that notes can be kept under."""
    built = lessons(CONTENT)
    assert built
    for lesson in built:
        assert len({section.id for section in lesson.sections}) == len(lesson.sections)
        for text in (lesson.intro, *(section.html for section in lesson.sections)):
            shape = Shape(text)
            assert {tag for tag, _ in shape.tags} & {"script", "style", "iframe", "img", "link"} == set()
            for _, attributes in shape.tags:
                assert not any(name.startswith("on") or name == "style" for name in attributes)
                assert attributes.get("href", "#").startswith(("#", "https://"))
        json.dumps(lesson.to_dict(), allow_nan=False)


def test_no_number_with_decimals_is_typed_into_a_lesson():
    """What a lesson says of weights and outputs is computed; typed are only inputs, in code and in options."""
    for file in CONTENT.glob("*.md"):
        if file.name == "README.md" or file.name.endswith(".hints.md"):
            continue
        text = file.read_text(encoding="utf-8").split("\n---\n", 1)[1]
        text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        text = re.sub(r"^:::.*$|\{\{.*?\}\}|`[^`\n]*`", "", text, flags=re.M | re.S)
        assert re.findall(r"\d\.\d+", text) == [], file.name


def test_diagonal_the_lesson_says_that_a_position_reads_itself():
    """diagonal (pytorch/tutorials#2250): in words, and in every computed row."""
    sections = {section.id: section.html for section in lessons(CONTENT)[0].sections}
    assert "Is the diagonal masked? No" in " ".join(Shape(sections["masks"]).text.split())
    assert all(row[at] for at, row in enumerate(compute("causal(5)", {})))


# Numbers --------------------------------------------------------------------------------------------------------------

WORKED = qkv.trace([2**0.5, 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]])


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("worked.weights[0]", "0.731"),
        ("worked.weights | 1", "[0.7, 0.3]"),
        ("worked.query | given", "[1.4142135623730951, 0]"),
        ("worked.weights[-1] | percent", "26.9 %"),
        ("worked.masked_scores", "[1, 0]"),
        ("trace([1], [[1], [1]], [[1], [2]], [True, False]).masked_scores", "[1, masked]"),
        ("softmax([1000, 999])", "[0.731, 0.269]"),
        ("add([1000, 999], -1000)", "[0, −1]"),
        ("times([2, 1], 0.5)", "[1, 0.500]"),
        ("exp(1000)", "overflow"),
        ("exp(-1000)", "0"),
        ("exp(100) | g", "2.688e+43"),
        ("exp(-20)", "2.06e−09"),
        ("mix([0.5, 0.5], [[2, 6], [8, 0]])", "[5, 3]"),
        ("dot([1, 2], [3, 4])", "11"),
        ("causal(3)[1]", "[True, True, False]"),
        ("causal_weights([[0], [0]], [[0], [0]])", "[[1, 0], [0.500, 0.500]]"),
        ("(1 + 2) * 3 - 4 / 2", "7"),
        ("count([1, 2])", "2"),
        ("total([0.1, 0.2])", "0.300"),
        ("largest([1, 3, 2])", "3"),
        ("mean([1, 2])", "1.500"),
        ("1e300 * 1e300", "∞"),
    ],
)
def test_numbers(expression, shown):
    text = show(expression, {"worked": WORKED})
    assert Shape(text).text == shown


def test_a_shown_number_carries_the_whole_of_it():
    assert Shape(show("1 / 3", {})).first("data")["value"] == repr(1 / 3)


def test_what_is_not_zero_is_not_shown_as_zero():
    for value in (1e-4, -1e-9, 5e-324, 0.0004999):
        assert float(written(value).replace("−", "-")) != 0
    assert written(0.0) == "0"


def test_the_refusal_is_the_definitions_own():
    arguments = ([1], [[1]], [[1]], [False])
    with pytest.raises(ValueError, match="at least one key") as error:
        qkv.plain.attend(*arguments)
    assert compute("refusal([1], [[1]], [[1]], [False])", {}) == str(error.value)


def test_the_heads_facts_agree_with_its_weights():
    head = facts()
    assert head.tokens[head.query_index] == head.word
    assert head.weights == sorted(head.weights, reverse=True)
    assert [token in head.tokens for token in head.read] == [True] * len(head.read)
    assert Shape(show("head().read[0] | tokens", {})).text == f"“{head.read[0].strip()}”"


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("__import__('os')", "there is no function __import__"),
        ("worked.__class__", "there is no field __class__"),
        ("worked.weights.append", "there is no field append"),
        ("worked.to_dict()", "this is not written in a lesson"),
        ("worked.steps", "there is no field steps"),
        ("[x for x in [1]]", "this is not written in a lesson"),
        ("(lambda: 1)()", "this is not written in a lesson"),
        ("f'{worked}'", "this is not written in a lesson"),
        ("nothing", "there is no nothing; add it to let"),
        ("trace", "there is no trace; add it to let"),
        ("2 ** 10", "this is not written in a lesson"),
        ("[1] * 3", "only numbers can be added and multiplied"),
        ("True + 1", "only numbers can be added and multiplied"),
        ("worked.weights[0.5]", "only a list can be indexed"),
        ("worked.weights[9]", "cannot be computed: list index out of range"),
        ("1 / 0", "cannot be computed: division by zero"),
        ("trace([1], [], [])", "cannot be computed: keys must hold at least one vector"),
        ("refusal([1], [[1]], [[1]])", "there is no refusal to show"),
        ("softmax(", "is not an expression"),
        ("softmax([1]) | colour", "is no way to show a number"),
        ("worked", "a Trace cannot be shown; show one of its fields"),
    ],
)
def test_what_is_no_expression_is_refused(expression, sentence):
    with pytest.raises(FileError) as error:
        show(expression, {"worked": WORKED})
    assert sentence in str(error.value)


# Markdown and directives ----------------------------------------------------------------------------------------------


def test_html_of_a_file_is_shown_and_not_let_through(written_lesson):
    text = '## <script>alert(1)</script> {#a}\n\n<img src=x onerror="alert(1)">\n\n[x](javascript:alert(1))\n'
    text += '[y](http://example.org) [z](https://example.org/?a=1&b="2") [w](#a)\n'
    section = written_lesson(text).sections[0]
    shape = Shape(section.title + section.html)
    assert {tag for tag, _ in shape.tags} == {"p", "a"}
    assert [attributes["href"] for tag, attributes in shape.tags if tag == "a"][1:] == ["#a"]
    assert "<script>alert(1)</script>" in shape.text


def test_tables_have_classes_and_no_styles(written_lesson):
    table = "| a | b |\n|--:|:-:|\n| {{ 1 / 3 \\| 1 }} | y |\n"
    shape = Shape(written_lesson(f"## T {{#a}}\n\n{table}").sections[0].html)
    assert {attributes.get("class") for tag, attributes in shape.tags if tag == "td"} == {"align-right", "align-center"}
    assert "0.3" in shape.text
    assert not any("style" in attributes for _, attributes in shape.tags)


def test_code_is_left_as_it_is(written_lesson):
    text = "## T {#a}\n\n`{{ nothing }}` and {{ 1 }}\n\n```\n{{ nothing }} <b>\n## no section\n:::none\n```\n"
    (section,) = written_lesson(text).sections
    shape = Shape(section.html)
    assert "{{ nothing }} and 1" in shape.text
    assert "{{ nothing }} <b>\n## no section\n:::none\n" in shape.text


def test_a_snippet_shows_what_it_prints(written_lesson):
    code = "x = 'a < b'\nfor i in range(2):\n    print(i, x)\n"
    shape = Shape(written_lesson(f"## T {{#a}}\n\n```python run\n{code}```\n").sections[0].html)
    assert shape.text.startswith(code)
    assert shape.text.rstrip().endswith("0 a < b\n1 a < b")
    # Each snippet stands for itself: it can be copied and run.
    with pytest.raises(FileError, match=r"made\.md:13: the snippet raised NameError"):
        written_lesson("## T {#a}\n```python run\nx = 1\n```\n\n```python run\nprint(x)\n```\n")
    text = "## T {#a}\n```python run raises=ValueError\nraise ValueError('so')\n```\n"
    assert Shape(written_lesson(text).sections[0].html).text.rstrip().endswith("ValueError: so")


def test_a_trace_is_a_table_with_its_inputs(written_lesson):
    section = written_lesson("## T {#a}\n:::trace even\nCaption.\n:::\n").sections[0]
    shape = Shape(section.html)
    assert json.loads(shape.first("figure", class_="trace")["data-trace"] or "") == {
        "query": [1.0],
        "keys": [[1.0], [1.0]],
        "values": [[2.0], [8.0]],
        "allowed": [True, True],
    }
    assert {attributes["scope"] for tag, attributes in shape.tags if tag == "th"} == {"col", "row"}
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", section.html)
    assert cells[8:16] == ["0", "1", "1", "0", "1", "0.500", "[2]", "[1]"]
    assert cells[-1] == "[5]"


def test_choices_do_not_give_themselves_away(written_lesson):
    text = "## T {#a}\n:::check why\nWhy?\n\n- [ ] wrong {{ 1 + 1 }}\n- [x] right\n:::answer\nBecause.\n:::\n"
    section = written_lesson(text).sections[0]
    shape = Shape(section.html)
    assert [attributes["value"] for tag, attributes in shape.tags if tag == "input"] == ["0", "1"]
    (ask,) = section.checks
    assert [(Shape(choice).text, right) for choice, right in ask.choices] == [("wrong 2", False), ("right", True)]
    assert ask.to_dict()["choices"][1] == {"html": "right", "right": True}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_mathml(name):
    root = ElementTree.fromstring(formula(name))
    assert root.tag == "math"
    assert root.attrib == {"display": "block"}
    known = {"math", "mrow", "mi", "mo", "mn", "msub", "msup", "mfrac", "msqrt", "munder", "mspace"}
    assert {element.tag for element in root.iter()} <= known


# What is wrong in a file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("## No id\n", "made.md:8: '## No id' must be a title and an id"),
        ("## A {#a}\n## B {#a}\n", "made.md:9: there are two sections 'a'"),
        ("## A {#a}\n\nText\nmore {{ nothing }}.\n", "made.md:11: 'nothing': there is no nothing"),
        ("## A {#a}\n:::note\nfor ever\n", "made.md:9: :::note is never closed"),
        ("## A {#a}\n:::video x\n:::\n", "made.md:9: there is no directive :::video"),
        ("## A {#a}\n:::note\n:::\n:::note\n:::\n", "made.md:11: :::note stands once in a section"),
        (":::note\n:::\n", "made.md:8: :::note stands once in a section"),
        ("## A {#a}\n:::figure\n:::\n", "made.md:9: :::figure needs the name"),
        ("## A {#a}\n:::figure x colour\n:::\n", "made.md:9: the option 'colour' must be name=expression"),
        ("## A {#a}\n:::figure x y=even\n:::\n", "an option must be numbers, texts or lists of them"),
        ("## A {#a}\n:::trace odd\n:::\n", "made.md:9: :::trace needs a trace that let names"),
        ("## A {#a}\n:::formula e=mc2\n:::\n", "made.md:9: there is no formula 'e=mc2'"),
        ("## A {#a}\n:::pause x\nWhy?\n:::\n", "made.md:9: :::pause needs its answer"),
        ("## A {#a}\n:::pause\nWhy?\n:::answer\n:::\n", "made.md:9: :::pause stands in a section and needs an id"),
        ("## A {#a}\n```python run raises=KeyError\n1\n```\n", "made.md:9: the snippet has to raise KeyError"),
        ("## A {#a}\n```python now\n1\n```\n", "made.md:9: the fence says 'python now'"),
        ("## A {#a}\n\nx\n![x](https://example.org/y.png)\n", "made.md:11: a lesson has no images; use :::figure"),
    ],
)
def test_a_wrong_lesson_stops_the_build_with_its_line(written_lesson, text, sentence):
    with pytest.raises(FileError) as error:
        written_lesson(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        ("", "made.md:1: a lesson begins with front matter"),
        ("---\ntitle: T\n", "made.md:1: a lesson begins with front matter"),
        ("---\ntitle: T\nminutes: 1\n---\n", "made.md:1: the front matter has no order"),
        ("---\ncolour: red\n---\n", "made.md:2: 'colour: red' is no field of a lesson"),
        ("---\ntitle: T\ntitle: U\n---\n", "made.md:3: 'title: U' is no field of a lesson"),
        ("---\nminutes: long\n---\n", "made.md:2: minutes must be a whole number"),
        ("---\nlet:\n  - x\n---\n", "made.md:3: 'x' must be a new name, = and an expression"),
        ("---\nlet:\n  - dot = 1\n---\n", "made.md:3: 'dot = 1' must be a new name"),
        ("---\nlet:\n  - x = y\n---\n", "made.md:3: 'y': there is no y"),
    ],
)
def test_wrong_front_matter_stops_the_build(written_lesson, head, sentence):
    with pytest.raises(FileError) as error:
        written_lesson("## A {#a}\n", head)
    assert sentence in str(error.value)
