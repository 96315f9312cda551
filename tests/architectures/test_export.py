"""The command behind ``make descriptors``: what it traces is what is shipped, byte for byte."""

from __future__ import annotations

import sys

import pytest

from paleo_lite.architectures import export
from paleo_lite.files import shipped

pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # importing torch takes seconds


def test_a_network_that_is_traced_anew_is_the_shipped_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(export, "all_names", lambda: ["squeezenet1_1", "googlenet-caffe"])
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path)])
    export.main()
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: (shipped("models") / name).read_bytes() for name in made}
    assert sorted(made) == ["googlenet-caffe.json", "squeezenet1_1.json"]


def test_it_wants_a_folder(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["export"])
    with pytest.raises(SystemExit, match=r"usage: .* FOLDER"):
        export.main()
