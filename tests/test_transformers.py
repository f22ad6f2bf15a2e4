"""Models of transformers on this engine: logits, caches, padding, packing, windows, and what is refused."""

from __future__ import annotations

import functools
import inspect
import re
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

import qkv  # noqa: E402
import qkv.transformers  # noqa: E402
from qkv import EmptyRowError, NonFiniteError, ShapeError, UnsupportedError  # noqa: E402
from qkv.transformers import described, translate  # noqa: E402
from support.tiny_models import DECODERS, MODELS, Right, inputs, right, tiny  # noqa: E402

LENGTH, PROMPT = 9, 6


@pytest.fixture(autouse=True, scope="module")
def _enabled():
    """One thread: these models are so small that threads would wait for each other most of the time."""
    qkv.transformers.enable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with qkv.threads(1):
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_dense_masks(monkeypatch):
    """Masks stay rules all the way: writing one out fails."""
    monkeypatch.setattr(described, "dense", lambda rules, place: pytest.fail("a mask was written out"))


def on_qkv(name: str):
    model = tiny(name)
    model.set_attn_implementation("qkv")
    return model


def run(model, **given):
    with torch.no_grad():
        return model(**given).logits


def left_padded() -> torch.Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :3] = 0
    return mask


def right_padded() -> torch.Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, 7:] = 0
    return mask


#: Rows that are compared in decoding: the last of the prompt and some of each step, in both sequences.
ROWS = [(0, PROMPT - 1), (0, PROMPT), (0, LENGTH - 1), (1, PROMPT + 1)]


@functools.cache
def decoding(name: str, padded: bool) -> Right:
    """The right logits of a whole pass, which decoding has to give step by step."""
    return right(tiny(name), ROWS, **inputs(name), **({"attention_mask": left_padded()} if padded else {}))


@pytest.mark.parametrize("name", MODELS)
def test_f2_a_forward_pass_is_as_right_as_eager(name, no_dense_masks):
    given = inputs(name)
    rows = None if name == "vit" else [(0, LENGTH - 1), (1, 3)]
    found = run(on_qkv(name), **given)
    right(tiny(name), rows, **given).holds(found if rows is None else torch.stack([found[at] for at in rows]))


def with_cache(model, cache) -> dict:
    """The keyword of a cache, which releases of transformers call one thing or the other."""
    return {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}


def caches(model):
    yield "dynamic", hf.DynamicCache(config=model.config)
    yield "static", hf.StaticCache(config=model.config, max_cache_len=LENGTH + 3)
    yield "paged", qkv.transformers.paged_cache(model.config, page=2)


@pytest.mark.parametrize("padded", [False, True], ids=["plain", "left-padded"])
@pytest.mark.parametrize("name", DECODERS)
def test_f2_decoding_with_every_cache(name, padded, no_dense_masks):
    """A prompt, two tokens at once, then one: masks of L > 1 with a past, of L = 1, and windows that have moved on."""
    model, ids = on_qkv(name), inputs(name)["input_ids"]
    for kind, cache in caches(model):
        logits = []
        for start, stop in ((0, PROMPT), (PROMPT, PROMPT + 2), (PROMPT + 2, LENGTH)):
            mask = left_padded()[:, :stop] if padded else None
            logits.append(run(model, input_ids=ids[:, start:stop], attention_mask=mask, **with_cache(model, cache)))
        found = torch.cat(logits, 1)
        try:
            decoding(name, padded).holds(torch.stack([found[at] for at in ROWS]))
        except AssertionError as error:
            raise AssertionError(f"{kind} cache: {error}") from None


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_f2_right_padding(name, no_dense_masks):
    given = {**inputs(name), "attention_mask": right_padded()}
    rows = [(0, 6), (1, LENGTH - 1)]
    found = run(on_qkv(name), **given)
    right(tiny(name), rows, **given).holds(torch.stack([found[at] for at in rows]))


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-oss"])
def test_f2_packed_sequences(name, no_dense_masks):
    """Positions that begin again begin another sequence."""
    ids = inputs(name, batch=1)["input_ids"]
    given = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2]]), "use_cache": False}
    rows = [(0, 5), (0, 6), (0, 8)]
    found = run(on_qkv(name), **given)
    right(tiny(name), rows, **given).holds(torch.stack([found[at] for at in rows]))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("beams", [1, 2], ids=["greedy", "beams"])
