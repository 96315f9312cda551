"""The page without a browser: every control has its effect, and the displayed figures equal those of the package.

Tests: web/controls.py, web/page.py, web/profile.py.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from streamlit.testing.v1 import AppTest

import paleo_lite as pl
from measured import DATA
from paleo_lite.reporting.formats import format_3_digits, format_time_short
from paleo_lite.web import page as page_module
from paleo_lite.web.controls import ASKED_KEY, DEVICES_KEY, NETWORK_KEY, SHOWN_KEY
from paleo_lite.web.fields import KEY, key_of
from paleo_lite.web.view import first_view, read_query
from paleo_lite.web.wanted import DEVICES_AT_MOST, WANTED

pytestmark = pytest.mark.slow

APP = Path(page_module.__file__).parent / "app.py"
COMMON = {"network": NETWORK_KEY, "gpu": DEVICES_KEY, "shown": SHOWN_KEY, "ask": ASKED_KEY}


def opened(**query):
    page = AppTest.from_file(str(APP), default_timeout=1800)
    for name, value in query.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def address(page, name):
    """Return the values of a query parameter; Streamlit's tests return one value as text or list, by version."""
    value = page.query_params[name]
    return list(value) if isinstance(value, list) else [value]


def unescaped(text):
    return text.replace("\\", "")


def widgets(page):
    """Return the controls that are drawn by their keys."""
    kinds = (
        page.selectbox, page.multiselect, page.number_input, page.text_input, page.text_area, page.radio, page.checkbox,
    )  # fmt: skip
    return {widget.key: widget for kind in kinds for widget in kind if (widget.key or "").startswith(KEY)}


def set_control(page, name, value, kind="train"):
    widgets(page)[COMMON.get(name) or key_of(kind, name)].set_value(value).run()
    assert not page.exception
    return page


def choose(page, asked):
    return set_control(page, "ask", asked)


def figures(page):
    return [metric.value for metric in page.metric]


def texts(page):
    """Return everything that the page says outside code and tables."""
    kinds = (page.markdown, page.caption, page.error, page.info, page.warning)
    return [unescaped(element.value) for kind in kinds for element in kind]


@pytest.mark.spread(2)
@pytest.mark.parametrize("asked", WANTED)
def test_every_question_opens_on_three_devices_and_names_no_option_of_the_command_line(asked):
    page = opened(ask=asked)
    assert not page.warning
    assert page.session_state[DEVICES_KEY] == list(first_view(asked).gpu)
    assert len(page.metric) == (0 if asked == "profile" else 3)
    if asked == "profile":
        return  # the formats of profiles name options of profilers
    assert not [text for text in texts(page) if re.search(r"(?<![\w-])--[a-z]", text)]
    helps = [getattr(widget, "help", "") or "" for widget in widgets(page).values()]
    assert not [text for text in helps if "--" in unescaped(text)]
    shown = [code.value for code in page.code]  # the command and the Python of the question stand below its answers
    alone = first_view(asked).of_device("h100-sxm")
    assert shown[-2:] == [alone.command(), alone.python()]
    assert shown[:2] == [first_view(asked).command(), first_view(asked).python()]


@pytest.mark.thorough
def test_every_control_of_training_changes_the_answer():
    """Controls are set one after the other and keep their values."""
    page = opened(network="gpt2", gpu=["t4"], lora="16", weights="int4", precision="fp16")
    asked = {"network": "gpt2", "gpu": "t4", "lora": 16, "weights": "int4", "precision": "fp16"}
    for control, value, ask in (
        ("gpu", ["a100-sxm-80gb"], {"gpu": "a100-sxm-80gb"}),
        ("lora", 64, {"lora": 64}),
        ("lora", None, {"lora": None, "weights": None}),
        ("mixed_precision", True, {"mixed_precision": True}),
        ("network", "alexnet", {"network": "alexnet"}),
        ("batch_size", "16", {"batch_size": 16}),
        ("optimizer", "adamw", {"optimizer": "adamw"}),
        ("execution", "compiled", {"execution": "compiled"}),
    ):
        before = figures(page)
        if control == "lora" and value is None:
            set_control(page, "weights", "")
        set_control(page, control, value)
        asked |= ask
        assert figures(page) == [format_time_short(pl.train(**asked).time_s)], control
        assert figures(page) != before, control
        assert not page.error
        if control not in COMMON and value is not None:
            text = "yes" if value is True else "".join(value) if isinstance(value, list) else str(value)
            assert address(page, control) == [text]
    assert "lora" not in page.query_params


