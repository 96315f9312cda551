"""Documents of networks: lists of networks, their layers, and FLOPs, MACs and parameters per layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..architectures import CountsComparison, LayerCounts, Network
from ..architectures.network import Publication
from ..counting import CONSTANT, INPUT
from ..text import format_plural
from ..timing.facility import SiteEnergy
from ..units import format_shape, format_si
from .answers import site_text
from .columns import find_column, select_columns
from .document import LINES_AROUND_ROWS, Column, Document, Table, more_note, raw_table
from .formats import format_count

_LINES_PER_TABLE = 4
"""Lines that a further table adds to its rows."""


def networks_page(rows: list[dict[str, Any]], max_lines: int | None = None) -> Document:
    """Return the document of the shipped networks and pipelines, with a table per group and publisher, by year.

    If this has more lines than `max_lines`, it is one table of the newest, with all as data.
    """
    columns = select_columns(
        "year",
        "name",
        "input_shape",
        "layers",
        "parameters",
        "active_parameters",
        "macs",
        "flops",
        "source",
        drop=("layers", "source", "active_parameters"),
    )
    tables = []
    for group in dict.fromkeys(row["group"] for row in rows):
        of_group = [row for row in rows if row["group"] == group]
        for publisher in sorted({row["publisher"] or "" for row in of_group}):
            members = [row for row in of_group if (row["publisher"] or "") == publisher]
            members.sort(key=lambda row: row["year"] or 0)
            hidden = _uninformative_columns(members)
            shown = [column for column in columns if column.key not in hidden]
            by = f" by {publisher}" if publisher else ""
            tables.append(Table(f"{group[:1].upper()}{group[1:]}{by}, {len(members)}", shown, members))
    title = f"{len(rows)} networks and pipelines; MACs and FLOPs of inference, batch 1"
    lines = sum(_LINES_PER_TABLE + len(table.rows) for table in tables) - _LINES_PER_TABLE + LINES_AROUND_ROWS
    if max_lines is None or lines <= max_lines:
        return Document(title, (), tables, data=raw_table(rows))
    flat = [column for column in columns if not column.wrap]  # one line per row
    flat.insert(2, find_column("publisher", drop_order=2))
    newest = sorted(rows, key=lambda row: -(row["year"] or 0))
    number = max_lines - LINES_AROUND_ROWS - 1  # a line for the groups
    table = Table("Networks and pipelines", flat, newest).head(number, "the newest ")
    groups = Counter(row["group"] for row in rows)
    facts = [("groups", ", ".join(f"{group} {number}" for group, number in groups.items()))]
    note = more_note(len(rows) - len(table.rows), "`networks list llama`")
    return Document(title, facts, [table], [note], data=raw_table(rows))


def _uninformative_columns(rows: list[dict[str, Any]]) -> set[str]:
    """Return the columns to hide: the year if all are unknown, active parameters if all parameters are active."""
    hidden = set()
    if not any(row["year"] for row in rows):
        hidden.add("year")
    if all(row["active_parameters"] == row["parameters"] for row in rows):
        hidden.add("active_parameters")
    return hidden


def network_dict(network: Network) -> dict[str, Any]:
    """Return the JSON of a network."""
    return {
        "name": network.name,
        "source": network.source,
        "inputs": [list(shape) for shape in network.inputs],
        "parameters": network.parameters,
        "active_parameters": network.active_parameters,
        "notes": list(network.notes),
        "layers": [
            {
                **{name: value for name, value in layer._asdict().items() if name != "place"},
                "role": layer.place.role,
                "block": layer.place.number,
                "parents": [_parent_name(network, index) for index in layer.parents],
            }
            for layer in network.layers
        ],
    }


def _parent_name(network: Network, index: int) -> str:
    if index == INPUT:
        return "(input)"
    if index == CONSTANT:
        return "(constant)"
    return network.layers[index].name


def network_page(network: Network) -> Document:
    """Return the document of the layers of a network."""
    rows = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "inputs": ", ".join(format_shape(shape) for shape in layer.inputs),
            "outputs": ", ".join(format_shape(shape) for shape in layer.outputs),
            "parents": ", ".join(_parent_name(network, index) for index in layer.parents),
            "attributes": ", ".join(f"{name}={_format_attribute(value)}" for name, value in layer.attributes.items()),
        }
        for layer in network.layers
    ]
    table = Table(
        "Layers",
        select_columns(
            find_column("layer", key="name"),
            "kind",
            "inputs",
            "outputs",
            "parents",
            "attributes",
            drop=("parents", "inputs", "attributes", "outputs"),
        ),
        rows,
    )
    facts = [
        ("source", network.source),
        ("input", ", ".join(format_shape(shape) for shape in network.inputs)),
        ("parameters", f"{network.parameters:,}"),
    ]
    if network.active_parameters != network.parameters:
        facts.append(("active parameters per token", f"{network.active_parameters:,}"))
    if network.publication is not None:
        facts.append(("published", _format_publication(network.publication)))
    return Document(f"{network.name}: {format_plural(len(rows), 'layer')}", facts, [table], network.notes)


def _format_publication(publication: Publication) -> str:
    text = f"{format_si(publication.parameters)} parameters"
    if publication.active_parameters is not None:
        text += f", {format_si(publication.active_parameters)} active"
    definition = f" ({publication.definition})" if publication.definition else ""
    return f"{text}{definition} by {publication.publisher}, {publication.card}"


def _format_attribute(value: Any) -> str:
    return format_shape(tuple(value)) if isinstance(value, list) else str(value)


def counts_page(
    counts: LayerCounts,
    depth: int | None = None,  # number of module levels to show; None: as many as fit a readable table
    top: int | None = None,  # number of layers with the largest counts to show instead of modules
) -> Document:
    """Return the document of the counts of a network by module or for its largest layers, and by kind of layer.

    CSV output contains all layers.
    """
    unit = counts.work.convention.unit
    rows = list(counts.rows())
    total = {
        "name": "total",
        "count": counts.total,
        "parameters": sum(row["parameters"] for row in rows),
        "macs": sum(row["macs"] for row in rows),
        "share": 1.0 if counts.total else None,
    }
    costs, total_with_overhead, overhead = counts.costs, total, list[dict[str, Any]]()
    layers = Table("Layers (shapes of one sample)", [*_columns(unit), *(_COSTS if costs else [])], rows, [total])
    if costs is not None:
        total |= {name: sum(row[name] for row in rows) for name in ("time_s", "energy_j")}
        overhead = [{"kind": "overhead", "time_s": costs.overhead_s, "energy_j": costs.overhead_j}]
        total_with_overhead = {**total, **{name: total[name] + overhead[0][name] for name in ("time_s", "energy_j")}}
    if top is not None:
        largest_by = "count" if costs is None else "energy_j"
        largest = sorted(rows, key=lambda row: -(row[largest_by] or 0))[:top]
        title = f"Largest layers, {len(largest)} of {len(rows)} (shapes of one sample)"
        shown = layers.replace(
            title=title,
            rows=_add_shares(largest, counts),
            columns=[*layers.columns, _SHARE.replace(drop_order=1)],
            footer=[],
        )
    else:
        tree = counts.modules(depth)
        shows_all_layers = len(rows) == sum(row["kind"] is not None for row in tree)
        levels = format_plural(max((row["level"] for row in tree), default=0) + 1, "level")
        title = layers.title if shows_all_layers else f"Modules, {levels} (--depth shows more)"
        indented = [
            {
                **row,
                "name": "  " * row["level"] + row["name"],
                "kind": row["kind"] or format_plural(row["layers"], "layer"),
            }
            for row in _add_shares(tree, counts)
        ]
        shown = layers.replace(title=title, rows=indented, columns=[*layers.columns, _SHARE.replace(drop_order=1)])
    kinds = Table(
        "By kind",
        select_columns("kind", "layers", find_column("count", title=unit), _SHARE, *(_COSTS if costs else [])),
        [{"kind": kind, **entry} for kind, entry in counts.by_kind().items()] + overhead,
        [{**total_with_overhead, "kind": "total", "layers": len(rows), "share": 1.0 if counts.total else 0.0}],
    )
    batch = "" if counts.batch_size == 1 else f", batch {counts.batch_size}"
    return Document(
        f"{counts.network.name}, {counts.phase}{batch}: {format_si(counts.total, unit, 6)}, "
        f"{format_si(counts.network.parameters, '', 6)} parameters",
        _facts(counts),
        [shown, kinds],
        counts.notes,
        raw_table(rows, (*_KEYS, *([column.key for column in _COSTS] if costs else []))),
    )


def counts_comparison_page(comparison: CountsComparison) -> Document:
    """Return the document that compares the counts of several networks, with the share of convolutions."""
    first = comparison.counts[0]
    convention = first.work.convention
    columns = select_columns(
        "network",
        "layers",
        find_column("parameters", show=format_count),
        "frozen_parameters",
        find_column("macs", show=format_count),
        find_column("count", title=convention.unit),
        "convolution_count",
        "convolution_share",
        *(_COSTS if first.costs is not None else ()),
        *(_SITE if first.costs is not None and first.costs.site is not None else ()),
        drop=("frozen_parameters", "layers", "macs", "convolution_count"),
    )
    rows = list(comparison.rows())
    data = raw_table(rows)
    if convention.unit == "MAC":
        columns = [column for column in columns if column.key != "macs"]
    if not any(row["frozen_parameters"] for row in rows):
        columns = [column for column in columns if column.key != "frozen_parameters"]
    batch = "" if first.batch_size == 1 else f", batch {first.batch_size}"
    notes = (f"{counts.network.name}: {note}" for counts in comparison.counts for note in counts.notes)
    facts = [("convention", f"{convention.name}: {convention.meaning}")]
    if first.costs is not None:
        facts.append(("device", f"{first.costs.gpu}, in {first.costs.precision}"))
    table = Table("", columns, rows, sortable=True)
    return Document(f"{format_plural(len(rows), 'network')}, {first.phase}{batch}", facts, [table], tuple(notes), data)


_KEYS = ("name", "kind", "input_shape", "output_shape", "weight_shape", "macs", "parameters", "count")
_COSTS = select_columns("time_s", "energy_j")
_SITE = select_columns("site_energy_j")
_SHARE = find_column("share", show=lambda share: f"{share:.2%}")


def _columns(unit: str) -> list[Column]:
    """Return the columns of a table of layers, with a separate column of MACs unless the convention counts MACs."""
    return select_columns(
        find_column("layer", key="name"),
        "kind",
        "input_shape",
        "output_shape",
        "weight_shape",
        *([] if unit == "MAC" else [find_column("macs", show=format_count)]),
        find_column("parameters", show=lambda value: format_count(value) if value else "-"),
        find_column("count", title=unit),
        drop=("macs", "input_shape", "weight_shape", "output_shape", "kind"),
    )


def _add_shares(rows: Iterable[dict[str, Any]], counts: LayerCounts) -> list[dict[str, Any]]:
    """Return the rows with their share of the total count; None for layers without a count."""
    with_shares = []
    for row in rows:
        is_known = row["count"] is not None and counts.total
        with_shares.append({**row, "share": row["count"] / counts.total if is_known else None})
    return with_shares


def cost_facts(on: dict[str, Any], surroundings: str) -> list[tuple[str, str]]:
    """Return the facts about seconds and joules of a step on a device, and about its energy at the meter."""
    cost = f"{format_si(on['time_s'], 's')}, {format_si(on['energy_j'], 'J')} in {on['precision']}"
    facts = [(f"on {on['gpu']}", cost)]
    if on["site"] is not None:
        facts.append(("at the meter", site_text(SiteEnergy(**on["site"]), surroundings)))
    return facts


def _facts(counts: LayerCounts) -> list[tuple[str, str]]:
    convention, network = counts.work.convention, counts.network
    frozen = counts.frozen_parameters
    used_parameters = sum(layer.parameters for layer in network.layers)
    facts = [("convention", f"{convention.name}: {convention.meaning}"), ("source", network.source)]
    if network.parameters:
        unused = f", {network.parameters - used_parameters:,} unused" if network.parameters > used_parameters else ""
        facts.append(("parameters", f"{used_parameters - frozen:,} trainable, {frozen:,} frozen{unused}"))
    if counts.convolution_share:
        facts.append(("convolutions", f"{counts.convolution_share:.2%} of the {convention.unit}s"))
    if counts.work.execution != "eager":
        facts.append(("execution", f"{counts.work.execution}: {format_plural(counts.kernels, 'kernel')}"))
    if counts.costs is not None:
        facts += cost_facts(counts.costs.to_dict(), counts.costs.surroundings)
    if ignored := len(counts.work.names) - len(counts.reported):
        facts.append(("ignored", format_plural(ignored, "layer")))
    return facts
