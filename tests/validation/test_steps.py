"""Published measurements: what is read, and what is left out."""

from __future__ import annotations

import csv
import gzip
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from measured import DATA
from paleo_lite.calibration.calibrate import order, runs_of
from paleo_lite.calibration.pool import MeasuredDevices, pooled_model
from paleo_lite.calibration.store import make_calibration, write_calibration
from paleo_lite.calibration.validate import validate
from paleo_lite.errors import BadFile
from paleo_lite.files import shipped
from paleo_lite.hardware import find_device
from paleo_lite.networks import find_network
from paleo_lite.timing.calibrated import sensitivities
from paleo_lite.timing.fitted import CalibratedModel
from paleo_lite.timing.terms import QUANTILES
from validation.ship import error_of, fit_among_others
from validation.steps.dataset import Dataset
from validation.steps.networks import published_networks
from validation.steps.published import SOURCES, published_steps
from validation.steps.timm import SAME, published_timm

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
    list(zip(SOURCES, ("torchvision_fp16_fp32_fp64.csv", "networks.csv", "timm_rtx3090_rtx4090.csv.gz"), strict=True)),
)
def test_every_row_is_read_or_counted(read, file: str) -> None:  # type: ignore[no-untyped-def]
    """Repeated rows become one, so that what is read is at most what is not left out."""
    found: Dataset = read(MEASURED)
    kept = len(rows(file)) - sum(found.left_out.values())
    assert 0 < len(found.measurements) <= kept
    assert len(found.measurements) > 0.6 * kept


@pytest.mark.needs_data
def test_networks_are_those_of_the_source() -> None:
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


@pytest.mark.needs_data
def test_timm_networks_have_as_many_parameters() -> None:
    """The file's own column, in millions. Inception v3 has 3.33 M more here, in a classifier for training only."""
    millions = {row["network"]: float(row["param_count_m"]) for row in rows("timm_rtx3090_rtx4090.csv.gz")}
    for name, same in SAME.items():
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
def test_a_shipped_calibration_comes_out_again_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("tomli_w")
    everything = published_steps(MEASURED).measurements
    chosen = [m for m in everything if m.gpu == "titanx-pascal"]
    counts = Counter(m.source for m in chosen)
    source = max(sorted(counts), key=lambda name: counts[name])
    group = order([m for m in chosen if m.source == source])
    fit = fit_among_others(group, MeasuredDevices(everything))
    error = error_of(validate(everything, "network", ["titanx-pascal"])[1], group)
    write_calibration(make_calibration("titanx-pascal", "fp32", group, fit, held_out_error=error), tmp_path / "a.toml")
    assert (tmp_path / "a.toml").read_bytes() == (shipped("calibrations") / "titanx-pascal-fp32.toml").read_bytes()


def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"torchvision_fp16_fp32_fp64\.csv: cannot be read"):
        published_steps(tmp_path)


@pytest.mark.needs_data
def test_nine_of_ten_measurements_lie_in_their_90_percent_interval() -> None:
    """Every measured device as if nobody had measured it, and under whatever software: 85 to 95 % lie inside."""
    groups = defaultdict(list)
    for each in published_steps(MEASURED).measurements:
        groups[each.gpu, each.precision].append(each)
    inside: dict[float, list[bool]] = {0.8: [], 0.9: []}
    for (gpu, precision), group in groups.items():
        model = pooled_model(find_device(gpu), precision)
        assert isinstance(model, CalibratedModel)
        runs = runs_of(group, find_device(gpu), precision)
        times, gradient = sensitivities(runs.features, runs.rates, np.exp(model.theta), runs.run, len(runs))
        relative = gradient / times[:, None]
        deviation = np.sqrt(np.einsum("ij,jk,ik->i", relative, model.covariance, relative) + model.own_variance)
        for level, found in inside.items():
            found += list(np.abs(np.log(times / runs.measured_s)) < QUANTILES[level] * deviation)
    assert 0.85 <= np.mean(inside[0.9]) <= 0.95
    assert 0.75 <= np.mean(inside[0.8]) <= 0.85
