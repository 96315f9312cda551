"""What the kernels of an engine do in their time: arithmetic, memory traffic, exchanges; the rest is their start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..machines import Device
from ..timing.activity import Activity, narrow_factor
from .constants import EngineConstants, KernelConstants
from .formulas import KERNEL_CLASSES
from .kernels import CountedKernel, ExchangeKernel, Pointwise
from .rates import products_precision
from .step import EngineStep, Load

Part = Literal["arithmetic", "memory", "peak"]
"""Term of a kernel's time: arithmetic or memory traffic as fitted, or arithmetic at the peak of the data sheet."""

NEGLIGIBLE, UNLIMITED, WHOLE = np.log(1e-30), np.log(1e30), 0.0
"""Logarithms of a time or factor that vanishes, of a rate that takes no time, and of a rate at its peak."""

REPLACED: dict[Part, dict[str, float]] = {
    "arithmetic": {"bandwidth_share": UNLIMITED, "quantisation": NEGLIGIBLE, "traffic": NEGLIGIBLE},
    "memory": {"efficiency": UNLIMITED, "tile_rate": UNLIMITED, "head_cycles": NEGLIGIBLE},
    "peak": {
        "efficiency": WHOLE, "bandwidth_share": UNLIMITED, "quantisation": NEGLIGIBLE, "traffic": NEGLIGIBLE,
        "head_cycles": NEGLIGIBLE, "half": NEGLIGIBLE, "tile_rate": UNLIMITED, "half_depth": NEGLIGIBLE,
        "tile_keys": NEGLIGIBLE, "pair_numbers": NEGLIGIBLE,
    },
}  # fmt: skip
"""Logarithms of constants with which the formula of a kernel gives one of its terms, by the name of the constant.

Rows that pad the tiles of experts are multiplied like others, and draw power like them: they stay in the peak.
"""

DATA_SHEET = {"efficiency": WHOLE, "bandwidth_share": WHOLE, "tile_rate": UNLIMITED, "sharpness": np.log(1e6)}
"""Logarithms of the constants of a lower bound by the name of the constant; all others are `NEGLIGIBLE`."""

STARTS = ("floor_cycles", "latency_s", "doubling_s", "second_s")
"""Constants of the shortest kernel, which belongs to no term."""


class PartConstants(EngineConstants, frozen=True, dict=True, kw_only=True):
    """Constants with which the formulas of kernels give one term of the time."""

    whole: EngineConstants  # constants of the whole time
    part: Part  # the term

    def of(self, kernels: str, device: Device, engine: str, form: str) -> KernelConstants:
        """Return the constants of a class of kernels, replaced where they belong to another term."""
        found = self.whole.of(kernels, device, engine, form)
        replaced = REPLACED[self.part] | dict.fromkeys(STARTS, NEGLIGIBLE)
        theta = [replaced.get(name, value) for name, value in zip(KERNEL_CLASSES[kernels].parameters, found.theta)]
        return found._replace(theta=np.array(theta))


class DataSheetConstants(EngineConstants, frozen=True, dict=True):
    """Constants with which kernels take no longer than the rates of the data sheet allow: a lower bound."""

    def of(self, kernels: str, device: Device, engine: str, form: str) -> KernelConstants:
        """Return constants of whole rates, of overlapping arithmetic and traffic, and of nothing else."""
        theta = [DATA_SHEET.get(name, NEGLIGIBLE) for name in KERNEL_CLASSES[kernels].parameters]
        return KernelConstants(np.array(theta), np.zeros(len(theta)), 0.0)


def kernel_activity(step: EngineStep, kernels: Sequence[CountedKernel], load: Load) -> Activity:
    """Return the activity of a device in some kernels.

    Parameters
    ----------
    step : EngineStep
        Times of kernels.
    kernels : sequence of CountedKernel
        The kernels.
    load : Load
        What the iteration computes.
    """
    total = Activity()
    for activity in kernel_activities(step, kernels, load):
        total = total.plus(activity)
    return total


def kernel_activities(step: EngineStep, kernels: Sequence[CountedKernel], load: Load) -> list[Activity]:
    """Return the activity in all launches of each of some kernels; see `kernel_activity`."""
    parts = {part: _step_of(step, part) for part in REPLACED}
    return [_one_activity(step, parts, counted, load).times(counted.count) for counted in kernels]


def _step_of(step: EngineStep, part: Part) -> EngineStep:
    """Return the step whose kernels take the time of one term."""
    only = PartConstants(classes={}, whole=step.constants, part=part)
    return EngineStep(step.device, step.engine, step.formats, step.placement, only)


def _one_activity(step: EngineStep, parts: dict[Part, EngineStep], counted: CountedKernel, load: Load) -> Activity:
    """Return the activity of one launch of a kernel."""
    kernel = counted.kernel
    if isinstance(kernel, ExchangeKernel):
        return Activity(links_s=step.kernel_s(kernel, load))
    _, rest_s = step.kernel_parts_s(kernel, load)
    _, form = step.cell_of(kernel)
    _, work = step.company(kernel, load)
    if isinstance(kernel, Pointwise):
        return Activity(memory_s=work * rest_s)
    terms: dict[Part, Any] = {part: sum(one.kernel_parts_s(kernel, load)) for part, one in parts.items()}
    both_s = np.maximum(terms["arithmetic"] + terms["memory"], 1e-30)
    return Activity(
        arithmetic_s=work * rest_s * terms["arithmetic"] / both_s,
        memory_s=work * rest_s * terms["memory"] / both_s,
        peak_s=narrow_factor(step.device, products_precision(form)) * terms["peak"],
    )
