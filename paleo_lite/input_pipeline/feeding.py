"""What feeds a device: storage, decoding on the CPU, the copy to the device, and the device's own work.

Stages with buffers between them, filled ahead (prefetching), run side by side: the slowest sets the pace. Without them
their times add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..distributed.links import link_rate
from ..errors import BadValue, UnknownName
from ..machines import Device, read_links

DECODE_PER_WORKER_S = 100.0
DECODE_SOURCE = (
    "1,600 ImageNet images/s decoded and augmented by 16 workers of a Xeon E5-2630 v4 (MXNet's ImageIter, "
    "apache/mxnet pull request 8437)"
)
"""Samples per second of one worker. Measure your own with `measure.mock_trainer`."""

SAMPLE = "110k"
"""Bytes of an ImageNet JPEG, on average."""

ACCESSES = ("sequential", "random")
"""How samples are read."""

PINNED_SHARE = 0.771
PINNED_SOURCE = "bandwidthTest on a P100 PCIe: 12.15 of 15.75 GB/s (mpicbg-scicomp/gearshifft pull request 82)"
"""Share of a host link's bandwidth that copies from pinned memory reach."""

PAGEABLE_BYTES_PER_S = 5.5e9
PAGEABLE_SOURCE = (
    "5 to 6 GB/s from pageable memory beside 11 to 12 GB/s from pinned (rapidsai/dask-cuda pull request 98)"
)
"""Copies from pageable memory go through a buffer of the driver: the host's own copying bounds them, not the link."""


class Store(msgspec.Struct, frozen=True):
    """Where samples lie.

    Attributes
    ----------
    bandwidth_bytes_per_s : float
        Sequential reads.
    random_reads_per_s : float or None
        Small reads at random places; None where no source gives it.
    expected_bytes_per_s : float or None
        What to expect of this kind by rule of thumb: 150 MB/s of a disk, 3,000 MB/s of NVMe (see `remedies`).
    """

    name: str
    bandwidth_bytes_per_s: float
    random_reads_per_s: float | None = None
    expected_bytes_per_s: float | None = None


class Feeding(msgspec.Struct, frozen=True):
    """A device and what feeds it.

    Attributes
    ----------
    device_per_s : float
        Samples per second that one device takes when it never waits.
    batch_size : int
        Of one device.
    sample_bytes, decoded_bytes : float
        Of one sample, in storage and as it is copied to the device.
    store : Store or None
        None: the samples lie in the host's memory.
    access : {"sequential", "random"}
    workers : int
        Processes or threads that decode, a core each.
    decode_per_worker_s : float or None
        Samples per second and worker; None: nothing to decode.
    link : str
        Name of the host link.
    link_bytes_per_s : float
        Its bandwidth in one direction.
    network : tuple of str and float, or None
        Name and bytes per second of a network that decoded samples come over: then storage and decoding are elsewhere.
    pinned, prefetch : bool
        Copies from pinned memory; batches loaded ahead, so that stages run side by side.
    devices : int
        Devices of the node that share storage and workers, each with a host link of its own.
    """

    device_per_s: float
    batch_size: int
    sample_bytes: float
    decoded_bytes: float
    store: Store | None
    access: str
    workers: int
    decode_per_worker_s: float | None
    link: str
    link_bytes_per_s: float
    network: tuple[str, float] | None = None
    pinned: bool = True
    prefetch: bool = True
    devices: int = 1

    @property
    def wanted_per_s(self) -> float:
        """Samples per second that all devices take when none of them waits."""
        return self.devices * self.device_per_s

    def __post_init__(self) -> None:
        for name, value in (
            ("the device's rate", self.device_per_s),
            ("the number of devices", self.devices),
            ("the batch", self.batch_size),
            ("the bytes of a sample", self.sample_bytes),
            ("the bytes of a decoded sample", self.decoded_bytes),
            ("the number of workers", self.workers),
            ("the rate of the host link", self.link_bytes_per_s),
            ("the decode rate", 1.0 if self.decode_per_worker_s is None else self.decode_per_worker_s),
        ):
            if not (math.isfinite(value) and value > 0):
                raise BadValue(f"{name} must be above 0, not {value:g}")
        if self.access not in ACCESSES:
            raise BadValue(f"access must be {' or '.join(ACCESSES)}, not {self.access!r}")
        if self.access == "random" and self.store is not None and self.store.random_reads_per_s is None:
            raise BadValue(
                f"nothing is known of random reads from {self.store.name}: known are hdd, ssd and nvme; "
                "else say how many a second it does: --random-reads 90k"
            )


