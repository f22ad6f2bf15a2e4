"""The formulas of the lessons in MathML, which browsers set without a script or a font of their own.

Written as the page reads them: `softmax(q · k / √d) · v` is Vaswani et al. 2017, "Attention Is All You Need",
section 3.2.1, and the letters are those of `qkv.trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["FORMULAS", "formula"]


def _row(*parts: str) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"


def _i(name: str) -> str:
    return f"<mi>{name}</mi>"


def _o(sign: str) -> str:
    return f"<mo>{sign}</mo>"


def _n(number: int) -> str:
    return f"<mn>{number}</mn>"


def _bold(name: str) -> str:
    return f'<mi class="vector">{name}</mi>'


def _sub(base: str, index: str) -> str:
    return f"<msub>{base}{index}</msub>"


def _sup(base: str, power: str) -> str:
    return f"<msup>{base}{power}</msup>"


def _over(top: str, bottom: str) -> str:
    return f"<mfrac>{top}{bottom}</mfrac>"


def _root(inner: str) -> str:
    return f"<msqrt>{inner}</msqrt>"


def _sum(index: str) -> str:
    return f"<munder>{_o('∑')}{index}</munder>"


def _exp(power: str) -> str:
    return _row(_i("exp"), _o("&#x2061;"), _o("("), power, _o(")"))


_Q, _K, _V = _bold("q"), _sub(_bold("k"), _i("j")), _sub(_bold("v"), _i("j"))
_S, _W = _sub(_i("s"), _i("j")), _sub(_i("w"), _i("j"))
_SI = _sub(_i("s"), _i("i"))
_MAX = _i("m")
_HEADS = _row(
    _o("["), _sub(_bold("o"), _n(1)), _o(","), _o("…"), _o(","), _sub(_bold("o"), _i("H")), _o("]")
)  # side by side

FORMULAS: Mapping[str, Callable[[], str]] = {
    "score": lambda: _row(_S, _o("="), _over(_row(_Q, _o("·"), _K), _root(_i("d")))),
    "softmax": lambda: _row(_W, _o("="), _over(_exp(_S), _row(_sum(_i("i")), _exp(_SI)))),
    "stable-softmax": lambda: _row(
        _W,
        _o("="),
        _over(_exp(_row(_S, _o("−"), _MAX)), _row(_sum(_i("i")), _exp(_row(_SI, _o("−"), _MAX)))),
        _o(","),
        "<mspace width='1em'/>",
        _MAX,
        _o("="),
        _row(f"<munder>{_i('max')}{_i('i')}</munder>", _SI),
    ),
    "context": lambda: _row(_bold("o"), _o("="), _sum(_i("j")), _W, _V),
    "attention": lambda: _row(
        _i("softmax"),
        _o("("),
        _over(_row(_bold("Q"), _sup(_bold("K"), _i("⊤"))), _root(_i("d"))),
        _o(")"),
        _bold("V"),
    ),
    "causal": lambda: _row(
        _sub(_i("w"), _row(_i("t"), _i("j"))), _o("="), _n(0), _i("&#xA0;for&#xA0;"), _i("j"), _o("&gt;"), _i("t")
    ),
    "multi-head": lambda: _row(_bold("y"), _o("="), _HEADS, _sub(_bold("W"), _i("O"))),
}


def formula(name: str) -> str:
    """A formula by name, as a display."""
    return f'<math display="block">{FORMULAS[name]()}</math>'
