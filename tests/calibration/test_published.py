"""Published measurements: what is read, what is left out, and what is learnt from profiles.

Tests: calibration/datasets.py, calibration/from_profiles.py, calibration/published_networks.py,
calibration/published_timm.py, calibration/ship.py, calibration/validate.py.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from measured import DATA
from paleo_lite.calibration.borrowed import Taught
from paleo_lite.calibration.calibrate import calibrate, order, prior_of, runs_of
from paleo_lite.calibration.datasets import Dataset, published, torchvision_benchmark
from paleo_lite.calibration.published_networks import published_networks
from paleo_lite.calibration.published_timm import SAME, published_timm
from paleo_lite.calibration.ship import error_of, fit_among_others
from paleo_lite.calibration.store import make_calibration, write_calibration
from paleo_lite.calibration.validate import validate
from paleo_lite.errors import BadFile, BadProfile
from paleo_lite.files import shipped
from paleo_lite.hardware import find_device
from paleo_lite.networks import find_network

MEASURED = DATA / "measured"
PROFILES = DATA / "surfboard" / "pyprof_kernels"

pytest.importorskip("scipy")


def rows(name: str) -> list[dict[str, str]]:
    path = MEASURED / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("read", "file"),
    [
        (torchvision_benchmark, "torchvision_fp16_fp32_fp64.csv"),
        (published_networks, "networks.csv"),
        (published_timm, "timm_rtx3090_rtx4090.csv.gz"),
    ],
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
    everything = published(MEASURED).measurements
    chosen = [m for m in everything if m.gpu == "titanx-pascal"]
    counts = Counter(m.source for m in chosen)
    source = max(sorted(counts), key=lambda name: counts[name])
    group = order([m for m in chosen if m.source == source])
    fit = fit_among_others(group, Taught(everything))
    error = error_of(validate(everything, "network", ["titanx-pascal"])[1], group)
    write_calibration(make_calibration("titanx-pascal", "fp32", group, fit, held_out_error=error), tmp_path / "a.toml")
    assert (tmp_path / "a.toml").read_bytes() == (shipped("calibrations") / "titanx-pascal-fp32.toml").read_bytes()


@pytest.mark.needs_data
def test_the_k40m_at_batch_64_from_its_profiles_at_batch_32() -> None:
    """SURFBoard: forward 430 ms, backward 935 ms at batch 64 on one node (medians of the kernels' summed times)."""
    from paleo_lite.calibration.from_profiles import measure_profiles

    files = sorted(PROFILES.glob("run_0_config_1_2_ib_nvprof_2_resnet50_dali-gpu_*_fp32_fp32_ret_0_0.gzip"))
    assert len(files) == 2
    found = {(m.batch_size, m.phase): m for m in measure_profiles(files, "k40m", "resnet50", "fp32")}
    assert 0.235 < found[32, "forward"].time_s < 0.237 and 0.521 < found[32, "backward"].time_s < 0.527
    device = find_device("k40m")
    learnt = calibrate([found[32, "forward"], found[32, "backward"]], device, "fp32", prior_of(device, "fp32"))[1]
    for phase in ("forward", "backward"):
        (predicted,) = runs_of([found[64, phase]], device, "fp32").predict_s(learnt.theta)
        assert predicted == pytest.approx(found[64, phase].time_s, rel=0.05)


@pytest.mark.needs_data
def test_profiles_of_nothing_asked_for_are_named() -> None:
    from paleo_lite.calibration.from_profiles import measure_profiles

    files = sorted(PROFILES.glob("run_0_config_1_2_ib_nvprof_2_resnet50_dali-gpu_32_fp32_fp32_ret_0_0.gzip"))
    with pytest.raises(BadProfile, match="batch size 64 in these profiles: there are resnet50 with batch size 32"):
        measure_profiles(files, "k40m", "resnet50", "fp32", 64)
    with pytest.raises(BadProfile, match="no forward or backward pass of vgg16"):
        measure_profiles(files, "k40m", "vgg16", "fp32")


def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"torchvision_fp16_fp32_fp64\.csv: cannot be read"):
        published(tmp_path)
