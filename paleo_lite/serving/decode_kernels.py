"""Kernels of a decode iteration with their times, for deployments whose engine has constants for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..engines.kernels import Pointwise
from ..engines.step import Load
from .kernel_tables import device_kernels

if TYPE_CHECKING:
    from .iteration_times import ModelOnDevice


class KernelTime(msgspec.Struct, frozen=True):
    """Kernels of the same name in an iteration."""

    name: str  # name of the kernel
    launches: int  # launches per iteration on one device
    time_s: float  # seconds of all launches
    share: float  # fraction of the time of all kernels


def time_decode_kernels(on_device: ModelOnDevice, sequences: float, context: float) -> list[KernelTime] | None:
    """Return the kernels of a decode iteration, the longest first; None if the layers are timed one by one.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network on a device.
    sequences : float
        Decoding sequences of a replica; attention groups have equal parts of them.
    context : float
        Tokens in the cache of each sequence.
    """
    if on_device.kernels is None:
        return None
    step = on_device.kernels.step
    load = Load.of_decoding(max(round(sequences), 1), round(context), on_device.attention_data)
    launches: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for counted in device_kernels(on_device, "decode", max(round(context), 1)):
        kernel = counted.kernel
        launched = kernel.launches if isinstance(kernel, Pointwise) else 1
        if launched:
            launches[kernel.name] = launches.get(kernel.name, 0) + counted.count * launched
            time_s = counted.count * float(step.kernel_s(kernel, load))
            seconds[kernel.name] = seconds.get(kernel.name, 0.0) + time_s
    total_s = sum(seconds.values())
    names = sorted(seconds, key=lambda name: -seconds[name])
    return [KernelTime(name, launches[name], seconds[name], seconds[name] / total_s) for name in names]
