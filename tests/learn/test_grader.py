"""The grader: right solutions pass, each wrong one gets its mistake named and a small input, whatever it does."""

from __future__ import annotations

import builtins
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv import plain
from qkv.learn import grader
from qkv.learn.grader import CASE_IDS, CAUSES, CLAUSES, Report, essence, explain, grade, read_input, try_input

HERE = Path(__file__).parent
SOURCE = Path(grader.__file__)

#: Each wrong solution and the mistake that it makes.
WRONG = {
    "absolute_score": "score-absolute",
    "adds_query_and_key": "score-sum",
    "argmax": "argmax",
    "asserts": "asserts-instead-of-refusing",
    "base_two": "other-base",
    "cached_by_query": "hidden-state",
    "cosine": "score-cosine",
    "distance": "score-distance",
    "divides_by_width": "scale-by-width",
    "divides_by_zero": "crashes-instead-of-refusing",
    "divides_last": "divides-last",
    "drops_forbidden": "mask-drops-keys",
    "empties_values": "modifies-inputs",
    "exits": "exits-instead-of-refusing",
    "floats_only": "refuses-integers",
    "floats_texts": "type-unchecked",
    "forgot_scale": "no-scale",
    "forgot_to_normalise": "not-normalised",
    "ignores_mask": "mask-ignored",
    "inverted_mask": "mask-inverted",
    "lets_nan_through": "nonfinite-unchecked",
    "lets_overflow_through": "overflow-unchecked",
    "lists_only": "refuses-tuples",
    "mask_added": "mask-added",
    "mask_after_softmax": "mask-after-softmax",
    "mask_length": "mask-length-unchecked",
    "mask_of_ints": "mask-type-unchecked",
    "mask_times_score": "mask-as-zero-score",
    "masks_values_only": "mask-on-values-only",
    "maximum_from_zero": "maximum-starts-at-0",
    "maximum_over_forbidden": "maximum-over-forbidden",
    "mean_of_values": "mean-of-values",
    "minus_a_billion": "sentinel-mask",
    "minus_score": "score-sign",
    "minus_ten_thousand_added": "sentinel-mask",
    "mixes_keys": "mixes-keys",
    "modifies_query": "modifies-inputs",
    "multiplies_by_root": "scale-multiplied",
    "mutable_default": "hidden-state",
    "nan_for_nothing": "empty-row-nan",
    "no_exponential": "no-exponential",
    "no_maximum": "no-maximum",
    "not_summed": "not-summed",
    "one_number": "wrong-axis",
    "only_context": "only-context",
    "own_exception": "wrong-exception",
    "pair_swapped": "pair-swapped",
    "percent": "percent",
    "picks_the_best_value": "argmax",
    "prints": "returns-nothing",
    "recurses": "recurses-forever",
    "remembers": "hidden-state",
    "returns_in_the_loop": "score-one-coordinate",
    "returns_message": "returns-instead-of-raising",
    "returns_zip": "unlisted",
    "root_of_key_count": "scale-other-length",
    "rounds": "rounded",
    "scales_weights": "scale-after-softmax",
    "shares_value": "shares-lists",
    "sigmoid": "sigmoid",
    "squares_products": "score-squares",
    "stops_at_forbidden": "mask-stops",
    "subtracts_minimum": "other-maximum",
    "sum_of_values": "sum-of-values",
    "swallows": "swallowed-error",
    "takes_empty_values": "empty-unchecked",
    "uniform_for_nothing": "empty-row-uniform",
    "wrong_axis": "wrong-axis",
    "zeros_for_nothing": "empty-row-zeros",
    "zip_truncates": "zip-stops-early",
}
RIGHT = sorted(path.stem for path in (HERE / "right").glob("*.py"))


def solution(folder: str, name: str) -> str:
    return (HERE / folder / f"{name}.py").read_text(encoding="utf-8")


def failure(report: Report) -> dict[str, Any]:
    first = report.first_failure
    assert first is not None
    found: dict[str, Any] = first["failure"]
    return found


