"""The import of torchvision with a CPU build of torch: one known failure is repaired, others are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

IMPORT = "from paleo_lite.architectures.torch_import import import_torchvision\nmodule = import_torchvision()\n"


def run(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_torchvision_is_complete_and_stays_imported(tmp_path):
    """In a process in which a user's module imports torchvision first: ResNet-18 has 11,689,512 parameters."""
    (tmp_path / "uses_torchvision.py").write_text(
        "import torchvision\n\ndef make():\n    return torchvision.models.resnet18()\n"
    )
    done = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from paleo_lite.architectures import trace_factory\n"
        "for factory in ('uses_torchvision:make', 'torchvision.models:resnet18'):\n"
        "    print(trace_factory(factory, [(3, 64, 64)]).parameters)\n"
        + IMPORT
        + "assert len(module.models.list_models(module=module.models)) >= 80\nassert module is import_torchvision()"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["11689512", "11689512"]


FAILURES = (
    "raise RuntimeError('operator torchvision::roi_align does not exist')",
    "raise RuntimeError('something else entirely')",
    "raise ValueError('operator torchvision::nms does not exist')",
    "import no_such_dependency",
    "raise RuntimeError('operator torchvision::nms does not exist')",  # recurs after its schema has been declared
)
IMPORT_ERRORS = """
import sys
from paleo_lite.architectures.torch_import import import_torchvision
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    try:
        import_torchvision()
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
    sys.path.remove(folder)
    sys.modules.pop("torchvision", None)
"""


@pytest.mark.thorough
def test_failures_of_torchvision_itself_are_raised(tmp_path):
    for number, statement in enumerate(FAILURES):
        (tmp_path / str(number) / "torchvision").mkdir(parents=True)
        (tmp_path / str(number) / "torchvision" / "__init__.py").write_text(statement)
    done = run(IMPORT_ERRORS, *[tmp_path / str(number) for number in range(len(FAILURES))])
    assert done.stdout.splitlines() == [
        "RuntimeError: operator torchvision::roi_align does not exist",
        "RuntimeError: something else entirely",
        "ValueError: operator torchvision::nms does not exist",
        "ModuleNotFoundError: No module named 'no_such_dependency'",
        "RuntimeError: operator torchvision::nms does not exist",
    ], done.stderr
