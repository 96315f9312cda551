"""Measurements of several devices at hand, and what they say of each other: what the pool is made of, and validated by.

Apart from `pool`, which every prediction reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ..errors import CalibrationFailed
from ..hardware import find_device
from .calibrate import order, runs_of
from .fit import Prior
from .measurements import Measurement
from .population import SOFTWARE, DeviceData, Evidence, Traits, evidence_of, expect, learn, prior_of, traits_of
from .prior import device_prior


class Key(NamedTuple):
    """What is fitted together."""

    gpu: str
    precision: str
    source: str
    execution: str = "eager"


def group_by_source(measurements: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
    """Measurements by device, precision, source and execution, each in an order of its own."""
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for step in order(measurements):
        groups[Key(step.gpu, step.precision, step.source, step.execution)].append(step)
    return groups


def software_of(group: Sequence[Measurement]) -> str:
    """The first word of a group's framework; where that is not said, what devices are compared under."""
    word = (group[0].framework.split() or [SOFTWARE])[0].lower()
    return SOFTWARE if word == "torch" else word


def execution_of(group: Sequence[Measurement]) -> str:
    """How a group was executed.

    Raises
    ------
    CalibrationFailed
        If not all of it in one way: the host of one is not that of another.
    """
    executions = sorted({step.execution for step in group})
    if len(executions) > 1:
        raise CalibrationFailed(
            f"one calibration is of one way of execution, not of {' and '.join(executions)} together"
        )
    return executions[0]


class MeasuredDevices:
    """Measurements of several devices, and what they say of each other.

    Parameters
    ----------
    label_of : function of a Measurement, optional
        What may be held out: its network, or the family of that.
    operations : sequence of DeviceData
        Single operations, which are never held out by their label.
    """

    def __init__(
        self,
        measurements: Sequence[Measurement],
        label_of: Callable[[Measurement], str] | None = None,
        operations: Sequence[DeviceData] = (),
    ) -> None:
        self.groups = group_by_source(measurements)
        self._labels = {
            key: np.array([label_of(step) if label_of else "" for step in group]) for key, group in self.groups.items()
        }
        self._measured = {key: self._measured_of(key, group) for key, group in self.groups.items()}
        self._operations = list(operations)
        self._found: dict[str, dict[Key, Evidence]] = {}
        self.operations: list[Evidence] = []

    @staticmethod
    def _measured_of(key: Key, group: Sequence[Measurement]) -> DeviceData:
        device = find_device(key.gpu)
        traits = traits_of(device, key.precision, software_of(group), key.execution, key.source)
        return DeviceData(device, key.precision, traits, runs_of(group, device, key.precision))

    def traits(self, key: Key) -> Traits:
        """Who measured what."""
        return self._measured[key].traits

    def evidence(self, held_out: str = "") -> dict[Key, Evidence]:
        """What each source says of each device; of nothing that is held out.

        What has not seen the label anyway stays as it is. The rest is fitted anew: from the prior of its kind, and
        once more from what all others say then.

        Parameters
        ----------
        held_out : str
            The label of what is held out; empty for nothing.
        """
        if held_out not in self._found:
            self._found[held_out] = self._without(held_out) if held_out else self._everything()
        return self._found[held_out]

    def _everything(self) -> dict[Key, Evidence]:
        (*learnt,) = learn([*self._measured.values(), *self._operations])
        self.operations = learnt[len(self._measured) :]
        return dict(zip(self._measured, learnt))

    def _without(self, held_out: str) -> dict[Key, Evidence]:
        everything = self.evidence()
        learnt, changed = dict(everything), {}
        for key, measured in self._measured.items():
            seen = np.flatnonzero(self._labels[key] != held_out)
            if len(seen) < len(measured.runs):
                del learnt[key]
                if len(seen):
                    changed[key] = measured._replace(runs=measured.runs.choose(seen))
        for key, measured in changed.items():
            start = np.array(everything[key].theta)
            learnt[key] = evidence_of(measured, device_prior(measured.device, measured.precision), start)
        for key, measured in changed.items():
            others = [*(one for other, one in learnt.items() if other != key), *self.operations]
            learnt[key] = evidence_of(measured, prior_of(measured, others), np.array(learnt[key].theta))
        return learnt

    def prior(
        self, key: Key, held_out: str = "", ignore: Callable[[Traits], bool] = lambda other: False, known: bool = True
    ) -> Prior:
        """What is expected of a device under some software, from others that have not seen what is held out.

        Parameters
        ----------
        key : Key
            Whose: its own measurements are left out.
        held_out : str
            The label of what is held out; empty for nothing.
        ignore : function of Traits
            What else is left out.
        known : bool
            Whether the computer of the source counts as known from its other devices.
        """
        measured = self._measured[key]
        traits = measured.traits if known else msgspec.structs.replace(measured.traits, source="")
        everything = {**self.evidence(held_out)}
        everything.pop(key, None)
        others = [one for one in (*everything.values(), *self.operations) if not ignore(one)]
        return expect(traits, device_prior(measured.device, measured.precision), others)
