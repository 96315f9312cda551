"""What the scripts of InferenceX set when they start servers (``benchmarks`` of its repository).

The table of servers states none of it. A server is read with the settings of the script for its network, device and
engine; where a script was changed, with those of the versions that the table names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .servers import PublishedServer

RECEIVING_DEVICES = ("b200",)
"""Devices for which the scripts set the interval of SGLang's looks for new requests."""

MANY_USERS = 16
"""Users from which SGLang looks for new requests every 30 iterations instead of every 10."""


class Gathering(NamedTuple):
    """How long InferenceX lets the prompts of TensorRT-LLM wait for others."""

    iterations: int  # at most
    share: float | None  # of the tokens of an iteration; None with attention data parallelism
    most_tokens: int | None  # tokens of an iteration; None for the engine's own


class Script(NamedTuple):
    """Settings of a server; those that are None are the engine's own."""

    gathering: Gathering | None = None  # how long prompts wait for others; None if they do not
    most_tokens: int | None = None  # tokens of an iteration
    memory_fraction: float | None = None  # of the memory that weights and cache may take, or of the free memory
    receive_interval: int = 1  # decoding iterations between looks for new requests, an option of SGLang
    stream_interval: int = 1  # tokens that are sent to a client together, an option of TensorRT-LLM


FP8_CACHES = {
    ("sglang", "deepseek-r1", "b200"),  # dsr1_fp8_b200.sh and dsr1_fp4_b200.sh: --kv-cache-dtype fp8_e4m3
    ("vllm", "llama-3.1-70b", "h100-sxm"),  # 70b_fp8_h100_slurm.sh: kv-cache-dtype: fp8
    ("vllm", "llama-3.1-70b", "h200-sxm"),  # 70b_fp8_h200_slurm.sh
    ("vllm", "llama-3.1-70b", "b200"),  # 70b_fp8_b200_docker.sh and 70b_fp4_b200_docker.sh
    ("vllm", "gpt-oss-120b", "b200"),  # gptoss_fp4_b200.sh
    ("vllm", "kimi-k2", "b200"),  # kimik2.5_fp4_b200.sh
}
"""Engine, network and device whose servers InferenceX starts with a cache in fp8 where the weights are narrow.

Its scripts for other devices and for weights in int4 state none. They are in ``benchmarks`` of its repository.
"""

SHORT = (1024, 1024)
"""Tokens of prompts and of answers with which prompts of tensor-parallel servers are gathered."""

LLAMA_GATHERING, GATHERING_DEVICES = Gathering(20, 0.9, 2248), 8
"""Settings of Llama 3 70B on fewer devices than these (``benchmarks/70b_fp8_h200_trt_slurm.sh``, and those for B200 in
fp8 and fp4: ``batch_wait_timeout_iters``, ``batch_wait_max_tokens_ratio``, ``max_num_tokens``)."""

DEEPSEEK_GATHERING, GATHERING_USERS = Gathering(40, 0.8, None), range(64, 256)
"""Settings of DeepSeek-R1 in fp8 on B200 with so many users (``benchmarks/dsr1_fp8_b200_trt.sh`` of 2026)."""

BALANCE_ITERATIONS = {"deepseek-r1": 60, "gpt-oss-120b": 50}
"""Iterations for which ranks of attention data parallelism wait until each of them has a prompt, by network.

They are ``attention_dp_config`` of ``benchmarks/dsr1_*_trt*.sh``, and the engine's default in
``benchmarks/gptoss_fp4_b200_trt_slurm.sh``.
"""


EARLIEST_TOKENS, TOKEN_STEP = 64, 64
"""Tokens of an iteration of DeepSeek-R1 under TensorRT-LLM beyond users and prompt, and the step to which all of them
are rounded up (``MAX_NUM_TOKENS=$(( ($CONC+$ISL+64+63)/64*64 ))``)."""

LEAST_TOKENS = 8192
"""The least of them in the scripts for TensorRT-LLM 1.2; before there was none."""

OSS_TOKENS = 20_000
"""Tokens of an iteration of gpt-oss under TensorRT-LLM (``gptoss_fp4_b200_trt.sh`` and ``gptoss_fp4_h200_trt.sh``)."""

STREAM_INTERVAL, OSS_STREAM_INTERVAL = 10, 20
"""Tokens that TensorRT-LLM sends together (``dsr1_fp4_b200_trt.sh``, ``70b_fp8_h200_trt_slurm.sh``), and those of
gpt-oss (``gptoss_fp4_b200_trt_slurm.sh``).

The scripts for gpt-oss and Llama also start processes of their own for streaming (``num_postprocess_workers``).
"""

