"""Devices and links to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import UnknownPrecision
from ..machines import Device, Figure, Link
from ..machines.audit import AuditFinding
from ..machines.registry import figures
from ..units import format_si, say_duration
from .document import Column, Document, Table, say_bandwidth, say_percent, say_size, say_time_briefly

if TYPE_CHECKING:
    from ..distributed.links import LinkCalibration


def device_row(device: Device) -> dict[str, Any]:
    """The figures of a device that a list shows, in SI units; rates at its default clock."""

    def rate(precision: str, unit: str) -> float | None:
        try:
            return device.find_peak(precision, unit).per_s
        except UnknownPrecision:
            return None

    return {
        "id": device.id,
        "name": device.name,
        "architecture": device.architecture,
        "year": device.year,
        "scope": device.scope,
        "clock": device.clocks.default,
        "fp64_flops": rate("fp64", "vector"),
        "fp32_flops": rate("fp32", "vector"),
        "fp16_flops": max((r for u in ("vector", "tensor") if (r := rate("fp16", u)) is not None), default=None),
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "memory_bytes": device.memory_bytes,
        "power_w": device.power_w,
        "rent_usd_per_h": device.rent_usd_per_h,
    }


def devices_page(devices: Iterable[Device]) -> Document:
    """All devices, a line each."""
    rows = [device_row(device) for device in devices]
    table = Table(
        "",
        [
            Column("id", "id", left=True),
            Column("name", "name", left=True, fold=True, spare=1),
            Column("year", "year", spare=2),
            Column("fp64_flops", "fp64\nFLOP/s", format_si),
            Column("fp32_flops", "fp32\nFLOP/s", format_si),
            Column("fp16_flops", "fp16\nFLOP/s", format_si),
            Column("bandwidth_bytes_per_s", "memory\nB/s", format_si),
            Column("memory_bytes", "memory\nsize", say_size),
            Column("power_w", "power\nW", "{:g}".format, spare=3),
            Column("rent_usd_per_h", "rent\nUSD/h", "{:.2f}".format, spare=3),
        ],
        rows,
    )
    return Document(
        f"{len(rows)} devices, peaks at the default clock, dense; fp16 is the faster of vector and tensor", (), [table]
    )


def device_dict(device: Device) -> dict[str, Any]:
    """All figures of a device: the fields of its file, and the headline figures in SI units."""
    fields: dict[str, Any] = msgspec.to_builtins(device)
    peaks = [{**peak, "per_s": parsed.per_s} for peak, parsed in zip(fields["peaks"], device.peaks)]
    return {**device_row(device), "figures": {**fields, "peaks": peaks}}


def device_page(device: Device) -> Document:
    """All figures of a device with their sources."""
    facts = [
        ("id", ", ".join([device.id, *device.aliases])),
        ("chip", f"{device.chip}, {device.vendor} {device.architecture}, {device.year}, one {device.scope}"),
        ("default clock", device.clocks.default),
    ]
    if device.parts is not None:
        facts.append(("consists of", f"{device.parts.count} x {device.parts.device}, as a program sees it"))
    rows = [
        {"figure": field, **_figure(figure)} for field, _, figure in figures(device) if not field.startswith("peaks")
    ]
    peaks = []
    for peak in device.peaks:
        sums = f", sums in {peak.accumulate}" if peak.accumulate else ""
        label = f"{peak.precision} {peak.unit} peak, {peak.clock} clock{sums}"
        peaks.append(
            {
                "figure": label,
                **_figure(Figure(peak.value, peak.source, peak.note or peak.audit_exception, peak.unverified)),
            }
        )
    measured = [{"figure": f"measured {name}", **_figure(figure)} for name, figure in device.measured.items()]
    columns = [
        Column("figure", "figure", left=True, fold=True),
        Column("value", "value", left=True),
        Column("source", "source", left=True, fold=True),
        Column("note", "note", left=True, fold=True),
    ]
    sources = Table(
        "Sources",
        [Column("source", "key", left=True, fold=True), Column("text", "what it is", left=True, fold=True)],
        [{"source": name, "text": text} for name, text in device.sources.items()],
    )
    table = Table("Figures", columns, [*peaks, *rows, *measured])
    return Document(device.name, facts, [table, sources], device.conflicts, table)


def _figure(figure: Figure) -> dict[str, Any]:
    unverified = "unverified" if figure.unverified else ""
    note = "; ".join(text for text in (unverified, figure.note) if text)
    return {"value": figure.value, "source": figure.source, "note": note}


def links_page(links: dict[str, Link]) -> Document:
    """All links, a line each."""
    columns = [*_link_columns(), Column("note", "note", left=True, fold=True)]
    rows = [_link_row(identity, link) for identity, link in links.items()]
    return Document(f"{len(rows)} links, bandwidth of one direction", (), [Table("", columns, rows)])


def moving_page(links: dict[str, Link], move_bytes: float) -> Document:
    """How long an amount of data takes over each link; notes say where sources disagree about its bandwidth."""
    rows = []
    for identity, link in links.items():
        seconds = move_bytes / link.bandwidth_bytes_per_s
        rows.append({**_link_row(identity, link), "move_s": seconds, "move": say_duration(seconds)})
    columns = [
        *_link_columns(spare=1),
        Column("move", format_si(move_bytes, "B"), left=True),
        Column("move_s", "exactly, s", lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}"),
    ]
    headline = f"{format_si(move_bytes, 'B')} over {len(rows)} links, each at its full bandwidth of one direction"
    notes = [f"{identity}: {text}" for identity, link in links.items() for text in link.conflicts]
    return Document(headline, (), [Table("", columns, rows)], notes)


def _link_row(identity: str, link: Link) -> dict[str, Any]:
    return {
        "id": identity,
        "name": link.name,
        "kind": link.kind,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "per": link.per,
        "random_reads_per_s": link.random_reads_per_s,
        "note": link.per_direction.note,
    }


def _link_columns(spare: int = 0) -> list[Column]:
    return [
        Column("id", "id", left=True),
        Column("name", "name", left=True, fold=True),
        Column("kind", "kind", left=True, spare=spare + 1),
        Column("bandwidth_bytes_per_s", "one\ndirection", say_bandwidth),
        Column("per", "of a", left=True, spare=spare),
    ]


def audit_page(devices: int, findings: list[AuditFinding]) -> Document:
    """What an audit found: errors first."""
    ordered = sorted(findings, key=lambda finding: (finding.severity != "error", finding.device))
    rows = [
        {"severity": finding.severity, "device": finding.device, "field": finding.field, "message": finding.message}
        for finding in ordered
    ]
    errors = sum(finding.severity == "error" for finding in findings)
    table = Table(
        "",
        [
            Column("device", "device", left=True),
            Column("field", "field", left=True),
            Column("severity", "severity", left=True, spare=1),
            Column("message", "message", left=True, fold=True),
        ],
        rows,
    )
    headline = f"{devices} devices: {errors} errors, {len(findings) - errors} deviations that the files explain"
    return Document(headline, (), [table] if rows else [], data=table)


def span(values: Sequence[float]) -> str:
    """``0.72 to 0.80``, or the one value."""
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def calibrated_links_table(calibrations: Mapping[str, LinkCalibration]) -> Table:
    """Every measured platform: what its collectives cost, and how far off the model is on what was held out."""
    rows = [
        {
            "name": name,
            "link": calibration.link,
            "platform": calibration.platform,
            "stands_for_link": calibration.stands_for_link,
            "operation": operation,
            **msgspec.structs.asdict(fit),
        }
        for name, calibration in calibrations.items()
        for operation, fit in calibration.operations.items()
    ]
    return Table(
        "Measured collectives; what has * stands for its link where that is named",
        [
            Column("name", "name", left=True),
            Column("link", "link", left=True, spare=3),
            Column("stands_for_link", "", lambda value: "*" if value else "", left=True),
            Column("operation", "operation", left=True),
            Column("start_s", "start", say_time_briefly, spare=4),
            Column("latency_s", "latency", say_time_briefly),
            Column("ppp", "PPP", span),
            Column("held_out_sizes", "held-out\nerror", say_percent),
            Column("platform", "measured on", left=True, fold=True, spare=2),
            Column("points", "points", spare=5),
        ],
        rows,
    )