def test_several_values_are_compared():
    page = opened(ask="predict", network="resnet50", gpu=["v100-sxm2", "t4"], batch_size="1:4:x2")
    times = [each.time_s for each in pl.predict("resnet50", gpu=["v100-sxm2", "t4"], batch_size="1:4:x2").answers]
    assert figures(page) == [format_time_short(time) for time in times]
    assert list(page.table[0].value["batch"]) == [1, 2, 4] * 2


@pytest.mark.thorough
def test_devices_are_trained_together():
    page = opened(network="resnet50", gpu=["v100-sxm2", "t4"], workers="1,2,4", link="25 GB/s")
    asked = {"workers": [1, 2, 4], "link": "25 GB/s"}
    tables = [pl.train("resnet50", gpu=gpu, **asked) for gpu in ("v100-sxm2", "t4")]
    assert figures(page) == [format_time_short(table.rows[-1].time_s) for table in tables]
    assert list(page.table[1].value["time"]) == pytest.approx([row.time_s for row in tables[0].rows])
    set_control(page, "shown", "t4")
    assert list(page.table[1].value["time"]) == pytest.approx([row.time_s for row in tables[1].rows])
    assert address(page, "shown") == ["t4"]
    set_control(page, "link", "infiniband-edr")
    slower = pl.train("resnet50", gpu="t4", workers=[1, 2, 4], link="infiniband-edr")
    assert list(page.table[1].value["time"]) == pytest.approx([row.time_s for row in slower.rows])
    set_control(page, "workers", "4,2,...,1")
    assert any("4,2,...,1" in unescaped(error.value) for error in page.error)


@pytest.mark.thorough
def test_servers_stand_side_by_side():
    page = opened(ask="serve", network="llama-3-8b", gpu=["h100-sxm", "l40s"], rate="2", num_requests="100")
    answers = [pl.serve("llama-3-8b", gpu=gpu, rate=2, num_requests=100) for gpu in ("h100-sxm", "l40s")]
    medians = [answer.latencies["tpot_s"]["p50"].value for answer in answers]
    assert figures(page) == [format_time_short(median) for median in medians]
    assert list(page.table[0].value["per token median"]) == medians
    assert page.code[2].value == answers[0].launch_command
    set_control(page, "engine", "sglang", "serve")
    assert page.code[2].value.startswith("python -m sglang.launch_server")
    set_control(page, "input_tokens", "many", "serve")
    assert all("no data set is called 'many'" in unescaped(error.value) for error in page.error) and page.error


def test_own_machines_are_ranked():
    page = opened(ask="local", network="llama-3.1-70b", gpu=["rtx3090", "apple-m3-ultra"], weights="q4_k_m")
    ranked = pl.local("llama-3.1-70b", gpu=["rtx3090", "apple-m3-ultra"], weights="q4_k_m")
    assert figures(page) == [f"{format_3_digits(row.tokens_per_s)} tokens/s" for row in ranked.rows]
    set_control(page, "gpu", ["rtx3090"])
    set_control(page, "advise", True, "local")
    set_control(page, "weights", [], "local")
    assert list(page.table[0].value["weights"]) == [
        row.weights for row in pl.local("llama-3.1-70b", gpu="rtx3090", advise=True).rows
    ]


@pytest.mark.thorough
def test_only_videos_have_frames():
    page = opened(ask="diffusion", network="sdxl", gpu=["a100-sxm-80gb"], steps="20")
    assert figures(page) == [format_time_short(pl.diffusion("sdxl", gpu="a100-sxm-80gb", steps=20).time_s)]
    assert key_of("diffusion", "frames") not in widgets(page)
    set_control(page, "network", "wan-2.1-1.3b")
    set_control(page, "frames", "17", "diffusion")
    asked = {"gpu": "a100-sxm-80gb", "steps": 20, "frames": 17}
    assert figures(page) == [format_time_short(pl.diffusion("wan-2.1-1.3b", **asked).time_s)]
    set_control(page, "network", "sdxl")
    assert "frames" not in page.query_params and not page.error
    set_control(page, "image_size", "500", "diffusion")
    assert "width is a multiple of 8" in unescaped(page.error[0].value)


