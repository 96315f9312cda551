"""Rows of training in result files, as options of `train` and as evidence.

Tests: api/contradictions.py, api/training_rows.py, questions/recorded_facts.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.api.training_rows import describe_assumptions, measured_step_s, training_options
from paleo_lite.calibration.evidence_file import EvidenceCalibration
from paleo_lite.errors import BadValue

HEAD = """using world size: 16, data-parallel-size: 8, tensor-model-parallel size: 2
  micro_batch_size ................................ 1
  global_batch_size ............................... 64
  seq_length ...................................... 4096
  tensor_model_parallel_size ...................... 2
  pipeline_model_parallel_size .................... 1
  world_size ...................................... 16
  params_dtype .................................... torch.bfloat16
"""
STEP = (
    " iteration {number:8}/     100 | consumed samples: 64 | elapsed time per iteration (ms): {ms:.1f} | "
    "global batch size: 64 | lm loss: 10.0 | number of skipped iterations:   0 |\n"
)


def ask(**options: Any) -> Any:
    """Return the forecast of the step in the log."""
    return pl.train(
        "llama-3-8b", platform="dgx-h100", workers=16, tensor=2, global_batch_size=64, micro_batch=1,
        sequence_length=4096, precision="bf16", **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> EvidenceCalibration:
    """Return what a log of Megatron-LM says whose steps take 1.4 times their forecast."""
    ms = 1400 * ask().rows[0].time_s
    path = tmp_path_factory.mktemp("logs") / "megatron.log"
    path.write_text(HEAD + "".join(STEP.format(number=number, ms=ms) for number in range(4, 9)))
    found = pl.calibrate(path, gpu="h100-sxm", network="llama-3-8b")
    assert isinstance(found, EvidenceCalibration)
    return found


def test_a_log_is_evidence(calibration: EvidenceCalibration) -> None:
    (row,) = calibration.observations
    assert (row.kind, row.figure) == ("train", "step_s")
    assert row.traits["engine"] == "megatron"
    assert row.measured / row.forecast == pytest.approx(1.4, rel=0.01)
    assert sum(row.shares.values()) == pytest.approx(1, abs=0.001)


def test_the_same_cluster_moves_towards_what_was_measured(calibration: EvidenceCalibration) -> None:
    shipped, moved = ask(), ask(calibration=calibration)
    assert 1.15 < moved.rows[0].time_s / shipped.rows[0].time_s < 1.45
    assert "moved by 1 measured figure" in moved.model


@pytest.mark.thorough
def test_another_device_moves_by_what_is_common(calibration: EvidenceCalibration) -> None:
    options: dict[str, Any] = {"platform": "dgx-b200", "workers": 8, "tensor": 2, "precision": "bf16"}
    shipped: Any = pl.train("qwen3-8b", **options)
    moved: Any = pl.train("qwen3-8b", **options, calibration=calibration)
    assert 1.02 < moved.rows[0].time_s / shipped.rows[0].time_s < 1.3
    assert "another device (h100-sxm)" in moved.model


def test_one_device_takes_the_calibration_as_well(calibration: EvidenceCalibration) -> None:
    moved: Any = pl.train(
        "qwen2.5-0.5b", gpu="h100-sxm", precision="bf16", batch_size=1, sequence_length=256, calibration=calibration
    )
    assert "of another engine (megatron)" in moved.calibration


def test_several_numbers_of_devices_are_one_table(calibration: EvidenceCalibration) -> None:
    table = pl.train("llama-3-8b", platform="dgx-h100", workers=[8, 16], tensor=2, calibration=calibration)
    assert [row.workers for row in table.rows] == [8, 16]


def test_text_generation_and_measured_steps_are_refused(calibration: EvidenceCalibration) -> None:
    with pytest.raises(BadValue, match="give only one of `--measured`"):
        ask(calibration=calibration, measured=["16 workers: 100 s"])
    with pytest.raises(pl.PaleoError, match="covers steps of training only, not single passes"):
        pl.predict("resnet50", gpu="h100-sxm", calibration=calibration)


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"step_s": 2.0}, 2.0),
        ({"samples_per_s": 32.0, "global_batch_size": 64}, 2.0),
        ({"samples_per_s_per_device": 4.0, "devices": 8, "global_batch_size": 64}, 2.0),
        ({"tokens_per_s_per_device": 4096, "devices": 8, "global_batch_size": 16, "sequence_length": 4096}, 2.0),
        ({"tokens_per_s_per_device": 4096, "devices": 8, "global_batch_size": 16}, None),
        ({"samples_per_s": 32.0}, None),
    ],
)
def test_rates_are_steps(facts: dict[str, Any], seconds: float | None) -> None:
    assert measured_step_s(facts) == seconds


def test_options_of_tools() -> None:
    titan = {"gpu": "h100-sxm", "tool": "torchtitan", "devices": 8, "global_batch_size": 16}
    assert training_options(titan)["strategy"] == "full-shard"
    zero = training_options({"gpu": "h100-sxm", "tool": "DeepSpeed", "devices": 8, "zero_stage": 2, "batch_size": 8})
    assert zero["strategy"] == "zero-2"
    with pytest.raises(BadValue, match="write `global_batch_size = 256` to a sidecar"):
        training_options({"gpu": "h100-sxm"})


def test_what_a_log_records_is_asked() -> None:
    facts = {
        "gpu": "h100-sxm", "tool": "torchtitan", "devices": 64, "global_batch_size": 64, "micro_batch": 2,
        "pipeline": 4, "virtual_stages": 2, "strategy": "shard-grad-op", "execution": "eager", "recompute": "full",
        "precision": "mxfp8", "accumulation": 3,
    }  # fmt: skip
    assert training_options(facts) == {
        "gpu": "h100-sxm", "workers": 64, "global_batch_size": 64, "micro_batch": 2, "pipeline": 4,
        "strategy": "shard-grad-op", "execution": "eager", "recompute": "full", "precision": "mxfp8",
        "schedule": "interleaved=2",
    }  # fmt: skip
    assert describe_assumptions(facts) == ""


def test_one_device_accumulates_micro_batches() -> None:
    facts = {"gpu": "h100-sxm", "devices": 1, "global_batch_size": 8, "micro_batch": 2, "strategy": "full-shard"}
    assert training_options(facts) == {"gpu": "h100-sxm", "batch_size": 8, "accumulation": 4, "precision": "bf16"}


def test_assumptions_are_said() -> None:
    said = describe_assumptions({"tool": "torchtitan", "devices": 8, "execution": "eager"})
    assert said == (
        "assumed, since it is not in the file: strategy full-shard (`--strategy`), recomputation none (`--recompute`)"
    )
    assert "strategy" not in describe_assumptions({"tool": "DeepSpeed", "zero_stage": 2})


def test_a_part_of_a_step_is_refused() -> None:
    with pytest.raises(BadValue, match="one micro-batch is a part of a step"):
        training_options({"gpu": "h100-sxm", "global_batch_size": 8, "variant": "one micro-batch"})


TITAN = """CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory
Building 1-D device mesh with ['dp_shard'], [8]
Model llama3 8B size: 8,030,261,248 total parameters
Applied full activation checkpointing to the model
Compiling each TransformerBlock with torch.compile
Trainer is initialized with local batch size 1, global batch size 16, sequence length 4096
"""


@pytest.mark.parametrize("given", [{}, {"recompute": "none", "global_batch_size": 32}])
def test_the_head_of_a_log_is_the_question(given: dict[str, Any], tmp_path: Path) -> None:
    """A forecast beside a log of torchtitan is that of `train`; what the user gives rules."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "titan.log"
    path.write_text(TITAN + "step: 20  loss: 9.1  memory: 40.00GiB(50.00%)  tps: 4,096  mfu: 30.00%\n")
    asked: Any = pl.train(
        "llama-3-8b", gpu="h100-sxm", precision="bf16", workers=8, sequence_length=4096, micro_batch=1,
        strategy="full-shard", execution="compiled", **{"global_batch_size": 16, "recompute": "full", **given},
    )  # fmt: skip
    found: Any = pl.calibrate(path, **given)
    assert found.observations[0].forecast == asked.answering_row.time_s
    assert found.observations[0].measured == pytest.approx(given.get("global_batch_size", 16) / 8)
    (row,) = pl.compare(path, **given).rows  # type: ignore[union-attr]
    assert (row.forecast, row.measured) == (asked.answering_row.time_s, found.observations[0].measured)


