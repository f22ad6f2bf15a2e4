"""Libraries that a test needs and a user may not have."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import pytest


def library(name: str) -> Any:
    """The module; where it is not installed a skip in one line, and a failure where CI has to have it."""
    if importlib.util.find_spec(name) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is missing, and CI tests with it")
        pytest.skip(f"{name} is not installed")
    return importlib.import_module(name)
