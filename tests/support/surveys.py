"""What a survey of weights has to say, and how far it may be off, from the weights and their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.pooled import edges

from .checks import within


def surveyed(found: Any, weight: np.ndarray, off: np.ndarray, positions: np.ndarray, cells: tuple[int, int]) -> None:
    """(entropy, distance, received, pooled) against the right weights (N, H, L, S), which may be off by `off`.

    Entropy and distance are of weights renormalised over the keys: an error of a weight counts there over the row's mass, once
    for the weight and once for the mass, and as much again for adding them up; that of p ln p is (1 + |ln p|) times p's.
    """
    entropy, distance, received, pooled = (np.asarray(part) for part in found)
    eps, keys = np.finfo(entropy.dtype).eps, np.arange(weight.shape[-1])
    mass = weight.sum(axis=-1, keepdims=True)
    share = np.divide(weight, mass, out=np.zeros_like(weight), where=mass > 0)
    slack = np.divide(4 * off, mass, out=np.zeros_like(off), where=mass > 0)
    with np.errstate(all="ignore"):
        logs = np.where(share > 0, np.log(share), 0)
    within(entropy, -(share * logs).sum(axis=-1), (slack * (2 + np.abs(logs))).sum(axis=-1) + 4 * eps, "entropy")
    far = positions[:, None] - keys
    mean = np.where(mass[..., 0] > 0, (share * far).sum(axis=-1), np.nan)
    within(distance, mean, (slack * np.abs(far)).sum(axis=-1) + 4 * eps * np.abs(far).max(), "distance")
    within(received, weight.sum(axis=2), 2 * off.sum(axis=2) + eps, "received")
    rows, cols = edges(weight.shape[2], cells[0]), edges(weight.shape[3], cells[1])
    for b in range(cells[0]):
        for c in range(cells[1]):
            part = (..., slice(*rows[b : b + 2]), slice(*cols[c : c + 2]))
            within(
                pooled[..., b, c], weight[part].max(axis=(-2, -1)), off[part].max(axis=(-2, -1)), "a cell of the map"
            )
