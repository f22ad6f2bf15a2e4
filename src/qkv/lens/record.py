"""From one watched call to one `Layer`: the model's conventions read and put into the contract's terms.

What is not understood is refused in a sentence; a picture of weights that the model did not have would be worse than none.
The conventions of transformers' kernels are those of its release 5.24: `None` as a mask means causal rows aligned at the
start where several queries come and the module is causal, all keys where one query comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.errors import UnsupportedError
from qkv.floats import Array
from qkv.ranges import Ints

from .calls import Call
from .held import host
from .layer import Layer
from .reads import Reads, additive_parts, interval_reads, reads_of_blocks
from .weights import projection

__all__ = ["record", "rows_of"]

#: Keyword arguments of kernels that leave the meaning of a call alone, or are read below.
_HARMLESS = {
    "dropout", "scaling", "is_causal", "sliding_window", "softcap", "s_aux", "output_attentions", "use_cache", "position_ids",
    "cache_position", "past_key_values", "past_key_value", "use_top_left_mask", "return_dict", "output_hidden_states", "target_dtype",
    "dropout_p", "scale", "enable_gqa", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic",
    "num_items_in_batch", "logits_to_keep", "attention_mask", "encoder_attention_mask", "output_router_logits", "head_mask",
    "layer_idx", "position_embeddings", "inputs_embeds", "token_type_ids", "implementation", "cross_attention_mask",
}  # fmt: skip


def record(
    call: Call,
    heads: Any,
    rows: Any,
    beside: Any = None,
    *,
    kept: Callable[[Any], Any] = host,
    rotary: bool = False,
) -> Layer:
    """What the call gave its heads; `heads` and `rows` pick what is kept (None: all; rows may be negative).

    `beside` is the output projection where a neighbour of the module holds it; `kept` makes a tensor what is kept of it;
    `rotary` says that the model turns queries and keys before they come here.
    """
    _refuse_unknown(call)
    query, key, value = (_four_axes(call, name) for name in ("query", "key", "value"))
    many, length, keys = query.shape[1], query.shape[2], key.shape[2]
    picked = np.arange(many) if heads is None else np.asarray(heads, np.int64)
    if len(picked) and not (picked.min() >= 0 and picked.max() < many):
        raise UnsupportedError(
            f"heads must be within 0…{many - 1} in {call.name}, but {heads} came; leave out what the layer lacks"
        )
    at = rows_of(call, rows, length)
    reads, bias, positions = _mask(call, query, keys, length)
    group = picked // (many // key.shape[1])
    used, inverse = np.unique(group, return_inverse=True)
    return Layer(
        name=call.name,
        index=call.index,
        query=kept(_picked(_picked(query, 1, picked), 2, at)),
        key=kept(_picked(key, 1, used)),
        value=kept(_picked(value, 1, used)),
        heads=picked,
        groups=np.asarray(inverse, np.int64),
        rows=at,
        positions=positions[at],
        reads=reads.rows(at),
        bias=_picked_bias(bias, picked, at),
        scale=_scale(call, query.shape[-1]),
        softcap=call.options.get("softcap"),
        sink=_sink(call, picked),
        projection=projection(call.module, beside, many, key.shape[1], value.shape[-1], picked, used),
        rotary=rotary,
    )


def _picked(tensor: Any, axis: int, at: Ints) -> Any:
    """The tensor at those indices of an axis, the tensor itself where they are all of them in order."""
    if np.array_equal(at, np.arange(tensor.shape[axis])):
        return tensor
    return tensor[:, at] if axis == 1 else tensor[:, :, at]


def _refuse_unknown(call: Call) -> None:
    import torch

    for name, given in call.options.items():
        if given is not None and name not in _HARMLESS:
            raise UnsupportedError(
                f"{name} was passed to the attention of {call.name or 'the model'} ({call.kernel}), and the lens does not know what it "
                "does to the scores; capture other layers with layers=, or a model without it"
            )
    if (
        call.module is not None
        and getattr(call.module, "training", False)
        and (call.options.get("dropout") or call.options.get("dropout_p"))
    ):
        raise UnsupportedError(
            f"dropout is on in {call.name or 'the model'}, so its weights are thrown dice; call model.eval() before capturing"
        )
    for tensor in (call.query, call.key, call.value):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise UnsupportedError(
                f"attention of {call.name or 'the model'} was given {type(tensor).__name__}, not float tensors; capture other layers with layers="
            )


def _four_axes(call: Call, name: str) -> Any:
    tensor = getattr(call, name)
    if tensor.ndim == 4:
        return tensor
    if tensor.ndim == 3:
        return tensor[None]
    raise UnsupportedError(
        f"{name} of {call.name or 'the model'} has {tensor.ndim} axes, and the lens reads (B, H, L, D) or (H, L, D); reshape it in the model"
    )


def rows_of(call: Call, rows: Any, length: int) -> Ints:
    """Which of a call's query rows are meant: None, an index, a slice or a sequence."""
    every = np.arange(length)
    if rows is None:
        return every
    try:
        return np.atleast_1d(every[rows])
    except IndexError:
        raise UnsupportedError(
            f"queries must be within -{length}…{length - 1} in {call.name or 'the model'}, but {rows!r} came; it was given {length} queries"
        ) from None


