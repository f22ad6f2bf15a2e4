"""A layer whose tensors stay where they are says what it says on the host; forced on the CPU by QKV_LENS=torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError

torch = pytest.importorskip("torch")

from qkv import lens  # noqa: E402
from qkv.lens.device import DeviceAttention  # noqa: E402

from .test_capture import NAMES, padded, tiny_models  # noqa: E402
from .test_rows import CLOSE, layer, output  # noqa: E402

pytestmark = pytest.mark.usefixtures("stays")


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_LENS", "torch")


def moved(one: lens.Layer) -> lens.Layer:
    return replace(
        one, query=torch.from_numpy(one.query), key=torch.from_numpy(one.key), value=torch.from_numpy(one.value)
    )


def test_it_is_asked_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = moved(layer())
    assert isinstance(whole.attention(), DeviceAttention)
    assert isinstance(whole.part(head=3).attention(), DeviceAttention)
    monkeypatch.delenv("QKV_LENS")
    assert not isinstance(whole.attention(), DeviceAttention)
    monkeypatch.setenv("QKV_LENS", "jax")
    with pytest.raises(ArgumentError, match="QKV_LENS must be 'torch' or unset, but is 'jax'"):
        whole.attention()


@pytest.mark.parametrize(
    "options", [{}, {"projected": False}, {"shared": False}, {"sink": True}, {"left": 2}, {"size": 1}]
)
@pytest.mark.parametrize("head", [0, 3])
def test_influence_is_what_forbidding_the_key_does(options: dict[str, Any], head: int) -> None:
    host = layer(**options)
    for query in range(len(host.rows)):
        seen = lens.row(moved(host), head, query, sequence=1)
        one = moved(host).part(batch=1, head=head, rows=np.array([query]))
        before = output(one)
        for key in range(host.keys):
            without = replace(one, reads=one.reads.without(key))
            relative = np.linalg.norm(before - output(without)) / np.linalg.norm(before) if seen.allowed[key] else 0.0
            assert abs(seen.influence[key] - relative) <= CLOSE * max(relative, 1)
        assert seen.sole.sum() == (seen.allowed.sum() == 1)


@pytest.mark.parametrize("options", [{}, {"sink": True}, {"left": 2}, {"size": 1}])
def test_rows_and_summaries_are_those_of_the_host(options: dict[str, Any]) -> None:
    host = layer(**options)
    tokens = ["a", "b", "a", "c", "b", "a", "b"][: host.keys]
    for head in range(4):
        for query in range(host.keys):
            mine, theirs = lens.row(moved(host), head, query), lens.row(host, head, query)
            for name, value in vars(theirs).items():
                if isinstance(value, (float, np.ndarray)):
                    np.testing.assert_allclose(getattr(mine, name), value, rtol=1, atol=4 * CLOSE, err_msg=name)
    mine, theirs = lens.summary(moved(host), tokens, cells=3), lens.summary(host, tokens, cells=3)
    for name, value in vars(theirs).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(getattr(mine, name), value, rtol=4 * CLOSE, atol=4 * CLOSE, err_msg=name)
    for name, score in theirs.scores.items():
        np.testing.assert_allclose(mine.scores[name].value, score.value, rtol=4 * CLOSE, atol=4 * CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_models_on_a_device_are_captured_and_asked_there(name: str) -> None:
    """padding, groups, windows, softcap, sinks, encoders and cross attention, in the model's own half type too."""
    models = tiny_models()
    model = models.tiny(name)
    given = padded(name, models.inputs(name))
    host = lens.capture(model, given)
    device = lens.capture(model, given, to="device")
    for one, whole in zip(device.layers, host.layers, strict=True):
        rows = range(len(whole.rows))
        mine, theirs = one.attention().weights(rows), whole.attention().weights(rows)
        # Scores of a few units in float32, of the very same tensors, in two orders of addition.
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(one.pooled(4, 4), whole.pooled(4, 4), rtol=0, atol=1e-6)
        spans = [lens.Span("", 0, 2), lens.Span("", 2, 4)]
        np.testing.assert_allclose(
            lens.between(one, 1, spans, spans), lens.between(whole, 1, spans, spans), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_asked_in_float32(dtype: str) -> None:
    host = layer(size=40)
    half = replace(
        host,
        **{name: torch.from_numpy(getattr(host, name)).to(getattr(torch, dtype)) for name in ("query", "key", "value")},
    )
    whole = half.on_host()
    assert whole.query.dtype == np.float32
    np.testing.assert_allclose(
        half.attention().weights(range(40)), whole.attention().weights(range(40)), rtol=0, atol=1e-6
    )
    mine, theirs = lens.row(half, 2, 30), lens.row(whole, 2, 30)
    np.testing.assert_allclose(mine.influence, theirs.influence, rtol=0, atol=1e-5)
