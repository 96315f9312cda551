"""Published steps of networks: reading the tables, and validation of predictions."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import msgspec
import numpy as np
import pytest

from measured import DATA
from paleo_lite.architectures import find_network
from paleo_lite.calibration.fit import fit, runs_of
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, evidence_of, group_by_source, prior_for_group
from paleo_lite.calibration.pool import POOL_SCATTER, read_pool
from paleo_lite.calibration.prior import prior_from_evidence, traits_of
from paleo_lite.errors import BadFile
from paleo_lite.machines import find_device
from paleo_lite.timing.intervals import QUANTILES
from paleo_lite.timing.parameters import NAMES
from validation.steps.dataset import MeasuredSteps
from validation.steps.modern import modern_networks, published_engines
from validation.steps.networks import published_networks
from validation.steps.nvidia_examples import QUOTED, nvidia_examples
from validation.steps.order import validate_steps as validate_order
from validation.steps.own import validate_steps as validate_own
from validation.steps.published import SOURCES, published_steps
from validation.steps.timm import TORCHVISION_NAMES, published_timm
from validation.steps.transformers import validate_transformers

pytestmark = pytest.mark.slow

MEASURED = DATA / "measured"

pytest.importorskip("scipy")


def rows(name: str) -> list[dict[str, str]]:
    path = MEASURED / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("read", "file"),
    list(
        zip(
            SOURCES,
            (
                "torchvision_fp16_fp32_fp64.csv",
                "networks.csv",
                "timm_rtx3090_rtx4090.csv.gz",
                "../modern/networks_pytorch.csv",
                "../modern/cnn_more_gpus.csv",
                QUOTED.as_posix(),
            ),
            strict=True,
        )
    ),
)
def test_every_row_is_read_or_counted(read, file: str) -> None:  # type: ignore[no-untyped-def]
    """Repeated rows are merged, so there are at most as many measurements as rows that are not omitted."""
    found: MeasuredSteps = read(MEASURED)
    kept = len(rows(file)) - sum(found.left_out.values())
    assert 0 < len(found.measurements) <= kept
    assert len(found.measurements) > 0.6 * kept


@pytest.mark.needs_data
def test_networks_match_those_of_the_source() -> None:
    found = published_networks(MEASURED).measurements
    assert {m.gpu for m in found} == {
        "k80-die", "m40", "m60-die", "p100-sxm2", "v100-sxm2", "titanx-maxwell", "titanx-pascal", "gtx1080ti",
    }  # fmt: skip
    (source,) = (
        row
        for row in rows("networks.csv")
        if (row["gpu"], row["network"], row["phase"], row["batch_size"])
        == ("K80 (1 of 2 GPUs)", "resnet50", "inference", "32.0")
        and row["framework_version"].startswith("1.2.0")
    )
    (own,) = (
        m
        for m in found
        if (m.gpu, m.network, m.phase, m.batch_size) == ("k80-die", "resnet50", "inference", 32) and "1.2.0" in m.source
    )
    assert own.time_s == pytest.approx(32 / float(source["value"]), rel=1e-4)
    assert not any(m.network == "alexnet" for m in found)  # other channels, or groups
    # 3.86 G multiply-accumulates against 4.09: TensorFlow of 2017 strides in the 1x1 convolution.
    assert {m.network for m in found if "tensorflow" in m.source} == {"resnet50-caffe", "inception_v3", "vgg16"}


def test_frameworks_of_nvidia_train_as_its_tables_say() -> None:
    """MXNet's README: 2,180 images/s on an A100 in mixed precision; TensorFlow's: 1,270 on a V100, both with 256."""
    training = {
        (step.software, step.gpu, step.precision): (step.time_s, step.execution)
        for step in nvidia_examples(MEASURED).measurements
        if step.phase == "training"
    }
    assert training["mxnet", "a100-sxm-80gb", "fp16"] == (pytest.approx(0.1174, abs=5e-5), "compiled")
    assert training["tensorflow", "v100-sxm2", "fp16"] == (pytest.approx(0.2016, abs=5e-5), "compiled")
    assert training["paddle", "a100-sxm-80gb", "tf32"] == (pytest.approx(0.2578, abs=5e-5), "eager")


def test_inference_that_waits_for_images_is_omitted() -> None:
    """TensorFlow on an A100 in fp16: 3,570 images/s with a batch of 64, 3,229 with 256; on a T4: 991 and 993."""
    found = nvidia_examples(MEASURED)
    series = {
        (step.software, step.gpu, step.execution)
        for step in found.measurements
        if (step.phase, step.precision) == ("inference", "fp16")
    }
    assert ("tensorflow", "t4", "channels-last") in series
    assert ("tensorflow", "a100-sxm-40gb", "channels-last") not in series
    assert sum(found.left_out.values()) + len(found.measurements) == len(QUOTED.read_text().splitlines()) - 1


@pytest.mark.needs_data
def test_timm_networks_have_as_many_parameters() -> None:
    """The file's own column, in millions. Inception v3 has 3.33 M more here, in a classifier for training only."""
    millions = {row["network"]: float(row["param_count_m"]) for row in rows("timm_rtx3090_rtx4090.csv.gz")}
    for name, same in TORCHVISION_NAMES.items():
        extra = 3.327 if same == "inception_v3" else 0
        assert find_network(same).parameters / 1e6 - extra == pytest.approx(millions[name], abs=0.006), name


