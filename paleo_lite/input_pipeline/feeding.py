"""Throughput of an input pipeline: storage, decoding on the CPU, the copy to the device, and the device's computation.

With prefetching there are buffers between the stages, which then run concurrently: the slowest stage sets the
throughput. Without prefetching the times of the stages add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..distributed.links import link_rate
from ..errors import BadValue, UnknownName
from ..machines import Device, read_links
from ..units import check_positive

DECODE_PER_WORKER_S = 100.0
DECODE_SOURCE = (
    "1,600 ImageNet images/s decoded and augmented by 16 workers of a Xeon E5-2630 v4 (MXNet's ImageIter, "
    "apache/mxnet pull request 8437)"
)
"""Samples per second that one worker decodes. `measure.mock_trainer` measures the rate of a machine."""

DEFAULT_SAMPLE_BYTES = "110k"
"""Mean bytes of an ImageNet JPEG."""

ACCESSES = ("sequential", "random")
"""Access patterns of reading samples."""

PINNED_SHARE = 0.771
PINNED_SOURCE = "bandwidthTest on a P100 PCIe: 12.15 of 15.75 GB/s (mpicbg-scicomp/gearshifft pull request 82)"
"""Share of a host link's bandwidth that copies from pinned memory reach."""

PAGEABLE_BYTES_PER_S = 5.5e9
PAGEABLE_SOURCE = (
    "5 to 6 GB/s from pageable memory, 11 to 12 GB/s from pinned memory (rapidsai/dask-cuda pull request 98)"
)
"""Bandwidth of copies from pageable memory, which the host's copies into a buffer of the driver limit, not the link."""


class Store(msgspec.Struct, frozen=True):
    """Storage of the samples."""

    name: str
    bandwidth_bytes_per_s: float  # of sequential reads
    random_reads_per_s: float | None = None  # small random reads; None if unknown
    # Bandwidth of this kind of storage by rule of thumb: 150 MB/s of a disk, 3,000 MB/s of NVMe (see `remedies`).
    expected_bytes_per_s: float | None = None


class InputPipeline(msgspec.Struct, frozen=True):
    """Devices of a node and the pipeline that provides their samples."""

    device_per_s: float  # samples per second that one device processes if it never waits
    batch_size: int  # samples per batch of one device
    sample_bytes: float  # of one sample in storage
    decoded_bytes: float  # of one sample as it is copied to the device
    store: Store | None  # None: samples are in host memory
    access: str  # pattern of reading samples: "sequential" or "random"
    workers: int  # processes or threads that decode, one core each
    decode_per_worker_s: float | None  # samples per second that one worker decodes; None: the samples need no decoding
    link: str  # name of the host link
    link_bytes_per_s: float  # bandwidth of the host link in one direction
    # Name and bandwidth in bytes per second of the network through which another node, which has the storage and the
    # decoding, sends decoded samples.
    network: tuple[str, float] | None = None
    pinned: bool = True  # whether samples are copied from pinned memory
    prefetch: bool = True  # whether batches are loaded ahead, so that the stages run concurrently
    devices: int = 1  # of the node, which share storage and workers; each has a host link of its own

    @property
    def demand_per_s(self) -> float:
        """Samples per second that all devices process if none of them waits."""
        return self.devices * self.device_per_s

    def __post_init__(self) -> None:
        for name, value in (
            ("throughput of the device", self.device_per_s),
            ("number of devices", self.devices),
            ("batch size", self.batch_size),
            ("sample size", self.sample_bytes),
            ("decoded sample size", self.decoded_bytes),
            ("number of workers", self.workers),
            ("bandwidth of the host link", self.link_bytes_per_s),
            ("decode rate", 1.0 if self.decode_per_worker_s is None else self.decode_per_worker_s),
        ):
            check_positive(f"the {name}", value, f"{value:g}", "> 0")
        if self.access not in ACCESSES:
            raise BadValue(f"`--access` must be {' or '.join(ACCESSES)} (got {self.access!r})")
        if self.access == "random" and self.store is not None and self.store.random_reads_per_s is None:
            raise BadValue(
                f"the random reads per second of {self.store.name} are unknown: give them, such as "
                "`--random-reads 90k`, or use hdd, ssd or nvme"
            )


class FeedStage(msgspec.Struct, frozen=True):
    """One stage of an input pipeline."""

    name: str  # ``storage``, ``network``, ``decode``, ``copy`` or ``device``
    description: str  # in one line
    workers: int | None  # None for a stage that has none
    per_s: float  # samples per second of this stage alone
    bytes_per_s: float | None  # that correspond to `per_s`; None for the device
    runs_concurrently: bool  # whether it runs concurrently with all other stages


