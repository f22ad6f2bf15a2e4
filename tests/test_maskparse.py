"""Mask expressions in text: read as Python would read them, never evaluated (B5, G2)."""

from __future__ import annotations

import random
import string
import warnings

import pytest

from qkv import masks
from qkv.errors import ArgumentError
from qkv.maskparse import MAX_DEPTH, MAX_LENGTH, RULES, parse_mask

NAMESPACE = {name: getattr(masks, name) for name in RULES}

# Text that means the same in Python, where the names are imported.
SAME_AS_PYTHON = [
    "causal()",
    "~causal()",
    "~~causal()",
    "causal() & window(255, 0)",
    "causal() & window(255, 0) | first(4)",
    "causal() & (window(255, 0) | first(4))",
    "first(1) | causal() & ~window(2, None)",
    "~causal() & first(3) | prefix(2)",
    "causal() | ~(first(2) & window(None, 0))",
    "window(left=3, right=None)",
    "window(3, right=0, align='end')",
    "causal(align='start')",
    'causal(align="end")',
    "causal(align=-3)",
    "prefix(4, align=2)",
    "prefix(n=4)",
    "first(n=0)",
    "keys(5)",
    "keys([3, 5])",
    "keys(2, 7)",
    "keys([0, 1], [4, 4])",
    "first(0x10)",
    "first(1_000)",
    "((causal()))",
]


@pytest.mark.parametrize("text", SAME_AS_PYTHON)
def test_text_means_what_python_means_by_it(text: str) -> None:  # B5: Python's precedence holds
    expected = eval(text, {"__builtins__": {}}, NAMESPACE)
    assert repr(parse_mask(text)) == repr(expected)


def test_lists_become_integer_arrays() -> None:
    two = parse_mask("segments(query_ids=[0, -1], key_ids=[0, -1, 1])")
    assert isinstance(two, masks.Segments)
    assert two.query_ids.tolist() == [0, -1]
    assert two.key_ids.tolist() == [0, -1, 1]
    assert repr(parse_mask("segments([0, 0, 1])")) == "segments(<ids (3,)>)"
    assert repr(parse_mask("causal(align=[1, 2])")) == "causal(align=array([1, 2]))"
    assert repr(parse_mask("keys([])")) == "keys([])"


def test_bare_names_and_spaces() -> None:
    assert repr(parse_mask("causal")) == "causal()"
    assert repr(parse_mask("~causal & causal")) == "~causal() & causal()"
    assert repr(parse_mask("  causal\n\t& first(2) \n")) == "causal() & first(2)"


def test_what_a_mask_prints_is_read_back() -> None:
    mask = masks.causal(align="end") & (masks.window(255, 0) | masks.first(4)) & ~masks.prefix(2)
    assert repr(parse_mask(repr(mask))) == repr(mask)


OPERATORS = "; masks combine with & (both), | (either) and ~ (not)"
NAMES = "; the rules are causal, window, first, prefix, keys, segments"
WRITE = "; write it like causal() & window(255, 0)"

