"""`qkv.torch`: gradients, the operator in torch's compiler and exporter, defaults, refusals, the layer (contract B–G)."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import DTypeError, EmptyRowError, NonFiniteError, ShapeError, UnsupportedError
from qkv.algebra import Mask
from qkv.floats import narrow
from support.gradients import assert_close, gradient_bounds
from support.libraries import library

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    """torch with one thread: the problems are tiny, and threads that wait by spinning cost far more than they give."""
    module = library("torch")
    before = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seeded(torch: Any) -> None:
    torch.manual_seed(0)


def operands(
    torch: Any, B: int = 2, H: int = 4, G: int = 2, L: int = 5, S: int = 5, D: int = 3, E: int = 2, dtype: Any = None
) -> Any:
    """Query, key and value that want gradients, float64 unless told otherwise."""
    make = lambda *shape: torch.randn(*shape, dtype=dtype or torch.float64, requires_grad=True)  # noqa: E731
    return make(B, H, L, D), make(B, G, S, D), make(B, G, S, E)


MASKS = {
    "none": lambda torch: None,
    "causal": lambda torch: qkv.causal(align="end"),
    "window": lambda torch: qkv.window(2, 0, align="end") | qkv.first(1),
    "lengths": lambda torch: qkv.keys(np.array([0, 3])),
    "packed": lambda torch: qkv.segments(np.array([0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 3])) & qkv.causal(),
    "tensor": lambda torch: torch.rand(2, 1, 5, 5) < 0.6,
    "array": lambda torch: np.random.default_rng(0).random((5, 5)) < 0.5,
    "where": lambda torch: qkv.where(lambda n, h, p, j: (p + j + h) % 3 != 1),
}


# Gradients.


@pytest.mark.parametrize("mask", MASKS)
def test_gradcheck(torch, engine, mask):
    """B, C: every mask, empty rows among them, with groups, a bias, a sink and a softcap, in float64 against differences."""
    q, k, v = operands(torch, H=2, G=1, D=1, E=1)
    bias = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    allowed = MASKS[mask](torch)

    def full(q: Any, k: Any, v: Any, bias: Any, sink: Any) -> Any:
        return qkv.torch.attend(q, k, v, mask=allowed, bias=bias, sink=sink, softcap=1.5)

    assert torch.autograd.gradcheck(full, (q, k, v, bias, sink))


def test_gradcheck_of_alibi_layouts_and_few_axes(torch, engine):
    q, k, v = operands(torch, B=1, H=2, G=1, D=2)
    bias = qkv.alibi([0.5, 0.0])
    assert torch.autograd.gradcheck(lambda *a: qkv.torch.attend(*a, bias=bias, mask=qkv.causal(), scale=0.7), (q, k, v))
    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *a: qkv.torch.attend(*a, mask=qkv.causal(), layout="blhd"), turned)
    single = [x.detach()[0, 0].clone().requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *a: qkv.torch.attend(*a, mask=qkv.causal()), single)


def test_a_planted_fault_fails_the_gradcheck(torch, engine, monkeypatch):
    from torch.autograd.gradcheck import GradcheckError

    from qkv.torch import operator

    right = operator.attention_gradient
    monkeypatch.setattr(
        operator, "attention_gradient", lambda *a, **o: right(*a, **o)._replace(query=right(*a, **o).query * 1.01)
    )
    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(lambda *a: qkv.torch.attend(*a), operands(torch, B=1, H=1, G=1, L=2, S=3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_f1_f2_gradients_of_each_type_lie_within_their_bounds(torch, engine, dtype):
    """Rounded to the operand's own type, against the definition's gradient in float64."""
    rng = np.random.default_rng(1)
    numbers = lambda *shape: narrow(rng.standard_normal(shape).astype(np.float32), dtype)  # noqa: E731
    q, k, v, do = numbers(2, 4, 40, 16), numbers(2, 2, 70, 16), numbers(2, 2, 70, 8), numbers(2, 4, 40, 8)
    bias, allowed = rng.standard_normal((4, 40, 70)).astype(np.float32), rng.random((2, 1, 40, 70)) < 0.5

    def tensor(x: Any) -> Any:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(x)

    given = [tensor(x).requires_grad_() for x in (q, k, v)]
    shift = torch.from_numpy(bias).requires_grad_()
    sink = torch.zeros(4, requires_grad=True)
    out = qkv.torch.attend(*given, mask=torch.from_numpy(allowed), bias=shift, sink=sink, softcap=3.0)
    out.backward(tensor(do))
    found = {name: x.grad.double().numpy() for name, x in zip(("query", "key", "value"), given, strict=True)}
    assert all(x.grad.dtype is x.dtype for x in given)
    bound = gradient_bounds(q, k, v, do, dtype, allowed=allowed, bias=bias, softcap=3.0, sink=np.zeros(4))
    exact, most = bound.pop("sink")
    half = np.finfo(np.float32).eps / 2
    bound["sink"] = exact, most + half * (abs(exact) + most)
    assert_close(found | {"bias": shift.grad.numpy(), "sink": sink.grad.numpy()}, bound)


def test_the_definition_agrees_with_torchs_autograd(torch):
    """The definition's gradient is what torch makes of the definition's formula, both in float64 (F2)."""
    q, k, v = operands(torch, L=6, S=7)
    bias, sink = (
        torch.randn(4, 6, 7, dtype=torch.float64, requires_grad=True),
        torch.randn(4, dtype=torch.float64, requires_grad=True),
    )
    allowed = torch.rand(2, 1, 6, 7) < 0.7
    allowed[..., 0] = True
    wide_k, wide_v = (x.repeat_interleave(2, 1) for x in (k, v))
    score = 2 * torch.tanh(q @ wide_k.mT / 3**0.5 / 2) + bias
    score = score.masked_fill(~allowed, -torch.inf)
    logits = torch.cat([score, sink[:, None, None].expand(2, 4, 6, 1)], -1)
    out = logits.softmax(-1)[..., :-1] @ wide_v
    do = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v, bias, sink), do)
    names = ("query", "key", "value", "bias", "sink")
    plain = [x.detach().numpy() for x in (q, k, v, do)]
    rest = {"bias": bias.detach().numpy(), "sink": sink.detach().numpy(), "softcap": 2.0}
    bound = gradient_bounds(*plain, "float64", allowed=allowed.numpy(), **rest)
    assert_close({name: g.numpy() for name, g in zip(names, found, strict=True)}, bound)


def test_gradients_too_large_for_half_precision_are_infinite(torch, engine):
    """Loss scaling has to see that the scale is too large; an output is never infinite (D3), a gradient may be."""
    x = torch.zeros(1, 1, 2, dtype=torch.float16)
    v = torch.ones(1, 4, 2, dtype=torch.float16, requires_grad=True)
    q = torch.zeros(1, 8, 2, dtype=torch.float16)
    out = qkv.torch.attend(q, x.expand(1, 4, 2), v)
    out.backward(torch.full_like(out, 60000.0))
    assert torch.isinf(v.grad).all()


def test_gradients_are_the_same_bits_twice(torch, native_engine):
    """F4, whatever the number of threads."""
    q, k, v = operands(torch, L=64, S=64, dtype=torch.float32)

    def run() -> Any:
        return torch.autograd.grad(qkv.torch.attend(q, k, v, mask=qkv.causal()).square().sum(), (q, k, v))

    with qkv.threads(1):
        one = run()
    with qkv.threads(3):
        three = run()
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_a_second_derivative_is_refused(torch):
    q, k, v = operands(torch)
    (g,) = torch.autograd.grad(qkv.torch.attend(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match=r"must not be differentiated again.*SDPBackend\.MATH"):
        g.sum().backward()


def test_only_the_gradients_that_are_wanted(torch):
    q, k, v = operands(torch)
    bias = torch.zeros(5, 5, dtype=torch.float64)
    qkv.torch.attend(q.detach(), k, v.detach(), bias=bias, sink=torch.zeros(4)).sum().backward()
    assert k.grad is not None
    assert q.grad is v.grad is bias.grad is None


def test_a_rule_in_python_lives_as_long_as_its_gradient(torch):
    q, k, v = operands(torch)
    out = qkv.torch.attend(q, k, v, mask=qkv.where(lambda n, h, p, j: p >= j))
    gc.collect()
    out.sum().backward()
    causal = torch.autograd.grad(qkv.torch.attend(q, k, v, mask=qkv.causal()).sum(), v)[0]
    assert torch.equal(v.grad, causal)


# The operator in torch's machinery.


def calls(torch: Any) -> list[tuple[Any, ...]]:
    q, k, v = operands(torch)
    bias, sink = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 5, 5), (4,)))
    from qkv.torch.rules import spell

    arrays: list[Any] = []
    text = spell(qkv.keys(np.array([2, 5])) & qkv.causal(), arrays)
    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    return [
        (q, k, v, text, "None", arrays, bias, sink, None, 2.0, "", "", "bhld"),
        (*turned, "('Causal', None)", "None", [], None, None, 0.5, None, "zero", "raise", "blhd"),
        (*(x.detach().float() for x in (q, k, v)), "None", "None", [], None, None, None, None, "", "", "bhld"),
    ]


@pytest.mark.parametrize("which", range(3))
def test_opcheck(torch, which):
    from qkv.torch.operator import attend_op

    done = torch.library.opcheck(attend_op, calls(torch)[which])
    assert set(done.values()) == {"SUCCESS"}


def compiled(torch: Any, function: Any, backend: str = "aot_eager") -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "where"])
def test_compiles_whole(torch, mask):
    """In one graph, with the mask, a bias and a sink handed in; output and gradients are those of the plain call."""
    q, k, v = operands(torch)
    bias, sink = torch.randn(4, 5, 5, dtype=torch.float64, requires_grad=True), torch.zeros(4, dtype=torch.float64)

    def f(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        return qkv.torch.attend(q * 2, k, v, mask=mask, bias=bias, sink=sink, softcap=2.0)

    allowed = MASKS[mask](torch)
    plain, graph = f(q, k, v, allowed, bias), compiled(torch, f)(q, k, v, allowed, bias)
    assert torch.equal(plain, graph)
    wanted = (q, k, v, bias)
    seed = torch.randn_like(plain)
    for a, b in zip(torch.autograd.grad(plain, wanted, seed), torch.autograd.grad(graph, wanted, seed), strict=True):
        assert torch.equal(a, b)


def test_compiles_masks_written_inside(torch):
    q, k, v = operands(torch)

    def f(q: Any) -> Any:
        return qkv.torch.attend(q, k, v, mask=qkv.causal() & (qkv.window(2, 0) | qkv.first(1)))

    assert torch.equal(compiled(torch, f)(q), f(q))


def test_a_graph_serves_masks_with_other_numbers(torch):
    """Lengths are tensors of the graph: new ones do not compile anew."""
    from torch._dynamo.testing import CompileCounter

    q, k, v = operands(torch)
    counter = CompileCounter()

    def f(mask: Any) -> Any:
        return qkv.torch.attend(q, k, v, mask=mask & qkv.causal())

    graph = compiled(torch, f, counter)
    for lengths in ([5, 3], [1, 2], [0, 5]):
        mask = qkv.keys(np.array(lengths))
        assert torch.equal(graph(mask), f(mask))
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_compiles_to_machine_code(torch):
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler is here, which torch's compiler needs")
    q, k, v = operands(torch, dtype=torch.float32)

    def f(q: Any) -> Any:
        return (qkv.torch.attend(q, k, v, mask=qkv.causal()) + 1).relu()

    graph = compiled(torch, f, "inductor")(q)
    assert torch.equal(graph, f(q))
    assert torch.equal(torch.autograd.grad(graph.sum(), q)[0], torch.autograd.grad(f(q).sum(), q)[0])


@pytest.mark.parametrize(
    "make",
    [lambda torch: qkv.where(lambda n, h, p, j: p >= j), lambda torch: qkv.keys(torch.tensor([3, 5]))],
    ids=["where", "tensors"],
)
def test_what_cannot_be_compiled_says_so(torch, make):
    q, k, v = operands(torch)

    def f(q: Any) -> Any:
        return qkv.torch.attend(q, k, v, mask=make(torch))

    with pytest.raises(Exception, match=r"evaluate it outside and pass allow|build masks that hold arrays outside"):
        compiled(torch, f)(q)
    assert f(q).shape == (2, 4, 5, 2)


def test_exports(torch):
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, lengths: Any) -> Any:
            return qkv.torch.attend(q, k, v, mask=lengths[:, None, None, None] > torch.arange(5), bias=None) * 2

    given = (*(x.detach() for x in operands(torch)), torch.tensor([2, 5]))
    program = torch.export.export(Model(), given)
    assert any("qkv.attend" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*given), Model()(*given))


def test_autocast(torch):
    """As torch's own attention: operands go to autocast's type, gradients come in their own."""
    q, k, v = operands(torch, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = qkv.torch.attend(q, k, v, bias=torch.zeros(5, 5))
        assert out.dtype is torch.bfloat16
        assert qkv.torch.attend(*(x.double() for x in (q, k, v))).dtype is torch.float64
    out.float().sum().backward()
    assert q.grad.dtype is torch.float32
    half = [x.detach().bfloat16() for x in (q, k, v)]
    assert torch.equal(out, qkv.torch.attend(*half))


def test_every_rule_can_be_spelled(torch):
    """Each kind of mask there is reads back as it was."""
    from qkv.torch.rules import _KINDS, read, spell

    def below(kind: Any) -> Any:
        yield kind
        for other in kind.__subclasses__():
            yield from below(other)

    # A capture of the lens is no rule that a user writes.
    names = ("qkv.algebra", "qkv.rules", "qkv.masks")
    public = {kind for kind in below(Mask) if kind.__module__ in names and not kind.__name__.startswith("_")}
    assert public - {Mask} <= set(_KINDS)
    for text in ("~(causal() | first(3)) & window(None, 2, align='end')", "prefix(2, align=3)"):
        mask = eval(text, {name: getattr(qkv, name) for name in ("causal", "first", "window", "prefix")})
        arrays: list[Any] = []
        assert repr(read(spell(mask, arrays), [a.numpy() for a in arrays])) == repr(mask) == text


# Defaults.


def test_defaults_of_a_bridge(torch, engine):
    """C2, D2: empty rows are zeros, a NaN makes its row NaN; `strict` takes both back, and a call's own word comes first."""
    x = torch.zeros(1, 2, 2)
    bad = torch.tensor([[[1.0], [torch.nan]]])
    empty = qkv.torch.attend(x, x, x, mask=qkv.keys(0))
    assert not empty.any()
    rows = qkv.torch.attend(x, x, bad, mask=qkv.causal())
    assert rows[0, 0].tolist() == [1]
    assert rows[0, 1].isnan().all()
    with qkv.strict():
        with pytest.raises(EmptyRowError):
            qkv.torch.attend(x, x, x, mask=qkv.keys(0))
        with pytest.raises(NonFiniteError):
            qkv.torch.attend(x, x, bad)
        assert not qkv.torch.attend(x, x, x, mask=qkv.keys(0), empty="zero").any()
    with pytest.raises(EmptyRowError):
        qkv.torch.attend(x, x, x, mask=qkv.keys(0), empty="raise")
    assert not qkv.torch.attend(x, x, x, mask=qkv.keys(0)).any()


