"""Efficiencies to look at: a row per profile, means of groups, and for a single profile where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..profile_analysis import BY
from ..profile_analysis.analysis import Efficiency
from ..profile_analysis.critical_path import PARTS
from ..profile_analysis.device_time import CAUSES
from ..profile_analysis.ranks import Ranks
from ..profile_analysis.steady import COVERED_ENOUGH
from ..units import format_si
from .document import (
    Column,
    Document,
    Table,
    end_of_path,
    raw_table,
    say_bandwidth,
    say_many,
    say_percent,
    say_size,
    say_time,
    say_yes_or_no,
)

_TITLES = {
    "data_loader": "loader", "batch_size": "batch", "gradient_precision": "gradients", "compute_precision": "compute",
    "gpus_per_node": "GPUs", "repetition": "run",
}  # fmt: skip
_LISTS = ("missing", "notes", "idle_s", "gaps", "steps", "operators", "collectives", "launching", "critical_path")
_COUNTED = {"flops": "flops", "bandwidth": "bytes"}  # what each share of peak is of
_COSTLIEST = 5
_PRINTED = 0.0005  # the least share that is printed as other than 0.0%
_LISTED = 8  # operations without a count that are listed


def efficiency_page(result: Efficiency) -> Document:
    """The page of an analysis of any number of profiles."""
    varying = [name for name in result.configuration if len({row.get(name) for row in result.rows}) > 1]
    figures = _FIGURES[result.method]
    title, facts, notes = _headline(result), _facts(result, varying), (*result.notes, *_notes(result))
    tables, data = [], None
    if len(result.rows) == 1 and result.method == "steady":
        tables += _one(result.rows[0], result.by)
    if result.ranks is not None:
        tables += _ranks(result.ranks)
    if result.rows:
        lead = [
            Column(name, _TITLES.get(name, name), left=isinstance(result.rows[0][name], str))
            for name in varying
            if name != "return_code"
        ] or [Column("file", "file", left=True)]
        if any(row["batch_duration_s"] is not None for row in result.rows):
            lead.append(Column("batch_duration_s", "batch (s)", "{:.4f}".format, spare=8))
            lead.append(Column("duration_from", "from", left=True, spare=9))
        tables.append(Table("Profiles", [*lead, *figures], result.rows))
    if result.groups:
        titles = [_TITLES.get(name, name) for name in result.group_by]
        lead = [Column(name, title) for name, title in zip(result.group_by, titles)]
        lead.append(Column("files", "files", spare=9))
        data = Table(f"Means by {', '.join(titles)}", [*lead, *figures], result.groups)
        tables.append(data)
    return Document(title, facts, tables, notes, data or (lambda: _data(result)))


def _headline(result: Efficiency) -> str:
    read, failed = len(result.rows), len(result.failed)
    if read != 1 or failed:
        bad = f", {failed} could not be read" if failed else ""
        return f"{say_many(read, 'profile')} against {result.device.name}{bad}"
    row = result.rows[0]
    busy = row.get("busy_share")
    lead = "" if busy is None else f"busy {say_percent(busy)} of {say_time(row['window_s'])}, "
    lead += "" if row.get("mfu") is None else f"MFU {say_percent(row['mfu'])}, "
    shares = []
    for what in ("flops", "bandwidth"):
        value, covered = row[f"{what}_efficiency"], row.get(f"{_COUNTED[what]}_covered", 1.0)
        told = value is not None and (covered >= COVERED_ENOUGH or value >= _PRINTED)  # or next to nothing is counted
        shares.append(say_percent(value) if told else "an unknown share")
    return f"{row['file']} on {result.device.name}: {lead}{shares[0]} of peak FLOP/s, {shares[1]} of peak bandwidth"


def _facts(result: Efficiency, varying: Sequence[str]) -> list[tuple[str, str]]:
    words = {
        "steady": "one steady iteration (medians), what the profiler left out counted from the shapes",
        "notebook": "all rows as the profiler counted them, as SURFBoard's notebook does",
    }
    peaks = dict.fromkeys(row.get("peak", result.peak.describe()) for row in result.rows or [{}])
    facts = [
        ("method", f"{result.method}: {words[result.method]}"),
        ("peak", " or ".join(peaks)),
        ("memory", f"{format_si(result.device.bandwidth_bytes_per_s, 'B/s')} peak bandwidth"),
    ]
    constant = [name for name in result.configuration if name not in varying and result.rows]
    if constant:
        said = (f"{_TITLES.get(name, name)} {result.rows[0][name]}" for name in constant)
        facts.append(("all of them", ", ".join(said)))
    bases = sorted({row["time_basis"] for row in result.rows if "time_basis" in row})
    if len(result.rows) == 1 and result.rows[0].get("busy_share") is not None:
        facts += _idle_facts(result.rows[0])
    if result.ranks is not None:
        facts += _rank_facts(result.ranks)
    if bases:
        facts.append(("rates over", " or ".join(bases)))
    return facts


def _idle_facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Why the device was idle, and what the rest of the time is made of."""
    facts = []
    causes = [(cause, time_s) for cause, time_s in row["idle_s"].items() if time_s]
    if causes:
        window_s = row["window_s"]
        said = (f"{CAUSES[cause]} {say_time(time_s)} ({say_percent(time_s / window_s)})" for cause, time_s in causes)
        facts.append(("idle", ", ".join(said)))
    if row["communication_s"]:
        beside = f"{say_percent(row['communication_overlap'])} beside computation"
        exposed = f"{say_time(row['exposed_communication_s'])} exposed"
        facts.append(("communication", f"{say_time(row['communication_s'])}, {beside}, {exposed}"))
    if row["exposed_copy_s"]:
        facts.append(("copies", f"{say_time(row['exposed_copy_s'])} with nothing beside them"))
    if (launching := row["launching"]) is not None and launching["delay_s"] is not None:
        queue = max(launching["queues"], key=lambda queue: queue["mean"])
        waiting = f"{queue['mean']:.1f} waiting on stream {queue['stream']} (mean; {queue['longest']} at most)"
        facts.append(("launches", f"begun {say_time(launching['delay_s'])} after their call (median), {waiting}"))
    path = row["critical_path"]
    parts = [(part, time_s) for part, time_s in path["parts_s"].items() if time_s > 0.0005 * path["time_s"]]
    if parts:
        what = "the profile" if path["step"] is None else path["step"]
        said = (f"{PARTS[part]} {say_time(time_s)} ({say_percent(time_s / path['time_s'])})" for part, time_s in parts)
        facts.append(("critical path", f"of {what}, {say_time(path['time_s'])}: {', '.join(said)}"))
    return facts


