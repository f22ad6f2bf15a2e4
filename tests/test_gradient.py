"""The gradient of attention, both engines against the definition (contract C2, C4, D1, D2, F2, F4), without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import engines
from qkv.contract import canonical
from qkv.engines import native_backward
from qkv.engines.gradients import Seed
from qkv.floats import FLOATS, narrow
from qkv.gradient import attention_gradient
from qkv.plan import backward_plan
from qkv.reference_gradient import gradient
from support.gradients import assert_close, gradient_bounds

MASKS = {
    "none": lambda rng, B, H, L, S: (None, True),
    "causal": lambda rng, B, H, L, S: (qkv.causal(align="end"), np.arange(S) <= np.arange(L)[:, None] + S - L),
    "window and sinks": lambda rng, B, H, L, S: (
        qkv.window(3, 1, align=0) | qkv.first(2),
        (np.abs(np.arange(S) - np.arange(L)[:, None] + 1) <= 2) | (np.arange(S) < 2),
    ),
    "array": lambda rng, B, H, L, S: (lambda a: (qkv.allow(a), a))(rng.random((B, 1, L, S)) < 0.6),
    "lengths": lambda rng, B, H, L, S: (lambda n: (qkv.keys(n), (np.arange(S) < n[:, None])[:, None, None]))(
        rng.integers(0, S + 1, B)
    ),
    "where": lambda rng, B, H, L, S: (
        qkv.where(lambda n, h, p, j: (p + j + h) % 3 != 0, align=0),
        (np.arange(L)[:, None] + np.arange(S) + np.arange(H)[:, None, None]) % 3 != 0,
    ),
}
BIASES = {
    "none": None,
    "pairs": lambda B, H, L, S: (B, H, L, S),
    "heads": lambda B, H, L, S: (H, 1, S),
    "batches": lambda B, H, L, S: (B, 1, L, S),
    "shared": lambda B, H, L, S: (L, S),
    "keys": lambda B, H, L, S: (B, 1, 1, S),
}


def problem_of(seed: int, mask: str, bias: str, dtype: str = "float32", **fixed: Any) -> dict[str, Any]:
    """A random problem: operands in storage form, options, and the dense mask."""
    rng = np.random.default_rng(seed)

    def pick(*choices: int) -> int:
        return int(rng.choice(choices))

    B, G = pick(1, 2), pick(1, 2)
    H, L, S = G * pick(1, 3), pick(1, 3, 33, 70), pick(1, 5, 64, 150)
    D, E = pick(1, 5, 16, 33), pick(1, 8, 17)
    sizes = {"B": B, "H": H, "L": L, "S": S}
    expression, allowed = MASKS[mask](rng, B, H, L, S)

    def numbers(*shape: int) -> np.ndarray:
        drawn = rng.standard_normal(shape)
        return drawn if dtype == "float64" else narrow(drawn.astype(np.float32), dtype)

    shape = BIASES[bias] and BIASES[bias](**sizes)
    return {
        "operands": (numbers(B, H, L, D), numbers(B, G, S, D), numbers(B, G, S, E)),
        "doutput": numbers(B, H, L, E),
        "mask": expression,
        "allowed": allowed,
        "bias": rng.standard_normal(shape).astype(FLOATS[dtype].compute) if shape else None,
        "softcap": 2.0 if rng.random() < 0.4 else None,
        "sink": rng.standard_normal(H) if rng.random() < 0.5 else None,
        "scale": 0.7 if rng.random() < 0.5 else None,
    }


def found_by(p: dict[str, Any], dlse: Any = None) -> dict[str, Any]:
    options = {name: p[name] for name in ("mask", "bias", "softcap", "sink", "scale")}
    a = qkv.attention(*p["operands"], **options, empty="zero", nonfinite="propagate")
    return attention_gradient(*p["operands"], a.output, a.lse, p["doutput"], dlse=dlse, **options)._asdict()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_f2_gradients_lie_within_their_bounds(engine, mask, bias):
    for seed, dtype in ((0, "float32"), (1, "float64"), (2, "float32")):
        p = problem_of(seed, mask, bias, dtype)
        rows = p["doutput"].shape[:-1]
        dlse = np.random.default_rng(seed).standard_normal(rows).astype(FLOATS[dtype].compute)
        rest = {name: p[name] for name in ("allowed", "bias", "softcap", "sink", "scale")}
        bound = gradient_bounds(*p["operands"], p["doutput"], dtype, dlse=dlse, **rest)
        assert_close(found_by(p, dlse), bound)


@pytest.mark.parametrize("plant", ["delta", "softcap", "scale", "group", "sink"])
def test_a_planted_fault_is_out_of_bounds(plant):
    """Each of the usual slips in a backward pass is many bounds away."""
    p = problem_of(3, "causal", "pairs")
    p.update(softcap=2.0, scale=0.7, sink=np.zeros(p["operands"][0].shape[1]))
    rest = {name: p[name] for name in ("allowed", "bias", "softcap", "sink", "scale")}
    bound = gradient_bounds(*p["operands"], p["doutput"], "float32", **rest)
    wrong = found_by(p)
    assert_close(wrong, bound)
    if plant == "delta":
        without = gradient(*p["operands"], p["doutput"], dlse=np.ones(p["doutput"].shape[:-1]), **rest)
        wrong = {**wrong, "query": without.query}
    elif plant == "softcap":
        wrong = {**wrong, "key": found_by({**p, "softcap": None})["key"]}
    elif plant == "scale":
        wrong = {**wrong, "query": wrong["query"] / 0.7}
    elif plant == "group":
        wrong = {**wrong, "value": wrong["value"] / 2}
    else:
        wrong = {**wrong, "sink": -wrong["sink"]}
    with pytest.raises(AssertionError, match="F2"):
        assert_close(wrong, bound)


@given(seed=st.integers(0, 10**6), mask=st.sampled_from(sorted(MASKS)), bias=st.sampled_from(sorted(BIASES)))
def test_engines_and_plans_agree(native_engine, seed, mask, bias):
    """F4: threads, tiles, blocks and whether keys are cut change no bit of a gradient; NumPy's lies within the bounds."""
    p = problem_of(seed, mask, bias)
    options = {name: p[name] for name in ("mask", "bias", "softcap", "sink", "scale")}
    problem = canonical(*p["operands"], **options, empty="zero")
    a = qkv.attention(*p["operands"], **options, empty="zero")
    shape = (problem.batches, problem.heads, problem.queries)
    handed = Seed(a.output, p["doutput"], np.asarray(a.lse).reshape(shape))
    plan = backward_plan(problem, engines.choose(problem, "native", 1))
    want = problem.bias is not None
    base = native_backward.run(problem, plan, handed, bias=want)
    for change in (
        {"threads": 3},
        {"tile": 5},
        {"block": 16},
        {"spread": True, "split": 40},
        {"spread": True, "threads": 3},
    ):
        other = native_backward.run(problem, replace(plan, **change), handed, bias=want)
        for name in ("query", "key", "value", "delta"):
            assert np.array_equal(getattr(base, name), getattr(other, name)), (name, change)
        # A bias that was broadcast along rows is summed tile by tile, so a tile's size is part of that order.
        if base.bias is not None and "tile" not in change and "block" not in change:
            assert np.array_equal(base.bias, other.bias), change


