"""Predictions: a published table, the paper arithmetic on a real network, and what a prediction says of itself.

Tests: timing/notes.py, timing/predicting.py, timing/prediction.py, timing/layer_rows.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue, UnknownName, UnknownPrecision, UnsupportedPhase
from paleo_lite.machines import find_device
from paleo_lite.machines.registry import limit_power

# The table of a course exercise ("PALEO, FLOPs, Platform Percent of Peak", 2022): FLOPs of Lu et al. (2017) on the
# K80's 8.73 and 2.91 TFLOPS.
EXERCISE = [
    ("15503M", "fp32", 0.0017758304696449026, 563.1168161001096),
    ("15503M", "fp64", 0.005327491408934708, 187.7056053667032),
    ("1606M", "fp32", 0.00018396334478808707, 5435.865504358655),
    ("1606M", "fp64", 0.0005518900343642612, 1811.9551681195517),
    ("3922M", "fp32", 0.0004492554410080183, 2225.9051504334525),
    ("3922M", "fp64", 0.001347766323024055, 741.9683834778174),
]

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize(("flops", "precision", "time_s", "throughput_per_s"), EXERCISE)
def test_a_flop_count_gives_the_table_of_the_exercise(
    flops: str, precision: str, time_s: float, throughput_per_s: float
) -> None:
    prediction = pl.predict(flops=flops, gpu="k80", precision=precision)
    assert prediction.time_s == time_s
    assert prediction.throughput_per_s == throughput_per_s
    assert prediction.to_dict()["time_model"] == "peak"


def test_conv_layers_by_hand() -> None:
    """VGG16's features.2 on the K80: 2 * 64*3*3 * 64 * 224*224 + bias, against 2.91 TFLOP/s and 480 GB/s."""
    prediction = pl.predict("vgg16", gpu="k80", precision="fp64", time_model="roofline")
    row = next(row for row in prediction.rows() if row["name"] == "features.2")
    outputs = 64 * 224 * 224
    assert row["flops"] == 2 * 64 * 9 * outputs + outputs
    assert row["bytes"] == 8 * (64 * 224 * 224 + 64 * 64 * 9 + 64 + outputs)
    assert row["time_s"] == max(row["flops"] / 2.91e12, row["bytes"] / 480e9)
    assert row["bound"] == "compute"


def test_models_order_as_they_must() -> None:
    """peak <= roofline <= serial PPP at 1; a PPP divides; overlapped PPP at 1 is the roofline."""
    times = {
        name: pl.predict("resnet50", gpu="v100-pcie", time_model=name, ppp=1 if name == "ppp" else None).time_s
        for name in ("peak", "roofline", "ppp")
    }
    assert times["peak"] <= times["roofline"] <= times["ppp"]
    assert pl.predict("resnet50", gpu="v100-pcie", ppp=0.5).time_s == pytest.approx(2 * times["ppp"])
    overlapped = pl.predict("resnet50", gpu="v100-pcie", ppp=1, time_model="ppp-overlap")
    assert overlapped.time_s == times["roofline"]


def test_phases_add_up() -> None:
    """training = forward + backward + update; an update moves three times the parameters (PALEO)."""
    parts = {
        p: pl.predict("vgg16", gpu="k40m", phase=p, batch_size=4, time_model="roofline")
        for p in ("forward", "backward", "training")
    }
    update_bytes = 3 * 4 * 138_357_544
    assert parts["training"].bytes == (parts["forward"].bytes or 0) + (parts["backward"].bytes or 0) + update_bytes
    assert parts["training"].flops == parts["forward"].flops + parts["backward"].flops + 2 * 138_357_544
    update_s = parts["training"].time_s - parts["forward"].time_s - parts["backward"].time_s
    assert update_s == pytest.approx(update_bytes / 288e9)


def test_tensor_cores_do_the_matrix_layers_only() -> None:
    prediction = pl.predict("resnet50", gpu="v100-sxm2", precision="fp16", time_model="peak")
    for row, matrix in zip(prediction.rows(), prediction.matrix, strict=True):
        assert row["time_s"] == pytest.approx(row["flops"] / (125e12 if matrix else 15.7e12))
    assert any("fp32 vector peak" in note for note in prediction.notes)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(("board", "die"), [("k80", "k80-die"), ("m60", "m60-die")])
