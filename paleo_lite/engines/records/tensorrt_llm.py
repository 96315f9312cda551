"""TensorRT-LLM."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from .record import (
    Capability,
    DraftWords,
    DynamoWorker,
    Handover,
    Kernels,
    Launcher,
    NodeWords,
    PoolLauncher,
    Server,
    Versions,
)

TRANSFER = "cache_transceiver_config: {backend: DEFAULT}"


def router_command(prefill: Sequence[str], decode: Sequence[str], port: int) -> str:
    """Return the command of TensorRT-LLM's server before split pools, which reads a file that is written first."""
    lines = ["hostname: 0.0.0.0", f"port: {port}", "backend: pytorch"]
    for name, addresses in (("context_servers", prefill), ("generation_servers", decode)):
        urls = ", ".join(address.removeprefix("http://") for address in addresses)
        lines += [f"{name}: {{num_instances: {len(addresses)}, urls: [{urls}]}}"]
    return f"printf '%s\\n' {shlex.join(lines)} > pools.yaml && trtllm-serve disaggregated -c pools.yaml"


def draft_words(decoding_type: str, *, is_apart: bool = False, **others: Any) -> DraftWords:
    """Return the entries of the file with which a server drafts tokens, in a program apart or with the network."""
    entries: dict[str, Any] = {"speculative_config": {"decoding_type": decoding_type, **others}}
    if is_apart:  # the overlap scheduler is not for such drafts
        entries["disable_overlap_scheduler"] = True
    return DraftWords(file_entries=entries)


