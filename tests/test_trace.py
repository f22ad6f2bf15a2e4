"""The trace: it shows the numbers of the definition, in 80 columns, in JSON, and as a picture."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import math
import re
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.plain import attend, attention_steps
from qkv.trace import TABLE_WIDTH, Trace, trace

module = importlib.import_module("qkv.trace")
EXAMPLE = ([math.sqrt(2), 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]])
SVG = "{http://www.w3.org/2000/svg}"

anything = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any width, any number of keys on both sides of the gap, numbers up to the edge of the type."""
    width, value_width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    count = draw(st.one_of(st.integers(1, 4), st.integers(19, 23)))
    query = draw(st.lists(st.floats(-1, 1), min_size=width, max_size=width))
    key = st.lists(st.one_of(st.floats(-5, 5), st.floats(-1e306, 1e306)), min_size=width, max_size=width)
    value = st.lists(st.one_of(st.integers(-20, 20), anything), min_size=value_width, max_size=value_width)
    keys = draw(st.lists(key, min_size=count, max_size=count))
    values = draw(st.lists(value, min_size=count, max_size=count))
    allowed = draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    return trace(query, keys, values, allowed)


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(module).failed == 0


# The numbers --------------------------------------------------------------------------------------------------------


def test_every_number_of_the_worked_example_masked_to_the_first_key() -> None:
    """B1, B4, C1."""
    t = trace(*EXAMPLE, [True, False])
    assert t.dot_products == [math.sqrt(2), 0.0]
    assert t.scale == 1 / math.sqrt(2)
    assert t.scaled_scores == [1.0, 0.0]
    assert t.mask == [True, False]
    assert t.masked_scores == [1.0, None]
    assert t.maximum == 1.0
    assert t.shifted_scores == [0.0, None]
    assert t.exponentials == [1.0, 0.0]
    assert t.sum == 1.0
    assert t.weights == [1.0, 0.0]
    assert t.contributions == [[10.0, 0.0], [0.0, 0.0]]
    assert t.context == [10.0, 0.0]


@given(traces())
def test_the_trace_is_the_definition(t: Trace) -> None:
    """C1, D1: one formula, kept twice nowhere."""
    assert (t.weights, t.context) == attend(t.query, t.keys, t.values, t.mask)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_arrays_are_taken_as_their_lists(dtype: type) -> None:
    query, keys, values = (np.array(x, dtype=dtype) for x in ([2, 1], [[1, 0], [0, 1]], [[10, 0], [0, 20]]))
    expected = trace([2, 1], [[1, 0], [0, 1]], [[10, 0], [0, 20]], [True, True])
    assert trace(query, keys, values, np.array([True, True])) == expected
    assert trace(list(query), list(keys), tuple(values), list(np.array([True, True]))) == expected


def test_a_torch_tensor_is_taken_as_its_list() -> None:
    torch = pytest.importorskip("torch")
    query, keys, values = (torch.tensor(x, dtype=torch.bfloat16) for x in ([2, 1], [[1, 0], [0, 1]], [[10], [20]]))
    assert trace(query, keys, values, torch.tensor([True, False])).context == [10.0]


def test_errors_are_those_of_the_definition() -> None:
    """B4, C2, G2."""
    with pytest.raises(TypeError, match=r"^allowed\[0\] must be True or False, got int; "):
        trace(*map(np.array, EXAMPLE), np.array([1, 0]))
    with pytest.raises(TypeError, match=r"^query\[0\] must be an int or a float, got list; "):
        trace([EXAMPLE[0]], *EXAMPLE[1:])
    with pytest.raises(TypeError, match=r"^query must be a list or tuple of numbers, got float; "):
        trace(np.float32(1), *EXAMPLE[1:])
    with pytest.raises(ValueError, match=r"^allowed must let at least one key be read"):
        trace(*EXAMPLE, [False, False])


def test_a_trace_is_frozen_and_owns_its_numbers() -> None:
    """A4."""
    query, keys, values = [1.0], [[2.0]], [[3.0]]
    t = trace(query, keys, values)
    query[0] = keys[0][0] = values[0][0] = 9.0
    assert (t.query, t.keys, t.values) == ([1.0], [[2.0]], [[3.0]])
    with pytest.raises(FrozenInstanceError):
        t.sum = 2.0  # type: ignore[misc]


# The steps ----------------------------------------------------------------------------------------------------------