def test_of_a_board_one_device_answers_and_all_at_once_as_throughput(board: str, die: str, precision: str) -> None:
    """Two dies have twice the peak and bandwidth of one: sharing a batch would halve the bound, but for the cache."""
    whole, one = (pl.predict("vgg16", gpu=gpu, precision=precision) for gpu in (board, die))
    assert (whole.time_s, whole.interval, whole.bound_s) == (one.time_s, one.interval, one.bound_s)
    assert one.board is None and one.machine.device_count == 1
    assert whole.to_dict()["gpu"] == die and whole.board["gpu"] == board
    assert whole.board["throughput_per_s"] == 2 * one.throughput_per_s
    bound = pl.predict("vgg16", gpu=board, precision=precision, time_model="bound")
    assert whole.board["bound_s"] == bound.time_s
    assert bound.time_s == pytest.approx(one.bound_s / 2, rel=0.03)
    assert any("2 devices on one board" in note for note in bound.notes)


def test_bound_and_forecast_stand_side_by_side() -> None:
    """The bound is at most the roofline; nothing measured beats it but by an algorithm that computes less."""
    for network, phase in (("resnet50", "inference"), ("alexnet", "training")):
        forecast = pl.predict(network, gpu="titan-rtx", phase=phase, batch_size=8)
        bound = pl.predict(network, gpu="titan-rtx", phase=phase, batch_size=8, time_model="bound")
        roofline = pl.predict(network, gpu="titan-rtx", phase=phase, batch_size=8, time_model="roofline")
        assert forecast.is_forecast and not bound.is_forecast
        assert forecast.bound_s == bound.time_s == bound.bound_s < roofline.time_s
        answer = forecast.to_dict()
        assert (
            answer["bound_s"] == bound.time_s
            and answer["is_forecast"]
            and answer["calibration"] == forecast.calibration
        )
        assert sum(row["bound_s"] for row in forecast.rows()) == pytest.approx(bound.time_s)
        assert sum(forecast.passes_s.values()) == pytest.approx(forecast.time_s)
        assert sum(row["time_s"] for row in forecast.steps()) == pytest.approx(forecast.time_s)
        assert sum(row["bound_s"] for row in forecast.steps()) == pytest.approx(bound.time_s)
        assert "bound='" in repr(forecast) and "interval='" in repr(forecast)


def test_a_device_waits_for_a_host_that_launches_too_slowly() -> None:
    """A host that takes a quarter longer than the device makes it wait for a fifth of the time: 1 - 1 / 1.25."""
    prediction = pl.predict("resnet18", gpu="titan-rtx", phase="training", batch_size=4)
    terms = msgspec.structs.replace(prediction.terms, host_slowdown=1.25)
    waiting = msgspec.structs.replace(prediction, terms=terms)
    passes_s = {name: seconds for name, seconds in prediction.passes_s.items() if name != "overhead"}
    assert waiting.waiting_s == {**{name: pytest.approx(s / 5) for name, s in passes_s.items()}, "overhead": 0.0}


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_a_note_states_how_much_slower_the_host_is(batch_size: int) -> None:
    """Each layer's time contains the wait, so that the slowdown is its ratio to the time of the device alone."""
    prediction = pl.predict("resnet18", gpu="titan-rtx", batch_size=batch_size)
    slowdown = prediction.terms.host_slowdown
    notes = [note for note in prediction.notes if note.startswith("the device waits for the host")]
    assert bool(notes) == (batch_size <= 4) == (slowdown > 1.05)
    for note in notes:
        assert 1.05 < slowdown < 3
        assert note.endswith(f"the step takes {slowdown:.2g} times as long")


def test_an_engine_has_one_count_of_flops() -> None:
    """Llama 3 8B: 32 blocks of 4096 and 14336, 32 heads of 128, 8 of keys, and 128,256 logits of the last token."""
    tokens = 8192
    blocks = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    pairs = tokens * (tokens + 1) // 2  # of a query and a key before it
    attention = 32 * 2 * (2 * 32 * 128) * pairs
    expected = 2 * blocks * tokens + attention + 2 * 4096 * 128_256
    found = pl.predict("llama-3-8b", gpu="h100-sxm", phase="prefill", sequence_length=tokens)
    assert found.flops == expected == sum(row["flops"] for row in found.rows())
    assert found.macs == expected // 2
    assert found.mfu == pytest.approx(expected / 989.4e12 / found.time_s, rel=1e-4)


def test_mfu_is_flops_over_peak_over_time() -> None:
    """PaLM (Chowdhery et al. 2022), appendix B."""
    prediction = pl.predict("vgg16", gpu="k40m", batch_size=32)
    assert prediction.mfu == pytest.approx(prediction.flops / 4.29e12 / prediction.time_s, rel=1e-3)
    assert pl.predict("vgg16", gpu="k40m", convention="macs").mfu is None


