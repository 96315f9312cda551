"""What feeds a device: `feeding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadValue, UnknownPrecision
from ..hardware import Device, find_device
from ..input_pipeline.feeding import DECODE_PER_WORKER_S, Feeding, feed
from ..input_pipeline.places import SEPARATE_NODES, find_link, find_store, link_of_host, sources
from ..input_pipeline.remedies import Upgrades, plan, remedies, rules
from ..networks import Network
from ..report.document import Shown
from ..report.feeding import feeding_dict, feeding_page
from ..timing import Prediction
from ..units import element_bytes, parse_quantity
from .prediction import predict, resolve
from .profiles import Paths, paths_of

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration


def feeding(
    network: str | Network | nn.Module,
    *,
    gpu: str | Device,
    storage: str = "nvme",
    random_reads: float | str | None = None,
    access: str = "sequential",
    sample_bytes: float | str = "110k",
    workers: int = 8,
    decode_rate: float | None = None,
    decoded: bool = False,
    decoded_bytes: float | str | None = None,
    host_link: str | None = None,
    pinned: bool = True,
    prefetch: bool = True,
    precision: str = "fp32",
    batch_size: int = 32,
    phase: str = "training",
    devices: int = 1,
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    image_size: int | None = None,
    inputs: Sequence[str | Sequence[int]] = (),
    hardware_files: Paths = (),
) -> Shown:
    """Say whether storage, CPU and host link can feed a network on a device, what limits, and what would help most.

    Parameters
    ----------
    network, gpu, precision, phase, ppp, calibration, image_size, inputs, hardware_files
        As for `paleo_lite.predict`.
    storage : str
        ``hdd``, ``ssd``, ``nvme``, any other link, a rate such as ``"500 MB/s"``, or ``memory``.
    random_reads : float or str, optional
        Small reads per second at random places, such as ``"90k"``.
    access : {"sequential", "random"}
        How samples are read.
    sample_bytes, decoded_bytes : float or str
        Of one sample, in storage and as copied; copied it has without one its numbers in the precision.
    workers : int
        Decoding workers, one core each.
    decode_rate : float, optional
        Samples per second and worker.
    decoded : bool
        Samples are stored decoded and augmented.
    host_link : str, optional
        Link or rate that copies go over; without it the device's own.
    pinned, prefetch : bool
        Copies from pinned memory; batches loaded and copied ahead, while the device computes.
    batch_size : int
        Samples per step.
    devices : int
        Devices of this kind that share storage and workers.

    Returns
    -------
    Shown
        With ``throughput_per_s``, ``utilisation``, ``stages``, ``remedies`` and ``plan`` in its `to_dict`.

    Raises
    ------
    PaleoError
        One of its classes.
    """
    if decoded and decode_rate is not None:
        raise BadValue("--decoded samples need no decoding: leave --decode-rate out")
    device = find_device(gpu, paths_of(hardware_files)) if isinstance(gpu, str) else gpu
    found = resolve(network, image_size, inputs)
    asked: dict[str, Any] = {"gpu": device, "batch_size": batch_size, "phase": phase, "ppp": ppp}
    prediction = predict(found, precision=precision, calibration=calibration, **asked)
    link, rate = link_of_host(device) if host_link is None else find_link(host_link)
    copied = found.input_elements * element_bytes(precision)
    feeding = Feeding(
        device_per_s=_rate(prediction),
        batch_size=batch_size,
        sample_bytes=parse_quantity(sample_bytes, "B"),
        decoded_bytes=copied if decoded_bytes is None else parse_quantity(decoded_bytes, "B"),
        store=find_store(storage, None if random_reads is None else parse_quantity(random_reads, "IOPS")),
        access=access,
        workers=workers,
        decode_per_worker_s=None if decoded else decode_rate or DECODE_PER_WORKER_S,
        link=link,
        link_bytes_per_s=rate,
        pinned=pinned,
        prefetch=prefetch,
        devices=devices,
    )
    fed = feed(feeding)
    nvme = find_store("nvme")
    assert nvme is not None
    plain, direct = (find_link(name) for name in SEPARATE_NODES)
    others = Upgrades(nvme, (plain, direct), float(found.input_elements), _in_fp16(found, precision, asked))
    subject = {"network": found.name, "gpu": device.id, "precision": precision, "phase": phase,
               "storage": storage, "host_link": link, "time_model": prediction.model.name}  # fmt: skip
    parts = prediction, rules(fed), remedies(fed, others), plan(fed, others)
    notes = (*sources(feeding, decode_rate is not None), *prediction.notes)
    several = f"{devices} x " if devices > 1 else ""
    words = f"{found.name} on {several}{device.name}, {precision} {phase}"
    return Shown({**feeding_dict(fed, subject, *parts), "notes": list(notes)}, feeding_page(fed, words, *parts, notes))


def _rate(prediction: Prediction) -> float:
    if prediction.throughput_per_s is None:
        raise BadValue(f"{prediction.network} takes no time by the counts, so there is nothing to feed")
    return prediction.throughput_per_s


def _in_fp16(network: Network, precision: str, asked: dict[str, Any]) -> tuple[float, float] | None:
    if precision not in ("fp32", "tf32", "fp64"):
        return None
    try:
        rate = _rate(predict(network, precision="fp16", **asked))
        return rate, network.input_elements * element_bytes("fp16")
    except UnknownPrecision:
        return None
