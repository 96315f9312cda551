"""Conversion of questions to addresses, command lines and Python, and back.

Tests: web/view.py, web/answers.py.
"""

from __future__ import annotations

import json
import shlex

import click
import pytest
from click.testing import CliRunner
from hypothesis import given

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from paleo_lite.architectures import find_network
from paleo_lite.cli import main
from paleo_lite.errors import BadValue
from paleo_lite.questions.kind import KINDS
from paleo_lite.web.answers import ask
from paleo_lite.web.view import View, check_amount, first_view, read_query
from paleo_lite.web.wanted import APPLIES, NOT_OFFERED, WANTED, offered_options, record_of
from strategies import VIEWS


@pytest.mark.thorough
@given(VIEWS)
def test_an_address_gives_the_view_back(view):
    found, problems = read_query(view.to_query())
    assert problems == []
    assert found == view or not view.network  # an address without a network is that of a profile


def test_the_page_opens_with_a_language_model_on_three_devices():
    view, problems = read_query({})
    assert (view, problems) == (first_view(), [])
    assert len(view.gpu) == 3
    assert find_network(view.network).is_language_model


@pytest.mark.parametrize("asked", WANTED)
def test_a_question_without_more_starts_as_the_page_shows_it(asked):
    assert read_query({"ask": [asked]}) == (first_view(asked), [])


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (
            {"ask": ["nosuch"]},
            "'ask': no question is called 'nosuch': valid names: diffusion, local, predict, profile,",
        ),
        ({"network": ["resnet5"]}, "no network is called 'resnet5': did you mean resnet50"),
        ({"network": ["../models/resnet50"]}, "no network is called"),
        ({"network": ["/etc/passwd.json"]}, "no network is called"),
        ({"network": ["os:system"]}, "no network is called"),
        ({"gpu": ["k80", "k8"]}, "no device is called 'k8': did you mean k80"),
        ({"gpu": ["../hardware/k80"]}, "no device is called"),
        ({"gpu": ["k80", "t4", "a10", "l4", "p4", "a40", "l40"]}, "at most 6 devices can be compared (got 7)"),
        ({"precision": ["fp31"]}, "“Precision”: no precision is called 'fp31'"),
        ({"batch_size": ["0"]}, "“Batch size”: the value must be an integer from 1 to 1,048,576 (got 0)"),
        ({"batch_size": ["٣"]}, "must be an integer from 1"),
        ({"batch_size": ["9" * 16]}, "must be an integer from 1"),
        ({"batch_size": ["1", "2"]}, "must have one value (got 2)"),
        ({"batch_size": ["1:100000"]}, "up to 40 numbers"),
        ({"time_model": ["magic"]}, "no time model is called 'magic'"),
        ({"ppp": ["0"]}, "“PPP”: the value must be a number > 0"),
        ({"calibration": ["k40m-fp16.toml"]}, "“Calibration”: no value is called"),
        ({"platform": [" /etc/x.toml "]}, "“Platform”: the page opens no file"),
        ({"workers": ["4,2,...,1"]}, "“Number of devices”"),
        ({"workers": ["99999999"]}, "must be an integer from 1 to 65,536"),
        ({"samples": ["many"]}, "“Samples”"),
        ({"price": ["1 USD"]}, "“Price per hour”"),
        ({"lora": ["yes"]}, "“LoRA rank”"),
        ({"mixed_precision": ["no"]}, "“Mixed precision”: must be yes (got 'no')"),
        ({"communication": ["colective=ring"]}, "“Exchange of gradients”: no setting"),
        ({"inputs": ["3x224x224"]}, "the page has no control for it: imports and executes code"),
        ({"hardware_files": ["/etc/passwd"]}, "the page has no control for it"),
        ({"shown": ["x"]}, "no device is called"),
        ({"colour": ["red"]}, "no control is called 'colour'"),
        ({"link": ["x" * 1000]}, "longer than 200 characters"),
        ({"network": ["resnet50"], "sequence_length": ["8"]}, "“Sequence length” does not apply to this question"),
    ],
)
def test_a_bad_parameter_gives_a_message_and_the_default(query, sentence):
    view, problems = read_query(query)
    assert len(problems) == 1 and sentence in problems[0]
    assert "--" not in problems[0]
    assert (view.asked, view.options) in (("train", dict(first_view().options)), ("train", {}))


def test_valid_parameters_of_a_bad_address_are_kept():
    view, problems = read_query({"network": ["vgg16"], "batch_size": ["-1"], "workers": ["2"]})
    assert (view.network, view.options, len(problems)) == ("vgg16", {"workers": "2"}, 1)


def test_an_address_names_no_file_of_any_option():
    """Each option that the command line reads from a file takes only shipped names, or has no control."""
    checked = set()
    for asked in KINDS:
        for name, declared in offered_options(asked).items():
            assert not isinstance(declared.type, click.Path)
            if getattr(declared.type, "files", False):
                checked.add(name)
                for text in ("/etc/x.toml", "x.toml ", "../x.toml"):
                    _, problems = read_query({"ask": [asked], name: [text]})
                    assert len(problems) == 1, (asked, name, text)
    assert checked == {"calibration", "platform"}
    _, problems = read_query({"ask": ["serve"], "speculation": ["tokens=3,draft=/etc/x.toml"]})
    assert len(problems) == 1 and "draft" in problems[0]
    _, problems = read_query({"ask": ["serve"], "speculation": ["tokens=3,draft=llama-3.2-1b"]})
    assert not problems


