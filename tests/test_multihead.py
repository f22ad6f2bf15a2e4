"""MultiHead equals the definition: projections, grouped heads, biases, causal and cross attention (A2, B6, F2)."""

from __future__ import annotations

import numpy as np
import pytest

from qkv import EmptyRowError, MultiHead, UnsupportedError, attend, bounds, causal, keys, window
from qkv.files import write_tensors
from support.arrays import same_bits
from support.libraries import library
from support.tiny import counting, zeros

pytestmark = pytest.mark.usefixtures("engine")

M, C, H, G, D, E = 12, 10, 6, 2, 4, 3  # hidden widths, heads, head widths


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers, so that projections are exact."""
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float32)


def weights(context: int = M) -> dict[str, np.ndarray]:
    return {
        "w_q": whole(M, H * D, seed=1),
        "w_k": whole(context, G * D, seed=2),
        "w_v": whole(context, G * E, seed=3),
        "w_o": whole(H * E, M + 1, seed=4),
    }


def biases() -> dict[str, np.ndarray]:
    return {
        "b_q": whole(H * D, seed=5),
        "b_k": whole(G * D, seed=6),
        "b_v": whole(G * E, seed=7),
        "b_o": whole(M + 1, seed=8),
    }


def split(x: np.ndarray, heads: int) -> np.ndarray:
    return np.moveaxis(x.reshape(*x.shape[:-1], heads, -1), -2, -3)


def check(layer_weights, layer_biases, x, context=None, *, allowed=True, scale=None, **arguments) -> None:
    """The layer against the definition in float64, within the bound carried through the last projection."""
    layer = MultiHead(**layer_weights, **layer_biases, heads=H, key_heads=G, scale=scale, **arguments)
    source = x if context is None else context
    b = {name: layer_biases.get(name, 0) for name in ("b_q", "b_k", "b_v", "b_o")}
    q = split(x @ layer_weights["w_q"] + b["b_q"], H)
    k = split(source @ layer_weights["w_k"] + b["b_k"], G)
    v = split(source @ layer_weights["w_v"] + b["b_v"], G)
    for mine, right in zip(layer.project(x, context), (q, k, v), strict=True):
        assert same_bits(np.ascontiguousarray(mine), np.ascontiguousarray(right).astype(np.float32))
    limit = bounds.bound(*(a.astype(np.float32) for a in (q, k, v)), "float32", allowed=allowed, scale=scale)

    def join(heads: np.ndarray) -> np.ndarray:
        return np.moveaxis(heads, -3, -2).reshape(*heads.shape[:-3], heads.shape[-2], -1)

    w_o = layer_weights["w_o"].astype(np.float64)
    expected = join(limit.answer.output) @ w_o + b["b_o"]
    # A sum of H·E products and the bias: that many roundings of the terms, in any order.
    terms = join(abs(limit.answer.output) + limit.output) @ abs(w_o) + abs(b["b_o"])
    count = (H * E + 1) * np.finfo(np.float32).eps / 2
    error = join(limit.output) @ abs(w_o) + count / (1 - count) * terms
    out = layer(x, context)
    assert out.dtype == np.float32
    assert out.shape == (*x.shape[:-1], M + 1)
    assert (abs(out - expected) <= error).all()


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("with_biases", [False, True])
def test_self_attention(batch, with_biases):
    check(weights(), biases() if with_biases else {}, whole(*batch, 5, M, seed=9))


@pytest.mark.parametrize("with_biases", [False, True])
def test_causal(with_biases):
    check(
        weights(), biases() if with_biases else {}, whole(3, 7, M, seed=9), allowed=np.tri(7, dtype=bool), causal=True
    )


@pytest.mark.parametrize("S", [1, 4, 9])
def test_cross_attention(S):
    check(weights(C), biases(), whole(3, 5, M, seed=9), whole(3, S, C, seed=10))


def test_scale():
    check(weights(), {}, whole(5, M, seed=9), scale=0.125)


def test_heads_stand_side_by_side_and_neighbours_share():
    """A2: query head h reads key head h // (H // G); heads are joined in order."""
    values = np.arange(2, dtype=np.float32)  # key head g gives the value g
    layer = MultiHead(zeros(2, 6), zeros(2, 2), np.diag(values), np.eye(6, dtype=np.float32), heads=6, key_heads=2)
    assert layer(np.ones((1, 2), np.float32)).tolist() == [[0, 0, 0, 1, 1, 1]]


def test_the_layer_is_the_front_door_between_two_products():
    layer = MultiHead(**weights(), **biases(), heads=H, key_heads=G)
    x = whole(2, 5, M, seed=9)
    q, k, v = layer.project(x)
    joined = np.moveaxis(attend(q, k, v, mask=window(1, 1)), -3, -2).reshape(2, 5, H * E)
    assert same_bits(layer(x, mask=window(1, 1)), joined @ layer.w_o + layer.b_o)


