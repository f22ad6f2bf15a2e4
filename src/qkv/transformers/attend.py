"""The two functions that transformers calls: one makes a mask for a forward pass, one attends in a layer of it."""

from __future__ import annotations

from typing import Any

from ..attention import attention
from ..defaults import bridge_defaults
from ..errors import ShapeError, UnsupportedError
from ..masks import causal, keys, window
from .described import described, rules_of
from .library import library, wanted_outputs
from .translate import Place, existing, expression

#: What models pass on to attention that says nothing about the weights, or is said by the mask already.
_HARMLESS = frozenset(
    [
        "cache_position",
        "deterministic",
        "layer_idx",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    ]
)

#: What is refused, and what to use instead.
_REFUSED = {
    "position_bias": "a learned bias added to the scores",
    "head_mask": "a factor on the weights of a head",
    "layer_head_mask": "a factor on the weights of a head",
    "sinks": "sinks of a kind that is not in the contract",
    "indices": "a choice of keys for each query",
    "block_indices": "a choice of blocks of keys for each query",
    "cu_seq_lens_q": "the ends of packed sequences (pass position_ids alone, which say the same)",
    "cu_seq_lens_k": "the ends of packed sequences (pass position_ids alone, which say the same)",
    "max_length_q": "the longest packed sequence (pass position_ids alone, which say the same)",
    "max_length_k": "the longest packed sequence (pass position_ids alone, which say the same)",
    "seq_idx": "the packed sequence of each token (pass position_ids alone, which say the same)",
}


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = None,
    attention_mask: Any = None,
    **others: Any,
) -> Any:
    """The mask of a forward pass: rules where they are known by name, else booleans (B, 1, L, S).

    Never None: what an absent mask means depends on who reads it.
    """
    lib = library()
    function = lib.masking.causal_mask_function if mask_function is None else mask_function
    # A graph that is being recorded holds tensors, no rules.
    if not lib.torch.compiler.is_compiling() and (attention_mask is None or attention_mask.ndim == 2):
        place = Place(int(batch_size), int(q_length), int(kv_length), int(q_offset), int(kv_offset))
        known, rules = expression(function, place)
        there = None if attention_mask is None or not known else existing(attention_mask, place)
        if there is not None:
            rules = there if rules is None else rules & there
        if known:
            return described(rules, place)
    others.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    return lib.masking.sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=attention_mask,
        **others,
    )


def attend_in_model(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Attention of one layer: query (B, H, L, D), key (B, G, S, D), value (B, G, S, E) to output (B, L, H, E).

    The second result is the weights (B, H, L, S) where the caller asks for them, else None.
    """
    for name, given in others.items():
        if given is not None and name not in _HARMLESS:
            said = _REFUSED.get(name, "which is not known here, and may change the result")
            raise UnsupportedError(
                f"attn_implementation='qkv' does not take {name}, {said}; leave it out, or load this model with attn_implementation='eager'"
            )
    if dropout:
        raise UnsupportedError(
            f"attn_implementation='qkv' has no dropout, but dropout={dropout} came; call model.eval(), or set attention_dropout=0 to train"
        )
    batch = max(int(x.shape[0]) for x in (query, key, value))
    query, key, value = (x if x.shape[0] == batch else x.expand(batch, *x.shape[1:]) for x in (query, key, value))
    causal_layer = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    arguments = {
        **_mask_and_bias(attention_mask, query, key, causal_layer, sliding_window),
        "scale": scaling,
        "softcap": softcap,
        "sink": None if s_aux is None else s_aux.reshape(-1),
    }
    compiling = library().torch.compiler.is_compiling()
    wanted = bool(output_attentions) or (not compiling and any("attentions" in name for name in wanted_outputs()))
    if compiling or _needs_gradient(query, key, value, s_aux):
        if wanted:
            raise UnsupportedError(
                "output_attentions was asked for with gradients, and these weights have none; call the model inside torch.no_grad(), or leave it out"
            )
        return library().differentiable(query, key, value, **arguments).transpose(1, 2).contiguous(), None
    empty, nonfinite = bridge_defaults()
    found = attention(query, key, value, **arguments, empty=empty, nonfinite=nonfinite)
    # The weights are L×S numbers a head, and only computed because they were asked for.
    weights = found.weights(range(found.output.shape[2])) if wanted else None
    return found.output.transpose(1, 2).contiguous(), weights


def _needs_gradient(*tensors: Any) -> bool:
    return bool(library().torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def _mask_and_bias(mask: Any, query: Any, key: Any, causal_layer: bool, sliding_window: int | None) -> dict[str, Any]:
    """The `mask` and `bias` of the call."""
    rows, size = int(query.shape[2]), int(key.shape[2])
    if mask is None:
        return {"mask": _without(rows, size, causal_layer, sliding_window)}
    rules = rules_of(mask)
    if rules is not None:
        batch = (int(query.shape[0]), rows, size)
        if (rules.place.batches, rules.place.queries, rules.place.keys) != batch:
            raise ShapeError(
                f"attention_mask is for (B, L, S) = {(rules.place.batches, rules.place.queries, rules.place.keys)}, but the layer has {batch}; "
                "is the cache the one that the mask was made for?"
            )
        return {"mask": rules.rules}
    torch = library().torch
    if mask.dtype == torch.bool:
        return {"mask": mask}
    if not mask.dtype.is_floating_point:
        raise UnsupportedError(
            f"attention_mask must be boolean (True = may read) or floats to be added to the scores, but has dtype {mask.dtype}; write .bool()"
        )
    return {"bias": mask.to(query.dtype)}


def _without(rows: int, size: int, causal_layer: bool, sliding_window: int | None) -> Any:
    """The mask of a call that brings none: causal from the first key on in a causal layer of several rows, as with SDPA."""
    if not causal_layer:
        if sliding_window is not None:
            raise UnsupportedError(
                f"sliding_window={sliding_window} came without a mask to a layer that is not causal, where it could mean two things; pass the mask"
            )
        return None
    if rows > 1:
        seen = causal(align="start")
        return seen if sliding_window is None else seen & window(int(sliding_window) - 1, 0, align="start")
    return None if sliding_window is None else keys(max(0, size - int(sliding_window)), size)
