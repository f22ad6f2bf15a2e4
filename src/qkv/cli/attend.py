"""`qkv attend`: attention of the tensors in a file."""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError, EmptyRowError, FileError, NonFiniteError, ScoreOverflowError
from qkv.maskparse import parse_mask
from qkv.masks import Mask, window
from qkv.ranges import END

from . import draw
from .ways import with_options

__all__ = ["add_command"]

Array = npt.NDArray[Any]

_EPILOG = """\
examples:
  qkv attend tensors.npz
  qkv attend tensors.safetensors --mask 'causal & window(255, 0)' --out o.npz
  qkv attend tensors.npz --key k_cache --value v_cache --mask causal --align end

A mask is made of causal, window(left, right), first(n), prefix(n),
keys(lengths) and segments(ids), combined with & (both), | (either) and ~ (not).
"""

_ROLES = ("query", "key", "value")

#: Multiplications above which a bar is shown: about a second of work.
_LONG = 2e10


def add_command(commands: Any) -> None:
    """Add `attend` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "attend",
        help="compute attention of the tensors in a file",
        description="Compute attention of the tensors in a file and write the output.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("tensors", type=Path, help="a .safetensors or .npz file with query, key and value")
    for role, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        parser.add_argument(
            f"--{role}", metavar="NAME", help=f"name of the {role} in the file (default: {role} or {letter})"
        )
    parser.add_argument("--mask", metavar="EXPR", help="which query may read which key (default: all)")
    parser.add_argument("--align", metavar="end|start|N", help="where the queries stand when L != S")
    parser.add_argument("--scale", metavar="X", type=float, help="factor of the scores (default: 1/sqrt(D))")
    parser.add_argument("--softcap", metavar="C", type=float, help="bound the scores by C * tanh(score / C)")
    parser.add_argument("--empty", choices=("raise", "zero"), default="raise", help="rows with no allowed key")
    parser.add_argument("--nonfinite", choices=("raise", "propagate"), default="raise", help="NaN that is read")
    parser.add_argument("--layout", choices=("bhld", "bhsd", "blhd", "bshd"), default="bhld", help="order of the axes")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="where to write the arrays output and lse (default: NAME.output.npz in this folder)",
    )
    parser.add_argument("--explain", action="store_true", help="say which plan the call would use, and compute nothing")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, compute, write, and say so."""
    from qkv.explain import explain
    from qkv.files import write_tensors

    mask = _mask(arguments.mask, arguments.align)
    with with_options():
        names, operands, unread = _read(arguments)
    options = {
        "mask": mask,
        "scale": arguments.scale,
        "softcap": arguments.softcap,
        "empty": arguments.empty,
        "nonfinite": arguments.nonfinite,
        "layout": arguments.layout,
    }
    asked = _asked(arguments)
    with with_options():
        plan = replace(explain(*operands, **options), mask=asked)
    if arguments.explain:
        if arguments.json:
            draw.write_json(plan.to_dict())
        else:
            _show("plan", str(plan))
        return 0
    # Where the result goes is settled before the work is done.
    out = _out(arguments.out, arguments.tensors, str(operands[0].dtype))
    start = time.perf_counter()
    with with_options():
        output, lse = _compute(operands, options, share=plan.tiles_touched / max(plan.tiles, 1))
    seconds = time.perf_counter() - start
    results = {"output": output} if out.suffix.lower() == ".npy" else {"output": output, "lse": lse}
    write_tensors(out, results)
    summary = _summary(output)
    if arguments.json:
        draw.write_json(
            {
                "inputs": {
                    role: {"name": names[role], "shape": x.shape} for role, x in zip(_ROLES, operands, strict=True)
                },
                "dtype": str(output.dtype),
                "mask": arguments.mask,
                "align": arguments.align,
                "plan": plan.to_dict(),
                "seconds": seconds,
                "out": str(out),
                "written": {name: array.shape for name, array in results.items()},
                "unused": unread,
                **summary,
            }
        )
        return 0
    for role, x in zip(_ROLES, operands, strict=True):
        called = "" if names[role] == role else f" (named {names[role]})"
        _show(role, f"{_shape(x)} {x.dtype}{called}")
    _show("mask", asked or "every query reads every key")
    _show("plan", str(plan))
    _show("done", f"in {seconds:.2f} s; {_said(summary)}")
    _show("wrote", f"{', '.join(f'{name} {_shape(array)}' for name, array in results.items())} to {out}")
    if unread:
        _show("unused", f"{_listing(unread)}; nothing asked for {'it' if len(unread) == 1 else 'them'}")
    return 0


