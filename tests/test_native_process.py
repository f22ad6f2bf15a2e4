"""The engine as a guest in a process: forks, threads, signals, floating-point mode, levels, malformed arguments (A4, F3, F4)."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import native_calls as calls
from qkv.engines import native
from qkv.errors import EngineError

pytestmark = [pytest.mark.native, pytest.mark.skipif(not native.available(), reason=native.why_not())]


def sample(L=70, S=300, seed=0, **options) -> native.Call:
    q, k, v = calls.operands(np.random.default_rng(seed), (2,), 4, 2, L, S, 16, 16)
    return calls.build(q, k, v, causal=True, offset=S - L, **{"tile_rows": 8, "threads": 4, **options})


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_names_of_levels():
    assert native.levels()[0] == "portable"
    assert native.level() in native.levels()
    assert native.available()
    assert native.why_not() == ""
    assert native.default_threads() >= 1


@pytest.mark.parametrize("name", native.levels() if native.available() else ())
def test_an_environment_variable_forces_the_level(name):
    done = run_python("from qkv.engines import native; print(native.level())", QKV_ISA=name)
    assert done.stdout.split() == [name], done.stderr


def test_a_level_the_machine_lacks_is_one_sentence():
    code = """
from qkv.engines import native
from qkv.errors import EngineError
import native_calls as calls, numpy as np
q, k, v = calls.operands(np.random.default_rng(0))
try:
    native.run(calls.build(q, k, v))
except EngineError as error:
    print(error)
"""
    done = run_python(code, QKV_ISA="mmx")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("QKV_ISA must be one of portable")
    assert "'mmx'" in done.stdout
    assert done.stdout.count("\n") == 1


def test_the_number_of_threads_can_be_set():
    code = "from qkv.engines import native; print(native.default_threads())"
    assert run_python(code, QKV_NUM_THREADS="3").stdout.split() == ["3"]
    assert (
        "QKV_NUM_THREADS must be a positive whole number, not 'many'; unset it to use every processor"
        in run_python(code, QKV_NUM_THREADS="many").stderr
    )


def test_without_the_extension_the_module_still_imports():
    code = """
import sys
sys.modules["qkv._native"] = None
from qkv.engines import native
from qkv.errors import EngineError
assert not native.available()
print(native.why_not())
try:
    native.levels()
except EngineError as error:
    print(error)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "could not be imported" in first
    assert second.startswith("the native engine was asked for, but is not there: ")


def test_importing_leaves_the_floating_point_mode_alone():
    code = """
import numpy as np
import qkv.engines.native as native, native_calls as calls
tiny = np.float32(1e-45)
assert tiny * np.float32(1) == tiny != 0
q, k, v = calls.operands(np.random.default_rng(0), (1,), 2, 1, 40, 40, 8, 8)
native.run(calls.build(q, k, v, threads=2, tile_rows=4))
assert tiny * np.float32(1) == tiny != 0
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_the_caller_s_floating_point_mode_changes_no_bit():
    """A process that flushes subnormals to zero, as torch.set_flush_denormal does, gets the same bits, and keeps its mode."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q, k, v = calls.operands(rng, (1,), 2, 1, 40, 40, 8, 8, scale=1e-20)
    call = calls.build(q, k, v * np.float32(1e-38), threads=2, tile_rows=4)
    usual = native.run(call)
    assert torch.set_flush_denormal(True)
    try:
        flushed = native.run(call)
        still = float(torch.tensor([1e-45]) * 1)
    finally:
        torch.set_flush_denormal(False)
    assert calls.same_bits(usual.output.view(np.uint32), flushed.output.view(np.uint32))
    assert calls.same_bits(usual.lse, flushed.lse)
    assert still == 0