def test_strict_speaks_for_compiled_graphs(torch):
    x = torch.zeros(1, 2, 2)
    nothing = qkv.keys(0)
    graph = compiled(torch, lambda x: qkv.torch.attend(x, x, x, mask=nothing))
    assert not graph(x).any()
    with qkv.strict(), pytest.raises(EmptyRowError):
        graph(x)


# Refusals.


def test_refusals(torch):
    x = torch.zeros(1, 2, 2)
    with pytest.raises(UnsupportedError, match="is_causal is not an argument here; write mask=causal"):
        qkv.torch.attend(x, x, x, is_causal=True)
    with pytest.raises(DTypeError, match=r"query must be a torch tensor, but a ndarray came; write torch\.as_tensor"):
        qkv.torch.attend(x.numpy(), x, x)
    with pytest.raises(DTypeError, match=r"mask must be a mask expression or a boolean array, but a function came"):
        qkv.torch.attend(x, x, x, mask=qkv.causal)
    with pytest.raises(DTypeError, match="mask must be boolean"):
        qkv.torch.attend(x, x, x, mask=torch.zeros(2, 2))
    with pytest.raises(ShapeError, match="batch axes must be equal"):
        qkv.torch.attend(x[None], x[None].expand(2, 1, 2, 2), x[None])
    slopes = torch.ones(1, requires_grad=True)
    with pytest.raises(
        UnsupportedError, match=r"slopes requires grad, and its gradient would be dropped here; pass slopes\.detach"
    ):
        qkv.torch.attend(x, x, x, bias=qkv.alibi(slopes))
    with pytest.raises(UnsupportedError, match=r"scale requires grad, .*; pass scale\.detach"):
        qkv.torch.attend(x, x, x, scale=torch.tensor(1.0, requires_grad=True))


