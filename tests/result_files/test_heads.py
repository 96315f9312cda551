"""What logs of training say before the first step, in the words of the tools' sources.

Tests: result_files/log_heads.py, result_files/network_names.py, result_files/torchtitan.py,
    result_files/training_heads.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paleo_lite.result_files.configuration import is_same
from paleo_lite.result_files.detect import read_result
from paleo_lite.result_files.log_heads import HEAD_CHUNKS, value_of
from paleo_lite.result_files.megatron import facts_of_arguments
from paleo_lite.result_files.network_names import find_network_name
from paleo_lite.result_files.text import CHUNK_BYTES
from result_samples import COMPOSER, DEEPSPEED, LITGPT, STEPS, TITAN_2024, TITAN_2025, TITAN_2026, TRAINER


def facts_of(text: str, folder: Path) -> dict[str, Any]:
    path = folder / "run.log"
    path.write_text(text, "utf-8")
    return read_result(path).configuration


def assert_has(facts: dict[str, Any], **expected: Any) -> None:
    assert {name: facts.get(name) for name in expected} == expected


def test_torchtitan_with_a_device_mesh(tmp_path: Path) -> None:
    facts = facts_of(TITAN_2025 + STEPS, tmp_path)
    assert_has(
        facts, gpu="NVIDIA H100 80GB HBM3", network="llama3 8B", parameters=8_030_261_248, devices=64, tensor=4,
        strategy="hybrid-shard", execution="compiled", recompute="selective", precision="bf16", global_batch_size=64,
        micro_batch=2, sequence_length=8192,
    )  # fmt: skip


def test_torchtitan_with_a_pipeline_and_float8(tmp_path: Path) -> None:
    """Eight stages on four ranks are two virtual stages; the mesh names experts apart from the devices."""
    facts = facts_of(TITAN_2026 + STEPS, tmp_path)
    assert_has(
        facts, network="deepseek-v3", devices=64, pipeline=4, tensor=2, expert_parallel=8, virtual_stages=2,
        strategy="shard-grad-op", recompute="full", execution="eager", precision="fp8", sequence_length=4096,
        global_batch_size=128,
    )  # fmt: skip


def test_torchtitan_of_2024(tmp_path: Path) -> None:
    facts = facts_of(TITAN_2024 + STEPS, tmp_path)
    assert_has(
        facts, gpu="NVIDIA A100-SXM4-80GB", devices=8, strategy="full-shard", recompute="none", execution="eager",
        global_batch_size=8, sequence_length=8192,
    )  # fmt: skip


def test_layers_that_are_recomputed_in_turn(tmp_path: Path) -> None:
    head = TITAN_2025 + "INFO - Running with args: {'activation_checkpoint': {'selective_ac_option': '2'}}\n"
    assert facts_of(head + STEPS, tmp_path)["recompute"] == "full:2"


def test_experts_within_the_sharded_dimension(tmp_path: Path) -> None:
    head = "Building 2-D device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep'], [2, 4]\n"
    assert_has(facts_of(head + STEPS, tmp_path), devices=8, expert_parallel=4, strategy="full-shard")


def test_steps_alone_say_nothing_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(STEPS)
    findings = read_result(path)
    assert findings.configuration == {}
    assert any("the head of the log" in doubt for doubt in findings.doubts)


@pytest.mark.parametrize(
    "mesh", ["['dp_shard', 8", "[[[[[[", "['dp_shard'], [99999999999999999]", f"['a'], [{'9, ' * 4000}9]"]
)
def test_damaged_meshes_are_no_configuration(mesh: str, tmp_path: Path) -> None:
    facts = facts_of(f"Building 1-D device mesh with {mesh}\n{STEPS}", tmp_path)
    assert facts.get("devices", 1) < 10**30


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": "['moe_act', 'layernorm']"},
         {"recompute": "selective:moe_act+layernorm"}),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": "2",
          "num_layers": "32", "pipeline_model_parallel_size": "4"}, {"recompute": "full:4"}),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": "1",
          "num_layers": "32"}, {"recompute": "full"}),
        ({"recompute_granularity": "None"}, {"recompute": "none"}),
        ({"checkpoint_activations": "True"}, {"recompute": "full"}),
        ({"seq_length": "4096"}, {"recompute": None, "strategy": None, "sequence_length": 4096}),
        ({"fp8": "hybrid", "fp8_recipe": "mxfp8", "bf16": "True"}, {"precision": "mxfp8"}),
        ({"fp8": "e4m3", "fp8_recipe": "delayed", "bf16": "True"}, {"precision": "fp8"}),
        ({"fp8": "None", "bf16": "True", "params_dtype": "torch.bfloat16"}, {"precision": "bf16"}),
        ({"precision": "bf16-mixed", "use_distributed_optimizer": "true"},
         {"precision": "bf16", "strategy": "distributed-optimizer"}),
        ({"use_distributed_optimizer": "False"}, {"strategy": "ddp"}),
        ({"num_layers": "48", "pipeline_model_parallel_size": "4", "num_layers_per_virtual_pipeline_stage": "3"},
         {"virtual_stages": 4}),
    ],
)  # fmt: skip
def test_arguments_of_megatron(arguments: dict[str, str], expected: dict[str, Any]) -> None:
    """`megatron/training/arguments.py`: `--recompute-method block` computes only some layers of a stage again."""
    assert_has(facts_of_arguments(arguments), **expected)


def test_nemo_prints_yaml(tmp_path: Path) -> None:
    head = (
        "    tensor_model_parallel_size: 2\n    micro_batch_size: 1\n    encoder_seq_length: 8192\n"
        "    activations_checkpoint_granularity: selective\n  precision: bf16-mixed\n"
    )
    line = "Epoch 0: 1/2 [00:01<00:02, global_step=9.000, consumed_samples=160.0, train_step_timing in s=3.130]\n"
    assert_has(
        facts_of(head + line, tmp_path), tensor=2, micro_batch=1, sequence_length=8192, recompute="selective",
        precision="bf16",
    )  # fmt: skip


def test_deepspeed(tmp_path: Path) -> None:
    """Names that reach into the column of values have no dots."""
    assert_has(
        facts_of(DEEPSPEED, tmp_path), precision="bf16", global_batch_size=64, devices=8, zero_stage=3, accumulation=2,
        micro_batch=4,
    )  # fmt: skip


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    """10 samples in 8 accumulated passes of 8 devices are 640; 1,000 steps in 2,000 s take 2 s each."""
    path = tmp_path / "run.log"
    path.write_text(TRAINER)
    findings = read_result(path)
    assert_has(
        findings.configuration, devices=8, global_batch_size=640, micro_batch=10, accumulation=8, precision="bf16",
        recompute="full", execution="eager", strategy="full-shard",
    )  # fmt: skip
    assert_has(findings.readings[0].values, step_s=2.0, global_batch_size=640, steps=1000)


def test_litgpt(tmp_path: Path) -> None:
    """16 samples on 4 devices are 4 iterations: three of 100 ms, and one of 150 ms with the update."""
    path = tmp_path / "run.log"
    path.write_text(LITGPT)
    findings = read_result(path)
    assert_has(
        findings.configuration, network="Llama-2-7b-hf", devices=4, precision="bf16", global_batch_size=16,
        micro_batch=1, sequence_length=512,
    )  # fmt: skip
    (whole,) = (reading.values for reading in findings.readings if "variant" not in reading.values)
    assert whole["step_s"] == pytest.approx(0.45)


def test_composer(tmp_path: Path) -> None:
    assert_has(
        facts_of(COMPOSER, tmp_path), devices=16, nodes=2, sequence_length=2048, global_batch_size=256, micro_batch=16,
        precision="bf16", strategy="full-shard", recompute="none",
    )  # fmt: skip


def test_only_the_head_is_searched(tmp_path: Path) -> None:
    """A log of days does not describe its run again."""
    noise = b"something else\n" * (HEAD_CHUNKS * CHUNK_BYTES // 15 + 1)
    path = tmp_path / "run.log"
    path.write_bytes(STEPS.encode() + noise + b"Building 1-D device mesh with ['dp'], [8]\n")
    assert "devices" not in read_result(path).configuration


@pytest.mark.parametrize(
    ("text", "value"),
    [("None", None), ("null", None), ("True", True), ("false", False), ("4,096", 4096), ("torch.float16", "float16")],
)
def test_printed_values(text: str, value: Any) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("name", "found"),
    [("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("llama3 8B", "llama-3-8b"), ("nothing", None)],
)
def test_names_of_networks(name: str, found: str | None) -> None:
    assert find_network_name(name, ("llama-3-8b", "llama-3.1-8b")) == found


@pytest.mark.parametrize(
    ("name", "recorded", "given", "same"),
    [
        ("gpu", "NVIDIA H100 80GB HBM3", "h100-sxm", True), ("gpu", "H100", "h100-sxm", True),
        ("gpu", "NVIDIA H100 80GB HBM3", "a100-sxm-80gb", False), ("network", "llama3 8B", "llama-3-8b", True),
        ("network", "llama3 8B", "llama-3-70b", False), ("devices", 8, 8.0, True),
        ("precision", "bfloat16", "bf16", True),
    ],
)  # fmt: skip
def test_facts_are_equal_in_other_words(name: str, recorded: Any, given: Any, same: bool) -> None:
    assert is_same(name, recorded, given) is same


def test_impossible_lines_of_torchtitan_are_doubted(tmp_path: Path) -> None:
    """A slip of the decimal point in one of many lines is lost in their mean."""
    line = "step: {}  loss:  8.2  memory: {}GiB({}%)  tps: 5,900  tflops: {}  mfu: {}%\n"
    steps = [(10, "70.0", "88.5", "346.2", "35.00")] * 20
    path = tmp_path / "run.log"
    path.write_text("".join(line.format(*step) for step in steps), "utf-8")
    assert not [doubt for doubt in read_result(path).readings[0].doubts if "100%" in doubt or "peak" in doubt]
    wrong = [*steps, (220, "156.1", "197.9", "34.62", "350")]
    path.write_text("".join(line.format(*step) for step in wrong), "utf-8")
    text = " ".join(read_result(path).readings[0].doubts)
    assert "1 of 21 lines have an MFU of up to 350%" in text and "memory in use of up to 197.9%" in text
    assert "a peak of 9.89 TFLOP/s in one line and of 989 in another" in text
