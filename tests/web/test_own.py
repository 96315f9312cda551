"""Uploaded files: detection of their type by name and content, and error messages.

Tests: web/uploads.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from streamlit.testing.v1 import AppTest

import paleo_lite as pl
from paleo_lite.files import shipped_folder
from paleo_lite.reporting.formats import format_time_short
from paleo_lite.web import uploads as own_module
from paleo_lite.web.uploads import FILES_AT_MOST, read_own_files

PROTOTXT = b"""name: "small"
input: "data"
input_shape { dim: 1 dim: 3 dim: 32 dim: 32 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 } }
"""


def bytes_of(folder, name):
    return (shipped_folder(folder) / name).read_bytes()


@pytest.fixture(scope="module")
def files():
    return [
        ("small.prototxt", PROTOTXT),
        ("descriptor.json", bytes_of("models", "alexnet.json")),
        ("mine.toml", bytes_of("hardware", "t4.toml").replace(b"Tesla T4", b"Mine")),
        ("ours.toml", bytes_of("calibrations", "t4-fp32.toml")),
    ]


def test_each_file_is_offered_by_its_control(files):
    own = read_own_files(files)
    assert (own.names("network"), own.names("gpu"), own.names("calibration"), own.errors) == (
        ["small.prototxt", "descriptor.json"], ["mine"], ["ours.toml"], ()
    )  # fmt: skip
    assert sum(layer.kind == "conv2d" for layer in own.network["small.prototxt"][0].layers) == 1
    assert own.gpu["mine"][0].name == "Mine"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("bad.prototxt", b"layer {", "bad.prototxt: line 1"),
        ("bad.json", b"[1", "bad.json: "),
        ("bad.toml", b"name = 3", "bad.toml: "),
        ("t4.toml", bytes_of("hardware", "t4.toml"), "'t4' is taken by another device"),
        ("cut.toml", b'device = "t4"\nformat = 1', "cut.toml: "),
        ("../../notes.txt", b"hello", "notes.txt: the file name must end in"),
        ("bad.onnx", b"hello", "bad.onnx: "),
    ],
)
def test_a_bad_file_gives_an_error_message(name, content, sentence):
    (error,) = read_own_files([(name, content)]).errors
    assert sentence in error and "/tmp" not in error and "\n" not in error


def test_too_many_files_are_reported():
    assert (
        "only the first 12 of 13 files are read" in read_own_files([("a.json", b"{")] * (FILES_AT_MOST + 1)).errors[0]
    )


@pytest.mark.slow
def test_the_page_uses_uploaded_networks_devices_and_calibrations(files, tmp_path):
    page = AppTest.from_file(str(Path(own_module.__file__).parent / "app.py"), default_timeout=1800)
    page.session_state["own files"], page.session_state["own files read"] = read_own_files(files), []
    page.query_params["ask"] = "predict"
    page.query_params["network"], page.query_params["gpu"] = "descriptor.json", "mine"
    page.run()
    assert not page.exception and not page.warning
    (tmp_path / "mine.toml").write_bytes(files[2][1])
    asked = pl.predict("alexnet", gpu="mine", hardware_files=[tmp_path / "mine.toml"])
    assert [metric.value for metric in page.metric] == [format_time_short(asked.time_s)]
    assert page.code[0].value == "paleo-lite predict descriptor.json --gpu mine --memory --hardware-file mine.toml"
    assert 'hardware_files=["mine.toml"]' in page.code[1].value
    page.query_params["gpu"] = "t4"
    page.query_params["calibration"] = "ours.toml"
    page.run()
    assert not page.exception and not page.error
    (calibration,) = [box for box in page.selectbox if box.label == "Calibration"]
    assert calibration.value == "ours.toml" and "t4-fp32" in calibration.options


@pytest.mark.thorough
@pytest.mark.slow
def test_two_visitors_with_files_of_the_same_name_share_nothing(files, tmp_path):
    """Sessions of one process, in turn: each answers for its own device, which only it knows."""
    contents = [files[2][1], files[2][1].replace(b'"320 GB/s"', b'"160 GB/s"')]
    assert contents[0] != contents[1]
    pages = []
    for content in contents:
        page = AppTest.from_file(str(Path(own_module.__file__).parent / "app.py"), default_timeout=1800)
        page.session_state["own files"] = read_own_files([("mine.toml", content)])
        page.session_state["own files read"] = []
        page.query_params["ask"] = "predict"
        page.query_params["network"], page.query_params["gpu"] = "alexnet", "mine"
        pages.append(page)
    stranger = AppTest.from_file(str(Path(own_module.__file__).parent / "app.py"), default_timeout=1800)
    stranger.query_params["ask"] = "predict"
    stranger.query_params["network"], stranger.query_params["gpu"] = "alexnet", "mine"
    for page in [*pages, stranger] * 2:  # Streamlit's AppTest has state of the process: it runs one page at a time
        page.run()
    for page, content in zip(pages, contents, strict=True):
        (tmp_path / "mine.toml").write_bytes(content)
        asked = pl.predict("alexnet", gpu="mine", hardware_files=[tmp_path / "mine.toml"])
        assert not page.exception
        assert [metric.value for metric in page.metric] == [format_time_short(asked.time_s)]
    assert pages[0].metric[0].value != pages[1].metric[0].value
    assert any("mine" in warning.value for warning in stranger.warning)
