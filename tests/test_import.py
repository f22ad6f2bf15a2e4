"""What loading the library costs and leaves behind. Each check runs in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import qkv

ROOT = Path(__file__).resolve().parents[1]

#: The optional packages, and what they would bring along.
OPTIONAL = (
    *("torch", "jax", "jaxlib", "rich", "safetensors", "ml_dtypes", "transformers", "tokenizers"),
    *("scipy", "hypothesis", "pytest"),
)

#: They can be found, as `info` does, and not be loaded.
REFUSE = f"""
import sys
from importlib.machinery import ModuleSpec
class Refuse:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.split(".")[0] in {OPTIONAL!r} else None
    def create_module(self, spec):
        raise ImportError(f"{{spec.name}} is optional and must not be imported")
    def exec_module(self, module):
        raise AssertionError
sys.meta_path.insert(0, Refuse())
"""

#: What importing may take, in seconds beyond NumPy.
LIMIT = 0.15


def fresh(code: str, **environment: str) -> str:
    """What a fresh interpreter prints; it imports the same qkv as this one."""
    home = str(Path(qkv.__file__).parents[1])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CALL = """
import numpy, qkv
x = numpy.ones((2, 3, 4), numpy.float32)
assert qkv.attend(x, x, x, mask=qkv.causal()).shape == (2, 3, 4)
a = qkv.attention(x, x, x, mask=qkv.causal())
a.top(2), a.received(), a.influence(1), str(qkv.explain(x, x, x)), str(qkv.info())
str(qkv.trace([1, 0], [[1, 0], [0, 1]], [[10, 0], [0, 20]]))
"""


def test_imports_and_computes_where_optional_packages_are_refused():
    fresh(REFUSE + CALL)


def test_the_refusal_refuses():
    """The planted fault: an import of an optional package is an error in that interpreter."""
    with pytest.raises(AssertionError, match="rich is optional"):
        fresh(REFUSE + "import rich")


def test_loads_nothing_beyond_numpy_and_the_standard_library():
    before = "import numpy, sys; before = set(sys.modules)\n"
    after = "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    loaded = set(fresh(before + "import qkv\n" + after).split()) | set(fresh(before + CALL + after).split())
    assert loaded - set(sys.stdlib_module_names) - {"numpy"} == {"qkv"}


def test_loads_quickly(record_property, capsys):
    """Tested at three times the limit and in processor time, because machines are shared; the figures are printed."""
    code = """
import numpy, time
start = time.perf_counter(), time.process_time()
import qkv
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""
    runs = [[float(number) for number in fresh(code).split()] for _ in range(5)]
    wall, work = (sorted(column)[2] for column in zip(*runs, strict=True))
    record_property("import_seconds", wall)
    with capsys.disabled():
        print(f"\nimport qkv beyond NumPy: {wall:.3f} s, {work:.3f} s of processor time; limit {LIMIT} s")
    assert work < 3 * LIMIT


SUBNORMAL = """
import numpy as np
def kept():
    tiny = np.array([5e-324]), np.array([1e-45], np.float32)
    return 5e-324 * 1.0 != 0 and all((t * t.dtype.type(1) != 0).all() for t in tiny)
assert kept()
import qkv
assert kept()
x = np.ones((4, 64, 8), np.float32)
for dtype in (np.float32, np.float64, np.float16):
    qkv.attend(x.astype(dtype), x.astype(dtype), x.astype(dtype), mask=qkv.causal())
assert kept()
import threading
found = []
thread = threading.Thread(target=lambda: found.append(kept()))
thread.start(); thread.join()
assert found == [True]
"""


def test_leaves_subnormals_alone(engine):
    """F4: loading the library, and computing with it, leave the floating-point mode of the process alone."""
    fresh(SUBNORMAL)


def test_subnormal_check_sees_a_flush():
    """The planted fault: numbers that are flushed to zero."""
    with pytest.raises(AssertionError, match="AssertionError"):
        fresh(SUBNORMAL.replace("5e-324 * 1.0 != 0", "5e-324 * 0.5 != 0"))


@pytest.mark.slow
def test_the_wheel_is_small_and_whole(tmp_path):
    pytest.importorskip("scikit_build_core")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*command, str(ROOT)], check=True, timeout=600)
    (wheel,) = tmp_path.glob("qkv-*.whl")
    assert wheel.stat().st_size <= 3 * 2**20
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("qkv/__init__.py", "qkv/py.typed", "qkv/data/smollm2_alice.npz", "qkv/cli/main.py"):
        assert needed in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "tools")) or "__pycache__" in name]
    assert wheel.name.endswith("any.whl") is not any("_native" in name for name in names)
