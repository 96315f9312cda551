"""Constants of training in blocks: in the place of a device's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from paleo_lite import files
from paleo_lite.calibration.choose import choose_model
from paleo_lite.errors import BadFile
from paleo_lite.machines import find_device
from paleo_lite.timing import RooflineModel, blocks
from paleo_lite.timing.blocks import SCALED, product_share, stack_attention, training_constants, use_training_constants
from paleo_lite.timing.parameters import NAMES


def test_constants_take_the_place_of_a_devices_own_and_of_them_alone() -> None:
    model = choose_model(find_device("h100-sxm"), "bf16")
    made, known = use_training_constants(model), training_constants()
    for place, name in enumerate(NAMES):
        own = name in known.constants and name not in SCALED
        expected = (0.0 if own else model.theta[place]) + np.log(known.constants.get(name, 1.0))
        assert made.theta[place] == pytest.approx(expected)
        if name in SCALED:  # and it is no surer than the device and the constant together
            added = known.deviation[name] ** 2
            assert made.covariance[place, place] == pytest.approx(model.covariance[place, place] + added)
    assert use_training_constants(made) is made
    roofline = RooflineModel()
    assert use_training_constants(roofline) is roofline


def test_the_variance_is_the_square_of_the_scatter_on_held_out_steps() -> None:
    model = choose_model(find_device("h100-sxm"), "bf16")
    constants = msgspec.structs.replace(training_constants(), scatter=0.3)
    assert use_training_constants(model, constants).residual_variance == pytest.approx(0.09)


def test_share_of_the_largest_products_is_that_of_the_data_sheets_peak() -> None:
    device = find_device("h100-sxm")
    measured = msgspec.structs.replace(device.measured["gemm_bf16"], value="494.5 TFLOP/s")
    made = msgspec.structs.replace(device, measured={**device.measured, "gemm_bf16": measured})
    assert product_share(made) == pytest.approx(0.5, rel=1e-3)  # 989 TFLOP/s dense
    assert product_share(msgspec.structs.replace(device, measured={})) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[constants]\nspeed = 1.0\n[deviation]\nspeed = 1.0\n", "there is no parameter speed"),
        ("[constants]\nfloor_s = 1.0\n[deviation]\n", "constants and deviation must have the same names"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    head = "scatter = 0.1\npoints = 1\ndevices = []\nsources = []\nexposed_sharding = 0.9\n"
    (tmp_path / blocks.TRAINING_FILE).write_text(head + text)
    monkeypatch.setattr(files, "shipped_folder", lambda folder: tmp_path)
    with pytest.raises(BadFile, match=message):
        training_constants.__wrapped__()


@pytest.mark.parametrize(("gpu", "expected"), [("h100-sxm", "cudnn"), ("b200-sxm", "cudnn"), ("rtx5090", None)])
def test_the_attention_of_the_stack_is_one_that_was_measured(gpu: str, expected: str | None) -> None:
    """GeForce of the Blackwell generation have no kernels of data centres: `--strategy zero-2` refused them."""
    assert stack_attention(find_device(gpu)) == expected