def test_the_steps_are_all_of_the_computation_in_order() -> None:
    steps = trace(*EXAMPLE).steps()
    source = inspect.getsource(attention_steps)
    places = [
        source.index(f"    {step.code}\n") for step in steps
    ]  # verbatim: the lesson shows the line beside the step
    assert places == sorted(places)
    assert [step.name for step in steps] == [
        "dot products",
        "scaled scores",
        "masked scores",
        "maximum",
        "shifted scores",
        "exponentials",
        "sum",
        "weights",
        "contributions",
        "context",
    ]


@given(traces())
def test_each_step_carries_the_numbers_of_the_trace_and_one_sentence(t: Trace) -> None:
    for step in t.steps():
        assert step.numbers == getattr(t, step.name.replace(" ", "_"))
        assert step.explanation[0].isupper()
        assert re.findall(r"[.!?](?=\s|$)", step.explanation) == ["."]
        assert json.loads(json.dumps(step.to_dict(), allow_nan=False)) == step.to_dict()


def test_an_explanation_names_the_numbers() -> None:
    steps = {step.name: step for step in trace(*EXAMPLE, [True, False]).steps()}
    assert steps["masked scores"].explanation.startswith("The query may read 1 of 2 keys;")
    assert "√2 = 1.414" in steps["scaled scores"].explanation
    assert steps["context"].explanation == "The contributions add up to the context, [10.000, 0.000]."


# The table ----------------------------------------------------------------------------------------------------------


def test_the_table_of_the_worked_example() -> None:
    assert trace(*EXAMPLE, [True, False]).table().splitlines() == [
        "  key  q·k/√2    −max    exp  weight  value    weight·value",
        "  0     1.000   0.000  1.000   1.000  [10, 0]  [10.000, 0.000]",
        "  1     0.000  masked  0.000   0.000  [0, 20]  [0.000, 0.000]",
        "  sum                  1.000   1.000",
        "  context                                      [10.000, 0.000]",
    ]
    assert str(trace(*EXAMPLE)) == repr(trace(*EXAMPLE)) == trace(*EXAMPLE).table()


@given(traces())
def test_the_table_fits_80_columns(t: Trace) -> None:
    lines = str(t).splitlines()
    assert max(map(len, lines)) <= TABLE_WIDTH == 80
    assert lines == [line.rstrip() for line in lines]
    plain_lines = t.table(ascii_only=True)
    assert plain_lines.isascii()
    assert max(map(len, plain_lines.splitlines())) <= 80


@pytest.mark.parametrize(
    ("count", "width"), [(1, 1), (1, 4096), (20, 3), (20, 4096), (21, 1), (21, 3), (1000, 200), (100_000, 3)]
)
def test_many_keys_and_wide_values_are_elided(count: int, width: int) -> None:
    number = -sys.float_info.max
    text = str(trace([1e-200] * 2, [[-1e-300, 1e-300]] * count, [[number] * width] * count))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == (count if count <= 20 else 17) + 3
    assert (f"… {count - 16} more keys, together weight " in text) == (count > 20)
    assert "…" in text or width <= 3


def test_the_gap_says_what_it_hides() -> None:
    t = trace([1], [[5.0 if j == 30 else 0.0] for j in range(50)], [[1]] * 50)
    assert (
        f"  … 34 more keys, together weight {math.fsum(t.weights[8:42]):.3f}, at most {t.weights[30]:.3f} (key 30)"
        in (str(t).splitlines())
    )


@given(traces())
def test_a_weight_that_prints_as_zero_is_zero(t: Trace) -> None:
    """C1: exactly 0 where not allowed, and seen to be."""
    for line in str(t).splitlines()[1:]:
        cells = line.split()
        if cells[0].isdecimal():
            assert (cells[4] == "0.000") == (t.weights[int(cells[0])] == 0)


def test_a_small_weight_does_not_print_as_zero() -> None:
    weight = trace([1], [[0], [-10]], [[1], [2]]).table().splitlines()[2].split()[4]
    assert weight == "4.5e-05"


# JSON ---------------------------------------------------------------------------------------------------------------


