"""``python -m validation``: validate predictions against published measurements, and fit the shipped calibrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from paleo_lite.calibration.validate import SPLITS as STEP_SPLITS
from paleo_lite.cli import DEBUG, ErrorHandlingGroup
from paleo_lite.cli.answers import AnswerCommand, CommandResult, progress_of_long_answers
from paleo_lite.errors import BadFile, BadValue, UnknownName
from paleo_lite.reporting.document import Document

from .comparisons import COMPARISONS, page_function

if TYPE_CHECKING:
    from paleo_lite.reporting.charts.accuracy import Pair


class Request(NamedTuple):
    """Arguments of ``accuracy``: the split, the folder of data, and the devices and precisions (empty: all)."""

    split: str
    data: Path
    gpus: tuple[str, ...]
    precisions: tuple[str, ...]

    @property
    def tables(self) -> Path:
        """Folder of published tables: ``measured`` inside the data, or the data folder itself."""
        folder = self.data / "measured"
        return folder if folder.is_dir() else self.data

    def includes(self, gpu: str, precision: str) -> bool:
        """Return whether the request includes measurements of a device in a precision."""
        return (not self.gpus or gpu in self.gpus) and (not self.precisions or precision in self.precisions)

    def no_measurement(self) -> BadValue:
        """Return the error to raise if no row matches the request."""
        return BadValue(f"no measurement of {', '.join((*self.gpus, *self.precisions))} in {self.data}")


Report = tuple[Sequence[msgspec.Struct], Callable[[], Document], Callable[[], "list[Pair]"]]
"""Rows for JSON, and functions that return the page and the points of the chart."""


def _steps(request: Request) -> Report:
    """Hold out steps of whole networks by network, family, device or source."""
    from paleo_lite.calibration.validate import Validation, validate
    from paleo_lite.reporting.calibrations import validation_page
    from paleo_lite.reporting.charts.accuracy import network_pairs

    from .ship import operations_of
    from .steps.published import published_steps

    measurements = published_steps(request.tables).measurements
    if not any(request.includes(m.gpu, m.precision) for m in measurements):
        raise request.no_measurement()
    operations = operations_of(request.tables)
    rows, points = validate(measurements, request.split, request.gpus, request.precisions, operations)
    return rows, lambda: validation_page(Validation(rows[0].split, rows, points)), lambda: network_pairs(points)


def _ratios(request: Request) -> Report:
    """Hold out ratios of two steps: the same step on two devices, or two steps on one device."""
    from .steps.published import published_steps
    from .steps.ratios import ratio_page, validate_ratios

    measurements = published_steps(request.tables).measurements
    measurements = [step for step in measurements if request.includes(step.gpu, step.precision)]
    if not measurements:
        raise request.no_measurement()
    rows = validate_ratios(measurements)
    return rows, lambda: ratio_page(rows), list


def _held_out(module: str, request: Request) -> Report:
    """Validate with the functions ``validate_steps`` and ``page`` of a module of `steps`."""
    from .ship import operations_of
    from .steps.published import published_steps

    split = import_module(f".steps.{module}", __package__)
    rows = split.validate_steps(
        published_steps(request.tables).measurements, operations_of(request.tables), request.includes
    )
    if not rows:
        raise request.no_measurement()
    return rows, lambda: split.page(rows), list


def _transformers(request: Request) -> Report:
    """Predict the transformers of each device with that device held out."""
    from paleo_lite.calibration.validate import Validation
    from paleo_lite.reporting.calibrations import validation_page
    from paleo_lite.reporting.charts.accuracy import network_pairs

    from .ship import operations_of
    from .steps.published import published_steps
    from .steps.transformers import validate_transformers

    measurements, operations = published_steps(request.tables).measurements, operations_of(request.tables)
    rows, points = validate_transformers(measurements, request.gpus, request.precisions, operations)
    if not rows:
        raise request.no_measurement()
    return rows, lambda: validation_page(Validation(rows[0].split, rows, points)), lambda: network_pairs(points)


def _layers(request: Request) -> Report:
    """Hold out one fifth of the shapes of single layers at a time."""
    from .layers.hold_out import validate_layers
    from .layers.page import layer_pairs, layer_validation_page
    from .layers.published import published_layers

    published = published_layers(request.tables, request.gpus, request.precisions)
    if not published.layers:
        raise request.no_measurement()
    rows, points = validate_layers(published.layers)
    return rows, lambda: layer_validation_page(rows, points, published.left_out), lambda: layer_pairs(points)


def _operations(request: Request) -> Report:
    """Hold out shapes and devices of single matrix products and convolutions."""
    from .layers.devices import operations_page, validate_operations
    from .ship import operations_of

    rows = validate_operations(operations_of(request.tables), request.includes)
    if not rows:
        raise request.no_measurement()
    return rows, lambda: operations_page(rows), list


def _profiles(request: Request) -> Report:
    """Hold out all batch sizes of profiles but the smallest, by class of work."""
    from .profiles.hold_out import ProfileRow, validate_profiles
    from .profiles.page import profile_pairs, profile_validation_page
    from .profiles.published import PROFILE_SETS

    selected = [profiles for profiles in PROFILE_SETS if request.includes(profiles.gpu, profiles.precision)]
    if not selected:
        raise request.no_measurement()
    rows: list[ProfileRow] = []
    for profiles in selected:
        rows += validate_profiles([profiles.path(request.data)], profiles.gpu, profiles.network, profiles.precision)
    return rows, lambda: profile_validation_page(rows), lambda: profile_pairs(rows)


def _ppp(request: Request) -> Report:
    """Predict profiles at another batch size, with another loader or on more nodes from a single PPP."""
    from .profiles.page import comparison_page, comparison_pairs
    from .profiles.ppp import compare_models
    from .profiles.published import PROFILE_SETS

    selected = [profiles for profiles in PROFILE_SETS if request.includes(profiles.gpu, profiles.precision)]
    if not selected:
        raise request.no_measurement()
    rows = [row for profiles in selected for row in compare_models(request.data, profiles)]
    return rows, lambda: comparison_page(rows), lambda: comparison_pairs(rows)


def _collectives(request: Request) -> Report:
    """Hold out message sizes and numbers of workers of collectives."""
    from .collectives.hold_out import validate_collectives
    from .collectives.page import exchange_pairs, exchange_validation_page
    from .collectives.published import PLATFORMS, published_exchanges

    if request.precisions:
        raise BadValue("collectives are measured in bytes, independent of the precision: omit `--precision`")
    for name in request.gpus:
        if name not in PLATFORMS:
            raise UnknownName("measured platform", name, PLATFORMS)
    published = published_exchanges(request.tables)
    rows, points = validate_collectives(
        [e for e in published.exchanges if not request.gpus or e.platform in request.gpus]
    )
    page = partial(exchange_validation_page, rows, points, published.left_out)
    return rows, page, lambda: exchange_pairs(points)


def _scaling(request: Request) -> Report:
    """Hold out networks, batch sizes and numbers of nodes of training on several devices."""
    from .scaling.hold_out import validate_scaling
    from .scaling.page import scaling_page, scaling_pairs

    if request.precisions not in ((), ("fp32",)):
        raise request.no_measurement()
    validation = validate_scaling(request.data, request.gpus)
    if not validation.points:
        raise request.no_measurement()
    return validation.points, lambda: scaling_page(validation), lambda: scaling_pairs(validation.points)


def _clusters(request: Request) -> Report:
    """Hold out clusters and sources, entirely or except for one or two measurements of the cluster."""
    from .scaling.clusters import cluster_points, forecast_larger_sizes, hold_out
    from .scaling.page import cluster_pairs, clusters_page

    if request.gpus or request.precisions:
        raise BadValue("clusters are held out as a whole: omit `--gpu` and `--precision`")
    points = cluster_points(request.data)
    forecasts = {field: hold_out(points, field) for field in ("cluster", "source")}
    for kind, description in KNOWN_MEASUREMENTS.items():
        forecasts[f"cluster, more nodes; measured: {description}"] = forecast_larger_sizes(points, kind)
    return forecasts["cluster"], lambda: clusters_page(forecasts), lambda: cluster_pairs(forecasts["cluster"])


def _training(request: Request) -> Report:
    """Hold out training steps of language models by source, model size, parallelism or GPU."""
    from .training.hold_out import validate_training
    from .training.page import training_page, training_pairs
    from .training.published import trained_steps

    published = trained_steps(request.data)
    steps = [step for step in published.steps if request.includes(step.gpu, step.precision)]
    if not steps:
        raise request.no_measurement()
    rows, pairs = validate_training(steps)
    return rows, lambda: training_page(rows, published.left_out), lambda: training_pairs(pairs)


def _pretraining(request: Request) -> Report:
    """Hold out pre-training with a tuned stack by device, network and precision."""
    from .training.hold_out_pretraining import pretraining_page, pretraining_pairs, validate_pretraining
    from .training.pretraining import pretraining_steps

    published = pretraining_steps(request.data)
    steps = [step for step in published.steps if request.includes(step.device, step.precision)]
    if not steps:
        raise request.no_measurement()
    rows, forecasts = validate_pretraining(steps)
    return rows, lambda: pretraining_page(rows, published.left_out), lambda: pretraining_pairs(forecasts)


def _energy(request: Request) -> Report:
    """Hold out measured powers by model, task and device."""
    from .energy.fit import shipped_scatters
    from .energy.hold_out import validate_energy
    from .energy.measured import measured_powers
    from .energy.page import energy_page

    if request.precisions:
        raise BadValue("powers are those of whole models: omit `--precision`")
    measured = [power for power in measured_powers(request.data) if not request.gpus or power.device.id in request.gpus]
    if not measured:
        raise request.no_measurement()
    rows, points = validate_energy(measured, shipped_scatters())
    return rows, lambda: energy_page(rows, points), list


def _served(request: Request) -> Report:
    """Forecast time and power of servers and pipelines, with their model held out from the power."""
    from .energy.fit import shipped_scatters
    from .energy.forecasts import forecast_energy, joules_rows
    from .energy.measured import measured_powers
    from .energy.page import joules_page

    if request.precisions:
        raise BadValue("servers are those of whole models: omit `--precision`")
    points = [
        point
        for point in forecast_energy(measured_powers(request.data), shipped_scatters())
        if not request.gpus or point.measured.device.id in request.gpus
    ]
    if not points:
        raise request.no_measurement()
    rows = joules_rows(points)
    return rows, lambda: joules_page(rows), list


def _engine_rows(request: Request, split: str) -> Report:
    """Validate the kernels, the steps or the simulated servers of engines, each alone."""
    from .engines import hold_out, simulated

    if request.gpus or request.precisions:
        raise BadValue("engines are validated as a whole: omit `--gpu` and `--precision`")
    if split == "kernels":
        kernels = hold_out.validate_kernels(request.data)
        return kernels, lambda: hold_out.kernels_page(kernels), list
    if split == "server-steps":
        steps = hold_out.validate_servers(request.data)
        return steps, lambda: hold_out.servers_page(steps), list
    servers = simulated.simulated_rows(simulated.simulate_servers(request.data))
    return servers, lambda: simulated.simulated_page(servers), list


def _pictures(request: Request) -> Report:
    """Hold out models and devices of pictures and videos."""
    from .diffusion.hold_out import pictures_page, validate_pictures

    if request.gpus or request.precisions:
        raise BadValue("batches are held out by model and by device: omit `--gpu` and `--precision`")
    validation = validate_pictures(request.data)
    return validation.rows, lambda: pictures_page(validation), list


def _local(request: Request) -> Report:
    """Hold out devices and sources of published speeds of llama.cpp, MLX and ExLlama.
    `disaggregated` forecasts published deployments with split pools."""
    from .local.hold_out import local_page, validate_local

    if request.gpus or request.precisions:
        raise BadValue("speeds are held out by device, and have no precision: omit `--gpu` and `--precision`")
    rows = validate_local(request.data)
    return rows, lambda: local_page(rows), list


def _rl(request: Request) -> Report:
    """Hold out networks, devices and releases of published steps of reinforcement learning."""
    from .reinforcement.hold_out import rl_page, validate_rl

    if request.gpus or request.precisions:
        raise BadValue("steps are held out by network and by device: omit `--gpu` and `--precision`")
    validation = validate_rl(request.data)
    return validation.rows, lambda: rl_page(validation), list


def _evidence(request: Request) -> Report:
    """Forecast groups of servers and of one's own machines of which one, two and four measurements are known."""
    from .evidence.hold_out import validate_evidence
    from .evidence.page import evidence_page
    from .evidence.ship import MEASURED

    if request.gpus or request.precisions:
        raise BadValue("groups are forecast as a whole: omit `--gpu` and `--precision`")
    rows = [row for kind, read in MEASURED.items() for row in validate_evidence(kind, read(request.data))]
    return rows, lambda: evidence_page(rows), list