# Right and wrong ------------------------------------------------------------------------------------------------------


def test_there_are_enough_of_both() -> None:
    assert len(WRONG) >= 30
    assert len(RIGHT) >= 6
    assert {path.stem for path in (HERE / "wrong").glob("*.py")} == set(WRONG)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_solution_passes_in_any_style(name: str) -> None:
    """G1: on public and on hidden inputs."""
    for seed in range(2):
        report = grade(solution("right", name), seed=seed, hidden=seed)
        assert report.passed, report.text()


@pytest.mark.long
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_solution_passes_on_fifty_seeds(name: str) -> None:
    for seed in range(50):
        report = grade(solution("right", name), seed=seed, hidden=f"hidden {seed}")
        assert report.passed, report.text()


def test_the_definition_itself_passes() -> None:
    report = grade(plain.attend, seed=3, hidden=3)
    assert report.passed, report.text()


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_solution_gets_its_mistake_named(name: str) -> None:
    """The likely cause, an input of at most six numbers besides zeros, both answers, a clause, hints."""
    report = grade(solution("wrong", name))
    assert not report.passed
    found = failure(report)
    assert found["cause"] is not None, report.text()
    assert found["cause"]["id"] == WRONG[name], report.text()
    assert found["nonzero"] <= 6, found["code"]
    # With zeros: two keys of two coordinates, for less shows no mistake in the scale; or two calls of two keys.
    assert found["numbers"] <= (10 if "\n" in found["code"] else 8), found["code"]
    assert found["yours"]["text"]
    assert found["clause"]["number"] in CLAUSES
    assert found["hints"]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
@pytest.mark.slow
def test_the_name_does_not_depend_on_the_seed(seed: int) -> None:
    for name, cause in WRONG.items():
        found = failure(grade(solution("wrong", name), seed=seed))
        assert found["cause"]["id"] == cause, (name, found)
        assert found["nonzero"] <= 6, (name, found["code"])


def test_every_cause_that_a_twin_has_is_known_and_has_hints_in_steps() -> None:
    assert {cause for cause, _, _ in grader.TWINS} <= set(CAUSES)
    for cause in CAUSES.values():
        assert cause.clause in CLAUSES
        assert len(cause.hints) >= 2
        assert cause.title


@pytest.mark.slow
def test_no_twin_is_taken_for_another() -> None:
    """A learner who makes exactly a twin's mistake is told that twin's name: the tester, tested."""
    for name, twin, _ in grader.TWINS:
        if name in ("refuses-integers", "refuses-tuples", "sentinel-mask", "rounded"):
            continue  # each is one kind with many faces, or among the files above
        report = grade(_checked_first(twin))
        assert not report.passed, name
        # Of two twins with the same numbers on every input, the first in the table is meant.
        assert name in report.causes, (name, report.causes)


