"""Commands that launch a deployment, against the documented options of each engine.

Tests: engines/records/tensorrt_llm.py.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.cli import main
from paleo_lite.engines.records import SERVERS
from paleo_lite.errors import BadValue
from paleo_lite.serving.answers import Serving
from paleo_lite.serving.launch import find_repository

MIXTURE = {"gpu": "h200", "tensor": 8, "concurrency": 8, "num_requests": 20}

DOCUMENTED = {
    # docs.vllm.ai/en/latest/cli/serve
    "vllm": "--tensor-parallel-size --data-parallel-size --enable-expert-parallel --pipeline-parallel-size "
    "--max-num-seqs --max-num-batched-tokens --no-enable-chunked-prefill --block-size --gpu-memory-utilization --dtype "
    "--quantization --kv-cache-dtype --max-model-len --enable-lora --max-loras --max-lora-rank --max-cpu-loras "
    "--max-cudagraph-capture-size",
    # tensorrt_llm/commands/serve.py
    "tensorrt-llm": "--tp_size --ep_size --pp_size --max_batch_size --max_num_tokens --enable_chunked_prefill "
    "--kv_cache_free_gpu_memory_fraction --max_seq_len",
    # docs.sglang.io/advanced_features/server_arguments
    "sglang": "--tp-size --dp-size --enable-dp-attention --ep-size --pp-size --max-running-requests --page-size "
    "--max-prefill-tokens --chunked-prefill-size --mem-fraction-static --scheduler-recv-interval --dtype "
    "--quantization --kv-cache-dtype --context-length --enable-lora --max-loras-per-batch --max-lora-rank "
    "--max-loaded-loras --cuda-graph-max-bs",
}


def serve(network: str, **question: Any) -> Serving:
    return pl.serve(network, **question)


def options_of(command: str) -> dict[str, str]:
    """Return the options of a command with their values; those without a value have an empty one."""
    options: dict[str, str] = {}
    name = ""
    for word in shlex.split(command.rpartition("&& ")[2]):
        if word.startswith("-") and not word[1:].isdigit():
            name, options[word] = word, ""
        elif name:
            options[name] = word
            name = ""
    return options


@pytest.mark.parametrize("engine", sorted(DOCUMENTED))
def test_options_are_those_of_the_engine(engine: str) -> None:
    launcher = SERVERS[engine].launcher
    assert launcher is not None
    assert {option for option, _ in launcher.options} == set(DOCUMENTED[engine].split())


def test_limits_are_those_of_the_simulated_engine() -> None:
    command = serve("llama-3-8b", gpu="h100-sxm", rate=1, num_requests=20, max_sequences=64).launch_command
    assert command is not None
    assert command.startswith("vllm serve meta-llama/Meta-Llama-3-8B ")
    assert options_of(command) == {
        "--max-num-seqs": "64", "--max-num-batched-tokens": "8192", "--gpu-memory-utilization": "0.9"
    }  # fmt: skip


def test_vllm_launches_attention_groups_as_data_parallel_ranks() -> None:
    command = serve(
        "deepseek-v3", precision="fp8", kv_cache="fp8", expert_parallel=8, attention_data_parallel=4, **MIXTURE
    ).launch_command
    assert command is not None
    options = options_of(command)
    assert (options["--tensor-parallel-size"], options["--data-parallel-size"]) == ("2", "4")
    assert options["--enable-expert-parallel"] == ""
    assert (options["--max-num-seqs"], options["--max-num-batched-tokens"]) == ("1024", "8192")  # of each rank
    assert options["--kv-cache-dtype"] == "fp8" and "--quantization" not in options  # published in blocks of fp8


def test_sglang_counts_all_devices_as_tensor_parallel() -> None:
    command = serve(
        "qwen3-30b-a3b", kv_cache="fp8", expert_parallel=8, attention_data_parallel=8, engine="sglang", **MIXTURE
    ).launch_command
    assert command is not None
    assert command.startswith("python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B ")
    options = options_of(command)
    assert [options[name] for name in ("--tp-size", "--ep-size", "--dp-size")] == ["8", "8", "8"]
    assert options["--enable-dp-attention"] == "" and options["--kv-cache-dtype"] == "fp8_e4m3"


@pytest.mark.thorough
def test_tensorrt_llm_reads_attention_data_parallelism_from_a_file() -> None:
    command = serve(
        "qwen3-30b-a3b", kv_cache="fp8", attention_data_parallel=8, expert_parallel=4, engine="tensorrt-llm", **MIXTURE
    ).launch_command
    assert command is not None
    assert command.startswith(
        "printf '%s\\n' 'enable_attention_dp: true' 'kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.9}' "
        "'cuda_graph_config: {enable_padding: true, max_batch_size: 2048}' > options.yaml && trtllm-serve "
        "Qwen/Qwen3-30B-A3B --tp_size 8 --ep_size 4 "
    )
    assert command.endswith(" --extra_llm_api_options options.yaml")
    wide = serve("qwen3-30b-a3b", attention_data_parallel=8, engine="tensorrt-llm", **MIXTURE).launch_command
    assert wide is not None and "'enable_attention_dp: true'" in wide and "kv_cache_config" not in wide
    plain = serve("qwen3-30b-a3b", engine="tensorrt-llm", max_sequences=512, **MIXTURE).launch_command
    assert plain is not None and "enable_attention_dp" not in plain
    assert "'cuda_graph_config: {enable_padding: true, max_batch_size: 512}' > options.yaml" in plain


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "--max-cudagraph-capture-size 64"),
        ("sglang", "--cuda-graph-max-bs 64"),
        ("tensorrt-llm", "cuda_graph_config: {enable_padding: true, max_batch_size: 64}"),
    ],
)
def test_captured_graphs_are_stated(engine: str, words: str) -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "precision": "bf16", "concurrency": 32, "engine": engine}
    command = serve("llama-3.1-8b", engine_settings={"captured_sequences": 64}, **asked).launch_command
    assert command is not None and words in command


@pytest.mark.thorough
def test_pipeline_and_whole_prompts() -> None:
    result = serve(
        "llama-3-70b", gpu="h100-sxm", tensor=2, pipeline=2, rate=1, num_requests=20, chunked_prefill=0,
        engine_settings={"block_size": 32},
        precision="fp16",
    )  # fmt: skip
    assert result.launch_command is not None
    options = options_of(result.launch_command)
    assert (options["--pipeline-parallel-size"], options["--tensor-parallel-size"]) == ("2", "2")
    assert options["--no-enable-chunked-prefill"] == ""
    assert (options["--block-size"], options["--dtype"]) == ("32", "float16")


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("question", "note"),
    [
        ({"expert_parallel": 4}, "no launch command: vllm divides experts among all 8 devices or none (got 4)"),
        ({"attention_data_parallel": 4, "engine": "tensorrt-llm"},
         "no launch command: tensorrt-llm divides attention into as many groups as devices, 8, or one (got 4)"),
        ({"kv_cache": "int8"}, "no launch command: vllm has no KV cache in int8; it has fp8"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_noted(question: dict[str, Any], note: str) -> None:
    result = serve("qwen3-30b-a3b", **{**MIXTURE, **question})
    assert result.launch_command is None and note in result.notes


def test_engines_of_the_past_have_no_command() -> None:
    old = serve("llama-3-8b", gpu="h100-sxm", rate=1, num_requests=20, engine="vllm-0.5")
    assert old.launch_command is None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        # docs.vllm.ai/en/stable/features/nixl_connector_usage.html
        ("vllm", ('--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}',) * 2),
        # docs.sglang.io/docs/advanced_features/pd_disaggregation.md
        ("sglang", ("--disaggregation-mode prefill", "--disaggregation-mode decode")),
        # nvidia.github.io/TensorRT-LLM/features/disagg-serving.html
        ("tensorrt-llm", ("disable_overlap_scheduler: true", "cache_transceiver_config: {backend: DEFAULT}")),
    ],
)
def test_each_pool_has_a_command(engine: str, words: tuple[str, str]) -> None:
    result = serve(
        "llama-3-8b", gpu="h100-sxm", rate=1, num_requests=20, engine=engine, prefill_pool="replicas=1,tensor=2",
        decode_pool="max-sequences=32",
    )  # fmt: skip
    assert result.prefill_pool is not None
    commands = [str(one) for one in (result.prefill_pool.launch_command, result.launch_command)]
    for command, word in zip(commands, words, strict=True):
        assert word in " ".join(shlex.split(command))
    degree = next(option for option in ("--tensor-parallel-size", "--tp-size", "--tp_size") if option in commands[0])
    assert f"{degree} 2" in commands[0] and degree not in commands[1]


def test_checkpoints_of_formats_are_noted() -> None:
    integers = serve("llama-3-8b", gpu="h100-sxm", rate=1, num_requests=20, weights="int4", speculation="tokens=2")
    notes = " ".join(integers.notes)
    assert "needs a checkpoint with weights in int4: name it instead of meta-llama/Meta-Llama-3-8B" in notes
    assert "--quantization" not in str(integers.launch_command)  # engines read the format from the checkpoint
    published = serve("deepseek-v3", weights="fp8-block", **MIXTURE)
    assert "needs a checkpoint" not in " ".join(published.notes)


DRAFTS: dict[str, dict[str, Any]] = {
    "mtp": {"network": "deepseek-r1", "tensor": 8, "draft": "mtp"},
    "eagle3": {"network": "gpt-oss-20b", "draft": "eagle3"},
    "p-eagle": {"network": "gpt-oss-20b", "draft": "parallel"},
    "network": {"network": "llama-3.1-70b", "tensor": 4, "draft": "llama-3.1-8b"},
    "n-grams": {"network": "llama-3.1-8b"},
}


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    ("engine", "drafts", "words"),
    [
        # docs.vllm.ai/en/latest/features/speculative_decoding, and vllm/config/speculative.py
        ("vllm", "mtp", '--speculative-config {"method":"mtp","num_speculative_tokens":3}'),
        ("vllm", "eagle3", '{"method":"eagle3","model":"RedHatAI/gpt-oss-20b-speculator.eagle3",'
         '"num_speculative_tokens":3}'),
        ("vllm", "p-eagle", '{"method":"eagle3","model":"amazon/gpt-oss-20b-p-eagle","num_speculative_tokens":3,'
         '"parallel_drafting":true}'),
        ("vllm", "network", '{"method":"draft_model","model":"meta-llama/Llama-3.1-8B","num_speculative_tokens":3}'),
        ("vllm", "n-grams", '{"method":"ngram","num_speculative_tokens":3}'),
        # docs.sglang.io/docs/advanced_features/speculative_decoding
        ("sglang", "mtp", "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4"),
        ("sglang", "eagle3", "--speculative-algorithm EAGLE3 --speculative-draft-model-path "
         "RedHatAI/gpt-oss-20b-speculator.eagle3 --speculative-num-steps 3"),
        ("sglang", "network", "--speculative-algorithm STANDALONE --speculative-draft-model-path "
         "meta-llama/Llama-3.1-8B"),
        ("sglang", "n-grams", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4"),
        # TensorRT-LLM, docs/source/features/speculative-decoding.md
        ("tensorrt-llm", "mtp", "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}"),
        ("tensorrt-llm", "eagle3", "speculative_config: {decoding_type: Eagle, max_draft_len: 3, "
         "speculative_model_dir: RedHatAI/gpt-oss-20b-speculator.eagle3}"),
        ("tensorrt-llm", "network", "speculative_config: {decoding_type: DraftTarget, max_draft_len: 3, "
         "speculative_model_dir: meta-llama/Llama-3.1-8B} disable_overlap_scheduler: true"),
        ("tensorrt-llm", "n-grams", "speculative_config: {decoding_type: NGram, max_draft_len: 3} "
         "disable_overlap_scheduler: true"),
    ],
)  # fmt: skip
def test_command_drafts_as_the_answer_does(engine: str, drafts: str, words: str) -> None:
    asked = {"gpu": "h200", "concurrency": 1, "num_requests": 4, **DRAFTS[drafts]}
    draft = {} if "draft" not in asked else {"draft": asked.pop("draft")}
    result = serve(asked.pop("network"), engine=engine, speculation={"tokens": 3, "acceptance": 0.5, **draft}, **asked)
    assert words in " ".join(shlex.split(str(result.launch_command)))
    assert drafts != "mtp" or "are left out" not in " ".join(result.notes)


@pytest.mark.thorough
def test_heads_of_the_decode_pool_are_in_both_pools() -> None:
    """What drafts has keys and values of its own, which the prefill pool computes and sends."""
    result = serve(
        "gpt-oss-20b", gpu="h100-sxm", rate=1, num_requests=10, prefill_pool="replicas=1",
        decode_pool="replicas=1", speculation="tokens=3,acceptance=0.5,draft=eagle3",
    )  # fmt: skip
    assert result.prefill_pool is not None
    assert "--speculative-config" in str(result.prefill_pool.launch_command)
    assert "--speculative-config" in str(result.launch_command)


def test_drafts_that_cannot_be_started_are_noted() -> None:
    unpublished = serve(
        "llama-3.1-8b", gpu="h100-sxm", rate=1, num_requests=10, speculation="tokens=3,acceptance=0.5,draft=eagle3"
    )
    assert '"model":"EAGLE3-HEADS"' in str(unpublished.launch_command)
    assert "name it instead of EAGLE3-HEADS" in " ".join(unpublished.notes)
    unknown = serve(
        "gpt-oss-20b", gpu="h100-sxm", rate=1, num_requests=10, engine="sglang",
        speculation="tokens=3,acceptance=0.5,draft=parallel",
    )  # fmt: skip
    assert unknown.launch_command is None
    assert "nothing is known of how sglang drafts tokens with p-eagle" in " ".join(unknown.notes)


@pytest.mark.parametrize(
    ("engine", "option"),
    [("vllm", "--max-model-len"), ("sglang", "--context-length"), ("tensorrt-llm", "--max_seq_len")],
)
def test_length_is_stated_where_the_cache_is_shorter_than_the_positions(engine: str, option: str) -> None:
    """Llama 3.1 8B in 16 bits (16.1 GB) leaves an RTX 4090 less than its 131,072 positions, but not an H100."""
    asked: dict[str, Any] = {"input_tokens": 1500, "output_tokens": 800, "concurrency": 2, "num_requests": 4}
    small = serve("llama-3.1-8b", gpu="rtx4090", engine=engine, **asked)
    assert small.longest_request == 4096  # the power of two from 2,300 on
    assert small.cache_tokens > 4096 and options_of(str(small.launch_command))[option] == "4096"
    large = serve("llama-3.1-8b", gpu="h100-sxm", engine=engine, **asked)
    assert large.longest_request is None and option not in str(large.launch_command)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("engine", "options", "words", "others"),
    [
        # docs.vllm.ai, serving/data_parallel_deployment and serving/parallelism_scaling
        ("vllm", {"platform": "dgx-h200", "attention_data_parallel": 16, "expert_parallel": 16},
         "--data-parallel-size 16 --enable-expert-parallel ", "--headless and --data-parallel-start-rank 8"),
        ("vllm", {"platform": "dgx-h200", "attention_data_parallel": 16, "expert_parallel": 16},
         "--data-parallel-size-local 8 --data-parallel-address HEAD", "HEAD is the address of the first"),
        ("vllm", {"link": "infiniband-ndr"}, "--nnodes 2 --node-rank 0 --master-addr HEAD",
         "--headless and --node-rank 1"),
        # docs.sglang.io, references/multi_node_deployment
        ("sglang", {"link": "infiniband-ndr"}, "--nnodes 2 --node-rank 0 --dist-init-addr HEAD:20000", "--node-rank 1"),
        # nvidia.github.io/TensorRT-LLM, commands/trtllm-serve
        ("tensorrt-llm", {"link": "infiniband-ndr"}, "trtllm-serve", "trtllm-llmapi-launch before trtllm-serve"),
    ],
)  # fmt: skip
def test_replicas_on_several_nodes_are_started_on_each(
    engine: str, options: dict[str, Any], words: str, others: str
) -> None:
    result = serve("deepseek-r1", gpu="h200", tensor=16, concurrency=4, num_requests=8, engine=engine, **options)
    assert words in str(result.launch_command)
    assert any("a replica is on 2 nodes" in note and others in note for note in result.notes)
    one = serve("deepseek-r1", gpu="h200", tensor=8, concurrency=4, num_requests=8, engine=engine)
    assert "HEAD" not in str(one.launch_command) and "a replica is on" not in " ".join(one.notes)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("gpu", "tensor", "nodes"), [("gb200", 16, 4), ("gb300", 8, 2), ("gb300", 4, 1), ("b200", 8, 1)]
)
def test_racks_have_four_devices_in_each_tray(gpu: str, tensor: int, nodes: int) -> None:
    """NVIDIA's reference architecture of DGX GB200: a compute tray has four GPUs, and a host of its own."""
    degrees = {"tensor": tensor, "expert_parallel": tensor, "attention_data_parallel": tensor}
    result = serve("deepseek-r1", gpu=gpu, concurrency=4, num_requests=8, engine="vllm", **degrees)
    command = str(result.launch_command)
    assert ("--data-parallel-size-local 4" in command) == (nodes > 1)
    assert any(f"a replica is on {nodes} nodes" in note for note in result.notes) == (nodes > 1)


