"""Audit of the hardware files: every figure has a source and a unit, and is consistent with the others.

A peak rate follows from lanes or multiprocessors and a clock. The comparison finds the usual errors of such tables: a
sparse peak stored as dense, a board's figure on a die, the base clock instead of boost. A deviation needs an
``audit_exception`` in the file that gives the reason; an exception without a deviation is also an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from itertools import pairwise
from typing import Literal

import msgspec

from ..errors import BadQuantity
from ..text import normalize_name
from ..units import format_si, parse_quantity
from .clouds import Cloud
from .device import Device, LinkRegistry, Peak, SourcedFigure
from .registry import list_figures

TOLERANCE = 0.015
"""Relative deviation attributed to rounding on data sheets."""

TENSOR_RATES = {
    "7.0": {"fp16": 1024},
    "7.2": {"fp16": 1024, "int8": 2048},
    "7.5": {"fp16": 1024, "int8": 2048},
    "8.0": {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.6": {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "8.7": {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.9": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "9.0": {"fp64": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    "10.0": {"fp64": 128, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384, "fp4": 32768},
    "10.3": {"tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 512, "fp4": 49152},
    "11.0": {"fp16": 8192, "bf16": 8192, "fp8": 16384, "fp4": 32768},
    "12.0": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048, "fp4": 4096},
    "Sapphire Rapids": {"bf16": 1024, "int8": 2048},
    "xe2": {"fp16": 2048, "bf16": 2048, "int8": 4096},
    "gfx908": {"fp32": 256, "fp16": 1024, "bf16": 512, "int8": 1024},
    "gfx90a": {"fp64": 256, "fp32": 256, "fp16": 1024, "bf16": 1024, "int8": 1024},
    "gfx942": {"fp64": 256, "fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096},
    "gfx950": {"fp64": 128, "fp32": 256, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192, "fp4": 16384},
}
"""Dense tensor FLOP per cycle and multiprocessor (a multiply-accumulate is 2), by compute capability or gfx target.

Of processors it is by architecture, and per core.

