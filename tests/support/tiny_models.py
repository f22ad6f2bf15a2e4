"""Tiny models of transformers with random weights, and what right logits of theirs are (contract F2).

The right answer is the model in float64 with the definition as its attention, under the mask that transformers writes
out for SDPA. How far a float32 run may be off has two parts. What the attention may add is the bound of F2 of every
attention call, carried to the logits by the exact derivative of each logit by each attention output (first order; the
second order is smaller by another rounding error). What everything else adds is the same operations in the same order
on any engine, and is measured: it is what the eager twin is off by.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers as hf
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from qkv.bounds import bound

COMMON = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 12}
GROUPED = {
    **COMMON,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
WIDE = {**GROUPED, "head_dim": 8}

#: name -> (model class, config). Windows are shorter than the texts of the tests.
MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**GROUPED)),
    "gpt2": (
        hf.GPT2LMHeadModel,
        hf.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=12, n_positions=64, bos_token_id=1, eos_token_id=2),
    ),
    "gpt-neox": (
        hf.GPTNeoXForCausalLM,
        hf.GPTNeoXConfig(**COMMON, intermediate_size=24, max_position_embeddings=64, eos_token_id=2),
    ),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**GROUPED, sliding_window=4)),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**WIDE)),
    "olmo2": (hf.Olmo2ForCausalLM, hf.Olmo2Config(**GROUPED)),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(**WIDE, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=8),
    ),
    "gemma3": (
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig(
            **WIDE, sliding_window=4, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]
        ),
    ),
    "gpt-oss": (
        hf.GptOssForCausalLM,
        hf.GptOssConfig(
            **WIDE,
            sliding_window=4,
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            experts_implementation="eager",
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "bert": (hf.BertForMaskedLM, hf.BertConfig(**COMMON, intermediate_size=24, max_position_embeddings=64)),
    "whisper": (
        hf.WhisperForConditionalGeneration,
        hf.WhisperConfig(
            vocab_size=12,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            num_mel_bins=4,
            max_source_positions=6,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
    ),
    "vit": (
        hf.ViTForImageClassification,
        hf.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=24,
            image_size=12,
            patch_size=4,
            num_labels=5,
        ),
    ),
}

DECODERS = ("llama", "gpt2", "gpt-neox", "mistral", "qwen3", "olmo2", "gemma2", "gemma3", "gpt-oss")


def tiny(name: str) -> Any:
    """The model in float32, evaluation mode, the same weights at every call."""
    kind, config = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    model = kind(copy.deepcopy(config)).eval()
    with torch.no_grad():
        for weight in model.parameters():  # weights large enough that attention is far from uniform
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) / weight.shape[-1] ** 0.5)
        for part in model.modules():
            if hasattr(part, "sinks"):
                part.sinks.copy_(torch.randn(part.sinks.shape))
    return model


def inputs(name: str, batch: int = 2, length: int = 9) -> dict[str, Any]:
    """What the model reads; tokens never repeat a padding id by chance alone."""
    chance = torch.Generator().manual_seed(7)
    ids = torch.randint(3, 12, (batch, length), generator=chance)
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 12, 12, generator=chance)}
    if name == "whisper":
        return {"input_features": torch.randn(batch, 4, 12, generator=chance), "decoder_input_ids": ids}
    return {"input_ids": ids}


class Right(NamedTuple):
    """Right logits (rows, V), what attention may add to them in float32, and what the eager twin is off by at most."""

    logits: np.ndarray
    attention: np.ndarray
    twin: float

    def holds(self, found: Any) -> None:
        """Raise unless the logits (rows, V) are as right as those of a float32 run may be."""
        off = np.abs(found.detach().double().numpy() - self.logits)
        limit = self.attention + self.twin
        assert np.isfinite(off).all()
        assert (off <= limit).all(), f"off by {off.max():.3g}, {(off / limit).max():.3g} of the bound"


def right(model: Any, rows: list[tuple[int, int]] | None = None, columns: int | None = None, **given: Any) -> Right:
    """What logits of some (sequence, position) must be, all of a model that gives one row a sequence; the first `columns`."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    mask = given.get("attention_mask")
    added = mask is not None and mask.dtype == torch.bool and mask.ndim == 4  # the eager twin adds what it is given
    floats = {"attention_mask": torch.zeros(mask.shape).masked_fill(~mask, _LOW)} if added else {}
    with torch.no_grad():
        eager = _rows(twin(**{**given, **floats}).logits, rows)[..., :columns]
    wide = copy.deepcopy(model).double().requires_grad_()
    wide.set_attn_implementation(_DEFINITION)
    seen: list[tuple[Any, np.ndarray]] = []
    _RUN.append(seen)
    try:
        doubled = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in given.items()}
        logits = _rows(wide(**doubled).logits, rows)[..., :columns]
    finally:
        _RUN.pop()
    outputs = [output for output, _ in seen]
    wanted = torch.eye(logits.numel(), dtype=torch.float64).reshape(-1, *logits.shape)
    slopes = torch.autograd.grad(logits, outputs, wanted, is_grads_batched=True, allow_unused=True)
    limit = np.zeros(logits.shape)
    for slope, (_, step) in zip(slopes, seen, strict=True):
        if slope is not None:
            limit += np.einsum("zblhe,blhe->z", slope.abs().numpy(), step).reshape(logits.shape)
    exact = logits.detach().numpy()
    return Right(exact, limit, float(np.abs(eager.double().numpy() - exact).max()))


def _rows(logits: Any, rows: list[tuple[int, int]] | None) -> Any:
    return logits if rows is None else torch.stack([logits[at] for at in rows])


_DEFINITION = "definition"
_LOW = torch.finfo(torch.float32).min
_RUN: list[list[tuple[Any, np.ndarray]]] = []


def _defined(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    **others: Any,
) -> tuple[Any, None]:
    """The definition in torch, so that it can be differentiated; checked against `qkv.reference` where its bound is taken."""
    if mask is None:
        rows, size = query.shape[2], key.shape[2]
        lower = torch.ones(rows, size, dtype=torch.bool).tril()
        mask = lower if rows > 1 and (module.is_causal if is_causal is None else is_causal) else torch.ones_like(lower)
    share = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = scale * query @ key.repeat_interleave(share, 1).transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if s_aux is not None:
        column = s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores.masked_fill(~mask.any(-1, keepdim=True), 0.0), -1) * mask
    output = (weights @ value.repeat_interleave(share, 1)).transpose(1, 2)
    arrays = [x.detach().numpy() for x in (query, key, value)]
    sink = None if s_aux is None else s_aux.detach().numpy().reshape(-1)
    limits = bound(*arrays, "float32", allowed=mask.numpy(), scale=scale, softcap=softcap, sink=sink)
    _RUN[-1].append((output, np.asarray(limits.output, np.float64).swapaxes(1, 2)))
    off = np.abs(output.detach().numpy() - limits.answer.output.swapaxes(1, 2))
    assert (off <= _RUN[-1][-1][1]).all()
    return output, None


def _written(**arguments: Any) -> Any:
    return sdpa_mask(**{**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


AttentionInterface.register(_DEFINITION, _defined)
AttentionMaskInterface.register(_DEFINITION, _written)
