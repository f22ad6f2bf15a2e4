"""Every planted fault is found, named rightly, and shown by a small input; every clause has one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from qkv.audit import CLAUSES, Choice, Domain, FunctionKernel, Row, all_cases, audit
from qkv.audit.describe import MOST
from qkv.audit.targets import target_of

from .planted import attention, planted

CORE, EDGES, STRICT, GENERATED = "core", "edges", "strict", "generated"

#: fault, clause, a case that has to show it, what it has to be called. "": wrong without a name.
FAULTS = [
    ("first batch", "A1", "A1-values", "wrong: the keys of the first batch serve all"),
    ("broadcasts batch", "A1", "A1-batch-1", "differs: key and value of batch 1 serve every batch"),
    ("interleaved", "A2", "A2-grouped", "differs: query head h reads key head h mod G"),
    ("head 0", "A2", "A2-grouped", "wrong: every query head reads key head 0"),
    ("empty NaN", "A3", "A3-no-keys", "differs: a row without keys is NaN"),
    ("writes query", "A4", "A4-inputs", "wrong: writes to its query"),
    ("view", "A4", "A4-own-memory", "wrong: the output is a view of an input"),
    ("ignores strides", "A4", "A4-transposed", "wrong: strides are ignored"),
    ("no scale", "B1", "B1-default", "differs: no scale is applied"),
    ("ignores scale", "B1", "B1-given", "differs: the scale is ignored, 1/sqrt(D) taken"),
    ("scale or default", "B1", "B1-zero", "differs: the scale is ignored, 1/sqrt(D) taken"),
    ("absolute scale", "B1", "B1-negative", "wrong: the scale loses its sign"),
    ("equal weights", "C1", "A1-values", "wrong: query and key are ignored, every key weighs the same"),
    ("scale twice", "B1", "B1-given", "wrong: the scale is applied twice"),
    ("scale on top", "B1", "B1-given", "differs: the scale multiplies 1/sqrt(D)"),
    ("ignores softcap", "B2", "B2-softcap", "wrong: the softcap is ignored"),
    ("caps before scale", "B2", "B2-softcap", "differs: the softcap acts before the scale"),
    ("caps after bias", "B2", "B2-softcap-bias", "differs: the softcap acts after the bias"),
    ("ignores bias", "B3", "B3-bias", "wrong: the bias is ignored"),
    ("scales bias", "B3", "B3-bias", "differs: the bias is scaled like a score"),
    ("signed alibi", "B3", "B3-alibi", "differs: alibi adds slope * (j - position), also for later keys"),
    ("ignores slopes", "B3", "B3-alibi", "wrong: the slopes are ignored"),
    ("True drops", "B4", "B4-polarity", "differs: True = this pair is dropped; a row without keys is 0"),
    ("adds mask", "B4", "B4-numbers", "differs: 0 and 1 of a mask are added to the scores"),
    ("ignores mask", "B4", "B4-full", "wrong: the mask is ignored"),
    ("first batch's mask", "B4", "B4-batches", "wrong: the mask of the first batch serves all"),
    ("first head's mask", "B4", "B4-heads", "wrong: the mask of the first head serves all"),
    ("one future key", "B5", "B5-causal", "wrong: causal reads one key of the future"),
    ("strictly causal", "B5", "B5-causal", "wrong: causal does not read the query's own key"),
    ("ignores causal", "B5", "B5-causal", "wrong: causal is ignored"),
    ("window W", "B5", "B5-window-2-0", "differs: a window of W has W keys, the query's own included"),
    ("window W+1", "B5", "B5-window-1-0", "differs: a window of W reaches W + 1 keys back"),
    ("window looks back", "B5", "B5-window-2-1", "differs: a window looks back only"),
    ("lengths + 1", "B5", "B5-lengths", "wrong: the lengths reach one key too far"),
    ("lengths - 1", "B5", "B5-lengths", "wrong: the lengths stop one key short"),
    ("ignores segments", "B5", "B5-segments", "wrong: the segments are ignored"),
    ("ignores prefix", "B5", "B5-prefix", "wrong: the prefix is ignored, causal taken"),
    ("only prefix", "B5", "B5-prefix", "wrong: nothing but the prefix is read"),
    ("ignores where", "B5", "B5-where-half", "wrong: where is ignored"),
    ("where of head 0", "B5", "B5-where-heads", "wrong: where is asked about head 0 for every head"),
    ("where swapped", "B5", "B5-where-half", "wrong: where gets key and position swapped"),
    ("ignores offsets", "B5", "B5-packed", "wrong: the offsets are ignored"),
    ("offsets of queries", "B5", "B5-packed-cross", "wrong: the offsets of the queries serve the keys"),
    ("aligns start", "B6", "B6-long", "differs: the queries stand at the start of the keys"),
    ("aligns end", "B6", "B6-decode", "differs: the queries stand at the end of the keys"),
    ("aligns to all", "B6", "B6-lengths", "differs: the queries stand at the end of all keys, whatever the lengths"),
    ("mask beats lengths", "B7", "B7-bound", "wrong: the lengths are ignored"),
    ("not normalised", "C1", "A1-values", "wrong: the weights are not divided by their sum"),
    ("maximum of all", "C1", "C1-forbidden-maximum", "wrong: the output is NaN everywhere"),
    ("no maximum", "C1", "C1-large-scores", "wrong"),
    ("weights of forbidden", "C1", "C1-weights", "wrong"),
    ("empty mean", "C2", "C2-mask", "differs: a row without keys is the mean of every V, forbidden ones included"),
    ("empty ignores mask", "C2", "C2-neighbours", "differs: a row without keys ignores its mask"),
    ("empty lse +inf", "C2", "C2-lse", "differs: the log-sum-exp of a row without keys is +inf"),
    ("empty lse finite", "C2", "C2-lse", "differs: the log-sum-exp of a row without keys is a finite stand-in"),
    ("-10000", "C3", "C3-low-score", "wrong: forbidden pairs have -10000 added"),
    ("ignores sink", "C4", "C4-sink", "wrong: the sink is ignored"),
    ("sink twice", "C4", "C4-sink", "wrong: the sink counts twice"),
    ("lse without sink", "C4", "C4-sink-lse", "differs: the log-sum-exp leaves the sink out"),
    ("base 2", "C5", "C5-lse", "differs: log-sum-exp in base 2"),
    ("ties", "C6", "C6-ties", "wrong: ties take a higher index"),
    ("-10000", "D1", "D1-key-large-mask", "wrong: forbidden pairs have -10000 added"),
    (
        "0 times NaN",
        "D1",
        "D1-value-nan-mask",
        "not promised: 0 times NaN: every row has NaN in the columns of such a value",
    ),
    ("takes NaN for 0", "D2", "D2-value-nan", "differs: NaN and infinity are taken for 0"),
    ("skips NaN", "D2", "D2-value-nan", "differs: keys that hold NaN or infinity are left out in silence"),
    ("sums first", "D3", "D3-mixture", "differs"),
    ("base 2", "E1", "E1-halves", "wrong: log-sum-exp in base 2"),
    ("empty lse finite", "E1", "E1-empty-part", "keeps"),
    ("lse without maximum", "E2", "E2-parts", "wrong: parts merged by their log-sum-exp are not the whole"),
    ("float64 output", "F1", "F1-output-type", "wrong: output is float64 for float32 input"),
    ("promotes", "F1", "F1-mixed", "differs: mixed types are promoted"),
    ("drops last key", "F2", "A1-values", "wrong: the last key is dropped"),
    ("half scores", "F2", "F2-spread", "wrong"),
    ("batch bits", "F3", "F3-batch", "not promised: other bits"),
    ("noise", "F4", "F4-twice", "not promised: other bits"),
    ("second call", "F4", "F4-right-twice", "wrong"),
    ("swallows", "G1", "G1-unknown", "differs: swallows arguments it does not know"),
    ("asks for weights", "G1", "P-weights", "wrong: asking for weights does not change the output: not so"),
    ("takes any width", "G2", "G2-width", "differs: answered instead of refused"),
]


def rows(kernel: FunctionKernel, **choice: Any) -> list[Row]:
    return audit(target_of(kernel), Choice(**choice), isolate=False).rows


@pytest.mark.parametrize(("fault", "clause", "case", "told"), FAULTS, ids=[f"{f[1]}-{f[0]}" for f in FAULTS])
def test_a_planted_fault_is_found_named_and_made_small(fault: str, clause: str, case: str, told: str) -> None:
    """Each clause by its number: the case finds the fault, calls it by its name, and shows it in few numbers."""
    (row,) = rows(planted(fault), case=case, effort=2.0)
    assert clause in row.clauses or row.case == case
    assert row.told == told or (":" not in told and row.told.startswith(told)), row.says
    if told == "keeps":
        return
    assert row.numbers <= MOST
    assert row.example, "a counterexample is shown"
    assert f"--case {case}" in row.reproduce


def test_every_clause_has_a_planted_fault() -> None:
    """A1 to G2: no clause is audited by checks that were never seen to fail."""
    assert {clause for _, clause, _, _ in FAULTS} >= set(CLAUSES)
    assert len({fault for fault, *_ in FAULTS}) >= 40


def test_the_unfaulty_function_keeps_everything() -> None:
    """What the faults are planted in is sound, so that each finding is the fault's."""
    broken = [
        row.told + " " + row.case + " " + row.says
        for row in rows(planted(), profile=STRICT)
        if row.verdict not in ("keeps", "not promised", "cannot express")
    ]
    assert broken == []