def _checked_first(twin: Any) -> Any:
    def attend(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
        return twin(*plain.checked(query, keys, values, allowed))

    return attend


#: A change of the right program `loops`, and the causes that may be named for it: None is none.
CHANGES: list[tuple[str, str, set[str | None]]] = [
    ("range(len(query))", "range(len(query) - 1)", {"score-leaves-out"}),
    ("range(len(query))", "range(1, len(query))", {"score-leaves-out"}),
    ("range(len(query))", "range(3, len(query))", {None}),
    ("math.sqrt(len(query))", "math.sqrt(2)", {"scale-constant"}),
    ("math.sqrt(len(query))", "math.sqrt(5)", {"scale-constant"}),
    ("allowed[j]", "allowed[(j + 1) % len(keys)]", {"mask-shifted"}),
    ("allowed[j]", "allowed[j - 1]", {"mask-shifted"}),
    ("allowed[j]", "allowed[len(keys) - 1 - j]", {None}),
    ("math.sqrt(len(query))", "math.sqrt(len(query) + 1)", {None}),
    ("allowed[j]", "(j == 0 or allowed[j - 1])", {"mask-shifted"}),
    *(
        ("    scores = []", f"    if {when}: raise ValueError{said}\n    scores = []", {"refuses-good-input"})
        for when in ("not any(query)", "any(0 in key for key in keys)", "any(abs(x) > 100 for x in query)")
        for said in ("", "('no')")
    ),
    (
        "return weights, context",
        "return weights, [0.0 if abs(x) >= 1e100 else x for x in context]",
        {None},
    ),
]


@pytest.mark.parametrize(("old", "new", "causes"), CHANGES)
def test_a_cause_is_the_right_one_or_none(old: str, new: str, causes: set[str | None]) -> None:
    source = solution("right", "loops")
    assert old in source
    source = source.replace(old, new)
    report = grade(source, skip=["score-overflow"])  # a product that is left out cannot overflow
    named = {case["failure"]["cause"] and case["failure"]["cause"]["id"] for case in report.cases if case["failure"]}
    assert named, "it passes"
    assert named <= causes, report.text()


def test_two_mistakes_are_two_causes() -> None:
    def attend(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
        query, keys, values, allowed = plain.checked(query, keys, values, allowed)
        scores = [plain.dot(query, key) for key in keys]
        top = max(scores)
        exponentials = [math.exp(score - top) for score in scores]
        weights = [e / math.fsum(exponentials) for e in exponentials]
        return weights, [plain.mixture(weights, column) for column in zip(*values, strict=True)]

    report = grade(attend)
    assert report.causes[:2] == ["no-scale", "mask-ignored"], report.text()


def test_two_mistakes_with_one_symptom_are_two_causes() -> None:
    """Both give a wrong weight; what explains one does not explain the other."""

    def attend(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
        query, keys, values, allowed = plain.checked(query, keys, values, allowed)
        if not all(allowed):
            weights = [may / sum(allowed) for may in allowed]
            return weights, [plain.mixture(weights, column) for column in zip(*values, strict=True)]
        return plain.attend([x * math.sqrt(len(query)) for x in query], keys, values, allowed)

    report = grade(attend)
    shown = {case["id"]: case["failure"]["cause"]["id"] for case in report.cases if case["failure"]}
    assert (shown["example"], shown["many"], shown["mask-large"]) == ("no-scale", "no-scale", "mean-of-values"), (
        report.text()
    )


def test_a_wrong_number_anywhere_is_seen() -> None:
    """F2: an answer that is off by a few more roundings than float64 takes is no answer."""
    for part in (0, 1):

        def attend(*problem: Any, part: int = part) -> Any:
            answer = plain.attend(*problem)
            answer[part][-1] += answer[part][-1] * 2**-40
            return answer

        assert not grade(attend).passed


@pytest.mark.parametrize(
    ("name", "faulty"),
    [
        ("many keys", lambda w, c, v: (w, c) if len(w) < 9 else (w, [0.0] * len(c))),
        ("wide values", lambda w, c, v: (w, c) if len(c) < 6 else (w, [0.0] * len(c))),
        ("small answers", lambda w, c, v: (w, [x if abs(x) >= 1e-12 else 0.0 for x in c])),
        ("smallest answers", lambda w, c, v: (w, [x if abs(x) >= 1e-100 else 0.0 for x in c])),
        ("small weights", lambda w, c, v: ([x if x > max(w) * math.exp(-30) else 0.0 for x in w], c)),
        ("smallest weights", lambda w, c, v: ([x if x > max(w) * math.exp(-600) else 0.0 for x in w], c)),
    ],
)
def test_what_is_long_wide_or_tiny_counts(name: str, faulty: Any) -> None:
    """F2: on the public cases; and on the hidden ones, where nobody knows the inputs."""

    def attend(query: Any, keys: Any, values: Any, allowed: Any) -> Any:
        return faulty(*plain.attend(query, keys, values, allowed), values)

    report = grade(attend, hidden=1)
    failed = {case["hidden"] for case in report.cases if case["status"] == "failed"}
    assert failed >= ({False} if name.startswith("smallest") else {False, True}), name


def test_a_boolean_among_the_numbers_is_left_open_as_the_clause_says() -> None:
    """G1: the definition refuses it, who takes it for 1 or 0 is right too, and another number is wrong."""
    assert "boolean" in CLAUSES["G1"]
    problem = ([True], [[1.0], [0.0]], [[2.0], [4.0]], [True, True])
    as_one = ([1.0], *problem[1:])
    for solution_, right in (
        (lambda *_: plain.attend(*as_one), True),
        (lambda *given: plain.attend(*given), True),
        (lambda *_: plain.attend([2.0], *problem[1:]), False),
    ):
        assert (try_input(solution_, problem)["status"] == "passed") == right


def test_refusing_is_not_passing() -> None:
    def attend(*problem: Any) -> Any:
        raise ValueError("no")

    report = grade(attend)
    assert failure(report)["cause"]["id"] == "refuses-good-input"
    assert {case["status"] for case in report.cases if case["group"] == "mixture"} == {"failed"}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ZeroDivisionError()", "crashes-instead-of-refusing"),
        ("Exception('no')", "wrong-exception"),
        ("TypeError('no')", "wrong-exception"),
        ("KeyError('no')", "crashes-instead-of-refusing"),
        ("SystemExit(1)", "exits-instead-of-refusing"),
    ],
)
def test_only_a_value_error_refuses_a_value(error: str, cause: str) -> None:
    """C2, G1: where no type is wrong, TypeError is a crash too."""
    source = solution("right", "loops").replace('raise ValueError("no key is allowed")', f"raise {error}")
    report = grade(source)
    assert [case["id"] for case in report.cases if case["status"] == "failed"] == ["empty-row", "no-keys"]
    found = failure(report)
    assert (found["kind"], found["cause"]["id"]) == ("crashed instead of refusing", cause)
    assert found["clause"]["number"] == "C2"


def test_a_value_error_refuses_a_type_too() -> None:
    """G1."""
    source = solution("right", "loops").replace("TypeError", "ValueError")
    assert grade(source).passed


def test_nan_behind_a_mask_may_be_refused_or_left_unread_but_not_leak() -> None:
    """D1: the contract leaves room here, and only here."""
    reads = solution("right", "closures")
    assert grade(reads).passed
    leaks = solution("wrong", "lets_nan_through")
    cases = {case["id"]: case["status"] for case in grade(leaks).cases}
    assert cases["nan-forbidden"] == "failed"


# The report -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["forgot_scale", "remembers", "zip_truncates", "rounds"])
def test_two_runs_give_one_report(name: str) -> None:
    """F4."""
    first, second = (grade(solution("wrong", name), seed=5).to_dict() for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first, allow_nan=False)) == first


