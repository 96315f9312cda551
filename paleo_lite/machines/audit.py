"""The audit of the hardware files: every figure sourced, in its unit, and consistent with the others.

A peak is not an independent figure: it follows from lanes or multiprocessors and a clock. Checking that finds the usual
errors of such tables: a sparse peak stored as dense, a board's figure on a die, base mixed with boost. What does not
follow needs an ``audit_exception``, a sentence in the file that says why; an exception that explains nothing is an
error too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from itertools import pairwise
from typing import Literal

import msgspec

from ..errors import BadQuantity
from ..units import format_si, parse_quantity
from .device import Device, Figure, LinkRegistry, Peak
from .registry import figures, key

TOLERANCE = 0.015
"""Relative deviation that rounding on data sheets explains."""

TENSOR_RATES = {
    "7.0": {"fp16": 1024},
    "7.2": {"fp16": 1024, "int8": 2048},
    "7.5": {"fp16": 1024, "int8": 2048},
    "8.0": {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.6": {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "8.7": {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.9": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "9.0": {"fp64": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    "10.0": {"fp64": 128, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384},
    "10.3": {"tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 512},
    "12.0": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "xe2": {"fp16": 2048, "bf16": 2048, "int8": 4096},
    "gfx908": {"fp32": 256, "fp16": 1024, "bf16": 512, "int8": 1024},
    "gfx90a": {"fp64": 256, "fp32": 256, "fp16": 1024, "bf16": 1024, "int8": 1024},
    "gfx942": {"fp64": 256, "fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096},
    "gfx950": {"fp64": 128, "fp32": 256, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
}
"""Dense tensor FLOP per cycle and multiprocessor (a multiply-accumulate is 2), by compute capability or gfx target.

