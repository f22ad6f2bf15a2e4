"""What the machine could do at best, measured in the same run: multiply-add in a large matrix product, plain reading."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

SIDE = 2048
BUFFER = 2**29  # bytes, far beyond any cache


@dataclass(frozen=True)
class Ceilings:
    """The best of several tries, all threads together.

    Attributes:
        product: operations a second of a square matrix product of 2048, by dtype; float16 is widened to float32
            by everybody, so that is its ceiling.
        reading: bytes a second of adding up half a gigabyte.
    """

    product: dict[str, float]
    reading: float


def measure() -> Ceilings:
    """Half a minute at most; torch where it is there, NumPy where not."""
    try:
        import torch
    except ImportError:
        a = np.ones((SIDE, SIDE), np.float32)
        numbers = np.ones(BUFFER // 4, np.float32)
        rate = 2 * SIDE**3 / _best(lambda: a @ a)
        return Ceilings(dict.fromkeys(("float32", "bfloat16", "float16"), rate), BUFFER / _best(lambda: numbers.sum()))
    product = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(SIDE, SIDE).to(dtype)
        product[str(dtype).removeprefix("torch.")] = 2 * SIDE**3 / _best(lambda x=x: x @ x)  # type: ignore[misc]
    product["float16"] = product["float32"]
    buffer = torch.ones(BUFFER // 4)
    return Ceilings(product, BUFFER / _best(buffer.sum))


def _best(run: object, tries: int = 7, seconds: float = 5.0) -> float:
    assert callable(run)
    times: list[float] = []
    start = time.perf_counter()
    run()
    while len(times) < tries and (not times or time.perf_counter() - start < seconds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)