MEMORY_FRACTIONS = {
    ("tensorrt-llm", "deepseek-r1", "h200-sxm", "fp8"): 0.75,  # dsr1_fp8_h200_trt_slurm.sh
    ("tensorrt-llm", "deepseek-r1", "b200", "fp8"): 0.8,  # dsr1_fp8_b200_trt.sh
    ("tensorrt-llm", "deepseek-r1", "b200", "fp4"): 0.8,  # dsr1_fp4_b200_trt.sh
    ("tensorrt-llm", "gpt-oss-120b", "h200-sxm", "bf16"): 0.85,  # gptoss_fp4_h200_trt.sh
    ("tensorrt-llm", "gpt-oss-120b", "b200", "fp8"): 0.85,  # gptoss_fp4_b200_trt_slurm.sh
    ("sglang", "deepseek-r1", "h200-sxm", "fp8"): 0.82,  # dsr1_fp8_h200.sh
    ("sglang", "deepseek-r1", "b200", "fp8"): 0.82,  # dsr1_fp8_b200.sh
    ("sglang", "deepseek-r1", "b200", "fp4"): 0.85,  # dsr1_fp4_b200.sh
}
"""Fraction of the memory by engine, network, device and precision."""

LONG_PROMPT, LONG_FRACTION = 8192, 0.75
"""Prompts with which DeepSeek-R1 in fp8 has this fraction on four B200 (``dsr1_fp8_b200_trt.sh``)."""


def script_of(server: PublishedServer) -> Script:
    """Return what a script of InferenceX sets; nothing for servers of others."""
    if not server.is_drawn:
        return Script()
    return Script(
        _gathering(server) if server.engine == "tensorrt-llm" else None,
        _most_tokens(server),
        _memory_fraction(server),
        _receive_interval(server),
        _stream_interval(server),
    )


def cache_format(server: PublishedServer) -> str:
    """Return the format of the KV cache: with narrow weights fp8 under TensorRT-LLM, and where a script states it."""
    is_stated = server.is_drawn and (server.engine, server.network, server.gpu) in FP8_CACHES
    is_narrow = server.precision in ("fp8", "fp4")
    return "fp8" if is_narrow and (server.engine == "tensorrt-llm" or is_stated) else "bf16"


def _gathering(server: PublishedServer) -> Gathering | None:
    """Return how long InferenceX lets the prompts of a server under TensorRT-LLM wait for others."""
    if server.attention_data > 1:
        iterations = BALANCE_ITERATIONS.get(server.network)
        return None if iterations is None else Gathering(iterations, None, None)
    if (server.input_tokens, server.output_tokens) != SHORT:
        return None
    if server.network == "llama-3.1-70b":
        return LLAMA_GATHERING if server.devices < GATHERING_DEVICES else None
    is_delayed = server.network == "deepseek-r1" and (server.precision, server.gpu) == ("fp8", "b200")
    is_delayed = is_delayed and server.version.startswith("1.2") and server.concurrency in GATHERING_USERS
    return DEEPSEEK_GATHERING if is_delayed else None


def _most_tokens(server: PublishedServer) -> int | None:
    """Return the tokens of an iteration under TensorRT-LLM; None for those of the engine."""
    if server.engine != "tensorrt-llm":
        return None
    if server.network == "gpt-oss-120b":
        return OSS_TOKENS
    if server.network != "deepseek-r1":
        return None
    tokens = server.concurrency + round(server.input_tokens) + EARLIEST_TOKENS
    rounded = -(-tokens // TOKEN_STEP) * TOKEN_STEP
    return max(rounded, LEAST_TOKENS) if server.version.startswith("1.2") else rounded


def _memory_fraction(server: PublishedServer) -> float | None:
    """Return the fraction of the memory that weights and cache may take; None for that of the engine."""
    fraction = MEMORY_FRACTIONS.get((server.engine, server.network, server.gpu, server.precision))
    is_long = (server.devices, server.precision, server.input_tokens) == (4, "fp8", LONG_PROMPT)
    return LONG_FRACTION if fraction is not None and server.engine == "tensorrt-llm" and is_long else fraction


def _receive_interval(server: PublishedServer) -> int:
    """Return after how many iterations SGLang looks for requests, by the number of users.

    The scripts of 2026 for Blackwell set ``--scheduler-recv-interval``, which is 1 unless it is given.
    """
    if server.engine != "sglang" or not server.name.startswith("2026_") or server.gpu not in RECEIVING_DEVICES:
        return 1
    return 30 if server.concurrency >= MANY_USERS else 10


def _stream_interval(server: PublishedServer) -> int:
    """Return the tokens that are sent to a client together (``stream_interval`` of all scripts for TensorRT-LLM)."""
    if server.engine != "tensorrt-llm":
        return 1
    return OSS_STREAM_INTERVAL if server.network == "gpt-oss-120b" else STREAM_INTERVAL
