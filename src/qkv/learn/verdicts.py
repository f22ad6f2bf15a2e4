"""What well-known libraries do with a kind of input: looked up by clause, from verdicts that the audit wrote.

`content/verdicts.json` is made by a command, not by hand:

    qkv audit --all --verdicts src/qkv/learn/content/verdicts.json
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from qkv.errors import ArgumentError

__all__ = ["Elsewhere", "elsewhere", "table", "verdicts"]


class Elsewhere(NamedTuple):
    """What libraries do with one kind of input.

    Attributes:
        case: id of the audit's case. title: the input in words. does: what is done -> the libraries that do it, the
            contract's way first, then the most common.
    """

    case: str
    title: str
    does: dict[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def verdicts() -> dict[str, Any]:
    """The whole file: `made` (when, with what), `versions` of the libraries, `cases`."""
    text = resources.files("qkv.learn").joinpath("content/verdicts.json").read_text(encoding="utf-8")
    whole: dict[str, Any] = json.loads(text)
    return whole


def elsewhere(clause: str) -> list[Elsewhere]:
    """What libraries do with the inputs of one clause of the contract, such as "C2"; qkv itself is left out.

    Raises:
        ArgumentError: there is no such clause.

    >>> [kind.title for kind in elsewhere("C2") if kind.case == "C2-mask"]
    ['a row that may read nothing']
    """
    cases = verdicts()["cases"]
    clauses = sorted({name for told in cases.values() for name in told["clauses"]})
    if clause not in clauses:
        raise ArgumentError(f"clause must be among {', '.join(clauses)}, but {clause!r} came")
    out = []
    for case, told in cases.items():
        if clause not in told["clauses"]:
            continue
        others = {does: tuple(n for n in names if not n.startswith("qkv")) for does, names in told["does"].items()}
        ways = sorted(others.items(), key=lambda item: (item[0] != "as the contract says", -len(item[1]), item[0]))
        if any(others.values()):
            out.append(Elsewhere(case, told["title"], {does: names for does, names in ways if names}))
    return out


#: What "as the contract says" means, for the cases that an input in the lab can be like.
_RIGHT = {
    "A3-no-keys": "answers 0",
    "A3-no-width": "refuses it",
    "B1-default": "divides by the square root of the width",
    "B4-numbers": "refuses it",
    "B4-polarity": "True: the query may read this key",
    "C1-forbidden-maximum": "is right",
    "C1-large-scores": "is right",
    "C2-mask": "answers 0",
    "C3-low-score": "is right",
    "C3-lowest-score": "is right",
    "D1-key-nan-mask": "leaves that key out",
    "D1-value-inf-mask": "leaves that value out",
    "D1-value-nan-mask": "leaves that value out",
    "D2-empty-query": "answers 0",
    "D2-key-inf": "NaN in the rows that read it, no other",
    "D2-key-nan": "NaN in the rows that read it, no other",
    "D2-query-inf": "NaN in that row, no other",
    "D2-query-nan": "NaN in that row, no other",
    "D2-value-inf": "NaN in the rows that read it, no other",
    "D2-value-nan": "NaN in the rows that read it, no other",
    "D3-half": "is right",
    "D3-minus": "weight 0",
    "D3-mixture": "is right",
    "D3-score": "NaN, no wrong number",
    "G2-values": "refuses it",
    "G2-width": "refuses it",
}

#: A kernel of the audit -> its library, and which of its functions.
_CALLED = {
    "torch-sdpa": ("torch", "SDPA"),
    "torch-sdpa-math": ("torch", "SDPA (math)"),
    "torch-sdpa-flash": ("torch", "SDPA (flash)"),
    "torch-mha": ("torch", "MultiheadAttention"),
    "torch-mha-weights": ("torch", "MultiheadAttention (with weights)"),
    "torch-flex": ("torch", "FlexAttention"),
    "jax": ("JAX", ""),
    "keras-torch": ("Keras", "function (torch)"),
    "keras-jax": ("Keras", "function (JAX)"),
    "keras-layer-torch": ("Keras", "layer (torch)"),
    "keras-layer-jax": ("Keras", "layer (JAX)"),
    "transformers-eager": ("transformers", "eager"),
    "transformers-sdpa": ("transformers", "sdpa"),
    "onnx": ("ONNX reference", ""),
    "onnxruntime": ("ONNX Runtime", ""),
    "mlx": ("MLX", ""),
    "openvino": ("OpenVINO", ""),
}


def table() -> dict[str, Any]:
    """What the lab's page shows: case -> the input in words, and for each way to treat it the libraries that do so.

    Returns:
        `made`: when, with what. `cases`: id -> `title`, and `does`: a list of `what` is done, whether it is what the
        contract says (`right`), and `who`: a list of {library, version, functions}.

    >>> table()["cases"]["C2-mask"]["does"][0]["what"]
    'answers 0'
    """
    whole = verdicts()
    return {"made": whole["made"], "cases": {case: _shown(whole, case) for case in _RIGHT if case in whole["cases"]}}


def _shown(whole: dict[str, Any], case: str) -> dict[str, Any]:
    told = whole["cases"][case]
    does: dict[str, list[str]] = {}
    for said, names in told["does"].items():
        what = _RIGHT[case] if said == "as the contract says" else said.replace("refused, with an error", "refuses it")
        does.setdefault(what, []).extend(name for name in names if name in _CALLED)
    ways = sorted(does.items(), key=lambda item: (item[0] != _RIGHT[case], -len(item[1]), item[0]))
    rows = [
        {"what": what, "right": what == _RIGHT[case], "who": _who(names, whole["versions"])}
        for what, names in ways
        if names
    ]
    return {"title": told["title"], "does": rows}


def _who(names: list[str], versions: dict[str, str]) -> list[dict[str, Any]]:
    out: dict[tuple[str, str], list[str]] = {}
    for name in names:
        library, function = _CALLED[name]
        out.setdefault((library, versions[name]), []).extend([function] if function else [])
    return [{"library": library, "version": version, "functions": some} for (library, version), some in out.items()]