def _disaggregated(request: Request) -> Report:
    """Forecast published deployments with split pools, none of which informs the times of steps."""
    from .fleet.disaggregated import forecast_all, measured_rows, split_page, split_rows

    measured = [row for row in measured_rows(request.data) if request.includes(row.gpu, row.precision)]
    if not measured:
        raise request.no_measurement()
    pairs, refused = forecast_all(measured)
    rows = split_rows(pairs)
    return rows, lambda: split_page(rows, refused), list


KNOWN_MEASUREMENTS = {"nothing": "nothing", "one": "one node", "two": "two nodes", "both": "one and two"}
"""Measurements of a held-out cluster that are known, and how the page describes them."""

SPLITS: dict[str, Callable[[Request], Report]] = {
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
    "pretraining": _pretraining,
    "energy": _energy,
    "served": _served,
    "pictures": _pictures,
    "local": _local,
    "rl": _rl,
    "disaggregated": _disaggregated,
    "evidence": _evidence,
    **{split: partial(_engine_rows, split=split) for split in ("kernels", "server-steps", "servers")},
}
"""Function that performs each validation, by the value of ``--split``."""

GROUPED_SPLITS = (*STEP_SPLITS, "transformers", "layers")
"""Splits with a row per group of measurements, whose mean error is that of the groups."""