# Rows without keys, and what may not leak.

EMPTY = np.array([[True, False], [False, False]])


def tiny(**arguments: Any) -> Any:
    """The worked case pytorch#41508: two queries, two keys, values 1 and 3."""
    x, value = np.zeros((1, 2, 2), np.float32), np.array([[[1], [3]]], np.float32)
    a = qkv.attention(x, x, value, empty="zero", **arguments)
    return attention_gradient(x, x, value, a.output, a.lse, np.ones((1, 2, 1), np.float32), **arguments)


def test_c2_a_row_without_keys_gives_no_gradient(engine):
    g = tiny(mask=qkv.allow(EMPTY))
    assert not g.query.any()
    assert not g.key.any()
    assert g.value[0].tolist() == [[1], [0]]


def test_c4_a_row_of_a_sink_alone_gives_no_gradient(engine):
    """Its output is 0 whatever the sink is; row 0 gives its own half."""
    g = tiny(mask=qkv.allow(EMPTY), sink=np.zeros(1))
    assert g.value[0].tolist() == [[0.5], [0]]
    assert g.sink.astype(np.float32).tolist() == [-0.25]
    assert tiny(mask=qkv.keys(0), sink=np.zeros(1)).sink.tolist() == [0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("where", ["key", "value", "doutput", "query"])
def test_d1_what_is_forbidden_reaches_no_gradient(engine, where, dtype):
    """A NaN, an infinity or a huge number behind the mask changes no bit; in a row that is forbidden all, likewise."""
    L, S, H = 40, 70, 4
    rng = np.random.default_rng(5)
    q, do = rng.standard_normal((2, H, L, 8)).astype(dtype), rng.standard_normal((2, H, L, 8)).astype(dtype)
    k, v = rng.standard_normal((2, 2, 2, S, 8)).astype(dtype)
    allowed = rng.random((2, 1, L, S)) < 0.5
    allowed[:, :, :, 33] = False
    allowed[:, :, 7] = False
    array = {"query": q, "key": k, "value": v, "doutput": do}[where]
    row = 33 if where in ("key", "value") else 7

    def run() -> Any:
        a = qkv.attention(q, k, v, mask=qkv.allow(allowed), empty="zero", nonfinite="propagate")
        return attention_gradient(q, k, v, a.output, a.lse, do, mask=qkv.allow(allowed))

    array[:, :, row] = 0
    clean = run()
    for bad in (np.nan, np.inf, -np.inf, np.finfo(dtype).max):
        array[:, :, row] = bad
        for a, b in zip(clean, run(), strict=True):
            assert (a is None and b is None) or (np.isfinite(b).all() and np.array_equal(a, b))


@pytest.mark.parametrize("where", ["key", "value", "doutput", "query"])
def test_d2_a_nan_spoils_the_rows_that_reach_it_and_no_other(engine, where):
    """Their query gradients, and those of every key they may read; as the definition says."""
    rng = np.random.default_rng(6)
    q, do = rng.standard_normal((2, 1, 2, 20, 4)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 1, 30, 4)).astype(np.float32)
    allowed = np.arange(30) <= np.arange(20)[:, None]
    bias = rng.standard_normal((20, 30)).astype(np.float32)
    array = {"query": q, "key": k, "value": v, "doutput": do}[where]
    array[0, 0, 12, 1] = np.nan
    sink = np.zeros(2)
    options = {"mask": qkv.causal(align="start"), "bias": bias, "sink": sink}
    a = qkv.attention(q, k, v, **options, empty="zero", nonfinite="propagate")
    g = attention_gradient(q, k, v, a.output, a.lse, do, **options)
    right = gradient(*(x.astype(np.float64) for x in (q, k, v, do)), allowed=allowed, bias=bias, sink=sink)
    expected = right._replace(bias=right.bias.sum((0, 1)))
    for name in g._fields:
        assert np.array_equal(np.isnan(getattr(g, name)), np.isnan(getattr(expected, name))), name
    assert np.isnan(g.key).any()
    assert np.isfinite(g.key).any()


