"""Document of achieved efficiency: a row per profile and means of groups, or the time breakdown of a single profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..machines import Device
from ..profile_analysis import GROUPINGS
from ..profile_analysis.analysis import Efficiency
from ..profile_analysis.critical_path import PARTS
from ..profile_analysis.device_time import CAUSES
from ..profile_analysis.ranks import Ranks
from ..profile_analysis.steady import MIN_COVERAGE, NO_ITERATIONS
from ..text import format_plural
from ..units import format_si
from .columns import find_column, option_column, select_columns
from .document import Column, Document, Table, raw_table
from .formats import format_percent, format_time

_TITLES = {
    "data_loader": "loader", "batch_size": "batch", "gradient_precision": "gradients", "compute_precision": "compute",
    "gpus_per_node": "GPUs", "repetition": "run",
}  # fmt: skip
# Fields of a row that contain lists or dicts, which CSV omits.
_LISTS = (
    "missing",
    "notes",
    "idle_s",
    "gaps",
    "steps",
    "operators",
    "collectives",
    "launching",
    "critical_path",
    "engine_steps",
)
_COUNTED = {"flops": "flops", "bandwidth": "bytes"}  # count that each fraction of a peak is computed from
_NAMED_FILES = 3  # files that a note names
_MAX_OPERATORS = 5
_MODULE_PATH_WIDTH = 34
_SMALLEST_PRINTED = 0.0005  # smallest fraction that is not printed as 0.0%
_MOSTLY_COPIES = 0.5  # share of the busy time from which a headline names its copies
_ALL_UNCOUNTED = 1.01  # time of all operations over that of the uncounted ones up to which they are the same
_MAX_ROWS = 8  # rows of secondary tables


def efficiency_page(result: Efficiency) -> Document:
    """Return the document of an analysis of any number of profiles."""
    varying = [name for name in result.configuration if len({row.get(name) for row in result.rows}) > 1]
    figures = _FIGURES[result.method]
    tables, data = [], None
    if len(result.rows) == 1 and result.method == "steady":
        tables += _profile_tables(result.rows[0], result.by)
    if result.ranks is not None:
        tables += _rank_tables(result.ranks)
    if result.rows:
        lead = []
        for name in varying:
            if name != "return_code":
                is_text = isinstance(result.rows[0][name], str)
                lead.append(_setting_column(name, is_text))
        if not lead:
            lead.append(find_column("file"))
        if any(row["batch_duration_s"] is not None for row in result.rows):
            lead.append(find_column("batch_duration_s", drop_order=8))
            lead.append(find_column("duration_from", drop_order=9))
        tables.append(Table("Profiles", [*lead, *figures], result.rows))
    if result.groups:
        titles = [_TITLES.get(name, name) for name in result.group_by]
        lead = [_setting_column(name, is_text=False) for name in result.group_by]
        lead.append(find_column("files", drop_order=9))
        data = Table(f"Means by {', '.join(titles)}", [*lead, *figures], result.groups)
        tables.append(data)
    notes = (*result.notes, *_notes(result))
    return Document(_headline(result), _facts(result, varying), tables, notes, data or (lambda: _csv_table(result)))


def _headline(result: Efficiency) -> str:
    """Return the headline: the number of profiles, or the efficiencies of a single profile."""
    read, failed = len(result.rows), len(result.failed)
    if read != 1 or failed:
        failures = f", {failed} could not be read" if failed else ""
        if result.device_conflict:
            failures += f"; the first profile contradicts this ({result.device_conflict}), no share of peak"
        return f"{format_plural(read, 'profile')} on {result.device.name}{failures}"
    row = result.rows[0]
    parts = []
    if result.device_conflict or result.peak is None:
        if isinstance(result.device, Device):
            parts.append(f"{row['file']}: {result.device_conflict}; no share of peak")
        else:
            parts.append(f"{row['file']} {result.device.reason}: no share of peak")
        if row.get("busy_share") is not None:
            parts.append(_busy_text(row))
        return ", ".join(parts)
    if row.get("busy_share") is not None:
        parts.append(_busy_text(row))
    if _is_meaningful(row, row.get("mfu"), "flops"):
        parts.append(f"MFU {format_percent(row['mfu'])} (step of {format_time(row['step_s'])})")
    shares = []
    for quantity, peak in (("flops", "peak FLOP/s"), ("bandwidth", "peak bandwidth")):
        value = row[f"{quantity}_efficiency"]
        if _is_meaningful(row, value, quantity):
            shares.append(f"{format_percent(value)} of {peak}")
    parts += shares or ["no share of peak: too little of its work is counted"]
    return f"{row['file']} on {result.device.name}: {', '.join(parts)}"


def _busy_text(row: Mapping[str, Any]) -> str:
    """Return the busy share of the recorded time, which is summed over devices."""
    devices = row["recorded_devices"]
    summed = f", summed over {devices} devices" if devices > 1 else ""
    copies = row["exposed_copy_s"] / row["window_s"] if row["window_s"] else 0.0
    copying = f", {format_percent(copies)} in copies alone" if copies > _MOSTLY_COPIES * row["busy_share"] else ""
    return f"busy {format_percent(row['busy_share'])} of {format_time(row['window_s'])}{summed}{copying}"


def _is_meaningful(row: Mapping[str, Any], share: float | None, quantity: str) -> bool:
    """Return whether a share of peak says something: most of the time is counted, or the share is not near zero."""
    if share is None:
        return False
    covered = row.get(f"{_COUNTED[quantity]}_covered", 1.0)
    return bool(covered >= MIN_COVERAGE or share >= _SMALLEST_PRINTED)


WHOLE = "the whole profile, in which no iterations were found"
"""Method of profiles without iterations."""


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Return whether the figures of a profile are of all of it, because no iterations were found."""
    return NO_ITERATIONS in row.get("notes", ())


