"""What feeds a device: `feeding`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..architectures import Network
from ..errors import BadValue, UnknownPrecision
from ..input_pipeline.feeding import (
    DECODE_PER_WORKER_S,
    SAMPLE,
    SEPARATE_NODES,
    Feeding,
    feed,
    find_link,
    find_store,
    link_of_host,
    sources,
)
from ..input_pipeline.remedies import Upgrades, plan, remedies, rules
from ..machines import Device, find_device
from ..reporting.document import Shown
from ..reporting.feeding import feeding_dict, feeding_page
from ..timing import Prediction
from ..units import element_bytes, parse_quantity
from .prediction import predict, resolve
from .question import OnDevice, asked, paths_of

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration


class _OfNetwork(OnDevice, frozen=True):
    network: str | Network | nn.Module


class FeedingQuestion(_OfNetwork, frozen=True, kw_only=True):
    """What `feeding` is asked; see there."""

    storage: str = "nvme"
    random_reads: float | str | None = None
    access: str = "sequential"
    sample_bytes: float | str = SAMPLE
    workers: int = 8
    decode_rate: float | None = None
    decoded: bool = False
    decoded_bytes: float | str | None = None
    host_link: str | None = None
    pinned: bool = True
    prefetch: bool = True
    batch_size: int = 32
    phase: str = "training"
    devices: int = 1
    ppp: float | None = None
    calibration: str | Calibration | None = None
    image_size: int | None = None
    inputs: Sequence[str | Sequence[int]] = ()

    def __post_init__(self) -> None:
        if self.decoded and self.decode_rate is not None:
            raise BadValue("--decoded samples need no decoding: leave --decode-rate out")

    def fed(self, network: Network, device: Device, device_per_s: float) -> Feeding:
        """The device and what feeds it."""
        link, rate = link_of_host(device) if self.host_link is None else find_link(self.host_link)
        copied = network.input_elements * element_bytes(self.precision)
        return Feeding(
            device_per_s=device_per_s,
            batch_size=self.batch_size,
            sample_bytes=parse_quantity(self.sample_bytes, "B"),
            decoded_bytes=copied if self.decoded_bytes is None else parse_quantity(self.decoded_bytes, "B"),
            store=find_store(
                self.storage, None if self.random_reads is None else parse_quantity(self.random_reads, "IOPS")
            ),
            access=self.access,
            workers=self.workers,
            decode_per_worker_s=None if self.decoded else self.decode_rate or DECODE_PER_WORKER_S,
            link=link,
            link_bytes_per_s=rate,
            pinned=self.pinned,
            prefetch=self.prefetch,
            devices=self.devices,
        )


@partial(asked, FeedingQuestion)
def feeding(question: FeedingQuestion) -> Shown:
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
        Samples per second and worker; 100 without it.
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
    device = find_device(question.gpu, paths_of(question.hardware_files))
    precision, phase = question.precision, question.phase
    network = resolve(question.network, question.image_size, question.inputs)
    same: dict[str, Any] = {
        "gpu": device, "batch_size": question.batch_size, "phase": phase, "ppp": question.ppp,
    }  # fmt: skip
    prediction = predict(network, precision=precision, calibration=question.calibration, **same)
    feeding = question.fed(network, device, _rate(prediction))
    fed = feed(feeding)
    nvme = find_store("nvme")
    assert nvme is not None
    plain, direct = (find_link(name) for name in SEPARATE_NODES)
    others = Upgrades(nvme, (plain, direct), float(network.input_elements), _in_fp16(network, precision, same))
    subject = {"network": network.name, "gpu": device.id, "precision": precision, "phase": phase,
               "storage": question.storage, "host_link": feeding.link, "time_model": prediction.model.name}  # fmt: skip
    parts = prediction, rules(fed), remedies(fed, others), plan(fed, others)
    notes = (*sources(feeding, question.decode_rate is not None), *prediction.notes)
    several = f"{question.devices} x " if question.devices > 1 else ""
    words = f"{network.name} on {several}{device.name}, {precision} {phase}"
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
