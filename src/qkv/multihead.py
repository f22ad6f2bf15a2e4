"""The layer of the lesson in NumPy: projections, heads side by side, one attention, one projection back.

Inference only: it exists to be read and compared with, not to be trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .attention import attend
from .errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, shown
from .floats import Array
from .interop import to_numpy
from .masks import causal as causal_mask

__all__ = ["MultiHead"]

#: What a call of the layer hands on to `attend`; layout and scale are the layer's own.
_PASSED_ON = ("bias", "softcap", "sink", "empty", "nonfinite")

#: How the four matrices are called in a state dict, by family of names; all hold (out, in).
_NAMES = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("query", "key", "value", "dense"),
    ("wq", "wk", "wv", "wo"),
    ("w_q", "w_k", "w_v", "w_o"),
)


class MultiHead:
    """Multi-head attention over hidden states: q, k, v = x·W, heads attend, the results are joined and projected.

    Args:
        w_q: (M, H·D). w_k: (C, G·D). w_v: (C, G·E). w_o: (H·E, M'). They multiply from the right: q = x @ w_q.
        heads: H, query heads. key_heads: G, H if left out.
        b_q, b_k, b_v, b_o: biases, (H·D,), (G·D,), (G·E,), (M',), or None.
        causal: whether a position reads only itself and what came before.
        scale: factor of the scores, 1/sqrt(D) if left out.

    Formula: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.

    >>> import numpy as np, qkv
    >>> rng = np.random.default_rng(0)
    >>> layer = qkv.MultiHead(*rng.normal(size=(4, 8, 8)), heads=2, causal=True)
    >>> layer(rng.normal(size=(3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        w_q: Any,
        w_k: Any,
        w_v: Any,
        w_o: Any,
        *,
        heads: int,
        key_heads: int | None = None,
        b_q: Any = None,
        b_k: Any = None,
        b_v: Any = None,
        b_o: Any = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        self.heads = _count("heads", heads)
        self.key_heads = self.heads if key_heads is None else _count("key_heads", key_heads)
        if self.heads % self.key_heads:
            raise ShapeError(
                f"heads must be a multiple of key_heads, but {self.heads} and {self.key_heads} came; leave key_heads out for one each"
            )
        self.w_q, self.w_k, self.w_v, self.w_o = (
            _matrix(name, w) for name, w in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v), ("w_o", w_o))
        )
        for name, w, parts in (
            ("w_q", self.w_q, self.heads),
            ("w_k", self.w_k, self.key_heads),
            ("w_v", self.w_v, self.key_heads),
        ):
            if w.shape[1] % parts:
                raise ShapeError(
                    f"{name} must have columns for {parts} heads of one width, but has shape {w.shape}; does it multiply from the right?"
                )
        width, key_width = self.w_q.shape[1] // self.heads, self.w_k.shape[1] // self.key_heads
        if width != key_width:
            raise ShapeError(
                f"w_q and w_k must give heads of one width, but give {width} and {key_width}; are heads and key_heads right?"
            )
        value_width = self.w_v.shape[1] // self.key_heads
        if self.w_o.shape[0] != self.heads * value_width:
            raise ShapeError(
                f"w_o must have H·E = {self.heads * value_width} rows, but has shape {self.w_o.shape}; does it multiply from the right?"
            )
        if self.w_k.shape[0] != self.w_v.shape[0]:
            raise ShapeError(
                f"w_k and w_v must read one hidden width, but have shapes {self.w_k.shape} and {self.w_v.shape}; do both multiply from the right?"
            )
        dtypes = {w.dtype for w in (self.w_q, self.w_k, self.w_v, self.w_o)}
        if len(dtypes) > 1:
            raise DTypeError(
                f"w_q, w_k, w_v and w_o must have one dtype, but have {', '.join(sorted(map(str, dtypes)))}; convert some of them"
            )
        columns = (self.w_q.shape[1], self.w_k.shape[1], self.w_v.shape[1], self.w_o.shape[1])
        biases = zip(("b_q", "b_k", "b_v", "b_o"), (b_q, b_k, b_v, b_o), columns, strict=True)
        self.b_q, self.b_k, self.b_v, self.b_o = (_vector(name, b, size) for name, b, size in biases)
        if not isinstance(causal, bool):
            raise DTypeError(
                f"causal must be True or False, but {shown(causal)} came; other masks go to the call, as mask=…"
            )
        self.causal, self.scale = causal, scale

    def project(self, x: Any, context: Any = None) -> tuple[Array, Array, Array]:
        """Queries (B…, H, L, D) of x (B…, L, M), and keys (B…, G, S, D) and values (B…, G, S, E) of context (x if left out)."""
        hidden = _hidden("x", x, self.w_q.shape[0])
        source = hidden if context is None else _hidden("context", context, self.w_k.shape[0])
        if context is None and self.w_k.shape[0] != self.w_q.shape[0]:
            raise ShapeError(
                f"context is missing: w_k reads a hidden width of {self.w_k.shape[0]}, w_q one of {self.w_q.shape[0]}; pass what is read as context="
            )
        if hidden.shape[:-2] != source.shape[:-2]:
            raise ShapeError(
                f"x and context must have equal batch axes, but have {hidden.shape[:-2]} and {source.shape[:-2]}; repeat the shorter one"
            )
        return (
            _split(hidden, self.w_q, self.b_q, self.heads),
            _split(source, self.w_k, self.b_k, self.key_heads),
            _split(source, self.w_v, self.b_v, self.key_heads),
        )

    def __call__(self, x: Any, context: Any = None, *, mask: Any = None, **arguments: Any) -> Array:
        """The layer's output, (B…, L, M').

        Args:
            x: hidden states that ask, (B…, L, M). context: hidden states that are read, (B…, S, C); x if left out.
            mask: conjoined with causal() where the layer is causal. arguments: passed to `attend`.
        """
        for name in arguments:
            if name not in _PASSED_ON:
                raise UnsupportedError(
                    f"{name} is not for a whole layer, but came; the call takes mask and {', '.join(_PASSED_ON)}"
                )
        query, key, value = self.project(x, context)
        if self.causal:
            mask = causal_mask() if mask is None else causal_mask() & mask
        mixed = attend(query, key, value, mask=mask, scale=self.scale, **arguments)
        joined = mixed.swapaxes(-2, -3).reshape(*mixed.shape[:-3], mixed.shape[-2], self.w_o.shape[0])
        out = joined @ self.w_o
        result: Array = out if self.b_o is None else out + self.b_o
        return result

    @classmethod
    def from_tensors(
        cls,
        tensors: dict[str, Any],
        *,
        heads: int,
        key_heads: int | None = None,
        prefix: str = "",
        causal: bool = False,
    ) -> MultiHead:
        """A layer from a state dict of (out, in) matrices, such as `prefix + "q_proj.weight"`, biases where there are some.

        Known families of names: q_proj/k_proj/v_proj/o_proj (or out_proj), query/key/value/dense, wq/wk/wv/wo, w_q/….
        """
        for names in _NAMES:
            matrices = [tensors.get(f"{prefix}{name}.weight", tensors.get(f"{prefix}{name}")) for name in names]
            if all(m is not None for m in matrices):
                biases = [tensors.get(f"{prefix}{name}.bias") for name in names]
                w_q, w_k, w_v, w_o = (to_numpy(m, name).T for m, name in zip(matrices, names, strict=True))
                b_q, b_k, b_v, b_o = biases
                return cls(
                    w_q,
                    w_k,
                    w_v,
                    w_o,
                    heads=heads,
                    key_heads=key_heads,
                    b_q=b_q,
                    b_k=b_k,
                    b_v=b_v,
                    b_o=b_o,
                    causal=causal,
                )
        found = ", ".join(sorted(name for name in tensors if name.startswith(prefix))[:8]) or "none"
        families = "; ".join("/".join(names) for names in _NAMES)
        raise ArgumentError(
            f"prefix must be followed by one of the families {families}, but {prefix!r} is followed by: {found}"
        )

    @classmethod
    def from_file(
        cls, path: str | Path, *, heads: int, key_heads: int | None = None, prefix: str = "", causal: bool = False
    ) -> MultiHead:
        """A layer from a .safetensors or .npz file; see `from_tensors`. bfloat16 and float16 weights become float32."""
        from .files import read_tensors
        from .floats import widen

        tensors = {
            name: widen(t.array, t.dtype) if t.dtype in ("bfloat16", "float16") else t.array
            for name, t in read_tensors(path).items()
        }
        return cls.from_tensors(tensors, heads=heads, key_heads=key_heads, prefix=prefix, causal=causal)


def _split(x: Array, w: Array, b: Array | None, heads: int) -> Array:
    """x·W + b as heads: (B…, length, heads · width) -> (B…, heads, length, width)."""
    y = x @ w
    if b is not None:
        y = y + b
    out: Array = y.reshape(*y.shape[:-1], heads, w.shape[1] // heads).swapaxes(-2, -3)
    return out


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ArgumentError(
            f"{name} must be a whole number of at least 1, but {shown(value)} came; it is in the model's configuration"
        )
    return int(value)


def _matrix(name: str, w: Any) -> Array:
    array = to_numpy(w, name)
    if array.dtype not in (np.float32, np.float64):
        raise DTypeError(
            f"{name} must be float32 or float64, but has dtype {array.dtype}; write {name}.astype(np.float32)"
        )
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(
            f"{name} must be a matrix (in, out), but has shape {array.shape}; a layer of torch holds its transpose"
        )
    return array


def _vector(name: str, b: Any, size: int) -> Array | None:
    if b is None:
        return None
    array = to_numpy(b, name)
    if array.dtype not in (np.float32, np.float64):
        raise DTypeError(
            f"{name} must be float32 or float64, but has dtype {array.dtype}; write {name}.astype(np.float32)"
        )
    if array.shape != (size,):
        raise ShapeError(
            f"{name} must have shape ({size},), one number a column, but has shape {array.shape}; leave it out for no bias"
        )
    return array


def _hidden(name: str, x: Any, width: int) -> Array:
    array = to_numpy(x, name)
    if array.ndim < 2 or array.shape[-1] != width:
        raise ShapeError(
            f"{name} must have shape (B…, length, {width}), but has shape {array.shape}; pass hidden states, heads not split yet"
        )
    return array