From NVIDIA's Volta to Blackwell and AMD's CDNA 1 to 4 architecture white papers. Of Jetson modules (7.2, 8.7), of the
B300's int8 and of Intel's Xe2 no paper was read: they follow from TOPS, multiprocessors and clocks of data sheets.
"""

GEFORCE_HALVES = {"7.5", "8.6", "8.9", "12.0"}
"""Capabilities whose GeForce cards run tensor cores at half rate when they sum in fp32 (Turing white paper onward)."""

VECTOR_RATIOS = (1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 1, 2, 4)
"""Rates of the other precisions on vector units, relative to one fp32 multiply-accumulate per lane and cycle."""

PCIE_LANE_BYTES_PER_S = {
    generation: transfers * encoding / 8
    for generation, transfers, encoding in (
        (1, 2.5e9, 8 / 10), (2, 5e9, 8 / 10), (3, 8e9, 128 / 130), (4, 16e9, 128 / 130), (5, 32e9, 128 / 130),
    )
}  # fmt: skip
"""Bytes per second of one PCIe lane in one direction, by generation: transfers times encoding (PCI-SIG)."""


class AuditFinding(msgspec.Struct, frozen=True):
    """One thing that the audit noticed; `explained` where the file says why it is so, else `error`."""

    device: str
    field: str
    message: str
    severity: Literal["error", "explained"] = "error"


def audit_device(
    device: Device, resolve: Callable[[str], Device | None] | None = None, links: LinkRegistry | None = None
) -> list[AuditFinding]:
    """Check one device.

    Parameters
    ----------
    device : Device
        What to check.
    resolve : callable, optional
        Gives a device by id; without it the sums over the parts of a board are not checked.
    links : LinkRegistry, optional
        The known links; without them `device.links` is not checked.

    Returns
    -------
    list of AuditFinding
        Empty for a device whose figures all agree.
    """
    findings = [*_check_units(device), *_check_sources(device.id, device.sources, _figures(device))]
    if any(finding.severity == "error" for finding in findings):
        return findings  # figures that do not parse cannot be compared
    checks = [_check_identity, _check_rent, _check_peaks, _check_ratios, _check_memory, _check_measured]
    findings += [finding for check in checks for finding in check(device)]
    if resolve is not None:
        findings += _check_parts(device, resolve)
    if links is not None:
        findings += _check_attachments(device, links)
    return findings


def audit_links(links: LinkRegistry) -> list[AuditFinding]:
    """Check ``links.toml``: sources, units, PCIe rates from their encoding, sums of links, names."""
    listed = [(f"{identity}.per_direction", "B/s", link.per_direction) for identity, link in links.link.items()]
    listed += [(f"{identity}.latency", "s", link.latency) for identity, link in links.link.items() if link.latency]
    reads = ((identity, link.random_reads) for identity, link in links.link.items())
    listed += [(f"{identity}.random_reads", "IOPS", figure) for identity, figure in reads if figure is not None]
    findings = [AuditFinding("links", field, text) for field, text in _unit_problems(listed)]
    findings += _check_sources("links", links.sources, listed)
    if not findings:
        findings += [AuditFinding("links", identity, text) for identity, text in _link_sums(links)]
    names = {identity: [link.name, *link.aliases] for identity, link in links.link.items()}
    return [*findings, *_check_names(names)]


def audit_registry(devices: Iterable[Device], links: LinkRegistry) -> list[AuditFinding]:
    """Check all devices and links together: each by itself, sums over parts, and that no name means two devices."""
    devices = list(devices)
    by_id = {device.id: device for device in devices}
    findings = [finding for device in devices for finding in audit_device(device, by_id.get, links)]
    return [*findings, *audit_links(links), *_check_names({d.id: [d.name, *d.aliases] for d in devices})]


def _figures(device: Device) -> list[tuple[str, str, Figure]]:
    measured = [(f"measured.{name}", _measured_unit(name), figure) for name, figure in device.measured.items()]
    return [*figures(device), *measured]


def _place(peak: Peak) -> str:
    return "peaks." + ".".join(filter(None, (peak.precision, peak.unit, peak.clock, peak.accumulate)))


def _peak_unit(peak: Peak) -> str:
    return "OP/s" if peak.precision == "int8" else "FLOP/s"


def _measured_unit(name: str) -> str:
    return "B/s" if name.endswith("bandwidth") else "OP/s" if name == "gemm_int8" else "FLOP/s"


def _unit_problems(listed: Iterable[tuple[str, str, Figure]]) -> Iterator[tuple[str, str]]:
    for field, unit, figure in listed:
        if unit == "":
            if not (figure.value.isdigit() and int(figure.value) > 0):
                yield field, f"{figure.value!r} is not a count"
            continue
        try:
            value = parse_quantity(figure.value, unit)
        except BadQuantity as error:
            yield field, str(error)
            continue
        if not figure.value.endswith(unit):
            yield field, f"{figure.value!r} should say its unit, {unit}"
        elif value <= 0:
            yield field, f"{figure.value!r} is not above 0"


def _check_units(device: Device) -> Iterator[AuditFinding]:
    for field, text in _unit_problems(_figures(device)):
        yield AuditFinding(device.id, field, text)


def _check_sources(
    name: str, sources: dict[str, str], listed: Iterable[tuple[str, str, Figure]]
) -> Iterator[AuditFinding]:
    used = set()
    for field, _, figure in listed:
        used.add(figure.source)
        if figure.source not in sources:
            yield AuditFinding(name, field, f"source {figure.source!r} is not declared")
    for source in sorted(sources.keys() - used):
        yield AuditFinding(name, f"sources.{source}", "declared but not used by any figure")


def _check_identity(device: Device) -> Iterator[AuditFinding]:
    if not 2006 <= device.year <= date.today().year + 1:
        yield AuditFinding(
            device.id, "year", f"{device.year} is not a plausible year for a device that networks run on"
        )
    clocks = device.clocks
    if device.clock_hz(clocks.default) is None:
        yield AuditFinding(device.id, "clocks.default", f"the default clock, {clocks.default}, has no value")
    base, boost = device.clock_hz("base"), device.clock_hz("boost")
    if base is not None and boost is not None and base > boost:
        yield AuditFinding(
            device.id, "clocks.base", f"base {format_si(base, 'Hz')} is above boost {format_si(boost, 'Hz')}"
        )
    if (device.parts is None) != (device.scope not in ("board", "package")):
        yield AuditFinding(device.id, "parts", "a board or package must name its parts, and anything else must not")


def _check_rent(device: Device) -> Iterator[AuditFinding]:
    if device.rent is not None and not device.year <= device.rent.date.year <= date.today().year:
        message = f"listed {device.rent.date}, which is before the device or in the future"
        yield AuditFinding(device.id, "rent.date", message)


def _check_peaks(device: Device) -> Iterator[AuditFinding]:
    if not any(peak.precision == "fp32" and peak.unit == "vector" for peak in device.peaks):
        yield AuditFinding(device.id, "peaks", "there is no fp32 vector peak")
    for peak in device.peaks:
        problem = _peak_problem(device, peak)
        if problem:
            yield _explainable(device, _place(peak), problem, peak.audit_exception)
        elif peak.audit_exception:
            yield AuditFinding(device.id, _place(peak), "audit_exception explains a deviation that does not exist")


def _peak_problem(device: Device, peak: Peak) -> str:
    expected, formula = peak_from_clock(device, peak)
    if expected is None:
        return formula
    if close(peak.per_s, expected):
        return ""
    unit = _peak_unit(peak)
    return f"{format_si(peak.per_s, unit)} is not {formula} = {format_si(expected, unit)}"


def _check_ratios(device: Device) -> Iterator[AuditFinding]:
    tensor = {p.precision: p for p in device.peaks if p.unit == "tensor" and p.accumulate != "fp16"}
    ratios = [(tensor[name], share) for name, share in (("tf32", 1), ("fp16", 2), ("fp8", 4)) if name in tensor]
    for (slow, low), (fast, high) in pairwise(ratios):
        if slow.clock == fast.clock and not close(fast.per_s / slow.per_s, high / low):
            message = f"{fast.precision} is {fast.per_s / slow.per_s:.3g} x {slow.precision}, not {high // low} x"
            # An exception about a clock does not hold for a ratio: it has to name the other precision.
            named = [
                p.audit_exception for p, other in ((fast, slow), (slow, fast)) if other.precision in p.audit_exception
            ]
            yield _explainable(device, _place(fast), message, "".join(named))


def _check_memory(device: Device) -> Iterator[AuditFinding]:
    memory, deviates = device.memory, False
    if memory.bus is not None and memory.rate is not None:
        pins, rate = parse_quantity(memory.bus.value, "bit"), parse_quantity(memory.rate.value, "bit/s")
        expected = pins * rate / 8
        deviates = not close(device.bandwidth_bytes_per_s, expected)
        if deviates:
            message = (
                f"{memory.bandwidth.value} is not {pins:g} bit x {memory.rate.value} = {format_si(expected, 'B/s')}"
            )
            yield _explainable(device, "memory.bandwidth", message, memory.audit_exception)
    if memory.audit_exception and not deviates:
        yield AuditFinding(device.id, "memory", "audit_exception explains a deviation that does not exist")


def _check_measured(device: Device) -> Iterator[AuditFinding]:
    for name, figure in device.measured.items():
        unit = _measured_unit(name)
        precision = name.removeprefix("gemm_")
        peaks = [peak.per_s for peak in device.peaks if peak.precision == precision]
        limit = device.bandwidth_bytes_per_s if unit == "B/s" else max(peaks, default=0.0)
        if parse_quantity(figure.value, unit) > limit * (1 + TOLERANCE):
            yield AuditFinding(
                device.id, f"measured.{name}", f"{figure.value} is above the peak, {format_si(limit, unit)}"
            )


def _check_parts(device: Device, resolve: Callable[[str], Device | None]) -> Iterator[AuditFinding]:
    if device.parts is None:
        return
    part, count = resolve(device.parts.device), device.parts.count
    if part is None:
        yield AuditFinding(device.id, "parts.device", f"the device {device.parts.device!r} does not exist")
        return
    summed = ("cores.multiprocessors", "cores.fp32_lanes", "memory.capacity", "memory.bandwidth", "memory.bus", "rent")
    ours, theirs = (
        {field: (unit, f.value) for field, unit, f in figures(d) if field in summed} for d in (device, part)
    )
    ours |= {_place(peak): (_peak_unit(peak), peak.value) for peak in device.peaks}
    theirs |= {_place(peak): (_peak_unit(peak), peak.value) for peak in part.peaks}
    for field in sorted(ours.keys() & theirs.keys()):
        (unit, whole), (_, one) = ours[field], theirs[field]
        if not close(parse_quantity(whole, unit), count * parse_quantity(one, unit)):
            yield AuditFinding(device.id, field, f"{whole} is not {count} x {one} of {part.id}")


def _check_attachments(device: Device, links: LinkRegistry) -> Iterator[AuditFinding]:
    for attached in device.links:
        link = links.link.get(attached.link)
        if link is None:
            yield AuditFinding(device.id, f"links.{attached.link}", "there is no such link in links.toml")
        elif not close(parse_quantity(attached.per_direction.value, "B/s"), link.bandwidth_bytes_per_s):
            message = f"{attached.per_direction.value} is not the {link.per_direction.value} of the link"
            yield AuditFinding(device.id, f"links.{attached.link}", message)


def _link_sums(links: LinkRegistry) -> Iterator[tuple[str, str]]:
    for identity, link in links.link.items():
        family, _, count = identity.rpartition("-x")
        if not count.isdigit():
            continue
        pcie = re.fullmatch(r"pcie(\d)", family)
        one = links.link.get(family)
        if pcie and int(pcie[1]) in PCIE_LANE_BYTES_PER_S:
            expected = PCIE_LANE_BYTES_PER_S[int(pcie[1])] * int(count)
        elif one is not None:
            expected = one.bandwidth_bytes_per_s * int(count)
        else:
            continue
        if not close(link.bandwidth_bytes_per_s, expected):
            yield identity, f"{link.per_direction.value} is not {count} x {family} = {format_si(expected, 'B/s')}"


def _check_names(names: dict[str, list[str]]) -> Iterator[AuditFinding]:
    owners: dict[str, str] = {}
    for identity, others in names.items():
        for name in sorted({key(text) for text in (identity, *others)}):
            if owners.setdefault(name, identity) != identity:
                yield AuditFinding(identity, "aliases", f"the name {name!r} is also one of {owners[name]}")


def _explainable(device: Device, field: str, message: str, exception: str) -> AuditFinding:
    if exception:
        return AuditFinding(device.id, field, f"{message}: {exception}", "explained")
    return AuditFinding(device.id, field, message)


def peak_from_clock(device: Device, peak: Peak) -> tuple[float | None, str]:
    """What a peak should be: lanes or multiprocessors x operations per cycle x clock.

    A vector peak other than fp32 is compared with the nearest of `VECTOR_RATIOS`, since products differ in it.

    Parameters
    ----------
    device : Device
        With the clock that `peak` names.
    peak : Peak
        One of its peaks.

    Returns
    -------
    float or None
        FLOP/s (operations per second for int8); None where no rate is documented.
    str
        The formula in words, or what is missing.
    """
    clock = device.clock_hz(peak.clock)
    if clock is None:
        return None, f"its clock, {peak.clock}, is not listed"
    if peak.unit == "vector":
        lanes = int(device.cores.fp32_lanes.value)
        ratios = (1.0,) if peak.precision == "fp32" else VECTOR_RATIOS
        ratio = min(ratios, key=lambda ratio: abs(lanes * 2 * clock * ratio - peak.per_s))
        share = "" if ratio == 1 else f" x {ratio:.3g}"
        return lanes * 2 * clock * ratio, f"{lanes} lanes x 2 x {format_si(clock, 'Hz')}{share}"
    per_cycle = TENSOR_RATES.get(device.capability, {}).get(peak.precision)
    if per_cycle is None:
        return None, f"no tensor rate of {device.capability or device.architecture} for {peak.precision} is documented"
    if _halved(device, peak):
        per_cycle //= 2
    count = int(device.cores.multiprocessors.value)
    return count * per_cycle * clock, f"{count} multiprocessors x {per_cycle} x {format_si(clock, 'Hz')}"


def close(value: float, expected: float) -> bool:
    """Whether two figures agree within `TOLERANCE`."""
    return abs(value - expected) <= TOLERANCE * abs(expected)


def _halved(device: Device, peak: Peak) -> bool:
    sums_in_fp32 = peak.precision in ("tf32", "bf16") or peak.accumulate == "fp32"
    return sums_in_fp32 and device.capability in GEFORCE_HALVES and "GeForce" in device.name
