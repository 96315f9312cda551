"""Serving engines by name: limits of a batch, cache blocks, memory, scheduling, and overhead per iteration.

Every default is the engine's own, with the file of its repository. The options of `paleo_lite.serve` replace them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from ..engines.blocks import sampled_logits
from ..engines.constants import Host
from ..engines.memory import COMMUNICATOR_BYTES
from ..engines.placed import CHECKED_CONTEXT, EngineKernels
from ..engines.records import FUSIONS
from ..errors import BadValue, UnknownName
from ..machines import Device
from ..own_machines import LLAMA_CPP as LLAMA_CPP_NAME

LARGE_MEMORY_BYTES = 70 * 2**30
"""Memory from which vLLM uses larger batches, with the exception of the A100 (`EngineArgs.get_batch_defaults`)."""

SGLANG_CHUNKS = ((20, 2048), (35, 2048), (60, 4096), (90, 8192), (160, 8192))
"""SGLang's chunk in tokens, by the memory in GiB below which it holds (`ServerArgs._handle_gpu_memory_settings`)."""

SGLANG_LARGEST_CHUNK = 16384

HOST_FACTOR = 2.5
"""Ends of the 90% interval of the time of a host per iteration, relative to the fitted time."""

SEQUENCE_FACTOR = 1.6
"""Ends of the 90% interval of the time of a host per sequence, relative to the fitted time."""


NUCLEUS = "nucleus"
GREEDY = "greedy"
SAMPLINGS = (NUCLEUS, GREEDY)

_OPTIONS = {
    "block_tokens": "--engine-settings block-size",
    "receive_interval": "--engine-settings receive-interval",
}
"""How clients let a server choose tokens: by top-p or top-k, as most networks' own settings do, or the most likely."""


class Versions(msgspec.Struct, frozen=True):
    """Range of the versions of an engine.

    Attributes
    ----------
    first, last : str
        First and last version, which includes its patches; empty where the range is open.
    """

    first: str = ""
    last: str = ""

    def describe(self) -> str:
        """Return the range as text: ``0.8 and later``, ``0.6 to 0.7``, or ``0.5 and earlier``."""
        if not self.last:
            return f"{self.first} and later"
        return f"{self.first} to {self.last}" if self.first else f"{self.last} and earlier"


