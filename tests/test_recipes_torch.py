"""Tensors of torch on the short way: bits and words of the long way, and whatever means more takes that (A4, G1)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import qkv
from qkv import attend, attention, causal, recipes
from support.arrays import DTYPES
from support.libraries import library
from support.twice import agree, long_way, outcome

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("native_engine")]


@pytest.fixture(autouse=True)
def _nothing_remembered():
    recipes.forget()
    yield
    recipes.forget()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ask", [attend, attention])
@pytest.mark.parametrize("arguments", [{}, {"mask": causal()}, {"layout": "blhd"}], ids=["plain", "causal", "blhd"])
def test_a4_tensors_take_the_short_way_too(dtype, ask, arguments):
    torch = library("torch")
    q, k, v = (
        torch.randn(2, 5, 4, 8, generator=torch.Generator().manual_seed(s)).to(getattr(torch, dtype)) for s in range(3)
    )
    for call in (
        lambda: ask(q, k, v, **arguments),
        lambda: ask(
            q.flip(-1), k.transpose(-1, -2).contiguous().transpose(-1, -2), v[:, :1].expand(2, 5, 4, 8), **arguments
        ),
        lambda: ask(q[0, 0], k[0, 0], v[0, 0]),
        lambda: ask(q.requires_grad_(False), k, v, **arguments),
    ):
        agree(call)
    assert len(recipes._recipes) == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ask", [attend, attention])
def test_a4_tensors_beside_tensors_too(dtype, ask):
    torch = library("torch")
    kind = getattr(torch, dtype)
    x = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)).to(kind)
    bias, sink = torch.randn(3, 1, 4).to(kind), torch.tensor([0.0, 1.0, -2.0])
    for arguments in (
        {"bias": bias},
        {"bias": bias.float().flip(-1), "sink": sink.to(torch.bfloat16)},
        {"sink": torch.nn.Parameter(sink, requires_grad=False), "mask": causal()},
        {"mask": torch.ones(4, 4, dtype=torch.bool).tril()},
        {"mask": np.tri(4, dtype=bool), "bias": np.zeros((4, 4), np.float32), "sink": np.zeros(3)},
    ):
        before = len(recipes._recipes)
        agree(lambda a=arguments: ask(x, x, x, **a))
        assert len(recipes._recipes) == before + 1


def test_g1_tensors_that_mean_more_take_the_long_way():
    torch = library("torch")
    plain = torch.randn(1, 4, 4)
    attend(plain, plain, plain)
    assert len(recipes._recipes) == 1
    graded = plain.clone().requires_grad_()
    negative = torch._neg_view(plain)
    odd = {
        "gradient": lambda: attend(graded, plain, plain),
        "gradient of a value": lambda: attend(plain, plain, graded),
        "no gradient": torch.no_grad()(lambda: attend(graded, plain, plain)),
        "negated": lambda: attend(negative, plain, plain),
        "negated values": lambda: attend(plain, plain, negative),
        "sparse": lambda: attend(plain.to_sparse(), plain, plain),
        "without memory": lambda: attend(plain.to("meta"), plain, plain),
        "zeros nobody stored": lambda: attend(torch._efficientzerotensor((1, 4, 4)), plain, plain),
        "subclass": lambda: attend(plain.as_subclass(type("Other", (torch.Tensor,), {})), plain, plain),
        "parameter": lambda: attend(torch.nn.Parameter(plain, requires_grad=False), plain, plain),
        "NumPy beside it": lambda: attend(plain, plain.numpy(), plain),
        "mixed": lambda: attend(plain, plain, plain.double()),
        "NaN": lambda: attend(plain * float("nan"), plain, plain),
        "gradient of a bias": lambda: attend(plain, plain, plain, bias=graded),
        "gradient of a sink": lambda: attend(plain, plain, plain, sink=torch.zeros(1).requires_grad_()),
        "negated bias": lambda: attend(plain, plain, plain, bias=negative),
        "a sink of integers": lambda: attend(plain, plain, plain, sink=torch.ones(1, dtype=torch.int16)),
    }
    for name, call in odd.items():
        wanted = long_way(call)
        for _ in range(2):
            assert outcome(call) == wanted, name
    assert long_way(odd["negated"])[-1] != long_way(lambda: attend(plain, plain, plain))[-1]


def test_g1_forward_differentiation_takes_the_long_way():
    torch = library("torch")
    plain = torch.randn(1, 4, 4)
    attend(plain, plain, plain)
    with warnings.catch_warnings(), torch.autograd.forward_ad.dual_level():
        warnings.simplefilter("ignore")  # torch's own, when it first loads what makes dual numbers
        dual = torch.autograd.forward_ad.make_dual(plain, torch.ones_like(plain))
        with pytest.raises(qkv.UnsupportedError, match="tangent"):
            attend(dual, plain, plain)
        with pytest.raises(qkv.UnsupportedError, match="tangent"):
            attend(plain, plain, dual)


def test_g1_transforms_of_functions_take_the_long_way():
    torch = library("torch")
    plain = torch.randn(3, 4, 4)
    attend(plain[:1], plain[:1], plain[:1])
    attend(plain, plain, plain)
    for transform in (torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        for shape in (plain, plain[:, None]):
            with pytest.raises(qkv.UnsupportedError):
                transform(lambda x: attend(x, x, x))(shape)
