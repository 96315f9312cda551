"""The page without a browser: every control has its effect, and the displayed numbers equal those of the API.

Tests: web/controls.py, web/offer.py, web/views.py.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from streamlit.testing.v1 import AppTest

import paleo_lite as pl
from measured import DATA
from paleo_lite.api.local import advise_local
from paleo_lite.api.prediction import predict as predict_any
from paleo_lite.api.scaling import scale as scaling
from paleo_lite.distributed.settings import Settings
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.reporting.local import advice_page
from paleo_lite.reporting.serving import serving_page
from paleo_lite.units import format_si
from paleo_lite.web import view as view_module
from paleo_lite.web.controls import KEY
from paleo_lite.web.offer import with_language_model
from paleo_lite.web.view import View

pytestmark = pytest.mark.slow

APP = Path(view_module.__file__).parent / "app.py"


def opened(**query):
    page = AppTest.from_file(str(APP), default_timeout=60)
    for name, value in query.items():
        page.query_params[name] = value
    return page.run()


def address(page, name):
    """Return the values of a query parameter; Streamlit's tests return one value as text or list, by version."""
    value = page.query_params[name]
    return list(value) if isinstance(value, list) else [value]


def unescaped(text):
    return text.replace("\\", "")


def set_control(page, name, value):
    found = [
        widget
        for kind in (page.selectbox, page.multiselect, page.number_input, page.text_input, page.radio)
        for widget in kind
        if widget.key == KEY + name
    ]
    assert len(found) == 1
    found[0].set_value(value).run()
    assert not page.exception
    return page


def times(page):
    return [metric.value for metric in page.metric]


BASE = {"gpu": "v100-sxm2", "precision": "fp32", "batch_size": 32, "phase": "inference"}


@pytest.mark.parametrize(("phase", "unit"), [("decode", "tokens/s"), ("prefill", "samples/s")])
def test_a_card_counts_tokens_where_the_command_does(phase, unit):
    asked = {"network": "llama-3-8b", "gpu": "h100-sxm", "precision": "bf16", "batch": "8", "phase": phase}
    page = opened(**asked)
    assert not page.exception
    (card,) = [unescaped(each.value) for each in page.markdown if "at 90%" in each.value and "bound" in each.value]
    assert unit in card


def test_every_control_of_one_device_changes_the_result():
    """Controls are set one after the other and keep their values."""
    page, asked, seen = opened(), {"network": "resnet50", **BASE}, []
    for control, value, ask in (
        ("network", "alexnet", {"network": "alexnet"}),
        ("gpu", ["t4"], {"gpu": "t4"}),
        ("precision", "fp16", {"precision": "fp16"}),
        ("batch", 64, {"batch_size": 64}),
        ("phase", "training", {"phase": "training"}),
        ("model", "roofline", {"time_model": "roofline"}),
        ("model", "peak", {"time_model": "peak"}),
        ("model", "ppp", {"time_model": None, "ppp": 0.5}),
    ):
        seen.append(times(page))
        set_control(page, control, value)
        asked |= ask
        assert times(page) == [format_si(pl.predict(**asked).time_s, "s")] != seen[-1], control
        assert not page.error
        assert address(page, control) == ([str(value)] if not isinstance(value, list) else value)


def test_only_language_models_have_a_control_for_tokens():
    page = opened(network="gpt2", gpu=["t4"], precision="fp16", batch=8)
    asked = {"gpu": "t4", "precision": "fp16", "batch_size": 8, "phase": "decode"}
    set_control(page, "phase", "decode")
    set_control(page, "tokens", 100)
    assert times(page) == [format_si(pl.predict("gpt2", context=100, **asked).time_s, "s")] and not page.error
    set_control(page, "view", "scaling")
    set_control(page, "workers", "2")
    set_control(page, "link", "pcie3-x16")
    (row,) = scaling("gpt2", workers=2, link="pcie3-x16", context=100, scaling="weak", **asked)
    assert table_of(page)["token"][0] == pytest.approx(row.time_s) and not page.error
    set_control(page, "view", "time")
    set_control(page, "network", "alexnet")
    assert "tokens" not in {widget.key.removeprefix(KEY) for widget in page.number_input}
    assert address(page, "tokens") in ([], ["0"])


def test_half_the_ppp_doubles_the_time():
    """PALEO's model: (FLOPs / peak + bytes / bandwidth) / PPP."""
    page = set_control(opened(), "model", "ppp")
    at_half = pl.predict("resnet50", **BASE, ppp=1.0).time_s / 0.5
    assert times(page) == [format_si(at_half, "s")]
    set_control(page, "ppp", 0.25)
    assert times(page) == [format_si(2 * at_half, "s")]


