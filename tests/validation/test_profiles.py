"""Times of classes of work at a held-out batch size, from SURFBoard's profiles of a K40m."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from measured import DATA
from paleo_lite.errors import BadProfile, BadValue
from validation.__main__ import main
from validation.profiles.hold_out import validate_profiles

PROFILES = DATA / "surfboard" / "pyprof_kernels"

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")


@pytest.fixture
def two_sizes(tmp_path: Path) -> Path:
    """A data folder with one profile of each batch size."""
    folder = tmp_path / "surfboard" / "pyprof_kernels"
    folder.mkdir(parents=True)
    for path in PROFILES.glob("run_0_config_1_2_ib_nvprof_2_resnet50_dali-gpu_*_fp32_fp32_ret_0_0.gzip"):
        shutil.copy(path, folder)
    return tmp_path


@pytest.mark.needs_data
def test_classes_of_work_on_k40m_at_batch_64(two_sizes: Path) -> None:
    """SURFBoard: forward 424 to 430 ms, backward 922 to 938 ms at batch 64, 53 convolutions."""
    result = CliRunner().invoke(main, ["accuracy", "--data", str(two_sizes), "--split", "profile", "--format", "json"])
    assert result.exit_code == 0, result.output
    rows = {(row["work_class"], row["phase"]): row for row in json.loads(result.stdout)["rows"]}
    assert rows["all", "forward"]["measured_s"] == pytest.approx(0.430, rel=0.01)
    assert rows["all", "backward"]["measured_s"] == pytest.approx(0.935, rel=0.01)
    for phase in ("forward", "backward"):
        whole = rows.pop(("all", phase))
        assert abs(whole["error"]) < 0.05
        parts = [row for key, row in rows.items() if key[1] == phase]
        assert sum(row["predicted_s"] for row in parts) == pytest.approx(whole["predicted_s"])
        assert sum(row["layers"] for row in parts if row["work_class"].startswith("conv")) == 53
    # The linear layer takes half a millisecond; 3x3 convolutions overlap on several streams.
    for (name, phase), row in rows.items():
        assert abs(row["error"]) < (0.15 if name == "conv_3x3" else 0.10) or name == "gemm", (name, phase)
    page = CliRunner().invoke(main, ["accuracy", "--data", str(two_sizes), "--split", "profile"], env={"COLUMNS": "80"})
    assert "conv_3x3" in page.output and max(map(len, page.output.splitlines())) <= 80


@pytest.mark.needs_data
def test_a_single_batch_size_is_an_error(two_sizes: Path) -> None:
    folder = two_sizes / "surfboard" / "pyprof_kernels"
    only = list(folder.glob("*_32_*"))
    with pytest.raises(BadValue, match="at 1 batch sizes: two are needed"):
        validate_profiles(only, "k40m", "resnet50")
    with pytest.raises(BadValue, match="profiles of vgg16 at 0 batch sizes"):
        validate_profiles([folder], "k40m", "vgg16")
    only[0].write_bytes(only[0].read_bytes()[:1000])
    with pytest.raises(BadProfile, match=only[0].name):
        validate_profiles([folder], "k40m", "resnet50")
    result = CliRunner().invoke(main, ["accuracy", "--data", str(two_sizes), "--split", "profile", "--gpu", "t4"])
    assert result.exit_code == 2 and "no measurement of t4" in result.output