# (text, the sentence, the column under which the caret stands; None: no picture)
REFUSED: list[tuple[str, str, int | None]] = [
    ("", "mask must be an expression, but is empty; write one such as 'causal()'", None),
    (" \n ", "mask must be an expression, but is empty; write one such as 'causal()'", None),
    ("causal and first(4)", "mask has `and` where an operator is expected" + OPERATORS, 7),
    ("causal() or  first(4)", "mask has `or` where an operator is expected" + OPERATORS, 9),
    ("not causal", "mask has `not` where an operator is expected" + OPERATORS, 0),
    ("-causal", "mask has `-` where an operator is expected" + OPERATORS, 0),
    ("causal() + first(2)", "mask has `+` where an operator is expected" + OPERATORS, 9),
    ("(causal) ^ (first(1))", "mask has `^` where an operator is expected" + OPERATORS, 9),
    ("causal & first(1) ** first(2)", "mask has `**` where an operator is expected" + OPERATORS, 18),
    ("causal, first(1)", "mask has a comma between masks" + OPERATORS, 0),
    ("causal &", "mask is not a complete expression (a part is missing or out of place)" + WRITE, 8),
    (" causal & ", "mask is not a complete expression (a part is missing or out of place)" + WRITE, 9),
    ("causal first(1)", "mask is not a complete expression (a part is missing or out of place)" + WRITE, None),
    ("(causal & window(1, 0)", "mask is not a complete expression ('(' was never closed)" + WRITE, 0),
    ("causal)", "mask is not a complete expression (unmatched ')')" + WRITE, 6),
    ("causal; first(2)", "mask is not a complete expression (a part is missing or out of place)" + WRITE, 6),
    ("causal = 1", "mask is not a complete expression (a part is missing or out of place)" + WRITE, None),
    ("windw(2, 0)", "mask has windw, which is no rule; did you mean window?", 0),
    ("causal & Causal()", "mask has Causal, which is no rule; did you mean causal?", 9),
    ("open('/etc/passwd')", "mask has open, which is no rule" + NAMES, 0),
    ("None", "mask has None where a rule is expected" + NAMES, 0),
    ("causal & 3", "mask has 3 where a rule is expected" + NAMES, 9),
    ("'causal()'", "mask has 'causal()' where a rule is expected" + NAMES, 0),
    ("allow([1])", "mask has allow, which takes an array or a function; use it from Python", 0),
    ("where(f)", "mask has where, which takes an array or a function; use it from Python", 0),
    ("qkv.causal()", "mask has a dotted name; write the rule's name alone, such as causal()", 0),
    ("causal.__class__", "mask has a dotted name; write the rule's name alone, such as causal()", 0),
    ("__import__('os').system('true')", "mask has a dotted name; write the rule's name alone, such as causal()", 0),
    ("causal()()", "mask has a call of something that has no name" + NAMES, 0),
    ("causal[0]", "mask has something that is no mask" + OPERATORS + ", and" + NAMES[1:], 0),
    ("lambda: causal", "mask has something that is no mask" + OPERATORS + ", and" + NAMES[1:], 0),
    ("[causal for x in y]", "mask has something that is no mask" + OPERATORS + ", and" + NAMES[1:], 0),
    ("f'{causal}'", "mask has something that is no mask" + OPERATORS + ", and" + NAMES[1:], None),
    ("(x := causal)", "mask has something that is no mask" + OPERATORS + ", and" + NAMES[1:], None),
    ("causal == first(1)", "mask has something that is no mask" + OPERATORS + ", and" + NAMES[1:], 0),
    (
        "causal & window(2)",
        "mask: the arguments of window do not fit (missing a required argument: 'right'); write window(left, right, align=…)",
        9,
    ),
    (
        "causal('end')",
        "mask: the arguments of causal do not fit (too many positional arguments); write causal(align=…)",
        0,
    ),
    (
        "first(n=1, m=2)",
        "mask: the arguments of first do not fit (got an unexpected keyword argument 'm'); write first(n)",
        0,
    ),
    ("first(n=1, n=2)", "mask: first has n= twice; write first(n)", 13),
    ("first(**{'n': 1})", "mask: first has ** before an argument; write first(n)", 8),
    ("first(*[1])", "mask: n of first must be an integer; write a literal in place of *[1]", 6),
    ("first(2**99)", "mask: n of first must be an integer; write a literal in place of 2**99", 6),
    ("first(x)", "mask: n of first must be an integer; write a literal in place of x", 6),
    ("first(1.0)", "mask: n of first must be an integer; write a literal in place of 1.0", 6),
    ("first(True)", "mask: n of first must be an integer; write a literal in place of True", 6),
    ("first(None)", "mask: n of first must be an integer; write a literal in place of None", 6),
    ("first('end')", "mask: n of first must be an integer; write a literal in place of 'end'", 6),
    ("first(--1)", "mask: n of first must be an integer; write a literal in place of --1", 6),
    ("first(causal())", "mask: n of first must be an integer; write a literal in place of causal()", 6),
    ("window(1j, 0)", "mask: left of window must be an integer or None; write a literal in place of 1j", 7),
    (
        "keys([True])",
        "mask: lengths of keys must be an integer or a list of integers; write a literal in place of [True]",
        5,
    ),
    (
        "keys([[1]])",
        "mask: lengths of keys must be an integer or a list of integers; write a literal in place of [[1]]",
        5,
    ),
    (
        "keys((1, 2))",
        "mask: lengths of keys must be an integer or a list of integers; write a literal in place of (1, 2)",
        5,
    ),
    (
        "causal(align='middle')",
        'mask: align of causal must be an integer or a list of integers or None or "end" or "start"; '
        "write a literal in place of 'middle'",
        13,
    ),
    ("first(99999999999999999999)", "mask: n of first has an integer of more than 62 bits; write a smaller one", 6),
    ("first(" + "9" * 5000 + ")", "mask has an integer of more than 62 bits; write a smaller one", None),
    ("causal # & first(1)", "mask has the character '#'; leave comments and escapes out", 7),
    ("causal & \\first(1)", "mask has the character '\\\\'; leave comments and escapes out", 9),
    ("c\u00e1usal", "mask has the character '\\xe1'; use plain ASCII characters", 1),
    # Python reads full-width letters as plain ones; a reader of the text would not.
    ("\uff43ausal", "mask has the character '\\uff43'; use plain ASCII characters", 0),
    ("causal\x00", "mask has the character '\\x00'; use plain ASCII characters", 6),
    ("causal\x1b[2J", "mask has the character '\\x1b'; use plain ASCII characters", 6),
    (
        "causal " + "& causal " * MAX_DEPTH,
        f"mask is nested more than {MAX_DEPTH} levels deep; build masks of that size in Python",
        0,
    ),
    (
        # Python itself opens 200 brackets at most, and says so as if the text were wrong.
        "(" * 300 + "causal" + ")" * 300,
        f"mask is nested more than {MAX_DEPTH} levels deep; build masks of that size in Python",
        None,
    ),
    (
        "causal() & ()",
        "mask has brackets with nothing in them; put a mask in them, such as (causal())",
        11,
    ),
    (
        "~" * 5000 + "causal",
        f"mask is nested more than {MAX_DEPTH} levels deep; build masks of that size in Python",
        None,
    ),
    (
        "causal" + " " * MAX_LENGTH + "& causal",
        "mask must have at most 10,000 characters, but has 10,014; build masks of that size in Python",
        None,
    ),
]


