"""Two looks at the same keys as one signed difference: two masks, two layers, two heads, two texts of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.errors import ArgumentError, ShapeError
from qkv.floats import Array

from .row import Row

__all__ = ["Difference", "compare"]


@dataclass(frozen=True, eq=False)
class Difference:
    """b − a of one column of two rows, key by key, (S,).

    Attributes:
        quantity: the column. change: b − a; NaN where either is. moved: half the sum of |change|: for weights that add up to
            1 the share that went elsewhere.
    """

    quantity: str
    change: Array
    moved: float

    def top(self, k: int = 10) -> list[int]:
        """The keys that changed most, largest |change| first; ties take the lower index."""
        size = np.nan_to_num(np.abs(self.change), nan=-1.0)
        return [int(j) for j in np.argsort(-size, kind="stable")[:k] if size[j] > 0]


def compare(a: Row, b: Row, quantity: str = "weight") -> Difference:
    """What changed from `a` to `b`, for every key.

    Args:
        a, b: rows over the same number of keys. quantity: "weight", "norm", "norm_share", "share" or "influence".

    Raises:
        ShapeError: rows over different numbers of keys. ArgumentError: an unknown quantity, or lengths in different spaces.
    """
    if quantity not in ("weight", "norm", "norm_share", "share", "influence"):
        raise ArgumentError(
            f'quantity must be "weight", "norm", "norm_share", "share" or "influence", but {quantity!r} came; name one column'
        )
    if a.weight.shape != b.weight.shape:
        raise ShapeError(
            f"b has {b.weight.shape[0]} keys and a has {a.weight.shape[0]}, and only the same keys can be compared; cut the texts to one length"
        )
    if quantity != "weight" and a.space != b.space:
        raise ArgumentError(
            f"a is measured in the {a.space} space and b in the {b.space} space; compare weights, or two rows of one space"
        )
    change = getattr(b, quantity) - getattr(a, quantity)
    return Difference(quantity, change, float(np.nansum(np.abs(change)) / 2))
