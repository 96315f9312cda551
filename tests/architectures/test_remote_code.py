"""Configs that name code: no depth of them is believed, and no answer on standard input allows it."""

from __future__ import annotations

import importlib
import io
import json

import pytest
from click.testing import CliRunner

from paleo_lite.architectures.remote_code import FORBIDDEN, remote_code_forbidden, without_code
from paleo_lite.cli import main

EVIL = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
NESTED = {
    "model_type": "vision-encoder-decoder",
    "architectures": ["VisionEncoderDecoderModel"],
    "auto_map": EVIL,
    "encoder": {"model_type": "vit", "auto_map": EVIL, "num_hidden_layers": 1, "trust_remote_code": True},
    "decoder": {"model_type": "bert", "auto_map": EVIL, "is_decoder": True, "add_cross_attention": True,
                "num_hidden_layers": 1, "_attn_implementation": "somebody/kernels"},
}  # fmt: skip


def test_keys_that_name_code_go_at_every_depth():
    assert without_code({"a": [{"auto_map": EVIL, "b": [{"c": 1, "custom_pipeline": "x"}]}]}) == {
        "a": [{"b": [{"c": 1}]}]
    }
    cleaned = without_code(NESTED)
    assert "auto_map" not in json.dumps(cleaned) and "somebody" not in json.dumps(cleaned)
    assert without_code({"attn_implementation": "sdpa"}) == {"attn_implementation": "sdpa"}


@pytest.mark.slow
def test_the_libraries_refuse_to_import_code():
    """Each function that is there is replaced also where another module has imported it by name."""
    pytest.importorskip("transformers")
    from transformers.models.auto import auto_factory

    replaced = [
        getattr(importlib.import_module(module), name)
        for module, names in FORBIDDEN.items()
        if module.startswith("transformers.dynamic")
        for name in names
    ]
    assert len(replaced) == 4 and auto_factory.resolve_trust_remote_code in replaced
    before = [function.__code__ for function in replaced]
    with remote_code_forbidden():
        for function in replaced:
            with pytest.raises(ValueError, match="names code of its own"):
                function("evil.Model", ".")
    assert [function.__code__ for function in replaced] == before  # the process may be the user's


@pytest.mark.slow
def test_yes_on_standard_input_allows_nothing_and_is_not_read(tmp_path, traced_here, monkeypatch):
    """In this process; tests/test_child.py answers yes to the process that traces."""
    pytest.importorskip("transformers")
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (tmp_path / "config.json").write_text(json.dumps(NESTED))
    monkeypatch.chdir(tmp_path)
    answers = io.BytesIO(b"y\n" * 50)
    done = CliRunner().invoke(main, ["predict", ".", "--gpu", "v100-sxm2", "--format", "json"], input=answers)
    assert not mark.exists() and answers.tell() == 0
    assert done.exit_code == 1 and "Traceback" not in done.stderr and "cannot be traced in decoder.bert" in done.stderr
