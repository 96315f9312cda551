"""``hf:PATH``: read without ``transformers`` where the architecture is known, else built by it and traced.

Tests: architectures/hugging_face.py.
"""

from __future__ import annotations

import importlib.util
import json

import pytest

import paleo_lite as pl
from paleo_lite.architectures.config import Config
from paleo_lite.architectures.hugging_face import BuiltModel
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor, BadValue, FactoryFailed

BERT = {"model_type": "bert", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128}  # fmt: skip
XGLM = {"model_type": "xglm", "architectures": ["XGLMForCausalLM"], "vocab_size": 100, "d_model": 64, "ffn_dim": 128,
        "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 128}  # fmt: skip
"""A model type that is traced: two blocks of multi-head attention with learned positions."""

QWEN3_MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
             "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
             "head_dim": 8, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
             "norm_topk_prob": True, "pad_token_id": 0}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def make(fields):
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return tmp_path

    return make


def test_a_folder_and_a_file_are_one(folder):
    path = folder(BERT)
    read = pl.layers(f"hf:{path}", sequence_length=32)
    assert read.to_dict() == pl.layers(f"hf:{path}/config.json", sequence_length=32).to_dict()
    assert read.total == pl.layers(str(path / "config.json"), sequence_length=32).total
    with pytest.raises(BadValue, match="--phase decode needs a model that writes text; bert does not"):
        pl.predict(f"hf:{path}", gpu="k80-die", phase="decode", context=9)


def test_missing_files_are_not_downloaded(tmp_path):
    with pytest.raises(BadDescriptor, match=r"no google/bert/config\.json; names of the hub would need a network"):
        pl.layers("hf:google/bert")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(BadDescriptor, match=r"config\.json"):
        pl.layers(f"hf:{tmp_path}")


@pytest.mark.slow
def test_other_model_types_are_traced(folder, traced_here):
    """Per block queries, keys, values, output, two feed-forward layers and attention of all tokens; then the head."""
    pytest.importorskip("torch")
    path = folder(XGLM)
    if importlib.util.find_spec("transformers") is None:
        with pytest.raises(FactoryFailed, match="needs transformers: pip install transformers"):
            pl.layers(f"hf:{path}")
        return
    for tokens in (128, 50):
        block = 4 * 64 * 64 + 2 * 64 * 128 + 2 * tokens * 64
        counts = pl.layers(f"hf:{path}", convention="macs", sequence_length=tokens)
        assert counts.total == tokens * (2 * block + 64 * 100)
    with pytest.raises(FactoryFailed, match="cannot be built"):
        pl.layers(f"hf:{folder({**XGLM, 'architectures': ['NoSuchModel']})}")


@pytest.mark.slow
def test_other_decoders_are_traced_in_every_phase(folder, traced_here):
    """A prompt of 50 tokens, and a token that attends to 51: attention multiplies twice per key, the head once."""
    pytest.importorskip("transformers")
    reference = f"hf:{folder(XGLM)}"
    asked = {"gpu": "k80-die", "convention": "macs"}
    matrices = 4 * 64 * 64 + 2 * 64 * 128
    prefill = pl.predict(reference, phase="prefill", sequence_length=50, **asked)
    assert prefill.macs == 50 * 2 * (matrices + 2 * 50 * 64) + 64 * 100
    decode = pl.predict(reference, phase="decode", context=50, **asked)
    assert decode.macs == 2 * (matrices + 2 * 51 * 64) + 64 * 100
    caches = [layer for layer in decode.workload.layers if layer.kind == "cache"]
    assert [layer.outputs for layer in caches] == [((1, 4, 51, 16),)] * 4
    with pytest.raises(BadValue, match="knows 128 positions"):
        pl.predict(reference, phase="prefill", sequence_length=129, gpu="k80-die")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [SequenceOptions(16), SequenceOptions(16, phase="prefill"), SequenceOptions(None, 32, "decode")]
)
def test_a_mixture_of_experts_is_traced_in_16_bits(options):
    """The trace of a model type that is also read from its config: both multiply equally often, in every phase."""
    pytest.importorskip("transformers")
    traced = BuiltModel("hf:mixture", Config(dict(QWEN3_MOE), "config.json"), None).trace_phase(options)
    read = read_config(json.dumps(QWEN3_MOE).encode(), "config.json", None, options)
    totals = [int(count(network.layers).column("macs", "inference").sum()) for network in (traced, read)]
    assert totals[0] == totals[1]
    assert traced.parameters == read.parameters
    assert any("traced in bf16" in note for note in traced.notes)


@pytest.mark.slow
def test_config_may_name_models_only(folder, traced_here):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for named in ("pipeline", "AutoConfig", "__doc__", "NoModel"):
        with pytest.raises(FactoryFailed, match=f"cannot be built: .*{named}"):
            pl.layers(f"hf:{folder({**XGLM, 'architectures': [named]})}", sequence_length=8)


def test_architectures_of_another_type_are_one_sentence(folder):
    for named in (5, "BertModel", [5]):
        with pytest.raises(BadDescriptor, match=r"\$\.architectures is"):
            pl.layers(f"hf:{folder({**BERT, 'architectures': named})}", sequence_length=32)
