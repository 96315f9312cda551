"""Recipes of narrow products in training, and the devices and options that they need."""

from __future__ import annotations

import pytest

from asked import predict_any
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.timing.training_options import TRAINING_RECIPES, TrainingOptions, check_recipe, find_recipe

ADAM = TrainingOptions("adam", mixed_precision=True)


# Bytes per number with scales: 8 bits per 32 numbers (OCP MX), 8 bits per 16 numbers (NVFP4).
@pytest.mark.parametrize(
    ("name", "products", "bits"), [("fp8", "fp8", 8), ("mxfp8", "fp8", 8.25), ("nvfp4", "fp4", 4.5)]
)
def test_formats(name: str, products: str, bits: float) -> None:
    recipe = TRAINING_RECIPES[name]
    assert (recipe.products, recipe.saved_bytes * 8) == (products, bits)
    assert recipe.quantized_bytes >= 2 + 2 * recipe.saved_bytes  # read once, written in two directions
    tensors, options = ADAM.split_precision(name)
    assert (tensors, options.products, options.recipe) == ("bf16", products, name)


def test_fp4_is_nvfp4() -> None:
    assert find_recipe("fp4") == "nvfp4"
    assert find_recipe("bf16") is None
    assert ADAM.split_precision("bf16") == ("bf16", ADAM)


def test_devices_of_a_recipe() -> None:
    for name in ("mxfp8", "nvfp4"):
        check_recipe(name, find_device("b200"))
        with pytest.raises(BadValue, match=f"training in {name} needs matrix units for it, as Blackwell has: H100"):
            check_recipe(name, find_device("h100-sxm"))
    check_recipe("fp8", find_device("h100-sxm"))


@pytest.mark.parametrize("precision", ["mxfp8", "fp8", "nvfp4", "fp4"])
def test_recipes_imply_mixed_precision(precision: str) -> None:
    """Transformer Engine computes products alone in 8 or 4 bits (docs/examples/fp8_primer), all else in 16."""
    asked = {"gpu": "b200", "precision": precision, "phase": "training"}
    implied = predict_any("gpt2", **asked, training=TrainingOptions("adam"))
    assert implied.time_s == predict_any("gpt2", **asked, training=ADAM).time_s
    without_options = predict_any("gpt2", **asked)
    assert without_options.workload.precision == "bf16" and without_options.workload.product_precision != "bf16"


def test_recipes_are_of_training() -> None:
    at_inference = predict_any("gpt2", gpu="b200", precision="mxfp8")
    assert at_inference.time_s == predict_any("gpt2", gpu="b200", precision="fp8", weights="mxfp8").time_s
    with pytest.raises(BadValue, match="`--precision mxfp8` is for training and inference, not for backward"):
        predict_any("gpt2", gpu="b200", precision="mxfp8", phase="backward")


def test_a_step_in_each_format() -> None:
    """By the roofline, without memory-bound products, twice the rate halves their time (NVIDIA: 5 and 10 PFLOP/s)."""
    times = {}
    for name in ("mxfp8", "fp8", "nvfp4", "fp4"):
        asked = {"precision": name, "phase": "training", "training": ADAM, "time_model": "peak"}
        times[name] = predict_any("gpt3-1.3b", gpu="gb200", sequence_length=2048, **asked).time_s
    assert (times["mxfp8"], times["nvfp4"]) == (times["fp8"], times["fp4"])
    products = 24 * 12 * 2048**2 * 2048 * 6 / 5000e12
    assert times["mxfp8"] - times["nvfp4"] == pytest.approx(products / 2, rel=0.02)
