"""Where samples lie and what they are copied over: names of links, or rates, to what feeds a device."""

from __future__ import annotations

from ..distributed.links import link_rate
from ..errors import BadValue, UnknownName
from ..hardware import Device, read_links
from .feeding import DECODE_SOURCE, PAGEABLE_SOURCE, PINNED_SOURCE, Feeding, Store

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
        notes.append(f"decoding: {DECODE_SOURCE}; measure your own: paleo_lite.measure.mock_trainer, --decode-rate")
    return notes
