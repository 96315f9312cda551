"""``python -m validation accuracy`` and ``ship``: what published measurements say of predictions, and teach them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from paleo_lite.calibration.validate import SPLITS as STEP_SPLITS
from paleo_lite.cli import ErrorHandlingGroup, options
from paleo_lite.cli.options import Answer, AnswerCommand
from paleo_lite.errors import BadFile, BadValue, UnknownName
from paleo_lite.reporting.document import Document

if TYPE_CHECKING:
    from paleo_lite.reporting.charts.accuracy import Pair


class Asked(NamedTuple):
    """What to validate on: where the data is, and which devices and precisions (all where empty)."""

    split: str
    data: Path
    gpus: tuple[str, ...]
    precisions: tuple[str, ...]

    @property
    def measured(self) -> Path:
        """The folder of published tables: the data's ``measured``, or itself."""
        return self.data / "measured" if (self.data / "measured").is_dir() else self.data

    def wants(self, gpu: str, precision: str) -> bool:
        """Whether measurements of a device in a precision are asked for."""
        return (not self.gpus or gpu in self.gpus) and (not self.precisions or precision in self.precisions)

    def nothing(self) -> BadValue:
        """The error to raise where no row is of what was asked for."""
        return BadValue(f"no measurement of {', '.join((*self.gpus, *self.precisions))} in {self.data}")


Truth = tuple[Sequence[msgspec.Struct], Callable[[], Document], Callable[[], "list[Pair]"]]
"""Rows for JSON, what makes the page, and what makes the points of the chart."""


def _steps(asked: Asked) -> Truth:
    """Steps of whole networks: a network, a family, a device or a source."""
    from paleo_lite.calibration.validate import Validation, validate
    from paleo_lite.reporting.calibrations import validation_page
    from paleo_lite.reporting.charts.accuracy import network_pairs

    from .ship import operations_of
    from .steps.published import published_steps

    measurements = published_steps(asked.measured).measurements
    if not any(asked.wants(m.gpu, m.precision) for m in measurements):
        raise asked.nothing()
    operations = operations_of(asked.measured)
    rows, points = validate(measurements, asked.split, asked.gpus, asked.precisions, operations)
    return rows, lambda: validation_page(Validation(rows[0].split, rows, points)), lambda: network_pairs(points)


def _ratios(asked: Asked) -> Truth:
    """Ratios of steps: the same on two devices, or two on one."""
    from .steps.published import published_steps
    from .steps.ratios import ratio_page, ratio_truth

    measurements = published_steps(asked.measured).measurements
    measurements = [step for step in measurements if asked.wants(step.gpu, step.precision)]
    if not measurements:
        raise asked.nothing()
    rows = ratio_truth(measurements)
    return rows, lambda: ratio_page(rows), list


def _held_out(module: str, asked: Asked) -> Truth:
    """What a module of `steps` says of published steps: its ``truth`` as rows, its ``page`` of them."""
    from .ship import operations_of
    from .steps.published import published_steps

    split = import_module(f".steps.{module}", __package__)
    rows = split.truth(published_steps(asked.measured).measurements, operations_of(asked.measured), asked.wants)
    if not rows:
        raise asked.nothing()
    return rows, lambda: split.page(rows), list


def _transformers(asked: Asked) -> Truth:
    """Transformers on a device held out."""
    from paleo_lite.calibration.validate import Validation
    from paleo_lite.reporting.calibrations import validation_page
    from paleo_lite.reporting.charts.accuracy import network_pairs

    from .ship import operations_of
    from .steps.published import published_steps
    from .steps.transformers import transformer_truth

    measurements, operations = published_steps(asked.measured).measurements, operations_of(asked.measured)
    rows, points = transformer_truth(measurements, asked.gpus, asked.precisions, operations)
    if not rows:
        raise asked.nothing()
    return rows, lambda: validation_page(Validation(rows[0].split, rows, points)), lambda: network_pairs(points)


