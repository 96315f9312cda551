"""Commands ``python -m validation accuracy``, ``ship`` and ``order``, which use published measurements."""

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


class Selection(NamedTuple):
    """Measurements to validate on: their folder, and their devices and precisions (all if empty)."""

    split: str
    data: Path
    gpus: tuple[str, ...]
    precisions: tuple[str, ...]

    @property
    def measured(self) -> Path:
        """Folder of published tables: the subfolder ``measured`` if it exists, otherwise the data folder itself."""
        subfolder = self.data / "measured"
        return subfolder if subfolder.is_dir() else self.data

    def includes(self, gpu: str, precision: str) -> bool:
        """Return whether measurements of a device in a precision are selected."""
        has_gpu = not self.gpus or gpu in self.gpus
        has_precision = not self.precisions or precision in self.precisions
        return has_gpu and has_precision

    def no_measurement_error(self) -> BadValue:
        """Return the error for a selection without measurements."""
        return BadValue(f"no measurement of {', '.join((*self.gpus, *self.precisions))} in {self.data}")


ValidationResult = tuple[Sequence[msgspec.Struct], Callable[[], Document], Callable[[], "list[Pair]"]]
"""Rows for JSON, a function that makes the document, and a function that makes the points of the chart."""


def _steps(selection: Selection) -> ValidationResult:
    """Validate steps of whole networks, with a network, family, device or source held out."""
    from paleo_lite.calibration.validate import Validation, validate
    from paleo_lite.reporting.calibrations import validation_page
    from paleo_lite.reporting.charts.accuracy import network_pairs

    from .ship import operations_of
    from .steps.published import published_steps

    measurements = published_steps(selection.measured).measurements
    if not any(selection.includes(m.gpu, m.precision) for m in measurements):
        raise selection.no_measurement_error()
    operations = operations_of(selection.measured)
    rows, points = validate(measurements, selection.split, selection.gpus, selection.precisions, operations)
    return rows, lambda: validation_page(Validation(rows[0].split, rows, points)), lambda: network_pairs(points)


def _ratios(selection: Selection) -> ValidationResult:
    """Validate ratios of two steps: the same step on two devices, or two steps on one device."""
    from .steps.published import published_steps
    from .steps.ratios import ratio_page, ratio_truth

    measurements = published_steps(selection.measured).measurements
    measurements = [step for step in measurements if selection.includes(step.gpu, step.precision)]
    if not measurements:
        raise selection.no_measurement_error()
    rows = ratio_truth(measurements)
    return rows, lambda: ratio_page(rows), list


def _held_out(module: str, selection: Selection) -> ValidationResult:
    """Validate published steps with the functions ``truth`` and ``page`` of a module of `steps`."""
    from .ship import operations_of
    from .steps.published import published_steps

    split = import_module(f".steps.{module}", __package__)
    rows = split.truth(
        published_steps(selection.measured).measurements, operations_of(selection.measured), selection.includes
    )
    if not rows:
        raise selection.no_measurement_error()
    return rows, lambda: split.page(rows), list


def _transformers(selection: Selection) -> ValidationResult:
    """Validate transformers, with a device held out."""
    from paleo_lite.calibration.validate import Validation
    from paleo_lite.reporting.calibrations import validation_page
    from paleo_lite.reporting.charts.accuracy import network_pairs

    from .ship import operations_of
    from .steps.published import published_steps
    from .steps.transformers import transformer_truth

    measurements, operations = published_steps(selection.measured).measurements, operations_of(selection.measured)
    rows, points = transformer_truth(measurements, selection.gpus, selection.precisions, operations)
    if not rows:
        raise selection.no_measurement_error()
    return rows, lambda: validation_page(Validation(rows[0].split, rows, points)), lambda: network_pairs(points)


def _layers(selection: Selection) -> ValidationResult:
    """Validate single layers, with a fifth of their shapes held out."""
    from .layers.hold_out import validate_layers
    from .layers.page import layer_pairs, layer_validation_page
    from .layers.published import published_layers

    published = published_layers(selection.measured, selection.gpus, selection.precisions)
    if not published.layers:
        raise selection.no_measurement_error()
    rows, points = validate_layers(published.layers)
    return rows, lambda: layer_validation_page(rows, points, published.left_out), lambda: layer_pairs(points)


def _operations(selection: Selection) -> ValidationResult:
    """Validate single matrix products and convolutions, with a device held out."""
    from .layers.devices import operation_truth, operations_page
    from .ship import operations_of

    rows = operation_truth(operations_of(selection.measured), selection.includes)
    if not rows:
        raise selection.no_measurement_error()
    return rows, lambda: operations_page(rows), list


def _profiles(selection: Selection) -> ValidationResult:
    """Validate classes of work in profiles, with all batch sizes except the smallest held out."""
    from .profiles.hold_out import validate_profiles
    from .profiles.page import profile_pairs, profile_validation_page
    from .profiles.published import PROFILE_SETS

    selected = [known for known in PROFILE_SETS if selection.includes(known.gpu, known.precision)]
    if not selected:
        raise selection.no_measurement_error()
    rows = [
        row
        for known in selected
        for row in validate_profiles([known.path(selection.data)], known.gpu, known.network, known.precision)
    ]
    return rows, lambda: profile_validation_page(rows), lambda: profile_pairs(rows)


