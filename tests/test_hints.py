"""G2: a way out has to be one; nothing is published yet, so no message may send a reader to a registry for qkv."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FROM_A_REGISTRY = re.compile(r"""pip install (--?[\w-]+ )*['"\\]*qkv\b""")


def test_no_message_installs_qkv_from_a_registry() -> None:
    assert FROM_A_REGISTRY.search("pip install --upgrade 'qkv[learn]'")
    assert not FROM_A_REGISTRY.search('pip install ".[cli]"')
    pages = [*(ROOT / "src").rglob("*.py"), ROOT / "README.md"]
    assert [str(page) for page in pages if FROM_A_REGISTRY.search(page.read_text(encoding="utf-8"))] == []
