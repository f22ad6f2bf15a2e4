"""The views hold the numbers of the lens, say what they are, and are the same bytes twice."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.errors import ArgumentError, ShapeError, UnsupportedError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402
from qkv.lens import views  # noqa: E402

from .test_rows import layer  # noqa: E402

#: Tokens that tempt HTML, XML, terminals and encoders.
NASTY = ("<s>", "</script>", " & ", "\n", "\x1b[31m", "\ud800", "é")


def seen(**options: Any) -> Any:
    one = layer(**options)
    facts = {"model": "made <up>", "text": "sha256:0123"}
    return lens.Capture((one, replace(one, index=1, name="next")), None, NASTY[: one.keys], facts)


def shown(**options: Any) -> Any:
    return views.picture(seen(), rows=[(1, 2, 5), (0, 0, 6)], command="qkv lens --model made", **options)


def data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_the_page_holds_the_exact_rows_and_the_pooled_maps() -> None:
    """value-weighted: weight, contribution and influence, switchable; long-view: everything else is pooled."""
    picture = shown()
    held = data(views.to_html(picture))
    right = lens.row(seen().layer(1), 2, 5)
    for name in views.picture.__globals__["COLUMNS"]:
        column = np.frombuffer(base64.b64decode(held["rows"][0]["columns"][name]), "<f4")
        np.testing.assert_array_equal(column, getattr(right, name).astype(np.float32))
    allowed = np.unpackbits(np.frombuffer(base64.b64decode(held["rows"][0]["allowed"]), np.uint8))[:7].astype(bool)
    np.testing.assert_array_equal(allowed, right.allowed)
    assert [(m[0], m[1]) for m in held["maps"]] == [(n, h) for n in (0, 1) for h in range(4)]
    cells = np.frombuffer(base64.b64decode(held["maps"][6][4]), "<f2").reshape(7, 7)
    np.testing.assert_array_equal(cells, seen().layer(1).attention().weights(range(7))[0, 2].astype(np.float16))
    assert held["tokens"] == list(NASTY)


def test_maps_of_long_texts_are_pooled_by_maximum_into_few_bytes() -> None:
    one = layer(size=230, heads=2, groups=1)
    capture = lens.Capture((one,), None, None, {})
    picture = views.picture(capture)
    pooled = picture.maps[1].cells
    assert pooled.shape == (96, 96)
    np.testing.assert_array_equal(pooled, np.asarray(one.attention().pooled(96, 96))[0, 1].astype(np.float16))
    assert "each the largest weight of 230 × 230" in picture.left_out()
    many = tuple(views.picture.__globals__["Map"](0, h, pooled) for h in range(2))
    assert picture.maps[0].cells.nbytes * len(many) < 2_400_000


def test_a_page_of_a_long_text_stays_small() -> None:
    """long-view: 30 × 9 heads, 8,192 tokens, three exact rows, numbers that no packing makes smaller: at most 5 MB."""
    rng, keys, heads = np.random.default_rng(0), 8192, 270
    cells = int((views.picture.__globals__["_MAP_BYTES"] / 2 / heads) ** 0.5)
    made = shown()
    one = made.start.row
    column = rng.random(keys)
    names = ("allowed", "weight", "norm", "norm_share", "share", "influence", "sole", "uniform", "recency")
    row = replace(one, **{**dict.fromkeys(names, column), "allowed": column > 0.5})
    pooled = rng.random((cells, cells)).astype(np.float16)
    long = replace(
        made,
        tokens=tuple(f" token{j}" for j in range(keys)),
        layers=tuple((n, f"model.layers.{n}.self_attn", tuple(range(9))) for n in range(30)),
        maps=tuple(views.picture.__globals__["Map"](n, h, pooled) for n in range(30) for h in range(9)),
        rows=tuple(replace(made.start, row=row) for _ in range(3)),
        last=keys - 1,
    )
    assert len(views.to_html(long).encode()) <= 5_000_000


def test_a_vector_picture_has_its_map_for_the_dark_too() -> None:
    drawn = [
        base64.b64decode(found) for found in re.findall(r'href="data:image/png;base64,([^"]+)"', views.to_svg(shown()))
    ]
    corners = []
    for png in drawn:
        start = png.index(b"IDAT") + 4
        pixels = np.frombuffer(zlib.decompress(png[start:]), np.uint8).reshape(7, 1 + 3 * 7)[:, 1:].reshape(7, 7, 3)
        corners.append(pixels[0, 6].tolist())  # a forbidden pair has the colour of the paper
    assert corners == [[255, 255, 255], [16, 21, 30]]


def test_every_view_says_what_it_is() -> None:
    """axes-said, same-picture: rows, columns, colour and mask in words; model, text, layer, head, and the line that redraws it."""
    picture = shown(quantity="influence")
    for view in (views.to_html(picture), views.to_svg(picture)):
        for words in (
            "Rows are queries",
            "columns are keys",
            "The stronger a cell’s colour, the more weight",
            "A query may read itself and what stands before it",
            "made &lt;up&gt;",
            "sha256:0123",
            "qkv lens --model made",
            "not what the model as a whole concludes",
            "by distance",
        ):
            assert words in re.sub(r"</text>\n<text[^>]*>", " ", view)
    assert "layer 1, head 2, query 5" in views.to_svg(picture)
    assert "What rows" not in picture.axes()


def test_the_same_picture_gives_the_same_bytes() -> None:
    for view in (views.to_html, views.to_svg, lambda p: json.dumps(p.to_dict(), allow_nan=False)):
        assert view(shown()) == view(shown())


def test_nothing_in_a_text_gets_out_of_its_place() -> None:
    picture = shown()
    page = views.to_html(picture)
    assert page.count("</script>") == 2
    page.encode("utf-8")
    for picture in (shown(), shown(quantity="share")):
        root = ElementTree.fromstring(views.to_svg(picture))
        words = " ".join(text for text in root.itertext())
        assert "⟨1B⟩[31m" in words
        assert "⟨D800⟩" in words


def test_an_offline_page_asks_for_nothing() -> None:
    """offline-view: no address stands in the page but that of the SVG names."""
    page = views.to_html(shown())
    assert not re.search(r"https?://|url\(|@import|src=", page)
    assert "default-src 'none'" in page


def test_a_vector_picture_holds_the_map_and_the_numbers() -> None:
    """vector: one picture of exactly what is shown; the map inside is a PNG whose pixels are its cells."""
    picture = shown()
    svg = views.to_svg(picture)
    image = base64.b64decode(re.search(r'href="data:image/png;base64,([^"]+)"', svg).group(1))  # type: ignore[union-attr]
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", image[16:24])
    assert (width, height) == (7, 7)
    start = image.index(b"IDAT") + 4
    raw = np.frombuffer(zlib.decompress(image[start:]), np.uint8).reshape(7, 1 + 3 * 7)
    assert not raw[:, 0].any()
    pixels = raw[:, 1:].reshape(7, 7, 3)
    assert (pixels[np.triu_indices(7, 1)] == 255).all()  # causal: nothing above the diagonal
    cells = picture.maps[6].cells.astype(float)[:, 1:]  # the sink's column is held out
    best = cells[1:].argmax(axis=1)
    assert (pixels[np.arange(1, 7), best + 1] == [22, 62, 160]).all()
    row = picture.start.row
    for j in row.top(3):
        assert f">{row.weight[j]:.3f}<" in svg


def test_a_png_is_drawn_or_its_absence_said(monkeypatch: pytest.MonkeyPatch) -> None:
    svg = views.to_svg(shown())
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(
        UnsupportedError, match=r"resvg-py, which is not installed; write pip install .*plot.* or write an \.svg"
    ):
        views.to_png(svg)
    monkeypatch.undo()
    pytest.importorskip("resvg_py")
    png = views.to_png(svg, scale=1.0)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", png[16:20])[0] == 1200


def test_a_picture_without_maps_or_sink() -> None:
    picture = shown(maps=False, sink=None)
    assert picture.maps == ()
    assert "no maps" in picture.left_out()
    assert "No map was asked for" in views.to_svg(picture)
    assert data(views.to_html(picture))["sink"] is None


def test_a_rectangle_of_queries_and_an_encoder() -> None:
    """rectangular: the last three queries against all keys; and a layer that reads both sides says so."""
    one = layer().part(rows=np.arange(4, 7))
    both = replace(one, reads=lens.Reads(layer().reads.ranges.__class__(*(np.full((1, 1, 1), x) for x in (0, 7))), 3))
    picture = views.picture(lens.Capture((both,), None, NASTY, {}))
    assert picture.maps[0].cells.shape == (3, 7)
    assert (picture.first, picture.last) == (4, 6)
    assert "keys on both sides" in picture.axes()
    assert "<svg" in views.to_svg(picture)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    views.picture(seen(), progress=lambda done, of: told.append((done, of)))
    assert told == [(4, 8), (8, 8)]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: views.picture(seen(), quantity="size"), ArgumentError, "quantity must be one of weight"),
        (
            lambda: views.picture(lens.Capture((layer(), layer(size=6)), None, None, {})),
            ShapeError,
            r"the captured layers read \[6, 7\] keys",
        ),
        (
            lambda: views.picture(lens.Capture((layer(),), None, ("a",), {})),
            ShapeError,
            "tokens must be one for each of the 7 keys",
        ),
    ],
)
def test_what_makes_no_picture_is_refused(make: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        make()