def test_the_cases_are_the_same_whatever_the_seed() -> None:
    for seed in (0, 1, "a word"):
        assert [case["id"] for case in grade(plain.attend, seed=seed).cases] == CASE_IDS
    hidden = grade(plain.attend, hidden=1).cases[len(CASE_IDS) :]
    assert [case["hidden"] for case in hidden] == [True] * 12
    assert grade("def attend(*_): return 1", seed=1).to_dict() != grade("def attend(*_): return 1", seed=2).to_dict()


def test_every_input_of_the_refusals_breaks_one_known_clause() -> None:
    """A3 to G1: the definition's sentence for each is told from the others."""
    for case in grader._cases(0):
        for problem in case.problems:
            expected = grader._expected(problem)
            if case.group == "refusals" and case.id != "nan-forbidden":
                assert (expected.kind, expected.clause) == ("refusal", case.clause), (case.id, problem)
            elif case.id == "nan-forbidden":
                assert expected.kind == "either", problem
            elif case.group != "behaviour":
                assert expected.kind == "answer", (case.id, problem)


def test_it_is_told_as_it_goes_and_goes_on_where_it_was_stopped() -> None:
    """A host ends the run in the middle of a case and starts another that leaves out what is known."""
    source = solution("wrong", "forgot_scale")
    whole: list[dict[str, Any]] = []
    report = grade(source, on_case=whole.append)
    assert [news["id"] for news in whole if news["event"] == "done"] == CASE_IDS
    assert [news["id"] for news in whole if news["event"] == "start"] == CASE_IDS
    assert [news["number"] for news in whole if news["event"] == "done"] == list(range(1, len(CASE_IDS) + 1))
    assert {news["of"] for news in whole} == {len(CASE_IDS)}
    assert {news["id"] for news in whole if news["event"] == "shrink"} == {
        case["id"] for case in report.cases if case["status"] == "failed"
    }
    done = {news["id"]: news["record"] for news in whole if news["event"] == "done"}
    at = CASE_IDS.index("mask")
    known = {name: done[name] for name in CASE_IDS[:at]} | {"mask": 2.0}
    rest: list[dict[str, Any]] = []
    again = grade(source, skip=known, on_case=rest.append)
    assert [news["id"] for news in rest if news["event"] == "start"] == CASE_IDS[at + 1 :]
    others = [[case for case in cases if case["id"] != "mask"] for cases in (report.cases, again.cases)]
    assert others[0] == others[1]
    hung = again.cases[at]["failure"]
    assert (hung["kind"], hung["says"]) == ("hang", "It did not answer within 2 s.")