def _layers(asked: Asked) -> Truth:
    """Single layers: a fifth of their shapes."""
    from .layers.hold_out import validate_layers
    from .layers.page import layer_pairs, layer_validation_page
    from .layers.published import published_layers

    published = published_layers(asked.measured, asked.gpus, asked.precisions)
    if not published.layers:
        raise asked.nothing()
    rows, points = validate_layers(published.layers)
    return rows, lambda: layer_validation_page(rows, points, published.left_out), lambda: layer_pairs(points)


def _operations(asked: Asked) -> Truth:
    """Single matrix products and convolutions of a device held out."""
    from .layers.devices import operation_truth, operations_page
    from .ship import operations_of

    rows = operation_truth(operations_of(asked.measured), asked.wants)
    if not rows:
        raise asked.nothing()
    return rows, lambda: operations_page(rows), list


def _profiles(asked: Asked) -> Truth:
    """Classes of work in profiles: every batch size but the smallest."""
    from .profiles.hold_out import validate_profiles
    from .profiles.page import profile_pairs, profile_validation_page
    from .profiles.published import PROFILE_SETS

    wanted = [known for known in PROFILE_SETS if asked.wants(known.gpu, known.precision)]
    if not wanted:
        raise asked.nothing()
    rows = [
        row
        for known in wanted
        for row in validate_profiles([known.path(asked.data)], known.gpu, known.network, known.precision)
    ]
    return rows, lambda: profile_validation_page(rows), lambda: profile_pairs(rows)


def _ppp(asked: Asked) -> Truth:
    """Profiles at another batch size, by another loader or on more nodes, predicted by one PPP."""
    from .profiles.page import carried_page, carried_pairs
    from .profiles.ppp import carry
    from .profiles.published import PROFILE_SETS

    wanted = [known for known in PROFILE_SETS if asked.wants(known.gpu, known.precision)]
    if not wanted:
        raise asked.nothing()
    rows = [row for known in wanted for row in carry(asked.data, known)]
    return rows, lambda: carried_page(rows), lambda: carried_pairs(rows)


def _collectives(asked: Asked) -> Truth:
    """Collectives between devices: message sizes and numbers of workers."""
    from .collectives.hold_out import validate_collectives
    from .collectives.page import exchange_pairs, exchange_validation_page
    from .collectives.published import PLATFORMS, published_exchanges

    if asked.precisions:
        raise BadValue("collectives are timed by bytes, whatever their precision: leave --precision out")
    for name in asked.gpus:
        if name not in PLATFORMS:
            raise UnknownName("measured platform", name, PLATFORMS)
    published = published_exchanges(asked.measured)
    rows, points = validate_collectives([e for e in published.exchanges if not asked.gpus or e.platform in asked.gpus])
    page = partial(exchange_validation_page, rows, points, published.left_out)
    return rows, page, lambda: exchange_pairs(points)


def _scaling(asked: Asked) -> Truth:
    """Training on several devices: networks, batch sizes and numbers of nodes."""
    from .scaling.hold_out import validate_scaling
    from .scaling.page import scaling_pairs, scaling_truth_page

    if asked.precisions not in ((), ("fp32",)):
        raise asked.nothing()
    truth = validate_scaling(asked.data, asked.gpus)
    if not truth.points:
        raise asked.nothing()
    return truth.points, lambda: scaling_truth_page(truth), lambda: scaling_pairs(truth.points)


def _clusters(asked: Asked) -> Truth:
    """Clusters and sources that the prior did not see, and clusters of which one measurement is known."""
    from .scaling.clusters import cluster_points, hold_out, measured_once
    from .scaling.page import cluster_pairs, clusters_page

    if asked.gpus or asked.precisions:
        raise BadValue("clusters are held out whole: leave --gpu and --precision out")
    points = cluster_points(asked.data)
    held = {by: hold_out(points, by) for by in ("cluster", "source")}
    for kind, said in KNOWN.items():
        held[f"cluster, more nodes; measured: {said}"] = measured_once(points, kind)
    return held["cluster"], lambda: clusters_page(held), lambda: cluster_pairs(held["cluster"])


def _training(asked: Asked) -> Truth:
    """Training steps of language models: sources, sizes, ways to share the network out, GPUs."""
    from .training.hold_out import truth
    from .training.page import training_page, training_pairs
    from .training.published import trained_steps

    published = trained_steps(asked.data)
    steps = [step for step in published.steps if asked.wants(step.gpu, step.precision)]
    if not steps:
        raise asked.nothing()
    rows, pairs = truth(steps)
    return rows, lambda: training_page(rows, published.left_out), lambda: training_pairs(pairs)


