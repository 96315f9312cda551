"""SGLang, and its versions before it scheduled ahead."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ...machines import Device
from .record import (
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

CHUNKS = ((20, 2048), (35, 2048), (60, 4096), (90, 8192), (160, 8192))
"""Chunk of prompts in tokens, by the memory in GiB below which it holds (`ServerArgs._handle_gpu_memory_settings`)."""

LARGEST_CHUNK = 16384

RECEIVE_OPTION = "--scheduler-recv-interval"


def limits_on(device: Device) -> dict[str, int]:
    """Return the chunk of prompts on a device."""
    for gibibytes, chunk in CHUNKS:
        if device.memory_bytes < gibibytes * 2**30:
            return {"chunked_prefill": chunk}
    return {"chunked_prefill": LARGEST_CHUNK}


TRANSFER = ("--disaggregation-transfer-backend", "nixl")
BOOTSTRAP_PORT = 8998
"""Usual port at which a prefill server is asked for keys and values (`--disaggregation-bootstrap-port`)."""


def router_command(prefill: Sequence[str], decode: Sequence[str], port: int) -> str:
    """Return the command of SGLang's router before split pools."""
    words = ["python3 -m sglang_router.launch_router --pd-disaggregation --policy round_robin"]
    words += [f"--prefill {address} {BOOTSTRAP_PORT}" for address in prefill]
    words += [f"--decode {address}" for address in decode]
    return " ".join([*words, f"--host 0.0.0.0 --port {port}"])


def node_words(nodes: int, groups: int) -> NodeWords:
    """Return what starts a replica on several nodes, however its attention is divided."""
    words = ("--nnodes", str(nodes), "--node-rank", "0", "--dist-init-addr", f"{HEAD}:20000")
    return NodeWords(words, "start the same on the other nodes with --node-rank 1, 2, ... instead of 0")


def draft_words(tokens: int, algorithm: str, checkpoint: str = "") -> DraftWords:
    """Return the options with which a server drafts one chain of tokens, which it verifies with the last one."""
    words = ["--speculative-algorithm", algorithm]
    if checkpoint:
        words += ["--speculative-draft-model-path", checkpoint]
    if algorithm != "NGRAM":
        words += ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
    return DraftWords((*words, "--speculative-num-draft-tokens", str(tokens + 1)))