def _asked(arguments: argparse.Namespace) -> str:
    """The mask as it was typed, on one line, and where its queries were said to stand; "" where there is none."""
    if arguments.mask is None:
        return ""
    text = " ".join(arguments.mask.split())
    return text if arguments.align is None else f"{text} (--align {arguments.align.strip()})"


def _show(label: str, said: str) -> None:
    for at, line in enumerate(said.splitlines()):
        draw.text(line, indent=8, label=label if at == 0 else "")


def _read(arguments: argparse.Namespace) -> tuple[dict[str, str], list[Array], list[str]]:
    """The names and arrays of query, key and value, and the names of what else was read from the file."""
    from qkv.files import read_tensors

    asked = {role: getattr(arguments, role) for role in _ROLES}
    every = all(name is not None for name in asked.values())
    tensors = read_tensors(arguments.tensors, names=asked.values() if every else None)
    names = {
        role: name if name is not None else _default_name(role, tensors, arguments.tensors)
        for role, name in asked.items()
    }
    for role, name in names.items():
        if name not in tensors:
            raise FileError(f"{arguments.tensors} has no tensor {name!r} for --{role}; it has {_listing(tensors)}")
    operands = [_array(tensors[names[role]], role) for role in _ROLES]
    return names, operands, [name for name in tensors if name not in names.values()]


def _default_name(role: str, tensors: Any, path: Path) -> str:
    found = [name for name in (role, role[0]) if name in tensors]
    if len(found) == 1:
        return found[0]
    came = f"both {found[0]!r} and {found[1]!r}" if found else f"neither {role!r} nor {role[0]!r}"
    raise FileError(f"{path} has {came}; say which tensor is the {role} with --{role} NAME: it has {_listing(tensors)}")


def _listing(tensors: Any, most: int = 8) -> str:
    names = [repr(name) if len(name) <= 40 else repr(name[:37]) + "…" for name in list(tensors)[:most]]
    return ", ".join([*names, *([f"{len(tensors) - most} more"] if len(tensors) > most else [])]) or "nothing"


def _array(tensor: Any, role: str) -> Array:
    """The tensor as an array whose dtype is its own."""
    if tensor.dtype != "bfloat16":
        array: Array = tensor.array
        return array
    try:
        import ml_dtypes
    except ImportError:
        raise FileError(
            f"{role} is bfloat16, which NumPy has only through the package ml_dtypes; "
            "write pip install ml_dtypes, or save it as float32"
        ) from None
    return tensor.array.view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]


def _mask(text: str | None, align: str | None) -> Mask | None:
    if text is None:
        if align is not None:
            raise ArgumentError(
                "--align says where the queries of a mask stand, but there is no --mask; add one or leave --align out"
            )
        return None
    mask = parse_mask(text)
    if align is None:
        return mask
    if not mask.positional:
        raise ArgumentError(f"--align is for rules about positions, but the mask {mask!r} has none; leave --align out")
    # Open on both sides, this allows every pair; one expression has one alignment, so it says it for all (B6).
    whole = mask & window(None, None, align=_where(align))
    told = next((rule for rule in mask.leaves() if rule.align is not None), None)
    if told is not None:
        raise ArgumentError(f"one alignment must be said once, but --align and {told!r} both say one; leave one out")
    return whole


