"""Forecasts of rows of benchmarks of links: collectives, messages between devices, copies to and from a host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..calibration.store import find_evidence
from ..distributed.link_causes import KIND as LINKS
from ..distributed.link_causes import OPERATIONS, POINT_TO_POINT, collective_s, learned_topology, measured_topology
from ..distributed.links import Topology
from ..errors import BadValue
from ..input_pipeline.feeding import PINNED_SHARE, find_host_link, find_link
from ..machines import find_device
from ..result_files.beside import Forecast
from ..result_files.configuration import count_of
from ..result_files.text import to_number

MOST_BYTES = 1e13
"""Size of a message above which it is a mistake: no device holds as much."""

LARGE_MESSAGE = 2.0**22
"""Bytes from which the bandwidth of a link decides the time of a message."""

_SMALL_MESSAGE = "messages below 4 MiB say little of the bandwidth of a link"

COPIED_BYTES = 2.0**29
"""Bytes of a copy of nvbandwidth, unless its `--bufferSize` says otherwise, which it does not print."""

_MESSAGES = {"rdma write": 2, "rdma read": 2, "rdma send": 2, "device_to_device_memcpy_read_ce": 1,
             "device_to_device_memcpy_write_ce": 1, "device_to_device_memcpy_read_sm": 1,
             "device_to_device_memcpy_write_sm": 1}  # fmt: skip
"""Messages over a link that no library divides, by the number of nodes that they connect."""

_MESSAGES_OF_MPI = ("send", "send both ways", "send of several pairs")
"""Messages of the OSU micro-benchmarks."""

_EXCHANGES_OF_EXPERTS = ("dispatch", "combine")
"""Kernels that DeepEP's tests measure."""


_HOST_COPY = re.compile(
    r"(?:host_to_device|device_to_host)_memcpy_ce|host to device|device to host|cpu to gpu\d+|gpu\d+ to cpu"
)
"""Operations and paths of copies between the memory of a host and that of a device, in one direction at a time."""

_BY_KERNEL = "by sm"
"""Operation of copies that a kernel makes: stores to the memory of a host reach a quarter of a copy engine's rate."""


def forecast_collective(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a collective inside a node, or an all-reduce over several."""
    measured = measured_collective(facts, more["hardware_files"]).learned(facts, more)
    return [Forecast("time_s", collective_s(*measured), answer=measured)]


class MeasuredCollective(NamedTuple):
    """A collective of a row of a result file."""

    topology: Topology
    operation: str
    message_bytes: float

    def learned(self, facts: dict[str, Any], more: dict[str, Any]) -> MeasuredCollective:
        """Return the collective over links calibrated by others, where there is a calibration."""
        evidence = find_evidence(more["calibration"], "compare", (LINKS,))
        device = find_device(facts["gpu"], more["hardware_files"])
        return self._replace(topology=learned_topology(self.topology, device, evidence, LINKS))


def measured_collective(facts: dict[str, Any], hardware_files: list[Path]) -> MeasuredCollective:
    """Return the collective of a row; raise BadValue where its devices, size or links are not known."""
    operation = OPERATIONS.get(str(facts.get("operation")))
    if facts.get("operation") in _EXCHANGES_OF_EXPERTS:
        raise BadValue(
            f"{facts['operation']} of experts alone has no forecast: its kernels are a part of the exchanges of a "
            "server, which a benchmark of the server calibrates"
        )
    if operation is None:
        raise BadValue(f"the collective {facts.get('operation') or 'without a name'} has no forecast")
    devices, size = count_of(facts, "devices"), to_number(facts.get("bytes"))
    if devices is None or devices < 2:
        raise BadValue("the number of devices is not in the file: give `--devices`")
    if size is None or not 1 <= size <= MOST_BYTES:
        raise BadValue(f"messages have a forecast from 1 byte to {MOST_BYTES:g} bytes")
    device, link = find_device(facts["gpu"], hardware_files), facts.get("link")
    nodes = count_of(facts, "nodes") or 1
    topology = measured_topology(device, devices, nodes, None if link is None else str(link), operation)
    return MeasuredCollective(topology, operation, float(size))


def _is_host_copy(facts: dict[str, Any]) -> bool:
    """Return whether a copy engine copies between host and device from pinned memory, as benchmarks do by default."""
    names = (str(facts.get("operation")), str(facts.get("path")))
    is_by_engine = _BY_KERNEL not in names and facts.get("variant") != "pageable"
    return is_by_engine and any(map(_HOST_COPY.fullmatch, names))


def forecast_copy(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast the bandwidth of a large message between two devices, or of a copy between host and device."""
    if _is_host_copy(facts):
        if more["calibration"] is not None:
            raise BadValue("copies between host and device learn from no calibration: leave `--calibration` out")
        size = to_number(facts.get("bytes"))
        if size is not None and size < LARGE_MESSAGE:
            raise BadValue(_SMALL_MESSAGE)
        device, link = find_device(facts["gpu"], more["hardware_files"]), facts.get("link")
        _, link_bytes_per_s = find_host_link(device) if link is None else find_link(str(link))
        return [Forecast("bytes_per_s", PINNED_SHARE * link_bytes_per_s)]
    measured = measured_message(facts, more["hardware_files"]).learned(facts, more)
    rate = measured.message_bytes / collective_s(*measured)
    return [Forecast("bytes_per_s", rate, answer=measured)]


def measured_message(facts: dict[str, Any], hardware_files: list[Path]) -> MeasuredCollective:
    """Return a large message between two devices as a collective of these; raise BadValue for another copy."""
    operation = str(facts.get("operation"))
    nodes = _MESSAGES.get(operation)
    if operation in _MESSAGES_OF_MPI:
        raise BadValue(
            f"messages of MPI ({operation}) have no forecast: they are as fast as its transport, which collectives "
            "of NCCL do not use: nccl-tests and ib_write_bw calibrate a link"
        )
    if nodes is None or facts.get("variant"):
        raise BadValue(f"copies of the kind {operation} have no forecast")
    size = to_number(facts.get("bytes")) or (COPIED_BYTES if nodes == 1 else None)
    if size is None or not LARGE_MESSAGE <= size <= MOST_BYTES:
        raise BadValue(_SMALL_MESSAGE)
    device, link = find_device(facts["gpu"], hardware_files), facts.get("link")
    topology = measured_topology(device, 2, nodes, None if link is None else str(link), POINT_TO_POINT)
    return MeasuredCollective(topology, POINT_TO_POINT, size)
