"""Times of the iterations of a deployment whose layers a time model times one by one.

All of them are times of the evaluator of `predict`, broadcast over many sizes at once (`timing.broadcast`), for one
device of a tensor-parallel group. The all-reduces between the devices are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting import Layer
from ..counting.kinds import is_all_reduce, is_attention, is_cache
from ..distributed.collectives import topology_all_reduce_s
from ..engines.records.record import Server
from ..errors import BadValue
from ..machines import Device
from ..timing import RooflineModel, Workload, describe_model
from ..timing.activity import Activity
from ..timing.broadcast import Case, stack_cases
from ..timing.intervals import not_below
from ..timing.models import TrafficModel
from ..timing.terms import RequestedOutputs, layers_peak_s
from ..timing.workload import matrix_elements
from ..units import element_bytes
from .cache import CacheRoom, measure_room
from .pipeline import MIN_EXCHANGE_BYTES, send_time_s
from .placement import ModelOnDevice
from .timer import Limits, TimedParts, Timer, from_zero, powers_of_two

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PER_TOKEN, ATTENTION, HEAD = 0, 1, 2
"""Groups of layers."""

TYPICAL_CONTEXT = 1024
"""Context at which the layers other than attention are timed; they do not depend on it."""


class LayerTimer(Timer):
    """Layers that the time model times one by one."""

    has_own_power_limit = True  # a limit lowers the rates of the machine, which the time model knows

    def __init__(self, on_device: ModelOnDevice) -> None:
        workload = on_device.workload
        if workload.engine is not None:
            raise BadValue(
                f"{workload.network.name} is timed by the kernels of {workload.engine.name}, not by "
                "its layers: tabulate its kernels, or resolve the question by layers"
            )
        self.on_device = on_device

    @property
    def description(self) -> str:
        """The model of the times, as text."""
        return describe_model(self.on_device.model)

    @property
    def device(self) -> Device:
        """The device."""
        return self.on_device.machine.device

    @property
    def weights(self) -> str:
        """Format of the weights, by default the precision."""
        return self.on_device.workload.weights or self.on_device.workload.precision

    @property
    def is_forecast(self) -> bool:
        """Whether times are forecasts; otherwise they are bounds."""
        return self.on_device.model.is_forecast

    @property
    def notes(self) -> Sequence[str]:
        """Remarks of the time model, and on experts."""
        notes = list(self.on_device.model.notes)
        if self.on_device.tensor > 1 and self.on_device.workload.has_experts:
            notes.append("experts are divided by tensor parallelism; expert parallelism is not modelled")
        return notes

    def time_parts(self, limits: Limits, contexts: Sequence[int]) -> TimedParts:
        """Return the seconds of the layers, of the all-reduces between them, and of the sends between stages."""
        on_device = self.on_device
        workload = on_device.decode_workload(max(min(limits.context - 1, TYPICAL_CONTEXT), 1))
        tokens, sequences = _sizes(limits.tokens, is_coarse=workload.has_experts), _sizes(limits.sequences)
        lengths = powers_of_two(limits.prompt)
        times = _group_times(on_device, workload, tokens)
        head_s = times.pieces_s[:, HEAD].copy()
        head_s[-1] += _logits_gather_s(on_device, workload, tokens)
        low = high = np.empty(0)
        if times.relative_low is not None and times.relative_high is not None:
            low, high = (
                from_zero(tokens, values, limits.tokens, first=values[0])
                for values in (times.relative_low, times.relative_high)
            )
        return TimedParts(
            tokens=tokens,
            token_s=times.pieces_s[:, PER_TOKEN] + all_reduce_s(on_device, workload, tokens),
            head_s=head_s,
            sequences=sequences,
            decode_attention_s=_attention_s(on_device, "decode", contexts, sequences),
            lengths=lengths,
            prompt_attention_s=_attention_s(on_device, "prefill", lengths, np.array([1]))[:, :, 0],
            relative_low=low,
            relative_high=high,
            sent_s=send_time_s(on_device.pipeline, workload, tokens),
        )

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache."""
        return measure_room(self.on_device, engine, mean_tokens=mean_tokens, prompt_tokens=prompt_tokens)

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts."""
        tokens = sequences * tokens_per_sequence
        batch = max(round(tokens), 1)
        workload = self.on_device.decode_workload(max(round(context), 1)).with_changes(batch_size=batch)
        return self._activity(workload, batch).times(tokens / batch)

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt."""
        length = max(round(tokens), 1)
        return self._activity(self.on_device.prefill_workload(length), length)

    def _activity(self, workload: Workload, tokens: int) -> Activity:
        """Return the activity in the layers of a workload, on average over the stages of the pipeline."""
        on_device = self.on_device
        workload = on_device.with_cache_format(workload)
        bound = RooflineModel().evaluate(workload, on_device.machine)
        peak_s = float(layers_peak_s(bound, workload, on_device.machine.device).sum())
        activity = on_device.model.evaluate(workload, on_device.machine).activity(peak_s)
        exchanging_s = float(all_reduce_s(on_device, workload, np.array([tokens])).sum())
        return activity.plus(Activity(links_s=exchanging_s)).times(1 / on_device.pipeline.degree)


def attention_layers(workload: Workload) -> Workload:
    """Return the workload with nothing but its attention and cache layers, which is quicker to count."""
    layers = []
    for layer in workload.network.layers:
        if is_attention(layer) or is_cache(layer):
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
        elif is_attention(layer) or is_cache(layer):
            groups.append(ATTENTION)
        else:
            groups.append(PER_TOKEN)
    return groups


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
        traffic = TrafficModel().evaluate_many(batched, on_device.machine, workload.precision, RequestedOutputs())
        low_s = not_below(times.low_s[0], traffic.time_s[0], times.time_s[0])
        low, high = low_s / times.time_s[0], times.high_s[0] / times.time_s[0]
    stage_count = on_device.pipeline.degree
    pieces_s = times.pieces_s[: (HEAD + 1) * stage_count].reshape(stage_count, HEAD + 1, len(sizes))
    return _GroupTimes(pieces_s, low, high)


def _attention_s(on_device: ModelOnDevice, phase: str, lengths: Sequence[int], sizes: NDArray[np.int64]) -> Floats:
    """Return the seconds of attention by context or length of the prompt, shape (lengths, stages, sizes)."""
    cases = []
    for length in lengths:
        all_layers = on_device.decode_workload(length) if phase == "decode" else on_device.prefill_workload(length)
        workload = on_device.with_cache_format(attention_layers(all_layers))
        cases.append(Case(workload.layers, workload.work, phase, on_device.stage_numbers(workload.layers)))
    return _time_cases(on_device, cases, sizes)


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
