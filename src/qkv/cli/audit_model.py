"""`qkv audit --model`: what the outputs of a whole model depend on although they may not."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qkv.errors import ArgumentError

from . import draw, reading

if TYPE_CHECKING:
    from qkv.audit.model import Leak, Leaks
    from qkv.models import Model

__all__ = ["OPTIONS", "add_options", "run"]

#: Options that say something of a model alone.
OPTIONS = ("text", "tokens", "ask", "attention", "pickles")

#: How many tokens are read. Every one of them is a cut at which the future is exchanged.
TOKENS = 64

#: More of a text than that is not read.
_LONGEST = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what belongs to a model."""
    whole = parser.add_argument_group("a whole model")
    whole.add_argument(
        "--model",
        metavar="PATH",
        help="glassllm, smollm2, minilm, a folder, .gguf or .npz file, or an ID in the local cache",
    )
    whole.add_argument("--text", metavar="FILE", help="what it reads, - for stdin (default: the opening of a novel)")
    whole.add_argument("--tokens", metavar="N", type=int, help=f"of how much of it (default: {TOKENS} tokens)")
    whole.add_argument("--ask", metavar="WORDS", help="future,left padding,right padding,batch,packing,cache")
    whole.add_argument("--attention", metavar="NAME", help="eager, sdpa, qkv, … (default: the model's own choice)")
    whole.add_argument("--pickles", action="store_true", help="read .bin files, which may run code")


def run(arguments: argparse.Namespace) -> int:
    """Audit a model, and show what was found; also what was found when it is interrupted."""
    from qkv import models
    from qkv.audit.model import Leaks, leaks, wanted

    text = reading.read_text(arguments.text, _LONGEST)
    if arguments.attention == "qkv":
        import qkv.transformers

        qkv.transformers.enable()
    model = models.load(arguments.model, attention=arguments.attention, pickles=arguments.pickles)
    words = _words(model, text, arguments.tokens)
    asked = None if arguments.ask is None else [word.strip() for word in arguments.ask.split(",")]
    kinds, left_out = wanted(asked, model.module)
    parts, interrupted = [], False
    with draw.progress("audit", len(kinds), show=not arguments.json) as step:
        try:
            for kind in kinds:
                with reading.faults_of_the_model("try another --attention, or leave out what it cannot do by --ask"):
                    parts.append(leaks(model.module, words, ask=[kind], seed=arguments.seed or 0))
                step()
        except KeyboardInterrupt:
            interrupted = True
    found = Leaks(
        tuple(leak for part in parts for leak in part.leaks),
        tuple(kind for part in parts for kind in part.asked),
        {**left_out, **{kind: why for part in parts for kind, why in part.left_out.items()}},
        sum(part.runs for part in parts),
        tuple(leak for part in parts for leak in part.rounding),
    )
    tokens = model.tokens(words["input_ids"][0])
    about = {
        "model": model.name,
        "class": type(model.module).__name__,
        "kind": model.kind,
        "attention": str(model.module.config._attn_implementation),
        "tokens": list(tokens),
    }
    if arguments.json:
        draw.write_json({**about, **found.to_dict(), "interrupted": interrupted})
    else:
        _show(about, found, tokens)
        if interrupted:
            draw.text()
            draw.text("interrupted: this is what was known so far")
    return 130 if interrupted else 0 if found.ok else 1


def _words(model: Model, text: str, tokens: int | None) -> dict[str, Any]:
    """The inputs, as many tokens as were asked for and the model has positions."""
    if tokens is not None and tokens < 2:
        raise ArgumentError(f"--tokens must be at least 2, but {tokens} came")
    most = getattr(model.module.config, "max_position_embeddings", None) or TOKENS
    if tokens is not None and tokens > most:
        raise ArgumentError(
            f"--tokens must be at most {most}, which are the positions of this model, but {tokens} came"
        )
    words = {name: x[:, : tokens or min(TOKENS, most)] for name, x in model.encode(text).items()}
    if words["input_ids"].shape[1] < 2:
        raise ArgumentError("--text must have two tokens at least, but it has one; give a longer text")
    return words


def _show(about: dict[str, Any], found: Leaks, tokens: tuple[str, ...]) -> None:
    count = len(tokens)
    draw.text(f"{about['model']}: {about['class']}, {about['attention']} attention, {count} tokens, {found.runs} runs")
    draw.text()
    leaking = {leak.kind: leak for leak in found.leaks}
    rounded = {leak.kind: leak for leak in found.rounding}
    rows = []
    for kind in found.asked:
        leak = leaking.get(kind) or rounded.get(kind)
        verdict = "leaks" if kind in leaking else "rounding" if kind in rounded else "none found"
        rows.append((kind, verdict, *(("", "", "") if leak is None else _places(leak, tokens))))
    rows += [(kind, "not asked", "", "", "") for kind in found.left_out]
    draw.table(("kind", "verdict", "output at", "depends on", "enters in"), rows, left=(0, 1, 2, 3, 4))
    for leak in found.leaks:
        draw.text()
        draw.text(str(leak), indent=2)
    if rounded.keys() - leaking.keys():
        draw.text()
        draw.text("rounding: other inputs move the last bits, and nothing any more in float64; no leak", indent=2)
    for why in dict.fromkeys(found.left_out.values()):
        kinds = ", ".join(kind for kind, said in found.left_out.items() if said == why)
        draw.text()
        draw.text(f"{kinds}: not asked, {why}", indent=2)


def _places(leak: Leak, tokens: tuple[str, ...]) -> tuple[str, str, str]:
    """(the output, what it depends on, where that enters), each in a few words."""

    def token(position: int) -> str:
        return f"{position} {tokens[position]!r}"

    source = "how it is read" if leak.kind == "cache" else token(leak.source)
    if leak.kind == "batch":
        source = "another sequence"
    module = leak.module or leak.tensor
    return token(leak.position), source, module + (f", head {leak.head}" if leak.head is not None else "")