class Engine(msgspec.Struct, frozen=True):
    """Scheduling policy of a serving engine.

    Attributes
    ----------
    name : str
        Name of the policy.
    family : str
        Engine whose kernels it launches.
    versions : Versions
        Versions of the engine that have these defaults, as far as `sources` say.
    max_batched_tokens : int
        Tokens per iteration, of prompts and of decoding sequences together.
    max_sequences : int
        Sequences that run at the same time.
    block_tokens : int
        Tokens per block of the paged KV cache.
    memory_fraction : float
        Fraction of the device memory that weights, activations and cache may take, or, with `is_fraction_of_free`,
        fraction of the memory that weights and activations leave free that becomes the cache.
    is_fraction_of_free : bool
        See `memory_fraction`.
    profiles_activations : bool
        Whether the activations of the largest iteration are taken off the cache's memory, as the engine measures them
        first; otherwise they have what `memory_fraction` leaves.
    context_share : float
        Share of the device memory that the context and libraries take; 0 for the usual reserve.
    communicator_bytes : float
        Bytes that the communicators of a group with NVLink keep on each device.
    logit_bytes : float or None
        Bytes per logit at the peak of the sampler, where the engine samples for the largest batch before it sizes the
        cache; None for those of the newest version.
    chunked_prefill : int
        Tokens of prompts per iteration, into which longer prompts are split; 0 computes every prompt whole.
    mixes_phases : bool
        Whether an iteration computes prompts and decodes at once. Otherwise prompts go first and decoding pauses.
    mixes_whole_prompts : bool
        Whether this holds for prompts that are not split into chunks as well.
    reserved_output : float
        Fraction, 0 to 1, of the output tokens still to come for which admission requires free cache. At 1 no request
        is ever preempted.
    overhead_s : float
        Time per iteration in which the device waits for scheduler, sampling and input preparation.
    overhead_range_s : tuple of float
        90% interval of `overhead_s`.
    sequence_overhead_s : float
        Time per iteration and decoding sequence in which the device waits: sampling, detokenization, streaming.
    request_overhead_s : float
        Mean time from the sending of a request until the scheduler knows it: HTTP, tokenization, messages between
        processes.
    request_token_s : float
        The same per token of the prompt, in closed loops.
    request_iterations : float
        Iterations, on average, until the scheduler looks for new requests and first tokens are sent, in closed loops.
    receive_interval : int
        Decoding iterations from one look for new requests to the next.
    receive_option : str
        The engine's own option for `receive_interval`; empty without one.
    works_between_looks : bool
        Whether the host works in every iteration; otherwise its time is that of all iterations between two looks.
    schedules_ahead : bool
        Whether an iteration is scheduled while the one before it runs, so that a request waits for the iteration in
        progress and for the next one.
    sources : tuple of str
        Sources of the defaults and of the overhead.
    """

    name: str
    family: str
    versions: Versions
    max_batched_tokens: int
    max_sequences: int
    block_tokens: int
    memory_fraction: float
    is_fraction_of_free: bool
    chunked_prefill: int
    mixes_phases: bool
    reserved_output: float
    overhead_s: float
    overhead_range_s: tuple[float, float]
    request_overhead_s: float
    sources: tuple[str, ...]
    profiles_activations: bool = True
    context_share: float = 0.0
    communicator_bytes: float = COMMUNICATOR_BYTES
    logit_bytes: float | None = None
    sequence_overhead_s: float = 0.0
    request_token_s: float = 0.0
    request_iterations: float = 0.0
    receive_interval: int = 1
    receive_option: str = ""
    schedules_ahead: bool = False
    mixes_whole_prompts: bool = True
    works_between_looks: bool = True

    def __post_init__(self) -> None:
        for name in ("max_batched_tokens", "max_sequences", "block_tokens", "receive_interval"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
                raise BadValue(f"`{option}` must be an integer >= 1 (got {value!r})")
        if isinstance(self.chunked_prefill, bool) or not isinstance(self.chunked_prefill, int):
            raise BadValue(f"`--chunked-prefill` must be an integer >= 0 (got {self.chunked_prefill!r})")
        if self.chunked_prefill < 0:
            raise BadValue(f"`--chunked-prefill` must be an integer >= 0 (got {self.chunked_prefill})")
        if not 0 < self.memory_fraction <= 1:
            raise BadValue(f"`--memory-fraction` must be a fraction > 0 and <= 1 (got {self.memory_fraction:g})")
        if not self.overhead_s >= 0:
            raise BadValue(f"`--engine-settings overhead` must be a time >= 0 s (got {self.overhead_s:g})")

    def at_end(self, end: str) -> Engine:
        """Return the engine with the time of its host at an end of its 90% interval, ``low`` or ``high``."""
        shortest_s, longest_s = self.overhead_range_s
        if end == "low":
            sequence_s = self.sequence_overhead_s / SEQUENCE_FACTOR
            return structs.replace(self, overhead_s=shortest_s, sequence_overhead_s=sequence_s)
        sequence_s = self.sequence_overhead_s * SEQUENCE_FACTOR
        return structs.replace(self, overhead_s=longest_s, sequence_overhead_s=sequence_s)

    def describe(self) -> str:
        """Return the limits as text: ``versions 0.8 and later, 8,192 tokens and 1,024 sequences per iteration``."""
        parts = [f"versions {self.versions.describe()}"]
        parts.append(f"{self.max_batched_tokens:,} tokens and {self.max_sequences:,} sequences per iteration")
        parts.append(f"prompts in chunks of {self.chunked_prefill:,}" if self.chunked_prefill else "whole prompts")
        if not self.mixes_phases:
            parts.append("prompts and decoding in separate iterations")
        parts.append(f"cache blocks of {self.block_tokens}")
        share = "free memory" if self.is_fraction_of_free else "memory"
        parts.append(f"{self.memory_fraction:.0%} of {share}")
        return ", ".join(parts)


VLLM = Engine(
    name="vllm",
    family="vllm",
    versions=Versions(first="0.17"),
    # 0.25 GiB outside of PyTorch on one H100 since 0.18, and 2.07 on each of two.
    context_share=0.25 / 79.19,
    communicator_bytes=1.82 * 2**30,
    max_batched_tokens=2048,
    max_sequences=256,
    block_tokens=16,
    memory_fraction=0.9,
    is_fraction_of_free=False,
    chunked_prefill=2048,
    mixes_phases=True,
    reserved_output=0.0,
    overhead_s=1.0e-3,
    overhead_range_s=(0.3e-3, 4e-3),
    request_overhead_s=5e-3,
    schedules_ahead=True,
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
    context_share=0.13 / 79.18,
    # The sampler sorts 1,024 x 151,936 logits of Qwen3 14B in 5.64 GiB.
    logit_bytes=5.64 * 2**30 / (1024 * 151_936),
    # Four H100 under 0.9, beside a connector of caches, have 8.11 GiB for the cache of Qwen3 235B
    # (https://github.com/vllm-project/vllm/issues/21348).
    communicator_bytes=2.28 * 2**30,
)

VLLM_0_13 = structs.replace(
    VLLM_0_16, name="vllm-0.13", versions=Versions(first="0.8", last="0.13"), schedules_ahead=False
)

VLLM_0_7 = structs.replace(
    VLLM_0_13,
    name="vllm-0.7",
    versions=Versions(first="0.6", last="0.7"),
    # `non_torch_memory` is 1.79 of 79.22 GiB of an H100.
    context_share=1.79 / 79.22,
    communicator_bytes=COMMUNICATOR_BYTES,
    # The cache of OPT 125M on an H100 lost 58,928 tokens of 36,864 bytes to 1,024 sequences of 50,272 logits
    # (https://github.com/vllm-project/vllm/pull/13594).
    logit_bytes=42.0,
    # Between the times of 0.5 and of the engine since 0.8.
    overhead_s=5e-3,
    overhead_range_s=(1e-3, 12e-3),
    mixes_whole_prompts=False,
    receive_option="--num-scheduler-steps",
    works_between_looks=False,
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
    sources=("https://blog.vllm.ai/2024/09/05/perf-update.html (shares of CPU and GPU before version 0.6)",),
)

TENSORRT_LLM = Engine(
    name="tensorrt-llm",
    family="tensorrt-llm",
    versions=Versions(first="1.0"),
    max_batched_tokens=8192,
    max_sequences=2048,
    block_tokens=32,
    memory_fraction=0.9,
    is_fraction_of_free=True,
    chunked_prefill=0,
    mixes_phases=True,
    reserved_output=1.0,
    overhead_s=0.3e-3,
    overhead_range_s=(0.1e-3, 1.5e-3),
    request_overhead_s=5e-3,
    schedules_ahead=True,
    sources=("https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm_args.py",),
)

SGLANG = Engine(
    name="sglang",
    family="sglang",
    versions=Versions(first="0.5"),
    max_batched_tokens=16384,
    max_sequences=4096,
    block_tokens=1,
    memory_fraction=0.88,
    is_fraction_of_free=False,
    profiles_activations=False,  # ModelRunner.profile_max_num_token
    chunked_prefill=8192,
    mixes_phases=False,
    reserved_output=0.4,
    overhead_s=0.3e-3,
    overhead_range_s=(0.1e-3, 1.5e-3),
    request_overhead_s=5e-3,
    receive_option="--scheduler-recv-interval",
    schedules_ahead=True,
    sources=("https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py",),
)

SGLANG_0_3 = structs.replace(
    SGLANG,
    name="sglang-0.3",
    versions=Versions(last="0.3"),
    # The host of 0.4 works beside the device, which made it 1.1 times faster: 0.8 ms of 8 ms of Llama 3 8B on an H100.
    overhead_s=0.8e-3,
    overhead_range_s=(0.3e-3, 4e-3),
    receive_option="",
    schedules_ahead=False,
    sources=(
        *SGLANG.sources,
        "https://lmsys.org/blog/2024-12-04-sglang-v0-4/ (iterations are scheduled ahead from 0.4 on)",
    ),
)

LLAMA_CPP = Engine(
    name=LLAMA_CPP_NAME,
    family=LLAMA_CPP_NAME,
    versions=Versions(first="b7079"),
    max_batched_tokens=2048,
    max_sequences=4,
    block_tokens=1,
    memory_fraction=1.0,  # of the memory that llama.cpp may use
    is_fraction_of_free=False,
    chunked_prefill=2048,
    mixes_phases=True,
    reserved_output=1.0,
    # No publication states it: a sample of a vocabulary and an answer over HTTP.
    overhead_s=0.5e-3,
    overhead_range_s=(0.1e-3, 2e-3),
    request_overhead_s=5e-3,
    sources=(
        "https://github.com/ggml-org/llama.cpp/tree/master/tools/server (--parallel, --batch-size, --kv-unified)",
        "https://github.com/ggml-org/llama.cpp/issues/17300 (4 slots)",
    ),
)

ENGINES = {
    engine.name: engine
    for engine in (
        VLLM,
        VLLM_0_16,
        VLLM_0_13,
        VLLM_0_7,
        VLLM_0_5,
        TENSORRT_LLM,
        SGLANG,
        SGLANG_0_3,
        LLAMA_CPP,
    )
}
"""The engines by name."""

KERNEL_ENGINES = tuple(name for name, engine in ENGINES.items() if engine.family in FUSIONS)
"""Engines whose kernels are known, as names of executions."""


def find_engine(name: str, device: Device | None = None, **changes: Any) -> Engine:
    """Return an engine with its defaults for a device.

    Parameters
    ----------
    name : str
        One of `ENGINES`.
    device : Device, optional
        Device on which vLLM's and SGLang's defaults depend.
    **changes
        Attributes to replace; None keeps the default.

    Raises
    ------
    UnknownName
        If there is no such engine.
    BadValue
        If a value is outside its range.
    """
    if name not in ENGINES:
        raise UnknownName("serving engine", name, ENGINES)
    defaults: dict[str, Any] = {}
    if device is not None and name in (VLLM.name, VLLM_0_16.name, VLLM_0_13.name):
        defaults = _vllm_defaults(device)
    elif device is not None and name == SGLANG.name:
        defaults = {"chunked_prefill": _sglang_chunk(device)}
    given = {key: value for key, value in changes.items() if value is not None}
    if "receive_interval" in given and not ENGINES[name].receive_option:
        owners = sorted(engine.name for engine in ENGINES.values() if engine.receive_option)
        raise BadValue(f"`--engine-settings receive-interval` is for {' and '.join(owners)} (the engine is {name})")
    batched_tokens = given.get("max_batched_tokens")
    chunk = given.get("chunked_prefill")
    if batched_tokens is not None and chunk is None and ENGINES[name].chunked_prefill:
        given["chunked_prefill"] = batched_tokens
    if given.get("overhead_s") is not None:
        given["overhead_range_s"] = (given["overhead_s"], given["overhead_s"])
    engine = structs.replace(ENGINES[name], **{**defaults, **given})
    if not engine.chunked_prefill and not engine.mixes_whole_prompts:
        engine = structs.replace(engine, mixes_phases=False)
    if not engine.works_between_looks and "overhead_s" not in given:
        steps, (shortest_s, longest_s) = engine.receive_interval, engine.overhead_range_s
        overhead_range_s = (shortest_s / steps, longest_s / steps)
        engine = structs.replace(engine, overhead_s=engine.overhead_s / steps, overhead_range_s=overhead_range_s)
    return engine


def kernels_of(policy: str) -> str:
    """Return the engine whose kernels a policy launches: ``vllm`` for ``vllm-0.5``.

    Raises
    ------
    UnknownName
        If no engine with kernels of its own has this name.
    """
    family = ENGINES[policy].family if policy in ENGINES else policy
    if family not in FUSIONS:
        raise UnknownName("engine with kernels of its own", policy, FUSIONS)
    return family


def with_host(engine: Engine, host: Host, logits: float, sampling: str = NUCLEUS) -> Engine:
    """Return an engine with the time of its host as it was fitted to servers, for a vocabulary of some logits."""
    logit_s = host.logit_s + (host.nucleus_logit_s if sampling == NUCLEUS else 0.0)
    return structs.replace(
        engine,
        overhead_s=host.iteration_s,
        overhead_range_s=(host.iteration_s / HOST_FACTOR, host.iteration_s * HOST_FACTOR),
        sequence_overhead_s=logit_s * logits,
        request_overhead_s=host.request_s,
        request_token_s=host.request_token_s,
        request_iterations=host.request_iterations,
    )


def has_fitted_host(engine: Engine, kernels: EngineKernels | None) -> bool:
    """Return whether an engine's host was fitted to servers: not where layers are timed, nor of older versions."""
    return kernels is not None and kernels.step.engine == engine.name


def with_fitted_host(engine: Engine, kernels: EngineKernels | None, sampling: str = NUCLEUS) -> Engine:
    """Return an engine with the time of its host that was fitted to servers; older versions keep hosts of their own.

    Parameters
    ----------
    engine : Engine
        The engine.
    kernels : EngineKernels or None
        Kernels of the network under the engine; None where layers are timed.
    sampling : str
        One of `SAMPLINGS`.
    """
    if kernels is None or not has_fitted_host(engine, kernels):
        return engine
    logits = sampled_logits(kernels.of_iteration("decode", CHECKED_CONTEXT))
    return with_host(engine, kernels.step.host, logits, sampling)


def _vllm_defaults(device: Device) -> dict[str, int]:
    """Return vLLM's limits of its OpenAI-compatible server for a device."""
    is_large = device.memory_bytes >= LARGE_MEMORY_BYTES and "a100" not in device.id
    if is_large:
        return {"max_batched_tokens": 8192, "max_sequences": 1024, "chunked_prefill": 8192}
    return {"max_batched_tokens": 2048, "max_sequences": 256, "chunked_prefill": 2048}


def _sglang_chunk(device: Device) -> int:
    """Return SGLang's chunk of prompts for a device."""
    for gibibytes, chunk in SGLANG_CHUNKS:
        if device.memory_bytes < gibibytes * 2**30:
            return chunk
    return SGLANG_LARGEST_CHUNK
