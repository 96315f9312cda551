"""What times the iterations of a deployment: its layers one by one, the kernels of its engine, or llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..engines.activity import kernel_activity
from ..engines.placed import KERNEL_MODEL, EngineKernels
from ..engines.records.record import Server
from ..engines.step import Load
from ..own_machines.batches import LocalModel, slots_activity
from ..timing import RooflineModel, Workload, describe_model
from ..timing.activity import Activity
from ..timing.models import layers_peak_s
from .backend import Backend
from .cache import CacheRoom, measure_room
from .iteration_times import IterationTimes, ModelOnDevice, all_reduce_s, tabulate
from .kernel_tables import tabulate_kernels
from .local_tables import measure_local_room, tabulate_local
from .power_limits import under_power_limit

LOCAL_MODEL = "llama.cpp, with constants fitted to published speeds of one request at a time"
"""The time model of llama.cpp, as text."""

LOCAL_NOTE = (
    "several slots were validated on nothing: matrices are read once for all of them, and few tokens are multiplied "
    "one by one unless a product of matrices is faster"
)


def backend_of(on_device: ModelOnDevice) -> Backend:
    """Return what times the iterations of a network on a device."""
    if on_device.local is not None:
        return LlamaCpp(on_device.local)
    if on_device.kernels is not None:
        return Kernels(on_device, on_device.kernels)
    return LayerBackend(on_device)


class _ByWorkload:
    """What layers and kernels have in common.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network on a device.
    """

    def __init__(self, on_device: ModelOnDevice) -> None:
        self.on_device = on_device

    @property
    def weights(self) -> str:
        """Format of the weights, by default the precision."""
        return self.on_device.workload.weights or self.on_device.workload.precision

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache."""
        return measure_room(self.on_device, engine, mean_tokens=mean_tokens, prompt_tokens=prompt_tokens)


class LayerBackend(_ByWorkload):
    """Layers that the time model times one by one."""

    @property
    def description(self) -> str:
        """The model of the times, as text."""
        return describe_model(self.on_device.model)

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

    @property
    def latency_deviations(self) -> dict[str, float]:
        """None beside those of the iterations."""
        return {}

    def tabulate(self, **sizes: int) -> IterationTimes:
        """Return tables of iteration times."""
        return tabulate(self.on_device, **sizes)

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


class Kernels(_ByWorkload):
    """Kernels of an engine, where they were measured.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network on a device.
    kernels : EngineKernels
        Its kernels.
    """

    description = KERNEL_MODEL
    is_forecast = True
    notes = ()

    def __init__(self, on_device: ModelOnDevice, kernels: EngineKernels) -> None:
        super().__init__(on_device)
        self.kernels = kernels

    @property
    def latency_deviations(self) -> dict[str, float]:
        """Those of times to first token."""
        return self.kernels.step.latency_deviations

    def tabulate(self, **sizes: int) -> IterationTimes:
        """Return tables of iteration times, under the power limit of the device."""
        return under_power_limit(tabulate_kernels(self.on_device, **sizes), self, self.on_device.machine.device)

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts."""
        own = sequences / self.on_device.attention_data
        tokens, everywhere = own * tokens_per_sequence, sequences * tokens_per_sequence
        load = Load(tokens=tokens, all_tokens=everywhere, sampled=tokens, sequences=own, context=context)
        return self._kernel_activity("decode", context, load)

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt."""
        load = Load(tokens, tokens, 1.0, prompts=1.0, length=tokens, cached=cached, has_prompts=True)
        return self._kernel_activity("prefill", tokens, load).times(1 / self.on_device.attention_data)

    def _kernel_activity(self, phase: str, context: float, load: Load) -> Activity:
        """Return the activity in the kernels of an iteration."""
        found = self.kernels.of_iteration(phase, max(math.ceil(context), 1))
        return kernel_activity(self.kernels.step, found, load)


class LlamaCpp:
    """Slots of `llama-server` on one device.

    Parameters
    ----------
    model : LocalModel
        Network on the device.
    """

    description = LOCAL_MODEL
    is_forecast = True
    notes = (LOCAL_NOTE,)

    def __init__(self, model: LocalModel) -> None:
        self.model = model

    @property
    def weights(self) -> str:
        """Format of the weights."""
        return self.model.contents.weights

    @property
    def latency_deviations(self) -> dict[str, float]:
        """None beside those of the iterations."""
        return {}

    def tabulate(self, **sizes: int) -> IterationTimes:
        """Return tables of iteration times, under the power limit of the device."""
        return under_power_limit(tabulate_local(self.model, **sizes), self, self.model.device)

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache, which is one for all slots."""
        return measure_local_room(self.model, engine.block_tokens, mean_tokens)

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts."""
        return slots_activity(self.model, sequences * tokens_per_sequence, context)

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt."""
        return slots_activity(self.model, 0.0, 0.0, tokens)