def test_length_is_at_most_what_the_cache_holds() -> None:
    """Of each of the pools, whose caches differ."""
    result = serve(
        "llama-3.1-70b", gpu="h100-sxm", weights="fp8", rate=0.1, num_requests=4, input_tokens=4000, output_tokens=200,
        prefill_pool="replicas=1", decode_pool="replicas=1,tensor=4",
    )  # fmt: skip
    assert result.prefill_pool is not None and result.longest_request is None
    longest = result.prefill_pool.longest_request
    assert longest is not None and 4200 <= longest <= result.prefill_pool.cache_tokens < 8192
    assert f"--max-model-len {longest} " in str(result.prefill_pool.launch_command)


def test_repository_is_that_of_the_publisher_else_the_name() -> None:
    assert find_repository(find_network("kimi-k2")) == "moonshotai/Kimi-K2-Instruct"
    assert find_repository(find_network("gpt3-175b")) == "gpt3-175b"


def test_command_is_printed_once_for_a_deployment_and_for_advice() -> None:
    words = "serve llama-3-8b --gpu h100-sxm --replicas 2 --rate 5 --num-requests 50"
    page = CliRunner().invoke(main, words.split()).output
    assert "Launch under vllm, for each of 2 replicas:\n  vllm serve meta-llama/Meta-Llama-3-8B" in page
    words = "serve llama-3-8b --gpu h100-sxm --tensor 2 --num-requests 20 --output-tokens 32 --advise cost"
    page = CliRunner().invoke(main, words.split()).output
    assert page.count("--tensor-parallel-size 2") == 1 and "--max-num-seqs 256" in page


