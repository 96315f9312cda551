"""Build the distributions of a release and try the wheel on every supported Python: ``make release``.

Writes the sdist and the wheel (built from the sdist) into ``dist/``, checks them with twine, installs the wheel into a
fresh environment per Python version, and compares a prediction there with the published number of parameters. Python
versions that are not on this machine are skipped and named. Nothing is uploaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
VGG16_PARAMETERS = 138_357_544
"""Parameters of VGG-16 in torchvision."""


def supported_versions(pyproject: str) -> list[str]:
    """Return the Python versions of the classifiers in pyproject.toml, such as ``3.10``."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)


def missing_urls(pyproject: str) -> list[str]:
    """Return the labels that an index links to and that [project.urls] in pyproject.toml does not have."""
    return [label for label in ("Homepage", "Repository", "Issues", "Changelog") if f"\n{label} = " not in pyproject]


def find_python(version: str) -> Path | None:
    """Return the interpreter of a Python version from PATH, pyenv or uv; None if there is none."""
    for command in (
        [f"python{version}", "-c", "import sys; print(sys.executable)"],
        ["pyenv", "prefix", version],
        ["uv", "python", "find", version],
    ):
        if shutil.which(command[0]) is None:
            continue
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            continue
        path = Path(answer.stdout.strip())
        return path / "bin" / "python" if path.is_dir() else path
    return None


def build(folder: Path) -> Path:
    """Build the sdist, and the wheel from it, check both with twine, and return the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)], check=True)
    files = sorted(map(str, folder.iterdir()))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_wheel(wheel: Path, python: Path) -> str:
    """Install a wheel into a fresh environment of an interpreter, and return the first line of a prediction.

    Raises
    ------
    subprocess.CalledProcessError
        If installing or predicting fails.
    AssertionError
        If the prediction counts a wrong number of parameters.
    """
    with tempfile.TemporaryDirectory(prefix="paleo-lite-release-") as folder:
        scripts = Path(folder) / "venv" / "bin"
        subprocess.run([python, "-m", "venv", scripts.parent], check=True)
        install = [scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
        subprocess.run(install, check=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PALEO_LITE"))}
        words = [scripts / "paleo-lite", "predict", "vgg16", "--gpu", "k80", "--precision", "fp64"]

        def predict(*options: str) -> str:
            return subprocess.run(
                [*words, *options], cwd=folder, env=environment, check=True, capture_output=True, text=True
            ).stdout

        parameters = json.loads(predict("--format", "json"))["parameters"]
        assert parameters == VGG16_PARAMETERS, f"{parameters} parameters instead of {VGG16_PARAMETERS}"
        return predict().partition("\n")[0]


def main(arguments: Sequence[str]) -> int:
    """Build and try the release; return 1 if it fails on a version, or if no version is on this machine."""
    wheel = build(Path(arguments[0]) if arguments else ROOT / "dist")
    outcomes = {}
    for version in supported_versions((ROOT / "pyproject.toml").read_text("utf-8")):
        python = find_python(version)
        if python is None:
            outcomes[version] = "skipped: not on this machine"
            continue
        try:
            outcomes[version] = f"works: {try_wheel(wheel, python)}"
        except (subprocess.CalledProcessError, AssertionError) as error:
            outcomes[version] = f"failed: {error}"
    print(f"\n{wheel.name}")
    for version, outcome in outcomes.items():
        print(f"  Python {version:5} {outcome}")
    if missing := missing_urls((ROOT / "pyproject.toml").read_text("utf-8")):
        print(f"Before uploading, add to [project.urls] in pyproject.toml: {', '.join(missing)}")
    works = any(outcome.startswith("works") for outcome in outcomes.values())
    fails = any(outcome.startswith("failed") for outcome in outcomes.values())
    return 0 if works and not fails else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