def test_a_count_of_macs_is_twice_as_many_flops() -> None:
    """15503M is what Lu et al. 2017 print for VGG16, and counts a multiply-accumulate as 1."""
    macs, flops = pl.predict(macs="15503M", gpu="k80"), pl.predict(flops="15503M", gpu="k80")
    assert macs.time_s == 2 * flops.time_s
    assert any(note.startswith("vgg16 has about this number of multiply-accumulates") for note in flops.notes)
    assert not any("multiply-accumulates" in note for note in macs.notes)
    (head,) = {json.loads((MODELS / "vgg16.json").read_text())["macs"]}
    assert head == 15_470_264_320  # torchvision's own count


def test_macs_against_a_peak_of_flops_is_noted() -> None:
    """A calibrated model counts by itself: how the count is shown changes no time."""
    prediction = pl.predict("vgg19", gpu="k80", convention="macs", time_model="roofline")
    assert any("counts a multiply-accumulate as 1, the peak counts it as 2" in note for note in prediction.notes)
    calibrated = pl.predict("vgg19", gpu="k80", convention="macs")
    assert calibrated.time_s == pl.predict("vgg19", gpu="k80").time_s
    assert not any("multiply-accumulate as 1" in note for note in calibrated.notes)


def test_lu2017_on_vgg16_rounds_to_the_time_of_the_exercise() -> None:
    """The exercise divides the paper's rounded 15503M by the peak; the rules give 15,503,498,216."""
    prediction = pl.predict("vgg16", gpu="k80", convention="lu2017", time_model="peak")
    assert prediction.time_s == pytest.approx(0.0017758304696449026, rel=1e-4)


def test_a_forward_only_convention_refuses_training() -> None:
    with pytest.raises(UnsupportedPhase, match="pthflops convention covers the forward pass only"):
        pl.predict("vgg16", gpu="k80", convention="pthflops", phase="training")


def test_the_json_is_what_the_documents_say() -> None:
    answer = pl.predict("vgg16", gpu="k80", precision="fp64", batch_size=2, time_model="roofline").to_dict()
    documented = (
        "network gpu precision batch_size phase time_model convention flops macs bytes parameters peak_flops ppp "
        "time_s throughput_per_s interval notes by_kind layers"
    )
    assert set(documented.split()) <= set(answer)
    assert set(answer["layers"][0]) == {"name", "kind", "flops", "bytes", "time_s", "bound_s", "bound"}
    assert answer["macs"] == 2 * 15_470_264_320  # torchvision's own 15.47 GMAC
    assert answer["peak_flops"] == 2.91e12
    assert answer["parameters"] == 138_357_544
    assert answer["interval"] is None
    assert sum(row["time_s"] for row in answer["layers"]) == pytest.approx(answer["time_s"])
    assert sum(entry["share"] for entry in answer["by_kind"].values()) == pytest.approx(1)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_throughput_is_batch_over_time() -> None:
    prediction = pl.predict("resnet18", gpu="k40m", batch_size=32)
    assert prediction.throughput_per_s == 32 / prediction.time_s


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True])
def test_an_impossible_batch_is_refused(batch_size: object) -> None:
    with pytest.raises(BadValue, match=r"batch.size`? must be an integer >= 1"):
        pl.predict("alexnet", gpu="k80", batch_size=batch_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"network": "vgg61"}, UnknownName, "did you mean vgg1"),
        ({"precision": "fp8"}, UnknownPrecision, "Tesla K80 .* has no fp8 peak"),
        ({"precision": "fp12"}, UnknownName, "no precision is called 'fp12'"),
        ({"phase": "sideways"}, UnknownName, "phase"),
        ({"convention": "flop"}, UnknownName, "did you mean flops"),
        ({"time_model": "peek"}, UnknownName, "did you mean peak"),
        ({"clock": "turbo"}, BadValue, "clock"),
        ({"unit": "matrix"}, UnknownName, "unit"),
        ({"image_size": 0}, BadValue, r"`--image-size` must be an integer >= 1 \(got 0\)"),
        ({"flops": "15503M"}, BadValue, "one of the three"),
        ({"network": None}, BadValue, "one of the three"),
        ({"network": None, "flops": "0"}, BadValue, "FLOP count must be a number >= 1"),
        ({"network": None, "flops": "-3M"}, BadValue, "FLOP count must be"),
        (
            {"network": None, "flops": "15503M", "time_model": "roofline"},
            BadValue,
            "requires a network: use the peak or ppp model",
        ),
        (
            {"network": None, "flops": "15503M", "phase": "training"},
            BadValue,
            "a bare FLOP count supports inference only",
        ),
        ({"inputs": [(3, 224, 224)]}, BadValue, "--image-size"),
        ({"network": "torchvision.models:vgg16"}, BadValue, "--input 3x224x224"),
    ],
)
def test_impossible_questions_get_one_clear_sentence(options: dict[str, object], error: type, message: str) -> None:
    asked: dict[str, object] = {"network": "vgg16", "gpu": "k80", **options}
    with pytest.raises(error, match=message) as caught:
        pl.predict(**asked)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_huge_batch_overflows_with_a_sentence() -> None:
    with pytest.raises(BadValue, match="overflow 64 bits"):
        pl.predict("vgg16", gpu="k80", batch_size=10**12)