@given(traces())
def test_a_trace_survives_json(t: Trace) -> None:
    data = json.loads(t.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data == t.to_dict()
    assert Trace.from_dict(data) == t


def test_an_infinite_dot_product_of_a_forbidden_key_is_a_word_in_json() -> None:
    """D1, D3."""
    t = trace([1e200], [[1e200], [0], [-1e200]], [[1], [2], [3]], [False, True, True])
    assert t.context == [2.0]
    assert t.to_dict()["dot_products"] == ["Infinity", 0.0, "-Infinity"]
    assert Trace.from_dict(json.loads(t.to_json())) == t


def test_numbers_in_a_dict_are_computed_again_never_believed() -> None:
    data = trace(*EXAMPLE).to_dict() | {"weights": [0.0, 1.0]}
    assert Trace.from_dict(data) == trace(*EXAMPLE)


# The picture --------------------------------------------------------------------------------------------------------


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_the_picture_shows_every_number_and_says_them() -> None:
    root = ElementTree.fromstring(trace(*EXAMPLE, [True, False]).to_svg())
    shown = texts(root)
    for text in ("÷ √2", "− max 1.000", "masked", "[10, 0]", "[0, 20]", "1.414", "[10.000, 0.000]"):
        assert text in shown
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert title.text == "Attention of one query over 2 keys"
    assert desc.text == "Weights: key 0 1.000, key 1 0.000 (masked). Context: [10.000, 0.000]."
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"


def test_bars_are_as_long_as_the_weights() -> None:
    t = trace(*EXAMPLE)
    root = ElementTree.fromstring(t.to_svg())
    bars, tracks = (
        [float(rect.get("width", "nan")) for rect in root.iter(f"{SVG}rect") if rect.get("class") == name]
        for name in ("qkv-bar", "qkv-track")
    )
    # Two decimals are written, so that a length is right within half a hundredth.
    assert all(abs(bar - weight * tracks[0]) <= 0.005 for bar, weight in zip(bars, t.weights, strict=True))


@given(traces())
def test_the_picture_is_xml_needs_nothing_and_stays_inside_its_frame(t: Trace) -> None:
    svg = t.to_svg()
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for text in root.iter(f"{SVG}text"):
        x, y, size = (float(text.get(name, "nan")) for name in ("x", "y", "font-size"))
        length = len(text.text or "") * 0.61 * size  # a monospaced character is 0.6 of the size
        left = x - length if text.get("text-anchor") == "end" else x
        assert 0 <= left <= left + length <= width, text.text
        assert 0 <= y <= height
    assert not re.search(r"(href|src|url\(|@import|<script|\son\w+=)", svg)
    assert re.findall(r"https?://[^\"' ]*", svg) == ["http://www.w3.org/2000/svg"]
    assert svg == Trace.from_dict(t.to_dict()).to_svg() == t._repr_svg_()


def test_two_pictures_in_one_page_keep_their_ids_and_colours_apart() -> None:
    first, second = trace(*EXAMPLE).to_svg(), trace(*EXAMPLE, [True, False]).to_svg()
    ids: list[set[Any]] = [
        {e.get("id") for e in ElementTree.fromstring(svg).iter()} - {None} for svg in (first, second)
    ]
    assert len(ids[0]) == 2
    assert not ids[0] & ids[1]
    for rule in re.findall(r"[^{}]+(?={fill)", first):
        assert rule.startswith(".qkv-trace-")


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["_LIGHT", "_DARK"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: str) -> None:
    colors = getattr(module, theme)
    # 1.4.3: text 4.5 : 1; 1.4.11: the bars, which are graphics, 3 : 1.
    for front, back, least in (
        ("ink", "paper", 4.5),
        ("soft", "paper", 4.5),
        ("ink", "mark", 4.5),
        ("soft", "mark", 4.5),
        ("bar", "paper", 3.0),
        ("bar", "track", 3.0),
    ):
        light, dark = sorted((luminance(colors[front]), luminance(colors[back])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least, (theme, front, back)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [(([1.0], [], []), ValueError), (([float("nan")], [[1.0]], [[1.0]]), ValueError), ((1.0, [], []), TypeError)],
)
def test_its_errors_are_plain_and_the_readme_says_so(problem: tuple[Any, Any, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as told:
        trace(*problem)
    assert type(told.value) is kind
    readme = " ".join((Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8").split())
    promise = readme[readme.index("All are kinds of `QkvError`") :].partition(". ")[0]
    assert promise.endswith(
        "only `trace`, which needs nothing but the standard library, raises plain `ValueError` and `TypeError`"
    )
