"""Times of an iteration over new tokens, decoding sequences and cached tokens, tabulated once and interpolated.

The layers of a network fall into three groups, so that the table over (new tokens, sequences, cached tokens) is a sum
of small ones:

- layers that treat every token alike (products with weights, norms, activations): by the number of new tokens of
  prompts and of decoding sequences together;
- attention: of decoding sequences by their number and their mean context, of prompts by the length of the prompt; a
  chunk takes the difference between its end and its start;
- the head: by the number of sequences of which a token is sampled.

All of them are times of the evaluator of `predict`, broadcast over many sizes at once (`timing.broadcast`), for one
device of a tensor-parallel group. The all-reduces between the devices are added. With pipeline parallelism the time of
an iteration is the sum over the stages and of the sends between them, and each stage has tables of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..counting import Layer
from ..counting.kinds import is_all_reduce, is_attention
from ..counting.work import COLUMNS, PASSES
from ..distributed.collectives import topology_all_reduce_s
from ..distributed.links import Topology
from ..errors import BadValue
from ..formats import bytes_per_number
from ..machines import Machine
from ..timing import TimeModel, Workload
from ..timing.broadcast import Case, stack_cases
from ..timing.models import RequestedOutputs
from ..timing.workload import matrix_elements
from ..units import element_bytes
from .pipeline import MIN_EXCHANGE_BYTES, PipelineStages, send_time_s, stage_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engines.placed import EngineKernels
    from ..own_machines.batches import LocalModel

    Floats = NDArray[np.float64]

PER_TOKEN, ATTENTION, HEAD = 0, 1, 2
"""Groups of layers."""

TYPICAL_CONTEXT = 1024
"""Context at which the layers other than attention are timed; they do not depend on it."""

SHORTEST_CONTEXT = 32
"""Smallest tabulated context and prompt."""


class ModelOnDevice(NamedTuple):
    """A network as one device of a tensor-parallel group computes it."""

    workload: Workload  # workload in the phase ``decode`` of the whole network
    machine: Machine  # the device
    model: TimeModel  # time model
    group: Topology | None  # the devices of a stage and their links; None for a single device
    kv_cache: str  # storage format of the KV cache, one of `paleo_lite.formats.FORMATS`
    pipeline: PipelineStages = PipelineStages()  # stages of the pipeline, each a tensor-parallel group
    # Kernels of the engine, with their times; None if the layers are timed by `model`.
    kernels: EngineKernels | None = None
    local: LocalModel | None = None  # the network under llama.cpp; None under any other engine

    @property
    def tensor(self) -> int:
        """Number of devices of a stage."""
        return 1 if self.group is None else self.group.workers

    @property
    def attention_data(self) -> int:
        """Groups of devices of a stage that compute attention for sequences of their own."""
        return 1 if self.kernels is None else self.kernels.step.placement.attention_data

    @property
    def experts(self) -> int:
        """Expert-parallel degree."""
        return 1 if self.kernels is None else self.kernels.step.placement.experts

    @property
    def devices(self) -> int:
        """Number of devices of a replica: devices of a stage times stages."""
        return self.tensor * self.pipeline.degree

    def stage_numbers(self, layers: Sequence[Layer]) -> list[int]:
        """Return the stage of each of some layers of the network."""
        return stage_numbers(self.workload.network, layers, self.pipeline.degree)

    def decode_workload(self, context: int) -> Workload:
        """Return the workload of a decode step after `context` tokens."""
        network = self._network(
            SequenceOptions(context=context, phase="decode", tensor_parallel=self.tensor, fused_attention=True)
        )
        return self.workload.with_changes(network=network, batch_size=1)

    def prefill_workload(self, tokens: int) -> Workload:
        """Return the workload of a prompt."""
        network = self._network(
            SequenceOptions(length=tokens, phase="prefill", tensor_parallel=self.tensor, fused_attention=True)
        )
        return self.workload.with_changes(network=network, phase="prefill", batch_size=1)

    def _network(self, options: SequenceOptions) -> Network:
        rebuild = self.workload.network.rebuild
        if rebuild is None:
            raise BadValue(f"serving needs a language model from a config: not {self.workload.network.name}")
        return rebuild(options)

    def with_cache_format(self, workload: Workload) -> Workload:
        """Return the workload with keys and values read and written in the format of the cache."""
        spared_bytes = element_bytes(workload.precision) - bytes_per_number(self.kv_cache)
        if not spared_bytes:
            return workload
        per_sample = workload.work.per_sample.copy()
        inference = PASSES.index("inference")
        for index, layer in enumerate(workload.layers):
            if is_attention(layer):
                column, elements = COLUMNS.index("bytes_read"), _cached_elements_read(layer)
            elif layer.kind == "cache":
                column, elements = COLUMNS.index("bytes_written"), sum(prod(shape) for shape in layer.inputs)
            else:
                continue
            remaining = per_sample[column, inference, index] - int(elements * spared_bytes)
            per_sample[column, inference, index] = max(remaining, 0)
        return workload.with_work(msgspec.structs.replace(workload.work, per_sample=per_sample))


def _cached_elements_read(layer: Layer) -> int:
    """Return the elements of keys and values that an attention layer reads."""
    keys = prod(layer.inputs[1])
    if layer.attributes.get("shares_keys_and_values"):
        return keys
    return keys + prod(layer.inputs[2])


def attention_layers(workload: Workload) -> Workload:
    """Return the workload with nothing but its attention and cache layers, which is quicker to count."""
    layers = []
    for layer in workload.network.layers:
        if is_attention(layer) or layer.kind == "cache":
            layers.append(layer._replace(parents=(-1,) * len(layer.parents)))
    return workload.with_changes(network=workload.network._replace(layers=tuple(layers)))


def group_layers(layers: Sequence[Layer]) -> list[int]:
    """Return the group of each layer: `PER_TOKEN`, `ATTENTION` or `HEAD`.

    The head starts at the last product with weights and ends with the network.
    """
    products = [index for index, layer in enumerate(layers) if matrix_elements(layer)]
    head = products[-1] if products else len(layers)
    groups = []
    for index, layer in enumerate(layers):
        if index >= head:
            groups.append(HEAD)
        elif is_attention(layer) or layer.kind == "cache":
            groups.append(ATTENTION)
        else:
            groups.append(PER_TOKEN)
    return groups


class IterationTimes(msgspec.Struct, frozen=True, eq=False):
    """Tables of the time of an iteration on one replica."""

    # Seconds of the layers that treat every token alike, with the all-reduces, by the number of new tokens of an
    # attention group from 0.
    token_s: list[float]
    head_s: list[float]  # seconds of the head by the number of sequences from 0
    contexts: list[float]  # mean contexts at which attention of decoding sequences is tabulated
    # Seconds of attention by the number of decoding sequences from 0, and by `contexts`.
    decode_attention_s: list[list[float]]
    prompt_attention_s: list[float]  # seconds of attention of a whole prompt by its length from 0
    # 90% interval of an iteration relative to its time, by the number of new tokens from 0; empty if the time model
    # gives none.
    relative_low: list[float]
    relative_high: list[float]
    # Times of each stage of a pipeline that can be the slowest, without sending; empty without a pipeline.
    stages: tuple[IterationTimes, ...] = ()
    pipeline: int = 1  # number of stages
    # Seconds of experts by the number of new tokens of all attention groups from 0; empty if they are a part of
    # `token_s`.
    experts_s: list[float] = []
    # Seconds of the shortest kernels of attention of prompts, once per iteration that computes any.
    prompt_s: float = 0.0
    attention_data: int = 1  # groups of devices that compute attention for sequences of their own
    # Tables of iterations that compute prompts, where `token_s` and `experts_s` are others; None if they are not.
    # Speed under a lower power limit than the rated one, relative to that without, by the number of new tokens from 0;
    # empty without such a limit.
    limited_speed: list[float] = []
    with_prompts: IterationTimes | None = None

    def iteration_s(
        self,
        sequences: int,
        cached_tokens: float,
        chunks: Sequence[tuple[int, int]] = (),
        completed: int = 0,
        tokens_per_sequence: int = 1,
    ) -> float:
        """Return the time of an iteration.

        Parameters
        ----------
        sequences : int
            Decoding sequences.
        cached_tokens : float
            Sum of their contexts.
        chunks : sequence of (int, int)
            First token and end of the chunks of prompts.
        completed : int
            Prompts that are completed, of which a token is sampled.
        tokens_per_sequence : int
            New tokens of a decoding sequence: more than 1 with speculative decoding.
        """
        if chunks and self.with_prompts is not None:
            return self.with_prompts.iteration_s(sequences, cached_tokens, chunks, completed, tokens_per_sequence)
        prompt_tokens, attention_s = 0, 0.0
        for start, end in chunks:
            attention_s += self.chunk_s(start, end)
            prompt_tokens += end - start
        decoded = sequences * tokens_per_sequence
        sampled = max(decoded + completed, 1)
        if self.attention_data == 1:
            time_s = self.decode_s(sequences, cached_tokens, decoded + prompt_tokens, sampled)
            if self.experts_s:
                time_s += self.experts_s[decoded + prompt_tokens]
            return time_s + attention_s + (self.prompt_s if chunks else 0.0)
        groups = self.attention_data
        own_sequences = -(-sequences // groups)
        own_tokens = own_sequences * tokens_per_sequence
        if chunks:
            busy_groups = min(len(chunks), groups)
            own_tokens += -(-prompt_tokens // busy_groups)
            attention_s = attention_s / busy_groups + self.prompt_s
        own_cached = cached_tokens * own_sequences / sequences if sequences else 0.0
        time_s = self.decode_s(own_sequences, own_cached, own_tokens, -(-sampled // groups))
        if self.experts_s:
            time_s += self.experts_s[decoded + prompt_tokens]
        return time_s + attention_s

    def decode_s(self, sequences: int, cached_tokens: float, new_tokens: int = 0, sampled: int = 0) -> float:
        """Return the time of an iteration of one attention group, without attention of prompts and separate experts.

        Parameters
        ----------
        sequences : int
            Decoding sequences.
        cached_tokens : float
            Sum of their contexts.
        new_tokens : int
            New tokens of prompts and of decoding sequences; by default one per sequence.
        sampled : int
            Sequences of which a token is sampled; by default all decoding ones.
        """
        new_tokens = new_tokens or sequences
        time_s = self.token_s[new_tokens] + self.head_s[sampled or sequences]
        if not sequences:
            return time_s
        contexts = self.contexts
        row = self.decode_attention_s[sequences]
        context = cached_tokens / sequences
        index = bisect_right(contexts, context) - 1
        if index < 0:
            return time_s + row[0]
        if index >= len(contexts) - 1:
            index = len(contexts) - 2
        start = contexts[index]
        share = (context - start) / (contexts[index + 1] - start)
        return time_s + row[index] + share * (row[index + 1] - row[index])

    def chunk_s(self, start: int, end: int) -> float:
        """Return the time of attention of the tokens `start` to `end` of a prompt."""
        attention_s = self.prompt_attention_s
        difference_s = attention_s[end] - attention_s[start]
        alone_s = attention_s[end - start]
        return difference_s if difference_s > alone_s else alone_s

    def scaled(self, end: str) -> IterationTimes:
        """Return the tables at an end of the interval.

        Parameters
        ----------
        end : {"low", "high"}
            The shorter or the longer times.
        """
        if not self.relative_low:
            return self
        return self.times_factors(self.relative_low if end == "low" else self.relative_high)

    def times_factors(self, factors: list[float]) -> IterationTimes:
        """Return the tables multiplied by factors by the number of new tokens."""
        last = len(factors) - 1

        def scale(values: list[float]) -> list[float]:
            return [value * factors[min(index, last)] for index, value in enumerate(values)]

        rows = []
        for sequences, row in enumerate(self.decode_attention_s):
            factor = factors[min(sequences, last)]
            rows.append([value * factor for value in row])
        return IterationTimes(
            token_s=scale(self.token_s),
            head_s=scale(self.head_s),
            contexts=self.contexts,
            decode_attention_s=rows,
            prompt_attention_s=scale(self.prompt_attention_s),
            relative_low=[],
            relative_high=[],
            stages=tuple(stage.times_factors(factors) for stage in self.stages),
            pipeline=self.pipeline,
            experts_s=scale(self.experts_s),
            prompt_s=self.prompt_s * factors[last],
            attention_data=self.attention_data,
            with_prompts=None if self.with_prompts is None else self.with_prompts.times_factors(factors),
        )

    def is_never_slower_than(self, other: IterationTimes) -> bool:
        """Return whether no time of these tables exceeds that of tables of the same sizes."""
        return (
            _none_exceeds(self.token_s, other.token_s)
            and _none_exceeds(self.head_s, other.head_s)
            and _none_exceeds(self.decode_attention_s, other.decode_attention_s)
            and _none_exceeds(self.prompt_attention_s, other.prompt_attention_s)
        )


def _none_exceeds(values: Any, others: Any) -> bool:
    """Return whether no value exceeds its counterpart by more than rounding."""
    return bool(np.all(np.asarray(values) <= np.asarray(others) * (1 + 1e-9)))


def tabulate(
    on_device: ModelOnDevice, *, max_new_tokens: int, max_sequences: int, max_prompt: int, max_context: int
) -> IterationTimes:
    """Compute the tables of an iteration.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network, device and tensor-parallel group.
    max_new_tokens : int
        New tokens per iteration.
    max_sequences : int
        Decoding sequences.
    max_prompt : int
        Tokens of a prompt.
    max_context : int
        Tokens of a prompt and its answer.

    Raises
    ------
    BadValue
        If kernels of an engine are timed, which have tables of their own (`paleo_lite.serving.kernel_tables`).
    """
    if on_device.workload.engine is not None:
        raise BadValue(
            f"{on_device.workload.network.name} is timed by the kernels of {on_device.workload.engine.name}, not by "
            "its layers: tabulate its kernels, or resolve the question by layers"
        )
    workload = on_device.decode_workload(max(min(max_context - 1, TYPICAL_CONTEXT), 1))
    token_sizes = _sizes(max(max_new_tokens, max_sequences), is_coarse=workload.has_experts)
    times = _group_times(on_device, workload, token_sizes)
    token_s = times.pieces_s[:, PER_TOKEN] + all_reduce_s(on_device, workload, token_sizes)
    head_s = times.pieces_s[:, HEAD].copy()
    head_s[-1] += _logits_gather_s(on_device, workload, token_sizes)
    contexts = tabulated_contexts(max_context)
    sequence_sizes = _sizes(max_sequences)
    all_tokens = np.arange(token_sizes[-1] + 1)
    all_sequences = np.arange(max_sequences + 1)
    decode_attention_s = _decode_attention(on_device, contexts, sequence_sizes)
    lengths, prompt_attention_s = _prompt_attention(on_device, max_prompt)

    def build(token_s: Floats, head_s: Floats, decode_s: Floats, prompt_s: Floats) -> IterationTimes:
        by_sequences = [np.interp(all_sequences, sequence_sizes, row) for row in decode_s]
        return IterationTimes(
            token_s=np.interp(all_tokens, token_sizes, token_s).tolist(),
            head_s=np.interp(all_tokens, token_sizes, head_s).tolist(),
            contexts=[float(context) for context in contexts],
            decode_attention_s=np.stack(by_sequences, axis=1).tolist(),
            prompt_attention_s=interpolate_prompts(lengths, prompt_s),
            relative_low=[],
            relative_high=[],
        )

    stages: tuple[IterationTimes, ...] = ()
    if on_device.pipeline.degree > 1:
        pieces = zip(token_s, head_s, decode_attention_s.swapaxes(0, 1), prompt_attention_s.T)
        stages = slowest_stages([build(*piece) for piece in pieces])
    sent_s = send_time_s(on_device.pipeline, workload, token_sizes)
    iteration = build(
        token_s.sum(axis=0) + sent_s, head_s.sum(axis=0), decode_attention_s.sum(axis=1), prompt_attention_s.sum(axis=1)
    )
    relative_low = relative_high = np.empty(0)
    if times.relative_low is not None and times.relative_high is not None:
        relative_low = np.interp(all_tokens, token_sizes, times.relative_low)
        relative_high = np.interp(all_tokens, token_sizes, times.relative_high)
    return msgspec.structs.replace(
        iteration,
        relative_low=relative_low.tolist(),
        relative_high=relative_high.tolist(),
        stages=stages,
        pipeline=on_device.pipeline.degree,
    )


def slowest_stages(stages: Sequence[IterationTimes]) -> tuple[IterationTimes, ...]:
    """Return the stages without those that are never slower than another."""
    remaining: list[IterationTimes] = []
    for stage in stages:
        if any(stage.is_never_slower_than(other) for other in remaining):
            continue
        remaining = [other for other in remaining if not other.is_never_slower_than(stage)]
        remaining.append(stage)
    return tuple(remaining)


def _sizes(largest: int, is_coarse: bool = False) -> NDArray[np.int64]:
    """Return sizes from 1 to `largest`: powers of two, and unless `is_coarse` multiples of output tiles in between.

    An output tile has 64 rows (`timing.features`).
    """
    sizes = [2 ** np.arange(int(np.log2(largest)) + 1), np.array([largest])]
    if not is_coarse:
        sizes.append(np.rint(np.geomspace(1, max(largest / 64, 1), 30)) * 64)
        sizes.append(np.array([3, 6, 12, 24, 32, 48, 96, 160]))
    distinct = np.unique(np.concatenate(sizes)).astype(np.int64)
    within: NDArray[np.int64] = distinct[distinct <= largest]
    return within


def tabulated_contexts(largest: int) -> list[int]:
    """Return the contexts to tabulate, by factors of 2."""
    contexts = [1]
    while contexts[-1] < largest - 1:
        contexts.append(min(max(2 * contexts[-1], SHORTEST_CONTEXT), largest - 1))
    if len(contexts) == 1:
        contexts.append(2)
    return contexts


class _GroupTimes(NamedTuple):
    """Seconds by stage, group of layers and size, and the interval of the whole step relative to its time."""

    pieces_s: Floats
    relative_low: Floats | None
    relative_high: Floats | None


def _group_times(on_device: ModelOnDevice, workload: Workload, sizes: NDArray[np.int64]) -> _GroupTimes:
    """Time the groups of layers of a decode step at several batch sizes.

    Counts of mixtures of experts hold for one batch size, as experts without a token are not read, so that every size
    is a case of its own.
    """
    if not workload.has_experts:
        return _evaluate(on_device, workload, sizes)
    columns = []
    for size in sizes:
        columns.append(_evaluate(on_device, workload.with_changes(batch_size=int(size)), np.array([size])))
    low = high = None
    if columns[0].relative_low is not None:
        low = np.concatenate([column.relative_low for column in columns if column.relative_low is not None])
        high = np.concatenate([column.relative_high for column in columns if column.relative_high is not None])
    return _GroupTimes(np.concatenate([column.pieces_s for column in columns], axis=2), low, high)


def _evaluate(on_device: ModelOnDevice, workload: Workload, sizes: NDArray[np.int64]) -> _GroupTimes:
    stages = on_device.stage_numbers(workload.layers)
    groups = [(HEAD + 1) * stage + group for stage, group in zip(stages, group_layers(workload.layers))]
    batched = stack_cases([Case(workload.layers, workload.work, "decode", groups)]).at_batch_sizes(sizes)
    times = on_device.model.evaluate_many(
        batched, on_device.machine, workload.precision, RequestedOutputs(interval=True, pieces=True)
    )
    assert times.pieces_s is not None
    low = high = None
    if times.low_s is not None and times.high_s is not None:
        low, high = times.low_s[0] / times.time_s[0], times.high_s[0] / times.time_s[0]
    stage_count = on_device.pipeline.degree
    pieces_s = times.pieces_s[: (HEAD + 1) * stage_count].reshape(stage_count, HEAD + 1, len(sizes))
    return _GroupTimes(pieces_s, low, high)


def _decode_attention(on_device: ModelOnDevice, contexts: list[int], sizes: NDArray[np.int64]) -> Floats:
    """Return the seconds of attention of decoding sequences, shape (contexts, stages, sizes)."""
    cases = []
    for context in contexts:
        workload = on_device.with_cache_format(attention_layers(on_device.decode_workload(context)))
        stages = on_device.stage_numbers(workload.layers)
        cases.append(Case(workload.layers, workload.work, "decode", stages))
    return _time_cases(on_device, cases, sizes)


def _prompt_attention(on_device: ModelOnDevice, longest: int) -> tuple[list[int], Floats]:
    """Return lengths of prompts, and the seconds of their attention, shape (lengths, stages)."""
    lengths = [1]
    while lengths[-1] < longest:
        lengths.append(min(max(2 * lengths[-1], SHORTEST_CONTEXT), longest))
    cases = []
    for length in lengths:
        workload = on_device.with_cache_format(attention_layers(on_device.prefill_workload(length)))
        stages = on_device.stage_numbers(workload.layers)
        cases.append(Case(workload.layers, workload.work, "prefill", stages))
    return lengths, _time_cases(on_device, cases, np.array([1]))[:, :, 0]


def interpolate_prompts(lengths: list[int], seconds: Floats) -> list[float]:
    """Return the seconds of attention of a prompt by its length from 0; in between, logarithms are linear."""
    all_lengths = np.arange(1, lengths[-1] + 1)
    interpolated = np.exp(np.interp(np.log(all_lengths), np.log(lengths), np.log(np.maximum(seconds, 1e-12))))
    return [0.0, *interpolated.tolist()]


def _time_cases(on_device: ModelOnDevice, cases: list[Case], sizes: NDArray[np.int64]) -> Floats:
    """Return the seconds of the pieces of each case without the overhead of the model, shape (cases, stages, sizes)."""
    stack = stack_cases(cases)
    seconds = np.zeros((len(cases), on_device.pipeline.degree, len(sizes)))
    if not len(stack.products):
        return seconds
    batched = stack.at_batch_sizes(sizes)
    outputs = RequestedOutputs(interval=False, pieces=True)
    times = on_device.model.evaluate_many(batched, on_device.machine, on_device.workload.precision, outputs)
    assert times.pieces_s is not None
    for index, (case, first) in enumerate(zip(cases, stack.first_piece)):
        count = case.pieces_per_pass
        seconds[index, :count] = times.pieces_s[first : first + count]
    return seconds


def all_reduce_s(on_device: ModelOnDevice, workload: Workload, sizes: NDArray[np.int64]) -> Floats:
    """Return the time of the all-reduces of row-parallel layers by stage and number of new tokens."""
    total_s = np.zeros((on_device.pipeline.degree, len(sizes)))
    if on_device.group is None:
        return total_s
    counts: dict[tuple[int, int], int] = {}
    for layer, stage in zip(workload.layers, on_device.stage_numbers(workload.layers)):
        if is_all_reduce(layer):
            elements = prod(layer.outputs[0])
            counts[stage, elements] = counts.get((stage, elements), 0) + 1
    for (stage, elements), count in counts.items():
        message_bytes = elements * sizes * max(element_bytes(workload.precision), MIN_EXCHANGE_BYTES)
        total_s[stage] += count * topology_all_reduce_s(on_device.group, message_bytes.astype(np.float64))
    return total_s


def _logits_gather_s(on_device: ModelOnDevice, workload: Workload, sizes: NDArray[np.int64]) -> Any:
    """Return the time of the all-gather of the logits, half an all-reduce, at several numbers of sequences."""
    if on_device.group is None:
        return np.zeros(len(sizes))
    elements = prod(workload.layers[-1].outputs[0]) * on_device.tensor
    message_bytes = elements * sizes * max(element_bytes(workload.precision), MIN_EXCHANGE_BYTES)
    return 0.5 * topology_all_reduce_s(on_device.group, message_bytes.astype(np.float64))
