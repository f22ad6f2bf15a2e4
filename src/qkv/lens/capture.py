"""Run a model as it is and keep what its attention was given: `capture(model, inputs)`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.errors import ArgumentError, UnsupportedError
from qkv.version import __version__

from .calls import Call, watch
from .fused import Fused
from .held import host, on_device
from .hooks import Hooks
from .keeping import Writer, read_capture
from .layer import Layer
from .numbers import several
from .record import record, rows_of
from .summary import reduce
from .weights import neighbours

__all__ = ["Capture", "capture", "open_capture"]


@dataclass(frozen=True, eq=False)
class Capture:
    """What the attention layers of one forward pass were given.

    Attributes:
        layers: one `Layer` for each call kept, in the order in which the model made them; or one `Reduced`, where summaries
            are kept.
        output: what the model returned, bit for bit what it returns without the lens.
        tokens: the pieces of text, one a key, where they were given; else None.
        facts: model, text hash, versions: what a picture needs to be drawn again.
    """

    layers: tuple[Any, ...]
    output: Any
    tokens: tuple[str, ...] | None
    facts: Mapping[str, str] = field(default_factory=dict)

    def layer(self, which: int | str) -> Any:
        """The layer of that number (of the model's calls, from 0; negative from the end) or that module name."""
        if isinstance(which, str):
            found = [one for one in self.layers if one.name == which]
        else:
            index = which if which >= 0 else which + 1 + max((one.index for one in self.layers), default=-1)
            found = [one for one in self.layers if one.index == index]
        if not found:
            there = ", ".join(f"{one.index} ({one.name})" for one in self.layers[:4]) + (
                " …" if len(self.layers) > 4 else ""
            )
            raise ArgumentError(
                f"layer must be one of those captured, {there}, but {which!r} came; capture with layers={which!r}"
            )
        return found[0]

    def hooks(self) -> Hooks:
        """The same under the hook names of TransformerLens, computed when asked for: see `qkv.lens.Hooks`."""
        return Hooks(self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes that the layers keep."""
        return sum(layer.nbytes for layer in self.layers)

    def __repr__(self) -> str:
        heads = sorted({len(layer.heads) for layer in self.layers})
        keys = sorted({layer.keys for layer in self.layers})
        return f"<Capture of {len(self.layers)} layers, {heads} heads, {keys} keys, {self.nbytes / 1e6:.1f} MB>"


def capture(
    model: Any,
    inputs: Any,
    *,
    layers: Sequence[int | str] | int | str | None = None,
    heads: Sequence[int] | int | None = None,
    queries: Any = None,
    attention: str = "model",
    keep: str = "tensors",
    to: str | os.PathLike[str] = "host",
    tokens: Sequence[str] | None = None,
    name: str = "",
) -> Capture:
    """Run `model` once and keep what the attention of the layers asked was given.

    The model runs on its own kernels, its own device and in its own dtype; its output is bit for bit what it is without
    the lens. Kept are queries, keys after rotary embedding, values, masks as intervals, and the output projections: memory
    linear in the tokens. Weights are computed when a quantity is asked for, by the engine, never an L×S matrix.

    Args:
        model: a torch module. transformers' models with any of its attention implementations, and models that call
            `torch.nn.functional.scaled_dot_product_attention`.
        inputs: a mapping of keyword arguments, or a tensor, or a tuple of positional arguments.
        layers: numbers (in the order of the calls, from 0; negative from the end) or module names; all if left out.
        heads: which query heads; all if left out.
        queries: which query rows: an index, a slice, a sequence; all if left out; "last" is the newest.
        attention: "model": the kernels the model already uses. "qkv": run it on qkv's engine (`qkv.transformers`).
        keep: "tensors": what the heads were given, so that anything can be asked afterwards. "summaries": as soon as a layer
            has run it is reduced to its `summary`, with pooled maps, and the exact rows of `queries` ("last" if left out);
            its tensors are dropped, so that memory does not grow with layers × tokens × width.
        to: where the tensors are kept. "host": as arrays in memory, half types as float32. "device": as tensors where the model
            has them. A path that ends in .npz: in that file, written layer by layer, see `qkv.lens.open`.
        tokens: the pieces of text, one a token of the input.
        name: what pictures call the model.

    Raises:
        ArgumentError: an argument, see the message.
        UnsupportedError: no attention call was seen, or one whose convention is not understood; or a model that does by
            itself what it does not when it is watched, as `torch.nn.TransformerEncoder` does on its fused fast path.

    >>> import torch, qkv.lens
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True).eval()
    >>> class Tiny(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> seen = qkv.lens.capture(Tiny(), torch.randn(1, 2, 5, 4))
    >>> seen.layers[0].query.shape
    (1, 2, 5, 4)
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"model must be a torch module, but {type(model).__name__} came; pass the model itself, not its name"
        )
    rows = slice(-1, None) if isinstance(queries, str) and queries == "last" else queries
    if isinstance(rows, str) or (rows is not None and not isinstance(rows, slice) and not np.size(rows)):
        raise ArgumentError(
            f'queries must be "last", an index, a slice or a sequence, but {queries!r} came; queries=None keeps all'
        )
    wanted: list[int | str] | None = several("layers", layers, names=True)
    picked = several("heads", heads)
    if keep not in ("tensors", "summaries"):
        raise ArgumentError(
            f'keep must be "tensors" or "summaries", but {keep!r} came; "summaries" drops the tensors layer by layer'
        )
    if keep == "summaries" and to != "host":
        raise ArgumentError(
            f'to must be "host" with keep="summaries", but {to!r} came; it says where tensors are kept, and none are'
        )
    writer = None if to in ("host", "device") else Writer(to)
    rotary = any("rotary" in type(part).__name__.lower() for part in model.modules())
    beside = neighbours(model)
    kept: list[Any] = []  # of Layer, or of Reduced
    calls: list[str] = []

    # Which layers negative numbers mean is known when the last one has run; so many of the newest are held till then.
    from_end = max((-one for one in wanted or () if isinstance(one, int) and one < 0), default=0)
    held: list[tuple[Layer, Any]] = []
    brief = keep == "summaries"
    fused = Fused(model)

    def told(call: Call, _: Any) -> None:
        calls.append(call.name)
        fused.told(call)
        if from_end:
            held[:] = [one for one in held if one[0].index > call.index - from_end or _named(wanted, one[0])]
        if not _asked(wanted, call):
            return
        layer = record(
            call,
            picked,
            None if brief else rows,
            beside.get(id(call.module)),
            kept=on_device if to == "device" else host,
            rotary=rotary,
        )
        exact = rows_of(call, slice(-1, None) if rows is None else rows, call.query.shape[-2]) if brief else layer.rows
        if from_end:
            held.append((layer, exact))
        else:
            kept.append(made(layer, exact))

    def made(layer: Layer, exact: Any) -> Any:
        if brief:
            return reduce(layer, exact, tokens)
        return layer if writer is None else writer.keep(layer)

    words = None if tokens is None else tuple(tokens)
    with contextlib.ExitStack() as stack:
        if writer is not None:
            stack.callback(writer.give_up)  # after `close` there is nothing left to give up
        with _kernels(model, attention):
            if attention == "model":
                fused.run_alone(lambda: _run(model, inputs))
            with torch.no_grad(), fused.watched(), watch(model, told):
                output = _run(model, inputs)
        fused.check(output, every=wanted is None)
        if from_end:
            ends = {one + len(calls) for one in wanted or () if isinstance(one, int)}
            kept = [made(*one) for one in held if one[0].index in ends or _named(wanted, one[0])]
        if not kept:
            said = (
                f"it made {len(calls)}, none of them in layers={layers!r}" if calls else "it made none the lens can see"
            )
            raise UnsupportedError(
                f"model made no attention call to capture ({said}); models are seen that use transformers' attention interface or "
                "torch.nn.functional.scaled_dot_product_attention"
            )
        lacking = [one for one in wanted or () if not (one in calls or one in range(-len(calls), len(calls)))]
        if lacking:
            raise ArgumentError(
                f"layers must be within 0…{len(calls) - 1}, the model's attention calls, or names of modules that make one, but "
                f"{lacking[0]!r} came; layers=None keeps all, and each says its name"
            )
        facts = _facts(model, tokens, attention, name)
        if writer is not None:
            writer.close(words, facts)
    return Capture(tuple(kept), output, words, facts)


def open_capture(path: str | os.PathLike[str]) -> Capture:
    """A capture that was written to a file by `capture(…, to=path)`; `qkv.lens.open`.

    Its arrays stay in the file until they are asked for. The file may come from a stranger: nothing in it is run, and what it
    says of itself is held against what is in it.

    Args:
        path: the `.npz` file.

    Raises:
        FileError: a file that cannot be read, or is no capture.

    >>> import tempfile, torch, qkv.lens
    >>> class Tiny(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seen = qkv.lens.capture(Tiny(), torch.eye(4)[None, None], to=folder + "/seen.npz")
    ...     qkv.lens.row(qkv.lens.open(folder + "/seen.npz").layer(0), head=0, query=1).weight.round(2).tolist()
    [0.38, 0.62, 0.0, 0.0]
    """
    layers, tokens, facts = read_capture(path)
    return Capture(layers, None, tokens, facts)


def _named(wanted: list[int | str] | None, layer: Layer) -> bool:
    return layer.index in (wanted or ()) or layer.name in (wanted or ())


def _asked(wanted: list[int | str] | None, call: Call) -> bool:
    if wanted is None or call.index in wanted or call.name in wanted:
        return True
    return any(isinstance(one, int) and one < 0 for one in wanted)  # sorted out when the last call is known


def _run(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@contextlib.contextmanager
def _kernels(model: Any, attention: str) -> Iterator[None]:
    """The kernels the model runs on while it is watched."""
    if attention == "model":
        yield
        return
    if attention != "qkv":
        raise ArgumentError(
            f'attention must be "model" or "qkv", but {attention!r} came; "model" leaves the model as it is'
        )
    if not hasattr(model, "set_attn_implementation"):
        raise UnsupportedError(
            'attention="qkv" needs a transformers model, and this one has no attn_implementation; use "model"'
        )
    from qkv import transformers as bridge

    bridge.enable()
    before = model.config._attn_implementation
    model.set_attn_implementation("qkv")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _facts(model: Any, tokens: Sequence[str] | None, attention: str, name: str) -> dict[str, str]:
    import torch

    config = getattr(model, "config", None)
    said = name or str(getattr(config, "_name_or_path", "") or type(model).__name__)
    facts = {"model": said, "kind": type(model).__name__, "qkv": __version__, "torch": str(torch.__version__)}
    facts["attention"] = "qkv" if attention == "qkv" else str(getattr(config, "_attn_implementation", "torch"))
    if tokens is not None:
        facts["text"] = "sha256:" + hashlib.sha256("".join(tokens).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        facts["tokens"] = str(np.size(np.asarray(tokens, dtype=object)))
    return facts