def _where(align: str) -> Any:
    """The alignment that the words of --align stand for."""
    word = align.strip()
    if word in ("end", "start"):
        return word
    if not re.fullmatch(r"[+-]?[0-9]+", word):
        raise ArgumentError(
            "--align must be end, start or the position of the first query, a whole number, "
            f"but {word if len(word) <= 40 else word[:37] + '…'!r} came; write --align end"
        )
    # 2**40 has 13 digits; longer than 4,300 Python would not read.
    if len(word) > 20 or abs(int(word)) >= END:
        raise ArgumentError(
            f"--align must be below 2**40 in size, but a number of {len(word.lstrip('+-'))} digits came; "
            "write the position of the first query, or --align end"
        )
    return int(word)


def _out(asked: Path | None, tensors: Path, dtype: str) -> Path:
    suffix = tensors.suffix.lower() if tensors.suffix.lower() in (".npz", ".safetensors") else ".npz"
    out = asked if asked is not None else Path(f"{tensors.stem}.output{suffix}")
    if out.suffix.lower() not in (".npz", ".safetensors", ".npy"):
        raise ArgumentError(
            f"--out must end in .npz, .safetensors or .npy, but {str(out)!r} came; write --out {out.stem}.npz"
        )
    if dtype == "bfloat16" and out.suffix.lower() != ".safetensors":
        raise ArgumentError(
            f"--out must end in .safetensors for bfloat16, which {out.suffix} has no name for, but {str(out)!r} came; "
            f"write --out {out.stem}.safetensors"
        )
    if out.exists() and not out.is_file():
        # Known before the work; and a pipe or a device would not be written to, but replaced.
        kind = "a folder" if out.is_dir() else "a pipe or a device"
        raise ArgumentError(f"--out must be a file, but {str(out)!r} is {kind}; give another name")
    if out.exists() and out.samefile(tensors):
        raise ArgumentError(f"--out must not be the file that is read, but {str(out)!r} is; give another name")
    if not out.parent.is_dir():
        raise ArgumentError(f"--out must be in a folder that exists, but {str(out.parent)!r} is none; make it first")
    return out


def _compute(operands: list[Array], options: dict[str, Any], share: float) -> tuple[Array, Array]:
    """Output and log-sum-exp; long work goes one key/value head at a time, so that there is a bar to look at.

    A row's numbers depend on its own head alone, and a mask in text has no head axis, so the parts are the whole.
    """
    from qkv.attention import attention

    query, key, _ = operands
    heads = -2 if options["layout"] in ("blhd", "bshd") else -3
    length = -5 - heads
    alone = query.ndim < 3 or key.shape[heads] < 2
    work = query.size * key.shape[length] * share
    if alone or work < _LONG:
        with draw.progress("attending", 1, show=work >= _LONG) as advance:
            whole = attention(*operands, **options)
            advance()
        return whole.output, whole.lse
    groups = key.shape[heads]
    parts = []
    try:
        with draw.progress("attending", groups, show=True) as advance:
            for at in range(groups):
                part = attention(*(np.array_split(x, groups, heads)[at] for x in operands), **options)
                parts.append((part.output, part.lse))
                advance()
    except (EmptyRowError, NonFiniteError, ScoreOverflowError):
        # The error speaks of the part; the whole call says the same of the caller's own heads.
        attention(*operands, **options)
        raise
    return np.concatenate([out for out, _ in parts], heads), np.concatenate([lse for _, lse in parts], -2)


def _summary(output: Array) -> dict[str, Any]:
    """Mean and largest magnitude over the rows that are numbers, and how many are not."""
    numbers = output.astype(np.float64)
    failed = np.isnan(numbers).any(-1)
    kept = numbers[~failed]
    return {
        "mean": float(kept.mean()) if kept.size else None,
        "max_abs": float(np.abs(kept).max()) if kept.size else None,
        "nan_rows": int(failed.sum()),
    }


def _said(summary: dict[str, Any]) -> str:
    if summary["mean"] is None:
        said = "there are no numbers in the output"
    else:
        said = f"mean {draw.number(summary['mean'])}, largest magnitude {draw.number(summary['max_abs'])}"
    return said + (f"; rows that are NaN: {summary['nan_rows']:,}" if summary["nan_rows"] else "")


def _shape(x: Array) -> str:
    return "×".join(str(size) for size in x.shape)
