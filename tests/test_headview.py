"""The picture of a head: sound XML whatever the tokens hold, the same bytes every time, and it says what it shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.errors import ArgumentError, ShapeError
from qkv.headview import head_svg

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    *("<script>alert(1)</script>", "&amp;", "]]>", "\"'", "\x1b[31m", "\x00", "\ud800", "\ufffe", "\u202edcba"),
    *(" two", "\n", " \n\n", "\t", "\r", "", "\u00a0", "日本語", "e\u0301", "😀", "x" * 5000, "\u2028"),
]


def draw(tokens: list[str], query: int | None = None, **changes: object) -> str:
    query = len(tokens) - 1 if query is None else query
    random = np.random.default_rng(7)
    weights = random.random(query + 1)
    numbers = {
        "weights": weights / weights.sum(),
        "shares": random.standard_normal(query + 1),
        "influences": random.random(query + 1),
    }
    options = {"query_index": query, "title": "A <title> & more", "caption": "What is seen.\x00", "sink": 0}
    return head_svg(tokens, **{**numbers, **options, **changes})  # type: ignore[arg-type]


def words(picture: str) -> str:
    return " ".join("".join(text.itertext()) for text in ElementTree.fromstring(picture).iter(f"{SVG}text"))


@pytest.mark.parametrize("query", range(len(HOSTILE)))
def test_hostile_tokens_stay_text(query: int):
    picture = draw(HOSTILE, query)
    root = ElementTree.fromstring(picture.encode())  # encodes: no lone surrogate is left; parses: no control either
    assert {each.tag for each in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "desc", "style", "g", "text", "tspan", "rect")
    }
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e\u2028]", picture)


def test_what_cannot_be_seen_is_shown():
    said = words(draw(HOSTILE))
    for shown in ("<script>", "&amp;", "]]>", "⟨1B⟩[31m", "⟨D800⟩", "⟨202E⟩", "·two", "↵", "⇥", "␍", "∅", "x…"):
        assert shown in said
    assert "xxxxx" * 20 not in said


def test_the_same_arguments_give_the_same_bytes():
    assert draw(HOSTILE) == draw(HOSTILE)
    ids = re.findall(r'id="(qkv-head-[0-9a-f]{8})-title"', draw(["a", " b"]) + draw(["a", " c"]))
    assert len(set(ids)) == 2


def test_it_says_what_it_shows():
    tokens = ["Alice", " saw", " the", " Rabbit", " run"]
    picture = draw(
        tokens,
        3,
        weights=[0.6, 0.1, 0.0, 0.3],
        shares=[-0.02, 0.22, 0.0, 0.8],
        influences=[0.25, 0.0001, np.nan, np.inf],
    )
    root = ElementTree.fromstring(picture)
    assert root.find(f"{SVG}title").text == "A <title> & more"
    assert root.find(f"{SVG}desc").text == (
        "What is seen.⟨0⟩ Token 3 of 5, “·Rabbit”, asks and can read the 4 tokens up to itself. Its heaviest keys: "
        "token 0 “Alice” (the sink) weight 0.600, share −0.020, influence 0.250, "
        "token 3 “·Rabbit” weight 0.300, share 0.800, influence ∞, "
        "token 1 “·saw” weight 0.100, share 0.220, influence 1e−04."
    )
    assert root.get("role") == "img"
    assert root.get("aria-labelledby").split() == [root.find(SVG + tag).get("id") for tag in ("title", "desc")]
    said = words(picture)
    for explained in ("weight", "share", "influence", "the token that asks", "causal mask", "held out of the shading"):
        assert explained in said
    assert "from 0 to 0.300" in said  # the sink's 0.6 does not set the scale
    assert "after the query, cannot be read" in picture
    assert "prefers-color-scheme:dark" in picture


def test_shade_is_in_proportion_to_weight():
    picture = draw(["s", "a", "b", "c"], weights=[0.5, 0.3, 0.15, 0.05])
    boxes = [
        float(rect.get("fill-opacity"))
        for group in ElementTree.fromstring(picture).iter(f"{SVG}g")
        if group.find(f"{SVG}title") is not None
        for rect in group.iter(f"{SVG}rect")
        if rect.get("fill-opacity")
    ]
    assert np.allclose(np.array(boxes) / boxes[0], [1, 0.5, 1 / 6], atol=1e-3 / boxes[0])  # opacities have 3 decimals


def test_a_token_alone_and_a_long_text():
    one = words(draw(["only"], weights=[1.0], shares=[1.0], influences=[np.nan]))
    assert "Its one key" in one
    assert "causal mask" not in one  # nothing stands after it
    long = words(draw([f" word{i}" for i in range(3000)], 2000))
    assert re.search(r"… 1,\d\d\d tokens left out …", long)
    assert re.search(r"… and \d\d\d tokens more", long)
    assert "·word2000" in long
    assert len(long) < 20_000


def test_wrong_arguments_are_refused():
    with pytest.raises(ArgumentError, match=r"^query_index must be one of the 2 tokens, not 2; count from 0$"):
        draw(["a", "b"], 2)
    with pytest.raises(ArgumentError, match=r"^sink must be one of the 2 tokens or None, not -1; count from 0$"):
        draw(["a", "b"], sink=-1)
    with pytest.raises(
        ShapeError,
        match=r"^shares has shape \(3,\), not one number for each of the 2 tokens, or for each of the 1 up to the "
        r"query; pass the row of one query of one head$",
    ):
        draw(["a", "b"], 0, shares=[1, 2, 3])
    with pytest.raises(
        ArgumentError,
        match=r"^weights must be 0 after the query, token 0, not 0\.25 at token 1; the picture is of a causal head$",
    ):
        draw(["a", "b"], 0, weights=[0.75, 0.25])


@pytest.mark.parametrize("palette", ["_LIGHT", "_DARK"])
def test_text_stands_out_from_what_is_behind_it(palette: str):
    """WCAG 2 asks for 4.5 to 1."""
    from qkv import headview

    colors = {
        name: np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        for name, code in getattr(headview, palette).items()
    }

    def luminance(color: np.ndarray) -> float:
        linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def contrast(one: np.ndarray, other: np.ndarray) -> float:
        dark, bright = sorted([luminance(one), luminance(other)])
        return (bright + 0.05) / (dark + 0.05)

    shade = headview._SHADE
    shaded = shade * colors["bar"] + (1 - shade) * colors["paper"]
    assert contrast(colors["ink"], shaded) >= 4.5
    for name in ("ink", "soft", "faint", "sink"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