def test_weights_of_zero_meet_infinite_changes(engine):
    """D1: a weight that underflows to 0 takes no part, even where value and seed multiply to an infinity."""
    q, k = np.array([[[1.0]]], np.float32), np.array([[[0.0], [-1e4]]], np.float32)
    v, do = np.array([[[1.0], [3e38]]], np.float32), np.array([[[100.0]]], np.float32)
    a = qkv.attention(q, k, v, scale=1.0)
    g = attention_gradient(q, k, v, a.output, a.lse, do, scale=1.0)
    assert g.query.tolist() == [[[0.0]]]
    assert g.value.tolist() == [[[100.0], [0.0]]]


def test_layouts_and_strides_give_the_same_gradient(native_engine):
    """A1, A4: length before heads, negative and zero strides."""
    rng = np.random.default_rng(8)
    q, k, v, do = rng.standard_normal((4, 2, 3, 9, 5)).astype(np.float32)

    def run(q: Any, k: Any, v: Any, do: Any, layout: str) -> Any:
        a = qkv.attention(q, k, v, mask=qkv.causal(), layout=layout)
        return attention_gradient(q, k, v, a.output, a.lse, do, mask=qkv.causal(), layout=layout)

    base = run(q, k, v, do, "bhld")
    turned = run(*(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v, do)), "blhd")
    odd = run(*(np.ascontiguousarray(x[..., ::-1])[..., ::-1] for x in (q, k, v, do)), "bhld")
    for name in ("query", "key", "value"):
        assert np.array_equal(getattr(base, name), getattr(turned, name).swapaxes(1, 2))
        assert np.array_equal(getattr(base, name), getattr(odd, name))
    same = np.broadcast_to(do[:1, :1, :1, :1], do.shape)
    assert np.array_equal(run(q, k, v, same, "bhld").query, run(q, k, v, same.copy(), "bhld").query)


def test_the_plan_cuts_keys_only_where_groups_are_few(native_engine):
    x = np.zeros((1, 3, 300, 8), np.float32)
    problem = canonical(x, x, x)
    plans = [backward_plan(problem, engines.choose(problem, "native", threads)) for threads in (1, 2, 3)]
    assert [plan.spread for plan in plans] == [False, True, False]
    assert backward_plan(problem, engines.choose(problem, "numpy")).engine == "numpy"


@pytest.mark.parametrize(("B", "L", "S"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_a3_sizes_of_none_have_a_gradient(engine, B, L, S):
    """The definition says so too."""
    x, k = np.ones((B, 2, L, 4), np.float32), np.ones((B, 1, S, 4), np.float32)
    options = {"sink": np.zeros(2)}
    a = qkv.attention(x, k, k, empty="zero", **options)
    found = attention_gradient(x, k, k, a.output, a.lse, x, **options)
    right = gradient(x, k, k, x, **options)
    for name in ("query", "key", "value", "sink"):
        assert np.array_equal(getattr(found, name), getattr(right, name)), name