@pytest.mark.needs_data
def test_automatic_mixed_precision_is_fp16_and_vgg16_is_faster_than_vgg19() -> None:
    found = published_timm(MEASURED)
    assert {m.precision for m in found.measurements} == {"fp16"}
    times = {(m.gpu, m.source, m.phase, m.batch_size, m.network): m.time_s for m in found.measurements}
    pairs = [(time, times[(*key[:4], "vgg19")]) for key, time in times.items() if key[4] == "vgg16"]
    assert pairs and all(one < other for one, other in pairs)
    assert found.left_out["VGG16 slower than VGG19, which contains it"] == 2


@pytest.mark.needs_data
def test_execution_of_engines_and_autocast() -> None:
    found = published_engines(MEASURED).measurements
    assert {(m.gpu, m.execution, m.precision) for m in found} == {
        ("t4", "folded", "fp32"), ("v100-sxm2", "folded", "fp32"),
        ("jetson-nano", "folded", "fp16"), ("jetson-agx-xavier", "folded", "fp16"),
    }  # fmt: skip
    (row,) = (
        row
        for row in rows("../modern/cnn_more_gpus.csv")
        if (row["gpu"], row["network"], row["batch_size"]) == ("T4", "VGG16", "8") and row["precision"] == "fp32"
    )
    (own,) = (m for m in found if (m.gpu, m.network, m.batch_size) == ("t4", "vgg16", 8))
    assert own.time_s == pytest.approx(float(row["ms_per_batch"]) / 1e3)
    modern = modern_networks(MEASURED).measurements
    assert {m.execution for m in modern if m.gpu == "rtx5090"} == {"autocast", "compiled"}
    assert {(m.precision, m.execution) for m in modern if m.gpu == "t4"} == {
        ("fp32", "eager"),
        ("fp16", "channels-last"),
    }


@pytest.mark.needs_data
@pytest.mark.parametrize(
    "key",
    [
        GroupKey("titanx-pascal", "fp32", "cnn-benchmarks lua-torch 2016-17 cudnn=5105"),
        GroupKey("k80-die", "fp32", "mxnet-docs-perf 1.2.0.rc1/cudnn7.0.5"),
        GroupKey("p100-sxm2", "fp32", "mxnet-docs-perf commit 0a03417/cudnn5.1"),
    ],
)
def test_evidence_matches_the_shipped_pool(key: GroupKey) -> None:
    """Fit one source with the other evidence of the shipped pool as prior: the last iteration of fitting the pool.

    A pool that was not fitted again after a change of the model fails.
    """
    group = [m for m in published_networks(MEASURED).measurements if (m.gpu, m.precision, m.source) == key[:3]]
    fits = read_pool().fits
    (shipped_fit,) = (one for one in fits if (one.id, one.measured_in, one.source) == key[:3])
    device = find_device(key.gpu)
    traits = traits_of(device, key.precision, group[0].software, key.execution, key.source)
    measured = DeviceData(device, key.precision, traits, runs_of(sorted(group), device, key.precision))
    again = evidence_of(measured, prior_for_group(measured, [one for one in fits if one is not shipped_fit]))
    assert again.points == shipped_fit.points
    # One round more, and numbers rounded: the efficiency of every class within a few percent.
    is_efficiency = np.array([name.startswith("efficiency") for name in NAMES])
    assert np.array(again.theta)[is_efficiency] == pytest.approx(np.array(shipped_fit.theta)[is_efficiency], abs=0.05)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_suggested_measurements_reduce_errors_more_than_random_ones() -> None:
    """Two TITANs are held out; the intervals are as wide as the suggestion expects."""
    gpus = {"titan-rtx", "titan-xp", "rtx2080ti", "gtx1080ti"}
    steps = [m for m in published_steps(MEASURED).measurements if m.gpu in gpus and m.precision == "fp32"]
    rows = {(row.chosen, row.measured): row for row in validate_own(steps, (), lambda gpu, _: gpu.startswith("titan"))}
    assert rows["suggested", 2].mape < rows["random", 2].mape < rows["none", 0].mape
    assert rows["suggested", 8].mape < 0.6 * rows["none", 0].mape
    for count in (1, 2, 4, 8):
        row = rows["suggested", count]
        assert row.promised_90 == pytest.approx(row.width_90, rel=0.2) and row.groups == 4
    assert rows["suggested", 2].points == rows["none", 0].points - 2 * 2