def test_a_traced_network_and_a_device_are_taken_as_they_are() -> None:
    by_name = pl.predict("resnet18", gpu="k40m")
    by_object = pl.predict(find_network("resnet18"), gpu=find_device("k40m"))
    assert np.array_equal(by_name.terms.layers_s, by_object.terms.layers_s)


def test_representations_are_short() -> None:
    text = repr(pl.predict("vgg16", gpu="k80", precision="fp64"))
    assert text.startswith("Prediction(network='vgg16', gpu='k80-die', precision='fp64'")
    assert len(text) < 250


def test_to_frame_has_a_row_per_layer() -> None:
    prediction = pl.predict("vgg16", gpu="k80")
    frame = prediction.to_frame()
    assert list(frame.columns) == ["name", "kind", "flops", "bytes", "time_s", "bound_s", "bound"]
    assert frame.attrs["calibration"] == prediction.calibration and frame.attrs["bound_s"] == prediction.bound_s
    assert frame["time_s"].sum() == pytest.approx(prediction.time_s)


def test_kinds_of_layers_are_listed_by_their_time() -> None:
    times_s = [row["time_s"] for row in pl.predict("vgg16", gpu="k40m").by_kind().values()]
    assert times_s == sorted(times_s, reverse=True)
    assert len(set(times_s)) > 3


@pytest.mark.parametrize(
    "asked, note",
    [
        # The T4's data sheet: boost clock 1.59 GHz, power limit 70 W.
        ({"clock": "5GHz"}, "the clock 5 GHz is above the boost clock of Tesla T4, 1.59 GHz"),
        ({"power_limit": "300W"}, "the power limit 300 W is above that of the data sheet, 70 W"),
        ({"power_limit": "15W"}, "the power limit 15 W is too low for Tesla T4 (70 W)"),
        ({"power_limit": "50W", "time_model": "roofline"}, "the roofline model does not depend on the power limit"),
        ({"power_limit": "50W", "ppp": 0.5}, "the ppp model does not depend on the power limit"),
    ],
)
def test_a_setting_that_the_device_does_not_have_is_noted(asked, note):
    usual = pl.predict("vgg16", gpu="t4", clock="1.5GHz", power_limit=70)
    assert not any("power limit" in each or "clock 1.5" in each for each in usual.notes)
    assert any(each.startswith(note) for each in pl.predict("vgg16", gpu="t4", **asked).notes)


def test_a_limit_above_the_rated_one_changes_no_time():
    """The RTX A2000 has 70 W: its products in fp32 are limited by them, whatever is asked for."""
    times_s = [pl.predict("bert-base", gpu="rtx-a2000", batch_size=16, power_limit=limit).time_s for limit in (70, 150)]
    assert times_s[0] == times_s[1] == pl.predict("bert-base", gpu="rtx-a2000", batch_size=16).time_s


def test_a_power_limit_without_that_of_the_data_sheet_is_noted():
    device = msgspec.structs.replace(find_device("t4"), power=None)
    answer = pl.predict("vgg16", gpu=limit_power(device, 50))
    assert "the power limit changes nothing: that of the data sheet of Tesla T4 is unknown" in answer.notes


def reasons_below_bound(found: pl.Prediction) -> list[str]:
    """Reasons that a note gives for a forecast below its bound, which one gives exactly if it is."""
    notes = [note.partition("faster than the bound: ")[2] for note in found.notes if "faster than the bound" in note]
    assert len(notes) == (found.time_s < found.bound_s), found
    reasons = [reason for note in notes for reason in note.split("; ")]
    assert all(reason.strip() for reason in reasons), found
    return reasons


