"""What measurements of other devices teach about one: the prior that its own measurements start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from ..hardware import Device, find_device
from .calibrate import on_tensor_cores, order, prior_of, runs_of
from .fit import Fit, Prior, fit
from .measurements import Measurement
from .prior import Neighbour, prior_from_others

Key = tuple[str, str, str]
"""Device, precision, source."""


def group_by_source(measurements: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
    """Measurements by device, precision and source, each in an order of its own."""
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for each in order(measurements):
        groups[each.gpu, each.precision, each.source].append(each)
    return groups


class Taught:
    """Fits of every device, precision and source, each from its own measurements alone; made when first asked for.

    Parameters
    ----------
    measurements : sequence of Measurement
    label_of : function of a Measurement, optional
        What may be held out: its network, or the family of that.
    """

    def __init__(
        self, measurements: Sequence[Measurement], label_of: Callable[[Measurement], str] | None = None
    ) -> None:
        self._groups = group_by_source(measurements)
        self._labels = {
            key: np.array([label_of(m) if label_of else "" for m in group]) for key, group in self._groups.items()
        }
        self._fits: dict[tuple[Key, str], Fit] = {}

    def others(self, device: Device, precision: str) -> list[Key]:
        """Those of other devices in the same precision on such units."""
        unit = on_tensor_cores(device, precision)
        return [
            key
            for key in self._groups
            if key[0] != device.id and key[1] == precision and on_tensor_cores(find_device(key[0]), precision) == unit
        ]

    def prior(self, device: Device, precision: str, source: str, label: str = "") -> Prior:
        """The prior of a device under some software, from others that have not seen what is held out.

        Parameters
        ----------
        device : Device
        precision : str
        source : str
            Its first word names the software.
        label : str
            What is held out; empty for nothing.
        """
        others = [
            Neighbour(find_device(key[0]), key[2], self.fit(key, label))
            for key in self.others(device, precision)
            if (self._labels[key] != label).any() or not label
        ]
        return prior_from_others(prior_of(device, precision), device, source, others)

    def fit(self, key: Key, label: str = "") -> Fit:
        """The fit of a group's own measurements without those that are held out."""
        kept = np.flatnonzero(self._labels[key] != label) if label else np.arange(len(self._groups[key]))
        everything = len(kept) == len(self._groups[key])
        name = (key, "" if everything else label)
        if name not in self._fits:
            device = find_device(key[0])
            runs, prior = runs_of(self._groups[key], device, key[1]), prior_of(device, key[1])
            start = None if everything else self.fit(key).theta
            self._fits[name] = fit(runs if everything else runs.choose(kept), prior, start=start)
        return self._fits[name]
