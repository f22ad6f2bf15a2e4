"""docs/findings: each script still prints what its page shows, in a child, since some end their process."""

from __future__ import annotations

import importlib.metadata
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.libraries import library

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
SCRIPTS = sorted(FOLDER.glob("*.py"))


def shown() -> dict[str, str]:
    """Script -> what the page says it prints."""
    return dict(re.findall(r"^\[`\w+\.py`\]\((\w+\.py)\).*?^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def printed(script: Path) -> str:
    """Its lines, the error it ends with, the signal that ends it."""
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=1200, check=False)
    said = done.stdout
    if done.returncode < 0:
        return f"{said}killed by {signal.Signals(-done.returncode).name}\n"
    return said + (done.stderr.splitlines()[-1] + "\n" if done.returncode else "")


def test_every_finding_is_on_the_page() -> None:
    """And nothing else."""
    assert set(shown()) == {script.name for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_finding_needs_ten_lines_and_no_qkv(script: Path) -> None:
    """What is sent upstream shows the fault alone."""
    code = script.read_text(encoding="utf-8").partition('"""\n')[2]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 10
    assert "qkv" not in code


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_finding_still_shows(script: Path) -> None:
    """In the version it names; where the library is another one, it may be mended."""
    for name in ("torch", "transformers", "onnx", "mlx", "openvino"):
        if re.search(rf"^(import|from) {name}\b", script.read_text(encoding="utf-8"), re.MULTILINE):
            library(name)
            version = importlib.metadata.version(name)
            if not re.search(rf"\b{name} {re.escape(version)}[ ,]", PAGE):
                pytest.skip(f"the findings are about another {name} than {version}")
    assert printed(script) == shown()[script.name]
