"""Inputs of modules: types, names and values, in Python and on the command line; timm models by name."""

from __future__ import annotations

import importlib.util
import json

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.architectures.inputs import Input, read_input
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, FactoryFailed, UnknownName


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("3x224x224", Input((3, 224, 224))),
        ("int64:128", Input((128,), "int64")),
        ("input_ids=int64:128", Input((128,), "int64", "input_ids")),
        ("x=3x8x8", Input((3, 8, 8), "float32", "x")),
        ("lengths=int64:=128", Input((), "int64", "lengths", (128,))),
        ("int64:=224,96", Input((2,), "int64", "", (224, 96))),
        ("n=:=3", Input((), "int64", "n", (3,))),
        (":=0.5", Input((), "float32", "", (0.5,))),
        ((3, 8, 8), Input((3, 8, 8))),
        (Input((1,)), Input((1,))),
    ],
)
def test_read_input(text, read):
    assert read_input(text) == read


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("int65:128", UnknownName, "no type of an input is called 'int65': did you mean int64"),
        ("int64:", BadValue, "'' is not a shape"),
        ("int64:=x", BadValue, "'x' are not numbers, as in lengths=int64:=128"),
        ("int64:=", BadValue, "'' are not numbers"),
        ("a b=3", BadValue, "'a b' is not the name of an argument, as in input_ids=int64:128"),
        ("=3", BadValue, "'' is not the name of an argument"),
        ("3x-1", BadValue, "'3x-1' is not a shape"),
    ],
)
def test_invalid_inputs(text, error, message):
    with pytest.raises(error, match=message):
        read_input(text)


MODULE = """
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(100, 8), nn.Linear(8, 4)

    def forward(self, words, *, weights):
        return self.head(self.table(words) * weights)
"""


@pytest.mark.slow
def test_integer_and_named_inputs_in_python_and_on_the_command_line(tmp_path, monkeypatch):
    """128 words of 8 numbers, each to 4: 4,096 multiply-accumulates."""
    pytest.importorskip("torch")
    (tmp_path / "words_for_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    inputs = ["int64:128", "weights=128x8"]
    asked = ["layers", "words_for_a_test:Words", "--convention", "macs", "--format", "json"]
    answer = CliRunner().invoke(main, [*asked, *(word for each in inputs for word in ("--input", each))])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output)["total"] == 4096

    import words_for_a_test

    assert pl.layers(words_for_a_test.Words(), inputs=inputs, convention="macs").total == 4096
    wrong = CliRunner().invoke(main, [*asked, "--input", "128", "--input", "weights=128x8"])
    assert wrong.exit_code == 1
    assert "cannot be traced in table" in wrong.output


@pytest.mark.slow
def test_timm_models_by_name():
    """ConvNeXt-T as its paper has it: 4.5 GMACs (Liu et al. 2022, table 9), 28.6 M parameters."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("timm") is None:
        with pytest.raises(FactoryFailed, match="timm:convnext_tiny needs timm: pip install timm"):
            pl.layers("timm:convnext_tiny")
        return
    counts = pl.layers("timm:convnext_tiny", convention="macs")
    assert round(counts.total / 1e9, 1) == 4.5
    assert round(counts.network.parameters / 1e6, 1) == 28.6
    assert pl.layers("timm:convnext_tiny", convention="macs", image_size=384).network.inputs == ((1, 3, 384, 384),)
    with pytest.raises(UnknownName, match="no timm model is called 'convnext_tinny': did you mean convnext_tiny"):
        pl.layers("timm:convnext_tinny")