def _facts(result: Efficiency, varying: Sequence[str]) -> list[tuple[str, str]]:
    methods = {
        "steady": "one steady-state iteration (medians); FLOPs missing from the profile are computed from shapes",
        "notebook": "all rows with the profiler's own counts, as in SURFBoard's notebook",
    }
    method = f"{result.method}: {methods[result.method]}"
    if result.rows and all(map(_is_whole, result.rows)):
        method = f"{WHOLE}; {methods['steady'].partition('; ')[2]}"
    facts = [("method", method)]
    if result.peak is not None and isinstance(result.device, Device):
        peaks = dict.fromkeys(row.get("peak", result.peak.describe()) for row in result.rows or [{}])
        facts.append(("peak", " or ".join(peaks)))
        facts.append(("memory", f"{format_si(result.device.bandwidth_bytes_per_s, 'B/s')} peak bandwidth"))
    constant = [name for name in result.configuration if name not in varying and result.rows]
    if constant:
        settings = [f"{_TITLES.get(name, name)} {result.rows[0][name]}" for name in constant]
        facts.append(("common settings", ", ".join(settings)))
    bases = sorted({row["time_basis"] for row in result.rows if "time_basis" in row})
    if len(result.rows) == 1 and result.rows[0].get("busy_share") is not None:
        facts += _idle_facts(result.rows[0])
    if result.ranks is not None:
        facts += _rank_facts(result.ranks)
    if bases:
        facts.append(("rates over", " or ".join(bases)))
    return facts