def test_controls_that_do_not_apply_are_hidden_or_disabled():
    def drawn():
        kinds = page.number_input, page.selectbox, page.text_input
        return {widget.key.removeprefix(KEY): widget.disabled for kind in kinds for widget in kind}

    page = opened()
    assert not {"ppp", "workers", "link"} & set(drawn()) and not any(drawn().values())
    set_control(page, "model", "ppp")
    assert [name for name, disabled in drawn().items() if disabled] == ["calibration"] and "ppp" in drawn()
    set_control(page, "view", "scaling")
    assert {"workers", "link", "price"} <= set(drawn())
    timing = {"batch", "phase", "model", "calibration"}
    for view, shown, hidden in (
        ("serving", {"network", "precision", "rate"}, timing),
        ("pictures", {"generator", "precision", "size"}, timing | {"network"}),
        ("local", {"network", "execution", "weights", "context"}, timing | {"precision"}),
        ("profile", {"precision"}, timing | {"network"}),
    ):
        set_control(page, "view", view)
        assert shown <= set(drawn()) and not hidden & set(drawn()), view
    set_control(page, "view", "time")
    assert {"network", "precision"} | timing <= set(drawn()) and address(page, "model") == ["ppp"]


def test_a_calibration_is_used_for_its_own_device_only():
    page = set_control(opened(gpu=["v100-sxm2", "k40m"]), "calibration", "v100-sxm2-fp32")
    (box,) = [box for box in page.selectbox if box.key == KEY + "calibration"]
    assert box.options == ["that of the device", "k40m-fp32", "v100-sxm2-fp32"]
    named = pl.predict("resnet50", calibration="v100-sxm2-fp32", **BASE)
    other = pl.predict("resnet50", **{**BASE, "gpu": "k40m"})
    assert times(page) == [format_si(each.time_s, "s") for each in (named, other)]
    set_control(page, "gpu", ["k40m"])
    assert address(page, "gpu") == ["k40m"] and "calibration" not in page.query_params


def table_of(page, number=0):
    return page.table[number].value


SCALED = {"workers": [1, 2, 4, 8, 16, 32], "link": "infiniband-edr", "batch_size": 32, "gpu": "v100-sxm2"}


def test_every_control_of_scaling_changes_the_result():
    """Controls are set one after the other and keep their values."""
    page, asked = opened(view="scaling", workers="1,2,4,...,32"), {"network": "resnet50", **SCALED}
    for control, value, ask in (
        ("workers", "1,2,4", {"workers": [1, 2, 4]}),
        ("link", "ethernet-10", {"link": "ethernet-10"}),
        ("scaling", "strong", {"scaling": "strong"}),
        ("collective", "one-to-all", {"settings": Settings(collective="one-to-all")}),
        ("batch", 16, {"batch_size": 16}),
        ("gpu", ["t4"], {"gpu": "t4"}),
        ("network", "vgg16", {"network": "vgg16"}),
        ("collective", "", {"settings": Settings()}),
        ("strategy", "zero-3", {"strategy": "zero-3"}),
    ):
        before = list(table_of(page)["step"])
        set_control(page, control, value)
        asked |= ask
        rows = scaling(**asked).rows
        table = table_of(page)
        assert list(table["workers"]) == [row.workers for row in rows], control
        assert list(table["step"]) == pytest.approx([row.time_s for row in rows])
        assert list(table["step"]) != before
        intervals = [row.interval and pytest.approx(row.interval) for row in rows]
        assert list(table["at 90%"]) == intervals
        assert list(table["efficiency"]) == pytest.approx([row.efficiency for row in rows])


def test_several_devices_follow_the_phase():
    page = opened(view="scaling", network="llama-3-8b", gpu=["h100-sxm"], precision="bf16", workers="1,2,4")
    (box,) = [box for box in page.selectbox if box.key == KEY + "phase"]
    assert box.options == ["training", "prefill", "decode"]
    assert box.value == "training"
    asked = {"gpu": "h100-sxm", "precision": "bf16", "workers": [1, 2, 4], "batch_size": 32, "scaling": "weak",
             "link": "infiniband-edr"}  # fmt: skip
    for phase, heading in (("training", "step"), ("prefill", "first token"), ("decode", "token")):
        set_control(page, "phase", phase)
        rows = scaling("llama-3-8b", phase=phase, **asked).rows
        assert list(table_of(page)[heading]) == pytest.approx([row.time_s for row in rows]), phase
    (box,) = [box for box in page.selectbox if box.key == KEY + "strategy"]
    assert box.disabled
    set_control(page, "view", "time")
    assert address(page, "phase") == ["decode"]


