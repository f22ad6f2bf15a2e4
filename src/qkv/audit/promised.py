"""Where each library documents the convention it follows: looked up by hand, page by page, in our own words.

Kept beside the adapters, since a convention that is documented is a choice, and one that is not may change.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AGAINST", "FOLLOWS", "NOTHING", "PAGES", "SAYS", "Page", "Promise", "page_of", "promise"]

SAYS, FOLLOWS = "documented", "follows from its formula"
AGAINST, NOTHING = "its page says otherwise", "not documented"


@dataclass(frozen=True)
class Promise:
    """What a page says of one convention: `kind` is SAYS, FOLLOWS, AGAINST or NOTHING, `words` what it says, "" if nothing."""

    kind: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}" if self.words else self.kind


@dataclass(frozen=True)
class Page:
    """A page of documentation.

    Attributes:
        title: what it is about, and where. version: of the library whose page was read.
        kernels: names of adapters. says: convention, as the audit calls it -> what the page says of it.
    """

    title: str
    version: str
    kernels: tuple[str, ...]
    says: dict[str, Promise]


#: Conventions, as `readings.py` calls them.
_BATCH_1 = "key and value of batch 1 serve every batch"
_ANSWERED = "answered instead of refused"
_BROKE = "ends in an error from within"
_ADDED = "0 and 1 of a mask are added to the scores"
_AS_BOOLEANS = "0 and 1 are read as booleans"
_START = "the queries stand at the start of the keys"
_END = "the queries stand at the end of the keys"
_INF_ADDED = "-inf is added where forbidden, so a forbidden score of +inf is NaN; one of -inf is left out"
_INF_LEFT_OUT = "a key whose score is -inf is left out, a row with nothing else is NaN"
_TIMES_NAN = "0 times NaN: every row has NaN in the columns of such a value"
_TIMES_INF = "0 times infinity: rows that may not read it are NaN, those that may are infinite"
_COLUMNS = "only the columns of the output that read NaN are NaN"
_EVERY_ROW = "NaN in one key or value fills every row"
_EMPTY_NAN = "a row without keys is NaN"
_MEAN = "a row without keys is the mean of every V, forbidden ones included"
_SUM = "values whose sum overflows give infinity"
_NO_VALUE = "keys that have no value are left out in silence"
_STAND_IN = "the log-sum-exp of a row without keys is a finite stand-in"
_LOWEST = "forbidden scores are set to -0.7 of the largest number"
_PROMOTED = "mixed types are promoted"
_DROPPED = "True = this pair is dropped"
_SWALLOWS = "swallows arguments it does not know"


def _product(words: str) -> dict[str, Promise]:
    """Weights times values, as a formula: what is multiplied by 0 is still multiplied."""
    return {name: Promise(FOLLOWS, words) for name in (_TIMES_NAN, _TIMES_INF, _COLUMNS)}


def _nothing(*names: str) -> dict[str, Promise]:
    return dict.fromkeys(names, Promise(NOTHING))


_SDPA_CODE = "the equivalent code multiplies all weights by all values"
_SDPA_EMPTY = "the equivalent code is NaN in every such row, though the kernels answer 0 where the query is finite"
_FLOAT_MASK = Promise(SAYS, "attn_mask: a float mask is added to the score")
_VALUE_LENGTH = "value: as many rows as key"

PAGES = (
    Page(
        "torch.nn.functional.scaled_dot_product_attention, docstring",
        "2.13.0",
        ("torch-sdpa", "torch-sdpa-math", "torch-sdpa-flash"),
        {
            _ADDED: _FLOAT_MASK,
            _START: Promise(SAYS, "is_causal: a mask that is not square is aligned at its upper left"),
            _BATCH_1: Promise(FOLLOWS, "the equivalent code broadcasts; the shapes name one N for all three"),
            _INF_ADDED: Promise(FOLLOWS, "the equivalent code adds a bias of -inf"),
            **_product(_SDPA_CODE),
            _EMPTY_NAN: Promise(FOLLOWS, _SDPA_EMPTY),
            _NO_VALUE: Promise(AGAINST, _VALUE_LENGTH),
            **_nothing(_ANSWERED, _SUM, _STAND_IN, "parts merged by their log-sum-exp are not the whole"),
        },
    ),
    Page(
        "torch.nn.MultiheadAttention, docstrings of the class and of forward",
        "2.13.0",
        ("torch-mha", "torch-mha-weights"),
        {
            f"{_DROPPED}; a row without keys is 0": Promise(
                SAYS, "attn_mask: True is not attended to; of such rows nothing"
            ),
            f"{_DROPPED}; {_EMPTY_NAN}": Promise(SAYS, "attn_mask: True is not attended to; of such rows nothing"),
            _ADDED: Promise(SAYS, "attn_mask: a float mask is added to the attention weight"),
            _EVERY_ROW: Promise(FOLLOWS, "heads are joined and projected, so one NaN reaches every column"),
            **_nothing(
                _EMPTY_NAN, f"{_EMPTY_NAN}, in its other heads as well", f"{_EMPTY_NAN}; its gradient is NaN", _SUM
            ),
        },
    ),
    Page(
        "torch.nn.attention.flex_attention, docstrings of flex_attention and create_block_mask",
        "2.13.0",
        ("torch-flex",),
        {
            _START: Promise(
                FOLLOWS, "mask_mod is called with the indices of query and key as they lie in their arrays"
            ),
            **_nothing(_BROKE, _INF_LEFT_OUT, _TIMES_NAN, _TIMES_INF, _COLUMNS, _PROMOTED),
        },
    ),
    Page(
        "jax.nn.dot_product_attention, docstring",
        "0.10.2",
        ("jax",),
        {
            **_product("softmax(QKᵀ/√d + B) V"),
            **_nothing(
                _START,
                _INF_LEFT_OUT,
                _MEAN,
                f"{_MEAN}; {_STAND_IN}",
                f"{_MEAN}; its gradient flows to forbidden values",
                _LOWEST,
                "the log-sum-exp is float16",
            ),
        },
    ),
    Page(
        "keras.ops.dot_product_attention, docstring",
        "3.15.1",
        ("keras-torch", "keras-jax"),
        {
            **_product("softmax(Q K / √d) V"),
            _BATCH_1: Promise(AGAINST, "one batch size for query, key and value"),
            _NO_VALUE: Promise(AGAINST, "value: of the same shape as key"),
            **_nothing(
                _ANSWERED,
                _AS_BOOLEANS,
                _START,
                _INF_ADDED,
                _INF_LEFT_OUT,
                _EMPTY_NAN,
                _MEAN,
                f"{_MEAN}; its gradient flows to forbidden values",
                f"{_MEAN}; its gradient flows to forbidden values, once for each",
                _SUM,
                _LOWEST,
                _PROMOTED,
            ),
        },
    ),
    Page(
        "keras.layers.MultiHeadAttention, docstring",
        "3.15.1",
        ("keras-layer-torch", "keras-layer-jax"),
        {
            _AS_BOOLEANS: Promise(SAYS, "attention_mask: 1 is attended to, 0 is not"),
            _EVERY_ROW: Promise(FOLLOWS, "heads are joined and projected, so one NaN reaches every column"),
            **_nothing(
                _START,
                _EMPTY_NAN,
                _MEAN,
                f"{_MEAN}; its gradient flows to forbidden values",
                f"{_MEAN}; its gradient flows to forbidden values, once for each",
                _SUM,
                _LOWEST,
                _PROMOTED,
            ),
        },
    ),
    Page(
        "transformers, eager: the page Attention backends, docstring of masking_utils.eager_mask",
        "5.24.0",
        ("transformers-eager",),
        {
            _SWALLOWS: Promise(SAYS, "attention functions have to take what else a model passes"),
            _ADDED: Promise(FOLLOWS, "eager_mask: masks are floats, 0 where a key is read"),
            _MEAN: Promise(FOLLOWS, "eager_mask: forbidden is the lowest number there is, so such a row is even"),
            f"{_MEAN}; its gradient flows to forbidden values": Promise(
                FOLLOWS, "eager_mask: the same, for the gradient"
            ),
            **_nothing(_BATCH_1, _BROKE, _INF_ADDED, _TIMES_NAN, _TIMES_INF, _COLUMNS, _EMPTY_NAN),
        },
    ),
    Page(
        "transformers, sdpa: the page Attention backends, comments in sdpa_attention.py, and torch's page that it names",
        "5.24.0",
        ("transformers-sdpa",),
        {
            _SWALLOWS: Promise(SAYS, "attention functions have to take what else a model passes"),
            "causal is ignored": Promise(SAYS, "a comment: is_causal counts where there is no mask"),
            _START: Promise(SAYS, "a comment: is_causal is aligned at the upper left"),
            _END: Promise(SAYS, "a comment: a single query, as in decoding, reads every key"),
            _ADDED: _FLOAT_MASK,
            _BATCH_1: Promise(FOLLOWS, "torch's equivalent code broadcasts"),
            _INF_ADDED: Promise(FOLLOWS, "torch's equivalent code adds a bias of -inf"),
            **_product("torch's equivalent code multiplies all weights by all values"),
            _EMPTY_NAN: Promise(FOLLOWS, "torch's equivalent code is NaN in every such row"),
            _NO_VALUE: Promise(AGAINST, _VALUE_LENGTH),
            **_nothing(_BROKE, _SUM),
        },
    ),
    Page(
        "ONNX, the operator Attention of opset 25, which onnxruntime carries out",
        "1.23.2",
        ("onnx", "onnxruntime"),
        {
            _ADDED: _FLOAT_MASK,
            _START: Promise(SAYS, "is_causal: the offset is 0 where there is neither a cache nor lengths"),
            "the last query stands at the end of its length, also where L = S": Promise(
                SAYS, "is_causal: with nonpad_kv_seqlen the offset is that length less the number of queries"
            ),
            "a negative scale gives NaN, since its root is taken": Promise(
                SAYS, "query and key are each multiplied by the root of the scale"
            ),
            _INF_ADDED: Promise(SAYS, "a forbidden position adds -inf"),
            **_product("its picture ends in a product of weights and values"),
            _BATCH_1: Promise(AGAINST, "one batch_size for Q, K and V"),
            _PROMOTED: Promise(AGAINST, "Q and K have one type, T1"),
            **_nothing(_ANSWERED),
        },
    ),
    Page(
        "mlx.core.fast.scaled_dot_product_attention, docstring",
        "0.32.4",
        ("mlx",),
        {
            _ADDED: Promise(SAYS, "mask: an array that is not boolean is additive"),
            _END: Promise(SAYS, "mask: causal aligns the last query with the last key"),
            f"{_END}; {_MEAN}": Promise(
                SAYS, "mask: causal aligns the last query with the last key; of such rows nothing"
            ),
            _PROMOTED: Promise(SAYS, "mask: it speaks of the type that q, k and v are promoted to"),
            **_product("softmax(QKᵀ) V"),
            **_nothing(_BROKE, _INF_LEFT_OUT, _MEAN, f"{_MEAN}; its gradient flows to forbidden values"),
        },
    ),
    Page(
        "OpenVINO, specification of ScaledDotProductAttention-13",
        "2025, docstring of 2026.4.1",
        ("openvino",),
        {
            "the mask is ignored": Promise(SAYS, "causal: attention_mask is ignored then"),
            _BATCH_1: Promise(SAYS, "batch dimensions are equal or can be broadcast"),
            _ADDED: Promise(SAYS, "its code adds a mask that is not boolean"),
            _START: Promise(SAYS, "its code begins the causal triangle at the first key"),
            _INF_ADDED: Promise(FOLLOWS, "its code adds a bias of -inf"),
            **_product("its code multiplies all weights by all values"),
            _EMPTY_NAN: Promise(FOLLOWS, "its code takes the softmax of nothing but -inf"),
            _ANSWERED: Promise(
                AGAINST, "key is as wide as query, value has as many rows as key; of a width of 0 nothing"
            ),
            "in a way that has no name here": Promise(AGAINST, "its code gives 0, the sum over no keys"),
        },
    ),
)


def page_of(kernel: str) -> Page | None:
    """The page of a kernel known by name."""
    return next((page for page in PAGES if kernel in page.kernels), None)


def promise(kernel: str, convention: str) -> Promise | None:
    """What the documentation of a kernel says of a convention; None where nobody has looked.

    >>> str(promise("mlx", "the queries stand at the end of the keys"))
    'documented: mask: causal aligns the last query with the last key'
    """
    page = page_of(kernel)
    return None if page is None else page.says.get(convention)