def test_skipped_cases_do_not_pass() -> None:
    report = grade(plain.attend, skip=["mask", "nan"])
    assert not report.passed
    assert report.counts == {
        "passed": len(CASE_IDS) - 2,
        "failed": 0,
        "skipped": 2,
        "not run": 0,
        "cases": len(CASE_IDS),
    }


#: Programs of which there is no attend to call, and what is said.
NO_START = {
    "def attend(:": "Your program does not start: line 1 is not Python; mend it there, or on the line before.",
    "x = 1\n  y = 2": "Your program does not start: line 2 is not Python; mend it there, or on the line before.",
    "a\0b": "Your program does not start: it is not Python; mend it there, or on the line before.",
    "1 / 0": "Your program does not start: line 1 raises ZeroDivisionError; mend it, or take it out if attend does not "
    "need it.",
    "import math\nimport numpy_too as np": "Your program does not start: line 2 imports numpy_too, which the lab does not "
    "have; lists and the module math are enough.",
    "raise SystemExit": "Your program does not start: line 1 ends the program; take exit() and quit() out.",
    "n = input('how many? ')": "Your program does not start: line 1 asks for input; take input() out.",
    "": "Your program cannot be called: it defines no function attend; write def attend(query, keys, values, allowed): at "
    "the start of a line.",
    "attend = 5": "Your program cannot be called: it defines no function attend; write",
    "class Lab:\n    def attend(self, *four): pass": "Your program cannot be called: it defines no function attend; write",
    "import math\ndef attend(query, keys, values): pass": "Your program cannot be called: the attend of line 2 does not "
    "take four arguments; write",
    "def attend(q, k, v, a, *, scale): pass": "Your program cannot be called: the attend of line 1 does not take four",
    "class Trap(SyntaxError):\n    lineno = msg = property(lambda self: 1 / 0)\nraise Trap": "Your program does not start: "
    "line 3 raises Trap",
}


@pytest.mark.parametrize("source", NO_START)
def test_a_program_that_does_not_start_is_told_so_and_breaks_no_clause(source: str) -> None:
    """G2: what, where, and the way out; the exception's own words beside it."""
    report = grade(source)
    found = failure(report)
    assert found["says"].startswith(NO_START[source])
    assert (found["kind"], found["clause"], found["cause"]) == ("not started", None, None)
    assert found["hints"]
    assert report.counts["not run"] == len(CASE_IDS) - 1
    text = report.text()
    assert "clause" not in text
    assert f": {' '.join(found['yours']['message'].split())}"[:60] in text
    assert text.endswith(f"{len(CASE_IDS) - 1} cases were not run: the program does not start")


