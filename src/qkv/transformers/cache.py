"""A cache for `generate` and batched decoding, on `qkv.Cache` in pages; any attention of transformers can read it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..cache import Cache
from ..errors import UnsupportedError
from .library import library

_PAGE = 64


def paged_cache(config: Any, *, page: int = _PAGE, storage: str | None = None) -> Any:
    """A cache for a model, to be passed as `past_key_values` to `generate` or to the model.

    Keys are appended where they lie, instead of into a new tensor at every token; beams and repeated prompts share
    their pages until they differ; layers with a window forget what no query can reach any more.

    Args:
        config: the model's, `model.config`; it says which layers have a window.
        page: tokens of a page. storage: "float16" or "bfloat16" keeps keys and values rounded to it.

    Raises:
        UnsupportedError: transformers is not installed or too old, or a layer keeps something else than keys and values.

    >>> cache = qkv.transformers.paged_cache(model.config)  # doctest: +SKIP
    >>> model.generate(**inputs, past_key_values=cache)  # doctest: +SKIP
    """
    caches = library().caches
    plain = caches.DynamicCache(config=config)
    layers = []
    for number, layer in enumerate(plain.layers):
        if type(layer) is caches.DynamicSlidingWindowLayer:
            layers.append(_layer_class()(page, storage, int(layer.sliding_window)))
        elif type(layer) is caches.DynamicLayer:
            layers.append(_layer_class()(page, storage, None))
        else:
            raise UnsupportedError(
                f"config has layer {number} of kind {type(layer).__name__}, and pages hold keys and values alone; use transformers.DynamicCache"
            )
    out = caches.Cache(layers=layers)
    out.__class__ = _cache_class()
    return out


@lru_cache(maxsize=1)
def _cache_class() -> Any:
    class PagedCache(library().caches.Cache):  # type: ignore[misc]
        """Layers of pages; `fork` gives a second cache of the same keys, which grows by itself."""

        def fork(self) -> Any:
            """A cache that shares every page with this one until either writes to it."""
            out = library().caches.Cache(layers=[layer.fork() for layer in self.layers])
            out.__class__ = type(self)
            return out

        @property
        def nbytes(self) -> int:
            """Bytes held by all layers, slack included."""
            return sum(layer.held.nbytes for layer in self.layers)

    return PagedCache


@lru_cache(maxsize=1)
def _layer_class() -> Any:
    lib = library()

    class PagedLayer(lib.caches.CacheLayerMixin):  # type: ignore[misc, name-defined]
        """One layer: keys (B, G, S, D) and values (B, G, S, E) in pages.

        With a window of W tokens, queries are shown the W − 1 keys before the first of them, as transformers' own
        sliding layer does.
        """

        is_compileable = False
        supports_early_init = False

        def __init__(self, page: int, storage: str | None, sliding_window: int | None) -> None:
            super().__init__()
            self.page, self.storage, self.sliding_window = page, storage, sliding_window
            self.is_sliding = sliding_window is not None
            self._renew()

        def __repr__(self) -> str:
            return f"PagedLayer({self.held!r})"

        def _renew(self) -> None:
            left = None if self.sliding_window is None else self.sliding_window - 1
            self.held = Cache(page=self.page, window=left, storage=self.storage)
            self.is_initialized = False

        def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            """Append, and what the queries of these tokens may read."""
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            # What is cached has no gradient, as in any decoding.
            self.held.append(key_states.detach(), value_states.detach())
            self.keys, self.values = self.held.view()
            return self.keys, self.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            """(keys that `update` will return, index of the first)."""
            seen = len(self.held)
            first = 0 if self.sliding_window is None else max(seen - self.sliding_window + 1, 0)
            return seen + query_length - first, first

        def get_seq_length(self) -> int:
            return len(self.held)

        def get_max_length(self) -> int:
            return -1 if self.sliding_window is None else self.sliding_window

        get_max_cache_shape = get_max_length  # its name before 5.x

        @property
        def is_croppable(self) -> bool:
            """Whether `crop` can still go back."""
            return self.sliding_window is None or len(self.held) < self.sliding_window

        def crop(self, tokens_to_remove: int) -> None:
            """Forget the newest |tokens_to_remove| tokens, which is a negative number."""
            if tokens_to_remove > 0:
                raise UnsupportedError(
                    f"crop takes a negative number, how many tokens to remove, but {tokens_to_remove} came; write crop(-{tokens_to_remove})"
                )
            if tokens_to_remove and self.is_initialized:
                self.held.trim(len(self.held) + tokens_to_remove)

        def reset(self) -> None:
            self._renew()

        def fork(self) -> Any:
            out = PagedLayer(self.page, self.storage, self.sliding_window)
            out.held = self.held.fork()
            if self.is_initialized:
                out.lazy_initialization(self.keys, self.values)
            return out

        def _choose(self, sequences: Any) -> None:
            if len(self.held):
                self.held = self.held.fork([int(n) for n in sequences])

        def reorder_cache(self, beam_idx: Any) -> None:
            """Beams go on from each other's past; pages that several go on from are shared."""
            self._choose(beam_idx)

        def batch_repeat_interleave(self, repeats: int) -> None:
            self._choose([n for n in range(self.held.lengths.size) for _ in range(repeats)])

        def batch_select_indices(self, indices: Any) -> None:
            self._choose(lib.torch.arange(self.held.lengths.size)[indices])

        def offload(self) -> None:
            """Nothing to do: pages are on the CPU."""

        prefetch = offload

    return PagedLayer