def test_a_mask_narrows_what_causal_allows():
    one = np.ones((1, 1), np.float32)
    x = counting(4)  # hidden states 1 … 4, scores all 0: each output is the mean of what is read
    causal_layer = MultiHead(zeros(1, 1), zeros(1, 1), one, one, heads=1, causal=True)
    plain = MultiHead(zeros(1, 1), zeros(1, 1), one, one, heads=1)
    assert causal_layer(x).ravel().tolist() == [1, 1.5, 2, 2.5]
    assert causal_layer(x, mask=window(1, None)).ravel().tolist() == [1, 1.5, 2.5, 3.5]
    assert causal_layer(x, mask=keys(2)).ravel().tolist() == [1, 1.5, 1.5, 1.5]
    assert causal_layer(x, mask=np.eye(4, dtype=bool)).ravel().tolist() == [1, 2, 3, 4]
    assert plain(x).ravel().tolist() == [2.5] * 4
    assert plain(x, mask=causal()).ravel().tolist() == [1, 1.5, 2, 2.5]
    with pytest.raises(EmptyRowError):
        plain(x, mask=keys(0))
    assert plain(x, mask=keys(0), empty="zero").ravel().tolist() == [0] * 4
    with pytest.raises(UnsupportedError):
        plain(x, is_causal=True)


def test_a_causal_layer_over_a_longer_context_must_be_told():
    from qkv import AlignmentError

    one = np.ones((1, 1), np.float32)
    layer = MultiHead(zeros(1, 1), zeros(1, 1), one, one, heads=1, causal=True)
    with pytest.raises(AlignmentError):
        layer(counting(2), counting(4))
    assert layer(counting(2), counting(4), mask=window(None, None, align="end")).ravel().tolist() == [2, 2.5]


# From a model's own tensors, (out, in).

FAMILIES = [
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("query", "key", "value", "dense"),
    ("wq", "wk", "wv", "wo"),
    ("w_q", "w_k", "w_v", "w_o"),
]


def state_dict(names, prefix="", with_biases=True) -> dict[str, np.ndarray]:
    out = {f"{prefix}{name}.weight": w.T.copy() for name, w in zip(names, weights().values(), strict=True)}
    if with_biases:
        out |= {f"{prefix}{name}.bias": b for name, b in zip(names, biases().values(), strict=True)}
    return out


@pytest.mark.parametrize("names", FAMILIES, ids="-".join)
@pytest.mark.parametrize("with_biases", [False, True])
def test_from_tensors(names, with_biases):
    x = whole(2, 5, M, seed=9)
    expected = MultiHead(**weights(), **(biases() if with_biases else {}), heads=H, key_heads=G, causal=True)
    tensors = {**state_dict(names, "layers.3.attn.", with_biases), "layers.3.mlp.weight": zeros(2, 2)}
    layer = MultiHead.from_tensors(tensors, heads=H, key_heads=G, prefix="layers.3.attn.", causal=True)
    assert same_bits(layer(x), expected(x))


def test_from_tensors_without_a_suffix():
    tensors = {name: w.T.copy() for name, w in zip(FAMILIES[4], weights().values(), strict=True)}
    layer = MultiHead.from_tensors(tensors, heads=H, key_heads=G)
    x = whole(5, M, seed=9)
    assert same_bits(layer(x), MultiHead(**weights(), heads=H, key_heads=G)(x))


def test_from_tensors_of_torch():
    """A state dict as `torch.nn.Linear` writes it."""
    torch = library("torch")
    x = whole(5, M, seed=9)
    tensors = {name: torch.from_numpy(a) for name, a in state_dict(FAMILIES[0]).items()}
    layer = MultiHead.from_tensors(tensors, heads=H, key_heads=G)
    assert same_bits(layer(x), MultiHead(**weights(), **biases(), heads=H, key_heads=G)(x))
    linear = torch.nn.Linear(M, H * D)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weights()["w_q"].T.copy()))
        linear.bias.copy_(torch.from_numpy(biases()["b_q"]))
        assert same_bits(split(linear(torch.from_numpy(x)).numpy(), H), np.ascontiguousarray(layer.project(x)[0]))


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_from_file(tmp_path, ending, dtype):
    """Halves become float32, exactly: small whole numbers are the same in all of them."""
    if ending == "npz" and dtype == "bfloat16":
        pytest.skip("the format cannot say bfloat16")
    from support.arrays import numpy_dtype

    path = tmp_path / f"layer.{ending}"
    write_tensors(path, {name: a.astype(numpy_dtype(dtype)) for name, a in state_dict(FAMILIES[0], "attn.").items()})
    layer = MultiHead.from_file(path, heads=H, key_heads=G, prefix="attn.", causal=True)
    x = whole(2, 5, M, seed=9)
    assert same_bits(layer(x), MultiHead(**weights(), **biases(), heads=H, key_heads=G, causal=True)(x))


def test_double_stays_double():
    layer = MultiHead(**{name: w.astype(np.float64) for name, w in weights().items()}, heads=H, key_heads=G)
    assert layer(whole(5, M).astype(np.float64)).dtype == np.float64
