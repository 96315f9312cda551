"""Pipelines of folders with a model_index.json: read part by part, and traced in a process of its own.

Tests: architectures/pipelines/folder.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.architectures import trace_process
from paleo_lite.architectures.pipelines.configs import CONFIGS
from paleo_lite.architectures.pipelines.folder import read_pipeline_folder
from paleo_lite.architectures.pipelines.records import pipelines
from paleo_lite.architectures.pipelines.sampling import read_part
from paleo_lite.architectures.trace_process import TraceReply, TraceRequest
from paleo_lite.errors import BadDescriptor, MissingExtra

PARTS = {
    "unet": ("diffusers", "UNet2DConditionModel", "sdxl-unet"),
    "vae": ("diffusers", "AutoencoderKL", "sd-vae"),
    "text_encoder": ("transformers", "CLIPTextModel", "clip-l"),
    "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", "openclip-bigg"),
}
"""Components of Stable Diffusion XL: library, class, and the shipped part with the same config."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder as diffusers saves Stable Diffusion XL, without weights."""
    monkeypatch.setenv("PALEO_LITE_CACHE", str(tmp_path / "cache"))
    index: dict[str, Any] = {"_class_name": "StableDiffusionXLPipeline", "_diffusers_version": "0.35.0"}
    for name, (library, class_name, shipped) in PARTS.items():
        index[name] = [library, class_name]
        (tmp_path / "xl" / name).mkdir(parents=True)
        fields = {"_class_name": class_name, **CONFIGS[shipped][1]}
        (tmp_path / "xl" / name / "config.json").write_text(json.dumps(fields))
    index |= {"image_encoder": [None, None], "scheduler": ["diffusers", "EulerDiscreteScheduler"]}
    write(tmp_path / "xl", index)
    return tmp_path / "xl"


def write(folder: Path, index: dict[str, Any]) -> None:
    (folder / "model_index.json").write_text(json.dumps(index))


def index_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model_index.json").read_text())


def test_a_folder_is_read_like_the_shipped_pipeline_of_its_class(folder: Path) -> None:
    read, shipped = read_pipeline_folder(str(folder)), pipelines()["sdxl"]
    assert (read.name, read.size, read.steps, read.guidance) == ("xl", (1024, 1024), 50, 5.0)
    assert [part.role for part in read.parts] == [part.role for part in shipped.parts]
    assert [part.grid for part in read.parts] == [part.grid for part in shipped.parts]
    assert [part.module for part in read.parts] == [PARTS[part.descriptor][1] for part in read.parts]


def test_a_part_that_is_null_is_left_out(folder: Path) -> None:
    write(folder, index_of(folder) | {"text_encoder": [None, None]})
    assert [part.descriptor for part in read_pipeline_folder(str(folder)).encoders] == ["text_encoder_2"]


def test_the_size_follows_from_the_configs(folder: Path) -> None:
    """96 latents of 4 pixels each, as an autoencoder with three levels decodes them."""
    for name, changed in (("unet", {"sample_size": 96}), ("vae", {"block_out_channels": [128, 256, 512]})):
        path = folder / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert read_pipeline_folder(str(folder)).size == (384, 384)


def shipped_answer(request: TraceRequest, file: Path) -> TraceReply:
    """Answer as the process does, with the shipped descriptor of the same config; and keep the answer."""
    part = PARTS[request.name][2]
    network = read_part(part, tuple(request.sizes.items()))
    answer = TraceReply(network.name, network.inputs, network.layers, network.parameters, network.source)
    file.write_bytes(msgspec.json.encode(answer))
    return answer


def test_parts_are_traced_at_the_size_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_process, "find_spec", lambda name: object())
    monkeypatch.setattr(trace_process, "_ask", shipped_answer)
    (folder.parent / "cache").mkdir()
    asked = {"gpu": "a100-sxm-80gb", "precision": "fp16", "image_size": "1024x768", "steps": 10}
    first, shipped = predict_any(str(folder), **asked), predict_any("sdxl", **asked)
    assert (first.network, first.macs, first.time_s) == ("xl", shipped.macs, pytest.approx(shipped.time_s))
    monkeypatch.setattr(trace_process, "_ask", lambda *_: pytest.fail("the answers are on disk"))
    assert predict_any(str(folder / "model_index.json"), **asked).macs == first.macs
    assert pl.layers(str(folder), image_size="1024x768").total["all_macs"] > 0


def test_bad_folders_get_one_sentence(folder: Path) -> None:
    index = index_of(folder)
    cases = {
        "pipelines of the class 'MyPipeline' are not known": index | {"_class_name": "MyPipeline"},
        r"\$\._class_name must be the name": {"unet": index["unet"]},
        "a pipeline needs a transformer or unet and a vae": {**index, "unet": [None, None]},
        "the unet is a MyUNet; only UNet2DConditionModel is known there": index | {"unet": ["mine", "MyUNet"]},
        "there is no config of the vae": index,
    }
    for message, changed in cases.items():
        write(folder, changed)
        if message.startswith("there is no config"):
            (folder / "vae" / "config.json").unlink()
        with pytest.raises(BadDescriptor, match=message) as caught:
            read_pipeline_folder(str(folder))
        assert "\n" not in str(caught.value)
    (folder / "model_index.json").write_text("[1]")
    with pytest.raises(BadDescriptor, match="not a JSON object"):
        read_pipeline_folder(str(folder))


def test_without_diffusers_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_process, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"paleo-lite\[diffusers\]"):
        predict_any(str(folder), gpu="a100-sxm-80gb", precision="fp16")


@pytest.mark.slow
def test_diffusers_traces_what_is_shipped(folder: Path) -> None:
    pytest.importorskip("diffusers")
    path = folder / "vae" / "config.json"
    sizes = {"h": 32, "w": 48, "f": 1, "t": 77}
    traced = trace_process.trace_module(path.read_bytes(), str(path), "AutoencoderKL", sizes, "vae")
    assert traced.layers == read_part("sd-vae", tuple(sizes.items())).layers
