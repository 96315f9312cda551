"""``paleo-lite validate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from ..errors import BadValue
from ..report.sheet import Page
from .common import output_options, show
from .plot_options import Drawing, plot_options

if TYPE_CHECKING:
    from ..report.charts.accuracy import Pair


class Asked(NamedTuple):
    """What to validate on: where the data is, and which devices and precisions (all where empty)."""

    split: str
    data: Path
    gpu: tuple[str, ...]
    precision: tuple[str, ...]

    @property
    def measured(self) -> Path:
        """The folder of published measurements: the data's ``measured``, or itself."""
        return self.data / "measured" if (self.data / "measured").is_dir() else self.data

    def nothing(self) -> BadValue:
        """The error to raise where no row is of what was asked for."""
        return BadValue(f"no measurement of {', '.join((*self.gpu, *self.precision))} in {self.data}")


Answer = tuple[Sequence[msgspec.Struct], Callable[[], Page], Callable[[], "list[Pair]"]]
"""Rows for JSON, what makes the page, and what makes the points of the chart."""


def _networks(asked: Asked) -> Answer:
    """Whole networks: what one measurement or published sources say."""
    from ..calibration.datasets import published
    from ..calibration.measurements import read_measurements
    from ..calibration.validate import validate as hold_out
    from ..report.calibrations import validation_page
    from ..report.charts.pairs import network_pairs

    measurements = read_measurements(asked.data) if asked.data.is_file() else published(asked.measured).measurements
    if not any(
        (not asked.gpu or m.gpu in asked.gpu) and (not asked.precision or m.precision in asked.precision)
        for m in measurements
    ):
        raise asked.nothing()
    rows, points = hold_out(measurements, asked.split, asked.gpu, asked.precision)
    return rows, lambda: validation_page(rows, points), lambda: network_pairs(points)


def _collectives(asked: Asked) -> Answer:
    """Collectives between devices: message sizes and numbers of workers."""
    from ..calibration.exchanges import PLATFORMS, published_exchanges
    from ..calibration.validate_collectives import validate_collectives
    from ..errors import UnknownName
    from ..report.charts.pairs import exchange_pairs
    from ..report.links import exchange_validation_page

    if asked.precision:
        raise BadValue("collectives are timed by bytes, whatever their precision: leave --precision out")
    for name in asked.gpu:
        if name not in PLATFORMS:
            raise UnknownName("measured platform", name, PLATFORMS)
    found = published_exchanges(asked.measured)
    rows, points = validate_collectives([e for e in found.exchanges if not asked.gpu or e.platform in asked.gpu])
    page = partial(exchange_validation_page, rows, points, found.left_out)
    return rows, page, lambda: exchange_pairs(points)


def _scaling(asked: Asked) -> Answer:
    """Training on several devices: networks, batch sizes and numbers of nodes."""
    from ..calibration.validate_scaling import validate_scaling
    from ..report.charts.pairs import scaling_pairs
    from ..report.scale import scaling_truth_page

    if asked.precision not in ((), ("fp32",)):
        raise asked.nothing()
    truth = validate_scaling(asked.data, asked.gpu)
    if not truth.points:
        raise asked.nothing()
    return truth.points, lambda: scaling_truth_page(truth), lambda: scaling_pairs(truth.points)


def _layers(asked: Asked) -> Answer:
    """Single layers: a fifth of their shapes."""
    from ..calibration.layer_datasets import published_layers
    from ..calibration.validate_layers import validate_layers
    from ..report.charts.pairs import layer_pairs
    from ..report.layers import layer_validation_page

    found = published_layers(asked.measured, asked.gpu, asked.precision)
    if not found.layers:
        raise asked.nothing()
    rows, points = validate_layers(found.layers)
    return rows, lambda: layer_validation_page(rows, points, found.left_out), lambda: layer_pairs(points)


_PROFILED = ("k40m", "resnet50", "fp32")


def _profile(asked: Asked) -> Answer:
    """Classes of work in profiles: every batch size but the smallest."""
    from .profile_options import need_pyarrow

    need_pyarrow()
    from ..calibration.validate_profiles import validate_profiles
    from ..report.charts.pairs import profile_pairs
    from ..report.layers import profile_validation_page

    gpu, network, precision = _PROFILED
    if (asked.gpu and gpu not in asked.gpu) or (asked.precision and precision not in asked.precision):
        raise asked.nothing()
    rows = validate_profiles([asked.data / "surfboard" / "pyprof_kernels"], gpu, network, precision)
    return rows, lambda: profile_validation_page(rows), lambda: profile_pairs(rows)


SPLITS: dict[str, Callable[[Asked], Answer]] = {
    "network": _networks,
    "family": _networks,
    "gpu": _networks,
    "source": _networks,
    "layers": _layers,
    "profile": _profile,
    "collectives": _collectives,
    "scaling": _scaling,
}
"""What can be held out, and who does it."""


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="PALEO_LITE_DATA",
    show_envvar=True,
    help="A measurements CSV, or a folder of published measurements.",
)
@click.option(
    "--split",
    type=click.Choice(tuple(SPLITS)),
    default="network",
    show_default=True,
    help="What is held out at a time.",
)
@click.option("--gpu", multiple=True, help="Only this device.")
@click.option("--precision", multiple=True, help="Only this precision.")
@plot_options("accuracy")
@output_options
def validate(
    data: Path | None,
    split: str,
    gpu: tuple[str, ...],
    precision: tuple[str, ...],
    plot: Drawing | None,
    style: str,
) -> None:
    """Hold measurements out, predict them from the rest, and say how far off that is.

    Of published measurements a network, a family, a device or a source at a time; of single layers a fifth of their
    shapes; of profiles all batch sizes but the smallest, by class of work. Beside the calibrated model stand simpler
    ones on the same folds: one PPP per device, the roofline, one PPP per class of work, launch and roofline.
    """
    if data is None:
        raise BadValue(
            "no measurements to hold out: --data or PALEO_LITE_DATA must name a CSV of yours (paleo-lite calibrate "
            "--template) or a folder of published measurements (docs/accuracy.md says where they come from)"
        )
    rows, page, pairs = SPLITS[split](Asked(split, data, gpu, precision))
    show(style, lambda: {"rows": [msgspec.to_builtins(row) for row in rows]}, page)
    if plot is not None:
        held_out = f"one {split} left out at a time" if SPLITS[split] is _networks else split
        plot.draw(pairs(), f"Predicted beside measured: {held_out}", "dashed: a factor of 1.2 to either side")
