"""Measurements from profiles: SURFBoard's ResNet-50 on a K40m."""

from __future__ import annotations

import pytest

from measured import DATA
from paleo_lite.calibration.fit import calibrate, runs_of
from paleo_lite.calibration.from_profiles import measure_profiles
from paleo_lite.calibration.prior import device_prior
from paleo_lite.errors import BadProfile
from paleo_lite.machines import find_device

PROFILES = DATA / "surfboard" / "pyprof_kernels"

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")


@pytest.mark.needs_data
def test_the_k40m_at_batch_64_from_its_profiles_at_batch_32() -> None:
    """SURFBoard: forward 430 ms, backward 935 ms at batch 64 on one node (medians of the kernels' summed times)."""
    files = sorted(PROFILES.glob("run_0_config_1_2_ib_nvprof_2_resnet50_dali-gpu_*_fp32_fp32_ret_0_0.gzip"))
    assert len(files) == 2
    found = {(m.batch_size, m.phase): m for m in measure_profiles(files, "k40m", "resnet50", "fp32")}
    assert 0.235 < found[32, "forward"].time_s < 0.237 and 0.521 < found[32, "backward"].time_s < 0.527
    device = find_device("k40m")
    learnt = calibrate([found[32, "forward"], found[32, "backward"]], device, "fp32", device_prior(device, "fp32"))[1]
    for phase in ("forward", "backward"):
        (predicted,) = runs_of([found[64, phase]], device, "fp32").predict_s(learnt.theta)
        assert predicted == pytest.approx(found[64, phase].time_s, rel=0.05)


@pytest.mark.needs_data
def test_message_names_profiles_of_other_networks() -> None:
    files = sorted(PROFILES.glob("run_0_config_1_2_ib_nvprof_2_resnet50_dali-gpu_32_fp32_fp32_ret_0_0.gzip"))
    with pytest.raises(BadProfile, match="batch size 64 in these profiles: there are resnet50 with batch size 32"):
        measure_profiles(files, "k40m", "resnet50", "fp32", 64)
    with pytest.raises(BadProfile, match="no forward or backward pass of vgg16"):
        measure_profiles(files, "k40m", "vgg16", "fp32")