@pytest.mark.parametrize(
    ("network", "options", "lacking"),
    [
        # docs/getting_started/installation/gpu.cuda.inc.md of vLLM 0.21: compute capability 7.5 or higher
        ("llama-2-7b", {"gpu": "v100-sxm2-32gb"}, "vllm (0.17 and later) needs compute capability 7.5, and"),
        (
            "llama-2-7b",
            {"gpu": "k80-die", "weights": "int4"},
            "vllm (0.17 and later) needs compute capability 7.5, and",
        ),
        # Supported hardware of vLLM 0.14: neither AWQ nor FP8 on Volta, no FP8 on Turing, GPTQ on both
        ("llama-2-7b", {"gpu": "v100-sxm2-32gb", "engine": "vllm-0.16"}, ""),
        ("llama-2-7b", {"gpu": "v100-sxm2-32gb", "engine": "vllm-0.16", "weights": "gptq"}, ""),
        ("llama-2-7b", {"gpu": "v100-sxm2-32gb", "engine": "vllm-0.16", "weights": "awq"}, "7.5 with weights in awq"),
        ("llama-2-7b", {"gpu": "t4", "engine": "vllm-0.16", "weights": "fp8"}, "8.0 with weights in fp8"),
        ("llama-2-7b", {"gpu": "t4", "weights": "fp8"}, ""),  # Marlin since: Turing and Ampere in W8A16
        ("gpt-oss-20b", {"gpu": "v100-sxm2-32gb", "engine": "vllm-0.16"}, "8.0 with weights in mxfp4"),
        # Marlin of 0.9 takes nvfp4 (pull request 17687) from Ampere on (get_min_capability of modelopt.py)
        ("llama-2-7b", {"gpu": "t4", "engine": "vllm-0.13", "weights": "nvfp4"}, "8.0 with weights in nvfp4"),
        ("gpt-oss-20b", {"gpu": "a100-sxm-80gb", "engine": "vllm-0.13"}, ""),
        # Marlin of 0.7 takes fp8, but not in blocks (issue 13885)
        ("llama-2-7b", {"gpu": "a100-sxm-80gb", "engine": "vllm-0.7", "weights": "fp8"}, ""),
        ("llama-2-7b", {"gpu": "a100-sxm-80gb", "engine": "vllm-0.7", "weights": "fp8-block"}, "8.9 with weights in"),
        ("llama-2-7b", {"gpu": "h100-sxm", "engine": "vllm-0.7", "weights": "fp8-block"}, ""),
        # Supported hardware of 0.5.3: fp8 on Ampere
        ("llama-2-7b", {"gpu": "t4", "engine": "vllm-0.5", "weights": "fp8"}, "8.0 with weights in fp8"),
        ("llama-2-7b", {"gpu": "a100-sxm-80gb", "engine": "vllm-0.5", "weights": "fp8"}, ""),
        # SGLang's quickstart: sm75 and above
        ("llama-2-7b", {"gpu": "p100-pcie-16gb", "engine": "sglang", "weights": "awq"}, "needs compute capability 7.5"),
        # TensorRT-LLM's support matrix: Ampere without fp8, Ada with it
        ("llama-2-7b", {"gpu": "v100-sxm2-32gb", "engine": "tensorrt-llm"}, "needs compute capability 8.0"),
        ("llama-2-7b", {"gpu": "a100-sxm-80gb", "engine": "tensorrt-llm", "weights": "fp8"}, "8.9 with weights in fp8"),
        ("llama-2-7b", {"gpu": "l40s", "engine": "tensorrt-llm", "weights": "fp8"}, ""),
        ("llama-2-7b", {"gpu": "mi300x"}, ""),  # which has no compute capability
    ],
)
def test_engines_that_do_not_run_on_a_device_have_no_launch_command(
    network: str, options: dict[str, Any], lacking: str
) -> None:
    answer = pl.serve(network, rate=0.1, input_tokens=100, output_tokens=20, num_requests=20, **options)
    reasons = [note for note in answer.notes if "compute capability" in note]
    assert answer.time_s > 0
    if not lacking:
        assert reasons == []
        return
    (reason,) = reasons
    assert answer.launch_command is None
    assert reason.startswith("no launch command: ") and lacking in reason