KNOWN = {"nothing": "nothing", "one": "one node", "two": "two nodes", "both": "one and two"}

SPLITS: dict[str, Callable[[Asked], Truth]] = {
    **dict.fromkeys(STEP_SPLITS, _steps),
    "layers": _layers,
    "operations": _operations,
    "profile": _profiles,
    "ppp": _ppp,
    "ratios": _ratios,
    "own": partial(_held_out, "own"),
    "order": partial(_held_out, "order"),
    "transformers": _transformers,
    "collectives": _collectives,
    "scaling": _scaling,
    "clusters": _clusters,
    "training": _training,
}
"""What can be held out, and who does it."""

GROUPED_SPLITS = (*STEP_SPLITS, "transformers", "layers")
"""Splits with a row per group of measurements, whose mean error is that of the groups."""


@click.group(cls=ErrorHandlingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Published measurements: how true predictions of them are, and the calibrations that are learnt from them."""


@main.command(cls=AnswerCommand, chart="accuracy")
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, envvar="PALEO_LITE_DATA", show_envvar=True,
    help="A folder of published measurements.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(tuple(SPLITS)), default="network", show_default=True,
    help="What is held out at a time.",
)  # fmt: skip
@click.option("--gpu", "gpus", multiple=True, help="Only this device; of collectives, this platform.")
@click.option("--precision", "precisions", multiple=True, help="Only this precision.")
def accuracy(data: Path, split: str, gpus: tuple[str, ...], precisions: tuple[str, ...]) -> Answer:
    """Hold published measurements out, predict them from the rest, and say how far off that is.

    Of steps a network, a family, a device or a source at a time; of single layers a fifth of their shapes; of profiles
    all batch sizes but the smallest, by class of work; of exchanges message sizes and numbers of workers; of training
    on several devices networks, a batch size and numbers of nodes; of clusters all of one, or of one source; of
    language models in training a source, a range of sizes, several nodes, shared matrices and stages, or a GPU.
    Beside the calibrated model stand simpler ones on the same folds.
    """
    rows, page, pairs = SPLITS[split](Asked(split, data, gpus, precisions))
    held_out = f"one {split} left out at a time" if split in STEP_SPLITS else split
    title = f"Predicted beside measured: {held_out}"
    return Answer(
        lambda: {"rows": [msgspec.to_builtins(row) for row in rows]},
        page,
        lambda: [pairs(), title, "", _heading(split, rows)],
    )


def _heading(split: str, rows: Sequence[Any]) -> str:
    """Return the title of the chart with the figures of the table's headline; empty for rows that are no groups."""
    from paleo_lite.reporting.charts.accuracy import held_out_title

    return held_out_title(rows) if split in GROUPED_SPLITS else ""


@main.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@options.debug()
def ship(data: Path, folder: Path) -> None:
    """Fit what is published in DATA; write the calibrations of devices, links and platforms into FOLDER."""
    from .power import ship_power
    from .ship import ship_devices, ship_links, ship_platforms
    from .training.hold_out import ship_training

    if not (data / "measured").is_dir():
        raise BadFile(f"{data / 'measured'}: cannot be read (no such folder)")
    click.echo(f"power: {ship_power(folder).held_out}")
    for name, text in (
        *ship_devices(data, folder),
        *ship_links(data / "measured", folder / "links"),
        *ship_platforms(data, folder / "platforms"),
        *ship_training(data, folder),
    ):
        click.echo(f"{name}: {text}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@options.debug()
def order(folder: Path) -> None:
    """Put the devices of the pool in FOLDER into the order of their data sheets: after one was added, without data."""
    from paleo_lite.calibration.choose import POOL_FILE, read_pool

    from .ordering import write_pool
    from .ship import ordered

    pool = ordered(read_pool(folder / POOL_FILE))
    write_pool(pool, folder / POOL_FILE)
    click.echo(f"{len(pool.order)} shifted")


if __name__ == "__main__":
    main(prog_name="python -m validation")
