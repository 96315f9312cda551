"""Measurements of several devices at hand, and what they say of each other: what the pool is made of, and validated by.

Apart from `choose`, which every prediction reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..machines import Device, find_device
from ..timing.calibrated import NAMES
from .fit import MeasuredRuns, fit, runs_of
from .measurements import Measurement
from .prior import SCATTER, TAUGHT, Evidence, Prior, Traits, device_prior, expect, traits_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Key(NamedTuple):
    """What is fitted together."""

    gpu: str
    precision: str
    source: str
    execution: str = "eager"


def group_by_source(measurements: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
    """Measurements by device, precision, source and execution, each in an order of its own."""
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for step in sorted(measurements):
        groups[Key(step.gpu, step.precision, step.source, step.execution)].append(step)
    return groups


class DeviceData(NamedTuple):
    """One source's measurements of a device in a precision.

    Attributes
    ----------
    scatter : float
        See `prior.SCATTER`.
    speaks_of : tuple of str
        Parameters that others may learn from it: all of whole steps, few of single operations.
    """

    device: Device
    precision: str
    traits: Traits
    runs: MeasuredRuns
    scatter: float = SCATTER
    speaks_of: tuple[str, ...] = TAUGHT


def measured_of(key: Key, group: Sequence[Measurement]) -> DeviceData:
    """What a group says, in its order."""
    device = find_device(key.gpu)
    traits = traits_of(device, key.precision, group[0].software, key.execution, key.source)
    return DeviceData(device, key.precision, traits, runs_of(group, device, key.precision))


class MeasuredDevices:
    """Measurements of several devices, and what they say of each other.

    Parameters
    ----------
    label_of : function of a Measurement, optional
        What may be held out: its network, or the family of that.
    operations : sequence of DeviceData
        Single operations, which are never held out by their label.

    Attributes
    ----------
    groups : dict of Key to list of Measurement
    measured : dict of Key to DeviceData
        The same as fits take them.
    operations : list of Evidence
        What single operations say.
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
        self.measured = {key: measured_of(key, group) for key, group in self.groups.items()}
        self._operations = list(operations)
        self._found: dict[str, dict[Key, Evidence]] = {}
        self.operations: list[Evidence] = []

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
            if held_out:
                self._found[held_out] = self._without(held_out)
            else:
                learnt = learn([*self.measured.values(), *self._operations])
                self._found[""] = dict(zip(self.measured, learnt))
                self.operations = learnt[len(self.measured) :]
        return self._found[held_out]

    def _without(self, held_out: str) -> dict[Key, Evidence]:
        everything = self.evidence()
        learnt, changed = dict(everything), {}
        for key, measured in self.measured.items():
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
        measured = self.measured[key]
        traits = measured.traits if known else msgspec.structs.replace(measured.traits, source="")
        everything = {**self.evidence(held_out)}
        everything.pop(key, None)
        others = [one for one in (*everything.values(), *self.operations) if not ignore(one)]
        return expect(traits, others)


# What one source's measurements say -----------------------------------------------------------------------------------


ROUNDS = 3
LEAST = 0.05
"""By what share of a prior's precision measurements must add to it to be said to speak of a parameter."""


def learn(measured: Iterable[DeviceData]) -> list[Evidence]:
    """What measurements say, fit by fit: each starts from what the others say of it, until they agree.

    A parameter that a source's measurements hardly move is then close to what is expected of it, and the parameters
    that they do move are not bent by it. After three rounds nothing changes that matters.
    """
    groups = list(measured)
    learnt = [evidence_of(group, device_prior(group.device, group.precision)) for group in groups]
    for _ in range(ROUNDS - 1):
        for index, group in enumerate(groups):
            others = [*learnt[:index], *learnt[index + 1 :]]
            start = np.array(learnt[index].theta)
            learnt[index] = evidence_of(group, prior_of(group, others), start)
    return learnt


def prior_of(group: DeviceData, others: Sequence[Evidence]) -> Prior:
    """What a group's fit starts from: what others say, of the parameters that it may speak of; the base of the rest."""
    base, expected = device_prior(group.device, group.precision), expect(group.traits, others)
    speaks = np.array([name in group.speaks_of for name in NAMES])
    return Prior(np.where(speaks, expected.mean, base.mean), np.where(speaks, expected.deviation, base.deviation))


def evidence_of(group: DeviceData, prior: Prior, start: Floats | None = None) -> Evidence:
    """What a group's own measurements say, its prior taken out of the precision again."""
    fitted = fit(group.runs, prior, group.scatter, start)
    precision = 1 / np.diag(fitted.covariance) - 1 / prior.deviation**2
    speaks = precision * prior.deviation**2 > LEAST
    deviation = tuple([
        float(value**-0.5) if moved and name in group.speaks_of else None
        for name, value, moved in zip(NAMES, precision, speaks)
    ])  # fmt: skip
    return Evidence(
        **msgspec.structs.asdict(group.traits),
        points=len(group.runs),
        measured_in=group.precision,
        theta=tuple(fitted.theta.tolist()),
        deviation=deviation,
    )
