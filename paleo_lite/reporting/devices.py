"""Documents of devices and links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import UnknownPrecision
from ..machines import Device, Link, SourcedFigure
from ..machines.audit import AuditFinding
from ..machines.prices import prices_of
from ..machines.registry import list_figures
from ..units import format_duration, format_si
from .columns import find_column, select_columns
from .document import (
    LINES_AROUND_ROWS,
    Document,
    Table,
    more_note,
)

if TYPE_CHECKING:
    from ..distributed.link_calibrations import LinkCalibration

SCOPE_TITLES = {
    "die": "one GPU",
    "board": "a board of several GPUs",
    "package": "a package of several GPUs",
    "module": "a system on a chip",
    "cpu": "one socket",
    "accelerator": "one accelerator",
}
"""What the figures of a device refer to, by its scope."""


def device_row(device: Device) -> dict[str, Any]:
    """Return the figures of a device for a list, in SI units, with rates at the default clock."""

    def rate(precision: str, unit: str) -> float | None:
        try:
            return device.find_peak(precision, unit).per_s
        except UnknownPrecision:
            return None

    fp16_rates = []
    for unit in ("vector", "tensor"):
        fp16_rate = rate("fp16", unit)
        if fp16_rate is not None:
            fp16_rates.append(fp16_rate)
    return {
        "id": device.id,
        "name": device.name,
        "architecture": device.architecture,
        "year": device.year,
        "scope": device.scope,
        "clock": device.clocks.default,
        "fp64_flops": rate("fp64", "vector"),
        "fp32_flops": rate("fp32", "vector"),
        "fp16_flops": max(fp16_rates, default=None),
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "memory_bytes": device.memory_bytes,
        "power_w": device.power_w,
        "rent_usd_per_h": device.rent_usd_per_h,
    }


def devices_page(devices: Iterable[Device], max_lines: int | None = None) -> Document:
    """Return the list of devices; if it has more lines than `max_lines`, of its newest devices, with all as data."""
    rows = [device_row(device) for device in devices]
    table = Table(
        "",
        select_columns(
            "id",
            find_column("name", wrap=True),
            "year",
            "fp64_flops",
            "fp32_flops",
            "fp16_flops",
            find_column("memory_bandwidth", key="bandwidth_bytes_per_s"),
            find_column("memory_size", key="memory_bytes"),
            find_column("power_limit_w", key="power_w"),
            "rent_usd_per_h",
            drop=("power_w", "rent_usd_per_h", "year", "name"),
        ),
        rows,
    )
    noun = "device" if len(rows) == 1 else "devices"
    title = f"{len(rows)} {noun}; dense peaks at the default clock, fp16 of the faster of vector and tensor units"
    if max_lines is None or len(rows) + LINES_AROUND_ROWS <= max_lines:
        return Document(title, (), [table])
    columns = [column for column in table.columns if not column.wrap]  # one line per row
    newest = sorted(rows, key=lambda row: -row["year"])
    shown = Table("Devices", columns, newest).head(max_lines - LINES_AROUND_ROWS, "the newest ")
    note = more_note(len(rows) - len(shown.rows), "`hardware list a100`")
    return Document(title, (), [shown], [note], data=table)


def device_dict(device: Device) -> dict[str, Any]:
    """Return the JSON of a device: the fields of its file, and the main figures in SI units."""
    fields: dict[str, Any] = msgspec.to_builtins(device)
    peaks = [{**peak, "per_s": parsed.per_s} for peak, parsed in zip(fields["peaks"], device.peaks)]
    return {**device_row(device), "figures": {**fields, "peaks": peaks}}


def device_page(device: Device) -> Document:
    """Return all figures of a device with their sources."""
    facts = [
        ("id", ", ".join([device.id, *device.aliases])),
        ("chip", f"{device.chip}, {device.vendor} {device.architecture}, {device.year}, {SCOPE_TITLES[device.scope]}"),
        ("default clock", device.clocks.default),
    ]
    if device.parts is not None:
        facts.append(
            ("consists of", f"{device.parts.count} x {device.parts.device} (each is a separate device for programs)")
        )
    rows = [
        {"figure": field, **_figure(figure)}
        for field, _, figure in list_figures(device)
        if not field.startswith("peaks")
    ]
    peaks = []
    for peak in device.peaks:
        accumulation = f", {peak.accumulate} accumulation" if peak.accumulate else ""
        label = f"{peak.precision} {peak.unit} peak, {peak.clock} clock{accumulation}"
        peaks.append(
            {
                "figure": label,
                **_figure(SourcedFigure(peak.value, peak.source, peak.note or peak.audit_exception, peak.unverified)),
            }
        )
    measured = [{"figure": f"measured {name}", **_figure(figure)} for name, figure in device.measured.items()]
    columns = select_columns("figure", "value", "source", "note")
    sources = Table(
        "Sources",
        select_columns(find_column("key", key="source"), find_column("description", key="text")),
        [{"source": name, "text": text} for name, text in device.sources.items()],
    )
    table = Table("Figures", columns, [*peaks, *rows, *measured])
    prices = Table(
        "Prices of one device; --price chooses one",
        select_columns("cloud", find_column("rent_usd_per_h", key="usd_per_h"), "date", "note"),
        [
            {"cloud": price.cloud, "usd_per_h": price.usd_per_h, "date": price.date, "note": price.note}
            for price in prices_of(device)
        ],
    )
    tables = [table, prices, sources] if prices.rows else [table, sources]
    return Document(device.name, facts, tables, device.conflicts, table)


def _figure(figure: SourcedFigure) -> dict[str, Any]:
    unverified = "unverified" if figure.unverified else ""
    note = "; ".join(text for text in (unverified, figure.note) if text)
    return {"value": figure.value, "source": figure.source, "note": note}


def links_page(links: dict[str, Link]) -> Document:
    """Return the list of links."""
    columns = select_columns(*_LINK, "note", drop=("kind",))
    rows = [_link_row(identity, link) for identity, link in links.items()]
    return Document(f"{len(rows)} links, bandwidth per direction", (), [Table("", columns, rows)])


def transfer_page(links: dict[str, Link], move_bytes: float) -> Document:
    """Return the time to transfer an amount of data over each link; notes list sources that disagree."""
    rows = []
    for identity, link in links.items():
        seconds = move_bytes / link.bandwidth_bytes_per_s
        rows.append({**_link_row(identity, link), "move_s": seconds, "move": format_duration(seconds)})
    columns = select_columns(
        *_LINK,
        find_column("move", title=format_si(move_bytes, "B")),  # what is moved
        "move_s",
        drop=("kind", "per"),
    )
    headline = f"{format_si(move_bytes, 'B')} over {len(rows)} links at full bandwidth in one direction"
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


_LINK = select_columns(
    "id",
    find_column("name", wrap=True),
    "kind",
    find_column("link_bandwidth", key="bandwidth_bytes_per_s"),
    "per",
)


def audit_page(devices: int, findings: list[AuditFinding]) -> Document:
    """Return the findings of an audit, errors first."""
    ordered = sorted(findings, key=lambda finding: (finding.severity != "error", finding.device))
    rows = [
        {"severity": finding.severity, "device": finding.device, "field": finding.field, "message": finding.message}
        for finding in ordered
    ]
    errors = sum(finding.severity == "error" for finding in findings)
    table = Table(
        "",
        select_columns(find_column("gpu", key="device"), "field", "severity", "message", drop=("severity",)),
        rows,
    )
    headline = f"{devices} devices: {errors} errors, {len(findings) - errors} deviations explained in the files"
    return Document(headline, (), [table] if rows else [], data=table)


def format_range(values: Sequence[float]) -> str:
    """Return the range of some values: ``0.72 to 0.80``, or ``0.72`` if they are equal."""
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def calibrated_links_table(calibrations: Mapping[str, LinkCalibration]) -> Table:
    """Return the fitted collective costs of each measured platform, with the error on held-out message sizes."""
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
        "Measured collectives; * marks the calibration used for a link by default",
        select_columns(
            "name",
            "link",
            "stands_for_link",
            "operation",
            "start_s",
            "latency_s",
            find_column("ppp", show=format_range),  # one for each number of workers
            find_column("held_out_error", key="held_out_sizes"),
            "platform",
            "points",
            drop=("points", "start_s", "link", "platform"),
            short=True,
        ),
        rows,
    )
