"""``paleo-lite calibrate``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ..calibration.calibrate import calibrate as fit_device
from ..calibration.calibrate import held_out_error, measurements_of
from ..calibration.measurements import TEMPLATE, is_measurements, read_measurements
from ..calibration.pool import execution_of, pool_prior, software_of
from ..calibration.ppp import calibrate_ppp
from ..calibration.store import make_calibration, write_calibration
from ..errors import BadValue
from ..hardware import Machine, find_device
from ..networks import find_network
from ..report.calibrations import calibration_page
from ..report.ppp import ppp_page
from ..timing.models import LEARNT, PppModel
from ..version import __version__
from . import options
from .command import Answer, command
from .options import Printing


@command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@options.gpu(required=False, help="Device that was measured.")
@options.precision()
@click.option("--network", metavar="NETWORK", help="What was profiled; needed for profiles.")
@click.option(
    "--time-model", type=options.MODELS, default=LEARNT, show_default=True,
    help="What to learn: calibrated, all parameters; ppp, PALEO's one, the platform percent of peak.",
)  # fmt: skip
@options.batch_size(default=None, help="Only profiles of this batch size.")
@options.name_pattern()
@options.output(help="The TOML to write.")
@options.force()
@click.option("--date", default="", cls=Printing, help="When it was measured, for the record.")
@click.option("--template", is_flag=True, cls=Printing, help="Print a measurements CSV to fill in.")
@options.hardware_files()
def calibrate(
    paths: tuple[Path, ...],
    gpu: str | None,
    precision: str,
    network: str | None,
    time_model: str,
    batch_size: int | None,
    name_pattern: str | None,
    output: Path | None,
    force: bool,
    date: str,
    template: bool,
    hardware_files: tuple[Path, ...],
) -> Answer | None:
    """Learn a device's parameters from measured steps in PATHS: measurements CSVs, profiles, folders of profiles.

    Of a profile the forward and the backward pass of a steady iteration are taken. The fit starts from the best
    that is known of the device: what was measured of it and of others, under the software that the CSV names.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite calibrate measured.csv --gpu k40m --precision fp32 -o k40m.toml
      paleo-lite calibrate run_*.gzip --gpu k40m --network resnet50 -o k40m.toml
      paleo-lite calibrate run_*.gzip --gpu k40m --network resnet50 --time-model ppp
      paleo-lite predict vgg16 --gpu k40m --calibration k40m.toml
    """
    if template:
        click.echo(TEMPLATE, nl=False)
        return None
    if not paths or gpu is None:
        raise click.UsageError("a calibration takes measurements CSVs and --gpu; --template prints a CSV to fill in")
    if time_model not in (LEARNT, PppModel.name):
        raise BadValue(f"the {time_model} model has nothing to learn: --time-model takes {LEARNT} or {PppModel.name}")
    options.check_new(output, force=force)
    device = find_device(gpu, hardware_files)
    tables = [path for path in paths if is_measurements(path)]
    profiles = [path for path in paths if path not in tables]
    everything = [row for path in tables for row in read_measurements(path)]
    files = list(tables)
    if profiles:
        if network is None:
            raise click.UsageError(f"{profiles[0]} is not a measurements CSV: for profiles give --network")
        options.need_pyarrow()
        from ..efficiency.files import find_files

        files += find_files(profiles)
    if time_model == PppModel.name:
        steps = measurements_of(everything, device, precision, hardware_files) if everything else []
        found = calibrate_ppp(
            steps, profiles, Machine(device), precision, network, batch_size, name_pattern,
            inputs=files, date=date, version=__version__,
        )  # fmt: skip
        if output is not None:
            write_calibration(found, output, force)
        return Answer(lambda: msgspec.to_builtins(found), lambda: ppp_page(found))
    if network is not None and profiles:
        from ..calibration.from_profiles import measure_profiles

        network = find_network(network).name
        everything += measure_profiles(
            profiles, device.id, network, precision, batch_size, name_pattern, hardware_files
        )
    chosen = measurements_of(everything, device, precision, hardware_files)
    prior = pool_prior(device, precision, execution_of(chosen), software_of(chosen))
    measurements, fit = fit_device(chosen, device, precision, prior)
    error = held_out_error(measurements, device, precision, prior)
    made = make_calibration(
        device.id, precision, measurements, fit, held_out_error=error, inputs=files, date=date, version=__version__
    )
    if output is not None:
        write_calibration(made, output, force)

    def drawn() -> list[object]:
        from ..report.charts.pairs import fitted_pairs

        off = "" if made.held_out_error is None else f"; {made.held_out_error:.1%} off on held-out networks"
        return [
            fitted_pairs(measurements, fit),
            f"Fit of {device.name}, {precision}",
            f"single measurements scatter {made.scatter:.1%} around the fit{off}",
        ]

    return Answer(lambda: msgspec.to_builtins(made), lambda: calibration_page(made), drawn)