def test_one_device_recomputes_parts_of_blocks() -> None:
    """One device recomputes as many do."""
    facts = {"gpu": "h100-sxm", "devices": 1, "global_batch_size": 2, "recompute": "selective", "execution": "compiled"}
    options = training_options(facts)
    assert "workers" not in options
    one, group = (pl.train("llama-3.2-1b", sequence_length=1024, **options, **more) for more in ({}, {"workers": 1}))
    assert one.time_s == pytest.approx(group.answering_row.time_s)  # type: ignore[union-attr]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"network": "llama-3-70b"}, ["the file says 8,030,261,248 parameters, and llama-3-70b has 70,553,706,496"]),
        (
            {"network": "llama-3-70b", "gpu": "a100-sxm-80gb"},
            ["times the least that the data sheets of its devices allow"],
        ),
        ({"network": "llama-3.1-8b"}, []),
    ],
)
def test_a_log_of_another_network_is_noticed(given: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    """The numbers of parameters are those of the models' cards: 8.03 and 70.55 billion."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "titan.log"
    path.write_text(TITAN + "step: 20  loss: 9.1  memory: 40.00GiB(50.00%)  tps: 4,096  mfu: 30.00%\n")
    facts = {("predict" if name == "network" else name): value for name, value in given.items()}
    for notes in (pl.calibrate(path, **given).notes, pl.compare(path, **facts).notes):  # type: ignore[union-attr]
        assert all(any(text in note for note in notes) for text in said), notes
        assert said or not any("check the network" in note for note in notes)
