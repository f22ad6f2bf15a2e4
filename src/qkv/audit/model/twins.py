"""The same model in another float type: what its own rounding amounts to, measured.

A bound for two ways of computing one thing has to come from the arithmetic. Two runs whose every rounding is that of
float32 lie at most 2·e apart, if e is how far such a run is from the exact answer. Here e is taken from the model
itself: the largest distance between a run in float32 and one in float64, whose own rounding is five hundred million
times smaller. The two ways are then compared in float64, so that nothing but a part that a model keeps in float32
whatever its type (a norm, a softmax) is left to come near the bound.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .hooks import is_module
from .known import with_plain_experts
from .subject import Subject
from .values import is_array, is_torch

__all__ = ["twin", "why_no_twin"]


def why_no_twin(subject: Subject) -> str:
    """Why a model cannot be run in another float type, or ""."""
    floats = [x for x in subject.words.values() if _is_float(x)]
    if not is_module(subject.model) and not floats:
        return "a function of whole numbers has no float type to take the bound from; pass a torch module"
    if not all(is_torch(x) or isinstance(x, np.ndarray) for x in floats):
        return "the bound is taken from runs in float32 and float64, for which NumPy or torch arrays are needed"
    return ""


def twin(subject: Subject, name: str) -> Subject:
    """The model and its inputs in "float32" or "float64"; a torch module is copied unless it is of that type."""
    model = subject.model
    if is_module(model):
        import torch

        dtype = getattr(torch, name)
        held = [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()]
        if any(x.dtype != dtype for x in held):
            model = with_plain_experts(copy.deepcopy(model).to(dtype))
    words = {n: _cast(x, name) if _is_float(x) else x for n, x in subject.words.items()}
    return Subject(model, words, subject.vary, subject.output, subject.batched)


def _is_float(x: Any) -> bool:
    return is_array(x) and "float" in str(x.dtype)


def _cast(x: Any, name: str) -> Any:
    if is_torch(x):
        import torch

        return x.to(getattr(torch, name))
    return x.astype(name)