@pytest.mark.parametrize(
    "head", ["attend(*four)", "attend(q, k, v, a=None)", "attend(q, k, v, a, *more, scale=1, **other)"]
)
def test_whatever_takes_four_arguments_can_be_called(head: str) -> None:
    assert grade(f"def {head}: raise KeyError").cases[0]["status"] == "passed"


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("raise SystemExit(1)", "exits"),
        ("import sys; sys.exit()", "exits"),
        ("return math.sqrt(2)", "name-undefined"),
        ("import numpy_too", "module-missing"),
        ("return input()", "asks-the-keyboard"),
        ("return attend(*given)", "recurses-forever"),
    ],
)
def test_an_exception_that_is_one_mistake_is_named(body: str, cause: str) -> None:
    """The text of the exception stands beside its type."""
    report = grade(f"def attend(*given):\n    {body}\n")
    found = failure(report)
    assert (found["kind"], found["cause"]["id"]) == ("crashed", cause)
    said = found["yours"]["message"]
    assert f"  yours  {found['yours']['text']}{': ' if said else ''}{said[:40]}" in report.text()
    assert said or body.startswith("import sys")


def test_what_was_not_made_small_is_not_called_the_smallest() -> None:
    """A host that stops a case while its input is made smaller has the input as it was drawn."""
    news: list[dict[str, Any]] = []
    report = grade(solution("wrong", "forgot_scale"), on_case=news.append)
    first = report.first_failure
    assert first is not None
    (early,) = (one["record"] for one in news if one["event"] == "shrink" and one["id"] == first["id"])
    assert early["failure"]["numbers"] > first["failure"]["numbers"]
    assert (early["failure"]["smallest"], first["failure"]["smallest"]) == (False, True)
    assert "the input:\n" in explain(early)
    assert "the smallest input that shows it:\n" in explain(first)
    hung = grade(solution("right", "loops"), skip={"mask": 2.0}).first_failure
    assert hung is not None
    assert hung["failure"]["smallest"] is False


def test_a_mistake_that_is_known_is_not_looked_for_again() -> None:
    """Cases that fail by one mistake show one input, and cost one search; those that fail by another do not."""

    def calls(source: str) -> tuple[int, Report]:
        class Counted(grader.Local):
            count = 0

            def call(self, problem: Any) -> Any:
                Counted.count += 1
                return super().call(problem)

        report = grade(Counted(source), hidden=1)
        return Counted.count, report

    fewest = calls(solution("right", "loops"))[0]
    for name in ("forgot_scale", "wrong_axis", "remembers", "prints"):
        count, report = calls(solution("wrong", name))
        failed = [case["failure"]["code"] for case in report.cases if case["status"] == "failed"]
        assert len(failed) > len(set(failed)), name
        assert count < 2 * fewest, (name, count, fewest)
    # Two mistakes in one program stay two, with an input each.
    source = (
        solution("wrong", "forgot_scale").replace("if may)", "if True)").replace("if may else 0.0", "if True else 0.0")
    )
    report = calls(source)[1]
    shown = {case["failure"]["cause"]["id"]: case["failure"]["code"] for case in report.cases if case["failure"]}
    assert shown.keys() >= {"no-scale", "mask-ignored"}
    assert len(set(shown.values())) == len(shown)


def test_the_text_shows_input_answers_clause_cause_and_hints() -> None:
    report = grade(solution("wrong", "forgot_scale"))
    text = report.text()
    for part in ("attend([", "yours  (", "right  (", "clause B1", "likely cause: The scores are not divided by √d"):
        assert part in text
    first = report.first_failure
    assert first is not None
    assert "hint 2" in explain(first, hints=2)
    assert "hint" not in text


def test_a_counterexample_can_be_run_as_it_stands() -> None:
    for name in ("forgot_scale", "zip_truncates", "lets_nan_through", "mask_of_ints"):
        found = failure(grade(solution("wrong", name)))
        line = found["code"].splitlines()[0]
        problem = read_input(line)
        assert grader._same(problem, tuple(grader.decode(part) for part in found["input"].values()))
        record = try_input(solution("wrong", name), problem)
        assert record["status"] == "failed"
        assert record["failure"]["clause"]["number"] == found["clause"]["number"]