def _rank_facts(ranks: Ranks) -> list[tuple[str, str]]:
    """How unevenly ranks compute, and which comes last."""
    longest = max(ranks.rows, key=lambda row: row.computing_s)
    facts = [("imbalance", f"rank {longest.rank} computes {ranks.imbalance:.1%} longer than ranks do on average")]
    if ranks.straggler is not None:
        others = [row.waiting_s for row in ranks.rows if row.rank != ranks.straggler]
        wait = f"the others wait {say_time(sum(others) / len(others))} each on average in {ranks.matched} collectives"
        facts.append(("straggler", f"rank {ranks.straggler} comes last most: {wait}"))
    return facts


def _ranks(ranks: Ranks) -> list[Table]:
    columns = [
        Column("rank", "rank"),
        Column("window_s", "time", say_time, spare=1),
        Column("busy_share", "busy", say_percent),
        Column("computing_s", "computing", say_time),
        Column("communication_s", "commu-\nnication", say_time),
        Column("exposed_communication_s", "exposed", say_time),
        Column("waiting_s", "waiting for\nother ranks", say_time),
    ]
    tables = [Table("By rank", columns, msgspec.to_builtins(ranks.rows))]
    if any(row.bytes is not None for row in ranks.collectives):
        columns = [column for column in _COLLECTIVE if column.key != "exposed_s"]
        rows = msgspec.to_builtins(ranks.collectives)
        tables.append(Table("Collectives without waiting", columns, rows).first(_LISTED))
    return tables


def _one(row: dict[str, Any], by: str) -> list[Table]:
    """Where an iteration's time goes, what in it takes longest against the roofline, and what of it is not counted."""
    passes = [
        {"part": name, "time_s": time_s, "share": time_s / row["kernel_s"]}
        for name in ("forward", "backward", "update", "other")
        if (time_s := row[f"{name}_s"]) is not None
    ]
    convolutions = [
        {"part": name, "time_s": time_s, "share": time_s / row[f"{name}_s"],
         "flops": row[f"conv_flops_{name}"], "of_peak": row[f"conv_of_peak_{name}"]}
        for name in ("forward", "backward")
        if (time_s := row[f"conv_{name}_s"]) is not None and row[f"{name}_s"]
    ]  # fmt: skip
    total = {"part": "iteration", "time_s": row["kernel_s"], "share": 1.0, "flops": row["flops"],
             "of_peak": row["flops_efficiency"]}  # fmt: skip
    tables = [Table("A steady iteration, by summed kernel time", _PARTS, passes, [total])]
    if convolutions:
        of_pass = Column("share", "share of\nthe pass", say_percent)
        tables.append(Table("Convolutions in it", [*_PARTS[:2], of_pass, *_PARTS[3:]], convolutions))
    if by != "op" or any(item["flops"] for item in row["operators"]):
        first = Column("op", by if by in ("module", "kernel") else "operation", end_of_path, left=True)
        operators = Table(BY[by], [first, *_OPERATORS], row["operators"])
        tables.append(operators.first(_COSTLIEST if by == "op" else 4 * _COSTLIEST, "the longest "))
    if len(row["steps"]) > 1:
        tables.append(Table("Steps", _STEPS, row["steps"]).first(_LISTED, "the first "))
    if row.get("gaps"):
        tables.append(Table("The longest times in which nothing ran", _GAPS, row["gaps"]))
    if row.get("collectives"):
        tables.append(Table("Collectives", _COLLECTIVE, row["collectives"]).first(_LISTED))
    if row["missing"]:
        missing = Table("FLOPs that neither the profiler nor a rule counts", _MISSING, row["missing"])
        tables.append(missing.first(_LISTED, "the longest "))
    return tables


