"""Bytes of profiles: no pipe is waited for, and gzip holds no more than a budget, which an option raises.

Tests: profiles/detect.py.
"""

from __future__ import annotations

import gzip
import os

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main
from paleo_lite.errors import BadProfile
from paleo_lite.profile_analysis.durations import read_durations
from paleo_lite.profiles import detect
from paleo_lite.profiles.detect import open_profile


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    monkeypatch.setenv(detect.VARIABLE, "")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes that are files")
def test_pipe_is_an_error_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (open_profile, lambda path: read_durations([path])):
        with pytest.raises(BadProfile, match=r"pipe: cannot be read \(it is a pipe or device, which"):
            read(tmp_path / "pipe")


def test_bytes_match_the_file(tmp_path):
    text = os.urandom(100_000) + b"line\n" * 20_000
    for name, held in (("plain", text), ("zipped", gzip.compress(text)), ("two", gzip.compress(text) * 2)):
        (tmp_path / name).write_bytes(held)
        with detect.open_decompressed(tmp_path / name) as file:
            assert file.read() == text * (2 if name == "two" else 1)


def test_gzip_holds_no_more_than_its_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(detect, "ALWAYS", 2**20)
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(b"0" * 2**22))
    assert detect.decompression_limit(path) == 2**20
    with (
        detect.open_decompressed(path) as file,
        pytest.raises(BadProfile, match=r"more than 1,048,576: --decompressed SIZE allows"),
    ):
        while file.read(2**16):
            pass
    detect.set_decompression_limit(5e6)
    with detect.open_decompressed(path) as file:
        assert len(file.read()) == 2**22
    monkeypatch.setenv(detect.VARIABLE, "much")
    with pytest.raises(BadProfile, match="must be a whole number of bytes, not 'much'"):
        detect.open_decompressed(path)


@pytest.mark.parametrize("reader", ["nvprof_text.SummaryText", "tau_xml.TauXml"])
def test_the_option_raises_it(tmp_path, monkeypatch, samples, reader):
    monkeypatch.setattr(detect, "ALWAYS", 100)
    monkeypatch.setattr(detect, "RATIO", 0)
    path = tmp_path / "profile"
    path.write_bytes(gzip.compress(samples[reader]))
    words = ["kernels", str(path), "--gpu", "k40m"]
    refused = CliRunner().invoke(main, words, prog_name="paleo-lite")
    assert refused.exit_code == 1 and "holds more than 100: --decompressed SIZE allows more" in refused.stderr
    assert CliRunner().invoke(main, [*words, "--decompressed", "1MB"], prog_name="paleo-lite").exit_code == 0
