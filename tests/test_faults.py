"""Every check fails on a fault planted for it, and passes without (habit 9 of the house: the tester is tested)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import test_answers
import test_definition
import test_mask_dense
import test_merge
import test_plan
from support import checks, documents
from support.faults import FAULTS, HONEST, PARTIAL
from support.problems import problems
from support.runs import Attend

#: Looks for one example that fails, and neither shrinks nor goes on.
_HUNT = settings(phases=(Phase.generate,), max_examples=400, report_multiple_bugs=False, derandomize=True)

Check = Callable[[Attend], None]


def hunt(strategy: Any, check: Callable[..., None], how: settings = _HUNT) -> Check:
    """A check of random cases, as the property tests make it."""

    def aimed(attend: Attend) -> None:
        @how
        @given(case=strategy, seed=st.integers(0, 2**32 - 1))
        def one(case: Any, seed: int) -> None:
            check(attend, case, np.random.default_rng(seed))

        one()

    return aimed


def around(attend: Attend, case: tuple[documents.Document, dict[str, Any]], rng: Any) -> None:
    documents.row_invariance(attend, *case)


@st.composite
def surrounded(draw: Any) -> tuple[documents.Document, dict[str, Any]]:
    doc = draw(documents.documents())
    return doc, draw(documents.surroundings(doc))


def decoding(attend: Attend, case: documents.Document, rng: Any) -> None:
    documents.decoding(attend, case, 1)


#: The definition does not notice overflow, and faults made of it are to be caught by what they do to ordinary numbers.
ORDINARY = problems(magnitudes=("tame", "small", "peaked"), edges=False)
SMALL = problems(edges=False)
CHECKS: dict[str, Check] = {
    "definition": hunt(
        problems(magnitudes=("tame", "small", "peaked")), lambda attend, case, rng: checks.definition(attend, case)
    ),
    "errors": hunt(SMALL, lambda attend, case, rng: checks.errors(attend, case)),
    "isolation": hunt(SMALL, checks.isolation),
    "row isolation": hunt(SMALL, checks.row_isolation),
    "repeatable": hunt(SMALL, lambda attend, case, rng: checks.repeatable(attend, case)),
    "memory": hunt(SMALL, lambda attend, case, rng: checks.memory(attend, case)),
    "row invariance": hunt(surrounded(), around),
    "decoding": hunt(documents.documents((33, 65, 129)), decoding),
    "merge": lambda attend: test_merge.test_e1_two_empties_are_an_empty("numpy", "float32"),
}

#: fault -> (the check that catches it, what the check says).
CAUGHT = {
    "top-left causal": ("definition", "F2"),
    "off-by-one window": ("definition", "F2"),
    "dropped last tile": ("definition", "F2"),
    "additive sentinels": ("definition", "F2"),
    "uniform empty row": ("definition", "F2"),
    "interleaved head order": ("definition", "F2"),
    "base-2 log-sum-exp": ("definition", "F2: lse"),
    "forgotten scale": ("definition", "F2"),
    "NaN through a zero weight": ("isolation", "D1"),
    "merge of empties": ("merge", None),
    "batch-dependent order of additions": ("row invariance", "F3"),
    "order counted from key 0": ("row invariance", "F3"),
    "order by the number of rows": ("decoding", "F3"),
    "forgotten softcap": ("definition", "F2"),
    "sink left out of the output": ("definition", "F2"),
    "one batch's mask for all": ("definition", "F2"),
    "strides ignored": ("definition", "F2"),
    "input written to": ("memory", "A4: an input was written"),
    "output is a view": ("memory", "A4: a result is a view"),
    "other bits the second time": ("repeatable", "F4"),
    "overflow unnoticed": ("errors", "D3"),
    "faults never raised": ("errors", "C2|D2|D3"),
}

#: Faults of the order of additions, which only the native engine promises.
NATIVE = ("batch-dependent order of additions", "order counted from key 0", "order by the number of rows")


def test_every_planted_fault_has_its_check() -> None:
    assert set(CAUGHT) == set(FAULTS)
    assert {check for check, _ in CAUGHT.values()} <= set(CHECKS)


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.native if f in NATIVE else ()) for f in FAULTS])
def test_a_planted_fault_is_caught(fault: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault in NATIVE:
        request.getfixturevalue("native_engine")
    else:
        monkeypatch.setenv("QKV_ENGINE", "numpy")
    check, message = CAUGHT[fault]
    with pytest.raises(AssertionError, match=message), monkeypatch.context() as planted:
        CHECKS[check](FAULTS[fault](planted))


_CALM = settings(_HUNT, max_examples=25)


@pytest.mark.parametrize(
    "check",
    [checks.definition, checks.isolation, checks.row_isolation, checks.repeatable, checks.memory],
    ids=lambda check: check.__name__,
)
def test_a_check_passes_what_has_no_fault(check: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    takes = check.__code__.co_argcount

    def aimed(attend: Attend, case: Any, rng: Any) -> None:
        check(attend, case, *([rng] if takes == 3 and "rng" in check.__code__.co_varnames[:3] else []))

    hunt(ORDINARY, aimed, _CALM)(HONEST(monkeypatch))


# Property tests that are not aimed at an attend-like function: the fault goes where they look. -----------------------


def _narrow_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.ranges import Ranges

    clip = Ranges.clip
    monkeypatch.setattr(Ranges, "clip", lambda self, keys: clip(self, max(keys - 1, 0)))


def _swapped_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.algebra import Or

    monkeypatch.setattr(Or, "tile", lambda self, *a: self.a.tile(*a) & self.b.tile(*a))


def _inexact_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.rules import Segments

    bounds = Segments.bounds
    monkeypatch.setattr(Segments, "bounds", lambda self, frame: (bounds(self, frame)[0],) * 2)


def _exact_called_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.ranges import NONE
    from qkv.rules import First

    bounds = First.bounds
    monkeypatch.setattr(First, "bounds", lambda self, frame: (bounds(self, frame)[0], NONE))


def _end_is_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_mask_dense, "resolve_offset", lambda batch, *a: np.zeros(int(np.prod(batch)), np.int64))


def _overlapping_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.plan import Plan

    tiles = Plan.tiles
    monkeypatch.setattr(Plan, "tiles", lambda self, p: (t._replace(start=max(t.start - 1, 0)) for t in tiles(self, p)))


def _generous_full(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.plan import Plan

    blocks = Plan.blocks
    monkeypatch.setattr(Plan, "blocks", lambda self, p, t: [b._replace(full=True) for b in blocks(self, p, t)])


def _dropped_block(monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["dropped last tile"](monkeypatch)


def _next_row_future(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.frame import Frame

    positions = Frame.positions
    monkeypatch.setattr("qkv.future.Frame.positions", lambda self: positions(self) + 1)


def _count_of_first_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.plan import Plan

    count = Plan.count
    monkeypatch.setattr(Plan, "count", lambda self, p: count(self, p)._replace(touched=1))


def _wide_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of float32 scores renormalised once too little: the sink is forgotten."""
    from qkv.weights import Weights

    monkeypatch.setattr(Weights, "weight", property(lambda self: self.mass / np.maximum(self.total, 1)[..., None]))


