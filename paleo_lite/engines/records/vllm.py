"""vLLM, from the newest versions to the oldest; every record but the first says what differs from the one above it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from ...machines import Device
from .record import (
    COMMUNICATOR_BYTES,
    GREEDY,
    HEAD,
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

LARGE_MEMORY_BYTES = 70 * 2**30
"""Memory from which vLLM uses larger batches, with the exception of the A100 (`EngineArgs.get_batch_defaults`)."""


def limits_on(device: Device) -> dict[str, int]:
    """Return the limits of the OpenAI-compatible server on a device."""
    is_large = device.memory_bytes >= LARGE_MEMORY_BYTES and "a100" not in device.id
    if is_large:
        return {"max_batched_tokens": 8192, "max_sequences": 1024, "chunked_prefill": 8192}
    return {"max_batched_tokens": 2048, "max_sequences": 256, "chunked_prefill": 2048}


NIXL = ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')
"""Option with which a server hands keys and values over, or takes them."""


def router_command(prefill: Sequence[str], decode: Sequence[str], port: int) -> str:
    """Return the command of vLLM's router before split pools."""
    words = ["vllm-router --policy round_robin --vllm-pd-disaggregation"]
    words += [f"--prefill {address}" for address in prefill]
    words += [f"--decode {address}" for address in decode]
    return " ".join(["pip install vllm-router &&", *words, f"--host 0.0.0.0 --port {port}"])


def node_words(nodes: int, groups: int) -> NodeWords:
    """Return what starts a replica on several nodes: its data-parallel ranks, or the devices of one."""
    words: tuple[str, ...]
    if groups >= nodes:
        local = groups // nodes
        words = ("--data-parallel-size-local", str(local), "--data-parallel-address", HEAD)
        other = f"--headless and --data-parallel-start-rank {local}, {2 * local}, ..."
    else:
        words = ("--nnodes", str(nodes), "--node-rank", "0", "--master-addr", HEAD)
        other = "--headless and --node-rank 1, 2, ... instead of 0"
    return NodeWords(words, f"start the same on the other nodes with {other}")


def draft_words(tokens: int, method: str, checkpoint: str = "", **others: Any) -> DraftWords:
    """Return the option with which a server drafts tokens."""
    config = {"method": method, "model": checkpoint, "num_speculative_tokens": tokens, **others}
    stated = {name: value for name, value in config.items() if value != ""}
    return DraftWords(("--speculative-config", json.dumps(stated, separators=(",", ":"))))


QUANTISING = (("norm", "fp8"), ("activation", "fp8"))
"""Kernels into which the quantisation for a product is compiled, and its format."""


VLLM_KERNELS = Kernels(
    engine="vllm",
    launches={"rotary embedding and cache": 2},  # rotary_embedding, then reshape_and_cache_flash
    # Inductor compiles the quantisation to fp8 (`QuantFP8`) into the norm or the activation before it. That of the
    # result of attention stays a kernel unless `fuse_attn_quant` is set. SGLang quantises before every product
    # (https://github.com/sgl-project/sglang/issues/31504), and so do AMD's kernels of vLLM
    # (https://github.com/ROCm/vllm/pull/789).
    quantising=dict.fromkeys(("Ada 8", "Hopper 9", "Blackwell 10", "Blackwell 11", "Blackwell 12"), QUANTISING),
    sources=(
        "https://github.com/vllm-project/vllm/tree/main/vllm/v1/attention/backends",
        "https://github.com/vllm-project/vllm/pull/19830 (quantisation in fp8 is compiled)",
        "https://docs.vllm.ai/en/stable/design/fusions/",
    ),
    # gpt-oss-120b, whose checkpoint has 60.8 GiB, is loaded in 64.38 GiB on an H100 with Triton's kernels
    # (https://github.com/vllm-project/vllm/issues/33155), which is a hidden size of 3,072 instead of 2,880. With
    # Marlin's, which pad the inner size as well, it was 65.97 (https://github.com/vllm-project/vllm/issues/23278).
    padded_experts={"mxfp4": (256, 1), "mxfp4-mxfp8": (256, 256)},
    # FlashAttention knows sinks from Hopper on; before, Triton's kernel computes them. Prompts of 32,000 tokens of
    # gpt-oss-20b and 120b on an A100 (GPUStack's performance lab, vLLM 0.11) take as long as with
    # attention that is 2.9 times as slow; each network alone gives 3.0 and 2.9.
    sink_factors={"Ampere 8": 2.9, "Ada 8": 2.9},
)
"""Kernels of the newest versions."""


