"""`torch.nn.attention.flex_attention`, eager and compiled: rules as `mask_mod`, changes of the score as `score_mod`."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from ..domain import Domain
from ..kernel import Given, Kernel

__all__ = ["make"]


class Flex(Kernel):
    """The function; causal and window are mask_mods, softcap, bias and slopes score_mods."""

    compiled: bool = False

    def __call__(self, given: Given) -> Any:
        """The output, and the log-sum-exp where it is asked for."""
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

        options: dict[str, Any] = {}
        B, H, L, _ = given.query.shape
        S = given.key.shape[2]
        rule = _mask_mod(given)
        if rule is not None and L and S and B:
            options["block_mask"] = create_block_mask(rule, B, H, L, S, device=str(given.query.device))
        score = _score_mod(given)
        if score is not None:
            options["score_mod"] = score
        if given.scale is not None:
            options["scale"] = given.scale
        if given.grouped:
            options["enable_gqa"] = True
        if "unknown" in given.odd:
            options["qkv_audit_unknown"] = 1
        wants_lse = "lse" in given.wants
        if wants_lse:
            options["return_aux"] = AuxRequest(lse=True)
        with warnings.catch_warnings():
            # It says that it runs without being compiled, which is what is asked for.
            warnings.simplefilter("ignore")
            out = _function(self.compiled)(given.query, given.key, given.value, **options)
        return {"output": out[0], "lse": out[1].lse} if wants_lse else out


@functools.lru_cache
def _function(compiled: bool) -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if compiled else flex_attention


def _mask_mod(given: Given) -> Any:
    mask, lengths, segments, window, where = given.mask, given.lengths, given.segments, given.window, given.where
    if all(rule is None for rule in (mask, lengths, segments, window, where)) and not given.causal:
        return None
    wide = None if mask is None else mask.expand(given.query.shape[0], given.query.shape[1], *mask.shape[-2:])
    if wide is not None:
        wide = wide.expand(*wide.shape[:2], given.query.shape[2], given.key.shape[2]).contiguous()

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        keep = i >= 0
        if wide is not None:
            keep = keep & wide[b, h, i, j]
        if given.causal:
            keep = keep & (i >= j)
        if window is not None and window[0] is not None:
            keep = keep & (i - j <= window[0])
        if window is not None and window[1] is not None:
            keep = keep & (j - i <= window[1])
        if lengths is not None:
            keep = keep & (j < lengths[b])
        if segments is not None:
            keep = keep & (segments[0][i] == segments[1][j])
        if where is not None:
            # Its own index of the query is all it has for a position.
            keep = keep & where(b, h, i, j)
        return keep

    return rule


def _score_mod(given: Given) -> Any:
    bias, slopes, cap = given.bias, given.slopes, given.softcap
    if bias is None and slopes is None and cap is None:
        return None
    if bias is not None:
        bias = bias.expand(
            given.query.shape[0], given.query.shape[1], given.query.shape[2], given.key.shape[2]
        ).contiguous()

    def change(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        import torch

        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias[b, h, i, j]
        if slopes is not None:
            score = score - slopes[h] * (i - j).abs()
        return score

    return change


def make(name: str) -> Kernel:
    """torch-flex or torch-flex-compiled."""
    import torch

    accepts = frozenset(
        {
            "mask",
            "bias",
            "mask+bias",
            "segments",
            "where",
            "lengths",
            "gqa",
            "scale",
            "softcap",
            "alibi",
            "lse",
            "cross",
            "value-width",
        }
    )
    domain = Domain(
        # On the CPU there is no backward pass. Each call is traced anew, which is slow, so two types have to do.
        accepts=accepts,
        dtypes=("float32", "bfloat16"),
        arrays="torch",
        longest=2048,
        arithmetic=frozenset({"stepwise"}),
    )
    kernel = Flex(name, domain, str(torch.__version__))
    if name.endswith("compiled"):
        # It compiles for minutes, so one type has to do.
        kernel.compiled = True
        kernel.domain = domain.but(
            accepts=accepts, dtypes=("float32",), longest=8192, seconds=120.0, arithmetic=frozenset()
        )
    return kernel