def test_numbers_of_workers_that_are_not_possible_are_named():
    """Llama 3 8B has 32 attention heads, which 64 devices cannot share."""
    page = opened(
        view="scaling", network="llama-3-8b", gpu=["h100-sxm"], precision="bf16", phase="prefill", workers="2,64"
    )
    assert not page.error
    assert list(table_of(page)["workers"]) == [2]
    captions = [unescaped(caption.value) for caption in page.caption]
    assert any("left out: 64 workers: " in caption and "32 attention heads" in caption for caption in captions)
    assert any("--tensor 2 " in code.value for code in page.code)
    set_control(page, "workers", "64")
    assert any("32 attention heads" in unescaped(error.value) for error in page.error)


def test_cost_is_hours_times_workers_times_price():
    page = set_control(opened(view="scaling", workers="4"), "images", "1.28M")
    first = table_of(page).iloc[0]
    assert first["hours"] == pytest.approx(1.28e6 / first["samples per s"] / 3600)
    assert first["USD"] == pytest.approx(first["hours"] * 4 * 3.06)  # V100 in p3.2xlarge, hardware/v100-sxm2.toml
    set_control(page, "epochs", 10.0)
    set_control(page, "price", "1 USD/h")
    tenfold = table_of(page).iloc[0]
    assert tenfold["USD"] == pytest.approx(10 * first["hours"] * 4 * 1.0)


def test_devices_side_by_side_with_the_reason_of_a_failure():
    page = opened(gpu=["v100-sxm2", "k40m", "t4"], precision="fp16")
    assert len(times(page)) == 2
    assert "no fp16 peak" in unescaped(page.error[0].value)
    table = table_of(page)
    assert list(table["device"]) == ["v100-sxm2", "t4"]
    expected = [
        pl.predict("resnet50", **{**BASE, "gpu": gpu, "precision": "fp16"}).time_s for gpu in ("v100-sxm2", "t4")
    ]
    assert list(table["speed-up"]) == pytest.approx([1, expected[0] / expected[1]])
    set_control(page, "shown", "t4")
    assert any("on Tesla T4, fp16 inference" in unescaped(each.value) for each in page.markdown)
    assert address(page, "shown") == ["t4"]


def test_bounds_are_marked_next_to_forecasts():
    page = opened(gpu=["t4", "xeon-8380"], precision="fp64")
    captions = [unescaped(each.value) for each in page.caption]
    assert any("roofline model" in text and "a bound, not a forecast" in text for text in captions)
    assert any(text.startswith("- calibrated (") for text in captions)


def test_no_device_is_selected():
    page = set_control(opened(), "gpu", [])
    assert [each.value for each in page.info] == ["Choose a device."]
    assert address(page, "gpu") == [""]


def test_batch_sizes_are_limited_by_memory():
    page = opened(view="batches", gpu="gtx780ti", network="vgg19", phase="training")
    frame = page.dataframe[0].value
    largest = pl.predict("vgg19", gpu="gtx780ti", phase="training", fit_batch=True).batch_size
    assert list(frame["batch"]) == [2**power for power in range(12) if 2**power <= largest]
    assert not page.error


def test_bad_input_shows_an_error_message():
    page = set_control(opened(view="scaling"), "workers", "4,2,...,1")
    assert "workers '4,2,...,1'" in unescaped(page.error[0].value)
    set_control(page, "workers", "2")
    set_control(page, "images", "many")
    assert "`--images` must be a number such as 52k" in unescaped(page.error[0].value)


@pytest.mark.parametrize("view", view_module.VIEWS)
def test_a_shared_address_restores_every_control(view):
    asked = View(
        view=view, network="alexnet", gpu=("t4", "k80-die"), precision="fp32", batch=8, phase="training",
        shown="k80-die", model="ppp", ppp=0.7, workers="1,2", link="25 GB/s", scaling="strong", strategy="zero-1",
        collective="ring", images="1.28M", epochs=90.0, price="1 USD/h", rate=2.5, input_tokens="100:20",
        output_tokens="64", tensor=2, pipeline=2, policy="sglang", weights="q6_k", context=512,
    )  # fmt: skip
    page = opened(**asked.to_query())
    assert not page.exception and not page.warning and not page.error
    state = page.session_state
    drawn = {name for name in View.__struct_fields__ if view in ("time", "profile") or name != "shown"}
    values = {name: state[KEY + name] for name in drawn}
    assert values == {
        name: (list(value) if isinstance(value := getattr(asked, name), tuple) else value) for name in drawn
    }