def pipeline_stages(pipeline: InputPipeline) -> tuple[FeedStage, ...]:
    """Return the stages of a pipeline, in the order in which samples pass through them."""
    return (*_loading_stages(pipeline), _copy_stage(pipeline), _device_stage(pipeline))


def _loading_stages(pipeline: InputPipeline) -> list[FeedStage]:
    """Return the stages that load samples into host memory."""
    if pipeline.network is not None:
        name, bytes_per_s = pipeline.network
        return [
            FeedStage(
                name="network",
                description=f"decoded samples over {name}",
                workers=None,
                per_s=bytes_per_s / pipeline.decoded_bytes,
                bytes_per_s=bytes_per_s,
                runs_concurrently=pipeline.prefetch,
            )
        ]
    stages = []
    if pipeline.store is not None:
        per_s = _reads_per_s(pipeline.store, pipeline)
        stages.append(
            FeedStage(
                name="storage",
                description=f"{pipeline.access} reads from {pipeline.store.name}",
                workers=None,
                per_s=per_s,
                bytes_per_s=per_s * pipeline.sample_bytes,
                runs_concurrently=pipeline.prefetch,
            )
        )
    if pipeline.decode_per_worker_s is not None:
        per_s = pipeline.workers * pipeline.decode_per_worker_s
        stages.append(
            FeedStage(
                name="decode",
                description="decode and augment on the CPU",
                workers=pipeline.workers,
                per_s=per_s,
                bytes_per_s=per_s * pipeline.sample_bytes,
                runs_concurrently=pipeline.prefetch,
            )
        )
    return stages


def _copy_stage(pipeline: InputPipeline) -> FeedStage:
    """Return the stage that copies samples from host memory to the devices."""
    bytes_per_s = PINNED_SHARE * pipeline.link_bytes_per_s
    if pipeline.pinned:
        bytes_per_s *= pipeline.devices
    else:  # the host copies for one device after another
        bytes_per_s = min(bytes_per_s, PAGEABLE_BYTES_PER_S)
    memory = "pinned" if pipeline.pinned else "pageable"
    devices = f" to each of {pipeline.devices} devices" if pipeline.devices > 1 else ""
    return FeedStage(
        name="copy",
        description=f"{memory} memory over {pipeline.link}{devices}",
        workers=None,
        per_s=bytes_per_s / pipeline.decoded_bytes,
        bytes_per_s=bytes_per_s,
        runs_concurrently=pipeline.prefetch and pipeline.pinned,
    )


def _device_stage(pipeline: InputPipeline) -> FeedStage:
    """Return the computation of the devices as a stage."""
    return FeedStage(
        name="device",
        description=f"computation of {pipeline.devices} devices"
        if pipeline.devices > 1
        else "computation of the device",
        workers=None,
        per_s=pipeline.demand_per_s,
        bytes_per_s=None,
        runs_concurrently=pipeline.prefetch and pipeline.pinned,
    )


def _reads_per_s(store: Store, pipeline: InputPipeline) -> float:
    """Return the samples per second that are read; a random read costs an access and its transfer."""
    transfer_s = pipeline.sample_bytes / store.bandwidth_bytes_per_s
    if pipeline.access == "sequential":
        return 1 / transfer_s
    assert store.random_reads_per_s is not None
    return 1 / (1 / store.random_reads_per_s + transfer_s)


class PipelineThroughput(msgspec.Struct, frozen=True):
    """Predicted throughput of an input pipeline."""

    pipeline: InputPipeline
    stages: tuple[FeedStage, ...]
    throughput_per_s: float  # samples per second through all stages
    bottleneck: FeedStage  # the slowest stage; among stages that take turns, the one that takes most of the time

    @property
    def utilisation(self) -> float:
        """Fraction of the time in which the devices compute."""
        return self.throughput_per_s / self.pipeline.demand_per_s

    @property
    def compute_s(self) -> float:
        """Computation time of a device per batch: t3 - t2 in `paleo_lite.measurement.StepTimer`."""
        return self.pipeline.batch_size / self.pipeline.device_per_s

    @property
    def waiting_s(self) -> float:
        """Time that a device waits for a batch: t2 - t1 in `paleo_lite.measurement.StepTimer`."""
        step_s = self.pipeline.devices * self.pipeline.batch_size / self.throughput_per_s
        return step_s - self.compute_s

    @property
    def loading_per_s(self) -> float:
        """Samples per second that the stages before the device can deliver."""
        loading_stages = self.stages[:-1]
        if self.pipeline.prefetch:
            return min(stage.per_s for stage in loading_stages)
        return _serial_per_s(loading_stages)

    @property
    def needed_bytes_per_s(self) -> float | None:
        """Storage bandwidth at which the devices never wait; None if there is no storage."""
        if self.pipeline.store is None or self.pipeline.network is not None:
            return None
        return self.pipeline.demand_per_s * self.pipeline.sample_bytes

    @property
    def needed_workers(self) -> int | None:
        """Number of workers that decode as fast as the devices compute; None if there is nothing to decode."""
        rate = self.pipeline.decode_per_worker_s
        if rate is None or self.pipeline.network is not None:
            return None
        return math.ceil(self.pipeline.demand_per_s / rate - 1e-9)


