"""Time and memory of pipelines.

Tests: timing/pipelines.py, timing/pipeline_run.py, timing/pipeline_prediction.py, reporting/pipelines.py,
api/pipelines.py, architectures/pipelines/counts.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from asked import predict_any
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.timing.pipelines import on_several_devices
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.units import format_si

SD = {"gpu": "a100-sxm-80gb", "precision": "fp16"}


def test_time_and_energy_are_the_sums_of_the_parts() -> None:
    prediction = predict_any("sd-1.5", **SD)
    rows = prediction.rows()
    assert prediction.time_s == pytest.approx(sum(row["runs"] * row["run_s"] for row in rows))
    assert prediction.energy_j == pytest.approx(sum(row["energy_j"] for row in rows))
    assert prediction.time_per_image_s == prediction.time_s
    low_s, high_s = prediction.interval
    assert low_s < prediction.time_s < high_s and prediction.bound_s < prediction.time_s
    document = prediction.to_dict()
    assert [name for name in document if not hasattr(prediction, name)] == []
    assert document["steps"] == prediction.steps and document["time_model"] == prediction.time_model


def test_the_bound_of_a_picture_is_below_what_was_measured() -> None:
    """FLUX.1-dev, 28 steps, "BF16 + compile" on an L20: 20.24 s (https://github.com/xlite-dev/flux-faster)."""
    measured_s = 20.24
    flux = predict_any("flux.1-dev", gpu="l20", precision="bf16", steps=28, execution="compiled")
    low_s, high_s = flux.interval
    assert flux.bound_s < measured_s < flux.time_s and low_s < measured_s < high_s
    above = predict_any("sd-1.5", **SD)
    below = predict_any("flux.1-dev", gpu="rtx3060", precision="bf16", steps=4, execution="compiled")
    assert below.interval[0] < below.bound_s
    (note,) = [note for note in below.notes if "below" in note]
    assert note.startswith(f"the interval begins below the {format_si(below.bound_s, 's')} of the data sheet")
    assert above.bound_s < above.interval[0] and not [note for note in above.notes if "below" in note]


def test_the_denoiser_takes_the_time_of_its_steps() -> None:
    few, many = (predict_any("sd-1.5", steps=steps, **SD) for steps in (10, 40))
    of_denoiser = [
        next(part for part in prediction.parts if part.part.role == "denoiser").time_s for prediction in (few, many)
    ]
    assert of_denoiser[1] == pytest.approx(4 * of_denoiser[0])


def test_offloaded_parts_take_less_memory_and_more_time() -> None:
    """FLUX.1-dev has 33.8 GB of parameters in 16 bits, of which the transformer has 23.8 GB."""
    resident, model, sequential = (
        predict_any("flux.1-dev", gpu="rtx4090", precision="bf16", steps=4, offload=offload)
        for offload in ("none", "model", "sequential")
    )
    assert resident.memory.parameters_bytes == pytest.approx(33.8e9, rel=0.01)
    assert not resident.memory.fits and sequential.memory.fits
    assert model.memory.total_bytes > 2 * 11_901_408_320
    assert resident.time_s < model.time_s < sequential.time_s
    assert resident.memory.by_offload["model"] == model.memory.total_bytes
    # PCIe 4.0 x16 carries 31.5 GB/s at most: once the parameters, or those of a part for each of its runs.
    assert 33.8e9 / 31.5e9 < sum(part.transfer_s for part in model.parts) < 33.8e9 / 15e9
    for once, each_time in zip(model.parts, sequential.parts, strict=True):
        assert each_time.transfer_s == pytest.approx(once.transfer_s * once.runs)


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    largest = predict_any("sd-1.5", **SD).memory.largest_batch
    assert predict_any("sd-1.5", batch_size=largest, **SD).memory.fits
    assert not predict_any("sd-1.5", batch_size=largest + 1, **SD).memory.fits


def test_sdxl_decodes_in_fp32_where_fp16_overflows() -> None:
    precisions = {part.part.role: part.prediction.precision for part in predict_any("sdxl", **SD).parts}
    assert precisions["denoiser"] == "fp16" and precisions["decoder"] == "fp32"


def test_options_of_pipelines_are_refused_elsewhere() -> None:
    with pytest.raises(BadValue, match="--steps is for pipelines"):
        pl.layers("resnet50", steps=20)
    with pytest.raises(BadValue, match="resnet50 is not a pipeline: only pipelines take width x height"):
        predict_any("resnet50", gpu="t4", image_size="224x448")
    with pytest.raises(UnknownName, match="offload of a pipeline"):
        predict_any("sd-1.5", offload="cpu", **SD)


def test_other_commands_say_what_a_pipeline_is() -> None:
    with pytest.raises(BadValue, match="sdxl is a pipeline of several networks"):
        pl.layers(["sdxl", "vgg16"])
    with pytest.raises(UnknownName, match=r"did you mean flux\.1-dev"):
        predict_any("flux.1-dex", gpu="t4")


def test_the_command_prints_parts_and_json() -> None:
    arguments = ["diffusion", "flux.1-dev", "--gpu", "rtx4090", "--precision", "bf16", "--steps", "28"]
    text = CliRunner().invoke(main, [*arguments, "--image-size", "1024x768", "--memory"]).output
    assert "1024x768, 28 steps" in text and "Time by part" in text and "sequential" in text
    answer = json.loads(CliRunner().invoke(main, [*arguments, "--batch-size", "2", "--format", "json"]).output)
    assert answer["images"] == 2 and answer["time_s"] == pytest.approx(2 * answer["time_per_image_s"])
    assert {"interval", "energy_j", "parts", "memory", "fits"} <= answer.keys()


def test_an_answer_needs_no_torch() -> None:
    code = (
        "import sys, paleo_lite as pl; pl.diffusion('flux.1-dev', gpu='rtx4090', precision='bf16'); "
        "print(sorted({'torch', 'diffusers', 'pandas', 'scipy'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_tiles_take_less_memory_and_more_time() -> None:
    """A picture of 2048 pixels has 3 x 3 tiles of 1024 with 768 from one to the next; the last have 512."""
    whole, tiled = (predict_any("flux.1-dev", image_size=2048, tiled=tiled, steps=4, **SD) for tiled in (False, True))
    decoder = [part for part in tiled.parts if part.part.role == "decoder"]
    assert sorted(part.runs for part in decoder) == [1, 2, 2, 4]
    decoded = {part.part.descriptor for part in decoder}
    assert (
        decoded == {"sd-3-vae"} and sum(part.parameters_bytes for part in decoder) == whole.parts[-1].parameters_bytes
    )
    assert sum(part.time_s for part in decoder) > whole.parts[-1].time_s
    assert tiled.memory.by_offload["model"] <= whole.memory.by_offload["model"]
    small = predict_any("flux.1-dev", image_size=1024, tiled=True, steps=4, **SD)
    assert sum(part.part.role == "decoder" for part in small.parts) == 1


def test_cached_steps_are_not_computed() -> None:
    every, cached = (predict_any("flux.1-dev", steps=28, step_caching=factor, **SD) for factor in (None, 2.0))
    assert (every.denoiser.runs, cached.denoiser.runs) == (28, 14)


def test_four_bit_weights_take_a_quarter_of_the_memory() -> None:
    """The matrices of FLUX.1's transformer have 23.8 GB in 16 bits."""
    wide, nf4, gguf = (predict_any("flux.1-dev", weights=name, **SD).denoiser for name in (None, "nf4", "q4_k_m"))
    assert wide.parameters_bytes == pytest.approx(23.8e9, rel=0.01)
    assert 0.25 * wide.parameters_bytes < nf4.parameters_bytes < 0.29 * wide.parameters_bytes
    assert 0.25 * wide.parameters_bytes < gguf.parameters_bytes < 0.35 * wide.parameters_bytes


def test_tensorrt_is_an_engine() -> None:
    engine, tensorrt = (predict_any("sdxl", execution=name, **SD).time_s for name in ("engine", "tensorrt"))
    assert tensorrt == engine
    with pytest.raises(UnknownName, match="execution"):
        predict_any("resnet50", gpu="t4", execution="tensorrt")


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("svd", {"tiled": True}, "the decoder of svd has no tiles"),
        ("sdxl", {"step_caching": 0.5}, "--step-caching must be a number of steps"),
        ("sdxl", {"steps": 4, "step_caching": 5}, "to the 4 steps"),
        ("flux.1-dev", {"ulysses": 48}, "--ulysses must divide the 24 heads"),
    ],
)
def test_bad_options_get_one_sentence(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        predict_any(name, **SD, **options)


def test_sizes_that_diffusers_resizes_are_noted() -> None:
    """PixArt-Sigma's pipeline has use_resolution_binning=True, Stable Diffusion 3's has none."""
    notes = {
        (name, size): " ".join(predict_any(name, image_size=size, **SD).notes)
        for name, size in (("pixart-sigma", 512), ("pixart-sigma", 1024), ("sd-3-medium", 512))
    }
    resized = {question for question, text in notes.items() if "use_resolution_binning=False" in text}
    assert resized == {("pixart-sigma", 512)}


def test_layers_counts_the_parts_and_their_products() -> None:
    """SDXL's denoiser has 6,761,236,398,080 multiply-accumulates per step, as torch's FlopCounterMode counts."""
    counts = pl.layers("sdxl")
    parts = {row["network"]: row for row in counts.rows()}
    assert parts["sdxl-unet"]["macs"] == 6_761_236_398_080 and parts["sdxl-unet"]["runs"] == 50
    for row in (*counts.rows(), counts.total):
        assert sum(row[name] for name in ("convolution", "attention", "linear", "other")) == pytest.approx(1)
    assert parts["sd-vae"]["convolution"] > 0.9 and parts["clip-l"]["linear"] > 0.9
    text = CliRunner().invoke(main, ["layers", "sdxl", "--image-size", "1024x768", "--steps", "4"]).output
    assert "1024x768, 4 steps" in text and "Share of products by part" in text
    with pytest.raises(BadValue, match="`--convention` cannot be used with"):
        pl.layers("sdxl", convention="macs")
    with pytest.raises(BadValue, match="--steps is for pipelines"):
        pl.layers("vgg16", steps=4)


def test_training_is_that_of_the_denoiser() -> None:
    """The U-Net of SDXL has 2,567,463,684 parameters."""
    training = predict_any("sdxl", phase="training", image_size="1024x768", batch_size=2, **SD)
    assert training.parameters == 2_567_463_684 and training.phase == "training"
    assert any("text and pictures are encoded beforehand" in note for note in training.notes)
    options = TrainingOptions("adamw", lora_rank=16)
    tuned = predict_any("sdxl", phase="training", image_size="1024x768", batch_size=2, training=options, **SD)
    assert tuned.memory.memory.optimizer_bytes < 0.1 * training.parameters
    with pytest.raises(BadValue, match="--steps is for `--phase inference` of sdxl"):
        predict_any("sdxl", phase="training", steps=4, **SD)


def test_intervals_of_training_are_not_those_of_measured_inference() -> None:
    """Only batches at inference are measured on an H100."""
    asked = {"gpu": "h100-sxm", "precision": "bf16"}
    inference = predict_any("sdxl", **asked)
    training = predict_any("sdxl", phase="training", **asked)
    ratios = [answer.interval[1] / answer.interval[0] for answer in (inference, training)]
    assert ratios[1] > ratios[0]


def test_the_report_has_parts_products_and_memory(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    question = pl.Diffusion("sd-1.5", image_size="512x768", steps=20, **SD)
    report = pl.report(question, tmp_path / "report.html")
    prediction = predict_any("sd-1.5", image_size="512x768", steps=20, **SD)
    figures = {figure.name: figure.value for figure in report.page.answers}
    assert figures["Time of the batch"] == format_si(prediction.time_s, "s")
    titles = [table.title for section in report.page.sections for table in section.tables]
    assert titles[:3] == ["Time by part", "Share of products by part", "Peak memory"]
    assert "--image-size 512x768 --steps 20" in report.page.provenance.command


def test_devices_that_share_a_sequence_draw_less_each_and_more_together() -> None:
    """ML.ENERGY's H100 draw 687 W alone and 490 W in eights with FLUX.1-dev: they wait for exchanges."""
    asked = {"gpu": "h100-sxm", "precision": "bf16", "steps": 50}
    alone, eight = predict_any("flux.1-dev", **asked), predict_any("flux.1-dev", ulysses=8, **asked)
    assert alone.power_w > 1.15 * eight.power_w and eight.energy_j > alone.energy_j
    low_j, high_j = eight.energy_interval_j
    assert low_j < eight.energy_j < high_j
    assert on_several_devices(alone, eight.split).energy_j == pytest.approx(eight.energy_j)
    assert sum(eight.parts_energy_j) == pytest.approx(eight.energy_j)


def test_the_energy_at_the_meter_has_all_devices_and_their_hosts() -> None:
    asked = {"gpu": "h100-sxm", "precision": "bf16", "ulysses": 2}
    alone = predict_any("sd-3.5-medium", **asked)
    metered = predict_any("sd-3.5-medium", host_watts=100, pue=1.2, electricity=0.2, **asked)
    assert alone.site is None
    assert metered.site.energy_j == pytest.approx(1.2 * (alone.energy_j + 2 * 100 * alone.time_s))
    assert metered.site.usd == pytest.approx(0.2 * metered.site.energy_j / 3.6e6)


@pytest.mark.thorough
def test_attention_of_cards_without_fused_kernels_is_that_of_separate_products() -> None:
    """AOTriton 0.10b supports gfx1201, the chip of the RX 9070 XT; gfx1101, that of the RX 7800 XT, experimentally
    (pytorch/pytorch, pull request 156499)."""
    asked = {"precision": "fp16", "steps": 20}
    eager, default, fused = (
        predict_any("sd-1.5", gpu="rx7800xt", attention=name, **asked) for name in ("eager", None, "sdpa")
    )
    assert default.time_s == eager.time_s > 1.2 * fused.time_s
    assert any("`--attention sdpa` is with its experimental kernels" in note for note in default.notes)
    supported = predict_any("sd-1.5", gpu="rx9070xt", **asked)
    assert supported.time_s == predict_any("sd-1.5", gpu="rx9070xt", attention="sdpa", **asked).time_s
    assert not any("separate products" in note for note in supported.notes)


def test_a_video_that_does_not_fit_is_decoded_in_tiles_first() -> None:
    facts = dict(pl.diffusion("hunyuanvideo", gpu="h100-sxm").document().facts)
    assert re.fullmatch(r"DOES NOT FIT, .*; fits with `--tiled`: 55.\d+ GB, 1 times as long", facts["peak memory"])
    rows = pl.diffusion("hunyuanvideo", gpu=["h100-sxm", "a100-sxm-80gb"]).document().notes
    assert any("--tiled decodes in less memory; fits with no --offload alone" in note for note in rows)


@pytest.mark.parametrize(("gpu", "precision"), [("rtx4090", "bf16"), ("apple-m4-max", "fp16"), ("k80", "fp32")])
def test_pictures_have_the_half_precision_of_their_device(gpu: str, precision: str) -> None:
    assert pl.diffusion("sd-1.5", gpu=gpu, steps=1).precision == precision


def test_hours_cost_and_energy_of_a_number_of_pictures() -> None:
    asked = {"gpu": "h100-sxm", "steps": 4, "batch_size": 4, "samples": "10k", "price": "2 USD/h"}
    answer = pl.diffusion("sd-1.5", **asked)
    run = answer.to_dict()["run"]
    assert run["hours"] == pytest.approx(10_000 * answer.time_per_image_s / 3600)
    assert run["cost_usd"] == pytest.approx(2 * run["hours"])
    assert run["kwh"] == pytest.approx(10_000 * answer.energy_j / 4 / 3.6e6)
    assert f"10,000 images: {run['hours']:.4g} hours" in dict(answer.document().facts)["whole run"]


def test_hours_and_cost_of_pictures_on_several_devices() -> None:
    scaled = pl.diffusion("sd-1.5", gpu="h100-sxm", steps=4, batch_size=2, samples=1000, workers=[1, 2])
    one, two = scaled.rows()
    assert two["hours"] == pytest.approx(500 * two["time_s"] / 3600)
    assert two["cost_usd"] == pytest.approx(2 * two["hours"] * one["cost_usd"] / one["hours"])
    without = pl.diffusion("sd-1.5", gpu="h100-sxm", steps=4, batch_size=2, workers=[1, 2]).document().tables[0]
    assert not {"hours", "cost_usd", "kwh"} & {column.key for column in without.columns}
    with pytest.raises(BadValue, match="is for pictures and for training"):
        pl.diffusion("sd-1.5", gpu="h100-sxm", phase="forward", samples=10)
    forward = pl.diffusion("sd-1.5", gpu="h100-sxm", phase="forward")
    assert forward.time_s < 0.6 * pl.diffusion("sd-1.5", gpu="h100-sxm", phase="training").time_s


def test_a_decoder_of_the_first_and_of_later_frames_has_its_parameters_once():
    """The decoder of Wan 2.1 runs once for the first frame, and once for every four others, with the same weights."""
    prediction = pl.diffusion("wan-2.1-1.3b", gpu="h100-sxm")
    encoder, denoiser, first, later = (part.prediction.parameters for part in prediction.parts)
    assert first == later
    assert prediction.parameters == encoder + denoiser + first
