"""A training step put together: each part from arithmetic by hand, each option from what it must change.

Tests: timing/training.py.
"""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from asked import predict_any
from measured import DATA
from paleo_lite.architectures import find_network
from paleo_lite.calibration.choose import choose_model
from paleo_lite.cli import main
from paleo_lite.counting import count
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import PeakModel, Prediction, RooflineModel, Workload, predict
from paleo_lite.timing.capacity import predict_with_memory
from paleo_lite.timing.memory import peak_memory
from paleo_lite.timing.training import takes_tensor_cores
from paleo_lite.timing.training_options import TrainingOptions

V100 = find_device("v100-sxm2")
RESNET = find_network("resnet50")
PARAMETERS = 25_557_032  # torchvision's own figure


def step(options=None, *, network=RESNET, precision="fp32", batch_size=32, model=None, device=V100):
    asked = Workload(network, precision, batch_size, "training", training=options or TrainingOptions("sgd"))
    return predict(asked, Machine(device), model or RooflineModel())


def seconds(prediction: Prediction, *passes: str) -> float:
    return float(prediction.terms.seconds_of(*passes).sum())


BACKWARD = ("backward_data", "backward_weight")


def test_without_options_it_is_the_prediction_of_a_training_step() -> None:
    for model in ("roofline", "calibrated"):
        plain = pl.predict("resnet50", gpu="v100-sxm2", batch_size=32, phase="training", time_model=model)
        made = predict_any(
            "resnet50", gpu="v100-sxm2", batch_size=32, phase="training", time_model=model,
            training=TrainingOptions("sgd"),
        )  # fmt: skip
        assert made.time_s == plain.time_s
        assert made.intervals == plain.intervals
        assert np.array_equal(made.terms.layers_s, plain.terms.layers_s)


def test_the_parts_are_those_of_the_step() -> None:
    made = step()
    assert made.time_s == pytest.approx(seconds(made, "forward", *BACKWARD, "update"))
    assert len(made.terms.seconds_of(*BACKWARD)) == len(RESNET.layers)
    assert made.interval is None and seconds(made, "recompute") == 0


UPDATES = [
    # numbers read and written per parameter: weight, gradient and state in; weight and state out
    ("fp32", TrainingOptions("sgd"), 4 * (2 + 1), 2),
    ("fp32", TrainingOptions("momentum"), 4 * (3 + 2), 4),
    ("fp32", TrainingOptions("adam"), 4 * (4 + 3), 12),
    ("fp16", TrainingOptions("adam"), 2 * (4 + 3), 12),
    # bf16: gradient 2, master weight and state 12 in; 12 and the weight's 2 out
    ("bf16", TrainingOptions("adam", mixed_precision=True), 2 + 12 + 12 + 2, 12),
    # fp16: and the gradients once more through the loss scale, 2 in and 2 out
    ("fp16", TrainingOptions("adam", mixed_precision=True), 2 + 12 + 12 + 2 + 4, 14),
]


@pytest.mark.parametrize(("precision", "options", "bytes_each", "flops_each"), UPDATES, ids=str)
def test_an_update_streams_weights_gradients_and_state(precision, options, bytes_each, flops_each) -> None:
    device = find_device("a100-sxm-40gb")
    made = step(options, precision=precision, device=device)
    place = made.terms.passes.index("update")
    assert made.bytes_by_pass[place].sum() == bytes_each * PARAMETERS
    assert made.counts_by_pass[place].sum() == flops_each * PARAMETERS
    # Every layer's update is bound by memory on this device.
    assert seconds(made, "update") == pytest.approx(bytes_each * PARAMETERS / 1555e9)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "vit_b_16"])
def test_checkpointing_costs_less_than_one_forward_pass(name) -> None:
    """The last segment is not computed again, for its forward pass has just been."""
    network = find_network(name)
    plain = step(network=network)
    for how in ("sqrt", "all"):
        made = step(TrainingOptions("sgd", checkpointing=how), network=network)
        again = seconds(made, "recompute")
        assert 0 < again < seconds(plain, "forward")
        assert made.time_s == pytest.approx(plain.time_s + again)
        assert made.terms.passes[-1] == "recompute"
        assert peak_memory(made.workload).total_bytes < peak_memory(plain.workload).total_bytes
        assert any("computed twice" in note for note in made.notes)


