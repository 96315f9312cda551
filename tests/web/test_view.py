"""Conversion of views to addresses and back."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given

import paleo_lite as pl
from paleo_lite.api.scaling import scale as scaling
from paleo_lite.cli import main
from paleo_lite.web.view import View, read_query
from strategies import VIEWS


@given(VIEWS)
def test_an_address_gives_the_view_back(view):
    assert read_query(view.to_query()) == (view.normalized(), [])


@pytest.mark.parametrize("phase", ["training", "prefill", "decode"])
def test_several_devices_train_or_generate(phase):
    assert View(view="scaling", phase=phase).normalized().phase == phase
    assert View(view="scaling", phase="inference").normalized().phase == "training"
    assert View(view="time", phase="inference").normalized().phase == "inference"


def test_every_control_is_in_the_address():
    view = View(
        gpu=("t4", "k80"), shown="k80", model="ppp", calibration="t4-fp32", collective="ring", images="1M",
        price="1 USD/h", size="1024x768", weights="q6_k",
    )  # fmt: skip
    assert set(view.to_query()) == set(View.__struct_fields__)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"view": ["nosuch"]}, "'view': no view is called 'nosuch': valid names: batches, local, pictures, profile,"),
        ({"network": ["resnet5"]}, "no network is called 'resnet5': did you mean resnet50"),
        ({"network": ["../models/resnet50"]}, "no network is called"),
        ({"network": ["/etc/passwd.json"]}, "no network is called"),
        ({"gpu": ["k80", "k8"]}, "no device is called 'k8': did you mean k80"),
        ({"gpu": ["../hardware/k80"]}, "no device is called"),
        ({"gpu": ["k80", "t4", "a10", "l4", "p4", "a40", "l40"]}, "at most 6 devices can be compared (got 7)"),
        ({"precision": ["fp31"]}, "no precision is called 'fp31'"),
        ({"phase": [""]}, "no phase is called ''"),
        ({"batch": ["0"]}, "must be an integer from 1 to 1,048,576 (got 0)"),
        ({"batch": ["٣"]}, "must be an integer from 1"),
        ({"batch": ["9" * 16]}, "must be an integer from 1"),
        ({"batch": ["1", "2"]}, "must have one value (got 2)"),
        ({"model": ["magic"]}, "no time model is called 'magic'"),
        ({"ppp": ["nan"]}, "must be a number from 0.01 to 100 (got 'nan')"),
        ({"ppp": ["0"]}, "must be a number from 0.01"),
        ({"calibration": ["k40m-fp16.toml"]}, "no calibration is called"),
        ({"workers": ["4,2,...,1"]}, "workers"),
        ({"workers": ["1:100000"]}, "up to 40 numbers"),
        ({"workers": ["99999999"]}, "of up to 65,536 workers"),
        ({"link": ["nosuch"]}, "no link is called 'nosuch'"),
        ({"link": ["-1 GB/s"]}, "must be > 0"),
        ({"scaling": ["odd"]}, "no scaling is called 'odd': valid names: strong, weak."),
        ({"strategy": ["dta"]}, "did you mean data"),
        ({"collective": ["rings"]}, "did you mean ring"),
        ({"images": ["many"]}, "`--images` must be a number such as 52k"),
        ({"images": ["0"]}, "must be a number > 0"),
        ({"epochs": ["inf"]}, "must be a number from"),
        ({"price": ["1 USD"]}, "is not in USD/h"),
        ({"shown": ["x"]}, "no device is called"),
        ({"rate": ["0"]}, "must be a number from"),
        ({"input_tokens": ["many"]}, "no data set is called 'many'"),
        ({"tensor": ["0"]}, "must be an integer"),
        ({"pipeline": ["17"]}, "must be an integer"),
        ({"policy": ["vlm"]}, "did you mean vllm"),
        ({"execution": ["ollama"]}, "no engine is called 'ollama'"),
        ({"weights": ["q5"]}, "no format of the weights is called 'q5'"),
        ({"colour": ["red"]}, "no control is called 'colour'"),
        ({"link": ["x" * 1000]}, "longer than 200 characters"),
    ],
)  # fmt: skip
def test_a_bad_parameter_gives_a_message_and_the_default(query, sentence):
    view, problems = read_query(query)
    assert len(problems) == 1 and sentence in problems[0]
    assert view == View()


def test_valid_parameters_of_a_bad_address_are_kept():
    view, problems = read_query({"network": ["vgg16"], "batch": ["-1"]})
    assert (view.network, view.batch, len(problems)) == ("vgg16", View().batch, 1)


@pytest.mark.parametrize(
    ("view", "command", "ask"),
    [
        (View(phase="training", precision="fp16"), "predict", {"phase": "training", "precision": "fp16"}),
        (View(model="ppp", ppp=0.625), "predict", {"ppp": 0.625}),
        (View(model="roofline", calibration="v100-sxm2-fp32"), "predict", {"time_model": "roofline"}),
        (View(calibration="v100-sxm2-fp32", batch=7), "predict", {"calibration": "v100-sxm2-fp32", "batch_size": 7}),
        (View(link="25 GB/s", scaling="strong", batch=256), "scale", {"scaling": "strong", "batch_size": 256}),
        (View(link="25 GB/s", strategy="zero-3", images="1.28M", epochs=2.5, price="2 USD/h"), "scale",
         {"strategy": "zero-3", "images": "1.28M", "epochs": 2.5, "price": "2 USD/h"}),
    ],
)  # fmt: skip
def test_the_command_gives_the_same_result(view, command, ask):
    import shlex

    text = (view.predict_command if command == "predict" else view.scale_command)("v100-sxm2")
    result = CliRunner().invoke(main, [*shlex.split(text)[1:], "--format", "json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    if command == "predict":
        ask.setdefault("batch_size", 32)
        assert answer["time_s"] == pl.predict("resnet50", gpu="v100-sxm2", **ask).time_s
    else:
        ask = {"batch_size": 32, "workers": [1, 2, 4, 8, 16, 32, 64], "link": "25 GB/s", **ask}
        assert answer["rows"] == [row.to_dict() for row in scaling("resnet50", gpu="v100-sxm2", **ask)]