TENSORRT_LLM = Server(
    name="tensorrt-llm",
    versions=Versions(first="1.0"),
    kernels=Kernels(
        engine="tensorrt-llm",
        launches={"rotary embedding and cache": 0},  # inside the attention operator
        # All layers share one pool of blocks for whole sequences, unless `max_attention_window` is given
        # (tensorrt_llm/_torch/pyexecutor/resource_manager.py of 1.2, KVCacheManager).
        window_cache_share=1.0,
        chunk_cache_share=1.0,
        # Routing, permutation, quantisation, grouped products, activation and sum: decode steps of DeepSeek-R1 in nvfp4
        # on 4 and 8 B200, which no graph replays, take 85 to 92 ms with 5 to 56 sequences on a rank (aiconfigurator's
        # table of servers, version 1.3). gpt-oss-120b on H100, to which nothing was fitted, takes 47 to 49 ms (41 to 51
        # here).
        expert_launches=7,
        has_single_decode=True,  # masked multi-head attention, otherwise XQA (docs/source/advanced/gpt-attention.md)
        # XQA does not know chunks, the kernels of data-centre Blackwell do (cpp/tensorrt_llm/kernels/xqaDispatcher.cpp,
        # decoderXQAImplJIT.cpp). Where no request is longer than a chunk, XQA is taken without them
        # (https://github.com/NVIDIA/TensorRT-LLM/pull/6306).
        decodes_chunks=("Blackwell 10",),
        sources=("https://github.com/NVIDIA/TensorRT-LLM/tree/main/cpp/tensorrt_llm/kernels",),
    ),
    launcher=Launcher(
        command="trtllm-serve",
        options=(
            ("--tp_size", "devices"),
            ("--ep_size", "experts"),
            ("--pp_size", "stages"),
            ("--max_batch_size", "sequences"),  # limits hold for each rank with attention data parallelism
            ("--max_num_tokens", "tokens"),
            ("--max_seq_len", "longest_request"),
            ("--enable_chunked_prefill", "has_chunks"),
            ("--kv_cache_free_gpu_memory_fraction", "memory_fraction"),
        ),
        weights={},
        kv_cache={"fp8": "fp8", "nvfp4": "nvfp4"},
        partial_experts=True,
        partial_groups=False,
        nodes=lambda nodes, _: NodeWords(
            (), f"start it under MPI or Slurm on {nodes} nodes, with trtllm-llmapi-launch before trtllm-serve"
        ),
        drafts={
            "mtp": lambda tokens, _: draft_words("MTP", num_nextn_predict_layers=tokens),
            "eagle3": lambda tokens, checkpoint: draft_words(
                "Eagle", max_draft_len=tokens, speculative_model_dir=checkpoint
            ),
            "network": lambda tokens, checkpoint: draft_words(
                "DraftTarget", is_apart=True, max_draft_len=tokens, speculative_model_dir=checkpoint
            ),
            "n-grams": lambda tokens, _: draft_words("NGram", is_apart=True, max_draft_len=tokens),
        },
        sources=(
            "https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html",
            "https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html",
            "https://nvidia.github.io/TensorRT-LLM/features/parallel-strategy.html",
        ),
        pools=PoolLauncher(
            options={"prefill": (), "decode": ()},
            # The overlap scheduler is not for servers that compute prompts only.
            file_lines={"prefill": ("disable_overlap_scheduler: true", TRANSFER), "decode": (TRANSFER,)},
            router=router_command,
            sources=("https://nvidia.github.io/TensorRT-LLM/features/disagg-serving.html",),
        ),
        image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        dynamo=DynamoWorker("dynamo.trtllm", "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.4.0"),
        file_option="--extra_llm_api_options",
        file_options=(
            ("enable_attention_dp", "has_groups"),
            ("kv_cache_config.dtype", "kv_cache"),
            ("kv_cache_config.free_gpu_memory_fraction", "memory_fraction"),
            # Without them 1 to 32, 64 and 128 sequences are captured, and no batch is padded to the next size.
            ("cuda_graph_config.enable_padding", "pads_captured"),
            ("cuda_graph_config.max_batch_size", "captured"),
            ("stream_interval", "stream_interval"),
            ("batch_wait_timeout_iters", "batch_wait_iterations"),
            ("batch_wait_max_tokens_ratio", "batch_wait_share"),
            ("attention_dp_config.enable_balance", "balances_ranks"),
            ("attention_dp_config.timeout_iters", "balance_iterations"),
        ),
    ),
    local=None,
    max_batched_tokens=8192,
    max_sequences=2048,
    limits_per_rank=True,
    block_tokens=32,
    # `KvCacheConfig.enable_partial_reuse`; `WindowBlockManager::addSequence` looks for all tokens but the last one.
    reuses_parts_of_blocks=True,
    memory_fraction=0.9,
    is_fraction_of_free=True,
    chunked_prefill=0,
    mixes_phases=True,
    reserved_output=1.0,
    overhead_s=0.3e-3,
    overhead_range_s=(0.1e-3, 1.5e-3),
    request_overhead_s=5e-3,
    # InferenceX, split pools of DeepSeek-R1 on B200 with prompts of 1,024 tokens and 10 to 45 users: 1 to 20 ms more
    # than prompt and transfer, about an iteration.
    handover=Handover(iterations=1.0),
    schedules_ahead=True,
    # `_waiting_requests` and `_balance_adp_requests` in tensorrt_llm/_torch/pyexecutor/py_executor.py
    batch_wait_iterations=0,
    captures_graphs=True,
    # One process of `trtllm-serve` makes text and messages of all tokens ("Support Stream Interval", tech_blog/
    # blog8_Scaling_Expert_Parallelism_in_TensorRT-LLM_part2.md). The time is chosen by the rates of Llama 3.1 8B
    # on four H100 under 1.0, which answer 128 users with 9,239 tokens per second at most (docs/serving.md).
    response_s=104e-6,
    vendors=("NVIDIA",),
    capability=Capability(
        8.0,
        weights={"fp8": 8.9, "fp8-block": 8.9, "mxfp8": 8.9},
        sources=(
            "https://nvidia.github.io/TensorRT-LLM/0.18.2/reference/support-matrix.html",
            "https://github.com/NVIDIA/TensorRT-LLM/pull/2389 (Volta is removed)",
        ),
    ),
    sources=("https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm_args.py",),
)

RECORDS = (TENSORRT_LLM,)
