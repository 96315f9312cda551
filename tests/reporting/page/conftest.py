"""Fixtures of report tests: reports, and malicious names of layers and kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main
from paleo_lite.files import shipped_folder

HOSTILE = [
    "<script>document.title = 'taken'</script>",
    "</title></style></table><img src=x onerror=\"document.title='taken'\">",
    '" onmouseover="document.title=\'taken\'" x="',
    "{{ 7 * 7 }}{% include 'x' %}",
    "</svg><script>document.title='taken'</script>",
    "]]>&lt;&#60;b\0\x1b[31m\u202e",
    "x" * 5000,
]


@pytest.fixture(scope="module", autouse=True)
def _few_alternatives(few_alternatives):
    """These tests look at the rest of a report."""


@pytest.fixture(scope="session")
def write():
    """Run a command with ``--report`` and return the text of the written file."""

    def run(*words: object, output: Path) -> str:
        result = CliRunner().invoke(main, [*map(str, words), "--report", str(output)], prog_name="paleo-lite")
        assert result.exit_code == 0, result.output
        return output.read_text(encoding="utf-8")

    return run


@pytest.fixture(scope="session")
def hostile_network(tmp_path_factory) -> Path:
    """AlexNet with malicious names of its first layers."""
    network = json.loads((shipped_folder("models") / "alexnet.json").read_text())
    network["name"] = "<b>alexnet</b>"
    names = network["layers"]["name"]
    names[: len(HOSTILE)] = HOSTILE
    path = tmp_path_factory.mktemp("hostile") / "net.json"
    path.write_text(json.dumps(network))
    return path


def write_profile(path: Path, kernels: list[str], calls: int = 1) -> Path:
    """Write a pyprof parquet file with calls of each kernel, 1 us each, half of them with FLOPs and bytes."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    names = [name for name in kernels for _ in range(calls)]
    count = len(names)
    columns = {
        "Kernel": names,
        "Sil(ns)": [1000 + index % 7 for index in range(count)],
        "FLOPs": [1e6 * (index % 2) for index in range(count)],
        "Bytes": [1e4 * (index % 2) for index in range(count)],
        "Direction": ["fprop"] * count,
        "Op": ["conv2d"] * count,
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture(scope="session")
def profile():
    """Function that writes a profile."""
    return write_profile


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Malicious names."""
    return HOSTILE