def test_other_devices_are_told_what_to_use(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.zeros(1, 2, 2, device="cuda")
        with pytest.raises(
            UnsupportedError,
            match=r"query is on cuda:0, .*; there call .*scaled_dot_product_attention, or pass query\.cpu\(\)",
        ):
            qkv.torch.attend(x, x, x)
    here = torch.zeros(1, 2, 2)
    with FakeTensorMode():
        bias = torch.zeros(2, 2, device="cuda")
    with pytest.raises(UnsupportedError, match="bias is on cuda:0"):
        qkv.torch.attend(here, here, here, bias=bias)


def test_a_cache_keeps_no_gradient(torch):
    x = torch.zeros(1, 1, 3, 2)
    cache = qkv.Cache().append(x, x)
    with pytest.raises(UnsupportedError, match=r"query requires grad, but key is a Cache, .*no_grad"):
        qkv.torch.attend(x.clone().requires_grad_(), cache)
    assert qkv.torch.attend(x, cache, mask=qkv.causal()).shape == x.shape
    with qkv.strict(), pytest.raises(EmptyRowError):
        qkv.torch.attend(x, cache, mask=qkv.keys(0))


def test_the_bridge_is_loaded_when_asked_for():
    with pytest.raises(AttributeError, match="no attribute 'flax'"):
        qkv.flax  # noqa: B018
    assert qkv.torch.attend is sys.modules["qkv.torch"].attend


def test_without_torch_the_bridge_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "qkv.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"qkv\.torch needs torch, .*; write pip install .\.\[torch\]"):
        importlib.import_module("qkv.torch")


# The layer.


def test_the_layer_is_torchs(torch):
    """The same state dict and, in float64, the same numbers within the bound of attention and of two projections (F2)."""
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(theirs.in_proj_bias)
    mine = qkv.torch.MultiHeadAttention(12, 3, dtype=torch.float64)
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    with torch.no_grad():
        expected = theirs(x, x, x, attn_mask=forbidden, need_weights=False)[0]
        found = mine(x, mask=qkv.causal())
        size = x.abs()
        for weight in (*theirs.in_proj_weight.split(12)[2:], theirs.out_proj.weight):
            size = size @ weight.abs().T + 1
        # Each of the four products sums 12 numbers, the softmax 7; its scores are of the size of the largest one.
        q, k = ((x.abs() @ w.abs().T + 1) for w in theirs.in_proj_weight.split(12)[:2])
        score = (q.max() * k.max() * 12).item()
        count = 2 * (4 * 14 + 3 * 9 + 4 * 14 * score)
        most = count * torch.finfo(torch.float64).eps * size.amax()
    assert (found - expected).abs().max() <= most


def test_the_layer_with_known_weights(torch):
    """Queries of 0 read every key alike: the mean of four values, exact."""
    layer = qkv.torch.MultiHeadAttention(4, 2, bias=False)
    with torch.no_grad():
        layer.in_proj_weight.zero_()[8:] = torch.eye(4)
        layer.out_proj.weight.copy_(torch.eye(4))
    x = torch.arange(16.0).reshape(1, 4, 4)
    assert layer(x)[0, 0].tolist() == [6, 7, 8, 9]
    assert layer(x, mask=qkv.causal())[0, 1].tolist() == [2, 3, 4, 5]
    assert layer(x[:, :1], x)[0, 0].tolist() == [6, 7, 8, 9]
    assert layer(x, mask=torch.tensor([[True, False, False, False]]).expand(4, 4))[0, 3].tolist() == [0, 1, 2, 3]


def test_the_layer_from_torch(torch):
    theirs = torch.nn.MultiheadAttention(8, 2, dropout=0.1, kdim=6, vdim=5).eval()
    mine = qkv.torch.MultiHeadAttention.from_torch(theirs)
    assert not mine.training
    assert {name: x.shape for name, x in mine.state_dict().items()} == {
        name: x.shape for name, x in theirs.state_dict().items()
    }
    assert mine(torch.randn(2, 3, 8), torch.randn(2, 4, 6), torch.randn(2, 4, 5)).shape == (2, 3, 8)
    mine.train()
    with pytest.raises(
        UnsupportedError, match=r"dropout must be 0 in training, but is 0\.1.*; set layer\.dropout = 0\.0"
    ):
        mine(torch.randn(2, 3, 8), torch.randn(2, 4, 6), torch.randn(2, 4, 5))
    with pytest.raises(UnsupportedError, match="layer must not add keys of its own"):
        qkv.torch.MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(8, 2, add_bias_kv=True))