@pytest.mark.thorough
def test_decode_counts_tokens_and_has_a_context():
    page = opened(ask="predict", network="llama-3-8b", gpu=["h100-sxm"], phase="decode", batch_size="8")
    assert any("tokens/s" in text for text in texts(page))
    assert key_of("predict", "sequence_length") not in widgets(page)
    set_control(page, "context", 1000, "predict")
    asked = {"gpu": "h100-sxm", "phase": "decode", "batch_size": 8, "context": 1000}
    assert figures(page) == [format_time_short(pl.predict("llama-3-8b", **asked).time_s)]
    set_control(page, "phase", [], "predict")
    assert "context" not in page.query_params and not page.error
    assert key_of("predict", "sequence_length") in widgets(page)
    set_control(page, "network", "alexnet")
    assert key_of("predict", "sequence_length") not in widgets(page)


@pytest.mark.thorough
def test_every_question_keeps_its_controls_and_has_networks_of_its_own():
    page = opened(network="vgg16", gpu=["t4"], batch_size="8")
    choose(page, "serve")
    assert page.session_state[NETWORK_KEY] == "llama-3-8b" and "vgg16" not in widgets(page)[NETWORK_KEY].options
    assert address(page, "rate") == ["5"]
    choose(page, "diffusion")
    assert widgets(page)[NETWORK_KEY].label == "Pipeline" and address(page, "network") == ["sdxl"]
    choose(page, "train")
    assert address(page, "batch_size") == ["8"] and address(page, "gpu") == ["t4"]


def test_a_network_of_images_does_not_start_with_the_options_of_a_language_model():
    page = choose(opened(ask="predict", network="resnet50", gpu=["t4"]), "train")
    assert figures(page) == [format_time_short(pl.train("resnet50", gpu="t4").time_s)]


def test_devices_side_by_side_with_the_reason_of_a_failure():
    page = opened(network="resnet50", gpu=["v100-sxm2", "k40m", "t4"], precision="fp16")
    assert len(figures(page)) == 2
    assert any("no fp16 peak" in text for text in texts(page))
    assert list(page.table[0].value["device"]) == ["v100-sxm2", "t4"]
    set_control(page, "shown", "k40m")
    assert any("no fp16 peak" in unescaped(error.value) for error in page.error)


def test_a_network_that_does_not_fit_says_so():
    page = opened(network="vgg16", gpu=["gtx780ti"], batch_size="512")
    assert "DOES NOT FIT" in unescaped(page.error[0].value)


def test_bounds_are_marked_next_to_forecasts():
    page = opened(ask="predict", network="resnet50", gpu=["t4", "xeon-8380"], precision="fp64")
    cards = [text for text in texts(page) if "a bound from the data sheet, not a forecast" in text]
    assert len(cards) == 1


def test_no_device_is_selected():
    page = set_control(opened(), "gpu", [])
    assert [each.value for each in page.info] == ["Choose a device."]
    assert address(page, "gpu") == [""]


@pytest.mark.thorough
def test_calibrations_are_those_of_the_devices():
    page = opened(ask="predict", network="resnet50", gpu=["v100-sxm2", "k40m"], precision="fp32")
    assert widgets(page)[key_of("predict", "calibration")].options == ["default", "k40m-fp32", "v100-sxm2-fp32"]
    set_control(page, "gpu", ["v100-sxm2"])
    set_control(page, "calibration", "v100-sxm2-fp32", "predict")
    named = pl.predict("resnet50", gpu="v100-sxm2", precision="fp32", calibration="v100-sxm2-fp32")
    assert figures(page) == [format_time_short(named.time_s)]
    set_control(page, "gpu", ["k40m"])
    assert address(page, "gpu") == ["k40m"] and "calibration" not in page.query_params


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "query",
    [
        {"ask": ["train"], "network": ["alexnet"], "gpu": ["t4", "k80-die"], "batch_size": ["8"], "shown": ["k80-die"],
         "workers": ["1,2"], "link": ["25 GB/s"], "strategy": ["zero-1"], "communication": ["collective=ring"],
         "samples": ["1.28M"], "epochs": ["90"], "price": ["1 USD/h"]},
        {"ask": ["serve"], "network": ["llama-3-8b"], "gpu": ["h100-sxm"], "concurrency": ["4"], "tensor": ["2"],
         "num_requests": ["20"], "input_tokens": ["100:20"], "engine": ["sglang"]},
        {"ask": ["local"], "network": ["llama-3.1-8b"], "gpu": ["rtx3060"], "weights": ["q6_k,q4_k_m"],
         "context": ["512"], "cpu_cache": ["yes"]},
        {"ask": ["profile"], "gpu": ["t4"], "precision": ["fp16"]},
    ],
    ids=["train", "serve", "local", "profile"],
)  # fmt: skip
def test_a_shared_address_restores_every_control(query):
    page = opened(**query)
    assert not page.warning and not page.error
    view, problems = read_query(query)
    assert problems == []
    assert view.to_query() == query
    for name in view.options:
        assert key_of(view.asked, name) in widgets(page)
    choose(page, "predict" if view.asked != "predict" else "train")
    choose(page, view.asked)
    assert {name: address(page, name) for name in query if name != "network"} == {
        name: texts for name, texts in query.items() if name != "network"
    }


