"""Which dimensions of a head are turned together by a rotary position embedding.

Two conventions are in use: the pairs are *adjacent* (0, 1), (2, 3), … (the paper, GGUF, glassllm), or *halves* apart
(0, D/2), (1, D/2 + 1), … (transformers). Weights of one under the other give a model that runs and answers nonsense
that looks plausible. Reordering the rows of the query and key projection turns one into the other, exactly: scores are
sums over the dimensions of a head, and both sides are reordered alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["adjacent_to_halves"]


def adjacent_to_halves(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows (heads · D, in) of a projection whose pairs are adjacent, in the order for pairs that are halves apart.

    >>> adjacent_to_halves(np.arange(8.0)[:, None], heads=2)[:, 0]
    array([0., 2., 1., 3., 4., 6., 5., 7.])
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)