@pytest.mark.parametrize(
    ("network", "engine", "weights"),
    [
        # gpt-oss in 0.10.1: pull request 22259, of August 2025
        ("gpt-oss-20b", "vllm-0.5", "mxfp4"),
        ("gpt-oss-20b", "vllm-0.7", "mxfp4"),
        ("llama-2-7b", "vllm-0.5", "fp8-block"),  # "supported since v0.6.6": issue 11559
        ("llama-2-7b", "vllm-0.7", "nvfp4"),  # first in the formats of --quantization of 0.8
        ("llama-2-7b", "vllm-0.13", "mxfp8"),  # pull request 33786, of February 2026; 0.13 is of December 2025
    ],
)
def test_older_versions_do_not_know_formats_that_came_later(network: str, engine: str, weights: str) -> None:
    asked: dict[str, Any] = {"rate": 0.1, "input_tokens": 100, "output_tokens": 20, "num_requests": 20}
    for gpu in ("a100-sxm-80gb", "h100-sxm"):
        answer = pl.serve(network, gpu=gpu, engine=engine, weights=weights, **asked)
        assert answer.launch_command is None
        (reason,) = (note for note in answer.notes if f"does not know weights in {weights}" in note)
        assert reason.startswith(f"no launch command: {engine} (") and "`--engine vllm`" in reason


