"""What a text says of a run beside its report: commands as published pages show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paleo_lite.result_files import descriptions
from paleo_lite.result_files.detect import read_result
from paleo_lite.result_files.findings import Findings

REPORT = """
============ Serving Benchmark Result ============
Successful requests:                     50
Benchmark duration (s):                  1044.40
Total input tokens:                      55836
Total generated tokens:                  209303
Mean TTFT (ms):                          651.77
==================================================
"""


def findings_of(text: str, folder: Path) -> Findings:
    path = folder / "run.md"
    path.write_text(text, "utf-8")
    return read_result(path)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n  --max-num-seqs 256 --max-num-batched-tokens 4096 \\\n"
            "  --port 8000 &\nvllm bench serve \\\n  --model meta-llama/Llama-3.1-8B-Instruct --request-rate inf\n",
            {
                "engine": "vllm", "network": "meta-llama/Llama-3.1-8B-Instruct", "tensor": 1, "max_num_seqs": 256,
                "chunk_tokens": 4096,
            },
        ),
        (
            "**Hardware:** DGX Spark NVIDIA GB10 128GB\n"
            "docker exec bench vllm bench serve --backend openai-chat --model nvidia/Nemotron-3-30B-BF16 --seed 42\n",
            {"engine": "vllm", "network": "nvidia/Nemotron-3-30B-BF16", "gpu": "NVIDIA GB10", "precision": "bf16"},
        ),
        (
            "vllm serve -tp 8 meta-llama/Llama-3.1-70B-Instruct --max-num-seqs 2048\n",
            {"engine": "vllm", "network": "meta-llama/Llama-3.1-70B-Instruct", "tensor": 8, "max_num_seqs": 2048},
        ),
        (
            "python benchmark_serving.py --backend openai-chat --model meta-llama/Llama-3.1-70B-Instruct --port 8000\n",
            {"network": "meta-llama/Llama-3.1-70B-Instruct"},
        ),
        (
            "- GPUs: 8xH200\npython3 -m sglang.launch_server --model-path 'deepseek-ai/DeepSeek-R1' --tp 8 --dp=8\n",
            {
                "engine": "sglang", "network": "deepseek-ai/DeepSeek-R1", "tensor": 8, "data": 8, "gpu": "H200",
                "devices": 8,
            },
        ),
        ("trtllm-serve serve openai/gpt-oss-20b --tp_size 2\n", {"engine": "tensorrt-llm", "tensor": 2}),
    ],
    ids=["vllm", "spark", "behind options", "client alone", "sglang", "trtllm"],
)  # fmt: skip
def test_commands_and_hardware_are_guessed(text: str, facts: dict[str, Any], tmp_path: Path) -> None:
    findings = findings_of(text + REPORT, tmp_path)
    assert {name: findings.configuration.get(name) for name in facts} == facts
    assert facts.keys() <= findings.guessed.keys()


def test_what_is_stated_twice_must_agree(tmp_path: Path) -> None:
    """Two servers in one text leave open which of them was measured."""
    text = "vllm serve a/one --tensor-parallel-size 2\nvllm serve a/two --tensor-parallel-size 2\n"
    findings = findings_of(text + REPORT, tmp_path)
    assert "network" not in findings.configuration
    assert findings.configuration["tensor"] == 2
    assert "the commands name several values of network: a/one, a/two" in findings.doubts


def test_devices_that_differ_are_said(tmp_path: Path) -> None:
    findings = findings_of("GPU: 8xH200\nGPU: 4xA100\n" + REPORT, tmp_path)
    assert "gpu" not in findings.configuration
    assert "the text names several devices: H200, A100" in findings.doubts


@pytest.mark.parametrize(("tensor", "is_said"), [(2, True), (8, False)])
def test_devices_that_the_server_leaves_idle_are_said(tensor: int, is_said: bool, tmp_path: Path) -> None:
    text = f"GPU: 8xH200\nvllm serve a/one --tensor-parallel-size {tensor}\n"
    said = f"the text names 8 devices, and the command of the server uses {tensor}"
    assert (said in findings_of(text + REPORT, tmp_path).doubts) == is_said


@pytest.mark.parametrize("value", ["$TP", "<N>", "{tp}", "auto"])
def test_a_variable_says_nothing(value: str, tmp_path: Path) -> None:
    findings = findings_of(f'vllm serve "$MODEL" --tensor-parallel-size {value}\n{REPORT}', tmp_path)
    assert {"tensor", "network"}.isdisjoint(findings.configuration)


def test_prose_about_an_engine_is_no_command(tmp_path: Path) -> None:
    findings = findings_of(f"We compared vllm and sglang - with --tp 8 both are fast.\n{REPORT}", tmp_path)
    assert {"engine", "tensor", "network"}.isdisjoint(findings.configuration)


def test_of_a_long_log_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "_MOST_LINES", 2)
    requests = "INFO - vllm request finished\n" * 5
    findings = findings_of(f"vllm serve a/one\n{REPORT}{requests}vllm serve a/two\n", tmp_path)
    assert findings.configuration["network"] == "a/one"