def test_a_bad_address_is_reported_once_and_corrected():
    page = opened(ask="local", network="llama-3-8", context="512")
    assert "did you mean llama-3-8b" in unescaped(page.warning[0].value)
    assert address(page, "network") == ["llama-3-8b"] and address(page, "context") == ["512"]
    assert not set_control(page, "context", 1024, "local").warning


def test_more_devices_than_fit_beside_one_another_are_refused():
    assert widgets(opened())[DEVICES_KEY].proto.max_selections == DEVICES_AT_MOST


def dropper(page):
    return next(each for each in page.file_uploader if each.label.startswith("Profile"))


def uploaded(page, name, content):
    if not hasattr(AppTest, "file_uploader"):
        pytest.skip("this version of Streamlit cannot upload files in a test")
    dropper(page).set_value((name, content, "application/octet-stream")).run()
    assert not page.exception
    return page


def kernels_of(page):
    return next(table.value for table in page.dataframe if "kernel" in table.value)


def test_a_profile_uses_the_peaks_of_the_device(pyprof_profile):
    page = uploaded(opened(ask="profile", gpu="k40m"), "run.parquet", pyprof_profile)
    frame = kernels_of(page).set_index("kernel")
    assert frame["of peak FLOP/s"]["cudnn::detail::implicit_convolve_sgemm"] == pytest.approx(0.5)
    assert frame["share"]["cudnn::detail::dgrad_alg1_engine"] == pytest.approx(0.5)
    assert any("without start times has no timeline" in unescaped(each.value) for each in page.info)
    # It is kept while another view is shown.
    choose(page, "serve")
    choose(page, "profile")
    assert "cudnn::detail::implicit_convolve_sgemm" in set(kernels_of(page)["kernel"])
    assert "up to 200 MB" in dropper(page).label


def test_a_removed_profile_is_not_shown(pyprof_profile):
    page = uploaded(opened(ask="profile", gpu="k40m"), "run.parquet", pyprof_profile)
    dropper(page).clear().run()
    assert not page.exception and not page.dataframe


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.csv", b"", "empty.csv: the file is empty"),
        ("../../etc/passwd", b"root:x:0:0", "passwd: not a profile that paleo-lite reads"),
        ("cut.json.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03broken", "cut.json.gz"),
        ("x.parquet", b"PAR1 nothing PAR1", "x.parquet"),
    ],
)
def test_files_that_are_not_profiles_show_an_error(name, content, sentence):
    page = uploaded(opened(ask="profile", gpu="k40m"), name, content)
    (error,) = page.error
    assert sentence in unescaped(error.value)
    assert "/tmp" not in error.value and "internal error" not in error.value


@pytest.mark.thorough
@pytest.mark.needs_data
def test_real_profiles_are_shown(request):
    folder = DATA / "profiles"
    page = opened(ask="profile", gpu="k40m")
    for path in (
        folder / "nvprof_gpu_trace_csv" / "matrixMul_trace.csv",
        folder / "torch_chrome_trace" / "critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
        folder / "ncu_csv" / "saxpy.csv",
    ):
        uploaded(page, path.name, path.read_bytes())
        assert not page.error
        assert len(kernels_of(page))


def test_the_download_contains_the_table():
    from paleo_lite.reporting.predictions import prediction_page

    out = io.StringIO()
    prediction_page(pl.predict("resnet50", gpu="t4", memory=True), None, memory=True).write_csv(out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    page = opened(ask="predict", network="resnet50", gpu=["t4"])
    labels = [button.proto.label for button in page.get("download_button")]
    assert labels == ["Download table (CSV)"]
    layers = next(frame.value for frame in page.dataframe if "layer" in frame.value)
    assert [row["name"] for row in rows] == [*layers["layer"], "overhead"]