def _idle_facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return facts about idle time by cause, communication, copies, launches and the critical path."""
    facts = []
    causes = [(cause, time_s) for cause, time_s in row["idle_s"].items() if time_s]
    if causes:
        window_s = row["window_s"]
        parts = [
            f"{CAUSES[cause]} {format_time(time_s)} ({format_percent(time_s / window_s)})" for cause, time_s in causes
        ]
        facts.append(("idle", ", ".join(parts)))
    if row["communication_s"]:
        overlapped = f"{format_percent(row['communication_overlap'])} overlapped with computation"
        exposed = f"{format_time(row['exposed_communication_s'])} exposed"
        facts.append(("communication", f"{format_time(row['communication_s'])}, {overlapped}, {exposed}"))
    if row["exposed_copy_s"]:
        facts.append(("copies", f"{format_time(row['exposed_copy_s'])} exposed"))
    if row["exposed_fill_s"]:
        facts.append(("fills of memory", f"{format_time(row['exposed_fill_s'])} exposed"))
    launching = row["launching"]
    if launching is not None and launching["delay_s"] is not None:
        queue = max(launching["queues"], key=lambda queue: queue["mean"])
        waiting = f"queue of stream {queue['stream']}: {queue['mean']:.1f} kernels (mean), {queue['longest']} (maximum)"
        facts.append(("launches", f"{format_time(launching['delay_s'])} after the launch call (median); {waiting}"))
    path = row["critical_path"]
    parts = []
    for part, time_s in path["parts_s"].items():
        if time_s > 0.0005 * path["time_s"]:
            parts.append(f"{PARTS[part]} {format_time(time_s)} ({format_percent(time_s / path['time_s'])})")
    if parts:
        scope = "the profile" if path["step"] is None else path["step"]
        facts.append(("critical path", f"of {scope}, {format_time(path['time_s'])}: {', '.join(parts)}"))
    return facts


def _rank_facts(ranks: Ranks) -> list[tuple[str, str]]:
    """Return facts about the load imbalance of the ranks and the straggler."""
    longest = max(ranks.rows, key=lambda row: row.computing_s)
    facts = [("imbalance", f"rank {longest.rank} computes {ranks.imbalance:.1%} longer than the average rank")]
    if ranks.straggler is not None:
        others = [row.waiting_s for row in ranks.rows if row.rank != ranks.straggler]
        wait = f"the others wait {format_time(sum(others) / len(others))} on average in {ranks.matched} collectives"
        facts.append(("straggler", f"rank {ranks.straggler} is last most often; {wait}"))
    return facts


def _rank_tables(ranks: Ranks) -> list[Table]:
    columns = select_columns(
        "rank",
        find_column("time_s", key="window_s"),
        "busy_share",
        "computing_s",
        "communication_s",
        find_column("exposed_s", key="exposed_communication_s"),
        "waiting_s",
        drop=("window_s",),
    )
    tables = [Table("By rank", columns, msgspec.to_builtins(ranks.rows))]
    if any(row.bytes is not None for row in ranks.collectives):
        columns = [column for column in _COLLECTIVE if column.key != "exposed_s"]
        rows = msgspec.to_builtins(ranks.collectives)
        tables.append(Table("Collectives, without waiting time", columns, rows).head(_MAX_ROWS))
    return tables


def _profile_tables(row: dict[str, Any], by: str) -> list[Table]:
    """Return the tables of one iteration: passes, operators on the roofline, idle gaps, and uncounted operations."""
    passes = []
    for name in ("forward", "backward", "update", "other"):
        time_s = row[f"{name}_s"]
        if time_s is not None:
            passes.append({"part": name, "time_s": time_s, "share": time_s / row["kernel_s"]})
    convolutions = []
    for name in ("forward", "backward"):
        time_s = row[f"conv_{name}_s"]
        if time_s is not None and row[f"{name}_s"]:
            convolutions.append(
                {
                    "part": name,
                    "time_s": time_s,
                    "share": time_s / row[f"{name}_s"],
                    "flops": row[f"conv_flops_{name}"],
                    "of_peak": row[f"conv_of_peak_{name}"],
                }
            )
    total = {
        "part": "all kernels" if _is_whole(row) else "iteration",
        "time_s": row["kernel_s"],
        "share": 1.0,
        "flops": row["flops"],
        "of_peak": row["flops_efficiency"],
    }
    extent = "Whole profile" if _is_whole(row) else "Steady-state iteration"
    tables = [Table(f"{extent}, by summed kernel time", _PARTS, passes, [total])]
    if convolutions:
        share_of_pass = find_column("share", title="share of\nthe pass")  # not of the iteration
        place = "in the profile" if _is_whole(row) else "in the iteration"
        tables.append(Table(f"Convolutions {place}", [*_PARTS[:2], share_of_pass, *_PARTS[3:]], convolutions))
    uncounted_s = sum(item["time_s"] for item in row["missing"])
    # Copies need no FLOP count: where they take time, the uncounted operations are not all there is.
    has_others = sum(item["time_s"] for item in row["operators"]) > _ALL_UNCOUNTED * uncounted_s
    if by != "op" or has_others or any(item["flops"] or item["of_roofline"] for item in row["operators"]):
        name = by if by in ("module", "kernel") else "operation"
        first = find_column(name, key="op", show=_shorten_module_path)
        operators = Table(GROUPINGS[by], [first, *_OPERATORS], row["operators"]).drop_empty_columns(
            first.key, "calls", "time_s", "share"
        )
        tables.append(operators.head(_MAX_OPERATORS if by == "op" else 4 * _MAX_OPERATORS, "the longest "))
    if len(row["steps"]) > 1:
        tables.append(Table("Steps", _STEPS, row["steps"]).head(_MAX_ROWS, "the first "))
    if row.get("gaps"):
        tables.append(Table("Longest idle gaps", _GAPS, row["gaps"]))
    if row.get("collectives"):
        tables.append(Table("Collectives", _COLLECTIVE, row["collectives"]).head(_MAX_ROWS))
    if row.get("engine_steps"):
        steps = Table("Steps of the inference engine", _ENGINE_STEPS, row["engine_steps"])
        tables.append(steps.drop_empty_columns("phase", "steps"))
    if row["missing"]:
        missing = Table("Operations without a FLOP count, without copies between memories", _MISSING, row["missing"])
        tables.append(missing.head(_MAX_ROWS, "the longest "))
    return tables


def _shorten_module_path(path: str) -> str:
    """Return the last 34 characters of a module's path, cut at a ``/``."""
    if len(path) <= _MODULE_PATH_WIDTH or "/" not in path:
        return path
    cut = path.find("/", len(path) - _MODULE_PATH_WIDTH)
    if cut < 0:
        cut = path.rfind("/")
    return "…" + path[cut:]


