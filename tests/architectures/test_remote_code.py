"""Configs that name code: no depth of them is believed, and no answer on standard input allows it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import paleo_lite
from paleo_lite.architectures.remote_code import FORBIDDEN, remote_code_forbidden, without_code

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
def test_yes_on_standard_input_allows_nothing_and_is_not_read(tmp_path):
    pytest.importorskip("transformers")
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (tmp_path / "config.json").write_text(json.dumps(NESTED))
    program = (
        "import sys\nfrom paleo_lite.cli import main\ntry:\n    main()\nfinally:\n    print(len(sys.stdin.read()))"
    )
    root = str(Path(paleo_lite.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "PALEO_LITE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", program, "predict", ".", "--gpu", "v100-sxm2", "--format", "json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, input="y\n" * 50, capture_output=True, text=True, check=False
    )
    assert not mark.exists()
    assert done.stdout.splitlines()[-1] == "100" and "Traceback" not in done.stderr
