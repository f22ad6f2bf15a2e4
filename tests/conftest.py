"""Engines to test, and how many random examples to try."""

from __future__ import annotations

import os
import signal

# Before NumPy is loaded: on small matrices BLAS threads that wait by spinning cost far more than they give.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from qkv.engines import native

# The fixture `engine` sets one environment variable, the same for every example of a test.
_QUIET = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
]

#: The default is the same examples every time; QKV_HYPOTHESIS=deep looks for new ones, many times as many (QKV_EXAMPLES says
#: how many). Far more calls than Hypothesis can draw are made by tools/soak.py.
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=_QUIET, max_examples=60
)
settings.register_profile(
    "deep",
    deadline=None,
    suppress_health_check=_QUIET,
    max_examples=int(os.environ.get("QKV_EXAMPLES", "1500")),
    print_blob=True,
)
settings.load_profile(os.environ.get("QKV_HYPOTHESIS", "steady"))


def pytest_sessionstart() -> None:
    """Where the native engine has to be there, no test of it may be skipped for want of it.

    What a shell starts in the background ignores Ctrl-C, and so would every process of the tests that press it.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("QKV_REQUIRE_NATIVE") and not native.available():
        pytest.exit(f"QKV_REQUIRE_NATIVE is set, but the native engine is missing: {native.why_not()}", returncode=1)


def need_native() -> None:
    """Skip where the native engine is missing."""
    if not native.available():
        pytest.skip(f"the native engine is missing: {native.why_not()}")


@pytest.fixture
def native_engine(monkeypatch: pytest.MonkeyPatch) -> str:
    """The native engine, set for the whole test."""
    need_native()
    monkeypatch.setenv("QKV_ENGINE", "native")
    return "native"


@pytest.fixture(params=["numpy", pytest.param("native", marks=pytest.mark.native)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both engines, one after the other."""
    if request.param == "native":
        need_native()
    monkeypatch.setenv("QKV_ENGINE", request.param)
    return str(request.param)
