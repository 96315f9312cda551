"""What a device does in an iteration of a server: in the kernels of its engine if known, otherwise in the layers."""

from __future__ import annotations

import math

import numpy as np

from ..engines.activity import kernel_activity
from ..engines.step import Load
from ..local.batches import slots_activity
from ..timing import RooflineModel, Workload
from ..timing.activity import Activity
from ..timing.models import layers_peak_s
from .iteration_times import ModelOnDevice, all_reduce_s
from .kernel_tables import device_kernels


def decode_activity(
    on_device: ModelOnDevice, sequences: float, context: float, tokens_per_sequence: int = 1
) -> Activity:
    """Return what a device does in an iteration without prompts.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network on a device.
    sequences : float
        Decoding sequences of a replica.
    context : float
        Tokens in the cache of each.
    tokens_per_sequence : int
        Tokens that each computes.
    """
    if on_device.local is not None:
        return slots_activity(on_device.local, sequences * tokens_per_sequence, context)
    if on_device.kernels is None:
        batch = max(round(sequences * tokens_per_sequence), 1)
        workload = on_device.decode_workload(max(round(context), 1)).with_changes(batch_size=batch)
        return _layer_activity(on_device, workload, batch).times(sequences * tokens_per_sequence / batch)
    own = sequences / on_device.attention_data
    tokens = own * tokens_per_sequence
    everywhere = sequences * tokens_per_sequence
    load = Load(tokens=tokens, all_tokens=everywhere, sampled=tokens, sequences=own, context=context)
    return _kernel_activity(on_device, "decode", context, load)


def prompt_activity(on_device: ModelOnDevice, tokens: float, cached: float = 0.0) -> Activity:
    """Return what a device does for a prompt, divided among the groups that compute attention for their own sequences.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network on a device.
    tokens, cached : float
        New tokens of the prompt, and tokens of it that are in the cache already.
    """
    if on_device.local is not None:
        return slots_activity(on_device.local, 0.0, 0.0, tokens)
    if on_device.kernels is None:
        return _layer_activity(on_device, on_device.prefill_workload(max(round(tokens), 1)), max(round(tokens), 1))
    load = Load(tokens, tokens, 1.0, prompts=1.0, length=tokens, cached=cached, has_prompts=True)
    one = _kernel_activity(on_device, "prefill", tokens, load)
    return one.times(1 / on_device.attention_data)


def _kernel_activity(on_device: ModelOnDevice, phase: str, context: float, load: Load) -> Activity:
    """Return the activity in the kernels of an iteration."""
    assert on_device.kernels is not None
    kernels = device_kernels(on_device, phase, max(math.ceil(context), 1))
    return kernel_activity(on_device.kernels.step, kernels, load)


def _layer_activity(on_device: ModelOnDevice, workload: Workload, tokens: int) -> Activity:
    """Return the activity in the layers of a workload, on average over the stages of the pipeline."""
    workload = on_device.with_cache_format(workload)
    bound = RooflineModel().evaluate(workload, on_device.machine)
    peak_s = float(layers_peak_s(bound, workload, on_device.machine.device).sum())
    activity = on_device.model.evaluate(workload, on_device.machine).activity(peak_s)
    exchanging_s = float(all_reduce_s(on_device, workload, np.array([tokens])).sum())
    return activity.plus(Activity(links_s=exchanging_s)).times(1 / on_device.pipeline.degree)