VLLM = Server(
    name="vllm",
    versions=Versions(first="0.17"),
    kernels=VLLM_KERNELS,
    # Options since 0.11.
    launcher=Launcher(
        command="vllm serve",
        options=(
            ("--tensor-parallel-size", "group_devices"),
            ("--data-parallel-size", "groups"),
            ("--enable-expert-parallel", "divides_experts"),
            ("--pipeline-parallel-size", "stages"),
            ("--max-num-seqs", "sequences"),  # limits hold for each data-parallel rank
            ("--max-num-batched-tokens", "tokens"),
            ("--max-model-len", "longest_request"),
            ("--no-enable-chunked-prefill", "has_whole_prompts"),
            ("--block-size", "given_block_tokens"),
            ("--max-cudagraph-capture-size", "given_captured"),
            ("--gpu-memory-utilization", "memory_fraction"),
            ("--dtype", "dtype"),
            ("--quantization", "weights"),
            ("--kv-cache-dtype", "kv_cache"),
            ("--enable-lora", "has_adapters"),
            ("--max-loras", "adapter_slots"),
            ("--max-lora-rank", "compiled_adapter_rank"),
            ("--max-cpu-loras", "adapters"),
        ),
        weights={"fp8": "fp8", "nf4": "bitsandbytes"},
        kv_cache={"fp8": "fp8"},
        partial_experts=False,  # experts are divided among all devices of all data-parallel ranks
        partial_groups=True,
        drafts={
            "mtp": lambda tokens, _: draft_words(tokens, "mtp"),
            "eagle3": lambda tokens, checkpoint: draft_words(tokens, "eagle3", checkpoint),
            "p-eagle": lambda tokens, checkpoint: draft_words(tokens, "eagle3", checkpoint, parallel_drafting=True),
            "dspark": lambda tokens, checkpoint: draft_words(tokens, "dspark", checkpoint),
            "network": lambda tokens, checkpoint: draft_words(tokens, "draft_model", checkpoint),
            "n-grams": lambda tokens, _: draft_words(tokens, "ngram"),
        },
        priorities=("--scheduling-policy", "priority"),
        nodes=node_words,
        sources=(
            "https://docs.vllm.ai/en/latest/cli/serve/",
            "https://docs.vllm.ai/en/latest/api/vllm/config/speculative/",
            "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
            "https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/",
            "https://docs.vllm.ai/en/latest/serving/parallelism_scaling/",
            "https://docs.vllm.ai/en/latest/configuration/env_vars/",
        ),
        pools=PoolLauncher(
            options={"prefill": NIXL, "decode": NIXL},
            router=router_command,
            address_variable="VLLM_NIXL_SIDE_CHANNEL_HOST",
            sources=(
                "https://docs.vllm.ai/en/stable/features/nixl_connector_usage.html",
                "https://blog.vllm.ai/2025/12/13/vllm-router-release.html",
            ),
        ),
        image="vllm/vllm-openai:v0.18.0",
        dynamo=DynamoWorker("dynamo.vllm", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0", "--model"),
        llm_d_image="ghcr.io/llm-d/llm-d:v0.2.0",
        converts_weights="VLLM_TEST_FORCE_FP8_MARLIN=1",
        converts_fp4=True,
        stage_blocks="VLLM_PP_LAYER_PARTITION",
    ),
    local=None,
    # 0.25 GiB outside of PyTorch on one H100 since 0.18, and 2.07 on each of two.
    context_share=0.25 / 79.19,
    communicator_bytes=1.82 * 2**30,
    # Qwen3 14B, with 1,024 sequences of 151,936 logits, takes 2.23 GiB in the profile of 0.17 and 0.18 on an H100
    # (https://github.com/llm-d-incubation/llm-d-planner/pull/205, accuracy_report.md); kernels that search for the
    # limits of the nucleus came in before (https://github.com/vllm-project/vllm/pull/33538).
    logit_bytes=15.4,
    max_batched_tokens=2048,
    max_sequences=256,
    # `SchedulerConfig` refuses fewer tokens than sequences, and `EngineArgs` lowers the default of the latter.
    needs_token_per_sequence=True,
    limits_per_rank=True,
    limits_on=limits_on,
    captures_graphs=True,
    block_tokens=16,
    memory_fraction=0.9,
    is_fraction_of_free=False,
    chunked_prefill=2048,
    mixes_phases=True,
    reserved_output=0.0,
    overhead_s=1.0e-3,
    # What drafts has piecewise graphs only, and metadata of attention for each pass (`initialize_cudagraph_keys` and
    # `propose` in vllm/v1/spec_decode/llm_base_proposer.py). EAGLE-3 of gpt-oss-20b on a B200 takes 0.18 to 0.30 ms per
    # pass longer than its kernels with 1 to 32 users (vLLM's blog); P-EAGLE 0.22 ms with one user.
    draft_pass_s=250e-6,
    overhead_range_s=(0.3e-3, 4e-3),
    # The limits of top-p are found in 0.70 and 1.38 ms for 512 and 1,024 sequences of 32,768 logits, and in half the
    # time with top-k as well (https://github.com/vllm-project/vllm/pull/33538).
    nucleus_logit_s=4.2e-11,
    request_overhead_s=5e-3,
    # Qwen3-8B under two servers of eight H800 takes 28 ms more than its prompt of 128 tokens (Mooncake's page on vLLM's
    # connector). NixlConnector reads 4,900 tokens of Qwen3-32B on each of two devices in 105 ms in blocks of 16, and in
    # 47 ms in blocks of 64, of which 29 ms are bytes: 64 layers x 2 x 306 or 77 reads (vLLM, issue 50913).
    handover=Handover(messages_s=28e-3, block_s=1.9e-6),
    schedules_ahead=True,
    capability=Capability(
        7.5,
        weights={"mxfp4": 8.0},
        sources=(
            "https://github.com/vllm-project/vllm/blob/v0.21.0/docs/getting_started/installation/gpu.cuda.inc.md",
            "https://docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8/ (fp8 from 7.5 on)",
            "https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/layers/quantization/mxfp4.py "
            "(get_min_capability)",
        ),
    ),
    sources=(
        "https://github.com/vllm-project/vllm/blob/main/vllm/engine/arg_utils.py (get_batch_defaults)",
        "https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py",
        "https://github.com/vllm-project/vllm/pull/12369 (8,192 tokens on large devices)",
        "https://github.com/vllm-project/vllm/pull/27614 (iterations are scheduled ahead from 0.14 on)",
        "https://github.com/llm-d-incubation/llm-d-planner/pull/205 (memory, by the logs of 0.15 to 0.19)",
    ),
)

VLLM_0_16 = structs.replace(
    VLLM,
    name="vllm-0.16",
    versions=Versions(first="0.14", last="0.16"),
    launcher=None,
    # Marlin, which converts fp8 to 16 bits where a device has no units for it, ran on Ampere and later.
    capability=Capability(
        7.0,
        weights={"awq": 7.5, "fp8": 8.0, "fp8-block": 8.0, "mxfp8": 8.0, "mxfp4": 8.0},
        sources=(
            "https://docs.vllm.ai/en/v0.14.0/getting_started/installation/gpu/",
            "https://docs.vllm.ai/en/v0.14.0/features/quantization/ (supported hardware)",
            "https://docs.vllm.ai/en/v0.6.4.post1/quantization/supported_hardware.html",
            "https://github.com/vllm-project/vllm/pull/5975 (fp8 on Ampere)",
        ),
    ),
    context_share=0.13 / 79.18,
    # The sampler sorts 1,024 x 151,936 logits of Qwen3 14B in 5.64 GiB.
    logit_bytes=5.64 * 2**30 / (1024 * 151_936),
    nucleus_logit_s=None,  # it sorts them, as the servers do to which the host was fitted: 0.11 and 0.12
    # Four H100 under 0.9, beside a connector of caches, have 8.11 GiB for the cache of Qwen3 235B
    # (https://github.com/vllm-project/vllm/issues/21348).
    communicator_bytes=2.28 * 2**30,
)

DEEP_GEMM = {"fp8-block": "fp8-block-tiles"}
"""Formats whose experts DeepGEMM computes, in whole tiles of 128 rows (https://github.com/vllm-project/vllm/pull/39331)."""

VLLM_0_13 = structs.replace(
    VLLM_0_16,
    name="vllm-0.13",
    versions=Versions(first="0.8", last="0.13"),
    # Later versions prefer Triton and FlashInfer (https://github.com/vllm-project/vllm/pull/29346).
    kernels=structs.replace(
        VLLM_KERNELS,
        expert_formats={"Hopper 9": DEEP_GEMM, "Blackwell 10": DEEP_GEMM},
        # Chunks share blocks with other layers, because blocks of their own were slower, until
        # https://github.com/vllm-project/vllm/pull/29627 (https://github.com/vllm-project/vllm/pull/21761).
        chunk_cache_share=1.0,
    ),
    schedules_ahead=False,
    capability=Capability(
        7.0,
        # Marlin takes blocks of fp8 from 0.9 on, nvfp4 from 0.9 and mxfp4 from 0.10.1 on.
        weights={"awq": 7.5, "fp8": 8.0, "fp8-block": 8.0, "fp4": 8.0, "nvfp4": 8.0, "mxfp4": 8.0},
        later_formats=("mxfp8",),
        sources=(
            "https://docs.vllm.ai/en/v0.11.2/features/quantization/ (supported hardware)",
            "https://github.com/vllm-project/vllm/pull/16850 (blocks of fp8 in Marlin)",
            "https://github.com/vllm-project/vllm/pull/17687 (nvfp4 in Marlin)",
            "https://github.com/vllm-project/vllm/issues/23203 (get_min_capability of mxfp4.py is 80)",
            "https://github.com/vllm-project/vllm/pull/33786 (mxfp8, of February 2026)",
        ),
    ),
    # Its own benchmarks ask for the most likely token, those of later versions for what the network's settings say
    # (https://github.com/vllm-project/vllm/pull/32723).
    usual_sampling=GREEDY,
)

VLLM_0_7 = structs.replace(
    VLLM_0_13,
    name="vllm-0.7",
    versions=Versions(first="0.6", last="0.7"),
    limits_on=None,
    # `non_torch_memory` is 1.79 of 79.22 GiB of an H100.
    context_share=1.79 / 79.22,
    communicator_bytes=COMMUNICATOR_BYTES,
    # The cache of OPT 125M on an H100 lost 58,928 tokens of 36,864 bytes to 1,024 sequences of 50,272 logits
    # (https://github.com/vllm-project/vllm/pull/13594).
    logit_bytes=42.0,
    # Between the times of 0.5 and of the engine since 0.8.
    overhead_s=5e-3,
    overhead_range_s=(1e-3, 12e-3),
    # Outputs of 32 sequences are processed in 3.4 ms, of one in 0.2 ms (https://github.com/vllm-project/vllm/issues/6913);
    # eager engines cannot do it beside the next iteration (https://github.com/vllm-project/vllm/issues/10295).
    eager_sequence_s=(3.4e-3 - 0.2e-3) / 31,
    is_host_fitted=False,
    kernels=structs.replace(VLLM_KERNELS, quantising={}),  # nothing is compiled
    mixes_whole_prompts=False,
    receive_option="--num-scheduler-steps",
    works_between_looks=False,
    # Blocks of fp8 came in with DeepSeek-V3 in 0.6.6, for Triton's kernel, which needs units for fp8: Marlin did not
    # take them yet.
    capability=Capability(
        7.0,
        weights={"awq": 7.5, "fp8": 8.0, "fp8-block": 8.9},
        experts={"fp8": 8.9},  # Marlin takes them from 0.9 on, and Triton's kernel needs units for fp8
        later_formats=("fp4", "nvfp4", "mxfp4", "mxfp8"),
        sources=(
            "https://docs.vllm.ai/en/v0.6.4.post1/quantization/supported_hardware.html",
            "https://github.com/vllm-project/vllm/pull/5975 (fp8 on Ampere)",
            "https://github.com/vllm-project/vllm/issues/11559 (DeepSeek-V3 in 0.6.6)",
            "https://github.com/vllm-project/vllm/issues/13885 (blocks of fp8 on Ampere)",
            "https://github.com/vllm-project/vllm/issues/17579 (experts in fp8 on Ampere, of May 2025)",
            "https://docs.vllm.ai/en/v0.8.1/serving/engine_args.html (nvfp4, the first list of formats that has it)",
            "https://github.com/vllm-project/vllm/pull/22259 (mxfp4, of August 2025)",
        ),
    ),
    sources=(
        "https://github.com/vllm-project/vllm/blob/v0.7.0/vllm/engine/arg_utils.py (256 sequences on every device)",
        "https://github.com/vllm-project/vllm/pull/10511 (memory of the context)",
        "https://blog.vllm.ai/2024/09/05/perf-update.html (several steps are scheduled at once)",
    ),
)

VLLM_0_5 = structs.replace(
    VLLM_0_7,
    name="vllm-0.5",
    versions=Versions(last="0.5"),
    context_share=0.0,
    chunked_prefill=0,
    mixes_phases=False,
    receive_option="",
    # The CPU took 62% of the time of Llama 3 8B on an H100: 12 ms beside 7.5 ms of the device per iteration.
    overhead_s=12e-3,
    overhead_range_s=(6e-3, 24e-3),
    capability=Capability(
        7.0,
        weights={"awq": 7.5, "fp8": 8.0},
        experts={"fp8": 8.9},
        later_formats=("fp8-block", "fp4", "nvfp4", "mxfp4", "mxfp8"),
        sources=(
            "https://docs.vllm.ai/en/v0.5.3/quantization/supported_hardware.html",
            "https://docs.vllm.ai/en/v0.5.5/quantization/fp8.html (fp8 on Ampere)",
            "https://github.com/vllm-project/vllm/issues/7322 (experts in fp8 on Ampere, of August 2024)",
            "https://github.com/vllm-project/vllm/issues/11559 (blocks of fp8 in 0.6.6)",
        ),
    ),
    sources=("https://blog.vllm.ai/2024/09/05/perf-update.html (shares of CPU and GPU before version 0.6)",),
)

RECORDS = (VLLM, VLLM_0_16, VLLM_0_13, VLLM_0_7, VLLM_0_5)