def test_pictures_shows_the_answer_of_the_api():
    page = opened(view="pictures", generator="sd-1.5", gpu=["a100-sxm-80gb"], precision="fp16", steps="20")
    asked = {"gpu": "a100-sxm-80gb", "precision": "fp16", "steps": 20}
    assert unescaped(page.main.markdown[0].value) == f"**{predict_any('sd-1.5', **asked).document().title}**"
    set_control(page, "size", "512x768")
    assert unescaped(page.main.markdown[0].value).endswith(
        f"{predict_any('sd-1.5', image_size='512x768', **asked).document().title}**"
    )
    assert "--image-size 512x768 --steps 20" in page.main.code[0].value
    set_control(page, "size", "500")
    assert "width is a multiple of 8" in unescaped(page.error[0].value)


SERVED = {"gpu": "h100-sxm", "precision": "bf16", "num_requests": 1000}


def test_serving_shows_the_answer_of_the_api():
    page = opened(view="serving", network="llama-3-8b", gpu=["h100-sxm"], precision="bf16")
    asked = {"rate": 5.0, "input_tokens": 1024, "output_tokens": 256}
    for control, value, ask in (
        ("rate", 8.0, {"rate": 8.0}),
        ("output_tokens", "64:16", {"output_tokens": "64:16"}),
        ("policy", "sglang", {"engine": "sglang"}),
        ("tensor", 2, {"tensor": 2}),
        ("pipeline", 2, {"pipeline": 2}),
    ):
        set_control(page, control, value)
        asked |= ask
        title = serving_page(pl.serve("llama-3-8b", **SERVED, **asked)).title
        assert title in [unescaped(markdown.value).strip("*") for markdown in page.markdown], control
        assert not page.error
    launched, command = page.code[0].value, page.code[1].value
    assert launched.startswith("python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --tp-size 2 ")
    assert "--rate 8 --engine sglang --tensor 2 --pipeline 2" in command


def test_serving_divides_experts_and_attention():
    page = opened(view="serving", network="qwen3-30b-a3b", gpu=["h200-sxm"], precision="bf16", tensor="8")
    set_control(page, "expert_parallel", 8)
    set_control(page, "attention_data_parallel", 8)
    asked = {"tensor": 8, "expert_parallel": 8, "attention_data_parallel": 8, "rate": 5.0}
    answer = pl.serve("qwen3-30b-a3b", **{**SERVED, "gpu": "h200-sxm"}, **asked)
    assert serving_page(answer).title in [unescaped(markdown.value).strip("*") for markdown in page.markdown]
    launched, command = page.code[0].value, page.code[1].value
    assert launched == answer.launch_command
    assert "--tensor 8 --expert-parallel 8 --attention-data-parallel 8" in command
    set_control(page, "expert_parallel", 3)
    assert "`--expert-parallel` must divide the 8 devices of `--tensor` (got 3)" in unescaped(page.error[0].value)


def test_own_machine_shows_the_answer_of_the_api():
    page = opened(view="local", network="llama-3.1-70b", gpu=["rtx3090", "apple-m3-ultra"])
    asked = {"weights": "q4_k_m", "context": 4096}
    for control, value in (("weights", "q3_k_m"), ("context", 1024)):
        set_control(page, control, value)
        asked[control] = value
        shown = [unescaped(markdown.value).strip("*") for markdown in page.markdown]
        devices = advise_local("llama-3.1-70b", ["rtx3090", "apple-m3-ultra"], LocalQuestion(**asked))
        assert advice_page(devices).title in shown, control
        one = advise_local("llama-3.1-70b", ["rtx3090"], LocalQuestion(context=asked["context"]))
        assert advice_page(one).title in shown and not page.error
    assert "--engine llama.cpp --context 1024 --advise --weights q3_k_m" in page.code[0].value
    page = opened(view="local", gpu=["rtx3060"])
    assert "needs a language model" in page.info[0].value
    assert unescaped(page.button[0].label) == "Show llama-3.1-8b in q4_k_m on GeForce RTX 3060"  # 4.9 of 12 GB


def test_own_machine_offers_the_formats_of_each_engine():
    page = opened(view="local", network="llama-3.1-8b", gpu=["apple-m3-ultra", "apple-m4-max"], weights="q6_k")
    set_control(page, "execution", "mlx")
    (box,) = [box for box in page.selectbox if box.key == KEY + "weights"]
    assert not any("q6_k" in option for option in box.options) and "weights" not in page.query_params
    assert "--engine mlx --context 4096 --advise" in page.code[0].value and not page.error
    set_control(page, "execution", "exllama")
    assert "is for devices of NVIDIA" in unescaped(page.error[0].value)