def _notes(result: Efficiency) -> list[str]:
    """What is said of every profile once; what is said of some with how many."""
    counts: dict[str, int] = {}
    for row in result.rows:
        for note in row.get("notes", ()):
            counts[note] = counts.get(note, 0) + 1
    total = len(result.rows)
    notes = [note if count == total else f"{note} ({count} of {total} profiles)" for note, count in counts.items()]
    if result.by == "module" and result.rows and all(len(row["operators"]) < 2 for row in result.rows):
        notes.append(
            "no modules and no ranges: profile with with_stack=True, or mark them with torch.profiler.record_function"
        )
    return notes + [f"not read: {failure['error']}" for failure in result.failed]


def _data(result: Efficiency) -> Table:
    keys = list(dict.fromkeys(key for row in result.rows for key in row if key not in _LISTS))
    return raw_table(result.rows, keys)


def _in_percent(share: float) -> str:
    """As SURFBoard's notebook prints it."""
    return f"{share * 100:.6f}"


_FIGURES = {
    "notebook": [
        Column("compute_efficiency", "compute\neff. (%)", _in_percent, spare=2),
        Column("flops_per_s", "TFLOP/s", lambda rate: f"{rate * 1e-12:.6f}", spare=3),
        Column("bandwidth_bytes_per_s", "GB/s", lambda rate: f"{rate * 1e-9:.6f}", spare=4),
        Column("bandwidth_efficiency", "bandwidth\neff. (%)", _in_percent, spare=1),
        Column("flops_efficiency", "FLOPS\neff. (%)", _in_percent),
    ],
    "steady": [
        Column("forward_s", "forward", say_time),
        Column("backward_s", "backward", say_time),
        Column("kernel_s", "iteration", say_time, spare=3),
        Column("compute_efficiency", "in\ncompute", say_percent, spare=4),
        Column("flops_efficiency", "of peak\nFLOP/s", say_percent),
        Column("bandwidth_efficiency", "of peak\nB/s", say_percent, spare=2),
        Column("conv_of_peak_forward", "conv. fw.,\nof peak", say_percent, spare=6),
        Column("conv_of_peak_backward", "conv. bw.,\nof peak", say_percent, spare=5),
        Column("conv_of_peak", "conv. in\niteration", say_percent, spare=7),
    ],
}
"""What is shown of each profile, and of the means of a group, by method."""

_PARTS = [
    Column("part", "part", left=True),
    Column("time_s", "time", say_time),
    Column("share", "share", say_percent),
    Column("flops", "FLOPs", format_si),
    Column("of_peak", "of peak\nFLOP/s", say_percent),
]

_OPERATORS = [
    Column("calls", "calls", spare=4),
    Column("time_s", "time", say_time),
    Column("share", "share", say_percent),
    Column("flops_per_s", "FLOP/s", format_si, spare=1),
    Column("bandwidth_bytes_per_s", "B/s", format_si, spare=3),
    Column("of_peak", "of peak\nFLOP/s", say_percent),
    Column("bound", "bound by", left=True),
    Column("of_roofline", "of the\nroofline", say_percent),
]

_STEPS = [
    Column("name", "step", left=True),
    Column("kernel_s", "kernel time", say_time),
    Column("counts", "counts", say_yes_or_no, left=True),
]

_GAPS = [
    Column("start_s", "at", say_time),
    Column("time_s", "time", say_time),
    Column("cause", "why", CAUSES.__getitem__, left=True),
    Column("host", "the host meanwhile", left=True),
    Column("before", "then came", left=True, spare=1),
]

_COLLECTIVE = [
    Column("collective", "collective", left=True),
    Column("dtype", "type", left=True, spare=2),
    Column("devices", "devices", spare=1),
    Column("bytes", "message", say_size),
    Column("calls", "calls"),
    Column("time_s", "time", say_time),
    Column("exposed_s", "exposed", say_time),
    Column("bus_bandwidth_bytes_per_s", "bus\nbandwidth", say_bandwidth),
]

_MISSING = [
    Column("op", "operation", left=True),
    Column("time_s", "time", say_time),
    Column("share", "share", "{:.2%}".format),
]