@pytest.mark.spread(1)
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_forecast_of_layers_is_above_its_bound_or_says_why(phase: str) -> None:
    networks = ["vgg16", "resnet50", "alexnet", "mobilenet_v2", "bert-base"]
    gpus = ["k80-die", "t4", "v100-sxm2", "h100-sxm", "rtx3090", "gtx1080ti"]
    found = [
        pl.predict(network, gpu=gpu, phase=phase, batch_size=batch_size, memory=False)
        for network in networks for gpu in gpus for batch_size in (1, 8, 64)
    ]  # fmt: skip
    said = {reason for each in found for reason in reasons_below_bound(each)}
    # Winograd's algorithm takes 4/9 of the multiplications of a 3x3 convolution (Lavin and Gray 2015).
    assert said == {"convolutions by an algorithm with fewer multiplications"} and len(found) == 90


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize("execution", ["vllm", "sglang", "tensorrt-llm"])
def test_a_forecast_of_an_engine_is_above_its_bound_or_says_why(execution: str) -> None:
    said = set()
    for network in ("mixtral-8x7b", "llama-3-8b"):
        for gpu in ("h100-sxm", "l40s", "a100-sxm-80gb"):
            for batch_size in (1, 8, 64):
                found = pl.predict(
                    network, gpu=gpu, precision="bf16", batch_size=batch_size, engine=execution, phase="decode",
                    context=512, memory=False,
                )  # fmt: skip
                said.update(reason.partition(" (")[0] for reason in reasons_below_bound(found))
    assert {name.partition(":")[0] for name in said} == (set() if execution == "vllm" else {"experts"})


def test_one_token_reads_all_of_its_own_experts() -> None:
    """12.9 of Mixtral's 46.7 billion parameters are active (arXiv 2401.04088), and the L40S reads 864 GB/s.

    Only tokens in a batch can share experts; the 0.13 billion of the table of embeddings are not read.
    """
    one = pl.predict("mixtral-8x7b", gpu="l40s", precision="bf16", engine="sglang", phase="decode", context=512)
    assert one.time_s >= 2 * (12.9e9 - 0.13e9) / 864e9
    assert one.time_s >= one.bound_s and not reasons_below_bound(one)


def test_a_ppp_above_1_is_the_reason_for_a_time_below_the_bound():
    # VGG16's bound counts direct convolution, so only the PPP can lead to a shorter time.
    notes = pl.predict("vgg16", gpu="k80", ppp=1.5).notes
    assert [note for note in notes if note.startswith("faster")] == ["faster than the bound: the PPP of 1.5 is above 1"]


@pytest.mark.parametrize(
    ("network", "options", "is_noted"),
    [
        ("gpt-oss-20b", {"precision": "bf16"}, True),
        ("gpt-oss-20b", {"precision": "bf16", "weights": "mxfp4"}, False),
        ("gpt-oss-20b", {"precision": "bf16", "weights": "int8"}, False),  # named, and therefore wanted
        ("deepseek-v3", {"precision": "fp8"}, False),
        ("deepseek-v3", {"precision": "bf16"}, True),
        ("llama-3-8b", {"precision": "bf16"}, False),
    ],
)
def test_weights_wider_than_the_published_ones_are_noted(network, options, is_noted):
    notes = pl.predict(network, gpu="b200", phase="decode", **options).notes
    assert any("asks for" in note and "publishes" in note for note in notes) == is_noted


def test_utilisation_with_and_without_recomputed_flops() -> None:
    """MFU counts the FLOPs of the model, and HFU those of the second forward pass as well (PaLM, appendix B)."""
    plain, again = (pl.train("alexnet", gpu="a100-sxm-80gb", recompute=recompute) for recompute in (None, "all"))
    assert plain.mfu == plain.hfu
    assert again.mfu == pytest.approx(plain.flops / again.peak.per_s / again.time_s)
    assert again.hfu == pytest.approx(again.flops / again.peak.per_s / again.time_s)
    row = pl.train("alexnet", gpu="a100-sxm-80gb", recompute="all", workers=1).rows[0]
    assert (row.mfu, row.hfu) == pytest.approx((again.mfu, again.hfu), rel=0.01)
    assert dict(again.document().facts)["MFU"].endswith(f"HFU, with those that are computed again, {again.hfu:.1%}")
    assert pl.predict("alexnet", gpu="a100-sxm-80gb").hfu is None
