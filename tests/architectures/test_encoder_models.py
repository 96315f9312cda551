"""Every encoder and encoder-decoder: counts and parameters are those of the traced ``transformers`` module.

Tests: architectures/encoder_models/families.py, architectures/encoder_models/stack.py,
architectures/encoder_models/t5.py, architectures/encoder_models/traits.py.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from paleo_lite.architectures.encoder_models.families import FAMILIES
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.errors import BadValue

TOKENS = 16
SMALL = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
         "intermediate_size": 176, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
IMAGES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 176,
          "image_size": 32, "patch_size": 8}  # fmt: skip
TWO_STACKS = {
    "vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 176, "decoder_ffn_dim": 176, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 3,
}  # fmt: skip
CASES = {
    "bert": SMALL,
    "roberta": SMALL,
    "xlm-roberta": SMALL,
    "electra": {**SMALL, "embedding_size": 32},
    "distilbert": {"vocab_size": 1000, "dim": 64, "n_layers": 2, "n_heads": 8, "hidden_dim": 176},
    "modernbert": {**SMALL, "num_hidden_layers": 4, "local_attention": 8, "cls_token_id": 3, "sep_token_id": 4},
    "vit": IMAGES,
    "siglip_vision_model": IMAGES,
    "clip_vision_model": IMAGES,
    "clip_text_model": SMALL,
    "bart": {**TWO_STACKS, "max_position_embeddings": 128},
    "whisper": {**TWO_STACKS, "max_source_positions": 32, "max_target_positions": 64},
    "t5": {"vocab_size": 1000, "d_model": 64, "d_kv": 8, "d_ff": 176, "num_layers": 2, "num_heads": 8},
}
CLASSES = [(model_type, name) for model_type, family in FAMILIES.items() for name in family.classes]
FLOPS_WITHIN = {"modernbert": 0.03, "siglip_vision_model": 0.03}
"""Relative differences allowed: rotary tables and masks that are made twice, and PyTorch's own pooling."""


@cache
def traced(model_type, class_name):
    from paleo_lite.architectures.torch_import import import_torchvision
    from paleo_lite.architectures.trace import trace

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    fields = dict(CASES[model_type])
    if class_name == "BertLMHeadModel":
        fields |= {"is_decoder": True, "use_cache": False}
    attention = "eager" if "deberta" in model_type else "sdpa"
    config = transformers.AutoConfig.for_model(model_type, attn_implementation=attention, **fields)
    with torch.device("meta"):
        module = getattr(transformers, class_name)._from_config(config)
    words = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    family = FAMILIES[model_type]
    if family.reads == "images":
        return trace(module, (1, 3, 32, 32))
    if family.reads == "audio":
        frames = torch.zeros(1, 80, 64, device="meta")
        return trace(module, frames, decoder_input_ids=words, use_cache=False)
    if family.inputs == 2:
        return trace(module, words, decoder_input_ids=words, use_cache=False)
    return trace(module, words)


def network(model_type, class_name, options=None, **changes):
    fields = {**CASES[model_type], "model_type": model_type, "architectures": [class_name], **changes}
    if class_name == "BertLMHeadModel":
        fields["is_decoder"] = True
    if options is None and FAMILIES[model_type].reads != "images":
        options = SequenceOptions(TOKENS)
    return read_config(json.dumps(fields).encode(), "some/model/config.json", None, options)


def total(found, column, phase="inference"):
    return int(count(found.layers).column(column, phase).sum())


def matrix_sizes(found):
    """Sizes of all matrices and convolutions."""
    kinds = ("linear", "matmul", "embedding", "conv1d", "conv2d")
    weights = [layer.weights[0] for layer in found.layers if layer.kind in kinds and layer.weights]
    return sorted(sorted(weight) for weight in weights if min(weight) > 1)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "class_name"), CLASSES)
def test_an_encoder_equals_the_traced_module(model_type, class_name):
    ours, theirs = network(model_type, class_name), traced(model_type, class_name)
    assert ours.parameters == theirs.parameters
    for phase in ("inference", "training"):
        assert total(ours, "macs", phase) == total(theirs, "macs", phase)
        within = FLOPS_WITHIN.get(model_type, 0.01)
        assert total(ours, "flops", phase) == pytest.approx(total(theirs, "flops", phase), rel=within)
    assert total(ours, "bytes") == pytest.approx(total(theirs, "bytes"), rel=0.05)
    # SigLIP's pooling divides one matrix of three, and Whisper's decoder reads a table without an embedding module.
    if model_type not in ("siglip_vision_model", "whisper"):
        assert matrix_sizes(ours) == matrix_sizes(theirs)


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


def test_a_vision_language_model_is_its_text_part_and_its_vision_encoder():
    text = {**SMALL, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 8}
    vision = {**IMAGES, "model_type": "siglip_vision_model", "vision_use_head": False}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": vision}

    def read(fields, options=None):
        return read_config(json.dumps(fields).encode(), "c.json", None, options)

    both = read(config, SequenceOptions(TOKENS))
    alone, encoder = read(text, SequenceOptions(TOKENS)), read(vision)
    assert both.parameters == alone.parameters + encoder.parameters
    assert total(both, "macs", "training") == total(alone, "macs", "training") + total(encoder, "macs", "training")
    assert any("its vision encoder, one image per sequence" in note for note in both.notes)
    step = read(config, SequenceOptions(context=9, phase="decode"))
    assert step.layers == read(text, SequenceOptions(context=9, phase="decode")).layers
