"""``paleo-lite pipeline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadValue, UnknownPrecision
from ..units import element_bytes
from . import options
from .command import Answer, command
from .options import WHOLE, Number, Quantity

if TYPE_CHECKING:
    from ..networks import Network
    from ..timing import Prediction


@command()
@options.network()
@options.gpu()
@click.option("--storage", default="nvme", show_default=True, metavar="LINK|RATE",
              help="hdd, ssd, nvme, any other link, a rate such as '500 MB/s', or memory.")  # fmt: skip
@click.option(
    "--random-reads",
    type=Quantity("IOPS"),
    metavar="COUNT",
    help="Small reads per second at random places, such as 90k.",
)
@click.option("--access", type=click.Choice(["sequential", "random"]), default="sequential", show_default=True,
              help="How samples are read.")  # fmt: skip
@click.option(
    "--sample-bytes",
    type=Quantity("B"),
    default="110k",
    show_default=True,
    metavar="SIZE",
    help="Size of one sample in storage.",
)
@click.option("--workers", type=WHOLE, default=8, show_default=True, help="Decoding workers, one core each.")
@click.option(
    "--decode-rate",
    type=Number(),
    metavar="RATE",
    help="Samples per second and worker. [default: 100]",
)
@click.option("--decoded", is_flag=True, help="Samples are stored decoded and augmented.")
@click.option(
    "--decoded-bytes",
    type=Quantity("B"),
    metavar="SIZE",
    help="Size of one sample as copied. [default: its numbers in the precision]",
)
@click.option("--host-link", metavar="LINK|RATE", help="Link that copies go over. [default: the device's own]")
@click.option("--no-pinned", is_flag=True, help="Copies from pageable memory.")
@click.option("--no-overlap", is_flag=True, help="Load, copy and compute one after the other.")
@options.precision()
@options.batch_size(default=32, help="Samples per step.")
@options.phase(default="training")
@click.option(
    "--devices", type=WHOLE, default=1, show_default=True, help="Devices of this kind that share storage and workers."
)
@options.ppp()
@options.calibration()
@options.image_size()
@options.inputs()
@options.hardware_files()
def pipeline(
    network: str,
    gpu: str,
    storage: str,
    random_reads: float | None,
    access: str,
    sample_bytes: float,
    workers: int,
    decode_rate: float | None,
    decoded: bool,
    decoded_bytes: float | None,
    host_link: str | None,
    no_pinned: bool,
    no_overlap: bool,
    precision: str,
    batch_size: int,
    phase: str,
    devices: int,
    ppp: float | None,
    calibration: str | None,
    image_size: int | None,
    inputs: tuple[tuple[int, ...], ...],
    hardware_files: tuple[Path, ...],
) -> Answer:
    """Say whether storage, CPU and host link can feed NETWORK on a device, what limits, and what would help most.

    \b
      paleo-lite pipeline resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64
      paleo-lite pipeline resnet50 --gpu k80-die --storage hdd --access random --workers 4
      paleo-lite pipeline alexnet --gpu p100-sxm2 --no-pinned --no-overlap
    """
    from ..api.prediction import predict, resolve
    from ..hardware import find_device
    from ..input_pipeline.feeding import DECODE_PER_WORKER_S, Feeding, feed
    from ..input_pipeline.places import SEPARATE_NODES, find_link, find_store, link_of_host, sources
    from ..input_pipeline.remedies import Upgrades, plan, remedies, rules
    from ..report.feeding import feeding_dict, feeding_page

    if decoded and decode_rate is not None:
        raise BadValue("--decoded samples need no decoding: leave --decode-rate out")
    device = find_device(gpu, hardware_files)
    found = resolve(network, image_size, inputs)
    asked: dict[str, Any] = {"gpu": device, "batch_size": batch_size, "phase": phase, "ppp": ppp}
    prediction = predict(found, precision=precision, calibration=calibration, **asked)
    link, rate = link_of_host(device) if host_link is None else find_link(host_link)
    feeding = Feeding(
        device_per_s=_rate(prediction),
        batch_size=batch_size,
        sample_bytes=sample_bytes,
        decoded_bytes=decoded_bytes or found.input_elements * element_bytes(precision),
        store=find_store(storage, random_reads),
        access=access,
        workers=workers,
        decode_per_worker_s=None if decoded else decode_rate or DECODE_PER_WORKER_S,
        link=link,
        link_bytes_per_s=rate,
        pinned=not no_pinned,
        overlap=not no_overlap,
        devices=devices,
    )
    fed = feed(feeding)
    nvme = find_store("nvme")
    assert nvme is not None
    plain, direct = (find_link(name) for name in SEPARATE_NODES)
    others = Upgrades(nvme, (plain, direct), float(found.input_elements), _in_fp16(found, precision, asked))
    subject = {"network": found.name, "gpu": device.id, "precision": precision, "phase": phase,
               "storage": storage, "host_link": link, "time_model": prediction.model.name}  # fmt: skip
    parts = rules(fed), remedies(fed, others), plan(fed, others)
    notes = (*sources(feeding, decode_rate is not None), *prediction.notes)
    several = f"{devices} x " if devices > 1 else ""
    words = f"{found.name} on {several}{device.name}, {precision} {phase}"
    return Answer(
        lambda: {**feeding_dict(fed, subject, *parts), "notes": list(notes)},
        lambda: feeding_page(fed, words, *parts, notes),
    )


def _rate(prediction: Prediction) -> float:
    if prediction.throughput_per_s is None:
        raise BadValue(f"{prediction.network} takes no time by the counts, so there is nothing to feed")
    return prediction.throughput_per_s


def _in_fp16(network: Network, precision: str, asked: dict[str, Any]) -> tuple[float, float] | None:
    from ..api.prediction import predict

    if precision not in ("fp32", "tf32", "fp64"):
        return None
    try:
        rate = _rate(predict(network, precision="fp16", **asked))
        return rate, network.input_elements * element_bytes("fp16")
    except UnknownPrecision:
        return None