def test_serving_names_what_it_needs():
    page = opened(view="serving")
    assert "needs a language model" in page.info[0].value and not page.error
    page.button[0].click().run()
    assert not page.info and not page.error
    shown = [unescaped(markdown.value).strip("*") for markdown in page.markdown]
    asked = {"gpu": "v100-sxm2", "precision": "fp16", "rate": 5.0, "num_requests": 1000}
    assert serving_page(pl.serve("llama-3.2-3b", **asked)).title in shown
    page = opened(view="serving", network="llama-3-70b", gpu=["t4"], precision="fp16")
    assert "leaves no memory for a KV cache" in unescaped(page.error[0].value)
    page = set_control(opened(view="serving", network="llama-3-8b", gpu=["h100-sxm"], precision="bf16"),
                       "input_tokens", "many")  # fmt: skip
    assert "no data set is called 'many'" in unescaped(page.error[0].value)


@pytest.mark.parametrize(
    ("gpu", "network", "precision", "chosen"),
    [
        (("v100-sxm2",), "llama-3.2-3b", "fp16", "v100-sxm2"),  # 16 GB, and no bf16
        (("k80-die", "l4"), "llama-3.1-8b", "bf16", "l4"),  # the K80 has no 16 bits
        (("k80-die",), "llama-3.1-8b", "bf16", "h100-sxm"),
        (("jetson-nano",), "llama-3.2-1b", "fp16", "jetson-nano"),  # 2.5 of 4 GB
    ],
)
def test_the_offered_language_model_fits_into_the_device(gpu, network, precision, chosen):
    offered = with_language_model(View(view="serving", gpu=gpu))
    assert (offered.network, offered.precision, offered.gpu) == (network, precision, (chosen,))


def test_a_bad_address_is_reported_once_and_corrected():
    page = opened(network="resnet5", batch="8")
    assert "did you mean resnet50" in unescaped(page.warning[0].value)
    assert address(page, "network") == ["resnet50"] and address(page, "batch") == ["8"]
    assert not set_control(page, "batch", 16).warning


def test_every_choice_can_be_drawn():
    """Every network and precision gives a result or an error message."""
    page = opened()
    for precision in ("fp64", "tf32", "int8"):
        set_control(page, "precision", precision)
        assert len(page.metric) + len(page.error) >= 1
        assert "internal error" not in " ".join(each.value for each in page.error)


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
    page = uploaded(opened(view="profile", gpu="k40m"), "run.parquet", pyprof_profile)
    frame = kernels_of(page).set_index("kernel")
    assert frame["share of peak"]["cudnn::detail::implicit_convolve_sgemm"] == pytest.approx(0.5)
    assert frame["share"]["cudnn::detail::dgrad_alg1_engine"] == pytest.approx(0.5)
    assert any("without start times has no timeline" in unescaped(each.value) for each in page.info)
    # It is kept while another view is shown.
    set_control(page, "view", "time")
    set_control(page, "view", "profile")
    assert "cudnn::detail::implicit_convolve_sgemm" in set(kernels_of(page)["kernel"])
    assert "up to 200 MB" in dropper(page).label


def test_a_removed_profile_is_not_shown(pyprof_profile):
    page = uploaded(opened(view="profile", gpu="k40m"), "run.parquet", pyprof_profile)
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
    page = uploaded(opened(view="profile", gpu="k40m"), name, content)
    (error,) = page.error
    assert sentence in unescaped(error.value)
    assert "/tmp" not in error.value and "internal error" not in error.value


@pytest.mark.needs_data
def test_real_profiles_are_shown(request):
    folder = DATA / "profiles"
    page = opened(view="profile", gpu="k40m")
    for path in (
        folder / "nvprof_gpu_trace_csv" / "matrixMul_trace.csv",
        folder / "torch_chrome_trace" / "critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
        folder / "ncu_csv" / "saxpy.csv",
    ):
        uploaded(page, path.name, path.read_bytes())
        assert not page.error
        assert len(kernels_of(page))


def test_the_download_contains_the_table():
    import csv

    from paleo_lite.reporting.predictions import prediction_page

    out = io.StringIO()
    prediction_page(pl.predict("resnet50", **BASE), None).write_csv(out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    page = opened()
    labels = [button.proto.label for button in page.get("download_button")]
    assert labels == ["Download table (CSV)"]
    assert [row["name"] for row in rows] == [*page.dataframe[0].value["layer"], "overhead"]