def _ppp(selection: Selection) -> ValidationResult:
    """Validate a single PPP on profiles with another batch size, loader or number of nodes."""
    from .profiles.page import carried_page, carried_pairs
    from .profiles.ppp import carry
    from .profiles.published import PROFILE_SETS

    selected = [known for known in PROFILE_SETS if selection.includes(known.gpu, known.precision)]
    if not selected:
        raise selection.no_measurement_error()
    rows = [row for known in selected for row in carry(selection.data, known)]
    return rows, lambda: carried_page(rows), lambda: carried_pairs(rows)


def _collectives(selection: Selection) -> ValidationResult:
    """Validate collectives, with message sizes and numbers of workers held out."""
    from .collectives.hold_out import validate_collectives
    from .collectives.page import exchange_pairs, exchange_validation_page
    from .collectives.published import PLATFORMS, published_exchanges

    if selection.precisions:
        raise BadValue("the time of a collective depends on bytes, not on the precision: omit `--precision`")
    for name in selection.gpus:
        if name not in PLATFORMS:
            raise UnknownName("measured platform", name, PLATFORMS)
    published = published_exchanges(selection.measured)
    exchanges = [each for each in published.exchanges if not selection.gpus or each.platform in selection.gpus]
    rows, points = validate_collectives(exchanges)
    page = partial(exchange_validation_page, rows, points, published.left_out)
    return rows, page, lambda: exchange_pairs(points)


def _scaling(selection: Selection) -> ValidationResult:
    """Validate training on several devices, with networks, batch sizes and numbers of nodes held out."""
    from .scaling.hold_out import validate_scaling
    from .scaling.page import scaling_pairs, scaling_truth_page

    if selection.precisions not in ((), ("fp32",)):
        raise selection.no_measurement_error()
    truth = validate_scaling(selection.data, selection.gpus)
    if not truth.points:
        raise selection.no_measurement_error()
    return truth.points, lambda: scaling_truth_page(truth), lambda: scaling_pairs(truth.points)


def _clusters(selection: Selection) -> ValidationResult:
    """Validate clusters and sources that are held out completely, and clusters with one known measurement."""
    from .scaling.clusters import cluster_points, hold_out, measured_once
    from .scaling.page import cluster_pairs, clusters_page

    if selection.gpus or selection.precisions:
        raise BadValue("clusters are held out completely: omit `--gpu` and `--precision`")
    points = cluster_points(selection.data)
    held_out = {by: hold_out(points, by) for by in ("cluster", "source")}
    for kind, description in KNOWN.items():
        held_out[f"cluster, more nodes; measured: {description}"] = measured_once(points, kind)
    return held_out["cluster"], lambda: clusters_page(held_out), lambda: cluster_pairs(held_out["cluster"])


def _training(selection: Selection) -> ValidationResult:
    """Validate training steps of language models, with sources, sizes, parallelism or GPUs held out."""
    from .training.hold_out import truth
    from .training.page import training_page, training_pairs
    from .training.published import trained_steps

    published = trained_steps(selection.data)
    steps = [step for step in published.steps if selection.includes(step.gpu, step.precision)]
    if not steps:
        raise selection.no_measurement_error()
    rows, pairs = truth(steps)
    return rows, lambda: training_page(rows, published.left_out), lambda: training_pairs(pairs)


KNOWN = {"nothing": "nothing", "one": "one node", "two": "two nodes", "both": "one and two"}
"""Description of the measurements that are known of a cluster, by kind."""

SPLITS: dict[str, Callable[[Selection], ValidationResult]] = {
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
"""Function that validates each split."""

GROUPED_SPLITS = (*STEP_SPLITS, "transformers", "layers")
"""Splits with a row per group of measurements, whose mean error is that of the groups."""


@click.group(cls=ErrorHandlingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Validate predictions with published measurements, and fit the shipped calibrations to them."""


@main.command(cls=AnswerCommand, chart="accuracy")
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, envvar="PALEO_LITE_DATA", show_envvar=True,
    help="Folder of published measurements.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(tuple(SPLITS)), default="network", show_default=True,
    help="Part of the measurements that is held out.",
)  # fmt: skip
@click.option("--gpu", "gpus", multiple=True, help="Only this device (for collectives: platform).")
@click.option("--precision", "precisions", multiple=True, help="Only this precision.")
def accuracy(data: Path, split: str, gpus: tuple[str, ...], precisions: tuple[str, ...]) -> Answer:
    """Predict held-out published measurements from the others, and show the errors.

    The measurements that are held out are: for steps, one network, family, device or source at a time; for single
    layers, a fifth of their shapes; for profiles, all batch sizes except the smallest; for collectives, message sizes
    and numbers of workers; for training on several devices, networks, a batch size and numbers of nodes; for clusters,
    one cluster or one source; for training of language models, a source, a range of sizes, several nodes, tensor and
    pipeline parallelism, or a GPU. The calibrated model is compared with simpler models on the same folds.
    """
    rows, page, pairs = SPLITS[split](Selection(split, data, gpus, precisions))
    held_out = f"one {split} left out at a time" if split in STEP_SPLITS else split
    title = f"Predicted and measured: {held_out}"
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
    """Fit the measurements in DATA, and write the calibrations of devices, links and platforms to FOLDER."""
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
    """Make the expectations of all devices in FOLDER consistent with their data sheets, after a device was added."""
    from paleo_lite.calibration.choose import POOL_FILE, read_pool

    from .ordering import write_pool
    from .ship import ordered

    pool = ordered(read_pool(folder / POOL_FILE))
    write_pool(pool, folder / POOL_FILE)
    click.echo(f"{len(pool.order)} shifted")


if __name__ == "__main__":
    main(prog_name="python -m validation")