def _late_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import questions

    top = questions.top

    def reversed_ties(*arguments: Any) -> Any:
        keys, weights = top(*arguments)
        tied = (np.diff(weights, axis=-1) == 0) & (keys[..., 1:] >= 0)
        for at in np.argwhere(tied):
            i = (*at[:-1], at[-1])
            j = (*at[:-1], at[-1] + 1)
            keys[i], keys[j] = keys[j], keys[i]
        return keys, weights

    monkeypatch.setattr(questions, "top", reversed_ties)


def _first_row_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import questions

    received = questions.received

    def without(p: Any, plan: Any) -> Any:
        first = questions.chosen_weights(p, plan, np.zeros(1, np.int64), np.arange(p.heads), None)
        return received(p, plan) - first[:, :, 0]

    monkeypatch.setattr(questions, "received", without)


def _entropy_in_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import questions

    entropy = questions.entropy
    monkeypatch.setattr(questions, "entropy", lambda *a: entropy(*a) / np.float32(np.log(2)))


def _share_of_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import questions

    found = questions.contributions
    monkeypatch.setattr(questions, "contributions", lambda *a: (found(*a)[0], abs(found(*a)[1])))


def _open_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """α (v − o) without the 1 / (1 − α)."""
    from qkv import questions

    def changes(p: Any, one: Any, n: int) -> Any:
        value = np.repeat(questions.values(p, n), p.sharing, axis=0) / 2
        return -one.weight[n][..., None] * (value - one.output[n][:, None] / 2)

    monkeypatch.setattr(questions, "half_changes", changes)