def test_no_engine_of_another_vendor_is_named() -> None:
    """TensorRT-LLM, which knows mxfp4, is for the devices of NVIDIA."""
    named = {}
    for gpu in ("a100-sxm-80gb", "mi300x"):
        answer = pl.serve("gpt-oss-20b", gpu=gpu, engine="vllm-0.5", rate=0.1, num_requests=20)
        (reason,) = (note for note in answer.notes if "does not know weights in mxfp4" in note)
        named[gpu] = set(re.findall(r"`--engine ([^`]+)`", reason))
    assert named == {"a100-sxm-80gb": {"vllm", "sglang", "tensorrt-llm"}, "mi300x": {"vllm", "sglang"}}


@pytest.mark.parametrize(
    ("options", "leaves_out"),
    [
        ({"chunked_prefill": 2048, "max_batched_tokens": 4096}, True),
        ({"chunked_prefill": 4096, "max_batched_tokens": 4096}, False),
        ({"engine": "tensorrt-llm", "chunked_prefill": 2048}, True),
        ({"engine": "sglang", "chunked_prefill": 2048}, False),  # --chunked-prefill-size
    ],
)
def test_chunks_that_the_launch_command_cannot_state_are_named(options: dict[str, Any], leaves_out: bool) -> None:
    answer = pl.serve("llama-3-8b", gpu="h100-sxm", rate=1, num_requests=20, **options)
    notes = [note for note in answer.notes if note.startswith("the launch command leaves the chunks")]
    assert bool(notes) == leaves_out
    assert leaves_out or ("4096" in answer.launch_command or "--chunked-prefill-size 2048" in answer.launch_command)