def test_accumulation_is_several_small_passes_and_one_update() -> None:
    one = step(TrainingOptions("adam"), batch_size=8, model=choose_model(V100, "fp32"))
    four = step(TrainingOptions("adam", accumulation=4), batch_size=32, model=choose_model(V100, "fp32"))
    assert four.terms.seconds_of("forward") == pytest.approx(4 * one.terms.seconds_of("forward"))
    assert four.terms.seconds_of(*BACKWARD) == pytest.approx(4 * one.terms.seconds_of(*BACKWARD))
    assert four.terms.seconds_of("update") == pytest.approx(one.terms.seconds_of("update"))
    assert four.terms.overhead_s == pytest.approx(4 * one.terms.overhead_s)
    assert four.batch_size == 32
    low, high = four.interval
    assert low < four.time_s < high
    assert low / four.time_s == pytest.approx(one.interval[0] / one.time_s)


def test_the_batch_that_was_asked_for_is_the_batch_whose_memory_is_said() -> None:
    asked = Workload(RESNET, batch_size=32, phase="training")
    made = predict_with_memory(asked, Machine(V100), PeakModel())
    assert made.batch_size == 32 and made.memory.memory == peak_memory(asked)
    assert (
        predict_with_memory(asked, Machine(V100), PeakModel(), fit_batch=True).batch_size == made.memory.largest_batch
    )


def test_tensor_cores_take_multiples_of_eight() -> None:
    """ResNet-50: 3 input channels and, below a batch of 8, the rows of the classifier fall out; depthwise all do."""
    names = [layer.name for layer in RESNET.layers]
    taken = takes_tensor_cores(RESNET.layers, 8)
    multiplying = count(RESNET.layers).matrix
    assert [names[index] for index in np.flatnonzero(multiplying & ~taken)] == ["conv1"]
    assert not taken[~multiplying].any()  # no product, none that they take
    assert not takes_tensor_cores(RESNET.layers, 7)[names.index("fc")]
    mobile = find_network("mobilenet_v2").layers
    depthwise = [index for index, layer in enumerate(mobile) if layer.attributes.get("groups", 1) > 1]
    assert depthwise and not takes_tensor_cores(mobile, 8)[depthwise].any()


def test_mixed_precision_holds_the_rest_against_the_vector_units() -> None:
    """conv1 of ResNet-50 at batch 32: 2 * 147 * 64 * 112^2 * 32 FLOPs on 15.7 TFLOP/s, not on 125.

    An A100 has known no library older than cuBLAS 11, which gives tensor cores every product: 312 TFLOP/s.
    """
    made = step(TrainingOptions("sgd", mixed_precision=True), precision="fp16", model=PeakModel())
    plain = step(precision="fp16", model=PeakModel())
    flops = 2 * 147 * 64 * 112 * 112 * 32
    place = made.layer_index("conv1")
    assert made.terms.seconds_of("forward")[place] == pytest.approx(flops / 15.7e12)
    assert plain.terms.seconds_of("forward")[place] == pytest.approx(flops / 125e12)
    assert any("1 layers do not" in note and "conv1" in note for note in made.notes)
    options = TrainingOptions("sgd", mixed_precision=True)
    later = step(options, precision="fp16", model=PeakModel(), device=find_device("a100-sxm-80gb"))
    assert later.terms.seconds_of("forward")[place] == pytest.approx(flops / 312e12)


def run(*arguments: str, width: int = 80):
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, ["predict", *arguments], prog_name="paleo-lite")


def train(*arguments: str, width: int = 80):
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, ["train", *arguments], prog_name="paleo-lite")