LONG = [
    ("drops last 64 at 8192", "F2-long", "wrong: the last 64 keys are dropped"),
    ("one future key at 8192", "F2-long-causal", "wrong: causal reads one key of the future"),
    ("window W at 8192", "B5-long-window", "differs: a window of W has W keys, the query's own included"),
]


@pytest.mark.parametrize(("fault", "case", "told"), LONG, ids=[f[1] for f in LONG])
def test_faults_that_show_at_8192_keys_only(fault: str, case: str, told: str) -> None:
    """F2, B5: what hides from a tolerance of 1e-2 is found, named, and described in few numbers."""
    (row,) = rows(planted(fault), case=case, effort=2.0)
    assert row.told == told
    assert 0 < row.numbers <= MOST
    assert "8192" in row.example[0]


SECRET: list[tuple[str, str, str]] = [
    ("zeros", "X-number", "wrong: the output is zeros"),
    ("NaN", "X-number", "wrong: NaN where the answer is a number"),
    ("stale memory", "X-memory", "wrong: memory that nothing wrote comes out"),
    ("writes query", "X-inputs", "wrong: writes to its query"),
    ("view", "A4-own-memory", "wrong: the output is a view of an input"),
    ("remembers", "X-fresh", "wrong: answers with an earlier call's output"),
    ("one buffer", "X-output", "wrong: two outputs share their memory"),
    ("own kind", "X-output", "wrong: the output is no plain array"),
]


