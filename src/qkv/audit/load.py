"""Find a kernel by its name: an adapter's, `module:function`, or `path/to/file.py:function`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError

from .domain import Domain
from .kernel import FunctionKernel, Kernel

__all__ = ["check_device", "find_object", "load"]


def load(spec: dict[str, Any]) -> Kernel:
    """The kernel of a plain description: {"adapter": name}, or {"target": name, "keywords": …, "domain": …}.

    Raises:
        ArgumentError: nothing is found under this name. ImportError: what it needs is not installed.
    """
    if "adapter" in spec:
        from .adapters import make

        return make(spec["adapter"])
    found = find_object(spec["target"])
    if isinstance(found, Kernel):
        return found
    if not callable(found):
        raise ArgumentError(f"{spec['target']} is no function, but {type(found).__name__}")
    return FunctionKernel(
        spec["target"], Domain.from_dict(spec["domain"]), function=found, keywords=dict(spec.get("keywords", {}))
    )


def find_object(target: str) -> Any:
    """What `module:name` or `file.py:name` names.

    Raises:
        ArgumentError: it names nothing.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ArgumentError(f"a kernel is named module:function or file.py:function, but {target!r} came")
    if place.endswith(".py"):
        path = Path(place).resolve()
        spec = importlib.util.spec_from_file_location(f"_qkv_audited_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ArgumentError(f"{place} is no Python file that can be read; give its path")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        # A file imports what lies beside it, as when it is run.
        sys.path.insert(0, str(path.parent))
        spec.loader.exec_module(module)
    else:
        if "" not in sys.path and "." not in sys.path:
            sys.path.insert(0, "")
        module = importlib.import_module(place)
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ArgumentError(f"{place} has no {name}; {_way_out(name, module)}") from None


def _way_out(name: str, module: Any) -> str:
    functions = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
    near = difflib.get_close_matches(name, functions, 1)
    if near:
        return f"is it spelled {near[0]}?"
    return (
        f"it has {', '.join(functions[:6])}{', …' if len(functions) > 6 else ''}" if functions else "it has no function"
    )


def check_device(domain: Domain) -> None:
    """Whether arrays can be where the domain says.

    Raises:
        ArgumentError: there is no such device.
    """
    if domain.device == "cpu":
        return
    import torch

    try:
        torch.empty(0, device=domain.device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        words = " ".join(str(problem).split()).partition(". ")[0].rstrip(".")
        raise ArgumentError(
            f"device {domain.device!r} cannot be used here ({words[:200]}); leave device out to audit on the CPU"
        ) from None
