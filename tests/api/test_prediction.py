"""The same prediction requested in several ways has the same result.

Tests: api/prediction.py, api/question.py, api/question.py.
"""

from __future__ import annotations

import sys

import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue, MissingExtra, UnsupportedPhase
from paleo_lite.files import shipped_folder
from paleo_lite.machines import find_device


@pytest.mark.slow
def test_network_as_name_path_factory_or_object(built) -> None:
    """A network is given by name, as the path of a descriptor, as a factory, as a module, and as a traced network."""
    options = {"gpu": "k80", "precision": "fp64", "batch_size": 4, "time_model": "roofline"}
    pytest.importorskip("torch")
    module, _ = built("alexnet")
    seconds = pl.predict("alexnet", **options).time_s
    ways = [
        pl.predict(str(shipped_folder("models") / "alexnet.json"), **options),
        pl.predict("torchvision.models:alexnet", inputs=[(3, 224, 224)], **options),
        pl.predict(module, inputs=[(3, 224, 224)], **options),
        pl.predict(pl.trace(module, (1, 3, 224, 224)), **options),
        pl.predict(find_network("alexnet"), **options | {"gpu": find_device("Tesla K80")}),
    ]
    assert [prediction.time_s for prediction in ways] == [seconds] * len(ways)


def test_layers_are_counted_and_left_out() -> None:
    """AlexNet's multiply-accumulates by hand: positions x output channels x input channels x taps; inputs x outputs."""
    convolutions = (
        55**2 * 64 * 3 * 11**2 + 27**2 * 192 * 64 * 5**2
        + 13**2 * 384 * 192 * 3**2 + 13**2 * 256 * 384 * 3**2 + 13**2 * 256 * 256 * 3**2
    )  # fmt: skip
    whole = pl.layers("alexnet", convention="macs")
    without = pl.layers("alexnet", convention="macs", ignore=["classifier.*"])
    assert without.total == convolutions
    assert whole.total == convolutions + 9216 * 4096 + 4096 * 4096 + 4096 * 1000


def test_the_largest_batch_that_fits_is_the_largest() -> None:
    found = pl.predict("vgg16", gpu="k40m", phase="training", batch_size="fit")
    assert found.memory.fits
    assert not pl.predict("vgg16", gpu="k40m", phase="training", batch_size=found.batch_size + 1).memory.fits


def test_devices_include_shipped_and_own_files(tmp_path) -> None:
    text = (shipped_folder("hardware") / "k40m.toml").read_text().replace("Tesla K40m", "Tesla of mine")
    (tmp_path / "mine.toml").write_text(text)
    there = {device.id for device in pl.devices()}
    assert there == {path.stem for path in shipped_folder("hardware").glob("*.toml")} - {"links"}
    assert {device.id for device in pl.devices([tmp_path / "mine.toml"])} - there == {"mine"}


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "one of the three"),
        (("vgg16",), {"flops": "1G"}, "one of the three"),
        ((), {"flops": "1G", "calibration": "k40m-fp32"}, "require a network"),
        ((), {"flops": "1G", "execution": "compiled"}, "execution needs the layers of a network"),
        ((), {"flops": "1G", "memory": True}, "require a network"),
        ((), {"flops": "1G", "phase": "training"}, "a bare FLOP count supports inference only"),
        (("vgg16",), {"batch_size": "most"}, "must be an integer >= 1"),
        (("vgg16",), {"inputs": [(3, 224, 224)]}, "a shipped network takes `--image-size`"),
        (("torchvision.models:vgg16",), {}, "needs the shape of its inputs"),
        (("torchvision.models:vgg16",), {"image_size": 64}, "with its input, as in --input"),
    ],
)
def test_a_question_that_excludes_itself_gets_one_sentence(arguments, options, message) -> None:
    with pytest.raises(BadValue, match=message):
        pl.predict(*arguments, gpu="k40m", **options)


@pytest.mark.slow
def test_a_module_needs_the_shape_of_its_input() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadValue, match="a module needs the shape of its inputs"):
        pl.predict(torch.nn.Linear(2, 3), gpu="k40m")


def test_tracing_needs_torch(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"paleo-lite\[torch\]"):
        pl.trace(None)


def test_int8_runs_in_an_engine_unless_asked_otherwise() -> None:
    """PyTorch has no convolutions in int8 on GPUs, so that the bytes between unfused layers bound nothing."""
    asked = {"gpu": "t4", "precision": "int8", "batch_size": 32}
    usual, eager = pl.predict("resnet50", **asked), pl.predict("resnet50", **asked, execution="eager")
    stated = pl.predict("resnet50", **asked, execution="engine")
    assumed = set(usual.notes) - set(stated.notes)
    assert len(assumed) == 1 and "`--execution engine` is assumed" in assumed.pop()
    assert {**usual.to_dict(), "notes": None} == {**stated.to_dict(), "notes": None}
    assert usual.bound_s < eager.bound_s
    assert pl.predict("resnet50", gpu="t4", precision="fp16").execution == "eager"


def test_scaling_needs_a_device() -> None:
    with pytest.raises(BadValue, match="give `--gpu`"):
        scaling("resnet50", workers=2, link="ethernet20")
    named = scaling("resnet50", topology="2x k40m @ pcie3")
    assert named.gpu == "k40m"
    assert named.to_dict() == scaling("resnet50", gpu=find_device("k40m"), topology="2x k40m @ pcie3").to_dict()


@pytest.mark.parametrize("phase", ["training", "backward", "backward_data", "update"])
def test_fusion_applies_to_inference_only(phase: str) -> None:
    """Fusion also applies to single passes of `layers`."""
    with pytest.raises(UnsupportedPhase, match=f"counted for inference only: use eager execution for {phase}"):
        pl.layers("resnet18", phase=phase, execution="folded")