def test_every_exception_names_an_option():
    names = {name for asked in KINDS for name in record_of(asked).__dataclass_fields__}
    assert NOT_OFFERED.keys() <= names
    for asked, name in APPLIES:
        assert name in offered_options(asked)


def test_too_many_combinations_are_refused():
    view = View("predict", "vgg16", ("t4", "l4"), {"batch_size": "1:40", "precision": "fp32,fp16,bf16,tf32"})
    with pytest.raises(BadValue, match=r"up to 240 combinations \(got 320\)"):
        check_amount(view)
    thousands = View("predict", "llama-3-8b", ("h100-sxm",), {"phase": "prefill", "sequence_length": "1k:2k:1"})
    with pytest.raises(BadValue, match=r"up to 240 combinations \(got 1,001\)"):
        check_amount(thousands)


TRAINED = {"ask": ["train"], "gpu": ["h100-sxm", "l40s"]}
ASKED = {
    "a language model on three devices": {},
    "several batch sizes": {**TRAINED, "network": ["resnet50"], "batch_size": ["1:8:x2"], "precision": ["fp16,fp32"]},
    "scaling": {
        "ask": ["train"], "network": ["resnet50"], "gpu": ["k80-die"], "workers": ["1,2,4,...,16"], "link": ["25 GB/s"],
        "communication": ["collective=ring,overlap=no"], "samples": ["1.28M"], "epochs": ["2.5"], "price": ["2 USD/h"],
    },
    "measurements": {
        "ask": ["train"], "network": ["resnet50"], "gpu": ["k80-die"], "workers": ["4"], "link": ["ethernet20"],
        "measured": ["4 workers: 900 ms\n2 workers: 800 ms"],
    },
    "flags": {**TRAINED, "network": ["gpt2"], "mixed_precision": ["yes"], "precision": ["fp16"]},
    "serving": {
        "ask": ["serve"], "network": ["llama-3-8b"], "gpu": ["h100-sxm"], "rate": ["2.5"], "input_tokens": ["128:32"],
        "num_requests": ["50"], "slo": ["ttft=500ms,tpot=50ms"],
    },
    "ranked machines": {"ask": ["local"], "network": ["llama-3.1-8b"], "gpu": ["rtx3060", "apple-m4-max"]},
    "one machine": {
        "ask": ["local"], "network": ["llama-3.1-8b"], "gpu": ["rtx3060"], "weights": ["q4_k_m"], "gpu_layers": ["20"],
        "device_memory": ["8 GB"],
    },
    "pictures": {
        "ask": ["diffusion"], "network": ["sdxl"], "gpu": ["rtx4090", "l40s"], "steps": ["20,30"],
        "image_size": ["512x768"], "tiled": ["yes"],
    },
    "videos": {"ask": ["diffusion"], "network": ["wan-2.1-1.3b"], "gpu": ["h100-sxm"], "frames": ["33"]},
    "reinforcement": {
        "ask": ["rl"], "network": ["qwen3-8b"], "gpu": ["h100-sxm"], "workers": ["8,16"], "prompts": ["16"],
        "response_tokens": ["500"], "samples_per_prompt": ["4"],
    },
    "decode": {"ask": ["predict"], "network": ["llama-3-8b"], "gpu": ["h100-sxm"], "phase": ["decode"],
               "tensor": ["1,2"], "context": ["1000"]},
    "one network": {"ask": ["predict"], "network": ["vgg16"], "gpu": ["k40m", "t4"], "ppp": ["0.625"]},
}  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED)
def test_page_command_and_python_give_the_same_json(query):
    view, problems = read_query(query)
    assert problems == []
    of_page = ask(view).to_dict()
    imports, _, call = view.python().partition("\n\n")
    found: dict = {}
    exec(imports, found)
    assert plain(eval(call, found).to_dict()) == plain(of_page)
    result = CliRunner().invoke(main, [*shlex.split(view.command())[1:], "--format", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == plain(of_page)


def plain(answer):
    return json.loads(json.dumps(answer))


def test_every_kind_of_question_is_asked_three_ways():
    assert {read_query(query)[0].asked for query in ASKED.values()} == set(KINDS)


def test_python_has_numbers_lists_and_texts_as_a_person_writes_them():
    view, _ = read_query(ASKED["scaling"])
    assert view.python().endswith(
        'pl.train("resnet50", gpu="k80-die", workers="1,2,4,...,16", link="25 GB/s", '
        'communication="collective=ring,overlap=no", samples="1.28M", epochs=2.5, price="2 USD/h")'
    )
    view = View("predict", "vgg16", ("t4", "l4"), {"batch_size": "1,8", "precision": "fp32,fp16"})
    assert view.python(["mine.toml"]).endswith(
        'pl.predict("vgg16", gpu=["t4", "l4"], batch_size=[1, 8], precision=["fp32", "fp16"], '
        'memory=True, hardware_files=["mine.toml"])'
    )
    assert view.command(["mine.toml"]) == (
        "paleo-lite predict vgg16 --gpu t4,l4 --batch-size 1,8 --precision fp32,fp16 --memory --hardware-file mine.toml"
    )
