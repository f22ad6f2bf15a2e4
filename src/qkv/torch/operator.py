"""The operator: `qkv::attend` and its gradient, known to torch's autograd, compiler and exporter.

Registered from Python, so nothing is built against torch. Masks arrive as text and tensors (`rules.py`); defaults are read
when the operator runs, so that `qkv.strict()` speaks for compiled graphs as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..attention import attention
from ..defaults import bridge_defaults
from ..errors import UnsupportedError
from ..gradient import attention_gradient
from ..interop import to_numpy
from . import rules

__all__ = ["attend_op", "gradient_op"]


#: Spelled out, because older versions of torch cannot read it off postponed annotations.
_OPTIONS = "str mask, str bias_rule, Tensor[] arrays, Tensor? bias, Tensor? sink, float? scale, float? softcap"
_ATTEND = (
    f"(Tensor query, Tensor key, Tensor value, {_OPTIONS}, str empty, str nonfinite, str layout) -> (Tensor, Tensor)"
)
_GRADIENT = (
    f"(Tensor doutput, Tensor dlse, Tensor query, Tensor key, Tensor value, Tensor output, Tensor lse, {_OPTIONS}, "
    "str layout, bool want_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("qkv::attend", mutates_args=(), device_types="cpu", schema=_ATTEND)
def attend_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: str,
    bias_rule: str,
    arrays: Sequence[Tensor],
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float | None,
    softcap: float | None,
    empty: str,
    nonfinite: str,
    layout: str,
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp); `mask` and `bias_rule` as `rules.spell` wrote them, `empty` and `nonfinite` "" for the default."""
    default_empty, default_nonfinite = bridge_defaults()
    found = attention(
        query.detach(),
        key.detach(),
        value.detach(),
        **_options(mask, bias_rule, arrays, bias, sink),
        scale=scale,
        softcap=softcap,
        empty=empty or default_empty,
        nonfinite=nonfinite or default_nonfinite,
        layout=layout,
    )
    return found.output, found.lse


@attend_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: str,
    bias_rule: str,
    arrays: Sequence[Tensor],
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float | None,
    softcap: float | None,
    empty: str,
    nonfinite: str,
    layout: str,
) -> tuple[Tensor, Tensor]:
    rows = list(query.shape[:-1])
    output = query.new_empty([*rows, value.shape[-1]])
    if layout in ("blhd", "bshd") and len(rows) > 1:
        rows[-1], rows[-2] = rows[-2], rows[-1]
    return output, query.new_empty(rows, dtype=_compute(query))


@torch.library.custom_op("qkv::attend_backward", mutates_args=(), device_types="cpu", schema=_GRADIENT)
def gradient_op(
    doutput: Tensor,
    dlse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    mask: str,
    bias_rule: str,
    arrays: Sequence[Tensor],
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float | None,
    softcap: float | None,
    layout: str,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, bias and sink, of their dtypes; of no size where there is none."""
    found = attention_gradient(
        *(x.detach() for x in (query, key, value, output, lse, doutput)),
        dlse=dlse.detach(),
        **_options(mask, bias_rule, arrays, bias, sink),
        scale=scale,
        softcap=softcap,
        layout=layout,
        want_bias=want_bias,
    )
    nothing = query.new_empty(0)
    return (
        found.query.to(query.dtype),
        found.key.to(key.dtype),
        found.value.to(value.dtype),
        nothing if bias is None or found.bias is None else found.bias.to(bias.dtype),
        nothing.clone() if sink is None or found.sink is None else found.sink.to(sink.dtype),
    )


@gradient_op.register_fake
def _(
    doutput: Tensor,
    dlse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    mask: str,
    bias_rule: str,
    arrays: Sequence[Tensor],
    bias: Tensor | None,
    sink: Tensor | None,
    scale: float | None,
    softcap: float | None,
    layout: str,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        query.new_empty(0) if bias is None or not want_bias else bias.new_empty(bias.shape),
        query.new_empty(0) if sink is None else sink.new_empty(sink.shape),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, bias_rule, arrays, bias, sink, scale, softcap, _, _, layout = inputs
    ctx.save_for_backward(query, key, value, bias, sink, *output, *arrays)
    ctx.rest = (mask, bias_rule, scale, softcap, layout)
    ctx.functions = rules.functions(mask)  # alive as long as the backward pass may ask for them


def _backward(ctx: Any, doutput: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    query, key, value, bias, sink, output, lse, *arrays = ctx.saved_tensors
    mask, bias_rule, scale, softcap, layout = ctx.rest
    want_bias = bias is not None and bool(ctx.needs_input_grad[6])
    dquery, dkey, dvalue, dbias, dsink = gradient_op(
        doutput,
        dlse,
        query,
        key,
        value,
        output,
        lse,
        mask,
        bias_rule,
        arrays,
        bias,
        sink,
        scale,
        softcap,
        layout,
        want_bias,
    )
    return (
        dquery,
        dkey,
        dvalue,
        None,
        None,
        [None] * len(arrays),
        dbias if want_bias else None,
        None if sink is None else dsink,
        *[None] * 5,
    )


def _no_second(ctx: Any, *grads: Any) -> Any:
    raise UnsupportedError(
        "the gradient of qkv.torch.attend must not be differentiated again, but a second derivative was asked for; for that, compute "
        "scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
    )


attend_op.register_autograd(_backward, setup_context=_keep)
gradient_op.register_autograd(_no_second)


def _compute(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype is torch.float64 else torch.float32


def _options(
    mask: str, bias_rule: str, arrays: Sequence[Tensor], bias: Tensor | None, sink: Tensor | None
) -> dict[str, Any]:
    read = [to_numpy(array.detach(), "mask") for array in arrays]
    return {
        "mask": rules.read(mask, read),
        "bias": rules.read(bias_rule, read) if bias is None else bias.detach(),
        "sink": None if sink is None else sink.detach(),
    }
