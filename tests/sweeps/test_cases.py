"""Interpolated contexts equal reading the network at that length, including attention windows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.counting.fusion import fuse
from paleo_lite.counting.work import ENGINE
from paleo_lite.errors import BadValue
from paleo_lite.sweeps.cases import counted_layers, network_at_context, resolve_network
from paleo_lite.sweeps.space import SizedNetwork


@pytest.fixture
def windowed(tmp_path) -> str:
    path = tmp_path / "mistral.json"
    path.write_text(json.dumps({
        "model_type": "mistral", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 2, "sliding_window": 300,
        "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 512, "max_position_embeddings": 4096,
    }))  # fmt: skip
    return str(path)


@pytest.mark.parametrize("context", [1, 2, 100, 299, 300, 301, 700])
@pytest.mark.parametrize("window", [False, True])
def test_context_matches_reading_the_network_at_that_length(windowed, window, context):
    name = windowed if window else "gpt2"
    made = network_at_context(name, context, "fp16")
    there = find_network(name, options=SequenceOptions(context=context, phase="decode"))
    work = fuse(there.layers, count(there.layers, "fp16"), ENGINE)
    assert [(layer.inputs, layer.outputs) for layer in made.network.layers] == [
        (layer.inputs, layer.outputs) for layer in there.layers
    ]
    assert made.network.lengths == there.lengths
    for part in ("per_sample", "fixed", "count_per_sample", "activations_per_sample"):
        assert np.array_equal(getattr(made.work, part), getattr(work, part))


def test_unsupported_context_is_an_error():
    with pytest.raises(BadValue, match="gpt2 knows 1024 positions"):
        network_at_context("gpt2", 1024, "fp16")


@pytest.mark.parametrize(("length", "phase"), [(64, "prefill"), (64, ""), (None, "decode")])
def test_only_decoding_at_a_length_is_interpolated(length, phase):
    sized = SizedNetwork("gpt2", length, phase)
    assert [layer.inputs for layer in resolve_network(sized).layers] == [
        layer.inputs for layer in find_network("gpt2", options=sized.options).layers
    ]


def test_a_loss_belongs_to_a_language_model_outside_of_text_generation():
    counted = {
        (name, phase): [layer.kind for layer in counted_layers(SizedNetwork(name, 64, phase), "fp16")]
        for name, phase in (("gpt2", ""), ("gpt2", "prefill"))
    }
    plain = {
        phase: len(find_network("gpt2", options=SequenceOptions(64, phase=phase or "inference")).layers)
        for phase in ("", "prefill")
    }
    assert len(counted["gpt2", "prefill"]) == plain["prefill"] and len(counted["gpt2", ""]) > plain[""]
    resnet = counted_layers(SizedNetwork("resnet18"), "fp16")
    assert len(resnet) == len(find_network("resnet18").layers)
