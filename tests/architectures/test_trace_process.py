"""Configs without a record are traced in a process with limits, whose answers are kept on disk.

Tests: architectures/trace_process.py, architectures/trace_child.py.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from paleo_lite.architectures import find_network, trace_process
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.errors import TraceFailed

pytestmark = pytest.mark.slow

CTRL = {
    "model_type": "ctrl",
    "vocab_size": 1000,
    "n_positions": 256,
    "n_embd": 64,
    "dff": 128,
    "n_layer": 2,
    "n_head": 4,
}
PARAMETERS = 2 * (4 * (64 * 64 + 64) + 2 * 64 * 128 + 128 + 64 + 4 * 64) + 2 * 64 + 1000 * 64 + 1000
"""Per block four projections, two feed-forward layers and two norms; a last norm, and a tied head with a bias."""


@pytest.fixture
def config(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("PALEO_LITE_CACHE", str(tmp_path / "cache"))

    def write(fields):
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return str(tmp_path / "config.json")

    return write


def test_the_second_question_starts_no_process(config, monkeypatch):
    """What the process answers is answered here, where the libraries are imported anyway."""
    monkeypatch.setattr(
        trace_process, "_run_child", lambda request: trace_process.answer_bytes(msgspec.json.encode(request))
    )
    path = config(CTRL)
    traced = find_network(path, options=SequenceOptions(length=16))
    assert (traced.parameters, traced.source[:13]) == (PARAMETERS, "transformers ")
    monkeypatch.setattr(trace_process, "_ask", lambda *_: pytest.fail("the answer is on disk"))
    again = find_network(path, options=SequenceOptions(length=16))
    assert (again.layers, again.parameters) == (traced.layers, PARAMETERS)


def test_a_model_that_cannot_be_traced_is_one_sentence(config, traced_here):
    with pytest.raises(TraceFailed, match=r"config\.json cannot be traced: .*") as failure:
        find_network(config({"model_type": "longformer", "num_hidden_layers": 1}))
    assert "\n" not in str(failure.value)


RESIDENT_BYTES = 3e9
"""Most resident memory of a trace, also of types whose constructors allocate tens of gigabytes."""


def default_config(model_type):
    transformers = pytest.importorskip("transformers")
    try:
        fields = transformers.AutoConfig.for_model(model_type).to_dict()
    except Exception as error:  # some types have no default config
        pytest.skip(f"{model_type}: {type(error).__name__}")
    return json.dumps({**fields, "model_type": model_type, "architectures": None}, default=str).encode()


PHASES = {"inference": SequenceOptions(), "decode": SequenceOptions(context=128, phase="decode")}


def answer_within_limits(model_type, phase="inference"):
    request = trace_process.TraceRequest("config.json", default_config(model_type), None, PHASES[phase])
    try:
        return trace_process.ask(request)
    except TraceFailed as failure:
        assert "cannot be traced within" in str(failure)
        return None


def test_a_cache_is_filled_before_a_step_is_traced(config, traced_here):
    """In this process: a token attends to itself and to the 128 tokens before it."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    path = config({"model_type": "biogpt", "intermediate_size": 128, **sizes})
    step = find_network(path, options=PHASES["decode"])
    attention = [layer.inputs for layer in step.layers if layer.kind == "attention"]
    assert attention == [((1, 4, 1, 16), (1, 4, 129, 16), (1, 4, 129, 16))] * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model_type", "phase"),
    [
        ("gemma4_unified", "inference"), pytest.param("biogpt", "decode", marks=pytest.mark.thorough),
        *(
            pytest.param(sibling, "inference", marks=pytest.mark.thorough)
            for sibling in ("cohere_compass_text", "qwen4_exp_text", "ctrl", "xlnet")
        ),
    ],
)  # fmt: skip
def test_tracing_a_default_config_takes_little_memory(config, model_type, phase):
    """Types that took tens of gigabytes once, and the one with the longest attention."""
    answer = answer_within_limits(model_type, phase)
    assert answer is not None and 1e8 < answer.resident_bytes < RESIDENT_BYTES
    assert (len(answer.layers) > 100) == (answer.failure == "") and "\n" not in answer.message


def causal_types():
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        return []
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.thorough
def test_tracing_any_default_config_takes_little_memory(config):
    """All types of the installed library, some 40 minutes."""
    for model_type in causal_types():
        for phase in PHASES:
            try:
                answer = answer_within_limits(model_type, phase)
            except pytest.skip.Exception:
                continue
            assert answer is None or answer.resident_bytes < RESIDENT_BYTES, (model_type, phase)


def test_a_process_beyond_its_time_is_one_sentence(config, monkeypatch):
    """Importing the libraries alone takes more."""
    monkeypatch.setattr(trace_process, "PROCESSOR_S", 1)
    with pytest.raises(TraceFailed, match=r"cannot be traced within 1 s of processor time"):
        trace_process.trace_config(json.dumps(CTRL).encode(), config(CTRL))
