"""`qkv lens`: what the heads of a model read in a text, in the terminal, as a page, a picture or JSON."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import ArgumentError, FileError

from . import draw, lens_show, reading

if TYPE_CHECKING:
    from qkv.lens import Capture
    from qkv.lens.views import Picture
    from qkv.models import Model

__all__ = ["add_command"]

#: How many tokens are read unless --tokens says otherwise, and the most of a text that is read at all.
TOKENS = 512
_LONGEST = 1 << 22

_SUFFIXES = (".html", ".svg", ".png", ".json")
_QUANTITIES = {"weight": "weight", "contribution": "norm_share", "share": "share", "influence": "influence"}

_EPILOG = """\
examples:
  qkv lens --model glassllm
  qkv lens --model smollm2 --text chapter.txt --layer 5 --head 6 --query last
  qkv lens --model smollm2 --text chapter.txt --quantity influence --out view.html
  qkv lens --model minilm --text - --out head.svg --out numbers.json
  qkv lens --model smollm2 --text chapter.txt --serve

A page holds maps of all heads and every number of the rows asked; an .svg or .png
what is drawn of one head and row; with --serve the page has every row of every
head, computed when asked for. Nothing is downloaded.
"""


def add_command(commands: Any) -> None:
    """Add `lens` to the subparsers of `qkv`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "lens",
        help="show what the heads of a model read in a text",
        description="Show what the heads of a model read in a text.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        default="glassllm",
        help="glassllm, smollm2, minilm, a folder, .gguf or .npz file, or an ID in the local cache",
    )
    parser.add_argument("--text", metavar="FILE", help="what it reads, - for stdin (default: a text that comes along)")
    parser.add_argument("--tokens", metavar="N", type=int, help=f"how many tokens of it (default: up to {TOKENS})")
    parser.add_argument("--layer", metavar="N", type=int, help="which layer is shown, from 0 (default: the middle one)")
    parser.add_argument("--head", metavar="N", type=int, default=0, help="which head of it, from 0 (default: 0)")
    parser.add_argument("--query", metavar="N", default="last", help="which token asks: last, or its number")
    parser.add_argument(
        "--quantity", choices=sorted(_QUANTITIES), default="weight", help="what is shown (default: weight)"
    )
    parser.add_argument(
        "--sink", metavar="N", type=int, default=0, help="the key held out of the colours, -1 for none (default: 0)"
    )
    parser.add_argument("--attention", metavar="NAME", help="eager, sdpa, qkv, … (default: the model's own choice)")
    parser.add_argument(
        "--out", metavar="FILE", action="append", help="write .html, .svg, .png or .json; may be given again"
    )
    parser.add_argument("--serve", action="store_true", help="serve the page on this machine alone, until Ctrl-C")
    parser.add_argument("--port", metavar="N", type=int, default=0, help="where it is served (default: a free port)")
    parser.add_argument("--pickles", action="store_true", help="read .bin files, which may run code")
    parser.add_argument("--json", action="store_true", help="print the numbers of the row as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Capture, and show or write what was asked."""
    from qkv import lens, models
    from qkv.lens.views import picture

    outs = [_out(name) for name in arguments.out or ()]
    _check_serving(arguments)
    text = reading.read_text(arguments.text, _LONGEST)
    show = not arguments.json
    own = None if arguments.attention == "qkv" else arguments.attention
    with draw.progress(f"reading {arguments.model}", 1, show=show):
        model = models.load(arguments.model, attention=own, pickles=arguments.pickles)
    words, whole = _words(model, text, arguments.tokens)
    tokens = model.tokens(words["input_ids"][0])
    kernels = "qkv" if arguments.attention == "qkv" else "model"
    with (
        draw.progress(f"capturing {len(tokens)} tokens", 1, show=show),
        reading.faults_of_the_model("try another --attention or fewer --tokens"),
    ):
        seen = lens.capture(model.module, words, attention=kernels, tokens=tokens, name=model.name)
    if len(tokens) < whole:
        seen = replace(seen, facts={**seen.facts, "tokens": f"the first {len(tokens)} of {whole}"})
    asked = _asked(arguments, seen, len(tokens))
    command = _command(arguments)
    maps = bool(outs) or arguments.serve
    heads = sum(len(layer.heads) for layer in seen.layers)
    with draw.progress("pooling maps", heads, show=show and maps) as step:
        done = 0

        def progress(now: int, _: int) -> None:
            nonlocal done
            for _i in range(now - done):
                step()
            done = now

        shown = picture(
            seen,
            rows=[asked],
            quantity=_QUANTITIES[arguments.quantity],
            maps=maps,
            sink=None if arguments.sink < 0 else arguments.sink,
            command=command,
            progress=progress,
        )
    for path in outs:
        _write(path, shown)
    if arguments.json:
        draw.write_json({"facts": dict(shown.facts), "command": command, **shown.start.row.to_dict()})
    else:
        lens_show.show(shown, seen, outs, served=arguments.serve)
    if arguments.serve:
        _serve(shown, seen, arguments.port)
    return 0


def _check_serving(arguments: argparse.Namespace) -> None:
    """Before a model is read, say what cannot be served."""
    if arguments.serve and arguments.json:
        raise ArgumentError("--serve shows a page, and --json prints one row; leave one of them out")
    if arguments.port and not arguments.serve:
        raise ArgumentError(f"--port {arguments.port} is where --serve serves, and that is missing; write --serve too")
    if not 0 <= arguments.port <= 65535:
        raise ArgumentError(f"--port must be within 0…65535, but {arguments.port} came; 0 takes a free one")


def _serve(shown: Picture, seen: Capture, port: int) -> None:
    import sys

    from qkv.lens.views import Server

    server = Server(seen, shown, port=port)
    draw.lines(f"\nThe page is at {server.link}\nCtrl-C stops it.")
    sys.stdout.flush()
    server.run()
    draw.lines("\nStopped.")


def _out(name: str) -> Path:
    path = Path(name)
    if path.suffix not in _SUFFIXES:
        raise ArgumentError(f"--out {name} must end in {', '.join(_SUFFIXES)}; the ending says what is written")
    if not path.parent.is_dir():
        raise FileError(f"--out {name}: there is no folder {path.parent}; make it, or write elsewhere")
    return path


def _words(model: Model, text: str, tokens: int | None) -> tuple[dict[str, Any], int]:
    """The inputs, as many tokens as were asked for and the model has positions; and how many the text has."""
    most = getattr(model.module.config, "max_position_embeddings", None) or TOKENS
    if tokens is not None and not 1 <= tokens <= most:
        raise ArgumentError(f"--tokens must be within 1…{most}, the positions of this model, but {tokens} came")
    words = model.encode(text)
    return {name: x[:, : tokens or min(TOKENS, most)] for name, x in words.items()}, words["input_ids"].shape[1]


def _asked(arguments: argparse.Namespace, seen: Capture, size: int) -> tuple[int, int, int]:
    """(layer, head, query) of the exact row."""
    layer = seen.layers[len(seen.layers) // 2] if arguments.layer is None else seen.layer(arguments.layer)
    layer.slot(arguments.head)
    if arguments.query == "last":
        return layer.index, arguments.head, int(layer.positions[-1])
    try:
        query = int(arguments.query)
    except ValueError:
        raise ArgumentError(
            f"--query must be last or the number of a token, but {arguments.query!r} came; the first is 0"
        ) from None
    if not -size <= query < size:
        raise ArgumentError(f"--query must be within -{size}…{size - 1}, but {query} came; the text has {size} tokens")
    return layer.index, arguments.head, query % size


def _command(arguments: argparse.Namespace) -> str:
    """The line that draws it again, files left as they were named."""
    import shlex

    words = ["qkv", "lens", "--model", arguments.model]
    for name in ("text", "tokens", "layer", "attention"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    words += ["--head", str(arguments.head), "--query", str(arguments.query), "--quantity", arguments.quantity]
    if arguments.sink != 0:
        words += ["--sink", str(arguments.sink)]
    for out in arguments.out or ():
        words += ["--out", out]
    words += ["--serve"] * arguments.serve
    return shlex.join(words)


def _write(path: Path, shown: Picture) -> None:
    from qkv.lens.views import to_html, to_png, to_svg

    if path.suffix == ".png":
        path.write_bytes(to_png(to_svg(shown)))
        return
    make = {".html": to_html, ".svg": to_svg, ".json": _as_json}[path.suffix]
    path.write_text(make(shown), encoding="utf-8", errors="backslashreplace")


def _as_json(shown: Picture) -> str:
    return json.dumps(shown.to_dict(), ensure_ascii=True, allow_nan=False, indent=1) + "\n"
