"""Profiles through the Python face, by names that folders of the package have too.

Tests: questions/profile_options.py, questions/efficiency.py, questions/kernels.py, questions/profile_comparison.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, UnknownFormat
from result_samples import SAMPLES

pytest.importorskip("pyarrow")


def test_a_folder_that_is_called_like_a_command_is_the_command() -> None:
    """Before it is imported, and after, whoever imported it."""
    code = (
        "import paleo_lite as pl\n"
        "early = pl.efficiency\n"
        "import paleo_lite.profile_analysis.analysis\n"
        "for call in (early, pl.efficiency):\n"
        "    try: call('absent.parquet', gpu='k40m')\n"
        "    except pl.PaleoError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    first, second = said.splitlines()
    assert first == second and "absent.parquet" in first


def test_prediction_is_compared_with_a_single_profile() -> None:
    with pytest.raises(BadValue, match="needs one profile"):
        pl.compare("a.parquet", "b.parquet", predict="resnet50", gpu="k40m")
    with pytest.raises(BadValue, match="can be used only with `--predict`"):
        pl.compare("a.parquet", "b.parquet", gpu="k40m")
    with pytest.raises(BadValue, match="needs two profiles"):
        pl.compare("a.parquet")


@pytest.mark.parametrize("analyse", [pl.efficiency, pl.kernels])
def test_a_result_file_is_told_from_a_profile(tmp_path: Path, analyse: Callable[[Path], object]) -> None:
    path = tmp_path / "operators.txt"
    path.write_text(next(sample.text for sample in SAMPLES if sample.format == "ggml-operators"))
    with pytest.raises(UnknownFormat, match="a result file of ggml's test-backend-ops: `paleo-lite meas"):
        analyse(path)
