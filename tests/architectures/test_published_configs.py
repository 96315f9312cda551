"""Configs as publishers ship them have the published parameters, in every phase and on two devices, without torch.

``published_configs.json`` has configs of model cards on https://huggingface.co with their totals: of the metadata of
the files, or as the publisher rounds them. They leave out sizes, nest the text part under keys of their own, and are
quantized by every method that is read.

Tests: architectures/language_models/nested_defaults.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paleo_lite.architectures import trace_process
from paleo_lite.architectures.language_models.nested_defaults import NESTED_DEFAULTS
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions

CONFIGS = json.loads(Path(__file__).with_name("published_configs.json").read_text(encoding="utf-8"))
QUESTIONS = {
    "prefill": SequenceOptions(512, phase="prefill"),
    "decode": SequenceOptions(context=1024, phase="decode"),
    "two devices": SequenceOptions(context=1024, phase="decode", tensor_parallel=2),
}


@pytest.fixture(autouse=True)
def _without_transformers(monkeypatch):
    monkeypatch.setattr(trace_process, "traceable_types", frozenset)


def read(config, question="prefill"):
    return read_config(json.dumps(config).encode(), "some/config.json", None, QUESTIONS[question])


@pytest.mark.parametrize("published", CONFIGS, ids=[published["repository"] for published in CONFIGS])
def test_a_published_config_has_the_published_parameters(published):
    network = read(published["config"])
    assert network.parameters == pytest.approx(published["parameters"], rel=0.01)
    active = published.get("active_parameters", network.active_parameters)
    assert network.active_parameters == pytest.approx(active, rel=0.03)
    assert (network.stored_weights is None) == ("quantization_config" not in published["config"])
    assert read(published["config"], "decode").parameters == network.parameters
    if published["config"].get("num_key_value_heads", 2) % 2 == 0:
        assert read(published["config"], "two devices").parameters < network.parameters


def test_every_method_of_quantization_is_published_here_or_tested_alone():
    methods = {published["config"].get("quantization_config", {}).get("quant_method") for published in CONFIGS}
    assert methods >= {"awq", "gptq", "compressed-tensors", "bitsandbytes", "quark", "torchao", "bitnet"}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", NESTED_DEFAULTS)
def test_what_a_nested_config_leaves_out_is_what_transformers_takes(model_type):
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision("a test")
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    defaults = transformers.AutoConfig.for_model(model_type).to_dict()
    assert NESTED_DEFAULTS[model_type] == {name: defaults[name] for name in NESTED_DEFAULTS[model_type]}


def test_what_a_nested_config_leaves_out_is_named():
    text = {"model_type": "llama", "vocab_size": 32064}
    notes = read({"model_type": "llava", "text_config": text}).notes
    assert any("leaves out has the defaults of transformers: num_hidden_layers 32" in note for note in notes)
    with pytest.raises(Exception, match=r"\$\.num_hidden_layers is missing"):  # a config of its own has all keys
        read(text)
