"""Cases are lifted into what a kernel takes, and mean the same there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from qkv import reference
from qkv.audit import Call, Choice, Domain, FunctionKernel, all_cases, audit
from qkv.audit.domain import CannotExpressError, lift
from qkv.audit.run import sizes_of
from qkv.audit.targets import domain_of, target_of
from qkv.audit.tolerance import right
from qkv.errors import ArgumentError

from .correct import KERNELS, einsum, loops
from .planted import DOMAIN


def tiny(L: int = 3, S: int = 5, **options: Any) -> Call:
    rng = np.random.default_rng(1)
    return Call(rng.normal(size=(2, 2, L, 8)), rng.normal(size=(2, 2, S, 8)), rng.normal(size=(2, 2, S, 8)), **options)


def rounded_answer(call: Call, dtype: str) -> Any:
    """The answer to the call without lifting, of inputs rounded once."""
    return right(lift(call, DOMAIN, dtype), frozenset()).parts["output"][0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (tiny(), {"widths": (16, 64)}),
        (tiny(scale=0.3), {"widths": (64,)}),
        (tiny(), {"key_multiple": 16}),
        (tiny(), {"query_multiple": 16, "key_multiple": 8}),
        (tiny(5, 5, causal=True), {"query_multiple": 16, "key_multiple": 16}),
        (tiny(mask=np.tril(np.ones((3, 5), bool))), {"key_multiple": 16, "widths": (32,)}),
        (tiny(lengths=np.array([2, 5])), {"key_multiple": 4}),
        (tiny(5, 5, causal=True), {"accepts": DOMAIN.accepts - {"causal"}}),
        (tiny(lengths=np.array([2, 5])), {"accepts": DOMAIN.accepts - {"lengths", "mask"}}),
    ],
    ids=["width", "width-scale", "keys", "queries", "causal", "mask", "lengths", "causal-as-mask", "lengths-as-bias"],
)
def test_lifting_keeps_the_answer(call: Call, fields: dict[str, Any], dtype: str) -> None:
    """A1, B1: zero columns, repeated keys, appended rows and respelled rules leave the definition's answer alone."""
    domain = DOMAIN.but(**fields)
    lifted = lift(call, domain, dtype)
    _B, _H, _G, L, S, D, E = lifted.sizes
    assert L % domain.query_multiple == 0
    assert S % domain.key_multiple == 0
    assert not domain.widths or {D, E} <= set(domain.widths)
    answer = right(lifted, frozenset()).parts["output"]
    wanted = rounded_answer(call, dtype)
    # Two float64 sums of the same terms: twice the bound of one, which is derived for float32.
    assert (np.abs(answer[0][..., : wanted.shape[-1]] - wanted) <= 2 * answer[1][..., : wanted.shape[-1]]).all()


def test_a_scale_a_kernel_cannot_be_told_goes_into_the_query() -> None:
    """B1: without a scale argument the query carries it, rounded once."""
    lifted = lift(tiny(scale=0.5), DOMAIN.but(accepts=DOMAIN.accepts - {"scale"}, widths=(32,)), "float64")
    assert lifted.scale is None
    plain = tiny(scale=0.5)
    wanted = reference.attend(plain.query, plain.key, plain.value, scale=0.5).output
    got = reference.attend(lifted.query, lifted.key, lifted.value).output[..., :8]
    assert np.allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"accepts": frozenset()}, "no cross"),
        ({"widths": (4,)}, "no head width of 8 or more"),
        ({"longest": 4}, "longer than 4"),
    ],
)
def test_what_cannot_be_lifted_says_why(fields: dict[str, Any], why: str) -> None:
    """A domain that cannot take a case is told in a few words."""
    with pytest.raises(CannotExpressError, match=why):
        lift(tiny(), DOMAIN.but(**fields), "float32")


