"""`feeding`: whether the input pipeline keeps a device busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .completion import LINK
from .names import Names, PrecisionNames
from .option import option
from .records import DEVICE_GROUP, NETWORK_GROUP, DeviceOptions, NetworkAsked, PppOptions, SizeOptions
from .values import INTEGER, Number, Quantity

STORAGE_GROUP = "Storage"
HOST_GROUP = "Host"


@dataclass(frozen=True)
class Feeding(PppOptions, DeviceOptions, SizeOptions, NetworkAsked):
    """Predict whether storage, decoding and the host link can keep a device busy, and which change would help most."""

    compares: ClassVar[bool] = False

    storage: str = option(
        "nvme", group=STORAGE_GROUP, type=LINK, metavar="LINK|RATE",
        help="hdd, ssd, nvme, any other link, a rate such as '500 MB/s', or memory.",
    )  # fmt: skip
    random_reads: float | str | None = option(
        group=STORAGE_GROUP, type=Quantity("IOPS"), metavar="COUNT",
        help="Small random reads per second of the storage, such as 90k.",
    )  # fmt: skip
    access: str = option(
        "sequential", group=STORAGE_GROUP, type=Names("access", ".input_pipeline.feeding:ACCESSES"),
        help="Access pattern of the samples: sequential or random.",
    )  # fmt: skip
    sample_bytes: float | str = option(
        "110k", group=STORAGE_GROUP, type=Quantity("B"), metavar="SIZE", help="Size of one sample in storage."
    )
    workers: int = option(8, group=HOST_GROUP, type=INTEGER, help="Decoding workers, one CPU core each.")
    decode_rate: float | None = option(
        group=HOST_GROUP, type=Number(), metavar="RATE", help="Samples per second and worker. [default: 100]"
    )
    decoded: bool = option(False, group=STORAGE_GROUP, help="Samples are stored decoded and augmented.")
    decoded_bytes: float | str | None = option(
        group=HOST_GROUP, type=Quantity("B"), metavar="SIZE",
        help="Size of one decoded sample. [default: the elements of the network input in the precision]",
    )  # fmt: skip
    host_link: str | None = option(
        group=HOST_GROUP, type=LINK, metavar="LINK|RATE",
        help="Link or rate of host-to-device copies. [default: the device's own link]",
    )  # fmt: skip
    no_pinned: bool = option(False, group=HOST_GROUP, help="Copy from pageable memory.")
    no_prefetch: bool = option(
        False, group=HOST_GROUP, help="Load, copy and compute one after the other, without prefetching."
    )
    precision: str = option(
        "fp32", group=NETWORK_GROUP, type=PrecisionNames("precision", ".units:PRECISION_BYTES"),
        help="Precision of the arithmetic.",
    )  # fmt: skip
    batch_size: int = option(32, group=NETWORK_GROUP, type=INTEGER, help="Samples per step.")
    phase: str = option(
        "training", group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES"),
        help="training is forward, backward and update; forward is the forward pass of a training step.",
    )  # fmt: skip
    devices: int = option(
        1, group=DEVICE_GROUP, type=INTEGER,
        help="Number of devices of this kind that share the storage and the workers.",
    )  # fmt: skip
