"""Measurements of several devices and the parameters fitted to them: the content of the pool, and its validation.

This module is separate from `choose`, which every prediction imports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..machines import Device, find_device
from ..timing.parameters import NAMES
from .fit import MeasuredRuns, fit, runs_of
from .measurements import Measurement
from .prior import (
    FIT_SCATTER,
    INFORMED_PARAMETERS,
    Evidence,
    Prior,
    Traits,
    device_prior,
    prior_from_evidence,
    prior_of_calibration,
    traits_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class GroupKey(NamedTuple):
    """Key of a group of measurements that are fitted together."""

    gpu: str
    precision: str
    source: str
    execution: str = "eager"


def group_by_source(measurements: Sequence[Measurement]) -> dict[GroupKey, list[Measurement]]:
    """Group measurements by device, precision, source and execution; each group is sorted."""
    groups: dict[GroupKey, list[Measurement]] = defaultdict(list)
    for step in sorted(measurements, key=lambda measurement: measurement.sort_key):
        groups[GroupKey(step.gpu, step.precision, step.source, step.execution)].append(step)
    return groups


class DeviceData(NamedTuple):
    """Measurements of a device in a precision by one source."""

    device: Device
    precision: str
    traits: Traits
    runs: MeasuredRuns
    scatter: float = FIT_SCATTER  # expected relative scatter of single measurements, see `prior.FIT_SCATTER`
    # Parameters that these measurements may inform: nearly all for whole steps, a few for single operations.
    informative_parameters: tuple[str, ...] = INFORMED_PARAMETERS


def device_data_of(key: GroupKey, group: Sequence[Measurement]) -> DeviceData:
    """Return the data of a group of measurements, in the same order."""
    device = find_device(key.gpu)
    traits = traits_of(device, key.precision, group[0].software, key.execution, key.source)
    return DeviceData(device, key.precision, traits, runs_of(group, device, key.precision))


class MeasuredDevices:
    """Measurements of several devices, with the parameters fitted to them.

    `label_of` returns the label by which a measurement is held out: the network, or its family. Single operations are
    never held out by label.
    """

    def __init__(
        self,
        measurements: Sequence[Measurement],
        label_of: Callable[[Measurement], str] | None = None,
        operations: Sequence[DeviceData] = (),
    ) -> None:
        self.groups = group_by_source(measurements)  # measurements that are fitted together
        self.measured: dict[GroupKey, DeviceData] = {}  # the same in the form that fits take
        self._labels: dict[GroupKey, NDArray[np.str_]] = {}
        for key, group in self.groups.items():
            self.measured[key] = device_data_of(key, group)
            self._labels[key] = np.array([label_of(step) if label_of else "" for step in group])
        self._operations = list(operations)
        self._evidence: dict[str, dict[GroupKey, Evidence]] = {}
        self.operations: list[Evidence] = []  # parameters fitted to single operations

    def evidence(self, held_out: str = "") -> dict[GroupKey, Evidence]:
        """Return the parameters fitted to each group, without the measurements of a label, if one is given.

        Groups without the label keep their fit. The others are fitted again: first from the prior of their kind of
        device, then from the evidence of all other groups.
        """
        if held_out not in self._evidence:
            if held_out:
                self._evidence[held_out] = self._evidence_without(held_out)
            else:
                learned = learn_evidence([*self.measured.values(), *self._operations])
                self._evidence[""] = dict(zip(self.measured, learned))
                self.operations = learned[len(self.measured) :]
        return self._evidence[held_out]

    def _evidence_without(self, held_out: str) -> dict[GroupKey, Evidence]:
        full_evidence = self.evidence()
        evidence = dict(full_evidence)
        reduced: dict[GroupKey, DeviceData] = {}
        for key, measured in self.measured.items():
            remaining = np.flatnonzero(self._labels[key] != held_out)
            if len(remaining) < len(measured.runs):
                del evidence[key]
                if len(remaining):
                    reduced[key] = measured._replace(runs=measured.runs.select(remaining))
        for key, measured in reduced.items():
            start = np.array(full_evidence[key].theta)
            evidence[key] = evidence_of(measured, device_prior(measured.device, measured.precision), start)
        for key, measured in reduced.items():
            others = [fitted for other, fitted in evidence.items() if other != key]
            prior = prior_for_group(measured, [*others, *self.operations])
            evidence[key] = evidence_of(measured, prior, np.array(evidence[key].theta))
        return evidence

    def prior(
        self,
        key: GroupKey,
        held_out: str = "",  # label to leave out of the other groups; empty for none
        ignore: Callable[[Traits], bool] = lambda other: False,  # returns whether to leave out a whole group
        is_source_known: bool = True,  # whether the host of the source is known from its other devices
        # Whether own measurements of the group will be fitted with this prior, see `prior.prior_of_calibration`.
        of_calibration: bool = False,
    ) -> Prior:
        """Return the prior of a group from the evidence of the other groups; its own measurements are not used."""
        traits = self.measured[key].traits
        if not is_source_known:
            traits = msgspec.structs.replace(traits, source="")
        candidates = [evidence for other, evidence in self.evidence(held_out).items() if other != key]
        candidates += self.operations
        used = [evidence for evidence in candidates if not ignore(evidence)]
        if of_calibration:
            return prior_of_calibration(traits, used)
        return prior_from_evidence(traits, used)


# Evidence of a group --------------------------------------------------------------------------------------------------


ROUNDS = 3
"""Number of fits of each group; further rounds do not change the parameters noticeably."""

MIN_PRECISION_GAIN = 0.05
"""Least relative increase of the prior's precision for measurements to count as informative about a parameter."""


def learn_evidence(measured: Iterable[DeviceData]) -> list[Evidence]:
    """Fit all groups of measurements, each with a prior from the evidence of the others, in `ROUNDS` rounds.

    A parameter that a group's measurements hardly inform thus stays close to its expectation, and does not distort the
    parameters that they do inform.
    """
    groups = list(measured)
    evidence = [evidence_of(group, device_prior(group.device, group.precision)) for group in groups]
    for _ in range(ROUNDS - 1):
        for index, group in enumerate(groups):
            others = [*evidence[:index], *evidence[index + 1 :]]
            start = np.array(evidence[index].theta)
            evidence[index] = evidence_of(group, prior_for_group(group, others), start)
    return evidence


def prior_for_group(group: DeviceData, others: Sequence[Evidence]) -> Prior:
    """Return the prior of a group's fit: from the evidence of others for its informative parameters, else the base."""
    base, expected = device_prior(group.device, group.precision), prior_from_evidence(group.traits, others)
    is_informative = np.array([name in group.informative_parameters for name in NAMES])
    mean = np.where(is_informative, expected.mean, base.mean)
    return Prior(mean, np.where(is_informative, expected.deviation, base.deviation))


def evidence_of(group: DeviceData, prior: Prior, start: Floats | None = None) -> Evidence:
    """Fit a group, and return the information of its measurements alone, with that of the prior subtracted."""
    fitted = fit(group.runs, prior, group.scatter, start)
    precision = 1 / np.diag(fitted.covariance) - 1 / prior.deviation**2
    is_informed = precision * prior.deviation**2 > MIN_PRECISION_GAIN
    deviation: list[float | None] = []
    for index, name in enumerate(NAMES):
        if is_informed[index] and name in group.informative_parameters:
            deviation.append(float(precision[index] ** -0.5))
        else:
            deviation.append(None)
    return Evidence(
        **msgspec.structs.asdict(group.traits),
        points=len(group.runs),
        measured_in=group.precision,
        theta=tuple(fitted.theta.tolist()),
        deviation=tuple(deviation),
    )