def test_generate_says_what_eager_says(name, beams):
    """With each cache; beams share the pages of what they have in common."""
    model, given = tiny(name), {**inputs(name), "attention_mask": left_padded()}
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": beams}
    eager = model.generate(**given, **options).tolist()
    model.set_attn_implementation("qkv")
    paged = with_cache(model, qkv.transformers.paged_cache(model.config))
    for cache in ({}, {"cache_implementation": "static"}, paged):
        assert model.generate(**given, **options, **cache).tolist() == eager


# The paged cache of a model. ---------------------------------------------------------------------------------------


def filled(name: str = "mistral", count: int = 3, **options):
    model = on_qkv(name)
    cache = qkv.transformers.paged_cache(model.config, page=2, **options)
    run(model, input_ids=inputs(name)["input_ids"][:, :count], **with_cache(model, cache))
    return model, cache


def step(model, cache, at: int) -> torch.Tensor:
    return run(model, input_ids=inputs("mistral")["input_ids"][:, at : at + 1], **with_cache(model, cache))


def test_a_forked_cache_goes_on_by_itself():
    model, cache = filled()
    other = cache.fork()
    assert other.nbytes == cache.nbytes
    expected = step(*filled(), 3)
    step(model, other, 5)
    assert torch.equal(step(model, cache, 3), expected)
    assert (cache.get_seq_length(), other.get_seq_length()) == (4, 4)


def test_a_cropped_cache_has_never_been_longer():
    model, cache = filled("llama")
    step(model, cache, 5)
    cache.crop(-1)
    assert cache.get_seq_length() == 3
    assert torch.equal(step(model, cache, 3), step(*filled("llama"), 3))
    with pytest.raises(UnsupportedError, match=r"crop takes a negative number, .* but 2 came; write crop\(-2\)"):
        cache.crop(2)


def test_sequences_of_a_cache_are_chosen_and_repeated():
    model, cache = filled()
    keys = cache.layers[0].update(torch.zeros(2, 2, 0, 4), torch.zeros(2, 2, 0, 4))[0].clone()
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    cache.reorder_cache(torch.tensor([1, 0]))
    again = cache.layers[0].update(torch.zeros(2, 2, 0, 4), torch.zeros(2, 2, 0, 4))[0]
    assert torch.equal(again, keys)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(run(model, **inputs("mistral"), **with_cache(model, cache)), run(model, **inputs("mistral")))


def test_a_cache_of_windows_forgets():
    model, cache = filled(count=9)
    for at in (1, 2, 3):
        step(model, cache, at)
    assert cache.is_sliding == [True, True]
    assert not cache.layers[0].is_croppable
    assert cache.layers[0].held.first == 12 - 4
    assert cache.get_mask_sizes(1, 0) == (4, 9)
    assert "PagedLayer(<Cache float32 (2, 2) × 12 keys" in repr(cache)


def test_a_cache_in_half_precision():
    """Rounded keys and values: the logits are those of a model whose layers round what they cache."""
    model, cache = filled("llama", storage="bfloat16")
    keys = cache.layers[0].held.view()[0]
    assert torch.equal(keys, keys.bfloat16().float())
    assert cache.nbytes * 2 == filled("llama")[1].nbytes
    assert torch.isfinite(step(model, cache, 3)).all()


def test_every_attention_can_read_the_cache():
    model, cache = filled("llama")
    model.set_attn_implementation("sdpa")
    found = step(model, cache, 3)
    whole = run(model, input_ids=inputs("llama")["input_ids"][:, :4])
    assert (found[:, -1] - whole[:, -1]).abs().max() <= decoding("llama", False).twin * 2


def test_layers_that_keep_something_else_are_refused():
    config = hf.Lfm2Config(
        layer_types=["conv", "full_attention"],
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=12,
    )
    with pytest.raises(UnsupportedError, match=r"config has layer 0 of kind .*; use transformers.DynamicCache"):
        qkv.transformers.paged_cache(config)