def test_the_layer_with_groups_sink_and_cache(torch):
    layer = qkv.torch.MultiHeadAttention(8, 4, key_heads=2, sink=True, softcap=5.0)
    assert repr(layer).startswith("MultiHeadAttention(\n  8, 4, key_heads=2")
    x = torch.randn(2, 5, 8)
    layer(x, mask=qkv.causal()).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    with pytest.raises(UnsupportedError, match="cache keeps no gradient"):
        layer(x, cache=qkv.Cache())
    cache = qkv.Cache()
    with torch.no_grad():
        whole = layer(x, mask=qkv.causal())
        parts = torch.cat([layer(x[:, i : i + 1], mask=qkv.causal(), cache=cache) for i in range(5)], 1)
    assert parts.shape == whole.shape
    assert cache.lengths.tolist() == [5, 5]


def test_the_layer_refuses_sizes_and_foreign_words(torch):
    with pytest.raises(ShapeError, match="embed_dim must be a multiple of num_heads, but 8 and 3 came"):
        qkv.torch.MultiHeadAttention(8, 3)
    with pytest.raises(ShapeError, match="num_heads must be a multiple of key_heads, but 4 and 3 came"):
        qkv.torch.MultiHeadAttention(8, 4, key_heads=3)
    layer = qkv.torch.MultiHeadAttention(8, 4)
    with pytest.raises(UnsupportedError, match="need_weights is not an argument here"):
        layer(torch.zeros(2, 8), need_weights=True)


# Training.


def script() -> Any:
    spec = importlib.util.spec_from_file_location("training_curves", ROOT / "tools" / "training_curves.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_training_is_torchs_within_the_noise_of_rounding(torch, native_engine):
    """Losses on qkv stay as near to torch's as torch's own runs from weights that are moved by a last place (F2)."""
    curves = script()
    text = curves.read_text(ROOT / "docs" / "contract.md")
    small = {"steps": 8, "width": 32, "layers": 2, "length": 32, "batch": 4}
    base = np.array(curves.losses(curves.on_torch, text, **small))
    mine = np.array(curves.losses(curves.on_qkv, text, **small))
    moved = [np.array(curves.losses(curves.on_torch, text, **small, moved=seed)) for seed in range(1, 6)]
    noise = max(float(abs(a - b).max()) for i, a in enumerate([base, *moved]) for b in moved[i:])
    assert base[-1] < base[0]
    assert float(abs(mine - base).max()) <= noise
    wrong = np.array(curves.losses(lambda q, k, v: qkv.torch.attend(q, k, v), text, **small))
    assert float(abs(wrong - base).max()) > noise
    assert curves.picture(base.tolist(), mine.tolist(), (mine * 0).tolist()).startswith("<svg")
