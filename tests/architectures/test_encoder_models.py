"""Layers, counts and parameters of every encoder and encoder-decoder equal the traced ``transformers`` module.

Tests: architectures/blocks/disentangled.py, architectures/blocks/relative_bias.py,
architectures/families/embeddings.py, architectures/families/encoder.py, architectures/families/heads.py,
architectures/families/encoder_records.py, architectures/rare_keys.py.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest

from paleo_lite.architectures.families.family import FAMILIES
from paleo_lite.architectures.hugging_face import cache_argument
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor, BadValue
from paleo_lite.timing.workload import cached_for_layers

TOKENS, CONTEXT = 16, 30
SMALL = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
         "intermediate_size": 176, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
IMAGES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 176,
          "image_size": 32, "patch_size": 8}  # fmt: skip
TWO_STACKS = {
    "vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 176, "decoder_ffn_dim": 176, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 3,
}  # fmt: skip
T5 = {"vocab_size": 1000, "d_model": 64, "d_kv": 8, "d_ff": 176, "num_layers": 2, "num_heads": 8}
DEBERTA = {
    **SMALL, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
    "max_position_embeddings": 32, "max_relative_positions": -1,
}  # fmt: skip
CASES = {
    "bert": SMALL,
    "roberta": SMALL,
    "xlm-roberta": SMALL,
    "electra": {**SMALL, "embedding_size": 32},
    "distilbert": {"vocab_size": 1000, "dim": 64, "n_layers": 2, "n_heads": 8, "hidden_dim": 176},
    "modernbert": {**SMALL, "num_hidden_layers": 4, "local_attention": 8, "cls_token_id": 3, "sep_token_id": 4},
    "deberta-v2": DEBERTA,
    "nomic_bert": SMALL,
    "gte": SMALL,
    "vit": IMAGES,
    "siglip_vision_model": IMAGES,
    "siglip_text_model": SMALL,
    "siglip": {"text_config": SMALL, "vision_config": IMAGES},
    "clip_vision_model": IMAGES,
    "clip_text_model": SMALL,
    "clip": {"text_config": SMALL, "vision_config": IMAGES, "projection_dim": 48},
    "bart": {**TWO_STACKS, "max_position_embeddings": 128},
    "m2m_100": {**TWO_STACKS, "max_position_embeddings": 128},
    "whisper": {**TWO_STACKS, "max_source_positions": 32, "max_target_positions": 64},
    "t5": T5,
    "mt5": {**T5, "feed_forward_proj": "gated-gelu"},
}
OTHER_NAMES = {"new": "gte"}
"""Types that publishers name otherwise than the library, with which their sizes are compared."""
ENCODERS = [model_type for model_type, family in FAMILIES.items() if not family.is_decoder]
CLASSES = [
    (model_type, name)
    for model_type in ENCODERS
    for name in FAMILIES[model_type].classes
    if model_type not in OTHER_NAMES
]
VARIANTS = [
    ("deberta-v2", "DebertaV2Model", {"share_att_key": False}),
    ("deberta-v2", "DebertaV2Model", {"pos_att_type": ["c2p"], "position_buckets": -1}),
    (
        "deberta-v2",
        "DebertaV2Model",
        {"relative_attention": False, "position_biased_input": True, "norm_rel_ebd": "none"},
    ),
    ("deberta-v2", "DebertaV2Model", {"type_vocab_size": 2}),
    ("modernbert", "ModernBertForSequenceClassification", {"classifier_pooling": "mean"}),
    ("modernbert", "ModernBertModel", {"attention_dropout": 0.1, "attention_bias": True, "norm_bias": True}),
    ("modernbert", "ModernBertModel", {"local_attention": 128, "global_attn_every_n_layers": 2}),
    ("bert", "BertModel", {"is_decoder": True, "use_cache": False}),
    ("electra", "ElectraModel", {"embedding_size": 64}),
    ("gte", "GteModel", {"type_vocab_size": 0}),
    ("vit", "ViTModel", {"qkv_bias": False, "patch_size": 4}),
    ("siglip_vision_model", "SiglipVisionModel", {"vision_use_head": False}),
    ("t5", "T5Model", {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1}),
    ("bart", "BartModel", {"encoder_layers": 1, "decoder_attention_heads": 4}),
]
"""Configs with other values of the keys that choose layers."""

FLOPS_WITHIN, BYTES_WITHIN = 2e-4, 4e-3
"""Relative differences allowed in training: the trace takes two slices of a tensor for a chain of one (SigLIP), and
counts the gradient of a slice that is made for its shape (BART). Inference is equal."""


def built(model_type, class_name, implementation="sdpa", **changes):
    """The module on the meta device, and its inputs."""
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    fields = json.loads(json.dumps({**CASES[model_type], **changes}))
    if class_name == "BertLMHeadModel":
        fields |= {"is_decoder": True, "use_cache": False}
    implementation = "eager" if "deberta" in model_type else implementation
    config = transformers.AutoConfig.for_model(model_type, attn_implementation=implementation, **fields)
    with torch.device("meta"):
        module = getattr(transformers, class_name)._from_config(config, attn_implementation=implementation)
    words = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    images = torch.zeros(1, 3, 32, 32, device="meta")
    frames = torch.zeros(1, 80, 64, device="meta")
    family = FAMILIES[model_type]
    if family.reads == "images":
        return module, (images,), {}
    if family.reads == "text and images":
        return module, (words,), {"pixel_values": images}
    if family.inputs == 2:
        first = frames if family.reads == "audio" else words
        return module, (first,), {"decoder_input_ids": words, "use_cache": False}
    return module, (words,), {}


@cache
def traced(model_type, class_name, implementation="sdpa", changes=()):
    """The trace of a class."""
    from paleo_lite.architectures.trace import trace

    module, inputs, named_inputs = built(model_type, class_name, implementation, **dict(changes))
    return trace(module, *inputs, **named_inputs)


@cache
def traced_with_cache(model_type, class_name, phase):
    """The trace of an encoder-decoder that reads a prompt, or writes one token with its caches filled."""
    from paleo_lite.architectures.torch_import import import_torchvision
    from paleo_lite.architectures.trace import trace

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    module, inputs, _ = built(model_type, class_name)
    token = torch.zeros(1, 1, dtype=torch.long, device="meta")
    parts = [transformers.DynamicCache(config=module.config) for _ in range(2)]
    filled = transformers.EncoderDecoderCache(*parts)
    options = {"decoder_input_ids": token, cache_argument(module): filled, "use_cache": True}
    if phase == "prefill":
        return trace(module, *inputs, **options)
    encoder_tokens = 32 if model_type == "whisper" else CONTEXT
    own, cross = (torch.zeros(1, 8, tokens, 8, device="meta") for tokens in (CONTEXT, encoder_tokens))
    for layer in range(2):
        filled.self_attention_cache.update(own, own, layer)
        filled.cross_attention_cache.update(cross, cross, layer)
        filled.is_updated[layer] = True
    encoded = torch.zeros(1, encoder_tokens, 64, device="meta")
    return trace(module, encoder_outputs=(encoded,), **options)


def network(model_type, class_name, options=None, **changes):
    fields = {**CASES[model_type], "model_type": model_type, "architectures": [class_name], **changes}
    if class_name == "BertLMHeadModel":
        fields["is_decoder"] = True
    if options is None and FAMILIES[model_type].reads != "images":
        options = SequenceOptions(TOKENS)
    return read_config(json.dumps(fields).encode(), "some/model/config.json", None, options)


def total(found, column, phase="inference", batch_size=1):
    return int(cached_for_layers(count, found.layers).column(column, phase, batch_size).sum())


def signatures(layers):
    """Name, kind, shapes, origin and parameters of layers, in any order."""
    rows = []
    for layer in layers:
        attributes = tuple(layer.attributes.get(key) for key in ("causal", "p", "inner", "function", "no_gradient"))
        shapes = layer.inputs, layer.outputs, layer.weights
        name = layer.name.partition("#")[0]
        rows.append((name, layer.kind, *shapes, layer.origin, layer.parameters, attributes))
    return Counter(rows)


def assert_equal(ours, theirs):
    """Equal layers and inference; training as equal as the trace knows."""
    ours_rows, theirs_rows = signatures(ours.layers), signatures(theirs.layers)
    assert (ours_rows - theirs_rows, theirs_rows - ours_rows) == (Counter(), Counter())
    assert ours.parameters == theirs.parameters
    for column in ("macs", "flops", "bytes"):
        for batch_size in (1, 4):
            figures = [total(found, column, "inference", batch_size) for found in (ours, theirs)]
            assert figures[0] == figures[1]
    assert total(ours, "macs", "training") == total(theirs, "macs", "training")
    for column, within in (("flops", FLOPS_WITHIN), ("bytes", BYTES_WITHIN)):
        assert total(ours, column, "training") == pytest.approx(total(theirs, column, "training"), rel=within)


SIBLINGS = {"xlm-roberta": "roberta", "mt5": "t5"}
"""Types with the modules of another one, of which `make test` traces the first class; `make thorough` traces all."""
TRACED = [
    pytest.param(
        model_type, name,
        marks=() if model_type not in SIBLINGS or name == FAMILIES[model_type].classes[0] else pytest.mark.thorough,
    )
    for model_type, name in CLASSES
]  # fmt: skip


@pytest.mark.spread(16)
@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "class_name"), TRACED)
def test_an_encoder_equals_the_traced_module(model_type, class_name):
    assert_equal(network(model_type, class_name), traced(model_type, class_name))


@pytest.mark.spread(5)
@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "class_name", "changes"), VARIANTS)
def test_other_values_of_a_config_equal_the_traced_module(model_type, class_name, changes):
    ours = network(model_type, class_name, **changes)
    assert_equal(ours, traced.__wrapped__(model_type, class_name, "sdpa", tuple(changes.items())))


UNFUSED = ["BertModel", "BertLMHeadModel", "DistilBertModel", "ModernBertModel", "ViTModel", "CLIPTextModel",
           "WhisperModel", "T5Model"]  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.slow
@pytest.mark.parametrize("class_name", UNFUSED)
def test_attention_in_separate_kernels_equals_the_traced_module(class_name):
    """In evaluation mode, in which the trace has a dropout of attention weights with a probability of 0."""
    model_type = next(model_type for model_type, name in CLASSES if name == class_name)
    ours = network(model_type, class_name, _attn_implementation="eager")
    theirs = traced(model_type, class_name, "eager")
    assert len(ours.layers) == len(theirs.layers)
    for column in ("macs", "flops", "bytes"):
        assert total(ours, column) == total(theirs, column)


def written_in_place(found):
    """Layers without writes to a cache, which ``transformers`` concatenates, and without copies of a single token."""
    left = []
    for layer in found.layers:
        is_append = layer.kind == "cache" or (layer.kind == "concat" and len(layer.outputs[0]) == 4)
        is_empty = layer.outputs[0] == (0,)
        is_copy_of_one = layer.kind == "copy" and layer.outputs[0] == (1, 1, 8, 8)
        if not (is_append or is_empty or is_copy_of_one):
            left.append(layer)
    return left


@pytest.mark.spread(4)
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("model_type", ["bart", "m2m_100", "whisper", "t5", "mt5"])
def test_an_encoder_decoder_with_a_cache_equals_the_traced_module(model_type, phase):
    class_name = FAMILIES[model_type].classes[0]
    length = 1 if model_type == "whisper" else TOKENS
    options = SequenceOptions(length, phase="prefill") if phase == "prefill" else SequenceOptions(None, CONTEXT, phase)
    ours, theirs = network(model_type, class_name, options), traced_with_cache(model_type, class_name, phase)
    ours_rows, theirs_rows = signatures(written_in_place(ours)), signatures(written_in_place(theirs))
    assert (ours_rows - theirs_rows, theirs_rows - ours_rows) == (Counter(), Counter())
    assert total(ours, "macs") == total(theirs, "macs")
    assert total(ours, "flops") == total(theirs, "flops")


@pytest.mark.parametrize("model_type", ENCODERS)
def test_every_family_is_compared(model_type):
    assert model_type in (*CASES, *OTHER_NAMES), f"add {model_type} to CASES"


def test_a_type_by_the_name_of_its_publisher_has_the_same_sizes():
    """Configs of GTE name the type "new", whose module packs projections (Zhang et al. 2024)."""
    for suffix in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"):
        fields = {**SMALL, "model_type": "new", "architectures": [f"New{suffix}"], "pack_qkv": True}
        ours, known = read(fields, SequenceOptions(TOKENS)), network("gte", f"Gte{suffix}")
        assert ours.parameters == known.parameters
        assert total(ours, "macs", "training") == total(known, "macs", "training")


@pytest.mark.parametrize("model_type", ["bart", "whisper"])
def test_a_decode_step_of_an_encoder_decoder_reads_two_caches(model_type):
    """Per decoder block the token's own projections, attention to 31 tokens and to the encoder's 30 (whisper: 32)."""
    class_name = FAMILIES[model_type].classes[0]
    step = network(model_type, class_name, SequenceOptions(context=30, phase="decode"))
    encoder_tokens = 32 if model_type == "whisper" else 30
    projections = 4 * 64 * 64 + 2 * 64 * 64 + 2 * 64 * 176
    attention = 2 * 64 * 31 + 2 * 64 * encoder_tokens
    assert total(step, "macs") == 2 * (projections + attention) + 64 * 1000
    caches = [layer.outputs[0] for layer in step.layers if layer.kind == "cache"]
    assert sorted(set(caches)) == sorted({(1, 8, 31, 8), (1, 8, encoder_tokens, 8)})


def test_a_prompt_of_an_encoder_decoder_passes_the_encoder_and_gives_the_first_token():
    prompt = network("bart", "BartForConditionalGeneration", SequenceOptions(TOKENS, phase="prefill"))
    encoder = 2 * (TOKENS * (4 * 64 * 64 + 2 * 64 * 176) + 2 * TOKENS * TOKENS * 64)
    decoder = 2 * (6 * 64 * 64 + 2 * 64 * 176 + 2 * 64 + 2 * TOKENS * 64 + 2 * TOKENS * 64 * 64)
    assert total(prompt, "macs") == encoder + decoder + 64 * 1000


def test_an_encoder_has_no_decode_phase():
    with pytest.raises(BadValue, match="--phase decode needs a model that writes text; roberta does not"):
        network("roberta", "RobertaModel", SequenceOptions(context=9, phase="decode"))


def read(fields, options=None):
    return read_config(json.dumps(fields).encode(), "c.json", None, options)


NOMIC = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "activation_function": "swiglu", "n_embd": 768,
    "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "type_vocab_size": 2, "vocab_size": 30528,
}  # fmt: skip
GTE = {
    "model_type": "new", "architectures": ["NewModel"], "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 250048, "type_vocab_size": 1, "pack_qkv": True,
    "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False,
}  # fmt: skip
M2M_100 = {
    "model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"], "d_model": 1024,
    "encoder_layers": 24, "decoder_layers": 24, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
    "encoder_ffn_dim": 8192, "decoder_ffn_dim": 8192, "vocab_size": 128112, "max_position_embeddings": 1024,
}  # fmt: skip
PUBLISHED = {
    # Parameters and active ones, as the cards on https://huggingface.co and the papers round them
    "nomic-ai/nomic-embed-text-v1.5": (NOMIC, 137e6, None),
    "nomic-ai/nomic-embed-text-v2-moe": (  # arXiv 2502.07972
        {**NOMIC, "activation_function": "gelu", "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
         "type_vocab_size": 1, "vocab_size": 250048, "num_experts": 8, "moe_top_k": 2, "moe_every_n_layers": 2,
         "moe_normalize_expert_weights": False, "n_positions": 2048}, 475e6, 305e6,
    ),
    "Alibaba-NLP/gte-multilingual-base": (GTE, 305e6, None),
    "Alibaba-NLP/gte-base-en-v1.5": ({**GTE, "vocab_size": 30528, "type_vocab_size": 0}, 137e6, None),
    "Alibaba-NLP/gte-large-en-v1.5": (
        {**GTE, "vocab_size": 30528, "type_vocab_size": 2, "hidden_size": 1024, "num_hidden_layers": 24,
         "num_attention_heads": 16, "intermediate_size": 4096}, 434e6, None,
    ),
    "facebook/m2m100_1.2B": (M2M_100, 1.24e9, None),
    "facebook/nllb-200-3.3B": ({**M2M_100, "d_model": 2048, "vocab_size": 256206}, 3.34e9, None),
}  # fmt: skip


@pytest.mark.parametrize("repository", PUBLISHED)
def test_a_published_encoder_has_the_published_parameters(repository, monkeypatch):
    from paleo_lite.architectures import trace_process

    monkeypatch.setattr(trace_process, "traceable_types", frozenset)
    fields, parameters, active = PUBLISHED[repository]
    found = read(fields, SequenceOptions(512))
    assert found.parameters == pytest.approx(parameters, rel=0.01)
    assert found.active_parameters == pytest.approx(active or found.parameters, rel=0.01)
    if fields["model_type"] == "m2m_100":
        step = read(fields, SequenceOptions(context=512, phase="decode"))
        assert 0.5 * found.parameters < step.parameters < found.parameters  # the decoder alone


VISION_LANGUAGE = {
    "gemma3": (
        {"model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 8},
        {"model_type": "siglip_vision_model", "vision_use_head": False},
    ),
    "llava": ({"model_type": "llama"}, {"model_type": "clip_vision_model"}),
    "paligemma": ({"model_type": "gemma", "head_dim": 8}, {"model_type": "siglip_vision_model"}),
}


@pytest.mark.parametrize("model_type", VISION_LANGUAGE)
@pytest.mark.parametrize("names_parts", [True, False])
def test_a_vision_language_model_is_its_text_part_and_its_vision_encoder(model_type, names_parts):
    text, vision = ({**sizes, **own} for sizes, own in zip((SMALL, IMAGES), VISION_LANGUAGE[model_type]))
    alone, encoder = read(text, SequenceOptions(TOKENS)), read(vision)
    step_alone = read(text, SequenceOptions(context=9, phase="decode"))
    if not names_parts:
        del text["model_type"], vision["model_type"]
    config = {"model_type": model_type, "text_config": text, "vision_config": vision}
    both = read(config, SequenceOptions(TOKENS))
    assert both.parameters == alone.parameters + encoder.parameters
    assert total(both, "macs", "training") == total(alone, "macs", "training") + total(encoder, "macs", "training")
    assert any("its vision encoder, one image per sequence" in note for note in both.notes)
    step = read(config, SequenceOptions(context=9, phase="decode"))
    assert step.parameters == both.parameters  # the encoder stays in memory, and does not run
    assert [layer.name for layer in step.layers] == ["vision.weights", *(layer.name for layer in step_alone.layers)]
    assert total(step, "macs") == total(step_alone, "macs")


@pytest.mark.slow
@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
def test_the_text_part_of_a_qwen_vl_has_the_parameters_of_the_module(model_type, is_nested):
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    text = {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": False}
    theirs = transformers.AutoConfig.for_model(model_type, text_config=text)
    with torch.device("meta"):
        text_model = transformers.AutoModel.from_config(theirs).language_model
    nested = {"text_config": {**text, "model_type": f"{model_type}_text"}}
    config = {
        "model_type": model_type,
        "vision_config": {"depth": 2, "patch_size": 14},
        **(nested if is_nested else text),
    }
    found = read(config, SequenceOptions(TOKENS))
    text_parameters = sum(part.numel() for part in text_model.parameters()) + 64 * 1000
    assert found.parameters - found.tower_parameters == text_parameters
    assert found.notes[0].startswith(f"a {model_type} with its vision tower: one image of 48 x 48 patches")


def test_an_image_size_reaches_the_image_encoder_of_a_pair():
    fields = {"model_type": "clip", **CASES["clip"]}
    small, large = (read_config(json.dumps(fields).encode(), "c.json", size, SequenceOptions(8)) for size in (32, 64))
    assert small.inputs == ((1, 3, 32, 32), (1, 8)) and large.inputs == ((1, 3, 64, 64), (1, 8))
    assert large.parameters - small.parameters == (64 - 16) * 64  # positions of the further patches


BAD = [
    ("roberta", {"hidden_size": 60}, r"\$.num_attention_heads is 8, which does not divide \$.hidden_size, 60"),
    ("deberta-v2", {"pos_att_type": "c2c"}, r"\$.pos_att_type must hold c2p and p2c \(got 'c2c'\)"),
    ("deberta-v2", {"pos_att_type": 5}, r"\$.pos_att_type must hold c2p and p2c \(got 5\)"),
    ("deberta-v2", {"norm_rel_ebd": []}, r"\$.norm_rel_ebd must be one of 'layer_norm', 'none' \(got \[\]\)"),
    ("modernbert", {"layer_types": ["full_attention"]}, r"\$.layer_types must list the 4 layers"),
    ("deberta-v2", {"conv_kernel_size": 3}, r"\$.conv_kernel_size is 3; DebertaV2 is read with 0 only"),
    ("clip", {"text_config": None}, r"\$.text_config is missing"),
    ("bert", {"architectures": ["BertForMultipleChoice"]}, "BertForTokenClassification or .* is read"),
]


@pytest.mark.parametrize(("model_type", "changes", "message"), BAD)
def test_invalid_config_gets_one_sentence(model_type, changes, message, traced_here):
    with pytest.raises(BadDescriptor, match=message):
        read({**CASES[model_type], "model_type": model_type, **changes}, SequenceOptions(8))


def test_a_spectrogram_is_read_whole_and_the_decoder_begins_with_one_token():
    """Whisper's encoder reads 30 s for any number of decoder tokens; the first pass may have several tokens."""
    fields = {**CASES["whisper"], "model_type": "whisper"}
    one, four = (read(fields, SequenceOptions(tokens, phase="prefill")) for tokens in (None, 4))
    assert one.inputs == ((1, 80, 64), (1, 1)) and four.inputs == ((1, 80, 64), (1, 4))
    caches = [layer.outputs[0] for layer in four.layers if layer.kind == "cache"]
    assert caches == [(1, 8, 4, 8), (1, 8, 32, 8)] * 2
    assert one.notes == ("the encoder reads the whole spectrogram, and the decoder its first token",)
    assert four.notes == ("the encoder reads the whole spectrogram, and the decoder its first 4 tokens",)
    step = read(fields, SequenceOptions(context=9, phase="decode"))
    assert step.notes == ("the decoder alone: the encoder runs with the prompt, and its weights are not included",)