def test_many_python_threads_at_once():
    whole = [sample(seed=s) for s in range(6)]
    right = [native.run(call) for call in whole]
    wrong: list[int] = []

    def work(at: int) -> None:
        for _ in range(30):
            if not calls.same_bits(native.run(whole[at]).output, right[at].output):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_pool_of_its_own():
    call = sample()
    right = native.run(call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork beside threads,
        warnings.simplefilter("ignore", RuntimeWarning)  # and so does JAX, where another test has loaded it
        context = multiprocessing.get_context("fork")
        with context.Pool(2) as pool:
            results = pool.map(_child, [0, 0, 0, 0], chunksize=1)
    for output in results:
        assert calls.same_bits(right.output, output)
    assert calls.same_bits(native.run(call).output, right.output)


def _child(seed: int) -> np.ndarray:
    return native.run(sample(seed=seed)).output


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forking_inside_a_call():
    """A signal handler forks while the pool is at work: the child is told, the parent goes on."""
    # How long a call takes is the machine's affair, so the call grows until the fork has fallen into it: a child that
    # was forked before or after says 3, and there is no child yet where the call was over first.
    code = """
import os, signal, warnings
import numpy as np
import native_calls as calls
from qkv.engines import native
warnings.simplefilter("ignore")
children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
for keys in (3000, 6000, 12000, 24000, 48000):
    q, k, v = calls.operands(np.random.default_rng(0), (1,), 8, 8, 3000, keys, 64, 64)
    call = calls.build(q, k, v, tile_rows=32, threads=2)
    children.clear()
    signal.setitimer(signal.ITIMER_REAL, 0.12)
    try:
        native.run(call)
        forked = None
    except RuntimeError as error:
        forked = str(error)
    if children == [0]:
        if forked is None:
            os._exit(3)
        small = calls.build(*(x[:, :, :50] for x in (q, k, v)), tile_rows=4, threads=2)
        os._exit(7 if "forked" in forked and np.isfinite(native.run(small).output).all() else 1)
    assert forked is None
    while not children:
        signal.pause()
        if children == [0]:
            os._exit(3)
    said = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    if said != 3:
        assert said == 7
        print("fine")
        break
"""
    done = run_python(code)
    assert done.stdout.split() == ["fine"], done.stderr


@pytest.mark.parametrize("rows", [1, 32, 1500])
def test_a_daemon_thread_at_work_does_not_spoil_the_end(rows):
    """Python ends such a thread when it asks for the lock again, and must not end the process with it."""
    code = f"""
import threading, time
import numpy as np, qkv
x = np.random.default_rng(0).standard_normal((1, 8, {rows}, 64)).astype("f4")
begun = threading.Event()
def forever():
    while True:
        qkv.attend(x, x, x)
        begun.set()
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
begun.wait(60)
time.sleep(0.05)
print("fine")
"""
    for _ in range(3):
        done = run_python(code)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["fine"]


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_a_long_call(threads):
    q, k, v = calls.operands(np.random.default_rng(0), (1,), 8, 1, 8000, 120_000, 64, 64)
    call = calls.build(q, k, v, tile_rows=6000, threads=threads)
    begin = time.perf_counter()
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        native.run(call)
    # The whole call takes tens of seconds on the fastest machine; a busy one may be late.
    assert time.perf_counter() - begin < 10
    small = sample()
    assert np.isfinite(native.run(small).output).all()


def test_other_threads_run_meanwhile():
    q, k, v = calls.operands(np.random.default_rng(0), (1,), 8, 8, 2000, 2000, 64, 64)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.002)

    other = threading.Thread(target=tick)
    other.start()
    time.sleep(0.01)
    before = ticks
    native.run(calls.build(q, k, v, threads=1))
    seen = ticks - before
    done.set()
    other.join()
    assert seen > 5


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs the address space itself")
def test_no_memory_for_scratch_is_a_memory_error():
    code = """
import resource
import numpy as np
import native_calls as calls
from qkv.engines import native
q, k, v = calls.operands(np.random.default_rng(0), (1,), 1, 1, 200000, 8, 16, 16)
call = calls.build(q, k, v, tile_rows=200000, spread=True)
native.run(calls.build(q[:, :, :4], k, v))
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (40 << 20), -1))
try:
    native.run(call)
except MemoryError:
    print("fine")
"""
    done = run_python(code)
    assert done.stdout.split() == ["fine"], done.stderr