def test_the_command_prints_the_largest_batch_and_json_says_the_same() -> None:
    command = ["resnet50", "--gpu", "t4", "--batch-size", "fit", "--optimizer", "adam"]
    answer = json.loads(train(*command, "--format", "json").stdout)
    memory = answer["memory"]
    assert answer["batch_size"] == memory["largest_batch"] > 100
    assert memory["fits"] and memory["remedies"] == [] and memory["optimizer"] == "adam"
    usable_bytes = memory["capacity_bytes"] - memory["reserve_bytes"]
    assert memory["total_bytes"] <= usable_bytes == pytest.approx(15_109 * 2**20 - 1e9, rel=0.01)  # nvidia-smi
    parts = ("parameters", "gradients", "optimizer", "activations", "inputs", "workspace", "scratch")
    assert memory["total_bytes"] == sum(memory[f"{part}_bytes"] for part in parts)
    assert memory["optimizer_bytes"] == 2 * 4 * PARAMETERS
    again = train("resnet50", "--gpu", "t4", "--optimizer", "adam", "--format", "json",
                "--batch-size", str(answer["batch_size"] + 1))  # fmt: skip
    assert not json.loads(again.stdout)["memory"]["fits"]
    for width in (80, 120):
        page = train(*command, width=width).stdout
        assert "Peak memory" in page and "activations" in page
        assert max(len(line) for line in page.splitlines()[1:] if not line.startswith("note:")) <= width


def test_what_does_not_fit_comes_with_what_would_help() -> None:
    result = run("resnet50", "--gpu", "v100-sxm2", "--phase", "training", "--batch-size", "512", "--format", "json")
    memory = json.loads(result.stdout)["memory"]
    assert not memory["fits"]
    # Those that fit come first, on one device before several, the fastest of them first, then the others by size.
    fitting = [remedy for remedy in memory["remedies"] if remedy["fits"]]
    others = [remedy["total_bytes"] for remedy in memory["remedies"] if not remedy["fits"]]
    assert memory["remedies"][: len(fitting)] == fitting
    alone = [remedy for remedy in fitting if "ZeRO" not in remedy["name"]]
    sharded = [remedy for remedy in fitting if "ZeRO" in remedy["name"]]
    assert alone and fitting == [*alone, *sharded]
    for remedies in (alone, sharded):
        ratios = [remedy["time_ratio"] for remedy in remedies]
        assert ratios == sorted(ratios)
    assert others == sorted(others)
    assert max(remedy["total_bytes"] for remedy in memory["remedies"]) < memory["total_bytes"]
    for remedy in memory["remedies"]:
        assert remedy["fits"] == (remedy["largest_batch"] >= 512)
    names = " ".join(remedy["name"] for remedy in memory["remedies"])
    assert all(word in names for word in ("checkpointing", "mixed precision", "accumulation", "ZeRO stage 3"))
    page = run("resnet50", "--gpu", "v100-sxm2", "--phase", "training", "--batch-size", "512").stdout
    assert "DOES NOT FIT" in page and "Remedies, best first" in page


