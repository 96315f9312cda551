"""The record of an engine: all that paleo-lite knows of a program that computes language models.

What was fitted to measurements is data, by the name of the engine: times of kernels, exchanges and the host in
``calibrations/engines.json``, and of programs on one's own machine in ``calibrations/llama_cpp.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from ...errors import BadValue
from ...gguf_types import Mixture
from ...machines import Device
from ...units import check_integer
from ..exchanges import Mode

COMMUNICATOR_BYTES = 1.15 * 2**30
"""Bytes that the communicators of a group with NVLink keep on each device, beside the context.

Two H100 under vLLM 0.6 have 1.26 GiB of it (https://github.com/vllm-project/vllm/pull/10511). Two RTX 4090 without
NVLink keep nothing: `non_torch_memory` is 0.25 GiB, https://github.com/vllm-project/vllm/issues/13061.
"""

SEQUENCE_FACTOR = 1.6
"""Ends of the 90% interval of the time of a host per sequence, relative to the fitted time."""

NUCLEUS = "nucleus"
GREEDY = "greedy"
SAMPLINGS = (NUCLEUS, GREEDY)
"""How clients let a server choose tokens: by top-p or top-k, as most networks' own settings do, or the most likely."""

PROCESSOR = "processor"
"""Vendor of a device that is a processor."""

_OPTIONS = {
    "block_tokens": "--engine-settings block-size",
    "receive_interval": "--engine-settings receive-interval",
    "batch_wait_iterations": "--engine-settings batch-wait-iterations",
    "captured_sequences": "--engine-settings captured-sequences",
    "stream_interval": "--engine-settings stream-interval",
}
"""Options of the command for limits that have another name there."""


def _numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: 1, 2 and 0 of ``1.2.0rc6``."""
    match = re.match(r"[\d.]*\d", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


class Handover(msgspec.Struct, frozen=True):
    """What a prompt waits for between a prefill pool and the first iteration of a decode pool, beside its bytes."""

    messages_s: float = 0.0  # messages of the router and between both engines, while neither computes
    # Iterations of the decode pool until its scheduler, which looks at its queues once in each, runs the request.
    iterations: float = 0.0
    block_s: float = 0.0  # seconds per block of each cached tensor of a layer, each of which is a read of its own


class Versions(msgspec.Struct, frozen=True):
    """Range of the versions of an engine."""

    # First and last version, which includes its patches; empty where the range is open.
    first: str = ""
    last: str = ""

    def include(self, version: str) -> bool:
        """Return whether a version such as ``0.11.1`` is in the range; a text without a version is not."""
        numbers = _numbers_of(version)
        first, last = _numbers_of(self.first), _numbers_of(self.last)
        is_late = first <= numbers[: len(first)]
        is_early = not last or numbers[: len(last)] <= last
        return bool(numbers) and is_late and is_early

    def describe(self) -> str:
        """Return the range as text: ``0.8 and later``, ``0.6 to 0.7``, or ``0.5 and earlier``."""
        if not self.last:
            return f"{self.first} and later"
        return f"{self.first} to {self.last}" if self.first else f"{self.last} and earlier"


class Kernels(msgspec.Struct, frozen=True):
    """What an engine makes of a block, beyond the kernels that every engine launches (`paleo_lite.engines.blocks`)."""

    # Engine under whose name times of kernels were fitted: older versions launch the same ones.
    engine: str
    # Launches of a pointwise kernel by its name, where they are not 1; 0 where another kernel does its work.
    launches: dict[str, int]
    sources: tuple[str, ...]  # where this can be read
    # Multiples to which the hidden and the inner size of experts are padded, by the format of the kernels.
    padded_experts: dict[str, tuple[int, int]] = {}
    # Share of the tokens of a sequence for which layers with a sliding window have room in the cache, where the window
    # is smaller: 1 where they keep what they no longer read, 0 where they drop it.
    window_cache_share: float = 0.0
    chunk_cache_share: float = 0.0  # the same of layers whose tokens attend to each other within chunks
    # Time of attention over prompts in networks with attention sinks over that of others, by the generation of devices
    # (`paleo_lite.engines.constants.generation_of`), where other kernels compute it.
    sink_factors: dict[str, float] = {}
    # Formats in which other kernels than those of the tables compute experts, and their names in
    # `paleo_lite.engines.kernel_formats.KERNEL_FORMATS`, by the generation of devices.
    expert_formats: dict[str, dict[str, str]] = {}
    # Pointwise kernels that quantise their results for the product that reads them, by their name in
    # `paleo_lite.engines.blocks`, with the format of that product; by the generation of devices.
    quantising: dict[str, tuple[tuple[str, str], ...]] = {}
    # Mode of the kernels that exchange tokens with experts in iterations with prompts, and in others (SGLang:
    # `--deepep-mode auto`; vLLM, expert parallel deployment: deepep_high_throughput and deepep_low_latency).
    prompt_exchange: Mode = "normal"
    decode_exchange: Mode = "low-latency"
    expert_launches: int = 1  # launches by which the host starts a layer of experts, where no graph is replayed
    # Whether another kernel decodes where every head of queries has keys of its own than where heads share keys.
    has_single_decode: bool = False
    # Generations of devices whose kernel for shared keys also decodes within chunks; on others the kernel for keys of
    # one head does, if the engine has one.
    decodes_chunks: tuple[str, ...] = ()


class PoolLauncher(msgspec.Struct, frozen=True):
    """What starts the servers of split pools, beside the options of a server, and the router before them."""

    options: dict[str, tuple[str, ...]]  # words of the command by role, ``prefill`` and ``decode``
    # The command of the router, in a shell, of the addresses of both pools and the port at which it answers.
    router: Callable[[Sequence[str], Sequence[str], int], str]
    sources: tuple[str, ...]  # documentation of both
    file_lines: dict[str, tuple[str, ...]] = {}  # lines of the YAML file with further options, by role
    address_variable: str = ""  # variable that names the address at which a server hands over; empty if none is needed


class DraftWords(NamedTuple):
    """What starts a server that drafts tokens, beside its other options."""

    options: tuple[str, ...] = ()  # words of the command
    file_entries: Mapping[str, Any] = {}  # entries of the YAML file with further options


class NodeWords(NamedTuple):
    """What starts a replica on several nodes, beside its other options."""

    options: tuple[str, ...]  # words of the command on the first node, whose address is `HEAD`
    others: str  # how the others are started, as a sentence


HEAD = "HEAD"
"""Word that stands for the address of the first node in commands."""


class DynamoWorker(msgspec.Struct, frozen=True):
    """What NVIDIA Dynamo starts for an engine."""

    module: str
    image: str  # of its container
    repository_option: str = "--model-path"  # option that names the repository of the network
    pool_options: tuple[str, ...] = ()  # further options of a server of split pools


class Launcher(msgspec.Struct, frozen=True):
    """Options of the command that starts an engine's server."""

    command: str  # the command; the repository of the network follows
    # Options, and the setting of `paleo_lite.serving.launch.launch_settings` that each of them states. A setting that
    # is None or False is left out; True is an option without a value.
    options: tuple[tuple[str, str], ...]
    # Names of the formats that the engine makes from weights in 16 bits when it loads them. It finds out by itself in
    # which format a quantized checkpoint is.
    weights: dict[str, str]
    kv_cache: dict[str, str]  # names of the formats of the KV cache
    # Whether experts, and attention, can be divided into fewer groups than there are devices.
    partial_experts: bool
    partial_groups: bool
    sources: tuple[str, ...]  # documentation of the options
    # Variable that makes the engine convert 8-bit weights to 16 bits where it would multiply them; empty if none does.
    converts_weights: str = ""
    # Whether the engine converts 4-bit floating point to 16 bits on GPUs of NVIDIA without units for it.
    converts_fp4: bool = False
    stage_blocks: str = ""  # variable that states the blocks of every pipeline stage; empty if none does
    # How tokens are drafted in each way (`paleo_lite.serving.drafts`), of their number and the checkpoint of what
    # drafts.
    drafts: Mapping[str, Callable[[int, str], DraftWords]] = {}
    # What starts a replica on several nodes, by their number and the attention groups; None if nothing is known of it.
    nodes: Callable[[int, int], NodeWords] | None = None
    # Option that limits the requests that wait in a server, and variable of the seconds after which one is given up;
    # empty if there are none.
    queue_limit: str = ""
    waiting_timeout: str = ""
    priorities: tuple[str, ...] = ()  # words that let requests have priorities; empty if none do
    pools: PoolLauncher | None = None  # how servers of split pools are started; None if nothing is known of it
    image: str = ""  # image of a container that has the engine; empty if none is known
    dynamo: DynamoWorker | None = None  # Dynamo's worker for the engine; None if it has none
    llm_d_image: str = ""  # image of llm-d's chart of a model service for the engine; empty if it has none
    file_option: str = ""  # option that names a YAML file with further options; empty if there is none
    # Keys of this file with their settings; a dot separates a key from the key of the mapping that contains it. A
    # mapping is written only if one of its settings is none of `options`.
    file_options: tuple[tuple[str, str], ...] = ()


class Capability(msgspec.Struct, frozen=True):
    """The lowest CUDA compute capabilities on which an engine runs; 0 where its documentation states none."""

    lowest: float = 0.0
    weights: Mapping[str, float] = {}  # with weights in a format that needs a higher one
    experts: Mapping[str, float] = {}  # with experts in a format whose kernels for them need a higher one still
    later_formats: tuple[str, ...] = ()  # formats of weights that came in with a later version
    sources: tuple[str, ...] = ()

    def why_not_on(self, device: Device, weights: str | None, *, is_mixture: bool = False) -> str:
        """Return what an engine or a device lacks for weights in a format, as a clause about the engine; empty if none.

        Only the devices of NVIDIA have compute capabilities.
        """
        if weights in self.later_formats:
            return f"does not know weights in {weights}"
        if device.vendor != "NVIDIA" or not device.capability:
            return ""
        of_device, of_format = float(device.capability), self.weights.get(weights or "", 0.0)
        kind = "weights"
        if is_mixture and self.experts.get(weights or "", 0.0) > of_format:
            kind, of_format = "experts", self.experts[weights or ""]
        if of_device >= max(self.lowest, of_format):
            return ""
        what = f" with {kind} in {weights}" if of_device >= self.lowest else ""
        needed = of_format if what else self.lowest
        return f"needs compute capability {needed:.1f}{what}, and {device.name} has {of_device:.1f}"


class LocalEngine(msgspec.Struct, frozen=True):
    """How an engine runs a language model on one's own machine, for one request at a time."""

    name: str  # name of the engine
    description: str  # in one line
    # Backends by vendor of the device, the usual one first; of `PROCESSOR` those of processors, and of the empty text
    # those of all other vendors.
    backends: Mapping[str, tuple[str, ...]]
    mixtures: Mapping[str, Mixture]  # formats of weights
    default_weights: str  # usual one of them
    caches: tuple[str, ...]  # types of keys and values, the usual one first
    advised: tuple[str, ...]  # formats that people publish, from the most bits to the fewest
    # Whether experts that a checkpoint stores in mxfp4 keep it in files of every format, as those of gpt-oss do.
    keeps_mxfp4: bool = False
    aliases: Mapping[str, str] = {}  # its formats by the names that they have elsewhere
    places: bool = False  # whether blocks, experts and the cache can be in the memory of the host
    caution: str = ""  # what its forecasts rest on, where that is little

    def runs_on(self, device: Device) -> bool:
        """Return whether the engine has a backend for a device."""
        return bool(self._backends_of(device))

    def _backends_of(self, device: Device) -> tuple[str, ...]:
        vendor = PROCESSOR if device.scope == "cpu" else device.vendor
        return self.backends.get(vendor, () if vendor == PROCESSOR else self.backends.get("", ()))

    def backend_of(self, device: Device, backend: str | None = None) -> str:
        """Return the backend for a device, the requested one or the usual one; raise BadValue if there is none."""
        possible = self._backends_of(device)
        if not possible:
            vendors = ", ".join(vendor for vendor in self.backends if vendor not in ("", PROCESSOR))
            raise BadValue(f"`--engine {self.name}` is for devices of {vendors}, not for {device.name}")
        if backend is not None and backend not in possible:
            raise BadValue(f"`--backend` of {device.name} must be {' or '.join(possible)} (got {backend!r})")
        return backend or possible[0]


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A program that computes language models, in a range of its versions.

    Every part is stated, so that none is forgotten: None says that the engine has no such part, or that nobody has
    described it.
    """

    name: str  # as in ``--engine``; that of older versions ends with the last of them
    versions: Versions
    kernels: Kernels | None  # its kernels; None where layers are timed one by one
    launcher: Launcher | None  # the command of its server; None if answers name no command
    local: LocalEngine | None  # how it runs a model on one's own machine; None if it is not for that
    sources: tuple[str, ...]  # where the figures of the record can be read

    @property
    def program(self) -> str:
        """The name without that of its versions: ``vllm`` of ``vllm-0.13``."""
        return self.name.rstrip("0123456789.").rstrip("-")


class Server(Engine, frozen=True, kw_only=True):
    """An engine with a server: how it schedules requests and divides memory, and how long its host takes.

    Every default is the engine's own; the options of `paleo_lite.serve` replace them.
    """

    max_batched_tokens: int  # tokens per iteration, of prompts and of decoding sequences together
    max_sequences: int  # sequences that run at the same time
    # Whether no more sequences may run than an iteration has tokens; where only the tokens are given, no more do.
    needs_token_per_sequence: bool = False
    # Whether both limits, and the chunks of prompts, are those of each rank with attention data parallelism; otherwise
    # the ranks share them.
    limits_per_rank: bool
    # Whether the tokens per iteration alone are those of each rank, where ranks share the other limits.
    tokens_per_rank: bool = False
    block_tokens: int  # tokens per block of the paged KV cache
    reuses_parts_of_blocks: bool = False  # whether a prompt reuses a part of a block that an earlier one has in common
    # Whether a block of the network is computed while what was found in the host's memory is read for the next one.
    overlaps_host_reads: bool = False
    # Fraction of the device memory that weights, activations and cache may take, or, with `is_fraction_of_free`, of the
    # memory that weights and activations leave free, that becomes the cache.
    memory_fraction: float
    is_fraction_of_free: bool
    # Whether the activations of the largest iteration are taken off the cache's memory, as the engine measures them
    # first; otherwise they have what `memory_fraction` leaves.
    profiles_activations: bool = True
    context_share: float = 0.0  # share of the device memory that context and libraries take; 0 for the usual reserve
    # Bytes that the communicators of a group with NVLink keep on each device.
    communicator_bytes: float = COMMUNICATOR_BYTES
    # Bytes per logit at the peak of the sampler, where the engine samples for the largest batch before it sizes the
    # cache; 0 if it does not.
    logit_bytes: float = 0.0
    # Tokens of prompts per iteration, into which longer prompts are split; 0 computes every prompt whole.
    chunked_prefill: int
    # Prompts that an iteration computes at most, where an encoder reads each of them whole; None for no such limit.
    most_prompts: int | None = None
    # Whether an iteration computes prompts and decodes at once; otherwise prompts go first and decoding pauses. And
    # whether this holds for prompts that are not split into chunks as well.
    mixes_phases: bool
    mixes_whole_prompts: bool = True
    # Fraction, 0 to 1, of the output tokens still to come for which admission requires free cache. At 1 no request is
    # ever preempted.
    reserved_output: float
    # Seconds per iteration in which the device waits for scheduler, sampling and input preparation; their 90% interval;
    # and seconds per iteration and decoding sequence: sampling, detokenization, streaming.
    overhead_s: float
    overhead_range_s: tuple[float, float]
    sequence_overhead_s: float = 0.0
    draft_pass_s: float = 0.0  # of each pass of what drafts, where it is no part of the captured graphs
    # The same where no graphs are recorded, beside the latter: engines that process outputs while a graph runs wait for
    # this work between launches.
    eager_sequence_s: float = 0.0
    # Whether the times of its host were fitted to servers, together with those of its kernels; they then replace these.
    is_host_fitted: bool = True
    # Seconds per logit of a decoding sequence in which the nucleus is found; None where this was fitted, too.
    nucleus_logit_s: float | None = None
    usual_sampling: str = NUCLEUS  # one of `SAMPLINGS`, of clients that state nothing
    # Mean seconds from the sending of a request until the scheduler knows it: HTTP, tokenization, messages between
    # processes; and what they are longer by in closed loops, per token of the prompt and by the kernels of the network.
    request_overhead_s: float
    request_token_s: float = 0.0
    request_kernels_s: float = 0.0
    handover: Handover = Handover()  # what a prompt waits for between two pools beside its bytes
    # Whether a request has a place in the decode pool, and room for its prompt, before a prefill pool computes that.
    keeps_decode_place: bool = False
    # Whether it is left to chance which data-parallel rank of a prefill pool computes a prompt.
    draws_prefill_ranks: bool = False
    # Iterations, on average, until the scheduler looks for new requests and first tokens are sent, in closed loops.
    request_iterations: float = 0.0
    receive_interval: int = 1  # decoding iterations from one look for new requests to the next
    receive_option: str = ""  # the engine's own option for `receive_interval`; empty without one
    # Iterations for which new prompts wait at most for others, to be computed together, while sequences decode; and the
    # tokens of an iteration, relative to the most, at which they wait no longer. With attention data parallelism they
    # wait until every rank has one. None of the iterations where an engine has no such option.
    batch_wait_iterations: int | None = None
    batch_wait_share: float = 0.0
    # Whether decode steps are replayed from captured graphs; and the sequences of a rank up to which they are, None for
    # all that run at the same time.
    captures_graphs: bool = False
    captured_sequences: int | None = None
    # Seconds of the process that streams all answers to clients, per response, 0 where they are not known; and the
    # tokens of an answer that it sends together, after the first one.
    response_s: float = 0.0
    stream_interval: int = 1
    # Whether the host works in every iteration; otherwise its time is that of all iterations between two looks.
    works_between_looks: bool = True
    # Whether an iteration is scheduled while the one before it runs, so that a request waits for the iteration in
    # progress and for the next one.
    schedules_ahead: bool = False
    vendors: tuple[str, ...] = ()  # makers of the devices that it runs on; empty for all
    capability: Capability = Capability()  # what it needs of the devices of NVIDIA
    # Limits that depend on the device, by name; None if they are the same on all devices.
    limits_on: Callable[[Device], dict[str, int]] | None = None

    def __post_init__(self) -> None:
        for name in ("max_batched_tokens", "max_sequences", "block_tokens", "receive_interval", "stream_interval"):
            value = getattr(self, name)
            check_integer(f"`{_OPTIONS.get(name, '--' + name.replace('_', '-'))}`", value, 1)
        check_integer("`--chunked-prefill`", self.chunked_prefill, 0)
        if self.batch_wait_iterations is not None:
            check_integer(f"`{_OPTIONS['batch_wait_iterations']}`", self.batch_wait_iterations, 0)
        if self.captured_sequences is not None:
            check_integer(f"`{_OPTIONS['captured_sequences']}`", self.captured_sequences, 1)
        if not 0 < self.memory_fraction <= 1:
            raise BadValue(f"`--memory-fraction` must be a fraction > 0 and <= 1 (got {self.memory_fraction:g})")
        if not self.overhead_s >= 0:
            raise BadValue(f"`--engine-settings overhead` must be a time >= 0 s (got {self.overhead_s:g})")

    def at_end(self, end: str, width: float = 1.0) -> Server:
        """Return the server with the time of its host at an end of its 90% interval, ``low`` or ``high``.

        `width` is that of the interval relative to the usual one, in logarithms.
        """
        end_s = self.overhead_range_s[0 if end == "low" else 1]
        overhead_s = self.overhead_s * (end_s / self.overhead_s) ** width if self.overhead_s else end_s
        factor = SEQUENCE_FACTOR ** (-width if end == "low" else width)
        return structs.replace(
            self,
            overhead_s=overhead_s,
            sequence_overhead_s=self.sequence_overhead_s * factor,
            draft_pass_s=self.draft_pass_s * factor,
            response_s=self.response_s * factor,
        )

    def describe(self, ranks: int = 1) -> str:
        """Return the limits as text: ``versions 0.8 and later, 8,192 tokens and 1,024 sequences per iteration``."""
        parts = [f"versions {self.versions.describe()}"]
        of_ranks = f" of each of {ranks} ranks" if ranks > 1 and self.limits_per_rank else ""
        parts.append(f"{self.max_batched_tokens:,} tokens and {self.max_sequences:,} sequences per iteration{of_ranks}")
        parts.append(f"prompts in chunks of {self.chunked_prefill:,}" if self.chunked_prefill else "whole prompts")
        if not self.mixes_phases:
            parts.append("prompts and decoding in separate iterations")
        parts.append(f"cache blocks of {self.block_tokens}")
        share = "free memory" if self.is_fraction_of_free else "memory"
        parts.append(f"{self.memory_fraction:.0%} of {share}")
        return ", ".join(parts)
