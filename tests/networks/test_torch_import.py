"""Beside a CPU torch, torchvision's import fails in one known way, and only that one is mended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

IMPORT = "from paleo_lite.networks.torch_import import import_torchvision\nmodule = import_torchvision()\n"


def run(code, path=""):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH", "")])),
    }
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)


def test_torchvision_is_whole_and_stays_imported():
    done = run(
        IMPORT
        + "assert len(module.models.list_models(module=module.models)) >= 80\nassert module is import_torchvision()"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "raise RuntimeError('operator torchvision::roi_align does not exist')",
        pytest.param("raise RuntimeError('something else entirely')", marks=pytest.mark.thorough),
        pytest.param("raise ValueError('operator torchvision::nms does not exist')", marks=pytest.mark.thorough),
        "import no_such_dependency",
    ],
)
def test_any_other_failure_passes_through(statement, tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(statement)
    done = run(IMPORT, tmp_path)
    assert done.returncode == 1
    expected = (
        "ModuleNotFoundError: No module named 'no_such_dependency'"
        if "import" in statement
        else statement[6:].split("(")[0]
    )
    assert expected in done.stderr.splitlines()[-1]


def test_a_failure_that_the_schemas_do_not_mend_passes_through(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    done = run(IMPORT, tmp_path)
    assert done.returncode == 1
    assert "operator torchvision::nms does not exist" in done.stderr.splitlines()[-1]
