"""Contract G: every argument is honoured or refused, and every error tells the way out. More: test_messages.py."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import UnsupportedError, alibi, attend, attention, causal, explain, first, partial, recipes, window
from qkv.contract import canonical
from qkv.diagnose import raise_faults
from support.tiny import counting, zeros

pytestmark = pytest.mark.usefixtures("engine")

CALLS = {"attend": attend, "attention": attention, "explain": explain, "partial": partial}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "value", "write"),
    [
        ("attn_mask", np.ones((2, 2), bool), ["mask=", "bias=", "True = may read"]),
        ("is_causal", True, ["mask=causal()", "align='start'"]),
        ("dropout_p", 0.0, ["nothing", "exact"]),
        ("enable_gqa", True, ["nothing", "grouped"]),
        ("softmax_scale", 1.0, ["scale="]),
        ("sm_scale", 1.0, ["scale="]),
        ("window_size", (2, 2), ["window(left, right)", "besides"]),
        ("alibi_slopes", [1.0], ["bias=alibi(slopes)"]),
        ("key_padding_mask", np.ones((1, 2), bool), ["keys(~key_padding_mask)"]),
        ("attention_mask", np.ones((1, 2), bool), ["keys("]),
        ("need_weights", True, ["weights(queries="]),
        ("return_lse", True, ["attention(…).lse"]),
        ("logits_soft_cap", 5.0, ["softcap="]),
    ],
)
def test_g1_other_spellings_are_refused_with_ours(call, name, value, write):
    x = zeros(2, 2)
    with pytest.raises(UnsupportedError) as caught:
        CALLS[call](x, x, x, **{name: value})
    assert str(caught.value).startswith(f"{name} is not an argument here; write ")
    for word in write:
        assert word in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", [None, False, 0, 1])
def test_g1_no_argument_is_accepted_and_ignored(call, value):
    """Not even one whose value would mean nothing."""
    x = zeros(2, 2)
    for name in ("is_causal", "droput", "maks", "causal_mask", "training"):
        with pytest.raises(UnsupportedError, match=f"^{name} is not an argument here"):
            CALLS[call](x, x, x, **{name: value})


def test_g1_a_stray_positional_argument_is_refused():
    x = zeros(2, 2)
    for call in CALLS.values():
        with pytest.raises(TypeError):
            call(x, x, x, np.ones((2, 2), bool))


@pytest.mark.parametrize(
    "arguments",
    [
        {"mask": np.array([[True, False], [True, True]])},
        {"mask": causal()},
        {"bias": np.array([[0, 3], [0, 0]], np.float32)},
        {"bias": alibi([1.0])},
        {"scale": -1.0},
        {"softcap": 0.1},
        {"sink": [0.0]},
    ],
    ids=lambda a: next(iter(a)),
)
def test_g1_every_argument_changes_the_answer(arguments):
    q, k, v = np.array([[1], [2]], np.float32), np.array([[1], [2]], np.float32), counting(2)
    assert not np.array_equal(attend(q, k, v, **arguments), attend(q, k, v))
    assert not np.array_equal(partial_or_sink(q, k, v, arguments), attend(q, k, v))


def partial_or_sink(q, k, v, arguments):
    sink = {name: arguments[name] for name in arguments if name == "sink"}
    rest = {name: arguments[name] for name in arguments if name != "sink"}
    return partial(q, k, v, **rest).finish(**sink).output


def test_g1_the_two_answers_take_the_same_arguments():
    """`attention` and `explain` pass theirs on, so what `attend` is written with is what they accept."""
    named = {
        p.name: p.default
        for p in inspect.signature(attend).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert list(named) == ["mask", "bias", "scale", "softcap", "sink", "empty", "nonfinite", "layout"]
    x = zeros(1, 2)
    for call in (attention, explain):
        call(x, x, x, **named)


def test_g1_explain_says_which_engine_and_plan(engine):
    q, k = zeros(2, 4, 300, 16), zeros(2, 2, 700, 16)
    said = explain(q, k, k, mask=causal(align="end") & window(63, 0))
    assert said.engine == engine
    assert (said.batch, said.heads, said.key_heads, said.queries, said.keys) == ((2,), 4, 2, 300, 700)
    assert (said.width, said.value_width, said.dtype) == (16, 16, "float32")
    assert said.pairs == 64 * 300 / (300 * 700)
    assert 0 < said.tiles_touched < said.tiles
    assert said.tile >= 1
    assert said.block >= 1
    assert said.split >= said.block
    assert said.threads >= 1
    assert said.scratch > 0
    assert said.level == ("" if engine == "numpy" else qkv.engines.native.level())
    assert engine in str(said)
    assert set(said.to_dict()) == set(said.__dataclass_fields__)


def test_g1_explain_computes_nothing_and_refuses_what_attend_refuses():
    bad = np.full((2, 2), np.nan, np.float32)
    assert explain(bad, bad, bad).pairs == 1  # it does not look at the numbers
    with pytest.raises(qkv.AlignmentError):
        explain(zeros(1, 2), zeros(2, 2), zeros(2, 2), mask=causal())
    with pytest.raises(qkv.ShapeError):
        explain(zeros(1, 2), zeros(2, 3), zeros(2, 2))


@pytest.mark.parametrize("asked", ["gpu", "Native", "torch"])
def test_g1_an_engine_that_does_not_exist_is_an_error(asked, monkeypatch):
    monkeypatch.setenv("QKV_ENGINE", asked)
    with pytest.raises(qkv.ArgumentError, match=f"QKV_ENGINE must be 'native' or 'numpy', but is '{asked}'"):
        attend(zeros(1, 1), zeros(1, 1), zeros(1, 1))


def test_g1_a_missing_engine_is_an_error_not_another_engine(monkeypatch):
    recipes.forget()  # what was remembered was remembered with it
    from qkv.engines import native

    monkeypatch.setenv("QKV_ENGINE", "native")
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "why_not", lambda: "it was not built")
    with pytest.raises(qkv.EngineError, match="the native engine was asked for, but is not there: it was not built"):
        attend(zeros(1, 1), zeros(1, 1), zeros(1, 1))


def test_g1_a_cache_and_length_first_are_refused_together():
    cache = qkv.Cache().append(zeros(1, 1, 2, 2), zeros(1, 1, 2, 2))
    with pytest.raises(UnsupportedError, match="layout='blhd' is refused with a cache"):
        attend(zeros(1, 1, 1, 2), cache, layout="blhd")


# G2: errors.

TREE = {
    "ShapeError": ValueError,
    "DTypeError": TypeError,
    "ArgumentError": ValueError,
    "MaskError": TypeError,
    "AlignmentError": ValueError,
    "EmptyRowError": ValueError,
    "NonFiniteError": ValueError,
    "ScoreOverflowError": ArithmeticError,
    "UnsupportedError": TypeError,
    "EngineError": RuntimeError,
    "FileError": ValueError,
}


def test_g2_every_error_is_also_the_built_in_one():
    for name, built_in in TREE.items():
        error = getattr(qkv, name)
        assert issubclass(error, qkv.QkvError)
        assert issubclass(error, built_in)
    assert set(qkv.errors.__all__) == {"QkvError", *TREE}


def test_g2_the_table_of_the_contract_is_the_tree():
    text = (Path(__file__).parent.parent / "docs" / "contract.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", text, flags=re.MULTILINE))
    assert table.pop("QkvError") == "Exception"
    assert table == {name: built_in.__name__ for name, built_in in TREE.items()}


def test_g2_an_error_carries_what_it_says():
    assert qkv.EmptyRowError("text", (0, 1), 3).index == (0, 1)
    assert qkv.EmptyRowError("text", (0, 1), 3).count == 3
    assert qkv.NonFiniteError("text", "key", (0,)).argument == "key"
    assert qkv.ScoreOverflowError("text", (0, 1)).index == (0, 1)


def test_g2_an_error_shows_the_callers_line_last():
    """The door raises; nothing of the inside stands behind it as a cause."""
    with pytest.raises(qkv.DTypeError) as caught:
        attend([[1.0]], [[1.0]], [[1.0]])
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_g2_nothing_is_raised_where_nothing_is_wrong():
    problem = canonical(zeros(1, 1), zeros(1, 1), zeros(1, 1))
    raise_faults(problem, np.ones((1, 1, 1), np.uint8), None)
    assert first(1).reads_future() is False