Sources: the architecture white papers of NVIDIA's Volta to Blackwell and AMD's CDNA 1 to 4. The rates of Jetson modules
(7.2, 8.7, 11.0), of the B300's int8 and fp4 and of Intel's Xe2 follow from TOPS, multiprocessors and clocks on data
sheets; those of Sapphire Rapids are Intel's of its AMX.
"""

GEFORCE_HALVES = {"7.5", "8.6", "8.9", "12.0"}
"""Capabilities with half the tensor rate on GeForce cards when accumulating in fp32 (since the Turing white paper)."""

VECTOR_RATIOS = (1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 1, 2, 4)
"""Rates of the other precisions on vector units, relative to one fp32 multiply-accumulate per lane and cycle."""

PCIE_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
}
"""Bytes per second of one PCIe lane in one direction, by generation: transfer rate times line encoding (PCI-SIG)."""


class AuditFinding(msgspec.Struct, frozen=True):
    """One finding of the audit; its severity is `explained` if the file gives a reason, else `error`."""

    device: str
    field: str
    message: str
    severity: Literal["error", "explained"] = "error"


def audit_device(
    device: Device,
    # Returns a device by id; without it the sums over the parts of a board are not checked.
    resolve: Callable[[str], Device | None] | None = None,
    links: LinkRegistry | None = None,  # all links; without them `device.links` is not checked
) -> list[AuditFinding]:
    """Check one device; the list is empty if all figures agree."""
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
    listed: list[tuple[str, str, SourcedFigure]] = []
    for identity, link in links.link.items():
        listed.append((f"{identity}.per_direction", "B/s", link.per_direction))
        if link.latency is not None:
            listed.append((f"{identity}.latency", "s", link.latency))
        if link.random_reads is not None:
            listed.append((f"{identity}.random_reads", "IOPS", link.random_reads))
    findings = [AuditFinding("links", field, text) for field, text in _unit_problems(listed)]
    findings += _check_sources("links", links.sources, listed)
    if not findings:
        findings += [AuditFinding("links", identity, text) for identity, text in _link_sums(links)]
    names = {identity: [link.name, *link.aliases] for identity, link in links.link.items()}
    return [*findings, *_check_names(names)]


def audit_clouds(clouds: Iterable[Cloud], devices: Mapping[str, Device]) -> list[AuditFinding]:
    """Check clouds: that their devices exist, dates of prices, sources that nothing names, and unique names."""
    findings = []
    names = {}
    for cloud in clouds:
        unused = set(cloud.sources)
        for instance in cloud.instances:
            names[f"{cloud.name} {instance.name}"] = [instance.name, *instance.aliases]
            if instance.device not in devices:
                message = f"the device {instance.device!r} does not exist"
                findings.append(AuditFinding(cloud.name, instance.name, message))
            if instance.price is not None:
                unused.discard(instance.price.source)
                if instance.price.date > date.today():
                    message = f"listed {instance.price.date}, which is in the future"
                    findings.append(AuditFinding(cloud.name, instance.name, message))
        findings += [AuditFinding(cloud.name, "sources", f"no price names {key!r}") for key in sorted(unused)]
    return [*findings, *_check_names(names)]


def audit_registry(devices: Iterable[Device], links: LinkRegistry) -> list[AuditFinding]:
    """Check all devices and links: each alone, the sums over parts, and that names are unique."""
    devices = list(devices)
    by_id = {device.id: device for device in devices}
    findings = [finding for device in devices for finding in audit_device(device, by_id.get, links)]
    return [*findings, *audit_links(links), *_check_names({d.id: [d.name, *d.aliases] for d in devices})]


def _figures(device: Device) -> list[tuple[str, str, SourcedFigure]]:
    measured = [(f"measured.{name}", _measured_unit(name), figure) for name, figure in device.measured.items()]
    return [*list_figures(device), *measured]


def _peak_field(peak: Peak) -> str:
    return "peaks." + ".".join(filter(None, (peak.precision, peak.unit, peak.clock, peak.accumulate)))


def _peak_unit(peak: Peak) -> str:
    return "OP/s" if peak.precision == "int8" else "FLOP/s"


def _measured_unit(name: str) -> str:
    if name.endswith("bandwidth"):
        return "B/s"
    return "OP/s" if name == "gemm_int8" else "FLOP/s"


def _unit_problems(listed: Iterable[tuple[str, str, SourcedFigure]]) -> Iterator[tuple[str, str]]:
    for field, unit, figure in listed:
        if unit == "":
            if not (figure.value.isdigit() and int(figure.value) > 0):
                yield field, f"{figure.value!r} is not an integer above 0"
            continue
        try:
            value = parse_quantity(figure.value, unit)
        except BadQuantity as error:
            yield field, str(error)
            continue
        if not figure.value.endswith(unit):
            yield field, f"{figure.value!r} has no unit {unit}"
        elif value <= 0:
            yield field, f"{figure.value!r} is not above 0"


def _check_units(device: Device) -> Iterator[AuditFinding]:
    for field, text in _unit_problems(_figures(device)):
        yield AuditFinding(device.id, field, text)


def _check_sources(
    name: str, sources: dict[str, str], listed: Iterable[tuple[str, str, SourcedFigure]]
) -> Iterator[AuditFinding]:
    used_sources = set()
    for field, _, figure in listed:
        used_sources.add(figure.source)
        if figure.source not in sources:
            yield AuditFinding(name, field, f"source {figure.source!r} is not declared")
    for source in sorted(sources.keys() - used_sources):
        yield AuditFinding(name, f"sources.{source}", "declared but not used by any figure")


def _check_identity(device: Device) -> Iterator[AuditFinding]:
    if not 2006 <= device.year <= date.today().year + 1:
        yield AuditFinding(device.id, "year", f"{device.year} is not a plausible release year")
    clocks = device.clocks
    if device.clock_hz(clocks.default) is None and not device.has_rates_alone:
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
            yield _explainable(device, _peak_field(peak), problem, peak.audit_exception)
        elif peak.audit_exception:
            yield AuditFinding(device.id, _peak_field(peak), "audit_exception explains a deviation that does not exist")


def _peak_problem(device: Device, peak: Peak) -> str:
    if device.has_rates_alone:
        return ""  # nothing is published from which its rates follow
    expected, formula = expected_peak(device, peak)
    if expected is None:
        return formula
    if agree_within_tolerance(peak.per_s, expected):
        return ""
    unit = _peak_unit(peak)
    return f"{format_si(peak.per_s, unit)} is not {formula} = {format_si(expected, unit)}"


def _check_ratios(device: Device) -> Iterator[AuditFinding]:
    if device.has_rates_alone:
        return  # fp8 has the rate of bf16 in some of them, and tf32 as well
    tensor = {p.precision: p for p in device.peaks if p.unit == "tensor" and p.accumulate != "fp16"}
    expected = [(tensor[name], multiple) for name, multiple in (("tf32", 1), ("fp16", 2), ("fp8", 4)) if name in tensor]
    for (slow, slow_multiple), (fast, fast_multiple) in pairwise(expected):
        ratio = fast.per_s / slow.per_s
        if slow.clock != fast.clock or agree_within_tolerance(ratio, fast_multiple / slow_multiple):
            continue
        message = f"{fast.precision} is {ratio:.3g} x {slow.precision}, not {fast_multiple // slow_multiple} x"
        # Only an exception that names the other precision is about the ratio; others may be about a clock.
        reason = ""
        if slow.precision in fast.audit_exception:
            reason += fast.audit_exception
        if fast.precision in slow.audit_exception:
            reason += slow.audit_exception
        yield _explainable(device, _peak_field(fast), message, reason)


def _check_memory(device: Device) -> Iterator[AuditFinding]:
    memory, deviates = device.memory, False
    if memory.bus is not None and memory.rate is not None:
        pins, rate = parse_quantity(memory.bus.value, "bit"), parse_quantity(memory.rate.value, "bit/s")
        expected = pins * rate / 8
        deviates = not agree_within_tolerance(device.bandwidth_bytes_per_s, expected)
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


_SUMMED_FIELDS = (
    "cores.multiprocessors",
    "cores.fp32_lanes",
    "memory.capacity",
    "memory.bandwidth",
    "memory.bus",
    "rent",
)


def _check_parts(device: Device, resolve: Callable[[str], Device | None]) -> Iterator[AuditFinding]:
    if device.parts is None:
        return
    part, count = resolve(device.parts.device), device.parts.count
    if part is None:
        yield AuditFinding(device.id, "parts.device", f"the device {device.parts.device!r} does not exist")
        return
    board_values = _summed_values(device)
    part_values = _summed_values(part)
    for field in sorted(board_values.keys() & part_values.keys()):
        unit, board_value = board_values[field]
        part_value = part_values[field][1]
        if not agree_within_tolerance(parse_quantity(board_value, unit), count * parse_quantity(part_value, unit)):
            yield AuditFinding(device.id, field, f"{board_value} is not {count} x {part_value} of {part.id}")


def _summed_values(device: Device) -> dict[str, tuple[str, str]]:
    """Return unit and value of the figures that add up over the parts of a board."""
    values = {}
    for field, unit, figure in list_figures(device):
        if field in _SUMMED_FIELDS:
            values[field] = (unit, figure.value)
    for peak in device.peaks:
        values[_peak_field(peak)] = (_peak_unit(peak), peak.value)
    return values


def _check_attachments(device: Device, links: LinkRegistry) -> Iterator[AuditFinding]:
    for attached in device.links:
        link = links.link.get(attached.link)
        if link is None:
            yield AuditFinding(device.id, f"links.{attached.link}", "there is no such link in links.toml")
        elif not agree_within_tolerance(
            parse_quantity(attached.per_direction.value, "B/s"), link.bandwidth_bytes_per_s
        ):
            message = f"{attached.per_direction.value} is not the {link.per_direction.value} of the link"
            yield AuditFinding(device.id, f"links.{attached.link}", message)


def _link_sums(links: LinkRegistry) -> Iterator[tuple[str, str]]:
    for identity, link in links.link.items():
        family, _, count = identity.rpartition("-x")
        if not count.isdigit():
            continue
        pcie = re.fullmatch(r"pcie(\d)", family)
        single = links.link.get(family)
        if pcie and int(pcie[1]) in PCIE_LANE_BYTES_PER_S:
            expected = PCIE_LANE_BYTES_PER_S[int(pcie[1])] * int(count)
        elif single is not None:
            expected = single.bandwidth_bytes_per_s * int(count)
        else:
            continue
        if not agree_within_tolerance(link.bandwidth_bytes_per_s, expected):
            yield identity, f"{link.per_direction.value} is not {count} x {family} = {format_si(expected, 'B/s')}"


def _check_names(names: dict[str, list[str]]) -> Iterator[AuditFinding]:
    owners: dict[str, str] = {}
    for identity, others in names.items():
        for name in sorted({normalize_name(text) for text in (identity, *others)}):
            owner = owners.setdefault(name, identity)
            if owner != identity:
                yield AuditFinding(identity, "aliases", f"the name {name!r} also belongs to {owner}")


def _explainable(device: Device, field: str, message: str, exception: str) -> AuditFinding:
    if exception:
        return AuditFinding(device.id, field, f"{message}: {exception}", "explained")
    return AuditFinding(device.id, field, message)


def expected_peak(device: Device, peak: Peak) -> tuple[float | None, str]:
    """Return the expected value of a peak, and its formula as text.

    The value is lanes or multiprocessors x operations per cycle x clock, in FLOP/s (operations per second for int8);
    None if no rate is documented. Then the text names the missing figure. A vector peak in a precision other than fp32
    is compared with the nearest of `VECTOR_RATIOS`, because the ratio depends on the product.
    """
    clock = device.clock_hz(peak.clock)
    if clock is None:
        return None, f"its clock, {peak.clock}, is not listed"
    if peak.unit == "vector":
        if device.cores.fp32_lanes is None:
            return None, "its lanes are not listed"
        lanes = int(device.cores.fp32_lanes.value)
        ratios = (1.0,) if peak.precision == "fp32" else VECTOR_RATIOS
        ratio = min(ratios, key=lambda ratio: abs(lanes * 2 * clock * ratio - peak.per_s))
        share = "" if ratio == 1 else f" x {ratio:.3g}"
        return lanes * 2 * clock * ratio, f"{lanes} lanes x 2 x {format_si(clock, 'Hz')}{share}"
    per_cycle = TENSOR_RATES.get(device.capability or device.architecture, {}).get(peak.precision)
    if per_cycle is None:
        return None, f"no tensor rate of {device.capability or device.architecture} for {peak.precision} is documented"
    if _has_half_rate(device, peak):
        per_cycle //= 2
    count = int(device.cores.multiprocessors.value)
    return count * per_cycle * clock, f"{count} multiprocessors x {per_cycle} x {format_si(clock, 'Hz')}"


def agree_within_tolerance(value: float, expected: float) -> bool:
    """Return whether two figures agree within `TOLERANCE`."""
    return abs(value - expected) <= TOLERANCE * abs(expected)


def _has_half_rate(device: Device, peak: Peak) -> bool:
    accumulates_in_fp32 = peak.precision in ("tf32", "bf16") or peak.accumulate == "fp32"
    return accumulates_in_fp32 and device.capability in GEFORCE_HALVES and "GeForce" in device.name
