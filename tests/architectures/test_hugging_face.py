"""``hf:PATH``: read without ``transformers`` where the architecture is known, else built by it and traced.

Tests: architectures/hugging_face.py.
"""

from __future__ import annotations

import importlib.util
import json

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadDescriptor, BadValue, FactoryFailed

BERT = {"model_type": "bert", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128}  # fmt: skip
PHI = {**BERT, "model_type": "phi", "architectures": ["PhiForCausalLM"], "max_position_embeddings": 128,
       "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


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
    with pytest.raises(BadValue, match="decode is of networks that write text"):
        pl.predict(f"hf:{path}", gpu="k80-die", phase="decode", context=9)


def test_what_is_not_there_is_not_fetched(tmp_path):
    with pytest.raises(BadDescriptor, match=r"no google/bert/config\.json; names of the hub would need a network"):
        pl.layers("hf:google/bert")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(BadDescriptor, match=r"config\.json"):
        pl.layers(f"hf:{tmp_path}")


@pytest.mark.slow
def test_other_architectures_are_those_of_transformers(folder):
    """Phi: two blocks of queries, keys, values, output and two feed-forward layers, attention of 128 tokens, a head."""
    pytest.importorskip("torch")
    path = folder(PHI)
    if importlib.util.find_spec("transformers") is None:
        with pytest.raises(FactoryFailed, match="needs transformers: pip install transformers"):
            pl.layers(f"hf:{path}")
        return
    for tokens in (128, 50):
        block = 4 * 64 * 64 + 2 * 64 * 128 + 2 * tokens * 64
        counts = pl.layers(f"hf:{path}", convention="macs", sequence_length=tokens)
        rotary = counts.by_kind()["matmul"]["count"] if "matmul" in counts.by_kind() else 0
        assert counts.total - rotary == tokens * (2 * block + 64 * 100)
    with pytest.raises(FactoryFailed, match="cannot be built"):
        pl.layers(f"hf:{folder({**PHI, 'architectures': ['NoSuchModel']})}")


@pytest.mark.slow
def test_a_config_names_models_and_nothing_else_of_transformers(folder):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for named in ("pipeline", "AutoConfig", "__doc__", "NoModel"):
        with pytest.raises(FactoryFailed, match=f"cannot be built: .*{named}"):
            pl.layers(f"hf:{folder({**PHI, 'architectures': [named]})}", sequence_length=8)


def test_architectures_of_another_type_are_one_sentence(folder):
    for named in (5, "BertModel", [5]):
        with pytest.raises(BadDescriptor, match=r"\$\.architectures is"):
            pl.layers(f"hf:{folder({**BERT, 'architectures': named})}", sequence_length=32)