@pytest.mark.parametrize(
    ("text", "sentence", "column"), REFUSED, ids=[text[:30] or "nothing" for text, _, _ in REFUSED]
)
def test_anything_else_is_one_sentence_and_a_caret(text: str, sentence: str, column: int | None) -> None:  # G2
    with pytest.raises(ArgumentError) as caught:
        parse_mask(text)
    said, *picture = str(caught.value).split("\n")
    assert said == sentence
    assert all(len(line) <= 80 and line.isprintable() for line in picture)
    if column is not None:
        shown, caret = picture
        assert caret == " " * (column + 2) + "^"
        assert shown[2:6] == "".join(c if " " <= c <= "~" else "?" for c in text)[:4]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("causal & window(-1, 0)", "window: left must not be negative"),
        ("causal & first(-4)", "first: n must not be negative"),
        ("causal & keys(-1)", "keys: lengths must not be negative"),
        ("causal & keys(3, 2)", "keys: start must not be after stop"),
    ],
)
def test_a_rules_own_refusal_keeps_its_sentence_and_gains_the_place(text: str, sentence: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_mask(text)
    said, shown, caret = str(caught.value).split("\n")
    assert said.startswith(sentence)
    assert (shown, caret) == (f"  {text}", " " * 11 + "^")


def test_not_a_text() -> None:
    with pytest.raises(
        ArgumentError, match="mask must be an expression in text here, but Causal came; pass a string such as"
    ):
        parse_mask(masks.causal())  # type: ignore[arg-type]


def test_a_long_expression_shows_the_part_that_matters() -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_mask("causal & " * 30 + "frist(1) & " + "causal & " * 30 + "causal")
    _, shown, caret = str(caught.value).split("\n")
    assert shown.startswith("  …")
    assert shown.endswith("…")
    assert shown[caret.index("^") :].startswith("frist(1)")


def test_reading_warns_about_nothing_and_runs_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in ("causal if 1is 1 else 2", "first('\\d')", "1 is causal"):
            with pytest.raises(ArgumentError):
                parse_mask(text)


def test_noise_makes_a_mask_or_an_argument_error() -> None:
    chance = random.Random(5)
    words = [
        *RULES,
        "(",
        ")",
        "[",
        "]",
        "&",
        "|",
        "~",
        ",",
        "=",
        "1",
        "-",
        "None",
        "'end'",
        "align",
        "and",
        "not",
        ":",
        ".",
        "*",
        "lambda",
        "{",
        "if",
        "else",
        "for",
        "in",
    ]
    for _ in range(3000):
        text = "".join(chance.choice(words) + chance.choice(["", " "]) for _ in range(chance.randrange(1, 12)))
        if chance.random() < 0.3:
            text += chance.choice(string.printable)
        try:
            mask = parse_mask(text)
        except ArgumentError:
            continue
        assert isinstance(mask, masks.Mask)
