"""Configs without a record are traced in a process with limits, whose answers are kept on disk."""

from __future__ import annotations

import json

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
    path = config(CTRL)
    traced = find_network(path, options=SequenceOptions(length=16))
    assert (traced.parameters, traced.source[:13]) == (PARAMETERS, "transformers ")
    monkeypatch.setattr(trace_process, "_ask", lambda *_: pytest.fail("the answer is on disk"))
    again = find_network(path, options=SequenceOptions(length=16))
    assert (again.layers, again.parameters) == (traced.layers, PARAMETERS)


def test_a_model_that_cannot_be_traced_is_one_sentence(config, traced_here):
    with pytest.raises(TraceFailed, match=r"config\.json cannot be traced: .*") as failure:
        find_network(config({"model_type": "xlnet", "d_model": 64, "n_layer": 1, "n_head": 4, "d_inner": 128}))
    assert "\n" not in str(failure.value)


def test_a_process_beyond_its_time_is_one_sentence(config, monkeypatch):
    monkeypatch.setattr(trace_process, "TIME_S", 0.01)
    with pytest.raises(TraceFailed, match=r"cannot be traced within 0\.01 s"):
        trace_process.trace_config(json.dumps(CTRL).encode(), config(CTRL))