def _scale(call: Call, width: int) -> float:
    given = call.options.get("scaling", call.options.get("scale"))
    if given is None:
        given = getattr(call.module, "scaling", None)
    return float(width**-0.5 if given is None else given)


def _sink(call: Call, picked: Ints) -> Array | None:
    sink = call.options.get("s_aux")
    if sink is None and call.kernel == "eager":
        sink = getattr(call.module, "sinks", None)  # gpt-oss: its eager kernel reads them from the module
    return None if sink is None else host(sink).reshape(-1)[picked].astype(np.float64)


def _picked_bias(bias: Array | None, picked: Ints, at: Ints) -> Array | None:
    if bias is None:
        return None
    out = bias if bias.shape[1] == 1 else bias[:, picked]
    return out if out.shape[2] == 1 else out[:, :, at]


# Masks ----------------------------------------------------------------------------------------------------------------


def _mask(call: Call, query: Any, keys: int, length: int) -> tuple[Reads, Array | None, Ints]:
    """(who reads what, numbers to add, the key position each row stands at)."""
    mask, options = call.mask, call.options
    causal = options.get("is_causal")
    of_torch = call.kernel == "scaled_dot_product_attention"
    if causal is None:
        causal = False if of_torch else bool(getattr(call.module, "is_causal", True))
    start, end = np.arange(length), np.arange(length) + (keys - length)
    # More queries than keys are rows of another text, and their own numbers are where they stand.
    stand = start if keys < length else end
    if mask is None:
        # One query of a transformers model reads all keys; several are aligned at the start, torch's is_causal too.
        by_rule = bool(causal) and (length > 1 or of_torch)
        if "flash" in call.kernel:
            return interval_reads(end[None], causal=bool(causal), left=_left(call), exists=None, keys=keys), None, stand
        return (
            interval_reads(start[None], causal=by_rule, left=None, exists=None, keys=keys),
            None,
            start if by_rule else stand,
        )
    if hasattr(mask, "mask_mod"):
        return _flex_reads(mask, query, length, keys), None, stand
    if "flash" in call.kernel and mask.ndim == 2:
        exists = reads_of_blocks(lambda a, b: host_bool(mask)[:, None, :], 1).ranges
        return interval_reads(end[None], causal=bool(causal), left=_left(call), exists=exists, keys=keys), None, stand
    mask = mask[(None,) * (4 - mask.ndim)] if mask.ndim < 4 else mask
    reads, bias = _dense_reads(call, mask, length)
    return reads, bias, stand


def _left(call: Call) -> int | None:
    window = call.options.get("sliding_window")
    return None if window is None else int(window) - 1  # transformers counts the query's own key


def host_bool(mask: Any) -> Any:
    """A padding row as booleans on the host."""
    return mask.detach().to("cpu").numpy().astype(bool)


def _dense_reads(call: Call, mask: Any, length: int) -> tuple[Reads, Array | None]:
    """Booleans (True = may read) or numbers to add, (B or 1, H or 1, L or 1, S)."""
    import torch

    many = mask.shape[1]
    if many > 1 and mask.stride(1) == 0:
        mask, many = mask[:, :1], 1
    if mask.dtype == torch.bool:
        if many > 1:
            forbidden = np.where(host_bool(mask), np.float32(0), np.float32(-np.inf))
            return _every_pair(mask, length), forbidden
        one = mask[:, 0].detach()
        return reads_of_blocks(lambda a, b: _block(one, a, b).numpy(), length), None
    lowest = float(torch.finfo(mask.dtype).min)
    one = mask[:, 0].detach()
    more = many > 1

    def allowed(start: int, stop: int) -> Any:
        nonlocal more
        block = _block(one, start, stop).to(torch.float64).numpy()
        pairs, adds = additive_parts(block, lowest)
        more = more or adds
        return pairs

    reads = reads_of_blocks(allowed, length)
    if not more:
        return reads, None
    numbers = host(mask.expand(-1, -1, length, -1))
    return _every_pair(mask, length), np.where(
        numbers > numbers.dtype.type(lowest / 2), numbers, numbers.dtype.type(-np.inf)
    )


def _block(mask: Any, start: int, stop: int) -> Any:
    """Rows of (B, L or 1, S), on the host."""
    rows = mask[:, start:stop] if mask.shape[1] > 1 else mask.expand(-1, stop - start, -1)
    return rows.to("cpu")


def _every_pair(mask: Any, length: int) -> Reads:
    return interval_reads(np.zeros((1, length), np.int64), causal=False, left=None, exists=None, keys=mask.shape[-1])


def _flex_reads(mask: Any, query: Any, length: int, keys: int) -> Reads:
    """FlexAttention's block mask: its rule, asked for a few rows of every sequence at a time."""
    import torch

    device = query.device

    def block(start: int, stop: int) -> Any:
        b = torch.arange(query.shape[0], device=device)[:, None, None]
        q = torch.arange(start, stop, device=device)[None, :, None]
        k = torch.arange(keys, device=device)[None, None, :]
        zero = torch.zeros((), dtype=torch.long, device=device)
        seen = torch.vmap(
            torch.vmap(torch.vmap(mask.mask_mod, (None, None, None, 0)), (None, None, 0, None)), (0, None, None, None)
        )
        return seen(b.reshape(-1), zero, q.reshape(-1), k.reshape(-1)).to("cpu").numpy()

    return reads_of_blocks(block, length)
