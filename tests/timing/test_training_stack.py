"""Constants of the tuned training stack: their file, and where they are used.

Tests: timing/blocks.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite import files
from paleo_lite.calibration.choose import choose_model
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import BadFile
from paleo_lite.machines import find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing import blocks as stack
from paleo_lite.timing.blocks import TrainingModel, use_kernel_constants
from paleo_lite.timing.training_options import TrainingOptions

ADAM = TrainingOptions("adam", mixed_precision=True)


def test_devices_of_the_stack() -> None:
    supported = {
        name: stack.supports_stack(find_device(name)) for name in ("a100-sxm-80gb", "h100-sxm", "gb300", "mi355x")
    }
    assert supported == {"a100-sxm-80gb": False, "h100-sxm": True, "gb300": True, "mi355x": False}
    # Fully sharded training on Hopper keeps the constants of FSDP.
    assert not stack.supports_stack(find_device("h100-sxm"), is_fully_sharded=True)
    assert stack.supports_stack(find_device("b200"), is_fully_sharded=True)


def test_constants_replace_those_of_kernels_once() -> None:
    """A model that has constants of kernels gets those of the stack, too: no share of bandwidth is applied twice."""
    model = choose_model(find_device("h100-sxm"), "bf16", products="fp8")
    direct, after_kernels = (stack.use_stack_constants(one, "fp8") for one in (model, use_kernel_constants(model)))
    assert isinstance(direct, TrainingModel) and isinstance(after_kernels, TrainingModel)
    assert direct.theta == pytest.approx(after_kernels.theta)
    assert direct.narrow_relative_efficiency == stack.stack_constants().relative_efficiency["fp8"]
    assert stack.use_stack_constants(RooflineModel(), None) == RooflineModel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tensor_overlap = 0.", "tensor_overlap = 2."), "tensor_overlap must be between 0 and 1"),
        (("nvfp4 =", "nvfp3 ="), "relative_efficiency has no nvfp4"),
        (("efficiency_gemm =", "efficiency_gem ="), "there is no parameter efficiency_gem"),
    ],
)
def test_damaged_constants_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], message: str
) -> None:
    shipped = files.shipped_folder("calibrations") / stack.STACK_FILE
    (tmp_path / "calibrations").mkdir()
    (tmp_path / "calibrations" / stack.STACK_FILE).write_text(shipped.read_text().replace(*change))
    monkeypatch.setattr(files, "shipped_folder", lambda name: tmp_path / name)
    stack.stack_constants.cache_clear()
    with pytest.raises(BadFile, match=message):
        stack.stack_constants()
    stack.stack_constants.cache_clear()


@pytest.mark.thorough
def test_recomputation_that_the_memory_requires() -> None:
    """Llama 3 70B in Megatron-Bridge's layout fits 64 H100 of 80 GB without recomputation, but not 32."""

    def row(workers: int, **options: object) -> pl.ScaleTable:
        config = ParallelConfig(4, workers // 8, 5, True, **options)
        return scaling(
            "llama-3-70b", platform="dgx-h100", workers=workers, batch_size=128, scaling="strong", precision="fp8",
            sequence_length=8192, training=ADAM, settings=Settings(parallel=config),
        )[0]  # fmt: skip

    full = row(64)
    assert full.fits and "recomputation" not in full.notes[0]
    half = row(32)
    assert half.fits and "recomputation" in half.notes[0]
    assert row(32, recompute="none").fits is False
