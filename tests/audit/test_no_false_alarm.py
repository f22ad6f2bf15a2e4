"""No false alarm: kernels that are right, in every float type, over many seeds; and bounds that are no wider than need be."""

from __future__ import annotations

import numpy as np
import pytest

from qkv import reference
from qkv.audit import Call, Choice, Domain, FunctionKernel, audit
from qkv.audit.call import rounded
from qkv.audit.isolate import Here
from qkv.audit.run import chosen, run
from qkv.audit.targets import target_of
from qkv.audit.tolerance import right

from .correct import KERNELS, flash


def alarms(name: str, seeds: range, deep: bool = False) -> list[str]:
    """What the audit says against a correct kernel, over all types."""
    if name == "einsum":
        pytest.importorskip("torch")
    bench = Here(KERNELS[name]())
    out = []
    for seed in seeds:
        for case in chosen(Choice(profile="core")):
            for dtype in bench.domain.dtypes:
                (row,) = run(
                    bench,
                    Choice(profile="core", case=case.id, seed=seed, dtypes=(dtype,), shrinking=False, deep=deep),
                    "",
                )
                if row.verdict not in ("keeps", "cannot express"):
                    out.append(f"{row.case} {dtype} seed {seed}: {row.told} {row.says}")
    return out


@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_are_found_correct(name: str) -> None:
    """F2, F1: in every type, two seeds of every core case."""
    pytest.importorskip("ml_dtypes")
    assert alarms(name, range(1000, 1002)) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_are_found_correct_a_thousand_times(name: str) -> None:
    """F2: the same over a thousand seeds."""
    pytest.importorskip("ml_dtypes")
    assert alarms(name, range(1000)) == []


def test_rounded_weights_need_to_be_declared() -> None:
    """F2: bounds without the declared arithmetic are too tight for float32 arrays whose weights are bfloat16."""
    domain = Domain(accepts=frozenset({"mask", "cross", "value-width"}))
    kernel = FunctionKernel(
        "flash", domain, function=lambda q, k, v, mask=None: flash(q, k, v, mask=mask), keywords={"mask": "mask"}
    )
    report = audit(target_of(kernel), Choice(profile="core", case="A1-values", shrinking=False), isolate=False)
    assert report.rows[0].verdict == "wrong"


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_gradients_of_the_definition_are_its_differences(softcap: float | None) -> None:
    """C1: gradients from the weights of the definition agree with finite differences of the definition."""
    rng = np.random.default_rng(5)
    call = Call(
        *(rounded(rng.normal(size=shape), "float32") for shape in ((1, 2, 3, 4), (1, 1, 5, 4), (1, 1, 5, 2))),
        mask=rng.random((1, 1, 3, 5)) < 0.7,
        softcap=softcap,
        wants=frozenset({"grad"}),
        cotangent=rounded(rng.normal(size=(1, 2, 3, 2)), "float32"),
    )
    parts = right(call, frozenset()).parts
    step = np.longdouble(1e-6)
    for name, part in (("query", "dq"), ("key", "dk"), ("value", "dv")):
        array = getattr(call, name).astype(np.longdouble)
        slopes = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[at] += sign * step
                operands = {n: getattr(call, n).astype(np.longdouble) for n in ("query", "key", "value")} | {
                    name: moved
                }
                output = reference.attend(*operands.values(), allowed=call.allowed(), softcap=softcap).output
                ends.append((output * call.cotangent).sum())
            slopes[at] = (ends[0] - ends[1]) / (2 * step)
        # Central differences are off by the third derivative times step²; float64 sums by their roundings.
        assert np.abs(parts[part][0] - slopes).max() < 1000 * float(step) ** 2 + 1e-9 * np.abs(slopes).max()