class Stage(msgspec.Struct, frozen=True):
    """One stage.

    Attributes
    ----------
    name : str
        ``storage``, ``network``, ``decode``, ``copy`` or ``device``.
    what : str
        In words.
    workers : int or None
        How many share the work, where that is a choice.
    per_s : float
        Samples per second on its own.
    bytes_per_s : float or None
        The same in the bytes that it handles; None for the device.
    beside : bool
        Whether it runs beside all others.
    """

    name: str
    what: str
    workers: int | None
    per_s: float
    bytes_per_s: float | None
    beside: bool


def stages(feeding: Feeding) -> tuple[Stage, ...]:
    """The stages, in the order that samples pass through them."""
    chain = []
    beside = feeding.prefetch
    if feeding.network is not None:
        name, rate = feeding.network
        chain.append(Stage("network", f"decoded samples over {name}", None, rate / feeding.decoded_bytes, rate, beside))
    else:
        if feeding.store is not None:
            per_s = _reads_per_s(feeding.store, feeding)
            what = f"{feeding.access} reads from {feeding.store.name}"
            chain.append(Stage("storage", what, None, per_s, per_s * feeding.sample_bytes, beside))
        if feeding.decode_per_worker_s is not None:
            per_s = feeding.workers * feeding.decode_per_worker_s
            what = "decode and augment on the CPU"
            chain.append(Stage("decode", what, feeding.workers, per_s, per_s * feeding.sample_bytes, beside))
    rate = PINNED_SHARE * feeding.link_bytes_per_s
    if not feeding.pinned:
        rate = min(rate, PAGEABLE_BYTES_PER_S)
    if feeding.pinned:
        rate *= feeding.devices  # the host copies for one device after another
    beside = beside and feeding.pinned
    each = f" of each of {feeding.devices}" if feeding.devices > 1 else ""
    what = f"{'pinned' if feeding.pinned else 'pageable'} memory over {feeding.link}{each}"
    chain.append(Stage("copy", what, None, rate / feeding.decoded_bytes, rate, beside))
    own = f"the own work of {feeding.devices} devices" if feeding.devices > 1 else "the device's own work"
    chain.append(Stage("device", own, None, feeding.wanted_per_s, None, beside))
    return tuple(chain)


def _reads_per_s(store: Store, feeding: Feeding) -> float:
    """Samples per second; at random places each costs a seek, in the widest sense, and its transfer."""
    transfer_s = feeding.sample_bytes / store.bandwidth_bytes_per_s
    if feeding.access == "sequential":
        return 1 / transfer_s
    assert store.random_reads_per_s is not None
    return 1 / (1 / store.random_reads_per_s + transfer_s)


class Fed(msgspec.Struct, frozen=True):
    """How well a device is fed.

    Attributes
    ----------
    throughput_per_s : float
        Samples per second through all stages.
    bottleneck : Stage
        What sets the pace, or takes most of the time where stages take turns.
    """

    feeding: Feeding
    stages: tuple[Stage, ...]
    throughput_per_s: float
    bottleneck: Stage

    @property
    def utilisation(self) -> float:
        """Share of the time that the device works."""
        return self.throughput_per_s / self.feeding.wanted_per_s

    @property
    def compute_s(self) -> float:
        """Seconds that the device works on a batch: t3 - t2 in `paleo_lite.measurement.StepTimer`."""
        return self.feeding.batch_size / self.feeding.device_per_s

    @property
    def waiting_s(self) -> float:
        """Seconds that it waits for a batch: t2 - t1 in `paleo_lite.measurement.StepTimer`."""
        return self.feeding.devices * self.feeding.batch_size / self.throughput_per_s - self.compute_s

    @property
    def loading_per_s(self) -> float:
        """Samples per second that all stages before the device could deliver."""
        return _through(self.stages[:-1], self.feeding.prefetch)

    @property
    def needed_bytes_per_s(self) -> float | None:
        """What storage has to deliver for a device that never waits; None where there is none."""
        read = self.feeding.store is not None and self.feeding.network is None
        return self.feeding.wanted_per_s * self.feeding.sample_bytes if read else None

    @property
    def needed_workers(self) -> int | None:
        """Workers that decode as fast as the device takes samples."""
        rate = self.feeding.decode_per_worker_s
        local = rate is not None and self.feeding.network is None
        return math.ceil(self.feeding.wanted_per_s / rate - 1e-9) if local and rate else None