SGLANG = Server(
    name="sglang",
    versions=Versions(first="0.5"),
    kernels=Kernels(
        engine="sglang",
        # rotary_embedding, then store_kvcache; only gpt-oss and Qwen3's mixtures write it in the first
        launches={"rotary embedding and cache": 2},
        # The pool of layers with windows or chunks has this share of the other pool's tokens
        # (`--swa-full-tokens-ratio`; `is_hybrid_swa_model` in configs/model_config.py).
        window_cache_share=0.8,
        chunk_cache_share=0.8,
        sources=("https://github.com/sgl-project/sglang/tree/main/python/sglang/srt/layers",),
    ),
    launcher=Launcher(
        command="python -m sglang.launch_server --model-path",
        options=(
            ("--tp-size", "devices"),
            ("--dp-size", "groups"),
            ("--enable-dp-attention", "has_groups"),
            ("--ep-size", "experts"),
            ("--pp-size", "stages"),
            ("--max-running-requests", "sequences"),  # limits are divided among the data-parallel ranks
            ("--max-prefill-tokens", "tokens"),
            ("--chunked-prefill-size", "chunk_or_none"),
            ("--context-length", "longest_request"),
            ("--page-size", "given_block_tokens"),
            ("--mem-fraction-static", "memory_fraction"),
            (RECEIVE_OPTION, "receive_interval"),
            ("--cuda-graph-max-bs", "given_captured"),
            ("--dtype", "dtype"),
            ("--quantization", "weights"),
            ("--kv-cache-dtype", "kv_cache"),
            ("--enable-lora", "has_adapters"),
            ("--max-loras-per-batch", "adapter_slots"),
            ("--max-lora-rank", "adapter_rank"),
            ("--max-loaded-loras", "adapters"),
        ),
        weights={"fp8": "fp8"},
        kv_cache={"fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"},
        partial_experts=True,
        partial_groups=True,
        drafts={
            "mtp": lambda tokens, _: draft_words(tokens, "EAGLE"),
            "eagle3": lambda tokens, checkpoint: draft_words(tokens, "EAGLE3", checkpoint),
            "network": lambda tokens, checkpoint: draft_words(tokens, "STANDALONE", checkpoint),
            "n-grams": lambda tokens, _: draft_words(tokens, "NGRAM"),
        },
        nodes=node_words,
        queue_limit="--max-queued-requests",
        waiting_timeout="SGLANG_REQ_WAITING_TIMEOUT",
        priorities=("--enable-priority-scheduling", "--schedule-low-priority-values-first"),
        sources=(
            "https://docs.sglang.io/docs/advanced_features/speculative_decoding",
            "https://docs.sglang.io/advanced_features/server_arguments.html",
            "https://docs.sglang.io/references/environment_variables.html",
        ),
        pools=PoolLauncher(
            options={role: ("--disaggregation-mode", role, *TRANSFER) for role in ("prefill", "decode")},
            router=router_command,
            sources=("https://docs.sglang.io/docs/advanced_features/pd_disaggregation.md",),
        ),
        image="lmsysorg/sglang:v0.5.12",
        dynamo=DynamoWorker(
            "dynamo.sglang",
            "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.4.0",
            pool_options=("--disaggregation-transfer-backend", "nixl"),
        ),
        converts_weights="SGLANG_FORCE_FP8_MARLIN=1",
        converts_fp4=True,
        stage_blocks="SGLANG_PP_LAYER_PARTITION",
    ),
    local=None,
    max_batched_tokens=16384,
    max_sequences=4096,
    # Ranks share `--chunked-prefill-size` (`ServerArgs._handle_data_parallelism` divides it by `dp_size`) and
    # `--max-running-requests`, but each has `--max-prefill-tokens` (`TpModelWorker.__init__`).
    limits_per_rank=False,
    tokens_per_rank=True,
    limits_on=limits_on,
    block_tokens=1,
    overlaps_host_reads=True,  # `MHATokenToKVPool.get_key_buffer` waits for the keys of its layer only
    memory_fraction=0.88,
    is_fraction_of_free=False,
    profiles_activations=False,  # ModelRunner.profile_max_num_token
    chunked_prefill=8192,
    mixes_phases=False,
    reserved_output=0.4,
    overhead_s=0.3e-3,
    overhead_range_s=(0.1e-3, 1.5e-3),
    request_overhead_s=5e-3,
    # Queues of srt/disaggregation/decode.py, each looked at once per iteration: PreallocQueue, TransferQueue, waiting.
    # Qwen3-235B under two servers of eight H20 has its first token after 126 to 134 ms with prompts of 128 to 1,024
    # tokens (Mooncake's page on SGLang): messages take no more than some 70 ms. The number of iterations is chosen on
    # InferenceX's split pools of DeepSeek-R1 with prompts of 1,024 tokens and up to 64 users.
    handover=Handover(messages_s=70e-3, iterations=13.0),
    keeps_decode_place=True,  # srt/disaggregation/decode.py, DecodePreallocQueue
    draws_prefill_ranks=True,  # `--load-balance-method follow_bootstrap_room`: a random number modulo the ranks
    receive_option=RECEIVE_OPTION,
    captures_graphs=True,
    schedules_ahead=True,
    capability=Capability(
        7.5,
        weights={"fp8": 8.0, "fp8-block": 8.0, "mxfp4": 8.0},
        sources=(
            "https://docs.sglang.io/docs/get-started/quickstart (sm75 and above)",
            "https://github.com/sgl-project/sglang/tree/main/python/sglang/srt/layers/quantization "
            "(get_min_capability of fp8.py and mxfp4.py)",
        ),
    ),
    sources=("https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py",),
)

SGLANG_0_3 = structs.replace(
    SGLANG,
    name="sglang-0.3",
    versions=Versions(last="0.3"),
    launcher=None,
    limits_on=None,
    # The host of 0.4 works beside the device, which made it 1.1 times faster: 0.8 ms of 8 ms of Llama 3 8B on an H100.
    overhead_s=0.8e-3,
    overhead_range_s=(0.3e-3, 4e-3),
    is_host_fitted=False,
    receive_option="",
    schedules_ahead=False,
    sources=(
        *SGLANG.sources,
        "https://lmsys.org/blog/2024-12-04-sglang-v0-4/ (iterations are scheduled ahead from 0.4 on)",
    ),
)

RECORDS = (SGLANG, SGLANG_0_3)