@click.group(cls=ErrorHandlingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Validate predictions against published measurements, and fit the calibrations that the package ships."""


@main.command(cls=AnswerCommand, chart="accuracy")
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, envvar="PALEO_LITE_DATA", show_envvar=True,
    help="Folder of published measurements.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(tuple(SPLITS)), default="network", show_default=True,
    help="Which part of the measurements is held out at a time.",
)  # fmt: skip
@click.option("--gpu", "gpus", multiple=True, help="Only this device (for collectives: this platform).")
@click.option("--precision", "precisions", multiple=True, help="Only this precision.")
def accuracy(data: Path, split: str, gpus: tuple[str, ...], precisions: tuple[str, ...]) -> CommandResult:
    """Hold out published measurements, predict them from the others, and report the errors.

    The splits `network`, `family`, `gpu` and `source` hold out steps of whole networks. `layers` holds out one fifth
    of the shapes of single layers. `profile` holds out all batch sizes but the smallest, by class of work.
    `collectives` holds out message sizes and numbers of workers. `scaling` holds out networks, a batch size and numbers
    of nodes of training on several devices. `clusters` holds out one cluster or one source at a time. `training` holds
    out steps of language models by source, model size, number of nodes, parallelism or GPU. `pretraining` holds out
    steps of a tuned stack by device, network and precision. `energy` holds out measured powers by model, task and
    device, and `served` forecasts the time of servers and pipelines as well. `kernels` holds out the device and the
    engine of kernels, `server-steps` those, the network and the source of times per output token; `servers` simulates
    published servers with the shipped constants. `pictures` holds out models and devices of pictures and videos, and
    `local` devices and sources of published speeds of llama.cpp, MLX and ExLlama. `evidence` forecasts groups of
    measurements of which one, two and four are known. The page also shows the errors of
    simpler models on the same folds.
    """
    rows, page, pairs = SPLITS[split](Request(split, data, gpus, precisions))
    held_out = f"one {split} left out at a time" if split in STEP_SPLITS else split
    title = f"Predicted against measured: {held_out}"
    return CommandResult(
        lambda: {"rows": [msgspec.to_builtins(row) for row in rows]},
        page,
        lambda: [pairs(), title, "", _heading(split, rows)],
    )


def _heading(split: str, rows: Sequence[Any]) -> str:
    """Return the title of the chart with the figures of the table's headline; empty for rows that are no groups."""
    from paleo_lite.reporting.charts.accuracy import held_out_title

    return held_out_title(rows) if split in GROUPED_SPLITS else ""


@main.command(cls=AnswerCommand)
@click.argument("name", type=click.Choice(tuple(COMPARISONS)))
@click.option(
    "--data", type=click.Path(path_type=Path), envvar="PALEO_LITE_DATA", show_envvar=True,
    help="Folder of published data, which `wall`, `fine-tuning` and `denoisers` need.",
)  # fmt: skip
def compare(name: str, data: Path | None) -> CommandResult:
    """Compare published figures that no fit knows with their forecasts.

    `serving` compares published results of servers, some of which the fit of engines knows, and `amd` those of vLLM on
    MI300X, to which two factors are fitted. `training` compares steps on H100, `fine-tuning` those with LoRA,
    `mixtures` those of torchtitan, `mlperf` those in logs of MLPerf Training, `denoisers` its runs of FLUX.1,
    `offloaded` speeds of llama.cpp with layers on the host, `cards` those of different cards in one machine, and `wall`
    the watts of whole machines.
    """
    page = page_function(name)(data)
    return CommandResult(lambda: {"rows": page.csv_table.rows}, lambda: page)


@main.command(cls=AnswerCommand)
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, envvar="PALEO_LITE_DATA", show_envvar=True,
    help="Folder of published measurements.",
)  # fmt: skip
@click.argument("words", nargs=-1)
def field(data: Path, words: tuple[str, ...]) -> CommandResult:
    """Ask the question of every measurement that people published, and compare the answers.

    With WORDS, only rows that contain all of them: `field llama-2-70b nvfp4`. Errors are grouped by kind of question,
    source and device; no fit knows these measurements.
    """
    from .field.compare import compare_field, field_page

    with progress_of_long_answers("questions"):
        rows = compare_field(data, words)
    return CommandResult(lambda: {"rows": msgspec.to_builtins(rows)}, lambda: field_page(rows))


