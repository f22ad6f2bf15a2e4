"""Run as a program: how much memory one long windowed call takes beyond its inputs and result, in bytes.

A process of its own, because the peak of a process never falls again.
"""

from __future__ import annotations

import resource
import sys

import numpy as np

import qkv

LENGTH, HEADS, WIDTH = 8192, 16, 64


def peak() -> int:
    """The most memory this process has ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    rng = np.random.default_rng(0)
    mask = qkv.causal() & qkv.window(255, 0)
    # Drawn in place: a temporary copy would raise the peak before the call that is measured.
    query, key, value = np.empty((3, HEADS, LENGTH, WIDTH), np.float32)
    for x in (query, key, value):
        rng.standard_normal(dtype=np.float32, out=x)
    qkv.attend(query[:, :300], key[:, :300], value[:, :300], mask=mask)
    before = peak()
    output = qkv.attend(query, key, value, mask=mask)
    print(peak() - before - output.nbytes, qkv.explain(query, key, value, mask=mask).engine)


if __name__ == "__main__":
    main()
