"""Ratios of published steps: how many lie in the interval that their predictions, of steps held out, give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.choose import POOL_SCATTER
from paleo_lite.calibration.fit import fit
from paleo_lite.calibration.measured_devices import GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.side_by_side import Estimate, log_ratio_variance
from paleo_lite.calibration.validate import family_of
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.timing.calibrated import CalibratedModel, sensitivities
from paleo_lite.timing.models import QUANTILES

GROUPS = 8
"""Parts that networks are held out in: two of one part are predicted by one fit, which has seen neither."""


class Held(NamedTuple):
    """A step, how far the logarithm of its prediction is off, and what that depends on."""

    step: Measurement
    error: float
    estimate: Estimate


class RatioRow(msgspec.Struct, frozen=True):
    """How true ratios of a kind are: shares of 1; `independent` as if both predictions shared nothing.

    Widths are of the 90% interval: its upper end over its lower.
    """

    kind: str
    pairs: int
    coverage_80: float
    coverage_90: float
    width_90: float
    independent_coverage_90: float
    independent_width_90: float


class _Pairs(NamedTuple):
    """Differences of two errors, their variances, and those of both if they were independent."""

    apart: list[float]
    variance: list[float]
    independent: list[float]

    def add(self, one: Held, other: Held, is_same_step: bool) -> None:
        self.apart.append(one.error - other.error)
        self.variance.append(log_ratio_variance(one.estimate, other.estimate, is_same_step))
        estimates = one.estimate, other.estimate
        alone = (e.slopes @ e.model.covariance @ e.slopes + e.model.residual_variance for e in estimates)
        self.independent.append(float(sum(alone)))


def validate_ratios(measurements: Sequence[Measurement]) -> list[RatioRow]:
    """Hold out, predict, and compare every pair of one source that has a ratio to ask for.

    Of a step on two devices its family is held out on all; each device is predicted by a fit to its other families, or
    from others alone, as one that nobody measured. Of two steps on one device both networks are held out.
    """
    families = MeasuredDevices(measurements, lambda step: family_of(step.network))
    names = {name: number % GROUPS for number, name in enumerate(sorted({step.network for step in measurements}))}
    networks = MeasuredDevices(measurements, lambda step: str(names[step.network]))
    fitted, expected = (
        list(_by_label(families, lambda step: family_of(step.network), known)) for known in (True, False)
    )
    together = list(_by_label(networks, lambda step: str(names[step.network]), True))
    return [
        *_of_devices("a step on two devices, both measured", fitted, fitted),
        *_of_devices("a step on two devices, neither measured", expected, expected),
        *_of_devices("a step on two devices, one measured", fitted, expected),
        *_on_one_device(together),
    ]


Part = tuple[GroupKey, list[Held]]


def _by_label(devices: MeasuredDevices, label_of: object, is_fitted: bool) -> Iterator[Part]:
    """Every group's steps of each label, predicted without them: by a fit to its others, or by what is expected."""
    for key, group in devices.groups.items():
        if len({step.network for step in group}) < 3:
            continue
        runs = devices.measured[key].runs
        labels = np.array([label_of(step) for step in group])  # type: ignore[operator]
        for label in sorted(set(labels)):
            out, rest = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
            found = fit(runs.select(rest if is_fitted else rest[:0]), devices.prior(key, label))
            scatter = found.scatter if is_fitted else POOL_SCATTER
            model = CalibratedModel(
                "held out", found.theta, found.covariance, scatter, learned_fraction=found.learned_fraction
            )
            part = runs.select(out)
            times, slopes = sensitivities(part.features, part.rates, np.exp(model.theta), part.run, len(part))
            yield (
                key,
                [
                    Held(group[place], float(error), Estimate(model, slope, key.gpu, key.precision))
                    for place, error, slope in zip(out, np.log(times / part.measured_s), slopes / times[:, None])
                ],
            )


def _of_devices(kind: str, ones: Iterable[Part], others: Iterable[Part]) -> Iterator[RatioRow]:
    """The same step of one source on two devices in one precision."""
    places: dict[object, list[tuple[str, Held]]] = defaultdict(list)
    for key, held in others:
        for each in held:
            places[_place(key, each)].append((key.gpu, each))
    pairs, is_ordered = _Pairs([], [], []), ones is not others
    for key, held in ones:
        for each in held:
            for gpu, other in places[_place(key, each)]:
                if gpu != key.gpu if is_ordered else gpu > key.gpu:
                    pairs.add(each, other, is_same_step=True)
    yield _row(kind, pairs)


def _place(key: GroupKey, held: Held) -> object:
    step = held.step
    return key.source, key.precision, key.execution, step.network, step.phase, step.batch_size, step.image_size


def _on_one_device(parts: Iterable[Part]) -> Iterator[RatioRow]:
    """Two networks, two batch sizes, or two phases, all else alike."""
    kinds = {name: _Pairs([], [], []) for name in ("network", "batch_size", "phase")}
    for _, held in parts:
        for one, other in combinations(held, 2):
            differing = [name for name in kinds if getattr(one.step, name) != getattr(other.step, name)]
            if len(differing) == 1:
                kinds[differing[0]].add(one, other, is_same_step=False)
    for name, pairs in kinds.items():
        yield _row(f"on one device, another {name.replace('_', ' ')}", pairs)


def _row(kind: str, pairs: _Pairs) -> RatioRow:
    apart, both, alone = np.abs(pairs.apart), np.sqrt(pairs.variance), np.sqrt(pairs.independent)
    reach = QUANTILES[0.9]
    return RatioRow(
        kind, len(apart), float(np.mean(apart < QUANTILES[0.8] * both)), float(np.mean(apart < reach * both)),
        float(np.exp(2 * reach * np.median(both))), float(np.mean(apart < reach * alone)),
        float(np.exp(2 * reach * np.median(alone))),
    )  # fmt: skip


def ratio_page(rows: Sequence[RatioRow]) -> Document:
    """How many ratios lie in their intervals, and how wide those are."""
    table = Table(
        "Ratios held out",
        [
            Column("kind", "ratio", left=True),
            Column("pairs", "pairs"),
            Column("coverage_80", "inside\n80%", "{:.0%}".format),
            Column("coverage_90", "inside\n90%", "{:.0%}".format),
            Column("width_90", "width\n90%", "{:.2f}".format),
            Column("independent_coverage_90", "as if independent,\ninside 90%", "{:.0%}".format),
            Column("independent_width_90", "width", "{:.2f}".format),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    return Document("ratios of published steps in the intervals of their predictions", (), [table])
