"""Regression tests of earlier findings of the fuzz test, and some random commands: see `fuzz.py`.

Each file of ``found`` lies in a folder named for the sample that it was made of.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import fuzz

pytestmark = pytest.mark.slow

FOUND = sorted((Path(__file__).parent / "found").glob("*/*"))


@pytest.fixture(scope="module")
def known():
    return fuzz.samples()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_earlier_findings_stay_fixed(path, known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / path.parent.name
    copy.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    (sample,) = [sample for sample in known if sample.name == path.parent.name]
    for command in sample.commands:
        assert fuzz.wrong_with(command.format(file=copy).split()) is None


def test_some_fuzzed_commands(known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, again = (fuzz.asked(7, 0, known, tmp_path) for _ in range(2))
    assert first == again  # a number gives the same question whoever asks it
    for number in range(40):
        _, words = fuzz.asked(number, 0, known, tmp_path)
        assert fuzz.wrong_with(words) is None, f"{words}: python tests/fuzz.py --from {number} --seconds 5"


def test_a_sample_is_right_before_it_is_changed(known, tmp_path, monkeypatch):
    """Samples must be valid: mutations of an invalid file would test nothing."""
    from click.testing import CliRunner

    from paleo_lite.cli import main

    monkeypatch.chdir(tmp_path)
    for sample in known:
        path = tmp_path / (sample.name if "." in sample.name else "file")
        path.write_bytes(sample.data)
        said = [CliRunner().invoke(main, command.format(file=path).split()) for command in sample.commands]
        assert any(one.exit_code == 0 for one in said), (sample.name, [one.output[-300:] for one in said])