def predict_throughput(pipeline: InputPipeline) -> PipelineThroughput:
    """Predict the throughput of an input pipeline.

    With prefetching the throughput is that of the slowest stage. A copy from pageable memory blocks the host, so that
    it takes turns with the computation of the device. Without prefetching all stages take turns: their times per sample
    add up.
    """
    stages = pipeline_stages(pipeline)
    if not pipeline.prefetch:
        serial_groups = [list(stages)]
    elif not pipeline.pinned:
        serial_groups = [*([stage] for stage in stages[:-2]), list(stages[-2:])]
    else:
        serial_groups = [[stage] for stage in stages]
    slowest_group = min(serial_groups, key=_serial_per_s)
    bottleneck = min(slowest_group, key=lambda stage: stage.per_s)
    return PipelineThroughput(pipeline, stages, _serial_per_s(slowest_group), bottleneck)


def _serial_per_s(stages: Sequence[FeedStage]) -> float:
    """Return the samples per second of stages that take turns."""
    return 1 / sum(1 / stage.per_s for stage in stages)


# Storage and links ----------------------------------------------------------------------------------------------------


EXPECTED = {"hdd": 150e6, "nvme": 3000e6}
"""Expected bandwidth in bytes per second by kind of storage, from the course slides "Performance and Profiling"."""

SEPARATE_NODES = ("course-ethernet10", "course-mellanox56")
"""Networks to a separate node, without and with RDMA, from the same slides."""


def find_store(text: str, random_reads_per_s: float | None = None) -> Store | None:
    """Return the storage with a link's name or a rate such as ``500 MB/s``; None for ``memory``.

    The small random reads per second are by default those of the registry. Raise UnknownName if there is no such link.
    """
    if text == "memory":
        return None
    links = read_links().link
    try:
        name, bytes_per_s = find_link(text)
    except UnknownName:
        names = [name for name, link in links.items() if link.kind == "storage"]
        raise UnknownName("storage", text, [*names, "memory"], "A rate such as '500 MB/s' is valid, too.") from None
    if not random_reads_per_s and name in links:
        random_reads_per_s = links[name].random_reads_per_s
    kind, _, _ = name.partition("-")
    return Store(name, bytes_per_s, random_reads_per_s, EXPECTED.get(kind))


def find_link(text: str) -> tuple[str, float]:
    """Return id and data sheet bandwidth, in bytes per second, of a link's name or a rate such as ``500 MB/s``."""
    rate = link_rate(text.strip(), ppp=1.0)
    return rate.name, rate.bandwidth_bytes_per_s


def find_host_link(device: Device) -> tuple[str, float]:
    """Return id and bandwidth, in bytes per second, of the link between a device and its host.

    Raise BadValue if the device's hardware file names none.
    """
    links = read_links().link
    for attached in device.links:
        if attached.link in links and links[attached.link].kind == "host":
            return attached.link, links[attached.link].bandwidth_bytes_per_s
    raise BadValue(f"the hardware file of {device.name} has no host link: give one, such as `--host-link pcie3`")


def describe_sources(pipeline: InputPipeline, has_own_decode_rate: bool) -> list[str]:
    """Return the sources of the default rates of copies and of decoding, as notes."""
    notes = [f"copies: {PINNED_SOURCE if pipeline.pinned else PAGEABLE_SOURCE}"]
    if pipeline.decode_per_worker_s is not None and not has_own_decode_rate:
        notes.append(
            f"decoding: {DECODE_SOURCE}; measure the rate of your machine with paleo_lite.measurement.mock_trainer and "
            "set `--decode-rate`"
        )
    return notes