@main.command(cls=AnswerCommand)
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, envvar="PALEO_LITE_DATA", show_envvar=True,
    help="Folder of published measurements.",
)  # fmt: skip
@click.argument("kinds", nargs=-1, type=click.Choice(("router", "tier", "split", "draft")))
def fleet(data: Path, kinds: tuple[str, ...]) -> CommandResult:
    """Compare published gains of fleets with their forecasts: by routers, tiers, split pools and drafts."""
    from .fleet.gains import compare_gains, gains_page

    with progress_of_long_answers("gains"):
        rows = compare_gains(data, kinds)
    return CommandResult(lambda: {"rows": msgspec.to_builtins(rows)}, lambda: gains_page(rows))


@main.command(params=[DEBUG])
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def ship(data: Path, folder: Path) -> None:
    """Fit the published measurements in DATA; write all calibrations into FOLDER."""
    from .diffusion.ship import ship_pictures
    from .energy.ship import ship_energy
    from .engines.ship import ship_engines
    from .evidence.ship import ship_evidence
    from .local.ship import ship_local
    from .power import ship_power
    from .reinforcement.hold_out import ship_rl
    from .ship import ship_devices, ship_links, ship_platforms
    from .training.hold_out import ship_training
    from .training.hold_out_pretraining import ship_stack

    if not (data / "measured").is_dir():
        raise BadFile(f"{data / 'measured'}: cannot be read (no such folder)")
    click.echo(f"power: {ship_power(folder).held_out}")
    for name, text in (
        *ship_devices(data, folder),
        *ship_links(data / "measured", folder / "links"),
        *ship_platforms(data, folder / "platforms"),
        *ship_training(data, folder),
        *ship_engines(data, folder),
        *ship_local(data, folder),
        *ship_pictures(data, folder),
        *ship_rl(data, folder),
        *ship_stack(data, folder),
        *ship_evidence(data, folder),
    ):
        click.echo(f"{name}: {text}")
    click.echo(f"energy: {ship_energy(data, folder).held_out}")


@main.command(params=[DEBUG])
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def order(folder: Path) -> None:
    """Order the devices of the pool in FOLDER by their data sheets (needed after adding a device without data)."""
    from paleo_lite.calibration.pool import POOL_FILE, read_pool

    from .ordering import write_pool
    from .ship import with_order

    pool = with_order(read_pool(folder / POOL_FILE))
    write_pool(pool, folder / POOL_FILE)
    click.echo(f"{len(pool.order)} shifted")


if __name__ == "__main__":
    main(prog_name="python -m validation")