def _name_files(files: Sequence[str], total: int) -> str:
    """Return the files of a note, the first of them by name."""
    named, more = files[:_NAMED_FILES], len(files) - _NAMED_FILES
    return ", ".join(named) + (f" and {more} more, of {total}" if more > 0 else "")


def _notes(result: Efficiency) -> list[str]:
    """Return each note once, with the profiles that it applies to if it does not apply to all."""
    files: dict[str, list[str]] = {}
    for row in result.rows:
        for note in row.get("notes", ()):
            files.setdefault(note, []).append(str(row["file"]))
    total = len(result.rows)
    if total == 1 and result.method == "steady":
        for operator in result.rows[0]["operators"][:_MAX_OPERATORS]:
            if operator.get("above_peak"):
                files[f"{operator['op']} is above 100% of a peak: {operator['above_peak']}"] = [""]
    notes = [note if len(named) == total else f"{note} ({_name_files(named, total)})" for note, named in files.items()]
    if result.by == "module" and result.rows and all(len(row["operators"]) < 2 for row in result.rows):
        notes.append(
            "the profile has no modules or ranges: profile with `with_stack=True`, or mark ranges with "
            "`torch.profiler.record_function`"
        )
    return notes + [f"not read: {failure['error']}" for failure in result.failed]


def _csv_table(result: Efficiency) -> Table:
    keys = list(dict.fromkeys(key for row in result.rows for key in row if key not in _LISTS))
    return raw_table(result.rows, keys)


def _setting_column(name: str, is_text: bool) -> Column:
    """Return the column of a setting in the name of a file."""
    return option_column(name).replace(title=_TITLES.get(name, name), left=is_text)


def _in_percent(share: float) -> str:
    """Return a fraction as a percentage in the format of SURFBoard's notebook."""
    return f"{share * 100:.6f}"


_FIGURES = {
    "notebook": select_columns(
        # The headings, units and digits of SURFBoard's notebook.
        find_column("compute_efficiency", title="compute\neff. (%)", show=_in_percent),
        find_column("flops_per_s", title="TFLOP/s", show=lambda rate: f"{rate * 1e-12:.6f}"),
        find_column("bytes_per_s", key="bandwidth_bytes_per_s", title="GB/s", show=lambda rate: f"{rate * 1e-9:.6f}"),
        find_column("bandwidth_efficiency", title="bandwidth\neff. (%)", show=_in_percent),
        find_column("flops_efficiency", title="FLOPS\neff. (%)", show=_in_percent),
        drop=("bandwidth_bytes_per_s", "flops_per_s", "compute_efficiency", "bandwidth_efficiency"),
    ),
    "steady": select_columns(
        "forward_s",
        "backward_s",
        "kernel_s",
        "compute_efficiency",
        "flops_efficiency",
        "bandwidth_efficiency",
        "conv_of_peak_forward",
        "conv_of_peak_backward",
        "conv_of_peak",
        drop=(
            "conv_of_peak",
            "conv_of_peak_forward",
            "conv_of_peak_backward",
            "compute_efficiency",
            "kernel_s",
            "bandwidth_efficiency",
        ),
    ),
}
"""Columns of profiles and of group means, by method."""

_PARTS = select_columns("part", "time_s", "share", "flops", find_column("flops_efficiency", key="of_peak"))

_OPERATORS = select_columns(
    "calls",
    "time_s",
    "share",
    "flops_per_s",
    find_column("bytes_per_s", key="bandwidth_bytes_per_s"),
    find_column("flops_efficiency", key="of_peak"),
    "bound",
    "of_roofline",
    drop=("calls", "bandwidth_bytes_per_s", "flops_per_s"),
)


_STEPS = select_columns(find_column("step", key="name"), "kernel_s", "counts")

_GAPS = select_columns(
    find_column("gap_start_s", key="start_s"),
    "time_s",
    find_column("cause", show=CAUSES.__getitem__),
    "host",
    "before",
    drop=("before",),
)

_COLLECTIVE = select_columns(
    "collective",
    "dtype",
    "devices",
    find_column("message_bytes", key="bytes"),
    "calls",
    "time_s",
    "exposed_s",
    "bus_bandwidth_bytes_per_s",
    drop=("dtype", "devices"),
)

_ENGINE_STEPS = select_columns(
    "phase",
    "steps",
    "requests",
    "tokens",
    "time_s",
    "tokens_per_s",
    "cached_tokens",
    "cache_bytes",
    drop=("cached_tokens",),
)

_MISSING = select_columns(find_column("operation", key="op"), "time_s", "share")
