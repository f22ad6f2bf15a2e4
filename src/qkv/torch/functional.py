"""`attend` for tensors: the front door's arguments, with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..alibi import Alibi
from ..attention import attend as front_door
from ..cache import Cache, CachePart
from ..contract import read_number, refuse_foreign
from ..defaults import bridge_defaults
from ..errors import DTypeError, UnsupportedError
from ..interop import to_numpy
from .operator import attend_op
from .rules import spell

__all__ = ["attend"]


def attend(
    query: Tensor,
    key: Any,
    value: Any = None,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
    empty: str | None = None,
    nonfinite: str | None = None,
    layout: str = "bhld",
    **others: Any,
) -> Tensor:
    """Attention of CPU tensors, differentiable in query, key, value, bias and sink.

    Takes what `qkv.attend` takes, and works under `torch.compile(fullgraph=True)`, `torch.export` and autocast. Two defaults
    differ, unless `qkv.strict()` is on: a row without keys is answered with zeros and gives no gradient, and a NaN that a
    row may read makes that row NaN.

    Args:
        query: (B…, H, L, D). key: (B…, G, S, D), or a `qkv.Cache` without value; a cache takes no gradient.
        value: (B…, G, S, E). All float16, bfloat16, float32 or float64.
        mask: an expression or a boolean tensor, True = this query may read this key. `where(f)` cannot be compiled.
        bias: a tensor that broadcasts to (B…, H, L, S), of the query's dtype or float32, or `alibi(…)`.
        scale, softcap: numbers, without a gradient. sink: one logit per query head, (H,).
        empty: "zero" or "raise". nonfinite: "propagate" or "raise". layout: "bhld", or "blhd" for length before heads.

    Returns:
        (B…, H, L, E) in the layout and dtype of the query; under autocast of autocast's dtype.

    Raises:
        UnsupportedError: a tensor on another device, a keyword that is not honoured, a second derivative.
        ShapeError, DTypeError, ArgumentError, AlignmentError: as `qkv.attend`.

    The gradient is computed from the log-sum-exp, tile by tile, in memory linear in L + S; one that does not fit a half
    precision type is infinite, as loss scaling needs it. Formula: `qkv.reference_gradient`.

    >>> import torch, qkv
    >>> x = torch.zeros(1, 2, 2)
    >>> v = torch.tensor([[[1.0], [3.0]]], requires_grad=True)
    >>> qkv.torch.attend(x, x, v, mask=qkv.causal()).sum().backward()
    >>> v.grad.tolist()
    [[[1.5], [0.5]]]
    """
    refuse_foreign(others)
    if isinstance(key, (Cache, CachePart)):
        return _from_cache(query, key, value, mask, bias, scale, softcap, sink, empty, nonfinite, layout)
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check(name, x)
    query, key, value = _autocast(query, key, value)
    arrays: list[Tensor] = []
    mask_text = spell(mask, arrays)
    bias_text, bias_array = "None", None
    if isinstance(bias, Alibi):
        bias_text = spell(bias, arrays)
    elif bias is not None:
        bias_array = _tensor("bias", bias)
    output: Tensor = attend_op(
        query,
        key,
        value,
        mask_text,
        bias_text,
        arrays,
        bias_array,
        None if sink is None else _tensor("sink", sink),
        _number("scale", scale),
        _number("softcap", softcap),
        "" if empty is None else empty,
        "" if nonfinite is None else nonfinite,
        layout,
    )[0]
    return output


def _check(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"{name} must be a torch tensor, but a {type(x).__name__} came; write torch.as_tensor({name}), or call qkv.attend"
        )
    if x.device.type not in ("cpu", "meta"):
        raise UnsupportedError(
            f"{name} is on {x.device}, and this engine runs on the CPU; there call torch.nn.functional.scaled_dot_product_attention, "
            f"or pass {name}.cpu()"
        )


def _tensor(name: str, x: Any) -> Tensor:
    """A bias or sink as a tensor, so that it can have a gradient."""
    if isinstance(x, Tensor):
        _check(name, x)
        return x
    return torch.as_tensor(to_numpy(x, name, scalars=name == "sink"))


def _number(name: str, x: Any) -> float | None:
    """A number for the operator, which would take a tensor and drop its gradient."""
    return x if x is None or type(x) in (int, float) else read_number(name, x)


def _autocast(*operands: Tensor) -> tuple[Tensor, ...]:
    """As torch's own attention under autocast: everything but float64 goes to autocast's type."""
    if not torch.is_autocast_enabled("cpu"):
        return operands
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype is not torch.float64 else x for x in operands)


def _from_cache(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    sink: Any,
    empty: str | None,
    nonfinite: str | None,
    layout: str,
) -> Tensor:
    _check("query", query)
    if torch.is_grad_enabled() and query.requires_grad:
        raise UnsupportedError(
            "query requires grad, but key is a Cache, which keeps no gradient; call inside torch.no_grad(), or pass key and value as tensors"
        )
    default_empty, default_nonfinite = bridge_defaults()
    out: Tensor = front_door(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sink=sink,
        empty=default_empty if empty is None else empty,
        nonfinite=default_nonfinite if nonfinite is None else nonfinite,
        layout=layout,
    )
    return out