def test_printing_is_kept_short() -> None:
    report = grade("def attend(*_):\n    print('x' * 10000)")
    assert (len(report.printed), report.printed_cut) == (grader.PRINTED, True)


# Submissions ---------------------------------------------------------------------------------------------------------


def test_a_submission_is_its_code_and_a_report_in_it_is_nothing() -> None:
    code = solution("wrong", "forgot_scale")
    lie = grader.submission(code, grade(plain.attend))
    assert grader.submitted_code(json.dumps(lie)) == code
    assert grader.submitted_code(code) == code
    for text, message in (("{", "not JSON"), ('{"code": 5}', "text `code`"), ("{}", "text `code`")):
        with pytest.raises(ValueError, match=message):
            grader.submitted_code(text)


# Programs that mean it --------------------------------------------------------------------------------------------------


@pytest.fixture
def modules_as_they_were() -> Iterator[None]:
    """A hostile program changes every module it finds: the grader mends its own, and not those of the tests beside it."""
    before = [(module, dict(vars(module))) for module in [*sys.modules.values()] if hasattr(module, "__dict__")]
    yield
    for module, space in before:
        for name, thing in space.items():
            if vars(module).get(name) is not thing:
                vars(module)[name] = thing


@pytest.mark.usefixtures("modules_as_they_were")
@pytest.mark.parametrize(
    "name",
    [
        "edits_the_grader",
        "exits_softly",
        "interrupts",
        "strange_errors",
        "lies",
        "keeps_its_arguments",
        "endless_lists",
    ],
)
def test_in_this_interpreter_too_the_report_stays_right(name: str) -> None:
    """What a page's worker can survive, the grader survives; loops and memory are the host's."""

    def now() -> list[dict[str, Any]]:
        codes = {name: thing.__code__ for name, thing in vars(grader).items() if hasattr(thing, "__code__")}
        rest = {"limit": sys.getrecursionlimit(), "out": sys.stdout, "error": sys.stderr, "trace": sys.gettrace()}
        return [
            *(dict(vars(module)) for module in (builtins, math, json, grader, plain)),
            dict(vars(Report)),
            codes,
            rest,
        ]

    before = now()
    report = grade(solution("hostile", name))
    for old, new in zip(before, now(), strict=True):
        assert old.keys() == new.keys()
        assert all(old[key] is new[key] or type(old[key]) is int for key in old)
    assert before[-1]["limit"] == sys.getrecursionlimit()
    assert not report.passed
    assert report.cases[1]["status"] == "failed"
    assert json.dumps(report.to_dict(), allow_nan=False)
    assert grade(plain.attend).passed


@pytest.mark.usefixtures("modules_as_they_were")
def test_a_right_answer_from_a_hostile_program_is_right_still() -> None:
    source = solution("hostile", "edits_the_grader").replace("return [9.0] * 2, [9.0]", "return right(query, keys)")
    source += "\n\ndef right(query, keys):\n    return [1.0], [5.0]\n"
    record = try_input(source, ([1.0], [[1.0]], [[5.0]], [True]))
    assert record["status"] == "passed", record


# Elsewhere --------------------------------------------------------------------------------------------------------------


def test_as_two_loose_files_without_packages_it_gives_the_same_report(tmp_path: Path) -> None:
    for file in (SOURCE, Path(plain.__file__)):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "solution.txt").write_text(solution("wrong", "mask_after_softmax"), encoding="utf-8")
    program = (
        "import sys; sys.path.insert(0, '.'); import grader; "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('numpy', 'qkv', 'subprocess', 'resource', 'socket')]; "
        "print(grader.grade_json(open('solution.txt', encoding='utf-8').read(), seed=4))"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    there = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert there.returncode == 0, there.stderr
    here = grade(solution("wrong", "mask_after_softmax"), seed=4)
    assert essence(json.loads(there.stdout)) == essence(here)
