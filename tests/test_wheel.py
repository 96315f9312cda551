"""What people install: the wheel, in a fresh environment, away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from paleo_lite import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.mark.thorough
@pytest.mark.slow
def test_an_installed_wheel_predicts_away_from_the_checkout(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.split("-")[1] == __version__
    assert "paleo_lite/data/calibrations/LICENSES.md" in zipfile.ZipFile(wheel).namelist()
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PALEO_LITE"))}
    command = [tmp_path / "venv" / "bin" / "paleo-lite", "predict", "vgg16", "--gpu", "k80", "--precision", "fp64"]
    done = subprocess.run(
        [*command, "--format", "json"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    answer = json.loads(done.stdout)
    assert answer["parameters"] == 138_357_544  # torchvision's num_params
    assert answer["macs"] == 15_470_264_320  # and its 15.47 GMAC
    found = subprocess.run(
        [python, "-c", "import importlib.util as u; print([m for m in ('torch', 'pandas') if u.find_spec(m)])"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "[]"
    asked = [*command[:3], "--gpu", "k80", "--image-size", "320"]
    refused = subprocess.run(asked, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "pip install 'paleo-lite[torch]'" in refused.stderr
