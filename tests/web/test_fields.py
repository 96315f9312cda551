"""Every option of every kind has a control that is made from its record, in the words of the page.

Tests: web/fields.py, web/wanted.py, web/words.py.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from paleo_lite.questions.kind import KINDS
from paleo_lite.questions.option import options_of
from paleo_lite.web.fields import _WIDGETS, field_of
from paleo_lite.web.view import default_of, is_flag
from paleo_lite.web.wanted import NOT_OFFERED, WANTED, label_of, offered_options, record_of
from paleo_lite.web.words import on_page


@pytest.mark.parametrize("kind", WANTED)
def test_every_option_has_a_control_or_a_reason(kind):
    for name in options_of(record_of(kind)):
        if name not in offered_options(kind):
            assert NOT_OFFERED[name]
            continue
        field = field_of(kind, name)
        assert field.widget in _WIDGETS
        assert not re.search(r"--\w", field.help + field.label + field.default + field.example)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_a_question_are_all_different(kind):
    labels = [label_of(kind, name) for name in offered_options(kind)]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("kind", "name", "widget"),
    [
        ("train", "mixed_precision", "yes or no"),
        ("train", "optimizer", "name"),
        ("train", "precision", "several names"),
        ("train", "lora", "number"),
        ("train", "batch_size", "text"),
        ("train", "epochs", "text"),
        ("train", "link", "name or text"),
        ("train", "measured", "lines"),
        ("serve", "arrivals", "name"),
        ("serve", "platform", "name or text"),
    ],
)
def test_the_type_of_an_option_chooses_its_control(kind, name, widget):
    assert field_of(kind, name).widget == widget


def test_an_empty_control_names_the_default_that_the_record_has():
    assert field_of("serve", "engine").default == "vllm"
    assert field_of("serve", "seed").default == "0"
    assert default_of("train", "mixed_precision") is False and is_flag("train", "mixed_precision")
    assert "fp16 on a device without it" in field_of("predict", "precision").help
    assert field_of("predict", "precision").default == ""  # too long for the control


@pytest.mark.parametrize("widget", _WIDGETS)
@pytest.mark.parametrize("text", ["", "yes", "7", "1,8"])
def test_a_control_keeps_the_text_that_it_was_set_to(widget, text):
    possible = {"yes or no": ("", "yes"), "number": ("", "7")}
    if text in possible.get(widget, (text,)):
        assert _WIDGETS[widget].read(_WIDGETS[widget].write(text)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("assumes 2048 tokens; --sequence-length sets another length",
         "assumes 2048 tokens; “Sequence length” sets another length"),
        ("`--phase prefill` and decode", "“Phase prefill” and decode"),
        ("give `--rate`, or `-tp 2`", "give “Requests per second”, or “Tensor-parallel devices 2”"),
        ("ask `paleo-lite diffusion sdxl` instead of predict", "ask “Make pictures” instead of predict"),
        ("`serve` needs a language model", "“Serve” needs a language model"),
        ("with --no-such-option", "with “no such option”"),
        ("mean-std, k-means and 3--4 stay", "mean-std, k-means and 3--4 stay"),
    ],
)  # fmt: skip
def test_sentences_name_controls_instead_of_options(text, shown):
    assert on_page(text) == shown


def test_an_option_is_named_by_the_label_of_its_own_question():
    assert on_page("see --sequence-length", "local") == "see “Tokens of the prompt”"