BROKEN = {
    "dtype": {"dtype": "float64"},
    "key heads": {"key": np.zeros((2, 3, 300, 16), np.float32), "value": np.zeros((2, 3, 300, 16), np.float32)},
    "key width": {"key": np.zeros((2, 2, 300, 15), np.float32)},
    "value length": {"value": np.zeros((2, 2, 299, 16), np.float32)},
    "batch": {"key": np.zeros((1, 2, 300, 16), np.float32)},
    "batch axes": {"value": np.zeros((2, 1, 2, 300, 16), np.float32)},
    "axes": {"query": np.zeros((70, 16), np.float32)},
    "byte order": {"query": np.zeros((2, 4, 70, 16), ">f4")},
    "no columns": {"query": np.zeros((2, 4, 70, 0), np.float32), "key": np.zeros((2, 2, 300, 0), np.float32)},
    "offset length": {"offset": np.zeros(3, np.int64)},
    "offset dtype": {"offset": np.zeros(2, np.int32)},
    "offset size": {"offset": np.full(2, 2**62, np.int64)},
    "ranges dtype": {"lo": np.zeros((2, 70, 1), np.int64)},
    "ranges shape": {"lo": np.zeros((2, 69, 1), np.int32)},
    "ranges batch": {"lo": np.zeros((3, 70, 1), np.int32), "hi": np.zeros((3, 70, 1), np.int32)},
    "ranges strides": {"hi": np.zeros((2, 140, 1), np.int32)[:, ::2]},
    "origin shape": {"origin": np.zeros((2, 71), np.int32)},
    "slopes": {"slopes": np.zeros(3)},
    "sink": {"sink": np.zeros(4, np.float32)},
    "bias shape": {"bias": np.zeros((2, 4, 70, 299), np.float32)},
    "bias dtype": {"bias": np.zeros((2, 4, 70, 300)), "bias_dtype": "float64"},
    "allow dtype": {"allow": np.zeros((2, 4, 70, 300), np.int32)},
    "allow shape": {"allow": np.zeros((2, 1, 70, 300), bool)},
    "tile_rows": {"tile_rows": 0},
    "block": {"block": 0},
    "split": {"split": 33},
    "threads": {"threads": 0},
    "huge block": {"block": 2**40, "split": 2**40},
    "scale": {"scale": np.inf},
    "softcap": {"softcap": -1.0},
    "nan softcap": {"softcap": np.nan},
}


@pytest.mark.parametrize("name", BROKEN)
def test_malformed_calls_are_refused_in_one_sentence(name):
    call = dataclasses.replace(sample(), **BROKEN[name])
    with pytest.raises(ValueError, match=r"^[^\n]+ must be [^\n]+\.$"):
        native.run(call)


def test_absurd_plans_are_carried_out():
    call = sample()
    right = native.run(call)
    for plan in ({"tile_rows": 2**40}, {"threads": 2**31}, {"tile_rows": 2**62, "threads": 2**62, "spread": True}):
        assert calls.same_bits(native.run(dataclasses.replace(call, **plan)).output, right.output)
    whole = native.run(dataclasses.replace(call, block=300, split=300))
    assert calls.same_bits(native.run(dataclasses.replace(call, block=2**31 - 1, split=2**31 - 1)).output, whole.output)


def test_an_unknown_level_is_refused():
    with pytest.raises((EngineError, ValueError)):
        native.run(sample(), "v9")


def test_a_small_call_costs_little():
    q, k, v = calls.operands(np.random.default_rng(0), (1,), 1, 1, 2, 2, 8, 8)
    call = calls.build(q, k, v)
    native.run(call)
    best = min(_timed(call) for _ in range(500))
    assert best < 1e-3  # it is a few microseconds; a shared machine may be slow


def _timed(call: native.Call) -> float:
    begin = time.perf_counter()
    native.run(call)
    return time.perf_counter() - begin