def test_other_engines_that_run_on_a_device_are_named() -> None:
    asked: dict[str, Any] = {"rate": 0.1, "input_tokens": 100, "output_tokens": 20, "num_requests": 20}
    notes = pl.serve("llama-2-7b", gpu="v100-sxm2-32gb", **asked).notes
    (named,) = [re.findall(r"`--engine ([^`]+)`", note) for note in notes if re.search("runs? there", note)]
    for engine in named:
        others = pl.serve("llama-2-7b", gpu="v100-sxm2-32gb", engine=engine, **asked).notes
        assert not any("compute capability" in note for note in others)


def test_advice_recommends_no_device_on_which_the_engine_does_not_run() -> None:
    asked: dict[str, Any] = {"rate": 0.1, "input_tokens": 100, "output_tokens": 20, "num_requests": 50}
    advised = pl.serve("llama-3-8b", gpu="v100-sxm2-32gb,a100-sxm-80gb", advise="cost", engine="tensorrt-llm", **asked)
    assert {(one.gpu, one.weights) for one in advised.advice.candidates} == {("a100-sxm-80gb", "bf16")}
    assert any(note.startswith("no candidate: tensorrt-llm needs compute capability 8.0") for note in advised.notes)


def test_advice_names_the_engines_where_the_asked_one_runs_on_no_device() -> None:
    """vLLM knows nvfp4 from 0.8 on, and mxfp4, in which gpt-oss is published, from 0.10.1 on."""
    asked: dict[str, Any] = {"rate": 0.1, "input_tokens": 100, "output_tokens": 20, "advise": "cost"}
    devices = ["a100-sxm-80gb", "h100-sxm"]
    with pytest.raises(BadValue, match=r"no candidate runs: vllm-0\.7 does not know weights in nvfp4; `--engine vllm`"):
        pl.serve("llama-3-8b", gpu=devices, engine="vllm-0.7", weights="nvfp4", **asked)
    with pytest.raises(BadValue, match=r"no candidate runs: vllm-0\.7 does not know weights in mxfp4"):
        pl.serve("gpt-oss-20b", gpu=devices, engine="vllm-0.7", **asked)


@pytest.mark.parametrize(("network", "runs"), [("llama-3-8b", True), ("qwen3-30b-a3b", False)])
def test_experts_in_fp8_need_units_for_it_before_marlin_took_them(network: str, runs: bool) -> None:
    """vLLM, issues 7322 and 17579: of dense models Marlin converts fp8 on Ampere, of mixtures only from 0.9 on."""
    asked: dict[str, Any] = {"rate": 0.1, "input_tokens": 100, "output_tokens": 20, "num_requests": 20}
    notes = pl.serve(network, gpu="a100-sxm-80gb", engine="vllm-0.7", weights="fp8", **asked).notes
    lacking = [note for note in notes if "needs compute capability 8.9 with experts in fp8" in note]
    assert bool(lacking) == (not runs)