def test_a_kernel_of_a_narrow_domain_is_audited_without_false_alarm() -> None:
    """A1: bfloat16, heads of 64, lengths that divide by 16, length before heads."""
    pytest.importorskip("torch")

    def narrow(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> Any:
        assert query.shape[1] % 16 == key.shape[1] % 16 == 0, "lengths"
        assert query.shape[3] == value.shape[3] == 64, "width"
        out = einsum(*(x.transpose(1, 2) for x in (query, key, value)), mask=mask, causal=causal)
        return out.transpose(1, 2)

    domain = Domain(
        dtypes=("bfloat16",), arrays="torch", layout="blhd", widths=(64,), query_multiple=16, key_multiple=16
    )
    keywords = {"mask": "mask", "causal": "causal"}
    kernel = FunctionKernel(
        "narrow",
        domain.but(accepts=frozenset({"mask", "causal", "cross"}), longest=512),
        function=narrow,
        keywords=keywords,
    )
    report = audit(target_of(kernel), Choice(profile="core", shrinking=False), isolate=False)
    assert [
        (r.case, r.told, r.says) for r in report.rows if r.verdict not in ("keeps", "cannot express", "refuses")
    ] == []
    kept = [r.case for r in report.rows if r.verdict == "keeps"]
    assert {"A1-values", "B5-causal", "B4-full", "D1-value-large-mask", "C1-large-scores"} <= set(kept)


def test_few_shapes_unless_deep() -> None:
    """A kernel that compiles sees few shapes; deep means every length up to 70 and around powers of two."""
    shapes = {size for case in all_cases() if case.profile != "generated" for size in sizes_of(case, deep=False)}
    assert len(shapes) <= 14
    (values,) = (case for case in all_cases() if case.id == "A1-values")
    lengths = {size.L for size in sizes_of(values, deep=True)}
    assert lengths >= {*range(1, 71), 127, 128, 129, 1023, 1024, 1025}


def test_a_domain_survives_the_way_to_the_child() -> None:
    """Plain data and back."""
    domain = DOMAIN.but(dtypes=("bfloat16", "float32"), widths=(64, 128), arithmetic=frozenset({"tf32"}))
    assert Domain.from_dict(domain.to_dict()) == domain


def test_words_a_domain_does_not_know_are_refused() -> None:
    """G2: the message lists what there is."""
    with pytest.raises(ArgumentError, match=r"accepts must be among mask, .*but 'masks' came"):
        domain_of("masks")
    with pytest.raises(ArgumentError, match="arithmetic must be among"):
        Domain(arithmetic=frozenset({"exactly"}))


def packed(query: Any, key: Any, value: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: bool = False) -> Any:
    """(T, H, D) with offsets, the way variable-length kernels take it."""
    out, lse = np.zeros((*query.shape[:2], value.shape[2]), query.dtype), np.zeros((query.shape[1], len(query)))
    for (a, b), (c, d) in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        score = np.einsum("lhd,shd->hls", query[a:b], key[c:d]) * query.shape[-1] ** -0.5
        if causal:
            score = np.where(np.tri(b - a, d - c, dtype=bool), score, -np.inf)
        mass = np.exp(score - score.max(-1, keepdims=True, initial=-1e30))
        out[a:b] = np.einsum("hls,she->lhe", mass / mass.sum(-1, keepdims=True), value[c:d])
        lse[:, a:b] = score.max(-1, initial=-1e30) + np.log(mass.sum(-1))
    return out, lse


def test_a_packed_kernel_is_asked_everything_by_offsets() -> None:
    """A1, B5: batches and lengths become a pack, rows are compared where they came from; masks cannot be said."""

    def swapped(query: Any, key: Any, value: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any) -> Any:
        return packed(query, key, value, cu_seqlens_q=cu_seqlens_k, cu_seqlens_k=cu_seqlens_q, **options)

    told = {}
    for function in (packed, swapped):
        # Offsets of queries and of keys under the keywords of flash-attention's variable-length functions.
        kernel = FunctionKernel(
            "packed",
            Domain(accepts=frozenset({"causal", "cross", "value-width", "offsets", "lse"}), layout="packed"),
            function=lambda q, k, v, return_lse=False, run=function, **o: (
                run(q, k, v, **o) if return_lse else run(q, k, v, **o)[0]
            ),
            keywords={},
        )
        cases = ("A1-values", "A1-cross", "B5-packed-causal", "B5-packed-cross", "B5-lengths", "C5-lse", "B4-full")
        report = [audit(target_of(kernel), Choice(case=case), isolate=False).rows[0] for case in cases]
        told[function] = {row.case: row.verdict for row in report}
    assert told[packed] == dict.fromkeys(cases, "keeps") | {"B4-full": "cannot express"}
    assert told[swapped]["B5-packed-cross"] in ("wrong", "crashes")


def test_probes_hold_where_every_call_is_filled_up() -> None:
    """E1, E2, F3: rows that only fill a length up are not compared, those of parts and of a row alone neither."""

    def sized(query: Any, key: Any, value: Any, **options: Any) -> Any:
        assert query.shape[2] % 4 == key.shape[2] % 3 == 0, "lengths"
        return loops(query, key, value, **options)

    kernel = KERNELS["loops"]()
    kernel.function = sized
    kernel.domain = kernel.domain.but(
        query_multiple=4, key_multiple=3, dtypes=("float32",), promises=frozenset({"bit invariance"})
    )
    choice = Choice(profile="strict", clauses=("E1", "E2", "F3", "F4"), shrinking=False)
    report = audit(target_of(kernel), choice, isolate=False)
    verdicts = {row.case: row.told for row in report.rows}
    asked = {"E1-halves", "E1-empty-part", "E2-parts", "F3-batch", "F3-row", "F4-twice", "P-permuted", "P-batch"}
    assert {case: verdicts[case] for case in asked} == dict.fromkeys(asked, "keeps")


def test_no_name_is_given_for_what_the_name_does_not_explain() -> None:
    """C3: zeros, where the lowest score beats -inf, are not put down to a stand-in that would give the right answer."""
    kernel = KERNELS["loops"]()
    kernel.function = lambda query, key, value, **options: np.zeros_like(query)
    (row,) = audit(target_of(kernel), Choice(case="C3-lowest-score", dtypes=("float32",)), isolate=False).rows
    assert row.told == "differs: the output is zeros"