def feed(feeding: Feeding) -> Fed:
    """What gets through all stages.

    With prefetching there are buffers between the stages, and throughput is that of the slowest; a copy from pageable
    memory holds the host up, so that it and the device's work take turns. Without it all take turns: times per sample
    add up.
    """
    chain = stages(feeding)
    groups = [[stage] for stage in chain]
    if feeding.prefetch and not feeding.pinned:
        groups = [*groups[:-2], [chain[-2], chain[-1]]]
    throughput = min(_through(group, False) for group in groups) if feeding.prefetch else _through(chain, False)
    slowest = min(groups, key=lambda group: _through(group, False)) if feeding.prefetch else list(chain)
    return Fed(feeding, chain, throughput, min(slowest, key=lambda stage: stage.per_s))


def _through(chain: Sequence[Stage], beside: bool) -> float:
    return min(stage.per_s for stage in chain) if beside else 1 / sum(1 / stage.per_s for stage in chain)


# Where samples lie and what they are copied over ----------------------------------------------------------------------


EXPECTED = {"hdd": 150e6, "nvme": 3000e6}
"""What the course slides "Performance and Profiling" say to expect, in bytes per second, by the storage's id."""

SEPARATE_NODES = ("course-ethernet10", "course-mellanox56")
"""What a separate node is reached over, plainly and with RDMA: networks of the same slides."""


def find_store(text: str, random_reads_per_s: float | None = None) -> Store | None:
    """Storage by the name of a link, or by a rate such as ``500 MB/s``; None for ``memory``.

    Parameters
    ----------
    random_reads_per_s : float, optional
        Small reads at random places; without it those on record.

    Raises
    ------
    UnknownName
        If there is no such link.
    """
    if text == "memory":
        return None
    links = read_links().link
    try:
        name, rate = find_link(text)
    except UnknownName:
        kinds = [name for name, link in links.items() if link.kind == "storage"]
        raise UnknownName("storage", text, [*kinds, "memory"], "A rate such as '500 MB/s' works as well.") from None
    listed = links[name].random_reads_per_s if name in links else None
    return Store(name, rate, random_reads_per_s or listed, EXPECTED.get(name.partition("-")[0]))


def find_link(text: str) -> tuple[str, float]:
    """Id and bytes per second, as on the data sheet, of a link of the registry or of a rate such as ``500 MB/s``."""
    rate = link_rate(text.strip(), ppp=1.0)
    return rate.name, rate.bandwidth_bytes_per_s


def link_of_host(device: Device) -> tuple[str, float]:
    """Id and bytes per second of the link between a device and its host.

    Raises
    ------
    BadValue
        If its hardware file names none.
    """
    links = read_links().link
    for attached in device.links:
        if attached.link in links and links[attached.link].kind == "host":
            return attached.link, links[attached.link].bandwidth_bytes_per_s
    raise BadValue(f"the hardware file of {device.name} has no host link: give one with --host-link, such as pcie3")


def sources(feeding: Feeding, decode_rate_given: bool) -> list[str]:
    """Where the rates of copies and of decoding come from that nobody gave."""
    notes = [f"copies: {PINNED_SOURCE if feeding.pinned else PAGEABLE_SOURCE}"]
    if feeding.decode_per_worker_s is not None and not decode_rate_given:
        notes.append(f"decoding: {DECODE_SOURCE}; measure your own: paleo_lite.measurement.mock_trainer, --decode-rate")
    return notes