def test_f3_the_bits_of_a_sequence_do_not_depend_on_its_padding(native_engine):
    """The attention of a left-padded row has the bits of the same row alone (F3)."""
    model = on_qkv("llama").model.layers[0].self_attn
    q, k, v = (torch.randn(2, h, LENGTH, 4) for h in (4, 2, 2))
    place = translate.Place(2, LENGTH, LENGTH, 0, 0)
    rules = qkv.causal(align=0) & translate.existing(left_padded().bool(), place)
    padded, _ = qkv.transformers.attend_in_model(model, q, k, v, described.described(rules, place), scaling=0.5)
    alone, _ = qkv.transformers.attend_in_model(model, q[:1, :, 3:], k[:1, :, 3:], v[:1, :, 3:], None, scaling=0.5)
    assert torch.equal(padded[:1, 3:], alone)


# Masks. -----------------------------------------------------------------------------------------------------------


def random_mask(seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return (torch.rand(2, 1, LENGTH, LENGTH, generator=chance) < 0.6) | torch.eye(LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("form", ["boolean", "float"])
def test_masks_of_users_are_honoured(form):
    mask = random_mask(1)
    given = {**inputs("llama"), "attention_mask": mask}
    rows = [(0, 4), (1, LENGTH - 1)]
    expected = right(tiny("llama"), rows, **given)
    if form == "float":  # transformers' own form of forbidding
        given["attention_mask"] = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    found = run(on_qkv("llama"), **given)
    expected.holds(torch.stack([found[at] for at in rows]))


def test_mask_functions_of_users_are_honoured(monkeypatch):
    """A union with a function nobody has heard of is written out, not guessed."""
    from transformers.masking_utils import create_causal_mask

    model = on_qkv("llama")
    embeds = torch.zeros(2, LENGTH, 16)

    def other(batch, head, query, key):
        return key == 8 - query

    masks = []
    for implementation in ("sdpa", "qkv"):
        model.set_attn_implementation(implementation)
        masks.append(create_causal_mask(model.config, embeds, None, None, or_mask_function=other))
    assert torch.equal(*masks)
    assert described.rules_of(masks[1]) is None


def test_the_names_still_mean_what_they_meant():
    assert translate.names_that_hold() >= {
        "causal_mask_function",
        "bidirectional_mask_function",
        "and_masks",
        "sliding_window_overlay",
        "sliding_window_bidirectional_overlay",
        "chunked_overlay",
        "packed_sequence_mask_function",
    }


def test_a_name_that_means_something_else_is_seen(monkeypatch):
    """The planted fault: a window of transformers that counts one key more."""
    masking = translate.library().masking

    def wider(sliding_window):
        def inner_mask(batch_idx, head_idx, q_idx, kv_idx):
            return kv_idx >= q_idx - sliding_window

        inner_mask.__module__, inner_mask.__qualname__ = masking.__name__, "sliding_window_overlay.<locals>.inner_mask"
        return inner_mask

    monkeypatch.setattr(masking, "sliding_window_overlay", wider)
    translate.names_that_hold.cache_clear()
    try:
        assert "sliding_window_overlay" not in translate.names_that_hold()
        assert "causal_mask_function" in translate.names_that_hold()
        # and then it is not taken by its name: the mask is written out, as the function says
        mask = qkv.transformers.make_mask(1, 4, 4, mask_function=masking.sliding_window_causal_mask_function(2))
        assert described.rules_of(mask) is None
        assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    finally:
        translate.names_that_hold.cache_clear()


@pytest.mark.parametrize("function", ["causal", "window", "chunks", "both sides", "blocks"])
def test_rules_are_what_transformers_writes_out(function):
    masking = translate.library().masking
    make = {
        "causal": masking.causal_mask_function,
        "window": masking.sliding_window_causal_mask_function(3),
        "chunks": masking.chunked_causal_mask_function(4, torch.tensor([1, 0])),
        "both sides": masking.sliding_window_bidirectional_mask_function(2),
        "blocks": masking.or_masks(
            masking.causal_mask_function, masking.blockwise_overlay(torch.tensor([[-1, 0, 0, 1, 1, 1, -1, -1, 2]] * 2))
        ),
    }[function]
    if function == "blocks" and "blockwise_overlay" not in translate.names_that_hold():
        pytest.skip("this release means something else by blocks, and its masks are written out")
    for rows, size, query, key in ((9, 9, 0, 0), (1, 7, 6, 0), (3, 6, 5, 2), (4, 9, 0, 0)):
        given = {"batch_size": 2, "q_length": rows, "kv_length": size, "q_offset": query, "kv_offset": key}
        given |= {"mask_function": make, "attention_mask": left_padded()[:, : query + rows].bool()}
        ours = qkv.transformers.make_mask(**given)
        theirs = masking.sdpa_mask(**given, allow_is_causal_skip=False)
        assert described.rules_of(ours) is not None
        assert torch.equal(ours.written_out(), theirs)


def test_a_mask_of_rules_is_a_tensor_to_everybody_else():
    place = translate.Place(2, 3, 5, 2, 0)
    mask = described.described(qkv.causal(align=2), place)
    plain = torch.ones(2, 1, 3, 5).tril(2).bool()
    assert mask.shape == (2, 1, 3, 5)
    assert mask.dtype == torch.bool
    assert repr(mask) == "<RuleMask (2, 1, 3, 5) causal(align=2)>"
    assert torch.equal(mask[:, :, :, :4], plain[..., :4])
    assert torch.equal(mask & ~plain, torch.zeros_like(plain))
    assert torch.equal(torch.where(mask, 1, 0), plain.int())
    assert mask.all().item() is False
    for same in (mask.clone(), mask.detach(), mask.to("cpu"), mask.to(torch.bool)):
        assert described.rules_of(same) is not None
    assert torch.equal(mask.to(torch.float32), plain.float())
    with pytest.raises(UnsupportedError, match="would write to it; clone it as a tensor with mask & True first"):
        mask.masked_fill_(plain, False)
    target = torch.zeros(2, 1, 3, 5, dtype=torch.bool)
    target.copy_(mask)  # read, not written to
    assert torch.equal(target, plain)


# What the attention function takes and what it refuses. ------------------------------------------------------------


def attend(L: int = 3, S: int = 3, mask=None, *, is_causal: bool = True, **given):
    """One head, equal scores, values 1, 2, 3, …: the answers are means of the keys read."""
    module = torch.nn.Module()
    module.is_causal = is_causal
    value = torch.arange(1.0, S + 1).reshape(1, 1, S, 1)
    out, weights = qkv.transformers.attend_in_model(
        module, torch.zeros(1, 1, L, 1), torch.zeros(1, 1, S, 1), value, mask, **given
    )
    assert weights is None
    return out[0, :, 0, 0].tolist()


def test_no_mask_means_what_it_means_to_sdpa():
    """Causal from the first key on for several rows of a causal layer, every key for one row."""
    assert attend() == [1, 1.5, 2]
    assert attend(is_causal=False) == [2, 2, 2]
    assert attend(3, 5) == [1, 1.5, 2]  # a static cache before anything else was written
    assert attend(1, 3) == [2]
    module = torch.nn.Module()
    assert not hasattr(module, "is_causal")
    same = torch.zeros(1, 1, 2, 1)
    assert qkv.transformers.attend_in_model(module, same, same, same, None, is_causal=False)[0].shape == (1, 2, 1, 1)


def test_a_window_without_a_mask_is_honoured():
    assert attend(4, 4, sliding_window=2) == [1, 1.5, 2.5, 3.5]
    assert attend(1, 4, sliding_window=2) == [3.5]
    with pytest.raises(UnsupportedError, match="sliding_window=2 came without a mask to a layer that is not causal"):
        attend(sliding_window=2, is_causal=False)


def test_a_window_beside_a_mask_is_said_by_the_mask():
    assert attend(2, 2, torch.ones(1, 1, 2, 2, dtype=torch.bool), sliding_window=1) == [1.5, 1.5]


def test_float_masks_are_added():
    assert attend(1, 2, torch.tensor([[[[0.0, -torch.inf]]]])) == [1]
    assert attend(1, 2, torch.tensor([[[[0.0, -torch.inf]]]], dtype=torch.float64)) == [1]


def test_softcap_scale_and_sink():
    module = torch.nn.Module()
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    sinks = torch.randn(2)
    out, _ = qkv.transformers.attend_in_model(module, q, k, v, None, scaling=0.3, softcap=2.0, s_aux=sinks)
    expected = qkv.attend(q, k, v, mask=qkv.causal(), scale=0.3, softcap=2.0, sink=sinks.numpy())
    assert torch.equal(out, expected.transpose(1, 2))


def test_a_batch_of_one_query_is_shared():
    """Learned queries of some models are read by every sequence."""
    q, k, v = torch.randn(1, 1, 2, 3), torch.randn(4, 1, 5, 3), torch.randn(4, 1, 5, 3)
    out, _ = qkv.transformers.attend_in_model(torch.nn.Module(), q, k, v, None, is_causal=False)
    assert torch.equal(out, qkv.attend(q.repeat(4, 1, 1, 1), k, v).transpose(1, 2))


def test_empty_and_not_finite_rows_go_on_unless_strict():
    nothing = torch.tensor([[[[True, False], [False, False]]]])
    assert attend(2, 2, nothing) == [1, 0]
    assert np.isnan(attend(1, 2, torch.tensor([[[[0.0, torch.nan]]]]))).all()
    with qkv.strict():
        with pytest.raises(EmptyRowError):
            attend(2, 2, nothing)
        with pytest.raises(NonFiniteError):
            attend(1, 2, torch.tensor([[[[0.0, torch.nan]]]]))


@pytest.mark.parametrize(
    "name",
    ["position_bias", "head_mask", "layer_head_mask", "sinks", "indices", "block_indices", "cu_seq_lens_q", "seq_idx"],
)
def test_g1_what_is_not_honoured_is_refused(name):
    with pytest.raises(UnsupportedError, match=f"'qkv' does not take {name}, .*; leave it out, or load this model"):
        attend(**{name: torch.zeros(1)})
    assert attend(**{name: None}) == [1, 1.5, 2]


def test_g1_what_nobody_knows_is_refused():
    with pytest.raises(UnsupportedError, match="does not take new_thing, which is not known here"):
        attend(new_thing=0.5)
    assert attend(position_ids=torch.arange(3), use_cache=True) == [1, 1.5, 2]  # these change no weight


def test_g1_a_model_with_a_position_bias_is_refused():
    config = hf.T5Config(
        d_model=16, d_kv=4, num_heads=4, d_ff=16, num_layers=1, vocab_size=12, decoder_start_token_id=0
    )
    # Named at the start: in some releases naming it afterwards does not reach encoder and decoder.
    model = hf.T5ForConditionalGeneration._from_config(config, attn_implementation="qkv").eval()
    source = inspect.getsource(sys.modules[type(model).__module__])
    if not re.search(r"attention_interface\([^)]*position_bias=", source):
        pytest.skip("this release has T5 attend by itself")
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(UnsupportedError, match="does not take position_bias, a learned bias added to the scores"):
        run(model, input_ids=ids, decoder_input_ids=ids)


def test_g1_dropout_is_refused():
    with pytest.raises(UnsupportedError, match=r"dropout=0.1 came; call model.eval\(\)"):
        attend(dropout=0.1)


def test_g1_masks_that_say_nothing_clear_are_refused():
    with pytest.raises(UnsupportedError, match=r"has dtype torch.int64; write .bool\(\)"):
        attend(1, 2, torch.ones(1, 1, 1, 2, dtype=torch.long))
    rules = described.described(qkv.causal(align=0), translate.Place(1, 2, 3, 0, 0))
    with pytest.raises(ShapeError, match=r"is for \(B, L, S\) = \(1, 2, 3\), but the layer has \(1, 2, 2\)"):
        attend(2, 2, rules)
    with pytest.raises(ShapeError, match="mask has shape"):
        attend(2, 2, torch.ones(1, 1, 2, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", ["llama", "gpt2", "whisper"])
def test_weights_that_are_asked_for_are_given(name):
    """They are those of eager, within the bound; also where the model does not pass the question on (weights-missing)."""
    model, given = tiny(name), inputs(name)
    asked = {}
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found = model(**given, output_attentions=True)
        asked[implementation] = found.decoder_attentions if name == "whisper" else found.attentions
    assert len(asked["qkv"]) == len(asked["eager"]) > 0
    unit = torch.finfo(torch.float32).eps
    for ours, theirs in zip(asked["qkv"], asked["eager"], strict=True):
        assert ours.shape == theirs.shape
        assert (ours.sum(-1) - 1).abs().max() <= ours.shape[-1] * unit  # C1
        assert ((ours == 0) == (theirs == 0)).all()
    assert run(model, **given) is not None


def test_transformers_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(qkv.transformers.library, "_FOUND", [])
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.40.1")
    with pytest.raises(
        UnsupportedError, match=r"needs transformers 5.10 or newer, but 4.40.1 is installed; upgrade it"
    ):
        qkv.transformers.enable()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match=r"but transformers is not installed; write pip install .\.\[models\]"):
        qkv.transformers.enable()


# Gradients and graphs: the operator of qkv.torch. ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mistral", "gpt-oss"])
def test_a_model_trains(name):
    """Gradients of every weight are those of the eager twin, in the twin's own accuracy: its loss in float32 and float64."""
    given = {**inputs(name), "labels": inputs(name)["input_ids"], "attention_mask": right_padded()}
    grads = {}
    for implementation, dtype in (("eager", torch.float32), ("sdpa", torch.float64), ("qkv", torch.float32)):
        if implementation == "sdpa" and name == "gpt-oss":
            continue  # its sinks are not SDPA's
        model = tiny(name).to(dtype)
        model.set_attn_implementation(implementation)
        model(**given).loss.backward()
        grads[implementation] = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
    assert grads["qkv"].shape == grads["eager"].shape
    size = grads["eager"].norm()
    unit = torch.finfo(torch.float32).eps * sum(p.numel() for p in tiny(name).parameters()) ** 0.5
    assert (grads["qkv"] - grads["eager"]).norm() <= unit * size


def test_weights_with_gradients_are_refused():
    model = on_qkv("llama")
    with pytest.raises(UnsupportedError, match="output_attentions was asked for with gradients"):
        model(**inputs("llama"), output_attentions=True)


def test_a_model_compiles():
    """Nothing breaks the graph; masks are tensors in it."""
    model, given = on_qkv("mistral"), inputs("mistral")
    whole = run(model, **given, use_cache=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(run(compiled, **given, use_cache=False), whole)


# Real models. ------------------------------------------------------------------------------------------------------


def real(name: str):
    from qkv import models

    try:
        return models.load(name, attention="qkv")
    except qkv.QkvError as missing:
        pytest.skip(str(missing))


def test_f2_a_trained_model_reads_a_text():
    """glassllm: the logits of its last token, some of the vocabulary."""
    model = real("glassllm")
    words = model.encode("Alice was beginning to get very tired of sitting by her sister on the bank")
    last = [(0, words["input_ids"].shape[1] - 1)]
    expected = right(model.module, last, columns=12, **words)
    expected.holds(run(model.module, **words)[:, -1, :12])


PROMPTS = ("The capital of France is", "One, two, three, four, five, six, seven,")


@pytest.mark.long
def test_smollm2_answers_alone_padded_and_from_pages():
    model = real("smollm2")
    alone = run(model.module, **model.encode(PROMPTS[0]))[0, -1].argmax()
    assert model.decode([alone]) == " Paris"
    model.tokenizer.padding_side = "left"
    both = model.encode(*PROMPTS)
    assert not both["attention_mask"][0, 0]
    for cache in ({}, with_cache(model.module, qkv.transformers.paged_cache(model.module.config))):
        said = model.module.generate(**both, max_new_tokens=3, do_sample=False, **cache)[:, -3:]
        assert model.decode(said[0]).startswith(" Paris")
        assert model.decode(said[1]).startswith(" eight")