@pytest.mark.thorough
@pytest.mark.needs_data
def test_order_of_two_devices() -> None:
    """Two TITANs are held out; the source's times give the order where they differ by more than 15%."""
    gpus = {"titan-rtx", "titan-xp", "rtx2080ti", "gtx1080ti"}
    steps = [m for m in published_steps(MEASURED).measurements if m.gpu in gpus and m.precision == "fp16"]
    (row,) = validate_order(steps, (), lambda gpu, _: gpu.startswith("titan"))
    times = {(m.gpu, m.network, m.phase, m.batch_size): m.time_s for m in steps if m.source == row.source}
    ratios = [time / times[("titan-xp", *step)] for (gpu, *step), time in times.items() if gpu == "titan-rtx"]
    assert row.pairs == sum(max(ratio, 1 / ratio) > 1.15 for ratio in ratios) > 50
    assert row.held_out > 0.9 and row.shipped > 0.9 and row.devices == ["titan-rtx", "titan-xp"]
    assert validate_order(steps, (), lambda gpu, _: gpu == "titan-xp") == []


@pytest.mark.thorough
@pytest.mark.needs_data
def test_transformers_are_validated_separately() -> None:
    networks = ("vit_b_16", "swin_t", "resnet50", "vgg16", "mobilenet_v2", "densenet121")
    steps = published_steps(MEASURED).measurements
    steps = [m for m in steps if m.source == "pytorch-image-models 2.4.0" and m.network in networks]
    rows, points = validate_transformers(steps, ("rtx4090",), (), ())
    assert {point.measurement.network[:3] for point in points} == {"vit", "swi"}
    (row,) = rows
    assert row.points == len(points) and row.mape == pytest.approx(np.mean([abs(point.error) for point in points]))


def test_message_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"torchvision_fp16_fp32_fp64\.csv: cannot be read"):
        published_steps(tmp_path)


@pytest.mark.needs_data
@pytest.mark.parametrize("first", [1, pytest.param(4, marks=pytest.mark.thorough)])
def test_coverage_of_90_percent_intervals(first: int) -> None:
    """With each chip held out, 85% to 96% of all measurements lie inside their 90% interval.

    Only every sixth network is used, because counting the layers takes most of the time.
    """
    fits, inside = read_pool().fits, list[bool]()
    steps = published_steps(MEASURED).measurements
    some = sorted({m.network for m in steps})[first::6]
    for key, group in group_by_source([m for m in steps if m.network in some]).items():
        device = find_device(key.gpu)
        others = [one for one in fits if one.chip != device.chip]
        traits = traits_of(device, key.precision, group[0].software, key.execution)
        runs = runs_of(group, device, key.precision)
        prior = prior_from_evidence(traits, others)
        expected = fit(runs.select(np.array([], dtype=np.int64)), prior)
        times, deviation = msgspec.structs.replace(expected, scatter=POOL_SCATTER).predict(runs)
        inside += list(np.abs(np.log(times / runs.measured_s)) < QUANTILES[0.9] * deviation)
    assert 0.85 <= np.mean(inside) <= 0.96