def _one_sided_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.state import Rows, merge_rows

    def merge(a: Rows, b: Rows) -> Rows:
        right = merge_rows(a, b)
        return Rows(a.max, right.sum, right.mix, right.status)

    monkeypatch.setattr(PARTIAL, "merge_rows", merge)


def _merge_of_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["merge of empties"](monkeypatch)


def _number_for_a_lost_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.engines.lost_as_nan", lambda rows: rows)


SEEN_FAILING: list[tuple[Callable[..., None], Callable[[pytest.MonkeyPatch], None]]] = [
    (test_mask_dense.test_b6_rows_stand_where_the_alignment_says, _end_is_start),
    (test_mask_dense.test_b5_ranges_hold_every_allowed_pair_and_promise_no_other, _narrow_ranges),
    (test_mask_dense.test_b5_ranges_hold_every_allowed_pair_and_promise_no_other, _inexact_called_exact),
    (test_mask_dense.test_b5_intervals_stay_exact_under_every_operator, _exact_called_inexact),
    (test_mask_dense.test_b5_a_tile_is_a_cut_of_the_dense_form, _swapped_operator),
    (test_mask_dense.test_b5_ranges_and_the_rule_that_is_left_are_the_mask, _narrow_ranges),
    (test_mask_dense.test_b5_reads_future_is_exact, _next_row_future),
    (test_plan.test_every_row_is_in_exactly_one_tile, _overlapping_tiles),
    (test_plan.test_blocks_cover_every_allowed_pair_once_and_full_ones_hold_no_other, _dropped_block),
    (test_plan.test_blocks_cover_every_allowed_pair_once_and_full_ones_hold_no_other, _generous_full),
    (test_plan.test_counts_are_those_of_the_blocks, _count_of_first_tile),
    (test_merge.test_e1_merged_parts_are_the_whole, _one_sided_merge),
    (test_merge.test_e1_the_merge_is_commutative, _one_sided_merge),
    (test_merge.test_e1_empty_is_the_identity_exactly, _merge_of_empties),
    (test_merge.test_d2_d3_a_lost_row_has_no_state_either, _number_for_a_lost_row),
    (test_answers.test_c1_weights_are_those_of_the_definition, _wide_tails),
    (test_answers.test_c1_weights_of_the_rows_heads_and_keys_asked, _wide_tails),
    (test_answers.test_c6_top_is_the_largest_weights_in_order, _wide_tails),
    (test_answers.test_c6_equal_weights_come_in_order_of_index, _late_ties),
    (test_answers.test_c1_received_is_the_sum_over_the_rows, _first_row_not_received),
    (test_answers.test_c2_c4_entropy_effective_keys_and_the_sinks_share, _entropy_in_bits),
    (test_answers.test_c6_contributions_are_weight_times_value, _share_of_the_norm),
    (test_answers.test_influence_is_what_forbidding_a_key_does, _open_form),
    (test_definition.test_f2_every_row_is_within_its_bound, _dropped_block),
]


@pytest.mark.parametrize(
    ("test", "plant"),
    SEEN_FAILING,
    ids=[f"{test.__name__.removeprefix('test_')}-{plant.__name__.strip('_<>')}" for test, plant in SEEN_FAILING],
)
def test_a_property_test_is_seen_failing(
    test: Any, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_ENGINE", "numpy")
    inner, asks = test.hypothesis.inner_test, test.hypothesis._given_kwargs
    named = inner.__code__.co_varnames[: inner.__code__.co_argcount]
    fixtures = {name: value for name, value in (("engine", "numpy"), ("keep", ())) if name in named}

    @_HUNT
    @given(**asks)
    def hunted(**drawn: Any) -> None:
        inner(**fixtures, **drawn)

    plant(monkeypatch)
    with pytest.raises(AssertionError):
        hunted()
