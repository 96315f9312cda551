"""The command of ``make descriptors``: new traces equal the shipped descriptors byte for byte."""

from __future__ import annotations

import sys

import pytest

from paleo_lite.architectures import export
from paleo_lite.files import shipped_folder

pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # importing torch takes seconds


def test_new_traces_equal_the_shipped_descriptors(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(export, "exportable_names", lambda: ["squeezenet1_1", "googlenet-caffe"])
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path)])
    export.main()
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: (shipped_folder("models") / name).read_bytes() for name in made}
    assert sorted(made) == ["googlenet-caffe.json", "squeezenet1_1.json"]


def test_the_folder_is_required(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["export"])
    with pytest.raises(SystemExit, match=r"usage: .* FOLDER"):
        export.main()