BAD = [
    (["predict", "vgg16", "--gpu", "t4", "--optimizer", "adam"], 2, "is an option of `paleo-lite train`"),
    (["train", "vgg16", "--gpu", "t4", "--mixed-precision"], 2, "fp16 or bf16, not in fp32"),
    (["train", "vgg16", "--gpu", "t4", "--batch-size", "9", "--accumulation", "2"], 2, "not divide"),
    (["train", "vgg16", "--gpu", "t4", "--batch-size", "fit", "--workers", "2"], 2, "is for one device"),
    (["predict", "--flops", "1G", "--gpu", "k80", "--memory"], 2, "require a network"),
    (["train", "vgg16", "--gpu", "t4", "--optimizer", "lyon"], 2, "lyon"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "says"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_mistakes_are_one_sentence(arguments, code, says) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code
    assert says in result.stderr and "Traceback" not in result.stderr


@pytest.mark.thorough
def test_a_model_that_is_too_large_is_tuned_with_adapters() -> None:
    """Full fine-tuning of 8 billion parameters takes 16 bytes each; QLoRA with checkpointing fits into 24 GB, and
    computing activations again costs a third of the backward and forward pass, or less."""
    arguments = ("llama-3-8b", "--gpu", "rtx4090", "--precision", "bf16", "--batch-size", "2")
    arguments += ("--optimizer", "adamw", "--sequence-length", "1024", "--format", "json")
    answer = json.loads(train(*arguments).stdout)
    assert not answer["fits"] and answer["trainable_parameters"] == 8_030_261_248
    remedies = {remedy["name"]: remedy for remedy in answer["memory"]["remedies"]}
    assert not remedies["checkpointing, every block"]["fits"]
    assert 1.2 < remedies["checkpointing, every block"]["time_ratio"] < 1.4
    assert not remedies["optimizer state in 8 bits (adamw-8bit)"]["fits"]
    assert remedies["QLoRA of rank 16, checkpointing, micro-batches of 1"]["fits"]
    tuned = json.loads(train(*arguments, "--lora", "16", "--weights", "int4", "--recompute", "all").stdout)
    assert tuned["fits"] and tuned["trainable_parameters"] == 41_943_040
    assert tuned["memory"]["frozen_parameters_bytes"] < tuned["memory"]["parameters_bytes"] < 6e9


def test_not_even_one_sample_is_an_answer() -> None:
    """regnet_y_128gf has 645 M parameters: with Adam 16 bytes of each are 10.3 GB of the K80's 12."""
    result = train("regnet_y_128gf", "--gpu", "k80-die", "--batch-size", "fit", "--optimizer", "adam")
    assert result.exit_code == 1
    assert "does not fit on" in result.stderr and "remedies that make it fit: " in result.stderr
    with pytest.raises(DoesNotFit):
        predict_any("regnet_y_128gf", gpu="k80-die", phase="training", fit_batch=True, training=TrainingOptions("adam"))
    with pytest.raises(BadValue, match="takes the place of a number"):
        predict_any("vgg16", gpu="k80-die", fit_batch=True, batch_size=4)


MEASURED = DATA / "measured" / "torchvision_fp16_fp32_fp64.csv"


@pytest.mark.needs_data
@pytest.mark.parametrize(("gpu", "name"), [("titan-rtx", "TITAN RTX"), ("titan-xp", "TITAN Xp")])
def test_fp16_gains_what_was_measured(gpu: str, name: str) -> None:
    """A course says 1.5x to 5x for common models. Measured at batch 12: at most 2.7x with tensor cores."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    with MEASURED.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == name and row["n_gpus"] == "1" and row["phase"] == "inference":
                times.setdefault((row["network"], row["batch_size"]), {})[row["precision"]] = float(row["value"])
    assert len(times) == 32
    errors = []
    for (network, batch_size), measured in times.items():
        predicted = [
            pl.predict(network, gpu=gpu, precision=precision, batch_size=int(batch_size)).time_s
            for precision in ("fp32", "fp16")
        ]
        ratio = measured["fp32"] / measured["fp16"]
        errors.append(abs(predicted[0] / predicted[1] / ratio - 1))
        assert ratio < 2.7
    assert np.mean(errors) < 0.15


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "8 bytes per parameter: `--mixed-precision`"), ({"optimizer": "sgd"}, None),
     ({"mixed_precision": True}, None),
     ({"lora": 16}, None), ({"optimizer": "momentum"}, "6 bytes per parameter")],
)  # fmt: skip
def test_a_note_says_that_nothing_is_kept_in_32_bits(options: dict[str, object], said: str | None) -> None:
    """Rajbhandari et al. 2020: 16 bytes per parameter of Adam in mixed precision."""
    notes = [note for note in pl.train("gpt2", gpu="a100-sxm-80gb", **options).notes if "bytes per parameter" in note]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]
    if not options:
        assert notes[0].endswith("16 bytes")


def test_an_execution_that_fuses_nothing_says_so() -> None:
    """Megatron-LM's fused kernels are of blocks of transformers: AlexNet has none of them."""
    times, notes = [], []
    for execution in ("eager", "megatron", "compiled"):
        step = pl.train("alexnet", gpu="h100-sxm", execution=execution)
        times.append(step.time_s)
        notes.append([note for note in step.notes if "fuses no layers of alexnet" in note])
    assert times[0] == times[1] != times[2]
    assert notes == [
        [],
        ["`--execution megatron` fuses no layers of alexnet, which take the time of eager execution"],
        [],
    ]
    table = pl.train("alexnet", gpu="h100-sxm", execution="megatron", workers=2)
    assert any("fuses no layers" in note for note in table.notes)