@pytest.mark.parametrize(("fault", "case", "told"), SECRET, ids=[f[0] for f in SECRET])
def test_what_kernels_written_by_programs_do(fault: str, case: str, told: str) -> None:
    """Profile generated: each trick is found and called by its name."""
    found = rows(planted(fault), profile=GENERATED, case=case, effort=1.0)
    assert found[0].told == told


def _calls_the_definition(query: Any, key: Any, value: Any) -> Any:
    from qkv import reference

    return reference.attend(*(x.astype(np.float64) for x in (query, key, value))).output.astype(query.dtype)


def _calls_the_front_door(query: Any, key: Any, value: Any) -> Any:
    import qkv

    return qkv.attend(query, key, value)


def _calls_through_a_back_door(query: Any, key: Any, value: Any) -> Any:
    sys.setprofile(None)
    return _calls_the_definition(query, key, value)


def _replaces(query: Any, key: Any, value: Any) -> Any:
    np.allclose = lambda *a, **k: True
    return attention("", query, key, value)["output"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (_calls_the_definition, "calls another attention function"),
        (_calls_the_front_door, "calls another attention function"),
        (_calls_through_a_back_door, "switches the watching off"),
        (_replaces, "replaces a function of a library"),
    ],
    ids=["definition", "front-door", "back-door", "replaces"],
)
def test_work_that_somebody_else_does(function: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1, profile generated: a kernel does its own work, and leaves other functions alone."""
    monkeypatch.setattr(np, "allclose", np.allclose)
    kernel = FunctionKernel("secret", Domain(), function=function)
    found = rows(kernel, profile=GENERATED, case="X-own-work")
    assert found[0].told == f"wrong: {name}"


def test_an_honest_kernel_passes_generated() -> None:
    """Nothing of the profile generated is found in a kernel that does its own work."""
    tricks = [case.id for case in all_cases() if case.profile == GENERATED]
    assert len(tricks) >= 7
    assert [rows(planted(), profile=GENERATED, case=case)[0].told for case in tricks] == ["keeps"] * len(tricks)
