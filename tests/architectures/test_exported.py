"""Exported programs have the counts of the modules that they were exported from."""

from __future__ import annotations

import io
import os
import zipfile

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadDescriptor, BadValue

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def both(module, rows, path, **options):
    """Yield the multiply-accumulates of an exported program and of its module, per phase at batch size 3."""
    torch.export.save(torch.export.export(module.eval(), (torch.zeros(rows, 3, 8, 8),), **options), path)
    read, traced = pl.layers(str(path)).network, pl.trace(module, (1, 3, 8, 8))
    assert read.parameters == traced.parameters
    for phase in ("inference", "backward"):
        counts = [pl.layers(network, convention="macs", phase=phase, batch_size=3).total for network in (read, traced)]
        yield counts[0], counts[1] * read.inputs[0][0]


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def test_a_program_for_any_batch_and_one_for_a_batch_of_two(tmp_path):
    path = tmp_path / "net.pt2"
    free = {"dynamic_shapes": ({0: torch.export.Dim("rows")},)}
    assert all(read == traced for read, traced in both(convolutions(), 2, path, **free))
    network = pl.layers(str(path)).network
    assert (network.name, network.source, network.inputs) == ("net", "torch.export", ((1, 3, 8, 8),))
    assert all(read == traced for read, traced in both(convolutions(), 2, path))
    assert "exported for 2 samples, which are counted as one sample" in pl.layers(str(path)).notes
    with pytest.raises(BadValue, match="the sizes of an exported program are fixed"):
        pl.layers(str(path), image_size=16)


class Harmful:
    """An object that opens a file for writing when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_program_that_would_run_code_is_an_error(tmp_path, monkeypatch):
    torch.export.save(torch.export.export(nn.Linear(2, 3), (torch.zeros(4, 2),)), tmp_path / "good.pt2")
    pickled = io.BytesIO()
    torch.save(Harmful(tmp_path / "ran"), pickled)
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        assert any("sample_inputs" in name for name in good.namelist())
        for name in good.namelist():
            bad.writestr(name, pickled.getvalue() if "sample_inputs" in name else good.read(name))
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    with pytest.raises(BadDescriptor, match="not an exported program"):
        pl.layers(str(tmp_path / "bad.pt2"))
    assert not (tmp_path / "ran").exists()
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "0"
    assert pl.layers(str(tmp_path / "good.pt2")).network.parameters == 9


def test_invalid_programs(tmp_path):
    with pytest.raises(BadDescriptor, match=r"absent\.pt2: cannot be read .No such file"):
        pl.layers(str(tmp_path / "absent.pt2"))
    torch.save({"a": 1}, tmp_path / "weights.pt2")
    with pytest.raises(BadDescriptor, match="not an exported program"):
        pl.layers(str(tmp_path / "weights.pt2"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="devices are those of POSIX")
def test_a_device_is_not_read(tmp_path):
    (tmp_path / "net.pt2").symlink_to(os.devnull)
    with pytest.raises(BadDescriptor, match=r"net\.pt2: cannot be read \(it is not a regular file\)"):
        pl.layers(str(tmp_path / "net.pt2"))
